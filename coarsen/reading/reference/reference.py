"""What a model computes as its file says, by an executor that shares as little as possible with what is measured.

An ONNX file is run by ONNX Runtime, without graph optimisations. Any other format is run as OpenVINO reads it, with
open dimensions open and nothing folded, on the CPU in f32, and once more by OpenVINO's own reference implementation
(`Model.evaluate`) where that is fast enough; where the two differ, the reference implementation is right.

All of it runs in the process that reads the model, after it has answered: whatever happens here, the model is read.
"""

from __future__ import annotations

import contextlib
import json
import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov

from coarsen.reading.model.size_trial import DEVICE, PROPERTIES
from coarsen.reading.reference.chosen_rows import chosen_outputs
from coarsen.reading.reference.float_model import float_twin
from pipeline.core.errors import MissingPackageError, ModelError
from pipeline.shared.checks import (
    CHECKS,
    EVALUATED,
    FACTS,
    FLOAT,
    NORMALISED,
    REFERENCE,
    SHAKEN,
    TIMING,
    ByKind,
    ReferenceFacts,
    ReferenceOrder,
    load_by_kind,
    save_by_kind,
)
from pipeline.shared.measured_sizes import load_sizes
from pipeline.shared.model_inputs import Inputs, draw_samples, first_samples, input_name, make_checks
from pipeline.shared.runtime_words import refusal_in_words

TIMED_INFERENCES = 3
SHAKING = 1e-5  # most by which an input is changed, relatively, to see how much outputs depend on chance
MOST_SAMPLED = 2**24  # bytes of inputs and outputs of further samples: they lie in every run directory, too
MOST_EVALUATED_FLOPS = 2e8  # of a model that the reference implementation, which takes a second for so many, runs
ONNXRUNTIME, AS_READ, EVALUATE = "ONNX Runtime", "OpenVINO as the file is read", "OpenVINO's reference implementation"

Arrays = dict[str, npt.NDArray[Any]]
Run = Callable[[Inputs], Arrays]


@dataclass(frozen=True, slots=True)
class CheckInputs:
    """What inputs are drawn by: the arrays that a user gave, or else the size of open dimensions."""

    given: Inputs
    dynamic_size: int

    def checks(self, model: ov.Model) -> ByKind:
        """Return the inputs by kind.

        Raises:
            ModelError: some input cannot be drawn.
        """
        return make_checks(model, seed=0, dynamic_size=self.dynamic_size, given=self.given or None)

    def samples(self, model: ov.Model, kinds: Sequence[str]) -> Iterator[tuple[str, Inputs]]:
        """Yield further samples of kinds of these inputs; see `draw_samples`."""
        return draw_samples(model, kinds, seed=0, dynamic_size=self.dynamic_size)


def write_outputs(
    model: ov.Model,
    path: Path,
    out: Path,
    order: ReferenceOrder,
    drawn: CheckInputs,
    *,
    flops: float,
    request: ov.InferRequest | None = None,
) -> None:
    """Write what the normalised model gives for the inputs of `CHECKS`, and, if ordered, what the source model gives.

    model: normalised. path: the source. out: a folder, perhaps with `CHECKS`, or else they are drawn; it gets
    `NORMALISED`, `TIMING`, and of the source `FACTS`, `REFERENCE` and, of a quantised model, `FLOAT`. flops: of an
    inference. request: of the normalised model, if it has been compiled. A fault is told in `FACTS`.
    """
    begun = time.monotonic()
    facts = ReferenceFacts(chosen=chosen_outputs(model))
    try:
        if not (out / CHECKS).exists():
            save_by_kind(out / CHECKS, drawn.checks(model))
        known = load_by_kind(out / CHECKS)
        checks = {kind: known[kind] for kind in first_samples(known)}
        inferences = order.inferences if model.get_variables() else 1
        run = on_cpu(model, inferences, request)
        least = len(load_sizes(out)) or 1
        ours = _outputs_by_kind(run, checks, begun + order.seconds, least)
        save_by_kind(out / NORMALISED, ours)
        timing = {"inference_s": _fastest_s(run, dict(checks[next(iter(ours))])) / inferences}
        (out / TIMING).write_text(json.dumps(timing), encoding="utf-8")
        if order.source:
            # Of a model with several sizes the noise of each is compared, and no further sample.
            more = iter(()) if load_sizes(out) else drawn.samples(model, list(ours))
            samples = _Samples(more, order.samples_s)
            _write_source(path, {kind: checks[kind] for kind in ours}, samples, out, facts, inferences)
            if samples.inputs:
                save_by_kind(out / CHECKS, checks | samples.inputs)
            facts.samples = len(samples.inputs)
            facts.seconds = time.monotonic() - begun
            _write_facts(out, facts)
            if facts.executor == AS_READ and inferences == 1 and flops <= MOST_EVALUATED_FLOPS:
                _write_evaluated(path, dict(list(checks.items())[:least]), out, facts, order.seconds)
    except (RuntimeError, ModelError) as error:
        facts.why_not.append(f"Nothing was compared: {_in_one_line(error)}")
        _write_facts(out, facts)


