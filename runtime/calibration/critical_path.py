"""What the simulator `listsched` adds up along a critical path, as a vector per placement.

A makespan is the sum of what lies on one path through operations and transfers, so it is linear in the coefficients as
long as the path stays the same: row . coefficients, with a row that holds where it was taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from pipeline.core.arrays import Float64
from pipeline.core.placement import Placement
from pipeline.core.simulation import Timeline
from runtime.calibration.terms import Terms
from runtime.simulators.dataflow.listsched import ListSched, ListSchedEvaluator


def single_device_factor(placement: Placement, slowdown: Float64) -> float:
    """Return what times of operations that hold beside other devices are multiplied with in a placement.

    It is 1 unless the placement has a device for itself. slowdown: float64 [p], what they are longer by than alone.
    """
    used = np.unique(placement.device)
    return 1.0 / float(slowdown[used[0]]) if used.size == 1 else 1.0


def critical_rows(terms: Terms, slowdown: Float64, placements: Sequence[Placement], value: Float64) -> Float64:
    """Return float64 [b, q], what each placement multiplies the coefficients with on its critical path; inf if refused.

    The critical path is that of the tables with the coefficients `value`, float64 [q]: row . value is the makespan that
    `listsched` says with them, on one device alone less by the slowdown, float64 [p], that the tables hold. Without
    launches.
    """
    costs, topology = terms.corrected(value)
    subject = replace(terms.subject, costs=costs, topology=topology)
    evaluator = ListSched(memory=False).bind(subject)
    reads: list[set[int]] = [set() for _ in range(subject.graph.n)]
    for producer, consumer in subject.graph.edges.T.tolist():
        reads[consumer].add(producer)
    rows = np.full((len(placements), len(terms.terms)), np.inf)
    for i, placement in enumerate(placements):
        device = placement.device[subject.grouping.group]
        if np.isfinite(costs.op_s[np.arange(device.size), device]).all():
            rows[i] = _critical_row(terms, reads, 1.0 / topology.link_bytes_per_s, evaluator, placement)
            rows[i] *= single_device_factor(placement, slowdown)  # one device has no transfers
    return rows


def _critical_row(
    terms: Terms, reads: Sequence[set[int]], per_byte_s: Float64, evaluator: ListSchedEvaluator, placement: Placement
) -> Float64:
    p, timeline = terms.subject.topology.p, evaluator.timeline(placement)
    operations, count, size = np.zeros((len(terms.types), p)), np.zeros((p, p)), np.zeros((p, p))
    for step in _Waits.of(timeline, reads, per_byte_s).path():
        if step.operation >= 0:
            d = timeline.device[step.operation]
            operations[terms.kind_of[step.operation], d] += terms.costs.op_s[step.operation, d]
        else:
            link = timeline.source[step.transfer], timeline.target[step.transfer]
            count[link] += step.arrives
            size[link] += timeline.sent_bytes[step.transfer]
    apart = ~np.eye(p, dtype=bool)
    return np.concatenate([operations.reshape(-1), count[apart], size[apart]])


class _Step(NamedTuple):
    """An operation or a transfer, the other one -1. arrives: whether its latency was waited for, too."""

    operation: int
    transfer: int
    arrives: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class _Waits:
    """Who held up whom in a timeline, which is told by equal moments.

    reads: [n], the operations that each operation reads. over_s: float64 [t], when transfers leave their link, before
    their latency. ended, arrived: the operations and transfers that ended at a moment.
    """

    timeline: Timeline
    reads: Sequence[set[int]]
    over_s: Float64
    ended: Mapping[float, Sequence[int]]
    arrived: Mapping[float, Sequence[int]]

    @classmethod
    def of(cls, timeline: Timeline, reads: Sequence[set[int]], per_byte_s: Float64) -> _Waits:
        over_s = timeline.sent_start_s + timeline.sent_bytes * per_byte_s[timeline.source, timeline.target]
        return cls(timeline, reads, over_s, _by_moment(timeline.end_s), _by_moment(timeline.sent_end_s))

    def path(self) -> Iterator[_Step]:
        """Yield the critical path backwards."""
        seen: set[tuple[int, int]] = set()
        step: _Step | None = self._last()
        while step is not None:
            yield step
            seen.add(step[:2])
            before = self._before_operation if step.operation >= 0 else self._before_transfer
            step = next((s for s in before(step) if s[:2] not in seen), None)

    def _last(self) -> _Step:
        i = int(self.timeline.end_s.argmax())
        if self.timeline.t and self.timeline.sent_end_s.max() > self.timeline.end_s[i]:
            return _Step(-1, int(self.timeline.sent_end_s.argmax()))
        return _Step(i, -1)

    def _before_operation(self, step: _Step) -> Iterator[_Step]:
        """Yield what an operation may have waited for: a transfer of what it reads, what it reads, its device."""
        device, reads = self.timeline.device, self.reads[step.operation]
        moment_s, here = float(self.timeline.start_s[step.operation]), device[step.operation]
        for x in self.arrived.get(moment_s, ()):
            if self.timeline.target[x] == here and self.timeline.sent[x] in reads:
                yield _Step(-1, x)
        beside = [i for i in self.ended.get(moment_s, ()) if device[i] == here]
        for i in sorted(beside, key=lambda i: i not in reads):
            yield _Step(i, -1)

    def _before_transfer(self, step: _Step) -> Iterator[_Step]:
        """Yield what a transfer may have waited for: what made its tensor, or another one on a link of its devices."""
        t, x = self.timeline, step.transfer
        moment_s = float(t.sent_start_s[x])
        if t.sent[x] in self.ended.get(moment_s, ()):
            yield _Step(int(t.sent[x]), -1)
        beside = (t.source == t.source[x]) | (t.target == t.target[x])
        for y in np.flatnonzero(beside & np.isclose(self.over_s, moment_s, rtol=1e-12, atol=0.0)).tolist():
            yield _Step(-1, y, arrives=False)


def _by_moment(moment_s: Float64) -> Mapping[float, Sequence[int]]:
    by_moment: dict[float, list[int]] = {}
    for i, at_s in enumerate(moment_s.tolist()):
        by_moment.setdefault(at_s, []).append(i)
    return by_moment
