"""The parent's side of a measuring child: start it, ask it with a time limit, and name what went wrong."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pipeline.core.errors import UNPARSABLE, PlacewrightError
from pipeline.core.measurement import FailureKind, MeasurementFailed
from pipeline.system.process import Piped, describe_ending, was_killed

MEMORY_LIMIT = "PLACEWRIGHT_WORKER_MEMORY"  # environment variable that carries the limit to the child
ONE_MODEL = "runtime.measuring.process.child_main"
# What allocators, loaders and device plug-ins say when memory is short.
MEMORY_WORDS = (
    "bad_alloc",
    "memoryerror",
    "out of memory",
    "not enough memory",
    "can't alloc",
    "cannot alloc",
    "bad_array_new",
    "failed to map segment",
)


class ChildError(PlacewrightError, RuntimeError):
    """The child failed, was killed, or did not answer in time; `failed` says which."""

    exit_code = 5

    def __init__(self, failed: MeasurementFailed) -> None:
        super().__init__(
            f"The measuring process failed ({failed.kind}): {failed.message}.",
            "Run `placewright doctor`, or leave the device out of --devices.",
        )
        self.failed = failed


class DamagedAnswerError(ChildError):
    """What the process wrote is no answer."""


class NoReferenceError(ChildError):
    """The CPU does not run the whole model in f32, so that there is nothing to compare outputs with."""

    def __init__(self, failed: MeasurementFailed) -> None:
        super().__init__(failed)
        what = {"out_of_memory": "memory ran out", "timeout": "it took too long", "crashed": "its process ended"}
        said = f"{what[failed.kind]}: {failed.message}" if failed.kind in what else failed.message
        self.cause = f"The CPU cannot run the model in f32, which is the reference of all outputs: {said}."
        self.remedy = {
            "out_of_memory": "Free memory, or raise measure.memory_bytes if it is set.",
            "timeout": "Raise the timeout: --set measure.timeout_s=600",
        }.get(
            failed.kind,
            "Repair the model, or pass other sizes with --shape, so that it runs on OpenVINO's CPU plug-in.",
        )


class Child:
    """A measuring child process. Use it as a context manager; leaving it ends the process.

    timeout_s: how long one answer may take. memory_bytes: address space the child may use; 0 for no limit. rests:
    whether the process stands still but while it is asked: threads of ONNX Runtime spin for 30 ms after an inference,
    which would slow down whose turn is next. run: what answers, one of our modules or a whole command.
    """

    def __init__(
        self,
        *,
        timeout_s: float,
        memory_bytes: int = 0,
        run: str | Sequence[str] = ONE_MODEL,
    ) -> None:
        self.timeout_s = timeout_s
        self._oom_kills = _oom_kills()
        self.piped = Piped(run, {MEMORY_LIMIT: str(memory_bytes)})
        self.rests = self._stopped = False

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self.piped.process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the process now."""
        self.piped.close()

    def ask(self, do: str, *, timeout_s: float | None = None, **command: Any) -> Any:
        """Return the child's answer to one command, a JSON object; see `worker` and `answers`.

        Raises:
            ChildError: the device refused, memory ran out, the time limit passed, or the process died.
        """
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        end = time.monotonic() + limit_s
        self._stop(False)
        try:
            self.piped.send(json.dumps({"do": do, **command}).encode() + b"\n", within_s=limit_s)
            text = self.piped.receive(within_s=max(0.0, end - time.monotonic()))
        except TimeoutError as error:
            self.piped.process.kill()
            raise ChildError(MeasurementFailed("timeout", f"no answer within {limit_s:g} s")) from error
        if not text:
            raise ChildError(self._post_mortem())
        self._stop(self.rests)
        try:
            answer: dict[str, Any] = json.loads(text)
            fault: Mapping[str, str] | None = answer.get("error")
            failed = None if fault is None else MeasurementFailed(_failure_kind(fault["kind"]), str(fault["message"]))
        except (AttributeError, KeyError, TypeError, *UNPARSABLE) as error:  # native code wrote into it
            failed = MeasurementFailed("crashed", f"its answer is damaged: {text[:99]!r}")
            raise DamagedAnswerError(failed) from error
        if failed is not None:
            raise ChildError(failed)
        return answer

    def _stop(self, wanted: bool) -> None:
        """Let the process stand still, or go on, where the system knows how."""
        if wanted != self._stopped and hasattr(signal, "SIGSTOP") and self.piped.process.poll() is None:
            os.kill(self.pid, signal.SIGSTOP if wanted else signal.SIGCONT)
            self._stopped = wanted

    def _post_mortem(self) -> MeasurementFailed:
        """Return why the process is gone, from its exit status, the kernel's count and its last words."""
        status = self.piped.process.wait()
        if was_killed(status) and _oom_kills() > self._oom_kills:
            return MeasurementFailed("out_of_memory", "it was killed by the kernel because memory ran out")
        words = self.piped.last_words()
        kind: FailureKind = "out_of_memory" if speaks_of_memory(words) else "crashed"
        return MeasurementFailed(kind, f"it {describe_ending(status, words)}")


def speaks_of_memory(message: str) -> bool:
    """Return whether a message of the runtime means that memory ran out."""
    return any(word in message.lower() for word in MEMORY_WORDS)


def _failure_kind(text: str) -> FailureKind:
    kinds: dict[str, FailureKind] = {
        "refused": "refused",
        "out_of_memory": "out_of_memory",
        "timeout": "timeout",
        "crashed": "crashed",
        "wrong_output": "wrong_output",
    }
    return kinds[text]


def _oom_kills() -> int:
    """Return how often the kernel has killed a process for memory since it booted."""
    stat = Path("/proc/vmstat")
    if not stat.exists():
        return 0
    words = stat.read_text(encoding="ascii").split()
    return int(words[words.index("oom_kill") + 1]) if "oom_kill" in words else 0
