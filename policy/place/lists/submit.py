"""How constructive placers hand in what they made: kept within memory, and with orders where orders count."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32, Int64
from pipeline.core.graph import Grouping, sum_per_group
from pipeline.core.placement import Placement
from pipeline.core.problem import Problem
from pipeline.shared.compiled import compiled
from policy.place.base.search import Search
from policy.place.lists.listing import PartialSchedule
from policy.place.lists.work import ScheduleInputs, b_level


@compiled
def _within_memory(wish: Int32, allowed: Bool, weight: Float64, room: Float64, heaviest_first: Int64) -> Int32:
    """Return the groups' devices: as wished where allowed and not full, else the allowed one with most room."""
    device, left = wish.copy(), room.copy()
    for g in heaviest_first:
        d = wish[g]
        if not allowed[g, d] or left[d] < weight[g]:
            d = int(np.argmax(np.where(allowed[g], left, -math.inf)))
        device[g] = d
        left[d] -= weight[g]
    return device


def fitted(problem: Problem, work: ScheduleInputs, home: Int32) -> Int32:
    """Return int32 [n], the device of each operation if groups go where `home` [k] says, as far as weights fit there.

    Where they do not, or the device is not allowed, a group goes to the allowed device with the most room; heavy
    groups choose first.
    """
    weight = sum_per_group(problem.graph.weight_bytes.astype(np.float64), Grouping(work.group.astype(np.int32)))
    heaviest_first = np.argsort(-weight, kind="stable")
    return _within_memory(home.astype(np.int32), work.allowed, weight, work.room, heaviest_first)[work.group]


def submit(
    search: Search, work: ScheduleInputs, homes: Sequence[Int32], schedules: Sequence[PartialSchedule] = ()
) -> None:
    """Have placements evaluated: groups' devices int32 [k] each, or schedules, which have start times as well.

    If placements may carry priorities, each is evaluated first come, first served, in the order of scheduled starts,
    and by the longest way to an end under the placement (Placement.priority, the smaller first).
    """
    names, position = search.problem.topology.names, np.empty(work.order.size, np.int64)
    position[work.order] = np.arange(work.order.size)
    for plan_at, home in enumerate((*homes, *(schedule.homes.device for schedule in schedules))):
        if search.done:
            return
        schedule = schedules[plan_at - len(homes)] if plan_at >= len(homes) else None
        device, planned_s = fitted(search.problem, work, home), math.nan
        placements = [Placement(device, names)]
        if schedule is not None and search.problem.costs is not None and np.array_equal(device, home[work.group]):
            planned_s = float(schedule.finish_s.max(initial=0.0))
        if search.problem.ordered and schedule is not None:
            rank = np.empty(device.size)
            rank[np.lexsort((position, schedule.start_s))] = np.arange(device.size)
            placements.append(Placement(device, names, rank))
        if search.problem.ordered:
            placements.append(Placement(device, names, -b_level(work, device)))
        search.evaluate(placements, planned_s=[planned_s] * len(placements))
