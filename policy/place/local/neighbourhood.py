"""The changes that local search tries on a placement: single groups, copies of neighbours, clusters, and the order."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32, Int64
from pipeline.core.graph import contract, row_ptr
from pipeline.core.placement import Placement
from pipeline.core.problem import Problem
from pipeline.core.simulation import Moves
from pipeline.shared.compiled import allocating, compiled, inlined, inner
from pipeline.shared.feasibility import feasible_grouping

LONGEST = 8  # groups in a cluster at most
# What each random number of a move decides; behind them, two for every step of its walk.
ORDER, CLUSTER, LENGTH, GROUP, TARGET, COPY, COPIED, BESIDE, SWAP, OTHER, SHIFT, REACH, PLACE, BETWEEN, STEPS = range(
    15
)
NUMBERS = STEPS + 2 * (LONGEST - 1)


class MoveShares(NamedTuple):
    """How often moves are of which kind.

    clusters: share of moves of several groups at once, of `shortest` to `longest` ones then, LONGEST at most. copies:
    share of moves to the device of a neighbour, instead of to any. swaps: share of moves in which instead a single
    group swaps devices with another one. orders: share of moves of a single group that change its priority alone, where
    there are priorities. shifts: share of the other moves that change priorities as well then.
    """

    clusters: float = 0.0
    shortest: int = 2
    longest: int = LONGEST
    copies: float = 0.0
    swaps: float = 0.0
    orders: float = 0.0
    shifts: float = 0.0


class Order(NamedTuple):
    """Where n nodes are, and in which order they run; n is 0 where there are no priorities.

    device: int32 [n]. priority: float64 [n]. node: int64 [n], the nodes in ascending order of priority. p: devices.
    """

    device: Int32
    priority: Float64
    node: Int64
    p: int

    @classmethod
    def of(cls, placement: Placement) -> Order:
        """Return the order of a placement, in arrays that kernels take."""
        priority, p = placement.priority, len(placement.devices)
        if priority is None:
            return cls(np.zeros(0, np.int32), np.zeros(0), np.zeros(0, np.int64), p)
        return cls(placement.device.copy(), priority.copy(), np.argsort(priority, kind="stable"), p)


class Queues(NamedTuple):
    """What runs on each of p devices, in order: node[ptr[d]:ptr[d + 1]] on device d.

    ptr: int64 [p + 1]. node: int64 [n]. rank: int64 [n], the place of each node in the order of all.
    """

    ptr: Int64
    node: Int64
    rank: Int64


class DrawnMoves(NamedTuple):
    """Moves as a kernel writes them down; see `Moves`."""

    ptr: Int64
    node: Int32
    device: Int32
    like: Int32
    shift: Float64
    back: Int64


class Neighbourhood(NamedTuple):
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
        # (ptr [k + 1], neighbour): the groups that exchange tensors with each group, in both directions
        producer, consumer = contract(problem.graph, grouping).edges
        source = np.concatenate([producer, consumer])
        target = np.concatenate([consumer, producer])
        next_ptr, neighbour = row_ptr(source, grouping.k), target[np.argsort(source, kind="stable")].astype(np.int32)
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

    def drawn(
        self,
        rng: np.random.Generator,
        placement: Placement,
        shares: MoveShares,
        threshold_s: Float64,
        *,
        price_s_per_byte: float = math.inf,
        bounded: bool = False,
    ) -> Moves:
        """Return r random moves; none if no group has a choice and the placement has no order.

        A move may turn out to change nothing, or to put a group where it must not be; such moves are skipped.
        threshold_s: float64 [r], which the moves keep and nobody may write to any more; price_s_per_byte, bounded: as
        moves have them.
        """
        if self.free.size == 0 and placement.priority is None:
            return Moves.single(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0))
        drawn = _drawn(self, shares, Order.of(placement), rng.random((threshold_s.size, NUMBERS)))
        return Moves.made(*drawn, threshold_s, price_s_per_byte=price_s_per_byte, bounded=bounded)


@compiled
def _drawn(near: Neighbourhood, shares: MoveShares, order: Order, number: Float64) -> DrawnMoves:
    """Return the moves that random numbers make, float64 [r, NUMBERS], each in [0, 1)."""
    r, k, free, ordered = number.shape[0], near.ptr.size - 1, near.free.size, order.node.size > 0
    queues = _queues(order)
    walk = np.empty((r, LONGEST), np.int64)  # the groups of each move, -1 for none
    device, like, shift = np.full(r, -1, np.int32), np.full(r, -1, np.int32), np.zeros(r)
    swaps = np.zeros(r, np.bool_)
    for i in range(r):
        stays = ordered and number[i, ORDER] < shares.orders
        group = _index(number[i, GROUP], k) if stays or free == 0 else near.free[_index(number[i, GROUP], free)]
        swaps[i] = not stays and free > 0 and number[i, SWAP] < shares.swaps
        length = 1
        if not stays and not swaps[i] and number[i, CLUSTER] < shares.clusters:
            length = shares.shortest + _index(number[i, LENGTH], shares.longest - shares.shortest + 1)
        _walk(near, walk[i], group, length, number[i, STEPS:])
        first = near.member[near.ptr[group]]
        goal = int(order.device[first]) if ordered else -1
        if not stays:
            goal = device[i] = _picked(near.homes_ptr, near.home, group, number[i, TARGET])
            other = _index(number[i, OTHER], k)
            swaps[i] = swaps[i] and other != group
            if swaps[i]:
                walk[i, 1] = other
                like[i] = near.member[near.ptr[other]]
            elif number[i, COPY] < shares.copies:
                beside = _neighbour(near, _one_of(walk[i], number[i, COPIED]), number[i, BESIDE])
                like[i] = near.member[near.ptr[beside]]
            if ordered and like[i] >= 0:
                goal = int(order.device[like[i]])
        if ordered and (stays or number[i, SHIFT] < shares.shifts):
            shift[i] = _shift(order, queues, first, goal, number[i])
    return _with_nodes(near, walk, swaps, device, like, shift)


@allocating
def _queues(order: Order) -> Queues:
    """Return what runs on each device, in order."""
    n = order.node.size
    ptr, node, rank = np.zeros(order.p + 1, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    for j in range(n):
        ptr[order.device[j] + 1] += 1
    for d in range(order.p):
        ptr[d + 1] += ptr[d]
    free = ptr.copy()
    for x in range(n):
        j = order.node[x]
        rank[j] = x
        node[free[order.device[j]]] = j
        free[order.device[j]] += 1
    return Queues(ptr, node, rank)


@allocating
def _with_nodes(
    near: Neighbourhood, walk: Int64, swaps: Bool, device: Int32, like: Int32, shift: Float64
) -> DrawnMoves:
    """Return the moves of groups walk, int64 [r, LONGEST]; swaps: bool [r], whether the second goes back."""
    r = walk.shape[0]
    ptr, back = np.zeros(r + 1, np.int64), np.empty(r, np.int64)
    for i in range(r):
        ptr[i + 1] = ptr[i]
        for group in walk[i]:
            if group >= 0:
                ptr[i + 1] += near.ptr[group + 1] - near.ptr[group]
        back[i] = ptr[i + 1]
        if swaps[i]:
            back[i] = ptr[i] + near.ptr[walk[i, 0] + 1] - near.ptr[walk[i, 0]]
    node, end = np.empty(ptr[r], np.int32), 0
    for i in range(r):
        for group in walk[i]:
            if group >= 0:
                for x in range(near.ptr[group], near.ptr[group + 1]):
                    node[end] = near.member[x]
                    end += 1
    return DrawnMoves(ptr, node, device, like, shift, back)


@inlined
def _index(number: float, count: int) -> int:
    """Return one of `count` indices, by a number in [0, 1)."""
    return min(int(number * count), count - 1)


@inner
def _picked(ptr: Int64, value: Int32, row: int, number: float) -> int:
    """Return a value of a row of a ragged array, -1 for an empty row."""
    count = ptr[row + 1] - ptr[row]
    return value[ptr[row] + _index(number, count)] if count > 0 else -1


@inner
def _neighbour(near: Neighbourhood, group: int, number: float) -> int:
    """Return a neighbour of a group, itself where it has none."""
    picked = _picked(near.next_ptr, near.neighbour, group, number)
    return picked if picked >= 0 else group


@inner
def _walk(near: Neighbourhood, walk: Int64, group: int, length: int, number: Float64) -> None:
    """Write down a walk of so many steps at most from a group, -1 for a step that meets a group again.

    walk: int64 [LONGEST]. A step leads to a neighbour of the group of any step before, of the first if that is -1.
    """
    walk.fill(-1)
    walk[0] = group
    for step in range(1, length):
        last = walk[_index(number[2 * step - 2], step)]
        reached = _neighbour(near, last if last >= 0 else group, number[2 * step - 1])
        fresh = True
        for before in walk[:step]:
            fresh = fresh and before != reached
        if fresh:
            walk[step] = reached


@inner
def _one_of(walk: Int64, number: float) -> int:
    """Return a group of a walk."""
    count = 0
    for group in walk:
        count += group >= 0
    left = _index(number, count)
    for group in walk:
        if group >= 0:
            if left == 0:
                return int(group)
            left -= 1
    return -1


@inner
def _shift(order: Order, queues: Queues, node: int, goal: int, number: Float64) -> float:
    """Return what takes a node between two others of device `goal`, mostly two close by in the order."""
    begin, end = queues.ptr[goal], queues.ptr[goal + 1]
    if begin == end:
        return 0.0
    low, high = begin, end
    while low < high:
        middle = (low + high) // 2
        if queues.rank[queues.node[middle]] < queues.rank[node]:
            low = middle + 1
        else:
            high = middle
    reach = math.ceil((end - begin) ** number[REACH])
    to = min(max(low + _index(number[PLACE], 2 * reach + 1) - reach, begin), end)
    above = order.priority[queues.node[min(to, end - 1)]]
    below = order.priority[queues.node[to - 1]] if to > begin else above - 1.0
    if to == end:
        above = below + 1.0
    return float(below + (above - below) * number[BETWEEN] - order.priority[node])
