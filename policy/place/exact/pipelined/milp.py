"""Mixed-integer programming: the best pipeline of a small graph, with proof."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from pipeline.core.errors import UsageError
from pipeline.core.params import param
from policy.place.base.groups import Groups, mostly_on
from policy.place.base.search import Method, Search
from policy.place.exact.pipelined.cpsat_pipeline import Pieces
from policy.place.exact.pipelined.dpl import begin_with_orders
from policy.place.exact.pipelined.milp_model import SolverEffort, solve_loads
from policy.place.exact.shared.bounds import SAFETY
from policy.place.exact.shared.elements import leaves_folded
from policy.place.exact.shared.proofs import is_finest, prove_bound

SLICE_S = 10.0  # seconds of a first try; every further one takes twice as long
MARGIN = 0.95  # the share of the time left that the solver may use


@dataclass(frozen=True, slots=True)
class Milp(Method):
    """Solves the division of operations into stages of least largest load as a mixed-integer program, by HiGHS.

    The rules are those of the simulator `pipelined`, contiguity included; under any other the answer is as good as its
    evaluator finds it. The solver looks for what is better than the incumbent, with all operations as one that nothing
    better parts. It cannot be interrupted, and so is asked again and again, each time for longer.

    Programs above `largest` are left alone. Without a time limit the effort is counted in nodes of the solver's search,
    in proportion to the evaluations left, so that equal seeds give equal answers.

    Source: Tarnawski et al., Efficient Algorithms for Device Placement of DNN Graph Operators, NeurIPS 2020, section
    4.1 and 5.2; Huangfu and Hall, Mathematical Programming Computation 10, 2018 (HiGHS).
    """

    version: ClassVar[int] = 1
    placers: ClassVar[tuple[str, ...]] = ("dpl",)

    largest: int = param(20_000, "programs of more variables are skipped")
    effort: float = param(1.0, "without a time limit: nodes of the solver's search per evaluation left")

    def __post_init__(self) -> None:
        if self.largest < 0 or not self.effort > 0:
            raise UsageError(f"{self} has a parameter out of range.", "Use largest >= 0 and effort > 0.")

    def run(self, search: Search, *, seed: int) -> None:
        """Note the bound, and ask about everything that the solver finds."""
        problem = search.problem
        if search.left <= 0 or problem.costs is None:
            return
        groups = problem.derived(Groups.of)
        if search.best is None:  # no device holds everything
            search.evaluate([groups.placement(groups.repaired(groups.devices_of(mostly_on(problem, 0))))])
        if search.execution is not None and search.execution.stage_rules is not None:
            begin_with_orders(search, seed=0)
        bound_s = prove_bound(search)
        seconds = SLICE_S
        while not search.done and not search.stopped():
            left_s = MARGIN * search.left_s
            given_s = left_s if left_s < 2 * seconds else seconds
            if self._solved(search, bound_s, given_s) or math.isinf(left_s):
                return
            seconds *= 2

    def _solved(self, search: Search, bound_s: float, seconds: float) -> bool:
        """Let the solver look once; return whether there is nothing left to find."""
        problem = search.problem
        rules = None if search.execution is None else search.execution.stage_rules
        groups = problem.derived(leaves_folded)
        device = None if search.best is None else groups.devices_of(search.best)
        known_s = math.inf if rules is None else search.best_s
        pieces = Pieces.of(problem, groups, device, known_s)
        if pieces.group_s.size + pieces.charges.size.size * problem.topology.p > self.largest:
            return True
        convex = rules is not None and rules.contiguity != "free"
        effort = SolverEffort(seconds, math.ceil(self.effort * search.left) if math.isinf(search.left_s) else None)
        solved = solve_loads(problem, pieces, known_s, bound_s, effort, convex=convex)
        if solved.device is not None:
            search.evaluate([pieces.groups.placement(solved.device)])
        if rules is not None and is_finest(search):
            search.prove(solved.bound_s * (1 - SAFETY), "milp")
        return solved.complete
