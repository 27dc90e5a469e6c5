"""When operations can start at the earliest, and what must follow them: along paths, and because devices are busy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from pipeline.core.arrays import Float64, Int32, Int64
from pipeline.core.devices import Topology
from pipeline.core.graph import Grouping, components, row_ptr, sum_per_group
from pipeline.core.problem import Problem
from pipeline.shared.feasibility import finest_grouping
from pipeline.shared.graphs import edge_depths
from policy.place.base.groups import Groups
from policy.place.exact.shared.bound_kernels import (
    Neighbours,
    busy_until,
    greatest_before,
    interval_bound,
    joint_starts,
    path_starts,
    through_cut,
)
from policy.place.exact.shared.relaxation import load_bound

TOGETHER = 32  # operations that are looked at on the device of what they lead to
ROUNDS = 12  # of making heads and tails longer
PATIENCE = 3  # rounds in which the bound need not rise
RISE = 1e-4  # share by which it rises, or it does not


@dataclass(frozen=True, slots=True, eq=False)
class BoundInputs:
    """The operations of a problem as bounds see them.

    op_s: float64 [n, p], inf where the operation, or one colocated with it, is not allowed. group: int32 [n], equal for
    operations that share a device. group_s: float64 [k, p]; group_bytes: int64 [k]; room_bytes: int64 [p].
    """

    op_s: Float64
    group: Int32
    group_s: Float64
    group_bytes: Int64
    room_bytes: Int64

    @classmethod
    def of(cls, problem: Problem) -> BoundInputs:
        """Return a problem's operations; its costs are known."""
        if problem.costs is None:
            raise ValueError("a problem without costs")
        n = problem.graph.n
        groups = Groups.of_grouping(problem, finest_grouping(problem))
        group = groups.grouping.group
        op_s = np.where(groups.allowed[group], problem.costs.op_s, math.inf)
        alone = groups.k == n and bool(np.array_equal(group, np.arange(n)))
        group_s = op_s if alone else sum_per_group(op_s, groups.grouping)
        return cls(op_s, group, group_s, groups.held_bytes, groups.room_bytes)

    def load(self, block_s: float, seconds: float) -> tuple[float, Float64]:
        """Return (the least largest load of a device, prices float64 [p] of the devices' time that prove it).

        block_s: what every operation that takes time costs besides; the last one of a device does not count.
        """
        group_s = self.group_s if block_s == 0 else self._blocking(block_s)
        load_s, price = load_bound(group_s, self.group_bytes, self.room_bytes, seconds=seconds)
        return max(0.0, load_s - block_s), price

    def _blocking(self, block_s: float) -> Float64:
        op_s = self.op_s + np.where(self.op_s > 0, block_s, 0.0)
        return sum_per_group(op_s, Grouping(self.group))

    def devices_needed(self, held_bytes: Int64 | None = None) -> int:
        """Return the least number of devices whose memory holds all weights, or int64 [k] bytes of the groups."""
        total = int((self.group_bytes if held_bytes is None else held_bytes).sum())
        largest_first = np.sort(self.room_bytes)[::-1].astype(np.float64)
        enough = np.flatnonzero(np.cumsum(largest_first) >= total)
        return int(enough[0]) + 1 if enough.size else self.room_bytes.size


