"""Where two runs of a model depart: devices, precisions or runtimes, operation by operation.

Of a model with state the first inference of a sequence is compared.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pipeline.core.deadline import Deadline
from pipeline.core.errors import DeviceError, ModelError, OutputMismatchError, StoreError, list_some
from pipeline.core.figures import MB, finite_or_none
from pipeline.core.graph import Graph
from pipeline.core.settings import MeasureSettings
from pipeline.deploy.departures import (
    UP,
    Allowed,
    Comparison,
    OperationRow,
    OutputDeparture,
    Seen,
    operations_behind,
    output_departures,
    result_sizes,
)
from pipeline.deploy.two_runs import SOURCE, Arrays, RunOfSource, RunOnDevices
from pipeline.deploy.where import LocatedRecord, Wanted, locate_in, wanted_by, wanted_on
from pipeline.result.deployment import Deployment
from pipeline.result.directory import RunDirectory
from pipeline.shared.checks import CHECKS, FACTS, REFERENCE, ReferenceOrder, load_by_kind
from pipeline.shared.first_departure import FirstDeparture
from pipeline.shared.payload import load_graph, read_json
from pipeline.stages.host import look_at_model
from runtime.measuring.outputs.outputs import OutputDifference, Reference, format_percent
from runtime.measuring.outputs.quality import limits_for, reference_beside, same_within
from runtime.measuring.process.child import ChildError

if TYPE_CHECKING:
    from coarsen.reading.sizes.shapes import InputShapes

BUDGET_S = 30.0
HELD_BYTES = 256 * MB  # of results that are made outputs at a time


@dataclass(frozen=True, slots=True)
class ComparisonLimits:
    """What comparing may take: seconds, once the model is read, and bytes of results held at a time."""

    seconds: float = BUDGET_S
    held_bytes: int = HELD_BYTES


@dataclass(frozen=True, slots=True)
class OutputRecord:
    """An output of the model, on the kind of inputs on which it differs most.

    operation: whose result it is. kind: "values", then `difference` is relative in L2 norm, or "indices", then the
    share of entries that differ; null where one run has NaN or infinities that the other has not. unmatched: the share
    of rows that only one of the two has. allowed: the largest difference that counts as the same. inputs: their kind.
    """

    name: str
    operation: str
    kind: Literal["values", "indices"]
    difference: float | None
    unmatched: float
    allowed: float
    departs: bool
    inputs: str


@dataclass(frozen=True, slots=True)
class DepartingRecord:
    """An operation whose result departs; `kind`, `difference` and `unmatched` as those of an output.

    device, precision, kernel: of what runs it where nothing is exposed, "" where nothing of its own is left. seen: with
    this result alone as an output, or with others beside it.
    """

    operation: str
    type: str
    kind: Literal["values", "indices"]
    difference: float | None
    unmatched: float
    device: str
    precision: str
    kernel: str
    seen: Seen


@dataclass(frozen=True, slots=True)
class NotComparedRecord:
    """Operations of which it is not known whether they depart, and why."""

    why: str
    operations: list[str]


@dataclass(frozen=True, slots=True)
class WhereOutputsRecord:
    """Where two runs of a model depart.

    run, against: what was compared with what. inputs: the kind of inputs for which operations were compared. first: the
    first operation that departs, "" for none; certain: whether the search for it was finished. allowed: the largest
    difference of numbers, relative in L2 norm, with which a result counts as the same; allowed_entries: the same of
    indices, a share. operations: those that depart, in the order of the data flow. compared: how many were. seconds: of
    comparing.
    """

    schema: Literal["placewright.where-outputs/1"]
    model: str
    run: str
    against: str
    inputs: str
    first: str
    certain: bool
    allowed: float
    allowed_entries: float
    outputs: list[OutputRecord]
    operations: list[DepartingRecord]
    compared: int
    not_compared: list[NotComparedRecord]
    notes: list[str]
    seconds: float


def departing_model(
    model: Path, device: str, against: str, shapes: InputShapes, limits: ComparisonLimits | None = None
) -> WhereOutputsRecord:
    """Return where a run of a model on a device departs from another run.

    device: as `where_model` takes it. against: `SOURCE`, a device in the same form, or a run directory of this model.

    Raises:
        ModelError: the model cannot be read, or nothing runs its source.
        UsageError: a device is none.
        StoreError: `against` is a folder without a finished run, or with one of another model.
        DeviceError: the machine does not have a device, or it refuses operations.
        ChildError: the model could not be run.
    """
    wanted, known = _wanted_device(device), look_at_model(model)
    with tempfile.TemporaryDirectory(prefix="placewright-") as scratch:
        folder = Path(scratch)
        other = _other_run(against, known.sha256)
        _read_with_inputs(known.path, known.sha256, folder, shapes, with_source=other is None)
        ours = RunOnDevices(device, folder / "model.xml", wanted, folder)
        return _departing_record(str(model), ours, other, known.path, folder, limits or ComparisonLimits())


def departing_run(
    run: Path, model: Path | None, against: str, limits: ComparisonLimits | None = None
) -> WhereOutputsRecord:
    """Return where the placed model of a finished run departs from another run.

    model: the source, None for the one that the run was made of. The rest, and what is raised, as `departing_model`.
    """
    from coarsen.reading.sizes.shapes import InputShapes

    deployment = Deployment.load(run)
    deployment.check_whole("which OpenVINO does not see as one")
    sha256 = deployment.record.model.source_sha256
    source = model or _source_of(deployment)
    other = _other_run(against, sha256)
    if model is not None or other is None:
        _check_source(source, run, sha256)
    with tempfile.TemporaryDirectory(prefix="placewright-") as scratch:
        folder, placed = Path(scratch), look_at_model(deployment.model)
        _read_with_inputs(placed.path, placed.sha256, folder, InputShapes(keep_dynamic=True), with_source=False)
        ours = RunOnDevices(str(run), deployment.model, wanted_by(deployment), folder)
        return _departing_record(str(deployment.model), ours, other, source, folder, limits or ComparisonLimits())


def refuse_departure(record: WhereOutputsRecord) -> None:
    """Raise if an output departs.

    Raises:
        OutputMismatchError: one does; it says how far, and where that begins.
    """
    departed = [output for output in record.outputs if output.departs]
    if not departed:
        return
    worst = max(departed, key=_departure_order)
    raise OutputMismatchError(
        f"{len(departed)} of {len(record.outputs)} output(s) of {record.run} differ from {record.against}: "
        f"{worst.name} is {difference_words(worst)} off on the inputs {worst.inputs!r} "
        f"({_percent_of(worst.allowed, worst.kind)} allowed).",
        f"Look at {record.first}, the first operation that differs." if record.first else "",
    )


def first_sentence(record: WhereOutputsRecord) -> str:
    """Return the first operation that departs, or that none does, in one line."""
    row = next((row for row in record.operations if row.operation == record.first), None)
    if row is None:
        if record.operations:
            alone = "but none with only its own result exposed" if record.certain else "and the time limit was reached"
            differing = f"{len(record.operations)} operation(s) differ when further results are exposed"
            return f"No output differs. {differing}, {alone}."
        unless = "" if record.compared and record.certain else ", as far as was compared"
        return (
            f"No operation differs{unless}: the results of {record.compared} operation(s) of {record.run} are those of "
            f"{record.against} within {format_percent(record.allowed)}."
        )
    where = " ".join([f"on {row.device}" if row.device else "", f"in {row.precision}" if row.precision else ""]).strip()
    text = (
        f"{row.operation} ({', '.join(filter(None, (row.type, where)))}): {difference_words(row)} off {record.against}"
    )
    if any(output.departs for output in record.outputs):
        known = "The first operation that differs is"
        known = (
            known if record.certain else "The time limit was reached. The first operation that differs is, or precedes,"
        )
    else:
        known = "No output differs. The first operation that differs is"
    return f"{known} {text}, {format_percent(record.allowed)} is allowed."


def not_known(record: WhereOutputsRecord) -> list[str]:
    """Return what was compared, and what is not known, in lines."""
    lines = [
        f"{record.compared} operation(s) of {record.run} were compared with {record.against} on the inputs "
        f"{record.inputs!r} in {record.seconds:.0f} s."
    ]
    lines += [
        f"Not compared: {len(row.operations)} operation(s), {list_some(row.operations)}: {row.why}."
        for row in record.not_compared
    ]
    return lines + record.notes


def difference_words(record: OutputRecord | DepartingRecord) -> str:
    """Return how far two results are from each other, as people read it."""
    if record.difference is None:
        return "infinitely far"
    return _percent_of(record.difference, record.kind) + (
        f", {format_percent(record.unmatched)} of its rows have no match," if record.unmatched else ""
    )


def _percent_of(share: float, kind: str) -> str:
    return format_percent(share) + (" of its entries" if kind == "indices" else "")


def _departure_order(record: OutputRecord) -> tuple[bool, float]:
    """Return what outputs are ordered by: whether they depart, and how far they differ."""
    return record.departs, math.inf if record.difference is None else max(record.difference, record.unmatched)


def _other_run(against: str, sha256: str) -> tuple[str, Wanted, Path | None] | None:
    """Return the name of another run, how it runs, and its model, None for the same one; None for the source.

    Raises:
        StoreError: it is a run of a model with another hash.
    """
    if against == SOURCE:
        return None
    folder = Path(against)
    if not folder.is_dir():
        return against, _wanted_device(against), None
    deployment = Deployment.load(folder)
    deployment.check_whole("which OpenVINO does not see as one")
    if deployment.record.model.source_sha256 != sha256:
        raise StoreError(f"{folder} holds a run of another model.", "Name a run of the same file.")
    return against, wanted_by(deployment), deployment.model


def _wanted_device(device: str) -> Wanted:
    """Return what a device asks for; the values of its properties are looked at."""
    from runtime.machines.devices import check_properties

    wanted = wanted_on(device)
    check_properties(wanted.devices)
    return wanted


def _source_of(deployment: Deployment) -> Path:
    manifest = RunDirectory(deployment.path).manifest()
    if manifest is None:
        raise StoreError(
            f"{deployment.path} does not say which model it is a run of.", "Name it: where MODEL --run RUN."
        )
    return Path(manifest["model"]["path"])


def _check_source(source: Path, run: Path, sha256: str) -> None:
    if not source.exists():
        raise StoreError(f"{source}, which {run} is a run of, is not there.", f"Name it: where MODEL --run {run}")
    if look_at_model(source).sha256 != sha256:
        raise StoreError(f"{source} is not the file that {run} is a run of.", "Name that file, or run it again.")


def _read_with_inputs(path: Path, sha256: str, folder: Path, shapes: InputShapes, *, with_source: bool) -> None:
    """Read a model the usual way, whatever its outputs are then; leave inputs of all kinds beside it."""
    from coarsen.reading.model.constant_growth import ReadLimits
    from coarsen.reading.read_in_process import read_in_process

    order = ReferenceOrder(source=with_source, seconds=BUDGET_S / 3, limit_s=BUDGET_S, inferences=1)
    read_in_process(path, folder, source=sha256, limits=ReadLimits(), shapes=shapes, reference=order)
    if not (folder / CHECKS).exists():
        why = read_json(folder / FACTS)["why_not"] if (folder / FACTS).exists() else ["it took too long"]
        raise ModelError(f"{path} cannot be run to compare anything. {' '.join(why)}", "Give other sizes with --shape.")


def _departing_record(
    name: str,
    ours: RunOnDevices,
    other: tuple[str, Wanted, Path | None] | None,
    source: Path,
    folder: Path,
    limits: ComparisonLimits,
) -> WhereOutputsRecord:
    begun, deadline = time.monotonic(), Deadline.after(limits.seconds)
    if other is None:
        theirs: RunOnDevices | RunOfSource = RunOfSource(source, folder, limits.held_bytes)
    else:
        theirs = RunOnDevices(other[0], other[2] or ours.model, other[1], folder)
    graph, checks = load_graph(folder / "graph.npz"), load_by_kind(folder / CHECKS)
    notes: list[str] = []
    if "ReadValue" in graph.type_names:
        notes.append("The model has state: the first inference of a sequence is compared.")
    with ours, theirs:
        compared, allowed = _compared_outputs(ours, theirs, list(checks), folder)
        outputs = [output for output, _ in compared]
        worst, differs = max(compared, key=lambda row: _departure_order(row[0]))
        sizes = result_sizes(graph, _longest_dimension(checks[worst.inputs]))
        comparison = Comparison(ours, theirs, kind=worst.inputs, sizes=sizes, allowed=allowed, deadline=deadline)
        comparison.compare_many(limits.held_bytes)
        first = _first_departure(comparison, graph, worst, differs, notes)
        located = _located_rows(ours, notes)
    return WhereOutputsRecord(
        schema="placewright.where-outputs/1",
        model=name,
        run=ours.name,
        against=theirs.name,
        inputs=worst.inputs,
        first="" if first is None else first.operation,
        certain=_nothing_left(comparison, deadline) if first is None else first.certain,
        allowed=allowed.values,
        allowed_entries=allowed.indices,
        outputs=outputs,
        operations=_departing_rows(graph, comparison.rows, located),
        compared=len(comparison.rows),
        not_compared=[NotComparedRecord(why, names) for why, names in comparison.not_compared().items()],
        notes=notes + (theirs.why_not if isinstance(theirs, RunOfSource) else []),
        seconds=time.monotonic() - begun,
    )


def _nothing_left(comparison: Comparison, deadline: Deadline) -> bool:
    """Return whether the time was enough to tell that no operation departs."""
    if UP in comparison.not_compared():
        return False
    return not deadline.passed or not any(row.departs for row in comparison.rows.values())


def _first_departure(
    comparison: Comparison, graph: Graph, worst: OutputRecord, differs: OutputDifference, notes: list[str]
) -> FirstDeparture | None:
    """Return the first operation that departs, None for none; worst: the output that differs most, and how far."""
    if not worst.departs:
        return comparison.first_alone()
    fused = not any(row.departs for row in comparison.rows.values())
    comparison.note_output(worst.operation, differs)
    first = comparison.first_before(worst.operation, graph)
    if fused and first.certain:
        notes.append("With many results exposed at once none departs: what is fused otherwise is not fused then.")
        for later in operations_behind(graph, first.operation):
            comparison.departs_alone(later)
    return first


def _departing_rows(
    graph: Graph, rows: Mapping[str, OperationRow], located: Mapping[str, LocatedRecord]
) -> list[DepartingRecord]:
    """Return the operations that depart, in the order of the data flow."""
    return [
        DepartingRecord(
            operation=name,
            type=graph.type_names[graph.op_type[i]],
            kind=row.difference.kind,
            difference=finite_or_none(row.difference.difference),
            unmatched=row.difference.unmatched,
            device=located[name].device if name in located else "",
            precision=located[name].precision if name in located else "",
            kernel=located[name].kernel if name in located else "",
            seen=row.seen,
        )
        for i, name in enumerate(graph.names)
        if (row := rows.get(name)) is not None and row.departs
    ]


def _located_rows(ours: RunOnDevices, notes: list[str]) -> Mapping[str, LocatedRecord]:
    """Return what runs each operation where nothing is exposed; `notes` gets why that is not known."""
    try:
        located = locate_in(ours.model, ours.wanted, name="", seconds=0.0, minimum=1)
    except (ChildError, DeviceError) as error:
        notes.append(f"Which kernels run is not known: {error.cause}")
        return {}
    return {row.operation: row for row in located.operations}


def _compared_outputs(
    ours: RunOnDevices, theirs: RunOnDevices | RunOfSource, kinds: Sequence[str], folder: Path
) -> tuple[list[tuple[OutputRecord, OutputDifference]], Allowed]:
    """Return every output on the kind of inputs on which it differs most, with how far, and what operations may differ.

    Raises:
        OutputMismatchError: an output has another shape.
    """
    actual, expected = ours.outputs(kinds), theirs.outputs(kinds)
    precisions = {f"ours {device}": precision for device, precision in ours.precisions.items()}
    if isinstance(theirs, RunOnDevices):
        precisions |= {f"theirs {device}": precision for device, precision in theirs.precisions.items()}
    by_source = isinstance(theirs, RunOfSource) and (folder / REFERENCE).exists()
    limits = same_within(limits_for(precisions, Reference({}), MeasureSettings()).output)
    reference = reference_beside(folder, expected) if by_source else Reference(expected)
    judged = output_departures(actual, reference, limits)
    worst: dict[str, OutputDeparture] = {}
    for one in judged:
        before = worst.get(one.difference.name)
        if before is None or one.order > before.order:
            worst[one.difference.name] = one
    rows = [
        OutputRecord(
            name=name,
            operation=ours.producers[name],
            kind=one.difference.kind,
            difference=finite_or_none(one.difference.difference),
            unmatched=one.difference.unmatched,
            allowed=one.allowed,
            departs=one.departs,
            inputs=one.inputs,
        )
        for name, one in worst.items()
    ]
    general = Allowed.by(limits)
    least = min((one.allowed for one in judged if one.difference.kind == "values"), default=general.values)
    differing = [worst[row.name].difference for row in rows]
    return list(zip(rows, differing, strict=True)), replace(general, values=max(general.values, least))


def _longest_dimension(inputs: Arrays) -> int:
    """Return the largest dimension of any input."""
    return max((n for array in inputs.values() for n in array.shape), default=1)
