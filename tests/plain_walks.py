"""A walk by evaluating one placement after another, as the docstring of `LocalSearch` says; the reference for compiled
walks.
"""

from __future__ import annotations

import math

import numpy as np

from pipeline.core.placement import Placement
from pipeline.core.simulation import LocalSearch, Moves
from pipeline.core.stages import Simulator


def stepwise(simulator: Simulator, start: Placement, moves: Moves, allowed: np.ndarray, limit: int) -> LocalSearch:
    """Return where moves lead from a placement."""

    def cost(placement: Placement) -> tuple[float, float, float]:
        found = simulator.simulate(
            placement.device[None], None if placement.priority is None else placement.priority[None]
        )
        value_s, over = float(found.value_s[0]), float(found.over_bytes[0])
        if simulator.execution.kind == "listsched" and math.isinf(value_s):
            over = math.inf  # a placement that cannot run holds nothing
        return value_s, over, math.inf if over else value_s

    tried, taken, value_s = np.zeros(moves.r, bool), np.zeros(moves.r, bool), np.full(moves.r, math.nan)
    placement, best = start, start
    (plan_s, plan_over, best_s) = cost(start)
    for i in range(moves.r):
        moved = moves.applied(i, placement)
        nodes = moves.node[moves.ptr[i] : moves.ptr[i + 1]]
        if tried.sum() == limit or moved.key() == placement.key() or not allowed[nodes, moved.device[nodes]].all():
            continue
        moved_s, over, value_s[i] = cost(moved)
        tried[i] = True
        if value_s[i] < best_s:
            best, best_s = moved, float(value_s[i])
        if over == plan_over:
            accepted = moved_s <= plan_s + moves.threshold_s[i]
        elif math.isinf(moves.price_s_per_byte) or math.isinf(max(over, plan_over)):
            accepted = over < plan_over
        else:
            accepted = moved_s + moves.price_s_per_byte * (over - plan_over) <= plan_s + moves.threshold_s[i]
        if accepted:
            taken[i], placement, plan_s, plan_over = True, moved, moved_s, over
    return LocalSearch(tried, value_s, taken, placement, math.inf if plan_over else plan_s, best, best_s)
