"""What can be said of two sides before anything is timed: whether each runs a model, outputs, kernels and devices."""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipeline.core.accuracy import AccuracyLevel
from pipeline.core.deadline import Deadline
from pipeline.core.errors import UsageError
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
LOW = ("bf16", "f16")
OUTPUT = re.compile(r"\boutput_(\d+)\b")


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
    finite or not known. values_alone: whether nothing but that is beyond what is allowed: no decision, index or row.
    not_compared: in words, what of the outputs nobody compared. first: the first operation that departs; "" where none
    is known. changes: at most LISTED, most operations first. precisions, devices: by side. notes: what else is not
    known, in sentences.
    """

    failed: Mapping[str, tuple[FailureKind, str]] = field(default_factory=dict)
    why_not: str = ""
    difference: float | None = None
    values_alone: bool = True
    not_compared: str = ""
    first: str = ""
    changes: Sequence[KernelChange] = ()
    precisions: Mapping[str, str] = field(default_factory=dict)
    devices: Mapping[str, Sequence[str]] = field(default_factory=dict)
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class _Outputs:
    """What comparing outputs gave; see `FirstLook`. limit: what numbers may differ by. place: of which output."""

    limit: float
    why_not: str
    difference: float | None = None
    values_alone: bool = False
    place: int = 0


def look_at_sides(
    sides: Mapping[Which, GateSide], inputs: Path, folder: Path, accuracy: AccuracyLevel, locate_s: float
) -> FirstLook:
    """Return what is seen of a model on both sides. folder: for files. locate_s: for finding what departs first.

    A side that fails is tried once more, with no other process beside it.

    Raises:
        UsageError: settings of one side alone are refused whatever the model.
    """
    # The twin tells what wavers, where the side before runs.
    looked: dict[str, GateSide] = {BEFORE: sides[BEFORE], AFTER: sides[AFTER], TWIN: sides[BEFORE]}
    told: dict[str, dict[str, Any]] = {}
    failed: dict[str, tuple[FailureKind, str]] = {}
    with contextlib.ExitStack() as stack:
        children = {name: stack.enter_context(what.environment.start()) for name, what in looked.items()}
        for name, what in looked.items():  # they import side by side
            if name != TWIN or BEFORE in told:
                with contextlib.suppress(ChildError):
                    told[name] = _look_at_one(children[name], what, inputs, folder / f"{name}.npz")
    for name, what in looked.items():
        if name not in told and (name != TWIN or BEFORE in told):
            with what.environment.start() as child:
                try:
                    told[name] = _look_at_one(child, what, inputs, folder / f"{name}.npz")
                except ChildError as error:
                    failed[name] = (error.failed.kind, refusal_in_words(error.failed.message))
    failed.pop(TWIN, None)
    for name in failed:
        if not any(other in told and looked[other].settings == looked[name].settings for other in sides):
            _refuse_wrong_settings(name, looked[name])
    if failed:
        return FirstLook(failed)
    before, after = told[BEFORE], told[AFTER]
    left_out = dict.fromkeys([*before["left_out"], *after["left_out"]])
    not_compared = f"{', '.join(left_out)} cannot be compared" if left_out else ""
    compared = _compare(told, folder, accuracy)
    if compared is None:
        compared, not_compared = _Outputs(0.0, ""), not_compared or "there are no outputs to compare"
    first = ""
    if compared.why_not and sides[BEFORE].model == sides[AFTER].model:
        with contextlib.suppress(ChildError):  # then nobody knows
            first = _first_departure(sides, inputs, folder, compared, locate_s)
    kernels = [each["kernels"] for each in (before, after)]
    one_runtime = len({side.environment.runtime for side in sides.values()}) == 1
    return FirstLook(
        why_not=compared.why_not,
        difference=compared.difference,
        values_alone=compared.values_alone,
        not_compared=not_compared,
        first=first,
        changes=_list_changes(*kernels) if one_runtime else (),
        precisions={side: _precision(told[side]) for side in sides},
        devices={side: told[side]["devices"] for side in sides},
        notes=[
            f"Kernels of the side {side} are not known: {words}." for side in sides if (words := told[side]["dumb"])
        ],
    )


def _refuse_wrong_settings(name: str, side: GateSide) -> None:
    """Raise if it is the settings that a side refuses.

    Raises:
        UsageError: so it is.
    """
    if not side.settings:
        return
    with side.environment.start() as child:
        try:
            side.environment.begin(child)
        except ChildError:  # then it is not the settings
            return
        try:
            child.ask("settings", device=side.device, settings=dict(side.settings))
        except ChildError as error:
            settings_text = " ".join(f"{key}={value}" for key, value in side.settings.items())
            raise UsageError(
                f"{side.environment} refuses {settings_text}: {refusal_in_words(error.failed.message)}.",
                f"Correct what --{name} says, or leave it out.",
            ) from error


def _look_at_one(child: Child, side: GateSide, inputs: Path, path: Path) -> dict[str, Any]:
    """Return what one side tells. dumb: why it does not tell its kernels; "" where it does.

    Raises:
        ChildError: it does not run.
    """
    side.environment.begin(child)
    told = {**side.load(child, inputs, "latency"), **child.ask("outputs", path=str(path))}
    try:
        return {**told, **child.ask("kernels"), "dumb": ""}
    except ChildError as error:  # it runs all the same
        return {**told, "kernels": [], "dumb": refusal_in_words(error.failed.message).rstrip(".")}


def _precision(told: Mapping[str, Any]) -> str:
    """Return what a side computes in; where the runtime does not say, its kernels do."""
    kernels = {precision for _, _, precision, _ in told["kernels"]}
    return told["precision"] or next((low for low in LOW if low in kernels), "f32")


def _compare(told: Mapping[str, Mapping[str, Any]], folder: Path, accuracy: AccuracyLevel) -> _Outputs | None:
    """Return how the outputs of both sides differ; None where there are none."""
    before, after = told[BEFORE], told[AFTER]
    found = {name: load_by_kind(folder / f"{name}.npz") for name in told}
    if not any(found[BEFORE].values()):
        return None
    int8 = [name for name, _, precision, _ in before["kernels"] if precision in INT8]
    reference = Reference(found[BEFORE], int8_kernels=int8, shaken=found.get(TWIN, {}))
    settings = MeasureSettings(accuracy=accuracy)
    precisions: dict[str, str] = {BEFORE: _precision(before), AFTER: _precision(after)}
    limits = limits_for(precisions, reference, settings)
    accepted = accuracy_of(found[AFTER], reference, limits, settings)
    others = accuracy_of(found[AFTER], reference, replace(limits, output=math.inf), settings)
    names = before["names"]

    def named(words: str) -> str:
        return OUTPUT.sub(lambda match: names[int(match[1])] if int(match[1]) < len(names) else match[0], words)

    if isinstance(accepted, MeasurementFailed):
        return _Outputs(limits.output, named(accepted.message))
    return _Outputs(
        limits.output,
        named(accepted.why_not),
        accepted.difference,
        values_alone=not isinstance(others, MeasurementFailed) and not others.why_not,
        place=int(accepted.output.rpartition("_")[2] or 0),
    )


def _first_departure(
    sides: Mapping[Which, GateSide], inputs: Path, folder: Path, compared: _Outputs, locate_s: float
) -> str:
    """Return the first operation whose result departs, among those that the output that does is computed from.

    "" where it cannot be told: names differ, or what is exposed computes otherwise.

    Raises:
        ChildError: a side cannot be asked.
    """
    with contextlib.ExitStack() as stack:
        children = {side: stack.enter_context(what.environment.start()) for side, what in sides.items()}
        for side, what in sides.items():
            what.environment.begin(children[side])
            what.load(children[side], inputs, "latency")
        return _departure_between(children, folder, compared, Deadline.after(locate_s))


def _departure_between(children: Mapping[Which, Child], folder: Path, compared: _Outputs, deadline: Deadline) -> str:
    graphs = {side: child.ask("graph") for side, child in children.items()}
    producers = graphs[BEFORE]["producers"]
    if not producers or compared.place >= len(graphs[BEFORE]["results"]):
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
        return isinstance(each, MeasurementFailed) or any(d.difference > compared.limit for d in each)

    last = graphs[BEFORE]["results"][compared.place]
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
