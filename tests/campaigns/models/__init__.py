"""Models, mutated as ONNX and as IR, through the reader: every end is an error that names the cause, or a right answer.

They are read in a resident fork of a process that has imported the reader, so that tens of thousands fit into an hour;
every thousandth is read as a run reads it, in a process of its own. The fork may die, as OpenVINO dies of some models:
a run says so and goes on. It may not take longer than a minute or more than 4 GiB. An answer is right if the graph has
unique names and no cycle, the saved model is what the graph says, and gives what ONNX Runtime, or OpenVINO where that
has no answer, makes of the source.
"""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from tests.campaigns.commands import run_command
from tests.campaigns.models.cases import Cases
from tests.campaigns.models.resident import LIMIT_BYTES, LIMIT_S, PARSES_ON, TOO_LARGE, TOO_SLOW, Resident
from tests.campaigns.runner import Campaign, Case, Judge, require

WHOLE_EVERY = 1000
COMPARED = 0.05  # largest difference, as a share of the largest output: all of them compute in f32
ONNXRUNTIME, EVALUATED, COMPILED = "ONNX Runtime", "OpenVINO's evaluator", "OpenVINO's CPU plug-in"
DIED = "its process ended"
PLAIN = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
Arrays = Sequence[np.ndarray[Any, Any]]


def read_task(path: str, out: str) -> Any:
    """Return what the reader answers about a model."""
    from coarsen.reading import read_child
    from coarsen.reading.model.constant_growth import ReadLimits
    from coarsen.reading.model.files import model_files, model_sha256
    from coarsen.reading.model.reading_options import USUAL
    from coarsen.reading.rewriting.rewrites import Rewrites
    from coarsen.reading.sizes.shapes import InputShapes
    from pipeline.core.errors import PlacewrightError

    try:
        source = model_sha256(Path(path))
        file_bytes = sum(file.stat().st_size for file in model_files(Path(path)))
    except PlacewrightError as error:  # said by the parent, which hashes a model before it is read
        return {"error": {"cause": error.cause, "remedy": error.remedy, "usage": False}}
    command = {
        "path": path,
        "out": out,
        "source": source,
        "file_bytes": file_bytes,
        "limits": asdict(ReadLimits()),
        "shapes": asdict(InputShapes()),
        "rewrites": asdict(Rewrites()),
        "save": True,
        "dynamic_cuts": False,
        "way": asdict(USUAL),
        "reference": None,
        "tries": str(Path(out) / "tries.jsonl"),
    }
    return read_child.answer_command(json.loads(json.dumps(command)))[0]


def check_task(path: str, out: str) -> Any:
    """Return {"wrong"}, {"kind"} of what is not to be run, or neither: hold a graph against the saved model."""
    import openvino as ov

    from pipeline.core.graph import topological_order
    from pipeline.shared.payload import load_graph

    graph = load_graph(Path(out) / "graph.npz")
    topological_order(graph)
    normal = ov.Core().read_model(Path(out) / "model.xml")
    names = [op.get_friendly_name() for op in normal.get_ordered_ops()]
    if len(set(names)) < len(names):
        return {"wrong": "two operations of the saved model share a name"}
    if set(names) != set(graph.names):
        return {"wrong": f"the graph and the saved model differ in {set(names) ^ set(graph.names)}"}
    return {"kind": "read, with state or open sizes"} if normal.is_dynamic() else {}


def run_task(path: str, out: str, saved: str, runtime: str) -> Any:
    """Write outputs beside `saved`, the model as it was read; return why there are none, or ""."""
    import openvino as ov

    core = ov.Core()
    normal, given = core.read_model(Path(out) / "model.xml"), core.read_model(path)
    if given.get_sinks():
        return "read, with state or open sizes"
    try:
        inputs = [_drawn_input(port) for port in normal.inputs]
    except (TypeError, ValueError, RuntimeError):
        return "read, inputs too large"
    compiled = runtime == COMPILED
    try:
        if runtime == ONNXRUNTIME:
            found = run_onnx(Path(path), given, inputs)
        elif saved:
            found = run_openvino(normal, inputs, compiled=compiled)
        else:
            found = run_source(given, inputs, compiled=compiled)
    except ValueError:  # numpy's, of an output
        return "read, outputs too large"
    if found is None:
        return "read, nothing runs the source"
    np.savez(Path(out) / "outputs.npz", *found)
    return ""


