"""Everything on one device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pipeline.core.placement import Placement
from pipeline.core.problem import Problem
from policy.place.search import Method, Search, grouping_of


@dataclass(frozen=True, slots=True)
class Single(Method):
    """Evaluates each device alone: what every other placer must beat.

    A device that may not run everything gets all groups it may run, the others go to the device that runs them
    fastest, or to the first one allowed where no costs are known.
    """

    version: ClassVar[int] = 1

    def run(self, search: Search, *, seed: int) -> None:
        """Return the single-device placements, best first; nothing is random."""
        problem = search.problem
        search.evaluate([mostly_on(problem, device) for device in range(problem.topology.p)])


def mostly_on(problem: Problem, device: int) -> Placement:
    """Return the placement of every group on `device` where it is allowed, else where it is fastest."""
    grouping = grouping_of(problem)
    allowed = problem.group_allowed(grouping)
    time_s = np.zeros(allowed.shape)
    if problem.costs is not None:
        np.add.at(time_s, grouping.group, problem.costs.op_s)
    elsewhere = np.where(allowed, np.minimum(time_s, np.finfo(np.float64).max), np.inf).argmin(axis=1)
    chosen = np.where(allowed[:, device], device, elsewhere)
    return Placement(chosen.astype(np.int32), problem.topology.names).lift(grouping)
