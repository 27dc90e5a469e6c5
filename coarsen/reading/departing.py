"""The first operation whose result, as the CPU device computes it in a whole model, departs from what it should be.

What each result should be is told by the model with every result made an output, so that nothing is fused, or else by
OpenVINO's reference implementation; whichever gives the outputs of the source. Then single results are made outputs of
the whole model, by bisection along a longest path to the output that departs: once a path is wrong, it stays wrong.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy.typing as npt
import openvino as ov

from coarsen.reading.reference import by_evaluate, on_cpu
from pipeline.core.errors import ModelError
from pipeline.shared.checks import CHECKS, REFERENCE, load_by_kind, relative_l2
from pipeline.shared.model_inputs import Inputs

SKIPPED = frozenset({"Parameter", "Constant", "Result", "Assign", "ReadValue"})
SHARE = 0.1  # of the difference of the output, from which a result counts as departing

Results = Mapping[str, npt.NDArray[Any]]  # by name of the operation


def first_departure(folder: Path, kind: str, output: str, seconds: float) -> str:
    """Return the name of the first operation that departs, "" where that cannot be told in so many seconds.

    folder: with the normalised model, `CHECKS` and `REFERENCE`. kind: of inputs on which it departs. output: which of
    its outputs, "output_0" ..

    Raises:
        RuntimeError: the model cannot be read.
    """
    model = ov.Core().read_model(folder / "model.xml")
    inputs, expected = load_by_kind(folder / CHECKS)[kind], load_by_kind(folder / REFERENCE)[kind][output]
    place = int(output.rpartition("_")[2])
    suspect = on_cpu(model, 1)(inputs)[output]
    if suspect.shape != expected.shape:
        return ""
    limit = SHARE * relative_l2(suspect, expected)
    should_be = _should_be(model, inputs, expected, place, limit)
    if should_be is None:
        return ""
    search = _Search(model, inputs, should_be, limit, time.monotonic() + seconds)
    return search.first(model.outputs[place].get_node().input_value(0).get_node())


def _should_be(model: ov.Model, inputs: Inputs, expected: npt.NDArray[Any], place: int, limit: float) -> Results | None:
    """Return what the result of every operation should be, None if nothing gives the expected output."""
    everywhere = model.clone()
    operations = [op for op in everywhere.get_ordered_ops() if op.get_type_name() not in SKIPPED]
    everywhere.add_outputs([op.output(0) for op in operations])
    names = [op.get_friendly_name() for op in operations]
    for runs in (partial(on_cpu, inferences=1), by_evaluate):
        try:
            found = list(runs(everywhere)(inputs).values())
        except (RuntimeError, ModelError):
            continue
        if found[place].shape == expected.shape and relative_l2(found[place], expected) <= limit:
            return dict(zip(names, found[len(model.outputs) :], strict=False))
    return None


class _Search:
    """Bisection over the results of one model; limit: relative distance from which a result departs."""

    def __init__(self, model: ov.Model, inputs: Inputs, should_be: Results, limit: float, end: float) -> None:
        self.model, self.inputs, self.should_be, self.limit, self.end = model, inputs, should_be, limit, end
        self.known: dict[str, bool] = {}

    def first(self, last: ov.Node) -> str:
        """Return the first operation on the way to one that departs; that one, where time is up."""
        name = str(last.get_friendly_name())
        while time.monotonic() < self.end:
            path = _longest_path(last)
            low, high = -1, len(path) - 1  # the last of the path departs
            while high - low > 1 and time.monotonic() < self.end:
                middle = (low + high) // 2
                low, high = (low, middle) if self.departs(path[middle]) else (middle, high)
            name = str(path[high].get_friendly_name())
            others = [op for op in _producers(path[high]) if self.departs(op)]
            if not others:
                return name
            last = others[0]
        return name

    def departs(self, op: ov.Node) -> bool:
        """Return whether the result of an operation departs in the model that has it as an output, too."""
        name = str(op.get_friendly_name())
        if op.get_type_name() in SKIPPED or name not in self.should_be:
            return False
        if name not in self.known:
            seen = self.model.clone()
            seen.add_outputs([{o.get_friendly_name(): o for o in seen.get_ops()}[name].output(0)])
            found = list(on_cpu(seen, 1)(self.inputs).values())[len(self.model.outputs)]
            wanted = self.should_be[name]
            self.known[name] = found.shape != wanted.shape or relative_l2(found, wanted) > self.limit
        return self.known[name]


def _producers(op: ov.Node) -> list[ov.Node]:
    return [value.get_node() for value in op.input_values()]


def _longest_path(last: ov.Node) -> Sequence[ov.Node]:
    """Return a longest path of operations that ends in one, in the order of the data flow."""
    length: dict[str, int] = {}
    before: dict[str, ov.Node | None] = {}
    waiting = [last]
    while waiting:  # depth first, without recursion: paths have thousands of operations
        op = waiting[-1]
        missing = [p for p in _producers(op) if p.get_name() not in length]
        if missing:
            waiting += missing
            continue
        waiting.pop()
        longest = max(_producers(op), key=lambda p: length[p.get_name()], default=None)
        before[op.get_name()] = longest
        length[op.get_name()] = 1 + (length[longest.get_name()] if longest is not None else 0)
    path = [last]
    while (previous := before[path[-1].get_name()]) is not None:
        path.append(previous)
    return [op for op in reversed(path) if op.get_type_name() not in SKIPPED]
