"""The first operation whose result, as the CPU device computes it in a whole model, departs from what it should be.

What each result should be is told by ONNX Runtime, of an ONNX file; or else by the model with every result made an
output, so that nothing is fused, or by OpenVINO's reference implementation, whichever gives the outputs of the source.
Then single results are made outputs of the whole model, one at a time: `pipeline.shared.first_departure` says which.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy.typing as npt
import openvino as ov

from coarsen.reading.model.results_order import ResultsOrder
from coarsen.reading.reference.reference import ONNXRUNTIME, by_evaluate, on_cpu
from coarsen.reading.reference.source_results import write_source_results
from pipeline.core.errors import ModelError
from pipeline.shared.checks import CHECKS, REFERENCE, load_by_kind, relative_l2
from pipeline.shared.first_departure import first_departure_before
from pipeline.shared.model_inputs import Inputs
from pipeline.shared.model_outputs import expose_ports

SKIPPED = frozenset({"Parameter", "Constant", "Result", "Assign", "ReadValue"})
SHARE = 0.1  # of the difference of the output, from which a result counts as departing

Results = Mapping[str, npt.NDArray[Any]]  # by name of the operation


def first_departure(folder: Path, source: Path, kind: str, output: str, seconds: float) -> str:
    """Return the name of the first operation that departs, "" where that cannot be told in so many seconds.

    folder: with the normalised model, `CHECKS` and `REFERENCE`. source: the file that was read. kind: of inputs on
    which it departs. output: which of its outputs, "output_0" ..

    Raises:
        RuntimeError: the model cannot be read.
    """
    model = ov.Core().read_model(folder / "model.xml")
    inputs, expected = load_by_kind(folder / CHECKS)[kind], load_by_kind(folder / REFERENCE)[kind][output]
    place = int(output.rpartition("_")[2])
    suspect = on_cpu(model, 1)(inputs)[output]
    if suspect.shape != expected.shape:
        return ""
    limit = SHARE * min(1.0, relative_l2(suspect, expected))  # it is infinite where one of the two holds NaN
    end = time.monotonic() + seconds
    should_be = _by_source(model, folder, source, kind) or _should_be(model, inputs, expected, place, limit)
    if should_be is None:
        return ""
    alone = _Alone(model, inputs, should_be, limit)
    last = str(model.outputs[place].get_node().input_value(0).get_node().get_friendly_name())
    producers = {
        str(op.get_friendly_name()): [str(value.get_node().get_friendly_name()) for value in op.input_values()]
        for op in model.get_ordered_ops()
    }
    return first_departure_before(last, producers, alone.departs, lambda: time.monotonic() < end).operation


def _by_source(model: ov.Model, folder: Path, source: Path, kind: str) -> Results | None:
    """Return what ONNX Runtime gives for operations of an ONNX file, by their names; None if it does not run it."""
    if source.suffix != ".onnx":
        return None
    names = [str(op.get_friendly_name()) for op in model.get_ordered_ops() if op.get_type_name() not in SKIPPED]
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "results.npz"
        try:
            told = write_source_results(ResultsOrder(str(source), str(folder), names, {kind: str(path)}))
        except ModelError:
            return None
        return load_by_kind(path).get("0") if told["executor"].startswith(ONNXRUNTIME) else None


def _should_be(model: ov.Model, inputs: Inputs, expected: npt.NDArray[Any], place: int, limit: float) -> Results | None:
    """Return what the result of every operation should be, None if nothing gives the expected output."""
    everywhere = model.clone()
    operations = [op for op in everywhere.get_ordered_ops() if op.get_type_name() not in SKIPPED]
    places = expose_ports(everywhere, [op.output(0) for op in operations])
    names = [str(op.get_friendly_name()) for op in operations]
    for runs in (partial(on_cpu, inferences=1), by_evaluate):
        try:
            found = list(runs(everywhere)(inputs).values())
        except (RuntimeError, ModelError):
            continue
        if found[place].shape == expected.shape and relative_l2(found[place], expected) <= limit:
            return {name: found[at] for name, at in zip(names, places, strict=True)}
    return None


class _Alone:
    """The results of single operations of a model on the CPU; limit: relative distance from which one departs."""

    def __init__(self, model: ov.Model, inputs: Inputs, should_be: Results, limit: float) -> None:
        self.model, self.inputs, self.should_be, self.limit = model, inputs, should_be, limit

    def departs(self, name: str) -> bool | None:
        """Return whether the result of an operation departs in the model that has it as an output, too."""
        if name not in self.should_be:
            return None
        seen = self.model.clone()
        [at] = expose_ports(seen, [{o.get_friendly_name(): o for o in seen.get_ops()}[name].output(0)])
        found = on_cpu(seen, 1)(self.inputs)[f"output_{at}"]
        wanted = self.should_be[name]
        return found.shape != wanted.shape or relative_l2(found, wanted) > self.limit
