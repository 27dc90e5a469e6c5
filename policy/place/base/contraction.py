"""Learned contraction of a problem: groups of operations that good placements probably keep together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.core.arrays import Float64, Int64
from pipeline.core.graph import Grouping
from pipeline.core.problem import Problem
from pipeline.shared.contraction.edge_figures import EdgeFigures
from pipeline.shared.contraction.edge_network import edge_logits, shipped_weights
from pipeline.shared.contraction.merging import MergeLimits, contracted
from policy.place.base.groups import UNLIMITED, Groups
from policy.place.base.hierarchy import Level, work_of
from policy.place.base.hierarchy import contracted as contracted_level

BALANCE = 2.0  # most work of a group over the mean, where nobody says
SMALL = 0.1  # of the mean work, what a group is at least if it has a neighbour to join
MEMORY = 4  # groups that fit beside one another into the smallest device at least


def edge_scores(problem: Problem) -> Float64:
    """Return float64 [m], the log-odds that both ends of an edge share a device in a good placement."""
    scores: Float64 = edge_logits(shipped_weights(), EdgeFigures.of_problem(problem, work_of(problem)))
    return scores


def contraction(problem: Problem, *, groups: int, balance: float = BALANCE) -> Grouping:
    """Return about so many groups of a problem's operations, or fewer; their quotient may have cycles.

    balance: work of a group over the mean, at most, unless what must share a device is more.
    """
    least = problem.derived(Groups.of)
    work_s = np.bincount(least.grouping.group, weights=work_of(problem), minlength=least.k).astype(np.float64)
    room = int(least.room_bytes.min())
    mean_s = float(work_s.sum()) / groups
    limits = MergeLimits.balanced(work_s, groups=groups, balance=balance)._replace(
        held=least.held_bytes.astype(np.float64),
        held_cap=float(room if room >= UNLIMITED else room // MEMORY),
        allowed=np.array(least.allowed),
    )
    ends: Int64 = least.grouping.group[problem.graph.edges].astype(np.int64)
    score = problem.derived(edge_scores)
    merged = contracted(ends, score, limits)
    # What is left over of little work joins its neighbours: each group is one more decision to learn.
    rest = limits._replace(groups=1, work_cap=0.0, light=SMALL * mean_s)
    return least.grouping.then(contracted(ends, score, rest, begin=merged))


def contraction_levels(finest: Level, counts: Sequence[int]) -> list[Level]:
    """Return the clusters of a level that contraction makes of its groups, about so many each; none twice."""
    own, levels = finest.groups, list[Level]()
    for groups in sorted(counts):
        found = contraction(own.problem, groups=groups)
        if levels and found.k <= levels[-1].k:
            continue
        label = np.zeros(own.k, np.int32)
        label[own.grouping.group] = found.group
        levels.append(contracted_level(finest, label, found.k))
    return levels
