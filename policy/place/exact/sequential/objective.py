"""The objective of devices that work one after another: everything adds up."""

from __future__ import annotations

from typing import ClassVar

from pipeline.core.problem import Problem
from pipeline.core.simulation import SequentialModel
from pipeline.shared.feasibility import finest_grouping
from policy.place.exact.sequential.min_cut import MinCut
from policy.place.exact.shared.bounds import CUT_PER_SECOND, Bound
from policy.place.exact.shared.nets import Cut
from policy.place.exact.shared.objectives import Member, Unknown
from policy.place.exact.shared.paths import BoundInputs


class Sum(Unknown[SequentialModel]):
    """Operations, transfers and launches of sub-graphs add up."""

    exact: ClassVar[bool] = True

    @property
    def members(self) -> tuple[Member, ...]:
        """Return minimum cuts."""
        return (Member("min_cut", MinCut(), 0.3, large=True, two_devices=True),)

    def bounds(self, problem: Problem, execution: SequentialModel, *, seconds: float, one_to_one: bool) -> list[Bound]:
        """Return the least work, and what a cut or its relaxation proves."""
        return sum_bounds(problem, seconds=seconds, one_to_one=one_to_one)

    def constant_s(self, problem: Problem) -> float:
        """Return the cheapest launch: every placement has one sub-graph."""
        return 0.0 if problem.costs is None else float(problem.costs.launch_s.min())


SUM = Sum()


def sum_bounds(problem: Problem, *, seconds: float, one_to_one: bool) -> list[Bound]:
    """Return bounds of the sum of operations, transfers and launches; see `proofs.lower_bound`."""
    work = problem.derived(BoundInputs.of)
    if problem.costs is None:
        raise ValueError("a problem without costs")
    launch_s = float(problem.costs.launch_s.min())
    bounds = [(float(work.group_s.min(axis=1).sum()) + launch_s, "work")]
    if one_to_one and problem.topology.p > 1:
        cut = Cut.of(problem, finest_grouping(problem))
        if problem.topology.p > 2:
            bounds.append((cut.relaxed_s(seconds=seconds) + launch_s, "linear relaxation"))
        elif problem.graph.n <= CUT_PER_SECOND * seconds:
            bounds.append((cut.two_devices()[1] + launch_s, "minimum cut"))
    return bounds