class Judges:
    """A resident for each runtime: what one of them does to its own memory is told from what another does."""

    def __init__(self) -> None:
        tasks = {"check": check_task, "run": run_task}
        self._by = {runtime: Resident(tasks) for runtime in (ONNXRUNTIME, EVALUATED, COMPILED)}

    def close(self) -> None:
        """End them."""
        for resident in self._by.values():
            resident.close()

    def check(self, path: Path, out: Path) -> str:
        """Return in a word what is not to be run; "" of a model that is."""
        answer, status = self._by[EVALUATED].ask("check", str(path), str(out), said=out / "said.txt")
        require(status == 0, f"the saved model ends who reads it with {status}: {_last_words(out)}")
        require("wrong" not in answer, answer.get("wrong", ""))
        return str(answer.get("kind", ""))

    def outputs(self, path: Path, out: Path, runtime: str, *, saved: bool) -> tuple[Arrays | None, str]:
        """Return what a runtime makes of a model, or None and why: how its process ended, if it did."""
        given = (str(path), str(out), "saved" * saved, runtime)
        why, status = self._by[runtime].ask("run", *given, said=out / "said.txt")
        if status or why:
            return None, why or f"{DIED} ({status})"
        with np.load(out / "outputs.npz", allow_pickle=False) as found:
            return [found[name] for name in found.files], ""


def _last_words(out: Path) -> str:
    return (out / "said.txt").read_bytes().decode(errors="replace")[-1500:]


def judge_answer(path: Path, out: Path, judges: Judges) -> str:
    """Hold what was read against what runs the source as it stands.

    OpenVINO's evaluator, which compiles nothing, writes beyond its memory for a slope of PRelu that is larger than its
    input, and for Gather of an empty tensor: where it ends its process, the CPU plug-in, which users have, judges.
    """
    if kind := judges.check(path, out):
        return kind
    expected, why = judges.outputs(path, out, ONNXRUNTIME, saved=False) if path.suffix == ".onnx" else (None, "")
    by, how = "ONNX Runtime", EVALUATED
    if expected is None:
        by = "OpenVINO"
        expected, why = judges.outputs(path, out, how, saved=False)
        if why.startswith(DIED):
            how = COMPILED
            expected, why = judges.outputs(path, out, how, saved=False)
    if expected is None:  # it dies of the source as it stands: nothing to compare with
        return "read, the source ends what runs it" if why.startswith(DIED) else why
    got, why = judges.outputs(path, out, how, saved=True)
    if why.startswith(DIED):
        how = COMPILED
        got, why = judges.outputs(path, out, how, saved=True)
    if got is None and why.startswith(DIED) and judges.outputs(path, out, how, saved=False)[1].startswith(DIED):
        return "read, the source ends what runs it"
    if got is None:
        require(why == "read, outputs too large", f"the saved model: {why}: {_last_words(out)}")
        return why
    fault = compare_outputs(expected, got)
    if fault and by == "ONNX Runtime":
        again, _ = judges.outputs(path, out, how, saved=False)
        if again is None or not compare_outputs(again, got):
            return "read, OpenVINO and ONNX Runtime differ"
    if fault and by == "OpenVINO":
        others = (judges.outputs(path, out, how, saved=False)[0] for _ in range(3))
        if any(compare_outputs(expected, other or ()) for other in others):
            return "read, the source gives something else each time"
    require(not fault, f"{by}: {fault}")
    return f"the outputs of {by}"