@dataclass(slots=True)
class _Samples:
    """Further samples of kinds of inputs: those that are still to be drawn, and those for which the source has run.

    seconds: for which it may. outputs, shaken: what it gave for them, and for the same a little changed.
    """

    more: Iterator[tuple[str, Inputs]]
    seconds: float
    inputs: dict[str, Inputs] = field(default_factory=dict)
    outputs: dict[str, Arrays] = field(default_factory=dict)
    shaken: dict[str, Arrays] = field(default_factory=dict)

    def take(self, run: Run) -> None:
        """Run the source with as many samples as there is time and room for, until it fails on one."""
        end, size = time.monotonic() + self.seconds, 0
        while size < MOST_SAMPLED and time.monotonic() < end and (sample := next(self.more, None)) is not None:
            name, inputs = sample
            try:
                outputs, shaken = run(dict(inputs)), _outputs_by_kind(run, _perturbed_inputs({name: inputs}))
            except (ModelError, RuntimeError):
                break
            self.inputs[name], self.outputs[name] = inputs, outputs
            self.shaken |= shaken
            size += sum(array.nbytes for array in (*inputs.values(), *outputs.values()))


def _write_reference(run: Run, checks: ByKind, samples: _Samples, out: Path, facts: ReferenceFacts) -> dict[str, Any]:
    """Write the outputs of the source for inputs, for these changed a little, and for further samples.

    A kind on which the source fails is told and left out. Returns the inputs of all that it has run with.

    Raises:
        ModelError: ONNX Runtime does not run the first.
        RuntimeError: OpenVINO does not.
    """
    found: dict[str, Arrays] = {}
    for kind, inputs in checks.items():
        try:
            found[kind] = run(dict(inputs))
        except (ModelError, RuntimeError) as error:
            if not found:
                raise
            facts.why_not.append(f"On the kind {kind} of inputs the source does not run: {_in_one_line(error)}")
    facts.kinds = list(found)
    ran = {kind: checks[kind] for kind in found}
    shaken = _outputs_by_kind(run, _perturbed_inputs(ran))
    samples.take(run)
    save_by_kind(out / SHAKEN, shaken | samples.shaken)
    save_by_kind(out / REFERENCE, found | samples.outputs)
    return {**ran, **samples.inputs}


def _write_source(
    path: Path, checks: ByKind, samples: _Samples, out: Path, facts: ReferenceFacts, inferences: int
) -> None:
    source = ov.Core().read_model(path)
    if path.suffix != ".onnx" or not _write_by_onnxruntime(path, source, checks, samples, out, facts):
        try:
            _write_reference(on_cpu(source, inferences), checks, samples, out, facts)
        except RuntimeError as error:
            facts.why_not.append(f"{AS_READ} does not run on the CPU: {refusal_in_words(str(error))}")
        else:
            facts.executor = AS_READ


