"""ETF: of all ready operations and devices the pair that can start first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pipeline.compiled import compiled
from pipeline.core.arrays import Float64, Int32
from policy.place.lists.listing import Plan, arrival, new_plan, put, reads, settle_rest, usable
from policy.place.lists.submit import submit
from policy.place.lists.work import Heaps, Work, contended, longest, new_heaps, pop, push, work_of
from policy.place.search import Method, Search

PARKED_S = 1e300  # the key of a pair put off because the device has no room


@dataclass(frozen=True, slots=True)
class Etf(Method):
    """Plans the ready operation and the device that can start earliest; of equal ones the longest way to an end.

    The way counts mean times of operations alone. Where the evaluator reckons with contention, one plan does too, and a
    second does not, see `critical_path`. All ready operations are candidates: heaps per device make a step cost
    O(p (log n + operands)).

    Source: Hwang, Chow, Anger and Lee, SIAM Journal on Computing 18, 1989.
    """

    version: ClassVar[int] = 1

    def run(self, search: Search, *, seed: int) -> None:
        """Evaluate the plans' placements; nothing is random."""
        if search.done:
            return
        works = contended(work_of(search.problem, semantics=search.semantics))
        submit(search, works[0], (), [earliest_first(work, static_level(work), no_favourites(work)) for work in works])


def static_level(work: Work) -> Float64:
    """Return float64 [n], the longest way to an end in mean seconds, transfers left out."""
    return longest(work.order, work.out_ptr, work.out_node, np.zeros(work.out_s.size), work.mean_s)


def no_favourites(work: Work) -> Int32:
    """Return int32 [n], -1: no device waits for anything."""
    return np.full(work.order.size, -1, np.int32)


@compiled
def _opens(work: Work, plan: Plan, favourite: Int32, last: Int32, d: int) -> float:
    """Return from when on device d is free for operations that are not the favourite child of its last one."""
    i = last[d]
    j = favourite[i] if i >= 0 else -1
    if j < 0 or plan.waiting[j] < 0 or not usable(plan.homes, work.group[j], d):
        return float(plan.lanes.free_s[d])
    away_s = 0.0
    for e in range(work.out_ptr[i], work.out_ptr[i + 1]):
        if work.out_node[e] == j:
            away_s = work.out_s[e]
    return max(float(plan.lanes.free_s[d]), float(plan.finish_s[i] + away_s))


@compiled
def _when(work: Work, plan: Plan, i: int, d: int) -> float:
    """Return when all that operation i reads can be on device d."""
    return arrival(work, plan, reads(work, plan, i), d, plan.queue_s.copy(), False)


@compiled
def _head(work: Work, plan: Plan, heaps: Heaps, level_s: Float64, d: int, open_s: float) -> tuple[float, int]:
    """Return the earliest start on device d, and the operation; -1 if there is none.

    Heap 2 d holds operations whose data arrive later, by arrival, heap 2 d + 1 those whose data are there, by level.
    Arrivals grow while links fill, and open_s may fall: entries are put back when that shows.
    """
    later, there = 2 * d, 2 * d + 1
    while True:
        while heaps.size[later] > 0 and heaps.key[later, 0] <= open_s:
            i = pop(heaps, later)
            push(heaps, there, -level_s[i], i)
        h = there if heaps.size[there] > 0 else later
        if heaps.size[h] == 0:
            return math.inf, -1
        i, before_s = heaps.node[h, 0], heaps.key[h, 0] if h == later else open_s
        g = work.group[i]
        if plan.waiting[i] < 0 or (plan.homes.device[g] >= 0 and plan.homes.device[g] != d):
            pop(heaps, h)
            continue
        if before_s == PARKED_S:
            return PARKED_S, i
        start_s = _when(work, plan, i, d)
        if not usable(plan.homes, g, d):
            start_s = PARKED_S
        if start_s <= before_s:
            return max(start_s, open_s), i
        pop(heaps, h)
        push(heaps, later, start_s, i)


@compiled
def _earliest(work: Work, plan: Plan, heaps: Heaps, level_s: Float64, favourite: Int32, last: Int32) -> tuple[int, int]:
    """Return the operation and the device that start first; -1 for both if nothing is ready."""
    node, device, first_s = -1, -1, math.inf
    for d in range(plan.lanes.free_s.size):
        start_s, i = _head(work, plan, heaps, level_s, d, _opens(work, plan, favourite, last, d))
        j = favourite[last[d]] if last[d] >= 0 else -1
        if j >= 0 and plan.waiting[j] == 0 and usable(plan.homes, work.group[j], d):
            own_s = max(_when(work, plan, j, d), plan.lanes.free_s[d])
            if own_s <= start_s:
                start_s, i = own_s, j
        if i < 0 or start_s > first_s:
            continue
        ahead = node < 0 or start_s < first_s or level_s[i] > level_s[node]
        if ahead or (i == node and work.op_s[i, d] < work.op_s[i, device]):
            node, device, first_s = i, d, start_s
    return node, device


@compiled
def _offer(work: Work, heaps: Heaps, i: int) -> None:
    """Make a ready operation a candidate wherever its group is allowed; `_head` finds out when its data arrive."""
    for d in range(work.room.size):
        if work.allowed[work.group[i], d]:
            push(heaps, 2 * d, 0.0, i)


@compiled
def earliest_first(work: Work, level_s: Float64, favourite: Int32) -> Plan:
    """Return the plan that always takes the operation and device that start first, of equal ones the greatest level.

    favourite: int32 [n], an operation for which the device of each one waits as long as its output would need to
    arrive elsewhere; -1 for none.
    """
    plan = new_plan(work)
    n, p = work.op_s.shape
    heaps, last = new_heaps(2 * p, n), np.full(p, -1, np.int32)
    for i in range(n):
        if work.counts[i] and plan.waiting[i] == 0:
            _offer(work, heaps, i)
    while True:
        node, device = _earliest(work, plan, heaps, level_s, favourite, last)
        if node < 0:
            break
        put(work, plan, node, device, False)
        plan.waiting[node], last[device] = -1, node  # planned
        for e in range(work.out_ptr[node], work.out_ptr[node + 1]):
            j = work.out_node[e]
            plan.waiting[j] -= 1
            if plan.waiting[j] == 0:
                _offer(work, heaps, j)
    settle_rest(plan.homes)
    return plan
