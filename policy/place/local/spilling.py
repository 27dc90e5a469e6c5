"""Placements brought within memory: what a device cannot hold goes to others, one stretch of its work after another."""

from __future__ import annotations

import numpy as np

from pipeline.core.arrays import Bool, Int32, Int64
from pipeline.core.graph import Grouping, sum_per_group
from pipeline.core.placement import Placement
from pipeline.core.problem import Problem
from pipeline.core.simulation import Timeline
from pipeline.shared.compiled import compiled
from policy.place.base.groups import UNLIMITED
from policy.place.base.hierarchy import Level, hierarchy, nearest
from policy.place.base.search import Search
from policy.place.lists.work import work_of
from policy.place.rules.expert import blocks

FILLS = (0.95, 0.75, 0.55)  # shares of the memory that is free for what spills: copies of what is sent need some, too
FINE = 1024  # clusters that are moved, about
MEMBERS = 8  # operations of a cluster, on average, at least: what is made is to be read in the same one
SPILLING = "spilling"  # the name of this part of a search
ROUNDS = 6  # of looking at what is held and spilling it, at most


def held_at_peaks(problem: Problem, timeline: Timeline) -> Int64:
    """Return int64 [n], the bytes by which each operation adds to the most that its device holds under a placement.

    These are its weights, and its output if that is held when the outputs on its device are most. Outputs count from
    the start of the operation to the end of its last reader. Copies on other devices are left out.
    """
    graph = problem.graph
    own = np.maximum(graph.out_bytes - graph.weight_bytes, 0)  # what a constant puts out is the weight it holds
    last_s = timeline.end_s.copy()
    np.maximum.at(last_s, graph.edges[0], timeline.end_s[graph.edges[1]])
    held = graph.weight_bytes.copy()
    for d in range(problem.topology.p):
        here = np.flatnonzero((timeline.device == d) & (own > 0))
        if here.size:
            # the moment at which the device holds most
            amount = own[here]
            at_s = np.concatenate([timeline.start_s[here], last_s[here]])
            change = np.concatenate([amount, -amount])
            order = np.argsort(at_s, kind="stable")
            moment_s = float(at_s[order[np.cumsum(change[order]).argmax()]])
            here = here[(timeline.start_s[here] <= moment_s) & (moment_s < last_s[here])]
            held[here] += own[here]
    return held


def spill_blocks(search: Search) -> None:
    """Bring the fastest layer-wise split within memory, if it does not fit and is faster than the incumbent; once.

    Ends with the budget. The evaluator is a simulator.
    """
    if search.done or SPILLING in search.authors:
        return
    search.authors.add(SPILLING)
    wish = _wish(search)
    timeline = None if wish is None or search.done else search.timeline(wish)
    if wish is not None and timeline is not None:
        problem = search.problem
        goal = min(FINE, max(problem.topology.p, problem.graph.n // MEMBERS))
        levels = hierarchy(problem, least=goal, held=held_at_peaks(problem, timeline))
        spill(search, nearest(levels, goal), wish)


def _wish(search: Search) -> Placement | None:
    """Return the fastest layer-wise split with memory left aside, if it does not fit and is faster than the incumbent.

    None if there is none.
    """
    problem = search.problem
    work = work_of(problem)
    device = np.stack([home[work.group] for home in blocks(problem, work)])
    device = device[problem.allowed[np.arange(problem.graph.n), device].all(axis=1)]
    simulation = search.simulate(device, author="expert")
    if not simulation.value_s.size:
        return None
    best = int(simulation.value_s.argmin())
    faster = simulation.over_bytes[best] > 0 and simulation.value_s[best] < search.best_s
    return Placement(device[best], problem.topology.names) if faster else None


def spill(search: Search, level: Level, placement: Placement) -> None:
    """Evaluate placements made from one that does not fit, by ever more of its work moved to devices with room.

    What is moved are the clusters of a level, as far as they lie on one device, in the order of their first operations:
    a stretch of a device's work stays, the next one goes to the device with the most room. So few tensors cross, and
    what is made in one stretch is read in it.
    """
    problem, names = search.problem, search.problem.topology.names
    for _ in range(ROUNDS):
        timeline = None if search.done else search.timeline(placement)
        if timeline is None:
            return
        held = held_at_peaks(problem, timeline)
        tried: list[tuple[int, int, Placement]] = []
        for fill in FILLS:
            moved = Placement(_moved(search, level, placement, held, fill), names)
            over = search.simulate(moved.device[None]).over_bytes.tolist()
            if not over or over[0] == 0:
                return
            tried.append((over[0], len(tried), moved))
        placement = min(tried)[2]


def _moved(search: Search, level: Level, placement: Placement, held: Int64, fill: float) -> Int32:
    """Return int32 [n], the devices after every device that holds too much has spilled what exceeds a share of it."""
    problem = search.problem
    p = problem.topology.p
    stretch = Grouping.of_labels(level.groups.grouping.group.astype(np.int64) * p + placement.device)
    first = np.unique(stretch.group, return_index=True)[1]
    home = np.ascontiguousarray(placement.device[first])
    order = np.argsort(level.first[level.groups.grouping.group[first]], kind="stable")
    groups = level.groups
    room = np.where(groups.room_bytes < UNLIMITED, fill * groups.room_bytes, groups.room_bytes).astype(np.int64)
    return _spilled(home, order, sum_per_group(held, stretch), room, problem.group_allowed(stretch))[stretch.group]


@compiled
def _spilled(home: Int32, order: Int64, held: Int64, room: Int64, allowed: Bool) -> Int32:
    """Return int32 [k], the devices: of each that holds more than its room, what comes first in order stays."""
    device, free, over = home.copy(), room.copy(), np.zeros(room.size, np.bool_)
    for i in range(home.size):
        free[home[i]] -= held[i]
    for d in range(room.size):
        over[d] = free[d] < 0
        if over[d]:
            free[d] = room[d]
    target = np.arange(room.size).astype(np.int32)
    for i in order:
        d = home[i]
        if not over[d]:
            continue
        goal = target[d]
        if free[goal] < held[i]:
            best = -1
            for e in range(room.size):
                if allowed[i, e] and not (over[e] and e != d) and (best < 0 or free[e] > free[best]):
                    best = e
            goal = best if best >= 0 else goal
        if not allowed[i, goal]:
            goal = d
        device[i] = target[d] = goal
        free[goal] -= held[i]
    return device