def on_cpu(model: ov.Model, inferences: int, request: ov.InferRequest | None = None) -> Run:
    """Return what runs a model on the CPU in f32.

    inferences: one after another, each on the state of the last. request: of the model, compiled so; None to compile.
    """
    request = request or ov.Core().compile_model(model, DEVICE, PROPERTIES).create_infer_request()

    def run(inputs: Inputs) -> Arrays:
        if model.get_variables():
            request.reset_state()
        for port in model.inputs:
            request.set_tensor(port, ov.Tensor(np.asarray(inputs[input_name(port)], order="C")))
        for _ in range(inferences):
            request.infer()
        return {f"output_{i}": np.array(tensor.data) for i, tensor in enumerate(request.output_tensors)}

    return run


def by_onnxruntime(model: Path | bytes, source: ov.Model) -> Run:
    """Return what runs an ONNX file, or its content, by ONNX Runtime on the CPU as it is written.

    source: the file as OpenVINO reads it, for the order of outputs: they are found by their names.

    Raises:
        MissingPackageError: onnxruntime is not installed.
        ModelError: ONNX Runtime does not run it, or an output goes by another name there.
    """
    session = OnnxSession(model, source)
    place = {name: f"output_{i}" for i, port in enumerate(source.outputs) for name in port.get_names()}
    outputs = [name for name in session.outputs if name in place]
    if {place[name] for name in outputs} != {f"output_{i}" for i in range(len(source.outputs))}:
        raise ModelError("its outputs go by other names there")

    def run(inputs: Inputs) -> Arrays:
        arrays = {place[name]: array for name, array in session.run(outputs, inputs).items()}
        return {f"output_{i}": arrays[f"output_{i}"] for i in range(len(source.outputs))}

    return run


def onnxruntime_name() -> str:
    """Return what ONNX Runtime is called, with its version; it is installed."""
    import onnxruntime

    return f"{ONNXRUNTIME} {onnxruntime.__version__}"


class OnnxSession:
    """An ONNX file, or its content, in ONNX Runtime on the CPU, as it is written; outputs: names of its tensors.

    source: the file as OpenVINO reads it, for what users call the inputs.

    Raises:
        MissingPackageError: onnxruntime is not installed.
        ModelError: ONNX Runtime does not read it.
    """

    def __init__(self, model: Path | bytes, source: ov.Model) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise MissingPackageError("Comparing outputs with ONNX Runtime takes", "onnxruntime") from error
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        content = model if isinstance(model, bytes) else str(model)
        try:
            self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its errors have no common base but this
            raise ModelError(_in_one_line(error)) from error
        self._called = {name: input_name(p) for p in source.inputs for name in (*p.get_names(), input_name(p))}
        self.outputs: list[str] = [output.name for output in self._session.get_outputs()]

    def run(self, names: Sequence[str], inputs: Inputs) -> Arrays:
        """Return outputs by the names of their tensors.

        Raises:
            ModelError: ONNX Runtime does not run it.
        """
        feed = {i.name: inputs[self._called[i.name]] for i in self._session.get_inputs()}
        try:
            found = self._session.run(list(names), feed)
        except Exception as error:
            raise ModelError(_in_one_line(error)) from error
        return {name: np.asarray(value) for name, value in zip(names, found, strict=True)}


def by_evaluate(source: ov.Model) -> Run:
    """Return what runs a model by OpenVINO's reference implementation; slow, and single-threaded."""

    def run(inputs: Inputs) -> Arrays:
        shaped = source.clone()
        arrays = [np.asarray(inputs[input_name(port)], order="C") for port in shaped.inputs]
        shaped.reshape({port: list(array.shape) for port, array in zip(shaped.inputs, arrays, strict=True)})
        tensors = [
            ov.Tensor(port.get_element_type(), [] if port.get_partial_shape().is_dynamic else port.get_shape())
            for port in shaped.outputs
        ]
        if not shaped.evaluate(tensors, [ov.Tensor(array) for array in arrays]):
            raise ModelError("it does not support some operation")
        return {f"output_{i}": np.array(tensor.data) for i, tensor in enumerate(tensors)}

    return run


