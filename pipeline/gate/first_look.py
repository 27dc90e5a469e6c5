"""What can be said of two sides before anything is timed: whether each runs a model, outputs, kernels and devices."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.core.accuracy import AccuracyLevel
from pipeline.core.deadline import Deadline
from pipeline.core.measurement import FailureKind, MeasurementFailed
from pipeline.core.settings import MeasureSettings
from pipeline.gate.starts import AFTER, BEFORE, GateSide, Which
from pipeline.shared.checks import load_by_kind
from pipeline.shared.first_departure import first_departure_before
from pipeline.shared.payload import load_arrays
from pipeline.shared.runtime_words import refusal_in_words
from runtime.measuring.contest.statistics import TWIN
from runtime.measuring.outputs.outputs import Reference, output_differences
from runtime.measuring.outputs.quality import accuracy_of, limits_for
from runtime.measuring.process.child import Child, ChildError

NOT_COMPUTED = (
    "Const",
    "Input",
    "Output",
    "Parameter",
    "Result",
    "Reorder",
    "Memory",
)  # kernels that only hold or move
LISTED = 20  # changes that are kept of a model
OPERATION, PRECISION, DEVICE = "kernel", "precision", "device"
INT8 = ("i8", "u8")


@dataclass(frozen=True, slots=True)
class KernelChange:
    """What other kernel, precision or device operations have after; example: the name of one of so many."""

    what: str
    before: str
    after: str
    count: int
    example: str


@dataclass(frozen=True, slots=True)
class FirstLook:
    """What was seen of a model on both sides before any start.

    failed: {side: [kind of failure, its words]} of what does not run. why_not: in words, which output departs too far,
    and by how much; "" where none does. difference: the largest of an output, relative in L2 norm; None where it is not
    finite or not known. first: the first operation that departs; "" where none is known. changes: at most LISTED, most
    operations first. precisions, devices: by side.
    """

    failed: Mapping[str, tuple[FailureKind, str]] = field(default_factory=dict)
    why_not: str = ""
    difference: float | None = None
    first: str = ""
    changes: Sequence[KernelChange] = ()
    precisions: Mapping[str, str] = field(default_factory=dict)
    devices: Mapping[str, Sequence[str]] = field(default_factory=dict)


def look_at_sides(
    sides: Mapping[Which, GateSide], inputs: Path, folder: Path, accuracy: AccuracyLevel, deadline: Deadline
) -> FirstLook:
    """Return what is seen of a model on both sides. folder: for files. deadline: of finding what departs first.

    Raises:
        UsageError: an environment does not begin any more.
    """
    told: dict[Which, dict[str, Any]] = {}
    runtimes = {side.environment.runtime for side in sides.values()}
    failed: dict[str, tuple[FailureKind, str]] = {}
    with contextlib.ExitStack() as stack:
        children: dict[str, Child] = {}
        for side, what in (*sides.items(), (TWIN, sides[BEFORE])):  # they import side by side
            children[side] = stack.enter_context(what.environment.start())
        for side, what in sides.items():
            try:
                told[side] = _look_at_one(children[side], what, inputs, folder / f"{side}.npz")
            except ChildError as error:
                failed[side] = (error.failed.kind, refusal_in_words(error.failed.message))
        if failed:
            return FirstLook(failed)
        with contextlib.suppress(ChildError):  # it tells what wavers
            _look_at_one(children.pop(TWIN), sides[BEFORE], inputs, folder / f"{TWIN}.npz")
        before, after = told[BEFORE], told[AFTER]
        limits, apart, difference, place = _compare(before, after, folder, accuracy)
        first = ""
        if apart and sides[BEFORE].model == sides[AFTER].model:
            first = _first_departure(children, folder, limits, place, deadline)
    return FirstLook(
        why_not=apart,
        difference=difference,
        first=first,
        changes=_list_changes(before["kernels"], after["kernels"]) if len(runtimes) == 1 else (),
        precisions={side: told[side]["precision"] for side in told},
        devices={side: told[side]["devices"] for side in told},
    )


def _look_at_one(child: Child, side: GateSide, inputs: Path, path: Path) -> dict[str, Any]:
    side.environment.begin(child)
    loaded = side.load(child, inputs, "latency")
    return {**loaded, **child.ask("outputs", path=str(path)), **child.ask("kernels")}


def _compare(
    before: Mapping[str, Any], after: Mapping[str, Any], folder: Path, accuracy: AccuracyLevel
) -> tuple[float, str, float | None, int]:
    """Return what an output may differ by, what is beyond that in words, the largest difference, and which output."""
    found = {name: load_by_kind(path) for name in (BEFORE, AFTER, TWIN) if (path := folder / f"{name}.npz").exists()}
    int8 = [name for name, _, precision, _ in before["kernels"] if precision in INT8]
    reference = Reference(found[BEFORE], int8_kernels=int8, shaken=found.get(TWIN, {}))
    settings = MeasureSettings(accuracy=accuracy)
    precisions: dict[str, str] = {BEFORE: before["precision"] or "f32", AFTER: after["precision"] or "f32"}
    limits = limits_for(precisions, reference, settings)
    accepted = accuracy_of(found[AFTER], reference, limits, settings)
    if isinstance(accepted, MeasurementFailed):
        return limits.output, accepted.message, None, 0
    place = int(accepted.output.rpartition("_")[2] or 0)
    names = before["names"]
    why_not = accepted.why_not.replace(accepted.output, names[place]) if place < len(names) else accepted.why_not
    return limits.output, why_not, accepted.difference, place


def _first_departure(
    children: Mapping[str, Child], folder: Path, allowed: float, place: int, deadline: Deadline
) -> str:
    """Return the first operation whose result departs, among those that the output at a place is computed from.

    "" where it cannot be told: names differ, or what is exposed computes otherwise.
    """
    graphs = {side: child.ask("graph") for side, child in children.items()}
    producers = graphs[BEFORE]["producers"]
    if not producers or place >= len(graphs[BEFORE]["results"]):
        return ""

    def departs(name: str) -> bool | None:
        if name not in graphs[AFTER]["producers"]:
            return None
        arrays = []
        for side, child in children.items():
            path = folder / f"result-{side}.npz"
            try:
                child.ask("results", operations=[name], path=str(path))
            except ChildError:  # as an output it is something else, such as an empty shape
                return None
            arrays.append(load_arrays(path))
        if not all(arrays):
            return None
        each = output_differences(arrays[1], arrays[0])
        return isinstance(each, MeasurementFailed) or any(d.difference > allowed for d in each)

    last = graphs[BEFORE]["results"][place]
    if not departs(last):
        return ""
    found = first_departure_before(last, producers, departs, lambda: not deadline.passed)
    return found.operation if found.certain else f"{found.operation} or one before it"


def _list_changes(before: Sequence[Sequence[str]], after: Sequence[Sequence[str]]) -> list[KernelChange]:
    """Return what operations that both sides know run by otherwise, summed over equal changes.

    Rows are operation, kernel, precision and device.
    """
    known: list[dict[str, Sequence[str]]] = [
        {row[0]: row[1:] for row in rows if not row[1].startswith(NOT_COMPUTED)} for rows in (before, after)
    ]
    counts: Counter[tuple[str, str, str]] = Counter()
    example: dict[tuple[str, str, str], str] = {}
    for name, ours in known[0].items():
        theirs = known[1].get(name)
        for i, what in enumerate((OPERATION, PRECISION, DEVICE) if theirs is not None else ()):
            if theirs is not None and ours[i] != theirs[i]:
                key = (what, ours[i], theirs[i])
                counts[key] += 1
                example.setdefault(key, name)
    ranked = sorted(counts.items(), key=lambda item: (item[0][0] == OPERATION, -item[1]))
    return [KernelChange(*key, count, example[key]) for key, count in ranked[:LISTED]]
