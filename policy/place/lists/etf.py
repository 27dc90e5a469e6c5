"""ETF: of all ready operations and devices the pair that can start first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from pipeline.core.arrays import Float64, Int64
from pipeline.shared.compiled import allocating, compiled, inner
from pipeline.shared.graphs import longest_paths
from pipeline.shared.heaps import Heap, pop, push
from policy.place.base.search import Look, Method, Search, unhurried
from policy.place.lists.listing import (
    PartialSchedule,
    arrival,
    new_schedule,
    put,
    reads,
    ready_first,
    settle_rest,
    steps_between_checks,
    usable,
)
from policy.place.lists.submit import submit
from policy.place.lists.work import ScheduleInputs, contended, work_of

PARKED_S = 1e300  # the key of a pair put off because the device has no room


class Heaps(NamedTuple):
    """One `Heap` per row. key: float64 [heaps, n]. node: int64 [heaps, n]. size: int64 [heaps]."""

    key: Float64
    node: Int64
    size: Int64


class Precedence(NamedTuple):
    """Which of operations that could start at the same time goes first.

    order: int64 [n], the operations, the greatest level first, of equal ones the least number. rank: int64 [n], the
    place of each operation in it; heaps hold ranks, so that of equal keys the least goes first.
    """

    order: Int64
    rank: Int64

    @classmethod
    def of(cls, level_s: Float64) -> Precedence:
        """Return the precedence of greater levels, float64 [n]."""
        order, rank = np.argsort(-level_s, kind="stable"), np.empty(level_s.size, np.int64)
        rank[order] = np.arange(level_s.size)
        return cls(order, rank)


@dataclass(frozen=True, slots=True)
class Etf(Method):
    """Schedules the ready operation and the device that can start earliest; of equal ones the longest way to an end.

    The way counts mean times of operations alone. Where the evaluator uses contention, one schedule does too, and a
    second does not, see `critical_path`. All ready operations are candidates: heaps per device make a step cost
    O(p (log n + operands)).

    Source: Hwang, Chow, Anger and Lee, SIAM Journal on Computing 18, 1989.
    """

    version: ClassVar[int] = 2

    def run(self, search: Search, *, seed: int) -> None:
        """Evaluate the schedules' placements; nothing is random."""
        if search.done:
            return
        works = contended(work_of(search.problem, execution=search.execution))
        for work in works:
            schedule = earliest_first(work, static_level(work), no_favourites(work), search.look)
            submit(search, works[0], (), (schedule,))


def static_level(work: ScheduleInputs) -> Float64:
    """Return float64 [n], the longest way to an end in mean seconds, transfers left out."""
    return longest_paths(work.order, work.out_ptr, work.out_node, np.zeros(work.out_s.size), work.mean_s)


def no_favourites(work: ScheduleInputs) -> Int64:
    """Return int64 [n], -1: no device waits for anything."""
    return np.full(work.order.size, -1, np.int64)


@inner
def _opens(work: ScheduleInputs, schedule: PartialSchedule, favourite: Int64, last: Int64, d: int) -> float:
    """Return from when on device d is free for operations that are not the favourite child of its last one."""
    i = last[d]
    j = favourite[i] if i >= 0 else -1
    if j < 0 or schedule.waiting[j] < 0 or not usable(schedule.homes, work.group[j], d):
        return float(schedule.lanes.free_s[d])
    away_s = 0.0
    for e in range(work.out_ptr[i], work.out_ptr[i + 1]):
        if work.out_node[e] == j:
            away_s = max(away_s, work.out_s[e])
    return max(float(schedule.lanes.free_s[d]), float(schedule.finish_s[i] + away_s))


@inner
def _when(work: ScheduleInputs, schedule: PartialSchedule, i: int, d: int) -> float:
    """Return when all that operation i reads can be on device d."""
    return arrival(work, schedule, reads(work, schedule, i), d, False)


@allocating
def _nth(heaps: Heaps, h: int) -> Heap:
    """Return heap h."""
    return Heap(heaps.key[h], heaps.node[h], heaps.size[h : h + 1])


