"""What single moves cost: every group on every other device, all else as it is."""

from __future__ import annotations

import math

import numpy as np
from typing_extensions import TypedDict

from pipeline.core.arrays import Float64
from pipeline.core.deadline import NEVER, Deadline
from pipeline.core.figures import finite_or_none
from pipeline.core.graph import Grouping, row_ptr
from pipeline.core.placement import Placement
from pipeline.core.problem import Problem
from pipeline.core.simulation import Moves
from pipeline.core.stages import Simulator
from pipeline.shared.feasibility import finest_grouping

WORK = 4_000_000  # operations simulated at most, about a second
TOGETHER = 64  # groups that are asked about between two looks at the clock


class RegretRecord(TypedDict):
    """What a group's second-best device costs, all else as it is: `cost_s` more; None where no other may hold it."""

    operations: list[str]
    device: str
    second: str | None
    cost_s: float | None


def regrets(
    problem: Problem, simulator: Simulator, placement: Placement, *, deadline: Deadline = NEVER
) -> list[RegretRecord]:
    """Return what the second-best device of each group costs, most first; of those that take longest if they are many.

    A group is an operation, or those that share a colocation constraint. Groups that may go nowhere else are left out.
    The simulator counts nothing.

    deadline: after which no further groups are asked about.
    """
    grouping, names = finest_grouping(problem), problem.topology.names
    now_s = simulated_s(simulator.fork(), placement)
    if not math.isfinite(now_s):
        return []
    busy_s = np.zeros(grouping.k)
    if problem.costs is not None:
        np.add.at(busy_s, grouping.group, problem.costs.op_s[np.arange(problem.graph.n), placement.device])
    choice = np.flatnonzero(problem.group_allowed(grouping).sum(axis=1) > 1)
    most = WORK // max(1, problem.graph.n * (problem.topology.p - 1))
    asked = choice[np.argsort(-busy_s[choice], kind="stable")[:most]]
    asking, known = simulator.fork(), list[Float64]()
    for begin in range(0, asked.size, TOGETHER):
        known.append(move_values(problem, asking, placement, grouping, asked[begin : begin + TOGETHER]))
        if deadline.passed:
            break
    value_s = np.concatenate([np.empty((0, problem.topology.p)), *known])
    asked = asked[: len(value_s)]
    best, second_s = value_s.argmin(axis=1), value_s.min(axis=1)
    members: dict[int, list[str]] = {int(g): [] for g in asked}
    for name, g in zip(problem.graph.names, grouping.group.tolist(), strict=True):
        if g in members:
            members[g].append(name)
    first = np.unique(grouping.group, return_index=True)[1]
    order = np.argsort(-second_s, kind="stable")
    return [
        {
            "operations": members[int(asked[i])],
            "device": names[placement.device[first[asked[i]]]],
            "second": names[best[i]] if math.isfinite(second_s[i]) else None,
            "cost_s": finite_or_none(float(second_s[i]) - now_s),
        }
        for i in order.tolist()
    ]


def move_values(
    problem: Problem, simulator: Simulator, placement: Placement, grouping: Grouping, asked: np.ndarray
) -> Float64:
    """Return float64 [len(asked), p], the seconds of the placement with one group moved; inf where it may not be.

    grouping: groups that are on one device each. asked: int64, those that are moved. The entry of the device where a
    group is now is inf as well.
    """
    p = problem.topology.p
    ptr, member = row_ptr(grouping.group, grouping.k), np.argsort(grouping.group, kind="stable").astype(np.int32)
    each = np.repeat(asked, p)  # [r], the group of each move
    sizes = np.diff(ptr)[each]
    node = np.concatenate([member[ptr[g] : ptr[g + 1]] for g in each.tolist()]) if each.size else member[:0]
    none = np.full(each.size, -1, np.int32)
    device = np.tile(np.arange(p, dtype=np.int32), asked.size)
    never_s = np.full(each.size, -math.inf)  # no move is taken
    moves = Moves(np.r_[0, np.cumsum(sizes)], node, device, none, np.zeros(each.size), never_s)
    tried = simulator.local_search(placement, moves, allowed=problem.allowed, limit=each.size)
    value_s: Float64 = np.where(tried.tried, tried.value_s, math.inf).reshape(asked.size, p)
    return value_s


def simulated_s(simulator: Simulator, placement: Placement) -> float:
    """Return the seconds of a placement; inf if it does not fit."""
    priority = None if placement.priority is None else placement.priority[None]
    simulated = simulator.simulate(placement.device[None], priority)
    return float(simulated.value_s[0]) if simulated.over_bytes[0] == 0 else math.inf
