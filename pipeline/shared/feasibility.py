"""Groupings whose groups all have a device that may run them."""

from __future__ import annotations

import numpy as np

from pipeline.core.graph import Grouping
from pipeline.core.problem import Problem
from pipeline.shared.partition import colocation_grouping, join_groupings


def feasible_grouping(problem: Problem) -> Grouping:
    """Return the problem's own grouping as devices allow, see `made_feasible`."""
    return problem.derived(_own_grouping)


def finest_grouping(problem: Problem) -> Grouping:
    """Return the finest grouping there is: operations alone, but for those that are colocated."""
    return problem.derived(_finest_grouping)


def _own_grouping(problem: Problem) -> Grouping:
    return made_feasible(problem, problem.grouping)


def _finest_grouping(problem: Problem) -> Grouping:
    return made_feasible(problem, Grouping.identity(problem.graph.n))


def made_feasible(problem: Problem, grouping: Grouping) -> Grouping:
    """Return the grouping changed as little as the devices demand.

    Groups that hold operations under one colocation constraint are one. A group whose members have no device in common
    is taken apart into sets of colocated operations, and such a set, if it has none either, into its operations.
    """
    alone = Grouping.identity(grouping.n)
    units = colocation_grouping(problem.graph) if np.any(problem.graph.colocate >= 0) else alone
    if units.k < units.n:
        grouping = _split_unsupported(problem, join_groupings(grouping, units), units)
    return _split_unsupported(problem, grouping, alone)


def _split_unsupported(problem: Problem, grouping: Grouping, parts: Grouping) -> Grouping:
    """Return the grouping with each group that no device may run replaced by the `parts` it consists of."""
    if problem.allowed.all():
        return grouping
    has_device = np.any(problem.group_allowed(grouping)[grouping.group], axis=1)  # [n]
    if has_device.all():
        return grouping
    return Grouping.of_labels(np.where(has_device, grouping.group, grouping.k + parts.group))
