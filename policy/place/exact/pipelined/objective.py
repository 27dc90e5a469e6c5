"""The objective of pipelines: the largest load of a device."""

from __future__ import annotations

from typing import ClassVar

from pipeline.core.problem import Problem
from pipeline.core.simulation import PipelineModel
from policy.place.base.groups import Groups
from policy.place.base.search import Search
from policy.place.exact.pipelined.counting import counting_bound
from policy.place.exact.pipelined.cpsat_pipeline import pipelined
from policy.place.exact.pipelined.dp import Dp
from policy.place.exact.pipelined.dpl import Dpl, begin_with_orders
from policy.place.exact.pipelined.milp import Milp
from policy.place.exact.shared.bounds import Bound
from policy.place.exact.shared.cpsat_models import ConstraintProgram
from policy.place.exact.shared.elements import leaves_folded
from policy.place.exact.shared.objectives import Hint, Member, Unknown
from policy.place.exact.shared.paths import BoundInputs


class LargestLoad(Unknown[PipelineModel]):
    """The largest load of a device, what it sends and receives included."""

    exact: ClassVar[bool] = True

    @property
    def members(self) -> tuple[Member, ...]:
        """Return stages of orders and of ideals, and the mixed-integer program."""
        return (
            Member("dpl", Dpl(), 0.2, large=True),
            Member("dp", Dp(workers=1), 0.1),
            Member("milp", Milp(), 0.1, solver=True),
        )

    def begin(self, search: Search, *, seed: int) -> None:
        """Ask about stages of a few orders."""
        begin_with_orders(search, seed=seed)

    def bounds(self, problem: Problem, execution: PipelineModel, *, seconds: float, one_to_one: bool) -> list[Bound]:
        """Return the least largest load, and the largest group."""
        return load_bounds(problem, seconds=seconds)

    def groups(self, problem: Problem) -> Groups:
        """Return the problem's groups, idle leaves folded into their neighbours again and again."""
        return problem.derived(leaves_folded)

    def program(
        self, problem: Problem, groups: Groups, execution: PipelineModel, hint: Hint, bound_s: float
    ) -> ConstraintProgram | None:
        """Return the program of loads, of groups that nothing faster than the hint parts."""
        rules = {"convex": execution.contiguity != "free", "apart": execution.passes == "apart"}
        return pipelined(problem, groups, hint.device, hint.value_s, bound_s, **rules)

    def below(
        self, problem: Problem, groups: Groups, execution: PipelineModel, hint: Hint, value_s: float
    ) -> ConstraintProgram | None:
        """Return the program of loads below one: more is known to be together then, and there is nothing to balance."""
        if hint.device is None or execution.passes == "apart":
            return None
        program = pipelined(problem, groups, hint.device, value_s, 0.0, convex=execution.contiguity != "free")
        program.model.clear_hints()
        program.model.clear_objective()
        return program


LARGEST_LOAD = LargestLoad()


def load_bounds(problem: Problem, *, seconds: float) -> list[Bound]:
    """Return bounds of the largest load of a device."""
    work = problem.derived(BoundInputs.of)
    load_s, _ = work.load(0.0, seconds)
    largest_s = float(work.group_s.min(axis=1).max())
    counted_s = counting_bound(work.group_s, max(load_s, largest_s))
    return [(load_s, "load"), (largest_s, "largest unit"), (counted_s, "number of large units")]
