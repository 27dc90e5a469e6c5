"""Groupings whose groups all have a device that may run them."""

from __future__ import annotations

import numpy as np

from pipeline.core.graph import Grouping
from pipeline.core.problem import Problem
from pipeline.shared.partition import join, tied


def grouping_of(problem: Problem) -> Grouping:
    """Return the problem's own grouping as devices allow, see `placeable`."""
    return problem.derived(_own)


def atoms_of(problem: Problem) -> Grouping:
    """Return the finest grouping there is: operations alone, but those that are tied together."""
    return problem.derived(_finest)


def _own(problem: Problem) -> Grouping:
    return placeable(problem, problem.grouping)


def _finest(problem: Problem) -> Grouping:
    return placeable(problem, Grouping.identity(problem.graph.n))


def placeable(problem: Problem, grouping: Grouping) -> Grouping:
    """Return the grouping changed as little as the devices demand.

    Groups that hold operations tied to one another are one. A group whose members have no device in common is taken
    apart into sets of tied operations, and such a set, if it has none either, into its operations.
    """
    alone = Grouping.identity(grouping.n)
    units = tied(problem.graph) if np.any(problem.graph.tie >= 0) else alone
    if units.k < units.n:
        grouping = _split_homeless(problem, join(grouping, units), units)
    return _split_homeless(problem, grouping, alone)


def _split_homeless(problem: Problem, grouping: Grouping, parts: Grouping) -> Grouping:
    """Return the grouping with each group that no device may run replaced by the `parts` it consists of."""
    homed = np.any(problem.group_allowed(grouping)[grouping.group], axis=1)  # [n]
    if homed.all():
        return grouping
    return Grouping.of_labels(np.where(homed, grouping.group, grouping.k + parts.group))
