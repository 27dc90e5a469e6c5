"""The objective of pipelines: the largest load of a device."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from pipeline.core.arrays import Float64
from pipeline.core.problem import Problem
from pipeline.core.simulation import PipelineModel
from policy.place.base.groups import Groups
from policy.place.base.search import Search
from policy.place.exact.pipelined.cpsat_pipeline import pipelined
from policy.place.exact.pipelined.dp import Dp
from policy.place.exact.pipelined.dpl import Dpl, begin_with_orders
from policy.place.exact.pipelined.milp import Milp
from policy.place.exact.shared.bounds import Bound
from policy.place.exact.shared.cpsat_models import ConstraintProgram
from policy.place.exact.shared.elements import leaves_folded
from policy.place.exact.shared.objectives import Hint, Member, Unknown
from policy.place.exact.shared.paths import BoundInputs

LARGEST = 24  # groups per device that are counted at most
MOST = 1000  # groups that are counted at most
HALVINGS = 40


def counting_bound(group_s: Float64, low_s: float) -> float:
    """Return seconds, at least `low_s`, below which no division of k groups over p devices keeps all loads.

    group_s: float64 [k, p], inf where not allowed. low_s: what is proven. Of the h largest groups a device that works
    at most T seconds holds no more than the number of the smallest ones that fit into T; where these numbers add up to
    less than h for some h, T is too little.

    Source: the bound of identical parallel machines in Dell'Amico, Martello, ORSA Journal on Computing 7, 1995, for
    devices that differ.
    """
    k, p = group_s.shape
    if k == 0 or p < 2:
        return low_s
    kinds, count = np.unique(group_s, axis=1, return_counts=True)
    largest_first = np.argsort(-group_s.min(axis=1), kind="stable")[: min(LARGEST * p, MOST)]
    prefix = [_smallest_sums(kinds[largest_first, q]) for q in range(kinds.shape[1])]

    def too_little(seconds: float) -> bool:
        held = sum(c * (sums <= seconds).sum(axis=1) for c, sums in zip(count, prefix, strict=True))
        return bool(np.any(held < np.arange(1, largest_first.size + 1)))

    if not too_little(low_s):
        return low_s
    high_s = 2 * low_s if low_s > 0 else float(group_s.min(axis=1).sum())
    if too_little(high_s):
        return high_s
    for _ in range(HALVINGS):
        middle_s = (low_s + high_s) / 2
        if too_little(middle_s):
            low_s = middle_s
        else:
            high_s = middle_s
    return low_s


def _smallest_sums(work_s: Float64) -> Float64:
    """Return float64 [h, h], for the first 1, 2, ... of h groups the sums of the 1, 2, ... smallest; inf if there are
    not so many.
    """
    h = work_s.size
    sums = np.full((h, h), np.inf)
    smallest = np.zeros(0)
    for i in range(h):
        smallest = np.insert(smallest, int(np.searchsorted(smallest, work_s[i])), work_s[i])
        sums[i, : smallest.size] = np.cumsum(smallest)
    return sums


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