def _perturbed_inputs(checks: ByKind) -> dict[str, Inputs]:
    """Return inputs whose floating point entries differ by a few times what rounding in f32 does; none without such."""
    rng = np.random.default_rng(0)
    return {
        kind: {
            name: np.asarray(a + SHAKING * _entry_sizes(a) * rng.uniform(-1, 1, a.shape), a.dtype)
            if a.dtype.kind == "f"
            else a
            for name, a in inputs.items()
        }
        for kind, inputs in checks.items()
        if any(a.dtype.kind == "f" for a in inputs.values())
    }


def _entry_sizes(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return how large the entries of an array are, none smaller than they are in the mean; 1 of nothing but zeros."""
    mean = float(np.sqrt(np.mean(np.square(array, dtype=np.float64)))) if array.size else 0.0
    size: npt.NDArray[Any] = np.maximum(np.abs(array), mean or 1.0)
    return size


def _fastest_s(run: Run, inputs: Inputs) -> float:
    """Return the seconds of the fastest of a few inferences."""
    times = []
    for _ in range(TIMED_INFERENCES):
        begun = time.monotonic()
        run(inputs)
        times.append(time.monotonic() - begun)
    return min(times)


def _outputs_by_kind(run: Run, checks: ByKind, end: float = math.inf, least: int = 1) -> dict[str, Arrays]:
    """Return outputs by kind of inputs: of the first few, and of others until a moment of the monotonic clock."""
    found: dict[str, Arrays] = {}
    for kind, inputs in checks.items():
        if len(found) >= least and time.monotonic() > end:
            break
        found[kind] = run(dict(inputs))
    return found


def _write_by_onnxruntime(
    path: Path, source: ov.Model, checks: ByKind, samples: _Samples, out: Path, facts: ReferenceFacts
) -> bool:
    """Write what ONNX Runtime gives for a file, and for its float twin; return whether it could."""
    try:
        ran = _write_reference(by_onnxruntime(path, source), checks, samples, out, facts)
    except MissingPackageError as error:
        facts.why_not.append(f"{ONNXRUNTIME} was not used: {error}")
        return False
    except ModelError as error:
        facts.why_not.append(f"{ONNXRUNTIME} does not run the model: {error.cause}")
        return False
    facts.executor = onnxruntime_name()
    try:
        twin = float_twin(path)
        if twin is not None:
            save_by_kind(out / FLOAT, _outputs_by_kind(by_onnxruntime(twin, source), ran))
    except (MissingPackageError, ModelError) as error:
        facts.why_not.append(f"No float reference of the quantised model: {error}")
    return True


def _write_evaluated(path: Path, checks: ByKind, out: Path, facts: ReferenceFacts, seconds: float) -> None:
    """Write what the reference implementation gives; the process ends if it is late."""
    facts.cross_check = "it took too long, or ended the process"
    _write_facts(out, facts)
    try:
        with _ended_after(seconds):
            save_by_kind(out / EVALUATED, _outputs_by_kind(by_evaluate(ov.Core().read_model(path)), checks))
    except (RuntimeError, ModelError) as error:
        facts.cross_check = _in_one_line(error)
    else:
        facts.cross_check = ""
    _write_facts(out, facts)


@contextlib.contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    """End the process if what is inside takes longer: no exception reaches what runs outside the interpreter."""
    if not hasattr(signal, "SIGALRM"):
        yield
        return
    before = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _write_facts(out: Path, facts: ReferenceFacts) -> None:
    (out / FACTS).write_text(json.dumps(asdict(facts)), encoding="utf-8")


def _in_one_line(error: Exception) -> str:
    return refusal_in_words(str(error)) or type(error).__name__
