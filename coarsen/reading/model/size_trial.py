"""Inferences of a model with the sizes that were found for it: not every fault of a shape shows before.

A size that nobody gave counts only if the model's outputs can be believed: they are the same of a second inference,
with another one between, and of one thread (memory that nobody set shows there), and they are not empty, not NaN, and
not all the same. What draws random numbers differs whatever the size, and is not compared; what rounding decides, as in
quantised models, may differ between numbers of threads, which is told.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov

from coarsen.reading.model.files import RUNNING
from pipeline.shared.model_inputs import Inputs, input_name, make_inputs
from pipeline.shared.runtime_words import refusal_in_words
from pipeline.system.processors import usable_processors

DEVICE = "CPU"
logger = logging.getLogger(__name__)
PROPERTIES = {"INFERENCE_PRECISION_HINT": "f32"}

COMPARING_S = 5.0  # that one more comparison may take; of a model that takes longer, it is left out, and that is told
TOLERANCE = 1e-3  # relative L2 norm by which numbers of another order of summation differ at most
MOST_CHANGED = 0.1  # share of the elements, and L2 norm, of outputs that rounding decides: indices, boxes, int8
DISCRETE = frozenset({
    "NonMaxSuppression", "MulticlassNms", "MatrixNms", "DetectionOutput", "ExperimentalDetectronDetectionOutput",
    "Proposal", "TopK", "NonZero", "Round", "Floor", "Ceiling", "Sign", "FakeQuantize", "Greater", "GreaterEqual",
    "Less", "LessEqual", "Equal", "NotEqual", "Mod", "FloorMod", "Bucketize", "Unique", "If", "Loop",
})  # fmt: skip
RANDOM = frozenset({"RandomUniform", "Multinomial"})

Arrays = list[np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True)
class SizeTrial:
    """What became of a model with some sizes.

    fault: why they do not suit it, in words; "" if they do. doubt: what a larger size might mend, such as an output
    that is empty; "" if there is nothing. compared: what its outputs were compared between, in words. request: what ran
    it; None where nothing did.
    """

    fault: str = ""
    doubt: str = ""
    compared: str = ""
    request: Any = None


def why_refused(model: Any, *, dynamic_size: int = 1, inferences: int = 1) -> str:
    """Return in words why a model does not run on the CPU; "" if it does.

    dynamic_size: of dimensions that are open, but the first. inferences: one after another, each of which finds the
    state that the one before has left.
    """
    return run_given(model, dynamic_size=dynamic_size, inferences=inferences).fault


def refusal_of(model: Any, arrays: Inputs) -> str:
    """Return in words why a model does not run with these inputs, see `why_refused`."""
    return _run(model, arrays, 1).fault


def run_given(model: Any, *, dynamic_size: int = 1, inferences: int = 1) -> SizeTrial:
    """Return what becomes of a model whose sizes a user gave: they need only run. See `why_refused`."""
    return _run(model, make_inputs(model, seed=0, dynamic_size=dynamic_size), inferences)


def _run(model: Any, arrays: Inputs, inferences: int) -> SizeTrial:
    _print_outputs(arrays)
    try:
        request = _compile_model(model).create_infer_request()
        for _ in range(inferences):
            _infer(request, model, arrays)
    except (RuntimeError, ValueError) as error:  # the second is NumPy's, of an output that it cannot hold
        return SizeTrial(refusal_in_words(str(error)))
    return SizeTrial(request=request)


def try_sizes(
    model: Any, *, dynamic_size: int = 1, doubtful: bool = False, comparing_s: float = COMPARING_S
) -> SizeTrial:
    """Return what becomes of a model of whose inputs nobody gave the sizes; doubtful: its outputs may tell little.

    dynamic_size: of what a user has left open.

    The first inference tells most faults. Only where its outputs look right are they compared with others, each time
    only if that is expected to take `comparing_s` or less.
    """
    arrays, others = (make_inputs(model, seed=seed, dynamic_size=dynamic_size) for seed in (0, 1))
    _print_outputs(arrays)
    try:
        start_s = time.monotonic()
        request = _compile_model(model).create_infer_request()
        ready_s = time.monotonic()
        first = _first_outputs(request, model, arrays)
        infer_s = time.monotonic() - ready_s
        uses = [_upstream_types(output) for output in model.outputs]
        varying = {name for name, array in arrays.items() if not _is_constant(array)}
        doubt = _doubtful_outputs(model, first, uses, varying)
        if doubt and not doubtful:
            return SizeTrial(doubt=doubt)
        if any(use & RANDOM for use in uses):
            return SizeTrial("", doubt, "nothing, because it draws random numbers", request)
        compared, left_out = [], []
        if 2 * infer_s > comparing_s:
            left_out.append("two inferences")
        else:
            _first_outputs(request, model, others)
            if fault := _describe_difference(model, first, _first_outputs(request, model, arrays), uses):
                return SizeTrial(f"of two inferences with the same inputs, {fault}")
            compared.append("two inferences")
        threads = usable_processors().count
        if ready_s - start_s + threads * infer_s > comparing_s:
            left_out.append("1 thread and all")
        else:
            single = _compile_model(model, {"INFERENCE_NUM_THREADS": 1}).create_infer_request()
            theirs = _first_outputs(single, model, arrays)
            if fault := _describe_difference(model, first, theirs, uses, every=False):
                return SizeTrial(f"of 1 thread and of all, {fault}")
            rounded = _describe_difference(model, first, theirs, uses)
            compared.append("1 thread and all" + (f" ({rounded}, as rounding may do)" if rounded else ""))
    except (RuntimeError, ValueError) as error:  # the second is NumPy's, of an output that it cannot hold
        return SizeTrial(refusal_in_words(str(error)))
    costs = f"compiling takes {ready_s - start_s:.2g} s, an inference {infer_s:.2g} s"
    slow = f"; {' and '.join(left_out)} were not compared: {costs}" if left_out else ""
    return SizeTrial("", doubt, f"{', '.join(compared) or 'nothing'}{slow}", request)


def _print_outputs(arrays: Inputs) -> None:
    logger.info("%s %s", RUNNING, ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items()))


def _compile_model(model: Any, properties: dict[str, Any] | None = None) -> Any:
    return ov.Core().compile_model(model, DEVICE, {**PROPERTIES, **(properties or {})})


def _infer(request: Any, model: Any, arrays: Inputs) -> None:
    for port, array in zip(model.inputs, arrays.values(), strict=True):
        request.set_tensor(port, ov.Tensor(array))
    request.infer()


def _first_outputs(request: Any, model: Any, arrays: Inputs) -> Arrays:
    """Return copies of the outputs of an inference that finds the states as they are at first."""
    request.reset_state()
    _infer(request, model, arrays)
    return [np.array(tensor.data) for tensor in request.output_tensors]


def _upstream_types(output: Any) -> frozenset[str]:
    """Return of what an output is computed: types of operations, and names of inputs after "input "."""
    seen, types, waiting = set(), set(), [output.get_node()]
    while waiting:
        op = waiting.pop()
        if op.get_name() in seen or op.get_type_name() == "ShapeOf":
            continue
        seen.add(op.get_name())
        kind = op.get_type_name()
        types.add(f"input {input_name(op.output(0))}" if kind == "Parameter" else kind)
        waiting += [op.input_value(i).get_node() for i in range(op.get_input_size())]
    return frozenset(types)


def _doubtful_outputs(model: Any, outputs: Arrays, uses: Sequence[frozenset[str]], varying: set[str]) -> str:
    """Return in words which outputs tell little: those that are empty, NaN, or the same all over; "" if none is.

    Indices and decisions may well be the same all over, if any other output is not. An output that is of one element,
    or that no varying input leads to, is not judged.
    """
    told = {}
    judged = 0
    for output, array, use in zip(model.outputs, outputs, uses, strict=True):
        if not use & {f"input {name}" for name in varying}:
            continue
        judged += 1
        kind = array.dtype.kind
        if array.size == 0:
            told[_output_name(output)] = "is empty", kind
        elif kind == "f" and np.isnan(array).any():
            told[_output_name(output)] = "is not a number", kind
        elif array.size > 1 and _is_constant(array):
            told[_output_name(output)] = f"is {float(array.flat[0]):g} everywhere", kind
    if len(told) < judged:
        told = {name: (words, kind) for name, (words, kind) in told.items() if kind == "f"}
    return ", ".join(f"the output {name} {words}" for name, (words, _) in told.items())


def _describe_difference(
    model: Any, ours: Arrays, theirs: Arrays, uses: Sequence[frozenset[str]], *, every: bool = True
) -> str:
    """Return in words which output differs between two inferences; "" if none does by more than rounding.

    every: whether outputs that rounding decides are looked at, too. Where sums are of another order, as on another
    number of threads, those of a quantised model may be anything.
    """
    for output, a, b, use in zip(model.outputs, ours, theirs, uses, strict=True):
        discrete = bool(use & DISCRETE) or a.dtype.kind != "f"
        if discrete and not every:
            continue
        if a.shape != b.shape:
            if discrete:  # how many boxes are left may hang on rounding
                continue
            return f"the output {_output_name(output)} has the shapes {list(a.shape)} and {list(b.shape)}"
        if a.size == 0:
            continue
        x, y = a.astype(np.float64), b.astype(np.float64)
        if (np.isnan(x) != np.isnan(y)).any():
            return f"the output {_output_name(output)} is not a number in one of them"
        x, y = np.nan_to_num(x, posinf=0, neginf=0), np.nan_to_num(y, posinf=0, neginf=0)
        scale = max(float(np.linalg.norm(x)), float(np.linalg.norm(y)))
        distance = float(np.linalg.norm(x - y)) / scale if scale else 0.0
        changed = float((np.abs(x - y) > TOLERANCE * scale / np.sqrt(x.size)).mean())
        if distance > (MOST_CHANGED if discrete else TOLERANCE) and (not discrete or changed > MOST_CHANGED):
            return f"the output {_output_name(output)} differs by {100 * distance:.2g} %"
    return ""


def _is_constant(array: Any) -> bool:
    return bool(array.size == 0 or (array == array.flat[0]).all())


def _output_name(output: Any) -> str:
    return str(output.get_any_name()) if output.get_names() else str(output.get_node().get_friendly_name())
