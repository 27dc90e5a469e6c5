"""Reading a model in a process of its own, within limits of time and memory.

What OpenVINO's readers make of a file is not ours to bound: they may crash, never end, or take all memory. In a
process of its own each of these is an error that names the file.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import psutil

from coarsen.reading.model.constant_growth import ReadLimits
from coarsen.reading.model.files import CHECK_FILE, RUNNING, model_files, require_unchanged
from coarsen.reading.model.reading_options import USUAL, Way
from coarsen.reading.model.results_order import ResultsOrder
from coarsen.reading.model.trial_log import Tries
from coarsen.reading.rewriting.rewrites import Rewrites
from coarsen.reading.sizes.shapes import InputShapes
from pipeline.core.errors import ModelError, UsageError
from pipeline.core.figures import bytes_text
from pipeline.shared.checks import ReferenceOrder
from pipeline.system.process import LAST_WORDS, describe_ending, python_command

logger = logging.getLogger(__name__)

POLL_S = 0.01


def read_in_process(  # noqa: PLR0913  what else is wanted of a model has names
    path: Path,
    out: Path,
    *,
    source: str,
    limits: ReadLimits,
    shapes: InputShapes | None = None,
    rewrites: Rewrites | None = None,
    save: bool = True,
    dynamic_cuts: bool = False,
    unfit: Mapping[str, str] | None = None,
    way: Way = USUAL,
    reference: ReferenceOrder | None = None,
) -> None:
    """Write the graph of a model, graph.npz, and shapes.json into `out`; with `save` the normalised model, too.

    source: sha256 of the model's files, see `model_sha256`; that of another moment is refused. What is written is what
    `model/read.py` makes of the model. shapes: what becomes of dynamic inputs; the usual if None. rewrites: what
    is rewritten, nothing if None; what was, is written as rewritten.json. dynamic_cuts: see `to_graph`. unfit: sizes
    that were read before, as `described` tells them, and what is wrong with them; others are chosen. reference: what is
    run once the model is read, on the inputs in `CHECKS`, which are drawn where `out` has none; see
    `coarsen.reading.reference.reference`. A fault there leaves its files out and raises nothing.

    Raises:
        UsageError: the shapes that are given do not fit the model.
        ModelError: the model is missing, damaged or refused, its constants grow too large, a limit is exceeded, or
            its files have changed since they were hashed.
    """
    file_bytes = sum(file.stat().st_size for file in model_files(path))
    command = {
        "path": str(path),
        "out": str(out),
        "source": source,
        "file_bytes": file_bytes,
        "limits": asdict(limits),
        "shapes": asdict(shapes or InputShapes()),
        "rewrites": asdict(rewrites or Rewrites()),
        "save": save,
        "dynamic_cuts": dynamic_cuts,
        "way": asdict(way),
        "reference": None if reference is None else asdict(reference),
    }
    with require_unchanged(path, source):
        answer = _answer_with_retry(command, path, limits, limits.memory_bytes(file_bytes), unfit or {})
        for line in answer["said"]:
            logger.warning("%s", line)
        if "os_error" in answer:
            raise OSError(*answer["os_error"])
        if "error" in answer:
            kind = UsageError if answer["error"]["usage"] else ModelError
            raise kind(answer["error"]["cause"], answer["error"]["remedy"])


def locate_departure(path: Path, folder: Path, kind: str, output: str, limits: ReadLimits, *, seconds: float) -> str:
    """Return the first operation of a normalised model that departs from the source, "" where that cannot be told.

    path: of the source. The rest is that of `coarsen.reading.reference.first_departure.first_departure`.
    """
    asked = {"folder": str(folder), "source": str(path), "kind": kind, "output": output, "seconds": seconds}
    file_bytes = sum(file.stat().st_size for file in model_files(path))
    try:
        answer = _answer_with_retry(
            {"departing": asked, "reference": None}, path, limits, limits.memory_bytes(file_bytes), {}
        )
    except ModelError as error:
        logger.warning("Which operation departs first is not known. %s", error.cause)
        return ""
    return str(answer.get("name", ""))


def source_results(order: ResultsOrder, limits: ReadLimits) -> tuple[str, list[str]]:
    """Write what the source of a model gives for operations; return the executor, and why others were not used.

    limits: of the process.

    Raises:
        ModelError: nothing runs the source, or a limit is exceeded.
    """
    path = Path(order.source)
    file_bytes = sum(file.stat().st_size for file in model_files(path))
    command = {"results": order.to_json(), "reference": None}
    answer = _answer_with_retry(command, path, limits, limits.memory_bytes(file_bytes), {})
    if "error" in answer:
        raise ModelError(answer["error"]["cause"], answer["error"]["remedy"])
    return str(answer["executor"]), list(answer["why_not"])


class _EndedError(ModelError):
    """A reader that died, or took too much memory; how: in words."""

    def __init__(self, cause: str, remedy: str, how: str) -> None:
        super().__init__(cause, remedy)
        self.how = how


def _answer_with_retry(
    command: dict[str, Any], path: Path, limits: ReadLimits, memory_bytes: int, unfit: Mapping[str, str]
) -> dict[str, Any]:
    """Return the answer to a command; a process that the sizes it tries kill is followed by one that leaves them out.

    Raises:
        ModelError: a process exceeded a limit, or died of anything else.
    """
    end = time.monotonic() + limits.timeout_s
    with tempfile.TemporaryDirectory() as scratch:
        tries = Tries(Path(scratch) / "tries.jsonl")
        for sizes, fault in unfit.items():
            tries.end(sizes, fault)
        while True:
            try:
                return _run_command({**command, "tries": str(tries.path)}, path, limits, memory_bytes, end)
            except _EndedError as error:
                sizes = tries.unfinished()
                if not sizes:
                    raise
                tries.end(sizes, f"the process that ran it {error.how}")


def _run_command(
    command: dict[str, Any], path: Path, limits: ReadLimits, memory_bytes: int, end: float
) -> dict[str, Any]:
    """Return the answer of a process that is started for one command.

    Raises:
        _EndedError: it died, or took too much memory.
        ModelError: it took longer than allowed.
    """
    with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as answers, tempfile.TemporaryFile() as errors:
        asked.write(json.dumps(command).encode())
        asked.seek(0)
        process = subprocess.Popen(
            python_command("coarsen.reading.read_child"), stdin=asked, stdout=answers, stderr=errors
        )
        try:
            _wait_for_answer(
                process, path, limits, memory_bytes, Until(end, lambda: os.fstat(answers.fileno()).st_size > 0)
            )
            if command["reference"] is not None:
                # Wait until a process that has answered ends, or exceeds a limit
                end = time.monotonic() + command["reference"]["limit_s"]
                while process.poll() is None and time.monotonic() < end and _own_bytes(process.pid) <= memory_bytes:
                    time.sleep(POLL_S)
        finally:
            process.kill()
            process.wait()
        answer = _whole_answer(answers)
        if answer is None:
            words = " ".join(_stream_text(errors).split())[-LAST_WORDS:].rstrip(".")
            raise _death_error(
                path, describe_ending(process.returncode, words), describe_ending(process.returncode, "")
            )
        return answer


def _whole_answer(answers: IO[bytes]) -> dict[str, Any] | None:
    """Return the answer of the process, None as long as it is not whole."""
    try:
        answer: dict[str, Any] = json.loads(_stream_text(answers))
    except json.JSONDecodeError:
        return None
    return answer


def _death_error(path: Path, words: str, how: str) -> _EndedError:
    """Return the error for a process that died reading a model; words: how, and what it said at last."""
    if RUNNING in words:
        remedy = (
            "This is a fault of OpenVINO's CPU plug-in: pass other sizes with --shape, or another openvino version."
        )
    else:
        remedy = CHECK_FILE
    return _EndedError(f"Reading {path} failed: its process {words}.", remedy, how)


@dataclass(frozen=True, slots=True)
class Until:
    """How long is waited for a process: till a moment of the monotonic clock, or till it has answered."""

    end: float
    answered: Callable[[], bool]


def _wait_for_answer(
    process: subprocess.Popen[bytes], path: Path, limits: ReadLimits, memory_bytes: int, until: Until
) -> None:
    """Wait until the process ends, or has answered.

    Raises:
        _EndedError: it took too much memory.
        ModelError: it took longer than allowed.
    """
    while not until.answered():
        try:
            process.wait(POLL_S)
        except subprocess.TimeoutExpired:
            pass
        else:
            return
        if time.monotonic() > until.end:
            raise ModelError(
                f"Reading {path} takes longer than {limits.timeout_s:g} s.",
                f"Raise the limit: --set coarsen.read_timeout_s={10 * limits.timeout_s:g}",
            )
        if _own_bytes(process.pid) > memory_bytes:
            raise _EndedError(
                f"Reading {path} takes more than {bytes_text(memory_bytes)} of memory.",
                f"Raise the limit: --set coarsen.growth_bytes={8 * limits.growth_bytes}",
                f"took more than {bytes_text(memory_bytes)} of memory",
            )


def _own_bytes(pid: int) -> int:
    """Return the memory of a process without the files that are mapped into it; 0 if it has just ended."""
    try:
        memory = psutil.Process(pid).memory_info()
    except psutil.Error:
        return 0
    return int(memory.rss - getattr(memory, "shared", 0))


def _stream_text(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode(errors="replace")