@allocating
def _head(
    work: ScheduleInputs, schedule: PartialSchedule, heaps: Heaps, order: Int64, d: int, open_s: float
) -> tuple[float, int]:
    """Return the earliest start on device d, and the operation; -1 if there is none.

    Heap 2 d holds operations whose data arrive later, by arrival, heap 2 d + 1 those whose data are there, by rank.
    Arrivals grow while links fill, and open_s may fall: entries are put back when that shows.
    """
    later, there = _nth(heaps, 2 * d), _nth(heaps, 2 * d + 1)
    while True:
        while later.size[0] > 0 and later.key[0] <= open_s:
            rank = pop(later)
            push(there, float(rank), rank)
        at_hand = there.size[0] > 0
        heap = there if at_hand else later
        if heap.size[0] == 0:
            return math.inf, -1
        rank, before_s = heap.node[0], open_s if at_hand else heap.key[0]
        i = order[rank]
        g = work.group[i]
        if schedule.waiting[i] < 0 or (schedule.homes.device[g] >= 0 and schedule.homes.device[g] != d):
            pop(heap)
            continue
        if before_s == PARKED_S:
            return PARKED_S, i
        start_s = _when(work, schedule, i, d)
        if not usable(schedule.homes, g, d):
            start_s = PARKED_S
        if start_s <= before_s:
            return max(start_s, open_s), i
        pop(heap)
        push(later, start_s, rank)


def earliest_first(work: ScheduleInputs, level_s: Float64, favourite: Int64, look: Look = unhurried) -> PartialSchedule:
    """Return the schedule that always takes the operation and device that start first, of equal ones the greatest
    level.

    favourite: int64 [n], an operation for which the device of each one waits as long as its output would need to
    arrive elsewhere; -1 for none.
    """
    schedule, precedence, (n, p) = new_schedule(work), Precedence.of(level_s), work.op_s.shape
    heaps = Heaps(np.empty((2 * p, n)), np.empty((2 * p, n), np.int64), np.zeros(2 * p, np.int64))
    first = ready_first(work, schedule)
    for d in range(p):
        rank = np.sort(precedence.rank[first[work.allowed[work.group[first], d]]])  # sorted, and so a heap
        heaps.key[2 * d, : rank.size], heaps.node[2 * d, : rank.size], heaps.size[2 * d] = 0.0, rank, rank.size
    last = np.full(p, -1, np.int64)
    while not _schedule(work, schedule, precedence, favourite, heaps, last, steps_between_checks(work)):
        look()
    return schedule


@compiled
def _schedule(
    work: ScheduleInputs,
    schedule: PartialSchedule,
    precedence: Precedence,
    favourite: Int64,
    heaps: Heaps,
    last: Int64,
    steps: int,
) -> bool:
    """Schedule so many operations more as `earliest_first` says; return whether these were all.

    heaps: what is ready, by device. last: int64 [p], what each device ran last, -1 for nothing.
    """
    for _ in range(steps):
        # The operation and the device that start first; -1 for both if nothing is ready
        node, device, first_s, rank = -1, -1, math.inf, precedence.rank
        for d in range(schedule.lanes.free_s.size):
            start_s, i = _head(work, schedule, heaps, precedence.order, d, _opens(work, schedule, favourite, last, d))
            j = favourite[last[d]] if last[d] >= 0 else -1
            if j >= 0 and schedule.waiting[j] == 0 and usable(schedule.homes, work.group[j], d):
                own_s = max(_when(work, schedule, j, d), schedule.lanes.free_s[d])
                if own_s <= start_s:
                    start_s, i = own_s, j
            if i < 0 or start_s > first_s:
                continue
            ahead = node < 0 or start_s < first_s or rank[i] < rank[node]
            if ahead or (i == node and work.op_s[i, d] < work.op_s[i, device]):
                node, device, first_s = i, d, start_s
        if node < 0:
            settle_rest(schedule.homes)
            return True
        put(work, schedule, node, device)
        schedule.waiting[node], last[device] = -1, node  # scheduled
        for e in range(work.out_ptr[node], work.out_ptr[node + 1]):
            j = work.out_node[e]
            schedule.waiting[j] -= 1
            if schedule.waiting[j] == 0:
                # Make a ready operation a candidate wherever its group is allowed; `_head` finds out when its data
                # arrive
                for d in range(work.room.size):
                    if work.allowed[work.group[j], d]:
                        push(_nth(heaps, 2 * d), 0.0, precedence.rank[j])
    return False