@dataclass(frozen=True, slots=True, eq=False)
class Paths:
    """When operations can start at the earliest, and what must follow them, on each device.

    start_s, tail_s: float64 [n, p]: each operation with every producer, and every consumer, on the device that suits
    this one best; inf where not allowed. per_byte_s, latency_s: float64 [p, p]. order: int32 [n], producers first.
    into, out: what each operation reads, and who reads of it, with bytes; waits, follows: the same with the seconds
    that sending takes at least, inf within a group.

    Source: Arabnejad, Barbosa, PEFT, IEEE TPDS 25, 2014, section 4 (optimistic cost table), in both directions.
    """

    start_s: Float64
    tail_s: Float64
    per_byte_s: Float64
    latency_s: Float64
    order: Int32
    into: Neighbours
    out: Neighbours
    waits: Neighbours
    follows: Neighbours

    @classmethod
    def of(cls, problem: Problem, work: BoundInputs) -> Paths | None:
        """Return the paths of a problem, or None if its graph has a cycle."""
        graph = problem.graph
        producer, consumer = graph.edges[:, graph.reads.edge]
        depth = edge_depths(graph)
        if np.any(depth[producer] >= depth[consumer]):
            return None
        order = np.argsort(depth, kind="stable").astype(np.int32)
        per_byte_s, latency_s = link_times(problem.topology)
        size = graph.reads.size.astype(np.float64)
        by_consumer = np.argsort(consumer, kind="stable")
        into = (row_ptr(consumer, graph.n), producer[by_consumer], size[by_consumer])
        out = (row_ptr(producer, graph.n), consumer.copy(), size)
        sent_s = np.where(work.group[producer] == work.group[consumer], math.inf, least_link_s(problem.topology, size))
        waits, follows = (*into[:2], sent_s[by_consumer]), (*out[:2], sent_s)
        unknown = np.zeros(work.op_s.shape)
        paths = cls(unknown, unknown, per_byte_s, latency_s, order, into, out, waits, follows)
        return paths._raised(work, np.zeros(graph.n), np.zeros(graph.n), most=0)

    def _raised(self, work: BoundInputs, head_s: Float64, tail_s: Float64, *, most: int) -> Paths:
        """Return the paths, where heads and tails are known to be as long as float64 [n] at least.

        most: operations on one device that are looked at together.
        """
        group, least_s, back = work.group.copy(), work.op_s.min(axis=1), self.order[::-1].copy()
        head_s = joint_starts(self.order, self.waits, least_s, head_s, most)
        tail_s = joint_starts(back, self.follows, least_s, tail_s, most)
        start_s = path_starts(self.order, self.into, work.op_s, group, self.per_byte_s, self.latency_s, head_s)
        # What must follow is what must precede in the graph turned round.
        turned = (np.ascontiguousarray(self.per_byte_s.T), np.ascontiguousarray(self.latency_s.T))
        follow_s = path_starts(back, self.out, work.op_s, group, *turned, tail_s)
        return replace(self, start_s=start_s, tail_s=follow_s)

    def busy(self, work: BoundInputs, price: Float64, block_s: float, goes_on: Callable[[], bool]) -> Paths:
        """Return the paths with longer heads and tails, as devices have work to do before and after each operation.

        All that leads to an operation happens before it: if of that nothing starts before a, it starts no sooner than
        a and the work, over all devices. For the operations of one path, what leads to each of them also leads to those
        behind it, so that one pass suffices for all. The path is the longest one; then others, and again, for longer
        heads make others longer.

        price, block_s: as for `interval_s`. goes_on: asked before each path.
        """
        work_s = priced_s(work.op_s, price, block_s)
        least_s = work.op_s.min(axis=1)
        paths, rng = self, np.random.default_rng(0)
        head_s, tail_s = np.zeros(least_s.size), np.zeros(least_s.size)
        if goes_on():
            paths = paths._raised(work, head_s, tail_s, most=TOGETHER)
        best_s, risen = paths.least_s(work.op_s, price, block_s), 0
        for number in range(ROUNDS):
            if number - risen > PATIENCE or not goes_on():
                break
            path = paths._through(least_s, None if number == risen else int(rng.integers(least_s.size)))
            starts_s, follows_s = paths._met(path, work_s, block_s)
            head_s[path], tail_s[path] = np.maximum(head_s[path], starts_s), np.maximum(tail_s[path], follows_s)
            paths = paths._raised(work, head_s, tail_s, most=TOGETHER)
            value_s = paths.least_s(work.op_s, price, block_s)
            if value_s > best_s * (1 + RISE):
                risen = number + 1
                best_s = value_s
        return paths

    def _through(self, least_s: Float64, middle: int | None) -> Int64:
        """Return int64 [l], the longest path that passes an operation, the longest of all if None."""
        head_s, tail_s = self.start_s.min(axis=1), self.tail_s.min(axis=1)
        at = int((head_s + least_s + tail_s).argmax()) if middle is None else middle
        path = [at]
        for (ptr, other, _), key_s in ((self.into, head_s + least_s), (self.out, tail_s + least_s)):
            path.reverse()
            while (near := other[ptr[path[-1]] : ptr[path[-1] + 1]]).size:
                path.append(int(near[key_s[near].argmax()]))
        return np.array(path)

    def _met(self, path: Int64, work_s: Float64, block_s: float) -> tuple[Float64, Float64]:
        """Return float64 [l], before when no operation of a path can start, and what must follow each."""
        place = np.full(work_s.size, -1, np.int32)
        place[path] = np.arange(path.size)
        on_path = (place >= 0).astype(np.int32)
        from_end = np.where(place >= 0, path.size - 1 - place, -1).astype(np.int32)
        # The turn of what leads to the path: the first operation of it that is met, or the next of one that is on it.
        leads = path.size - 1 - greatest_before(self.order[::-1].copy(), self.out, from_end) + on_path
        behind = path.size - 1 - greatest_before(self.order, self.into, place) + on_path
        starts_s = busy_until(self.start_s.min(axis=1), work_s, leads.astype(np.int32), path.size)
        follows_s = busy_until(self.tail_s.min(axis=1), work_s, behind.astype(np.int32), path.size)[::-1]
        return np.maximum(starts_s - block_s, 0.0), np.maximum(follows_s - block_s, 0.0)

    def longest_s(self, op_s: Float64) -> float:
        """Return the length of the longest path, every operation on its best device."""
        return float((self.start_s + op_s + self.tail_s).min(axis=1).max())

    def interval_s(self, op_s: Float64, price: Float64, block_s: float) -> float:
        """Return the greatest (least head + work + least tail) over all sets {head >= a, tail >= b}.

        price: float64 [p], at least 0, of sum 1: the work of an operation is its least priced time. All of a set
        happens between a and the end less b on every device, and so on their weighted mean.
        Source: Carlier, Pinson, Management Science 35, 1989, for one machine; several are made one by the prices.
        """
        work_s = priced_s(op_s, price, block_s)
        bound_s = interval_bound(self.start_s.min(axis=1), self.tail_s.min(axis=1), work_s)
        return max(0.0, float(bound_s) - block_s)

    def least_s(self, op_s: Float64, price: Float64, block_s: float) -> float:
        """Return the greater of the longest path and of the work between heads and tails; see `interval_s`."""
        return max(self.longest_s(op_s), self.interval_s(op_s, price, block_s))

    def forced_s(self, problem: Problem, work: BoundInputs, needed: int) -> float:
        """Return the time of the cheapest paths with a transfer, as at least so many devices must be used.

        A graph of c components on q devices has q - c edges between devices, or more.
        """
        reads = problem.graph.reads
        edges, sizes = problem.graph.edges, np.zeros(problem.graph.m)
        np.maximum.at(sizes, reads.edge, reads.size)  # tensors may travel side by side
        cut = needed - components(int(work.group.max(initial=-1)) + 1, *work.group[edges]).k
        apart = work.group[edges[0]] != work.group[edges[1]]
        if cut < 1 or np.count_nonzero(apart) < cut:
            return 0.0
        edges = np.ascontiguousarray(edges[:, apart])
        links = (self.per_byte_s, self.latency_s)
        value_s = through_cut(edges, sizes[apart], self.start_s, work.op_s, self.tail_s, *links)
        return float(np.partition(value_s, cut - 1)[cut - 1])


def priced_s(op_s: Float64, price: Float64, block_s: float) -> Float64:
    """Return float64 [n], the least priced time of each operation, with what it blocks its device; see `interval_s`."""
    known = np.isfinite(op_s)  # 0 times inf is not a number
    priced = np.where(known, price * (np.where(known, op_s, 0.0) + np.where(op_s > 0, block_s, 0.0)), math.inf)
    least_s: Float64 = priced.min(axis=1)
    return least_s


def link_times(topology: Topology) -> tuple[Float64, Float64]:
    """Return (seconds per byte, seconds of latency) of each link, float64 [p, p]."""
    return 1.0 / topology.link_bytes_per_s, topology.link_latency_s.copy()


def least_link_s(topology: Topology, size: Float64) -> Float64:
    """Return float64 [m], the least seconds of sending so many bytes to another device; inf where there is none."""
    apart = ~np.eye(topology.p, dtype=bool)
    links = np.unique(np.stack([part[apart] for part in link_times(topology)], axis=1), axis=0)
    least_s: Float64 = np.full(size.size, math.inf)
    for per_byte_s, latency_s in links.tolist():
        least_s = np.minimum(least_s, latency_s + size * per_byte_s)
    return least_s