def run_onnx(source: Path, declared: Any, inputs: Arrays) -> Arrays | None:
    """Return what ONNX Runtime makes of a source, None where it does not run it."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
        wanted = {i.name for i in session.get_inputs()}
        feed = {n: a for port, a in zip(declared.inputs, inputs, strict=True) for n in port.get_names() & wanted}
        return [np.asarray(array) for array in session.run(None, feed)]
    except Exception:  # noqa: BLE001  its errors have no class in common
        return None


def run_source(given: Any, inputs: Arrays, *, compiled: bool) -> Arrays | None:
    """Return what OpenVINO makes of a source with inputs of these sizes, None where it does not run it."""
    try:
        if given.is_dynamic():
            given.reshape({port: list(a.shape) for port, a in zip(given.inputs, inputs, strict=True)})
        return run_openvino(given, inputs, compiled=compiled)
    except (RuntimeError, TypeError, ValueError):
        return None


def run_openvino(model: Any, inputs: Arrays, *, compiled: bool) -> Arrays:
    """Return the outputs of a model: by the CPU plug-in, or by the evaluator where operations have one."""
    import openvino as ov

    with contextlib.suppress(RuntimeError):
        outputs = [ov.Tensor(port.get_element_type(), ov.Shape(list(port.get_shape()))) for port in model.outputs]
        if not compiled and model.evaluate(outputs, [ov.Tensor(array) for array in inputs]):
            return [np.array(tensor.data) for tensor in outputs]
    found = ov.Core().compile_model(model, "CPU", PLAIN)(dict(enumerate(inputs)))
    return [np.array(found[i]) for i in range(len(found))]


def compare_outputs(expected: Arrays, got: Arrays) -> str:
    """Return in what outputs differ, "" if they do not."""
    if len(got) != len(expected):
        return f"{len(got)} outputs instead of {len(expected)}"
    for i, (theirs, ours) in enumerate(zip(expected, got, strict=True)):
        if not _close(theirs, ours):
            return f"output {i} is {ours.shape} {ours.ravel()[:4]} and not {theirs.shape} {theirs.ravel()[:4]}"
    return ""


def _drawn_input(port: Any) -> Any:
    rng, shape = np.random.default_rng(0), tuple(port.shape)
    if np.prod(shape, dtype=float) > 1e6:
        raise ValueError("too large to compare")
    kind = port.get_element_type().to_dtype()
    return (rng.standard_normal(shape) if np.issubdtype(kind, np.floating) else rng.integers(0, 2, shape)).astype(kind)


def _close(expected: Any, got: Any) -> bool:
    if expected.shape != got.shape:
        return False
    if not np.issubdtype(expected.dtype, np.floating):
        return bool(np.mean(expected != got) < COMPARED) if expected.size else True
    finite = np.isfinite(expected) & np.isfinite(got)
    if not finite.any():
        return True
    with np.errstate(all="ignore"):
        most = float(np.abs(expected[finite]).max()) or 1.0
        return bool(np.abs(expected[finite] - got[finite]).max() <= COMPARED * most)


def judge_resident(case: Case, path: Path, resident: Resident, judges: Judges) -> str:
    """Read a model in the resident and judge its end."""
    out = case.folder / "out"
    out.mkdir()
    said = out / "said.txt"
    answer, status = resident.ask("read", str(path), str(out), said=said)
    if status == PARSES_ON:  # a run ends it after coarsen.read_timeout_s
        return "OpenVINO parses without end"
    require(status != TOO_SLOW, f"takes longer than {LIMIT_S:g} s")
    require(status != TOO_LARGE, f"takes more than {LIMIT_BYTES} bytes")
    if status < 0:
        return f"OpenVINO died ({signal.Signals(-status).name})"
    words = said.read_bytes().decode(errors="replace")[-1500:]
    require(status == 0 and answer is not None, f"ends with {status}: {words}")
    if "error" in answer:
        error = answer["error"]
        require(error["cause"] and "Traceback" not in error["cause"], f"an error without a cause: {error}")
        require(error["remedy"].strip(), f"an error without a remedy: {error}")
        names = str(path) in error["cause"] or "m.bin" in error["cause"] or "--shape" in error["remedy"]
        require(names, f"neither model nor input is named: {error}")
        return "refused"
    require("os_error" not in answer, f"an OSError: {answer}")
    return judge_answer(path, out, judges)


def judge_whole(case: Case, path: Path) -> str:
    """Read a model as a run does, by the command line."""
    begun = time.monotonic()
    graph = ["search", path, "--topology", "equal:2", "--evaluations", "4", "--placer", "greedy", "--quiet", "--json"]
    ended = run_command(*graph, "--store", case.folder / "s")
    require(time.monotonic() - begun < 3 * LIMIT_S, "takes longer than three minutes")
    return "searched" if ended.code == 0 else f"search refused ({ended.code})"


@contextlib.contextmanager
def begin(folder: Path) -> Iterator[Judge]:
    """Give what mutates and reads a model."""
    from coarsen.reading import read_child  # noqa: F401
    from coarsen.reading.model import read  # noqa: F401  imported once, before any fork
    from coarsen.reading.reference import reference  # noqa: F401
    from coarsen.reading.rewriting import forms, quantisers, rewriting  # noqa: F401

    cases, resident, judges = Cases(folder), Resident({"read": read_task}), Judges()

    def judge(case: Case) -> str:
        path = cases.write(case)
        return (
            judge_whole(case, path)
            if case.seed % WHOLE_EVERY == WHOLE_EVERY - 1
            else judge_resident(case, path, resident, judges)
        )

    try:
        yield judge
    finally:
        resident.close()
        judges.close()


CAMPAIGN = Campaign("models", 3.0, begin)
