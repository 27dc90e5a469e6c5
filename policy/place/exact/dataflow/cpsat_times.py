"""Times in whole ticks of devices and links that all work at once, and schedules in them made from others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32, Int64
from pipeline.core.problem import Problem
from pipeline.core.simulation import DataflowModel
from pipeline.shared.graphs import edge_depths
from policy.place.base.groups import Groups
from policy.place.exact.shared.cpsat_models import in_ticks, tick_of
from policy.place.exact.shared.paths import BoundInputs, Paths

ROUNDING = 2000  # ticks of the whole per operation and edge, so that rounding stays far below 0.1 %
PRICING_S = 1.0  # seconds for the prices of unequal devices at most


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """What an operation sends elsewhere: one output, told apart by its bytes.

    maker: the operation. readers: operations of other groups. own_ticks: int [p, p], how long it occupies a link.
    late_ticks: int [p, p], how much later it arrives.
    """

    maker: int
    readers: list[int]
    own_ticks: Int64
    late_ticks: Int64

    @property
    def queues(self) -> bool:
        """Return whether it occupies links at all."""
        return bool(self.own_ticks.any())

    @property
    def even(self) -> bool:
        """Return whether all links between two devices take equally long."""
        apart = ~np.eye(self.own_ticks.shape[0], dtype=bool)
        own, late = self.own_ticks[apart], self.late_ticks[apart]
        return bool(own.size == 0 or (np.all(own == own[0]) and np.all(late == late[0])))

    @property
    def least_ticks(self) -> int:
        """Return what it takes over the best link, queues apart."""
        apart = ~np.eye(self.own_ticks.shape[0], dtype=bool)
        return int((self.own_ticks + self.late_ticks)[apart].min()) if apart.any() else 0

    @property
    def least_late(self) -> int:
        """Return the least latency of a link."""
        apart = ~np.eye(self.own_ticks.shape[0], dtype=bool)
        return int(self.late_ticks[apart].min()) if apart.any() else 0


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """All times of a problem in ticks.

    group: the group of each operation. op_ticks: int64 [n, p]; block_ticks: int64 [n, p], how long an operation takes
    its device. head_ticks, tail_ticks: int64 [n], before when none starts, and what must follow its end. order: int64
    [n], producers first. inner: the edges within groups. gap_ticks: between two sends. allowed: bool [n, p].
    """

    execution: DataflowModel
    tick_s: float
    group: list[int]
    op_ticks: Int64
    block_ticks: Int64
    head_ticks: Int64
    tail_ticks: Int64
    order: Int64
    tensors: list[Tensor]
    inner: list[tuple[int, int]]
    gap_ticks: int
    allowed: Bool

    def group_order(self) -> Int64:
        """Return int64 [k], the groups in the order in which their first operations come up."""
        return np.array(list(dict.fromkeys(self.group[i] for i in self.order.tolist())), np.int64)

    @classmethod
    def of(cls, problem: Problem, groups: Groups, execution: DataflowModel, horizon_s: float) -> Times:
        """Return the times of a problem whose graph is acyclic; horizon_s: what a schedule takes, inf if unknown."""
        graph, topology = problem.graph, problem.topology
        if problem.costs is None:
            raise ValueError("a problem without costs")
        group = groups.grouping.group
        allowed = groups.allowed[group]
        op_s = np.where(allowed, problem.costs.op_s, 0.0)
        link_s = graph.reads.size[:, None, None] / topology.link_bytes_per_s
        known = np.concatenate(
            [op_s.ravel(), link_s.ravel(), topology.link_latency_s.ravel(), [execution.gap_s, execution.block_s]]
        )
        if not np.isfinite(horizon_s):
            horizon_s = float(op_s.max(axis=1).sum())
        tick_s = tick_of(known, horizon_s, ticks=ROUNDING * (graph.n + graph.reads.edge.size + 100))
        block_s = np.where(op_s > 0, op_s + execution.block_s, 0.0)
        tensors, inner = _tensors(problem, group.tolist(), tick_s)
        work = problem.derived(BoundInputs.of)
        paths, none = problem.derived(Paths.of, work), np.zeros(graph.n)
        if paths is not None:
            _, price = work.load(execution.block_s, PRICING_S)
            paths = paths.busy(work, price, execution.block_s, lambda: True)
        heads_s, tails_s = (none, none) if paths is None else (paths.start_s.min(axis=1), paths.tail_s.min(axis=1))
        return cls(
            execution,
            tick_s,
            group.tolist(),
            in_ticks(op_s, tick_s),
            in_ticks(block_s, tick_s),
            in_ticks(heads_s, tick_s),
            in_ticks(tails_s, tick_s),
            np.argsort(edge_depths(graph), kind="stable"),
            tensors,
            inner,
            int(in_ticks(np.array([execution.gap_s]), tick_s)[0]),
            allowed,
        )


def _tensors(problem: Problem, group: list[int], tick_s: float) -> tuple[list[Tensor], list[tuple[int, int]]]:
    """Return (what may have to be sent, the edges within groups)."""
    graph, topology = problem.graph, problem.topology
    late = in_ticks(topology.link_latency_s, tick_s)
    readers: dict[tuple[int, int, int], list[int]] = {}
    inner = []
    for u, v, t, size in graph.read_rows():
        if group[u] == group[v]:
            inner.append((u, v))
        else:
            readers.setdefault((u, t, size), []).append(v)
    return [
        Tensor(u, held, in_ticks(size / topology.link_bytes_per_s, tick_s), late)
        for (u, _, size), held in readers.items()
    ], inner


@dataclass(slots=True, eq=False)
class Draft:
    """A schedule in ticks made from one in seconds: the same devices and the same order, everything at the earliest.

    device: int32 [k]. start: int64 [n]. sent: (tensor, target) -> start of the transfer; T1 has one per tensor, whose
    target is -1. length: ticks of the whole.
    """

    device: Int32
    start: Int64
    sent: dict[tuple[int, int], int]
    length: int

    @classmethod
    def of(cls, times: Times, device: Int32, start_s: Float64, end_s: Float64) -> Draft:
        """Return the draft of groups on devices, int32 [k], that ran as start_s and end_s, float64 [n], say."""
        rank = np.empty(times.order.size, np.int64)
        rank[times.order] = np.arange(times.order.size)
        turns = [(float(start_s[i]), int(rank[i]), 0, i) for i in range(start_s.size)]
        turns += [(float(end_s[t.maker]), int(rank[t.maker]), 1, k) for k, t in enumerate(times.tensors)]
        draft = cls(device, times.head_ticks.copy(), {}, 0)
        queue = _Queues(times, draft)
        for _, _, kind, which in sorted(turns):
            if kind == 0:
                queue.run(which)
            else:
                queue.send(which)
        return draft


class _Queues:
    """Devices and links while a draft is made: when each is free, and when each operation can start."""

    def __init__(self, times: Times, draft: Draft) -> None:
        p = times.op_ticks.shape[1]
        self.times, self.draft = times, draft
        self.free, self.out, self.into = [0] * p, [0] * p, [0] * p
        self.after: dict[int, list[int]] = {}
        for u, v in times.inner:
            self.after.setdefault(u, []).append(v)

    def at(self, i: int) -> int:
        return int(self.draft.device[self.times.group[i]])

    def end(self, i: int) -> int:
        return int(self.draft.start[i] + self.times.op_ticks[i, self.at(i)])

    def _wait(self, i: int, until: int) -> None:
        self.draft.start[i] = max(int(self.draft.start[i]), until)

    def run(self, i: int) -> None:
        """Start an operation when its device is free and everything it reads is there."""
        d, start = self.at(i), self.draft.start
        start[i] = max(int(start[i]), self.free[d])
        self.free[d] = int(start[i] + self.times.block_ticks[i, d])
        ends = self.end(i) + int(self.times.tail_ticks[i])  # paths in seconds lose less by rounding than step by step
        self.draft.length = max(self.draft.length, ends, self.free[d])
        for v in self.after.get(i, ()):
            self._wait(v, self.end(i))

    def send(self, k: int) -> None:
        """Send a tensor to the devices that read it."""
        tensor, level = self.times.tensors[k], self.times.execution.level
        s, ready = self.at(tensor.maker), self.end(tensor.maker)
        targets = sorted({self.at(r) for r in tensor.readers} - {s})
        arrival = {s: ready}
        queues = tensor.queues and level != "T0"
        if level == "T1" and queues and targets:
            begin = max(ready, self.out[s])
            over = begin + int(max(tensor.own_ticks[s, e] for e in targets))
            self.out[s] = over + self.times.gap_ticks
            self.draft.sent[k, -1] = begin
            self.draft.length = max(self.draft.length, self.out[s])
        for e in targets:
            if not queues:
                over = ready + int(tensor.own_ticks[s, e])
            elif level == "T2":
                begin = max(ready, self.out[s], self.into[e])
                over = self.out[s] = self.into[e] = begin + int(tensor.own_ticks[s, e])
                self.draft.sent[k, e] = begin
            arrival[e] = over + int(tensor.late_ticks[s, e])
        for r in tensor.readers:
            self._wait(r, arrival[self.at(r)])
