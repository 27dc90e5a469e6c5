"""What is known of the optimum of a search: its lower bound, proven once per problem, and what that may assume."""

from __future__ import annotations

import math
import time
from typing import NamedTuple

from pipeline.core.problem import Problem
from pipeline.core.simulation import ExecutionModel, Timeline
from pipeline.shared.feasibility import finest_grouping
from policy.place.base.groups import Groups
from policy.place.base.search import Search
from policy.place.exact.shared.bounds import CUT_PER_SECOND, SAFETY
from policy.place.exact.shared.objectives import objective_of

SHARE = 0.1  # of a search's time that goes to its bound at most
LONGER = 2.0  # times as many seconds that a bound which was not ready must be offered to be proven again


def lower_bound(
    problem: Problem, execution: ExecutionModel | None, *, seconds: float = 2.0, one_to_one: bool = False
) -> tuple[float, str]:
    """Return (seconds that no allowed placement falls below, what proves it); 0 where nothing can be proven.

    Proven once per problem, and again if it was not ready and is offered a multiple of the time.

    seconds: for the parts that improve with time. one_to_one: whether every node of the problem is one operation of
    the simulator. A node that stands for several may start its first operation before all its inputs are there, so
    without it only work is counted, and neither paths nor transfers.
    """
    if execution is None or problem.costs is None or problem.graph.n == 0:
        return 0.0, ""
    known = problem.derived(_no_proofs)
    proof = known.get((execution, one_to_one))
    if proof is None or proof.improves_in(seconds):
        began_s = time.monotonic()
        objective = objective_of(execution)
        bounds = objective.bounds(problem, execution, seconds=seconds, one_to_one=one_to_one)
        bound_s, by = max(bounds, default=(0.0, ""))
        ready = time.monotonic() - began_s < seconds and problem.graph.n <= CUT_PER_SECOND * seconds
        proof = Proof(bound_s * (1 - SAFETY), by, math.inf if ready else seconds)
        known[execution, one_to_one] = proof
    return proof.bound_s, proof.by


class Proof(NamedTuple):
    """A lower bound; seconds: what it was given if it was not ready then, inf if more time would change nothing."""

    bound_s: float
    by: str
    seconds: float

    def improves_in(self, seconds: float) -> bool:
        """Return whether it is worth proving again with so many seconds."""
        return seconds > LONGER * self.seconds


def _no_proofs(problem: Problem) -> dict[tuple[ExecutionModel, bool], Proof]:
    """Return where the proofs of a problem are noted, by rules and by whether its nodes are operations."""
    return {}


def prove_bound(search: Search, *, seconds: float = 2.0) -> float:
    """Note the lower bound of a search's problem and return it, in seconds; 0 where the evaluator only measures."""
    seconds = max(0.0, min(seconds, search.left_s * SHARE))
    bound_s, by = lower_bound(search.problem, search.execution, seconds=seconds, one_to_one=one_to_one(search))
    search.prove(bound_s, by)
    return bound_s


def one_to_one(search: Search) -> bool:
    """Return whether every node of the problem is known to be one operation of the simulator; see `timeline_of`."""
    timeline = timeline_of(search)
    return timeline is not None


def is_finest(search: Search) -> bool:
    """Return whether its nodes are operations of the simulator, parted wherever the problem's constraints allow it."""
    problem = search.problem
    return problem.derived(Groups.of).k == finest_grouping(problem).k and one_to_one(search)


def timeline_of(search: Search) -> Timeline | None:
    """Return when everything happens under the best placement, if there is one; see `Search.timeline`."""
    return None if search.best is None else search.timeline(search.best)
