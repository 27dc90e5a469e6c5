"""Minimum cuts over groups that stay or go."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32, Int64

Index = Int32 | Int64
UNITS_OF_CAPACITY = 2**50  # what all capacities of a cut together are scaled to
ENDLESS = 2**52


@dataclass(frozen=True, slots=True, eq=False)
class AuxiliaryNodes:
    """Which groups the further nodes of a cut stand for: pairs of a further node and a group."""

    middle: Int64
    group: Int32


class Arcs:
    """A cut under construction: groups on the source's side stay, on the sink's side go."""

    def __init__(self, k: int) -> None:
        self.source, self.sink = k, k + 1
        self.size = k + 2
        self.node = np.arange(k + 2)  # where each group stands; groups that cannot choose stand at an end
        self.tails: list[Int64] = []
        self.heads: list[Int64] = []
        self.capacity_s: list[Float64] = []

    def choose(self, stay_s: Float64, go_s: Float64, there: Bool) -> float:
        """Add what staying and going cost each group; return what both cost at least. there: already at the target."""
        k = stay_s.size
        self.node[:k][there | np.isinf(stay_s)] = self.sink
        self.node[:k][~there & np.isinf(go_s)] = self.source
        free = self.node[:k] == np.arange(k)
        paid = np.where(self.node[:k] == self.sink, go_s, stay_s)
        least = np.where(free, np.minimum(stay_s, go_s), paid)
        group = np.flatnonzero(free)
        self.add(np.full(group.size, self.source), group, go_s[group] - least[group])
        self.add(group, np.full(group.size, self.sink), stay_s[group] - least[group])
        return float(least.sum())

    def add(self, tail: Index, head: Index, seconds: Float64) -> None:
        """Add arcs that cost seconds if they lead from the source's side to the sink's."""
        tail, head = self._at(tail), self._at(head)
        counts = (seconds > 0) & (tail != head) & (tail != self.sink) & (head != self.source)
        self.tails.append(tail[counts])
        self.heads.append(head[counts])
        self.capacity_s.append(seconds[counts])

    def gather(self, net: Int64, owner: Int64, group: Int32, t: int) -> tuple[Int64, AuxiliaryNodes]:
        """Return (a node that stands for all readers of each net, and which groups those nodes must be colocated with).

        net: int64, of t. owner, group: the net and the group of each reader. A single reader stands for itself.
        """
        count = np.bincount(owner, minlength=t)
        middle = np.full(t, -1, np.int64)
        many = net[count[net] > 1]
        middle[many] = self.size + np.arange(many.size)
        self.size += many.size
        first = np.zeros(t, np.int64)
        first[owner[::-1]] = group[::-1]
        inner = np.flatnonzero(middle[owner] >= 0)
        return np.where(middle[net] >= 0, middle[net], first[net]), AuxiliaryNodes(middle[owner[inner]], group[inner])

    def colocate(self, inner: AuxiliaryNodes, *, outwards: bool) -> None:
        """Let each further node stay only if all its groups do (outwards), or make it stay if one of them does."""
        endless = np.full(inner.group.size, math.inf)
        tail, head = (inner.middle, inner.group) if outwards else (inner.group, inner.middle)
        self.add(tail, head, endless)

    def solve(self) -> tuple[Bool, float]:
        """Return (bool [k], who goes; the value of the minimum cut in seconds, rounded down)."""
        from ortools.graph.python.max_flow import SimpleMaxFlow

        k = self.source
        # One arc without capacity from end to end: the library knows only nodes that have arcs.
        tails, heads = np.concatenate([[k], *self.tails]), np.concatenate([[self.sink], *self.heads])
        seconds = np.concatenate([[0.0], *self.capacity_s])
        finite = np.isfinite(seconds)
        scale = UNITS_OF_CAPACITY / max(float(seconds[finite].sum()), 1e-100)
        capacity = np.full(seconds.size, ENDLESS, np.int64)
        capacity[finite] = np.floor(seconds[finite] * scale).astype(np.int64)
        flow = SimpleMaxFlow()
        flow.add_arcs_with_capacity(tails.astype(np.int32), heads.astype(np.int32), capacity)
        status = flow.solve(self.source, self.sink)
        if status != flow.OPTIMAL:
            raise ArithmeticError(f"maximum flow ended with {status}")
        stay = np.zeros(self.size, bool)
        stay[np.array(flow.get_source_side_min_cut())] = True
        return ~stay[self.node[:k]], flow.optimal_flow() / scale

    def _at(self, group: Index) -> Int64:
        """Return where groups stand; the further nodes stand for themselves."""
        inside = group < self.node.size
        return np.where(inside, self.node[np.where(inside, group, 0)], group).astype(np.int64)
