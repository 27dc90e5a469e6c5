"""Placements that stay fast where operations do not take what was said: judged by a percentile over disturbed costs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from typing_extensions import TypedDict

from pipeline.core.arrays import Float64
from pipeline.core.devices import CostTable, Topology
from pipeline.core.errors import UsageError
from pipeline.core.measurement import Prediction, seconds_of
from pipeline.core.placement import Placement
from pipeline.core.problem import Budget, Problem
from pipeline.core.stages import Answer, Candidate, Simulator
from pipeline.placing.near import Place
from pipeline.placing.single_moves import WORK, move_values, simulated_s
from pipeline.shared.feasibility import finest_grouping

QUANTILE = 0.9
DRAWS = 32  # disturbances that placements are judged by
NOMINAL, OTHERS = 0.5, (0.1,)  # shares of the budget: for the costs as they are, and for a disturbance each
ASKED = 8  # groups whose moves are judged before the best is taken
FIRST = 1000  # seeds of disturbances that are searched for, apart from those that judge


class RobustRecord(TypedDict):
    """A placement under disturbed costs, beside the best for the costs as they are; docs/search.md tells the keys."""

    residual: float
    quantile: float
    draws: int
    value_s: float
    nominal_s: float
    nominal_value_s: float
    differs: int


def disturbed_costs(costs: CostTable, topology: Topology, sd: float, *, seed: int) -> CostTable:
    """Return costs whose logarithms move by normal errors, the same for all devices of a kind; the mean time stays.

    sd: the standard deviation of the errors.
    """
    n = len(costs.names)
    rng = np.random.default_rng([seed, n])
    kinds = [device.kind for device in topology.devices]
    error = {kind: rng.normal(-(sd**2) / 2, sd, n) for kind in dict.fromkeys(kinds)}
    return replace(costs, op_s=costs.op_s * np.exp(np.stack([error[kind] for kind in kinds], axis=1)))


def percentile(value_s: Float64) -> Float64:
    """Return what a share QUANTILE of the seconds does not exceed, float64 [draws, ...] to [...].

    >>> float(percentile(np.arange(1.0, 11.0)))
    9.0
    """
    rank = math.ceil(QUANTILE * len(value_s)) - 1
    least: Float64 = np.sort(value_s, axis=0)[rank]
    return least


def place_robust(
    problem: Problem,
    residual: float,
    bind: Callable[[Problem], Simulator],
    place: Place,
    budget: Budget,
    *,
    seed: int,
) -> tuple[Answer, int, RobustRecord]:
    """Return the placement of the least 90th percentile over disturbed costs, evaluations, and how it compares.

    The placer searches for the costs as they are and for some disturbances. Of all that it answers, what other
    disturbances judge best goes on, one group after another, while that improves it. Bounds are of the costs as they
    are.

    residual: the standard deviation of the logarithm of costs. bind: makes a simulator of a problem. place: asks the
    placer.

    Raises:
        UsageError: the problem has no costs.
    """
    costs, begun = problem.costs, time.monotonic()
    if costs is None:
        raise UsageError("Nothing is known of what operations take.", "Give --costs.")
    nominal, spent = place(problem, _part(budget, NOMINAL), seed)
    nominally = bind(problem)
    pool = {c.placement.key(): c for c in nominal.candidates}
    for d in np.flatnonzero(problem.allowed.all(axis=0)).tolist():  # what runs on one device alone cannot be reached
        alone = Placement.single(problem.graph.n, d, problem.topology.names)  # by single moves
        pool.setdefault(alone.key(), Candidate(alone, Prediction(simulated_s(nominally, alone)), "single"))
    for i, share in enumerate(OTHERS, start=FIRST):
        drawn = disturbed_costs(costs, problem.topology, residual, seed=i)
        answer, asked = place(problem.on(costs=drawn), _part(budget, share), seed + i)
        pool.setdefault(answer.best.placement.key(), answer.best)
        spent += asked
    judges = [
        bind(problem.on(costs=disturbed_costs(costs, problem.topology, residual, seed=draw))) for draw in range(DRAWS)
    ]

    def left() -> float:
        """Return how many evaluations the judges may make; inf where time is not up, without a limit on evaluations."""
        if budget.seconds is not None and time.monotonic() - begun >= budget.seconds:
            return 0.0
        in_all = spent + sum(judge.evaluations for judge in judges)
        return math.inf if budget.evaluations is None else budget.evaluations - in_all

    judged: dict[bytes, float] = {}
    for key, candidate in pool.items():
        if not judged or left() >= DRAWS:
            judged[key] = float(percentile(np.array([simulated_s(judge, candidate.placement) for judge in judges])))
    first, best = nominal.best, pool[min(judged, key=lambda key: judged[key])]
    placement, best_s = _descended(problem, judges, best.placement, judged[best.placement.key()], left, seed)
    seconds = simulated_s(nominally, placement)
    record: RobustRecord = {
        "residual": residual,
        "quantile": QUANTILE,
        "draws": DRAWS,
        "value_s": best_s,
        "nominal_s": seconds_of(first.result),
        "nominal_value_s": judged[first.placement.key()],
        "differs": int(np.count_nonzero(placement.device != first.placement.device)),
    }
    spent += nominally.evaluations + sum(judge.evaluations for judge in judges)
    chosen = Candidate(placement, Prediction(seconds), best.found_by)
    return replace(nominal, candidates=(chosen,), evaluations=spent), spent, record


def _part(budget: Budget, share: float) -> Budget:
    """Return a share of a budget."""
    evaluations = None if budget.evaluations is None else max(1, int(share * budget.evaluations))
    return Budget(evaluations, None if budget.seconds is None else share * budget.seconds, budget.gap)


def _descended(
    problem: Problem,
    judges: Sequence[Simulator],
    placement: Placement,
    value_s: float,
    left: Callable[[], float],
    seed: int,
) -> tuple[Placement, float]:
    """Return the placement and its percentile after the best single moves, one after another, while they help."""
    grouping, p = finest_grouping(problem), problem.topology.p
    choice = np.flatnonzero(problem.group_allowed(grouping).sum(axis=1) > 1)
    rng, idle = np.random.default_rng(seed), 0
    most = min(ASKED, max(1, WORK // (DRAWS * problem.graph.n * p)))
    while choice.size and idle < math.ceil(choice.size / most):
        asked = rng.permutation(choice)[: int(min(most, left() // (DRAWS * p)))]
        if not asked.size:
            break
        moved_s = percentile(np.stack([move_values(problem, j, placement, grouping, asked) for j in judges]))
        i, d = np.unravel_index(int(moved_s.argmin()), moved_s.shape)
        idle = 0 if moved_s[i, d] < value_s else idle + 1
        if not idle:
            device = np.where(grouping.group == asked[i], d, placement.device).astype(np.int32)
            placement, value_s = replace(placement, device=device), float(moved_s[i, d])
    return placement, value_s
