"""Results of operations in two runs of a model, compared: which depart, and which is the first.

Results are made outputs, many at a time, and compared by the names of the operations. That keeps a device from fusing
them and so may mend a fault, so that the first operation that departs is searched with one result exposed at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from pipeline.core.accuracy import AccuracyLimits
from pipeline.core.deadline import Deadline
from pipeline.core.errors import ModelError, OutputMismatchError
from pipeline.core.figures import bytes_text
from pipeline.core.graph import Graph, weight_side
from pipeline.core.measurement import MeasurementFailed
from pipeline.deploy.two_runs import Arrays
from pipeline.shared.first_departure import FirstDeparture, first_departure_before
from runtime.measuring.outputs.outputs import OutputDifference, Reference, output_differences
from runtime.measuring.outputs.quality import compare_by_kind
from runtime.measuring.process.child import ChildError

GRACE_S = 10.0  # for what was begun before the time was up
SKIPPED = frozenset({"Parameter", "Constant", "Result", "Assign", "ReadValue"})
UP = "the time was up"
MANY_SHARE = 0.5  # of the time, for comparing many operations at once; the rest is for single ones

Seen = Literal["alone", "among others"]
ALONE: Seen = "alone"
AMONG_OTHERS: Seen = "among others"


class ComparedRun(Protocol):
    """One of two runs that are compared; name: what users call it."""

    name: str

    def results(self, kind: str, operations: Sequence[str], *, within_s: float) -> Mapping[str, Arrays]:
        """Return by operation, and "0", "1" .. for its outputs, the results with these exposed; not all may be known.

        kind: of inputs.

        Raises:
            ChildError, ModelError: it cannot be run so.
        """


@dataclass(frozen=True, slots=True)
class Allowed:
    """The largest differences with which results count as the same: of numbers, and shares of indices."""

    values: float
    indices: float

    @classmethod
    def by(cls, limits: AccuracyLimits) -> Allowed:
        """Return what limits of outputs stand for."""
        return cls(limits.output, limits.indices)

    def has(self, difference: OutputDifference) -> bool:
        """Return whether a difference is allowed."""
        return distance_of(difference) <= (self.indices if difference.kind == "indices" else self.values)


@dataclass(frozen=True, slots=True)
class OperationRow:
    """How far the result of an operation differs, whether that is too far, and how it was seen."""

    difference: OutputDifference
    departs: bool
    seen: Seen


def distance_of(difference: OutputDifference) -> float:
    """Return how far two results are from each other, rows that only one has included."""
    return max(difference.difference, difference.unmatched)


@dataclass(frozen=True, slots=True)
class OutputDeparture:
    """How far an output differs on one kind of inputs, and how far it may."""

    inputs: str
    difference: OutputDifference
    allowed: float
    departs: bool

    @property
    def order(self) -> tuple[bool, float]:
        """Return what outputs are ordered by, those that are right first."""
        return self.departs, distance_of(self.difference)


def output_departures(
    actual: Mapping[str, Arrays], reference: Reference, limits: AccuracyLimits
) -> list[OutputDeparture]:
    """Return how far outputs differ on every kind of inputs of the reference.

    Raises:
        OutputMismatchError: an output has another shape.
    """
    ours = {kind: {n: actual[kind][n] for n in outputs} for kind, outputs in reference.outputs.items()}
    compared = compare_by_kind(ours, reference, list(reference.outputs))
    if isinstance(compared, MeasurementFailed):
        raise OutputMismatchError(
            f"The outputs cannot be compared: {compared.message}.", "Compare runs of the same model and sizes."
        )
    judged = []
    for one in compared:
        limit = limits.indices if one.apart.kind == "indices" else limits.output
        judged.append(OutputDeparture(one.kind, one.apart, one.allowed(limit, distance_of), one.worst(limits)[0] > 1))
    return judged


class Comparison:
    """Results of operations of two runs on one kind of inputs; rows: what is known of each, by name.

    sizes: bytes of the result of each operation that can be compared, in the order of the data flow.
    """

    def __init__(
        self,
        ours: ComparedRun,
        theirs: ComparedRun,
        *,
        kind: str,
        sizes: Mapping[str, int],
        allowed: Allowed,
        deadline: Deadline,
    ) -> None:
        self._ours, self._theirs, self._kind = ours, theirs, kind
        self._sizes, self._allowed, self._deadline = sizes, allowed, deadline
        self.rows: dict[str, OperationRow] = {}
        self._why_not: dict[str, str] = {}

    def not_compared(self) -> dict[str, list[str]]:
        """Return by the reason which operations were not compared."""
        reasons: dict[str, list[str]] = {}
        for name, why in self._why_not.items():
            if name not in self.rows:
                reasons.setdefault(why, []).append(name)
        return reasons

    def note_output(self, name: str, difference: OutputDifference) -> None:
        """Note how far the result of an operation differs that is an output of the model as it is."""
        self.rows[name] = OperationRow(difference, not self._allowed.has(difference), ALONE)

    def compare_many(self, held_bytes: int) -> None:
        """Compare all operations, as many at a time as may be held, in a part of the time that is left."""
        end = self._deadline.share(MANY_SHARE)
        for name, size in self._sizes.items():
            if size > held_bytes:
                self._why_not[name] = f"one result takes more than {bytes_text(held_bytes)}"
        for batch in split_by_bytes({n: size for n, size in self._sizes.items() if size <= held_bytes}, held_bytes):
            self._compare(batch, AMONG_OTHERS, end)

    def first_before(self, last: str, graph: Graph) -> FirstDeparture:
        """Return the first operation that departs, given one whose result is an output and departs."""
        return first_departure_before(last, producers_of(graph), self.departs_alone, lambda: not self._deadline.passed)

    def first_alone(self) -> FirstDeparture | None:
        """Return the first operation that departs among others and alone, too; None for none."""
        departing = [name for name in self._sizes if name in self.rows and self.rows[name].departs]
        name = next((name for name in departing if self.departs_alone(name)), None)
        return None if name is None else FirstDeparture(name, certain=not self._deadline.passed)

    def departs_alone(self, name: str) -> bool | None:
        """Return whether the result of an operation departs with no other exposed; None where that cannot be told."""
        row = self.rows.get(name)
        if row is not None and row.seen == ALONE:
            return row.departs
        if name not in self._sizes or self._deadline.passed or self._why_not.get(name, UP) != UP:
            return None
        self._compare([name], ALONE, self._deadline)
        row = self.rows.get(name)
        return row.departs if row is not None and row.seen == ALONE else None

    def _compare(self, names: Sequence[str], seen: Seen, end: Deadline) -> None:
        """Compare the results of operations, all exposed at once; of those that cannot be run so, half of them."""
        if end.passed:
            self._why_not |= {name: UP for name in names if name not in self._why_not}
            return
        try:
            within_s = end.left_s + GRACE_S
            actual = self._ours.results(self._kind, names, within_s=within_s)
            expected = self._theirs.results(self._kind, names, within_s=within_s)
        except (ChildError, ModelError) as error:
            if len(names) == 1:
                self._why_not[names[0]] = UP if end.passed else error.cause
                return
            self._compare(names[: len(names) // 2], seen, end)
            self._compare(names[len(names) // 2 :], seen, end)
            return
        for name in names:
            if name in self.rows and self.rows[name].seen == ALONE:
                continue
            self._put(name, actual.get(name, {}), expected.get(name, {}), seen)

    def _put(self, name: str, actual: Arrays, expected: Arrays, seen: Seen) -> None:
        """Note how far the result of an operation departs, of several outputs the one that does so most."""
        joint = sorted(set(actual) & set(expected))
        if not joint:
            self._why_not[name] = f"no counterpart in {self._theirs.name if actual else self._ours.name}"
            return
        each = output_differences({port: actual[port] for port in joint}, {port: expected[port] for port in joint})
        if isinstance(each, MeasurementFailed):
            self._why_not[name] = f"another shape in {self._theirs.name}"
            return
        worst = max(each, key=lambda d: (not self._allowed.has(d), distance_of(d)))
        self.rows[name] = OperationRow(worst, not self._allowed.has(worst), seen)


def result_sizes(graph: Graph, size: int) -> dict[str, int]:
    """Return the bytes of the result of each operation that computes something of the inputs, in the data flow's order.

    size: what a dynamic dimension is taken for, one of each result; it is as large as any dimension of the inputs.
    """
    constant = weight_side(graph)
    return {
        name: int(graph.out_bytes[i]) * (size if min(graph.shape(i), default=0) < 0 else 1)
        for i, name in enumerate(graph.names)
        if not constant[i] and graph.type_names[graph.op_type[i]] not in SKIPPED
    }


def split_by_bytes(sizes: Mapping[str, int], most: int) -> Iterator[list[str]]:
    """Yield names in their order, as many at a time as come to at most so many bytes, one at least.

    >>> list(split_by_bytes({"a": 2, "b": 1, "c": 1, "d": 9}, 3))
    [['a', 'b'], ['c'], ['d']]
    """
    batch, held = list[str](), 0
    for name, size in sizes.items():
        if batch and held + size > most:
            yield batch
            batch, held = [], 0
        batch.append(name)
        held += size
    if batch:
        yield batch


def producers_of(graph: Graph) -> dict[str, list[str]]:
    """Return by operation those whose results it takes."""
    producers: dict[str, list[str]] = {name: [] for name in graph.names}
    for producer, consumer in graph.edges.T.tolist():
        producers[graph.names[consumer]].append(graph.names[producer])
    return producers


def operations_behind(graph: Graph, name: str) -> list[str]:
    """Return the operations that are computed from the result of one, in the order of the data flow."""
    producers, reached = producers_of(graph), {name}
    for operation in graph.names:
        if not reached.isdisjoint(producers[operation]):
            reached.add(operation)
    return [operation for operation in graph.names if operation in reached and operation != name]


def longest_dimension(inputs: Arrays) -> int:
    """Return the largest dimension of any input."""
    return max((n for array in inputs.values() for n in array.shape), default=1)
