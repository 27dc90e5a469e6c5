"""The changes that local search tries on a placement: single groups, copies of neighbours, clusters, and the order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32, Int64
from pipeline.core.graph import Graph, Grouping, contract, row_ptr
from pipeline.core.placement import Placement
from pipeline.core.problem import Problem
from pipeline.core.simulation import Moves
from pipeline.shared.feasibility import feasible_grouping

LONGEST = 8  # groups in a cluster at most


@dataclass(frozen=True, slots=True, eq=False)
class MoveKinds:
    """What kind of move each of r moves is; all [r].

    length: int64, groups in the cluster that moves, 1 for a single one. copy: bool, whether it goes where a neighbour
    is, instead of to any device. stays: bool, whether it keeps its device. shifted: bool, whether its place in the
    order changes. swaps: bool, whether instead it is a single group that swaps devices with another one.
    """

    length: Int64
    copy: Bool
    stays: Bool
    shifted: Bool
    swaps: Bool


@dataclass(frozen=True, slots=True, eq=False)
class Neighbourhood:
    """The moves of k groups.

    ptr: int64 [k + 1], member: int32 [n], the nodes of each group. next_ptr: int64 [k + 1], neighbour: int32 [2e],
    groups that exchange tensors. homes_ptr: int64 [k + 1], home: int32, devices where a group may go.
    free: int32, groups that have a choice.
    """

    ptr: Int64
    member: Int32
    next_ptr: Int64
    neighbour: Int32
    homes_ptr: Int64
    home: Int32
    free: Int32

    @classmethod
    def of(cls, problem: Problem) -> Neighbourhood:
        """Return the moves of a problem's groups."""
        grouping = feasible_grouping(problem)
        allowed = problem.group_allowed(grouping)
        next_ptr, neighbour = _neighbours(problem.graph, grouping)
        group, home = np.nonzero(allowed)
        return cls(
            row_ptr(grouping.group, grouping.k),
            np.argsort(grouping.group, kind="stable").astype(np.int32),
            next_ptr,
            neighbour,
            row_ptr(group, grouping.k),
            home.astype(np.int32),
            np.flatnonzero(allowed.sum(axis=1) > 1).astype(np.int32),
        )

    @property
    def k(self) -> int:
        """Return the number of groups."""
        return self.ptr.size - 1

    def anywhere(self, devices: tuple[str, ...]) -> Placement:
        """Return the placement of each group on the first device where it may go, full or not."""
        device = np.empty(self.member.size, np.int32)
        device[self.member] = np.repeat(self.home[self.homes_ptr[:-1]], np.diff(self.ptr))
        return Placement(device, devices)

    def drawn(self, rng: np.random.Generator, placement: Placement, choice: MoveKinds, threshold_s: Float64) -> Moves:
        """Return r moves of the kinds chosen; none if no group has a choice and the placement has no order.

        A move may turn out to change nothing, or to put a group where it must not be; such moves are skipped.
        """
        if self.free.size == 0 and placement.priority is None:
            return Moves(np.zeros(1, np.int64), *(np.zeros(0, np.int32),) * 3, np.zeros(0), np.zeros(0))
        r = threshold_s.size
        group = rng.integers(0, self.k, r)
        if self.free.size:
            group = np.where(choice.stays, group, self.free[rng.integers(0, self.free.size, r)])
        swaps = choice.swaps & ~choice.stays & (self.free.size > 0)
        walks = self._walks(rng, group, np.where(swaps, 1, choice.length))  # [r, LONGEST], -1 behind the end
        target = np.where(choice.stays, -1, _pick(rng, self.homes_ptr, self.home, group))
        like = np.where(choice.copy & ~choice.stays, self._beside(rng, walks), -1)
        if swaps.any():
            other = rng.integers(0, self.k, r)
            swaps &= other != group
            walks[swaps, 1] = other[swaps]
            like = np.where(swaps, self.member[self.ptr[other]], like)
        shift = np.zeros(r)
        if placement.priority is not None:
            goal = np.where(target >= 0, target, placement.device[self.member[self.ptr[group]]])
            goal = np.where(like >= 0, placement.device[like], goal)
            shift = np.where(choice.shifted, self._shifts(rng, placement.priority, placement.device, group, goal), 0.0)
        move, which = np.nonzero(walks >= 0)
        chosen = walks[move, which]
        count = self.ptr[chosen + 1] - self.ptr[chosen]
        within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        node = self.member[np.repeat(self.ptr[chosen], count) + within]
        ends = np.cumsum(np.bincount(move, weights=count, minlength=r)).astype(np.int64)
        ptr = np.r_[0, ends]
        back = np.where(swaps, ptr[:-1] + self.ptr[group + 1] - self.ptr[group], ends)
        return Moves(ptr, node, target.astype(np.int32), like.astype(np.int32), shift, threshold_s, back)

    def _beside(self, rng: np.random.Generator, walks: Int64) -> Int64:
        """Return a node of some group next to some group of each local search."""
        length = (walks >= 0).sum(axis=1)
        inside = np.sort(walks, axis=1)[:, ::-1]  # the -1 come last
        beside = self._step(rng, inside[np.arange(length.size), (rng.random(length.size) * length).astype(np.int64)])
        node: Int64 = self.member[self.ptr[beside]].astype(np.int64)
        return node

    def _step(self, rng: np.random.Generator, group: Int64) -> Int64:
        """Return a neighbour of each group, itself where it has none."""
        if self.neighbour.size == 0:
            return group
        isolated = self.next_ptr[group + 1] == self.next_ptr[group]
        stepped: Int64 = np.where(isolated, group, _pick(rng, self.next_ptr, self.neighbour, group))
        return stepped

    def _walks(self, rng: np.random.Generator, group: Int64, length: Int64) -> Int64:
        """Return int64 [r, LONGEST], random local searches of so many steps from each group, each group once; -1 is
        none.
        """
        walks = np.full((group.size, LONGEST), -1, np.int64)
        walks[:, 0] = group
        for step in range(1, int(length.max(initial=1))):
            going = np.flatnonzero(length > step)
            last = walks[going, rng.integers(0, step, going.size)]
            reached = self._step(rng, np.where(last >= 0, last, group[going]))
            fresh = ~np.any(walks[going] == reached[:, None], axis=1)
            walks[going[fresh], step] = reached[fresh]
        return walks

    def _shifts(self, rng: np.random.Generator, priority: Float64, device: Int32, group: Int64, goal: Int64) -> Float64:
        """Return what takes each group's first node between two others of device `goal` [r], mostly two close by."""
        n, first = priority.size, self.member[self.ptr[group]]
        rank = np.empty(n, np.int64)
        rank[np.argsort(priority, kind="stable")] = np.arange(n)
        key = device.astype(np.int64) * n + rank
        ranked = np.argsort(key)  # by device, then by priority
        begin, end = np.searchsorted(key[ranked], goal * n), np.searchsorted(key[ranked], (goal + 1) * n)
        at = np.searchsorted(key[ranked], goal * n + rank[first])
        reach = np.ceil(np.maximum(1, end - begin) ** rng.random(group.size)).astype(np.int64)
        to = np.clip(at + rng.integers(-reach, reach + 1), begin, end)
        sorted_priority = priority[ranked]
        below, above = sorted_priority[np.maximum(to - 1, 0)], sorted_priority[np.minimum(to, n - 1)]
        below, above = np.where(to > begin, below, above - 1), np.where(to < end, above, below + 1)
        between = below + (above - below) * rng.random(group.size)
        shift: Float64 = np.where(end > begin, between - priority[first], 0.0)
        return shift


def _neighbours(graph: Graph, grouping: Grouping) -> tuple[Int64, Int32]:
    """Return (ptr [k + 1], neighbour): the groups that exchange tensors with each group, in both directions."""
    producer, consumer = contract(graph, grouping).edges
    source = np.concatenate([producer, consumer])
    target = np.concatenate([consumer, producer])
    return row_ptr(source, grouping.k), target[np.argsort(source, kind="stable")].astype(np.int32)


def _pick(rng: np.random.Generator, ptr: Int64, value: Int32, row: Int64) -> Int64:
    """Return a random value of each row of a ragged array; any value for an empty row."""
    count = np.maximum(1, ptr[row + 1] - ptr[row])
    at = np.minimum(ptr[row] + (rng.random(row.size) * count).astype(np.int64), value.size - 1)
    picked: Int64 = value[at].astype(np.int64)
    return picked
