"""What every placer promises, whatever evaluates its placements; `simulated` adds what it promises on simulators."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pipeline.core.errors import DeviceError, UsageError
from pipeline.core.graph import Grouping
from pipeline.core.measurement import MeasurementFailed, seconds_of
from pipeline.core.placement import Placement
from pipeline.core.problem import Budget, Problem, Progress
from pipeline.core.stages import Answer, Candidate, Evaluator, LearningPlacer, Placer
from pipeline.testing.problems import (
    CHAIN,
    PROBLEMS,
    MemoryCheckpointer,
    SumEvaluator,
    chain_graph,
    chain_problem,
    chain_times,
    ignore_progress,
    small_graph,
    small_problem,
    small_topology,
)
from pipeline.testing.promises import check_declaration, global_state_unchanged, promise_that_ends, require_promise
from pipeline.testing.simulated import SIMULATED_PROMISES

DEVICES = ("A", "B")
EVALUATIONS = 24
SMALL_BUDGETS = (1, 2, 5, 20)  # evaluations
SHORT_S = 0.05
BUDGETS = (1, 3, EVALUATIONS)
FOURS = Grouping.of_labels(np.arange(CHAIN) // 4)  # groups of four operations in a row


def check_placer(placer: Placer) -> None:
    """Hold a placer to all promises of its Protocol, on small problems and on every simulator.

    Raises:
        AssertionError: it breaks one of them; the message says which.
    """
    check_declaration(placer)
    for promise in (*PROMISES, *SIMULATED_PROMISES):
        promise(placer)


def check_answers(placer: Placer) -> None:
    """Require distinct placements, best first, all of them seen, the best of those seen first, within the budget."""
    for toy, evaluations in itertools.product(PROBLEMS, BUDGETS):
        problem = PROBLEMS[toy](group="edge_score")
        evaluator = SumEvaluator.of(problem)
        candidates = _place_with_evaluator(placer, problem, evaluator, evaluations=evaluations).candidates
        where = f"on {toy}_problem with {evaluations} evaluations"
        spent = evaluator.evaluations
        require_promise(1 <= spent <= evaluations, placer, f"asks about {spent} placements {where}")
        values = [_candidate_value_s(c) for c in candidates]
        keys = [c.placement.key() for c in candidates]
        require_promise(values == sorted(values), placer, f"does not give the best placement first {where}")
        require_promise(len(set(keys)) == len(keys), placer, f"gives a placement twice {where}")
        require_promise(
            set(keys) <= {p.key() for p in evaluator.asked}, placer, f"gives placements it did not ask about {where}"
        )
        said = [evaluator.value_s(c.placement) for c in candidates]
        require_promise(
            np.allclose(values, said, rtol=1e-6, atol=0), placer, f"changes what the evaluator said {where}"
        )
        best_s = min(evaluator.value_s(p) for p in evaluator.asked)
        require_promise(
            math.isclose(values[0], best_s, rel_tol=1e-6), placer, f"leaves out the best placement it saw {where}"
        )


def check_no_question_twice(placer: Placer) -> None:
    """Require that no placement is asked about twice."""
    problem = chain_problem(group="edge_score")
    evaluator = SumEvaluator.of(problem)
    _place_with_evaluator(placer, problem, evaluator)
    distinct = len({p.key() for p in evaluator.asked})
    require_promise(distinct == evaluator.evaluations, placer, "asks the evaluator about a placement twice")


def check_seeds(placer: Placer) -> None:
    """Require that equal seeds ask about equal placements in equal order."""
    problem = chain_problem(group="edge_score")
    first, again = (SumEvaluator.of(problem) for _ in range(2))
    for evaluator in (first, again):
        _place_with_evaluator(placer, problem, evaluator, seed=4)
    same = [p.key() for p in first.asked] == [p.key() for p in again.asked]
    require_promise(same, placer, "asks about other placements for an equal seed")


def check_allowed_devices(placer: Placer) -> None:
    """Require that operations are placed where they are supported, and that such a placement is found."""
    op_s = chain_times()
    op_s[0, 0] = op_s[CHAIN - 1, 1] = np.inf
    groups = FOURS
    problem = small_problem(chain_graph(), op_s, grouping=groups, group="edge_score")
    evaluator = SumEvaluator.of(problem)
    answer = _place_with_evaluator(placer, problem, evaluator)
    require_promise(
        all(problem.fits(p) for p in evaluator.asked), placer, "places operations on devices that are not allowed"
    )
    require_promise(math.isfinite(answer.value_s), placer, "finds no placement where not every device is allowed")


def check_memory(placer: Placer) -> None:
    """Require that devices hold no more weights than their memory."""
    graph = small_graph(4, [(0, 1), (1, 2), (2, 3)], weight_bytes=[5, 5, 5, 5])
    start = Placement(np.array([0, 0, 1, 1]), DEVICES)
    problem = small_problem(graph, np.ones((4, 2)), topology=small_topology(memory_bytes=10), start=start)
    evaluator = SumEvaluator.of(problem)
    _place_with_evaluator(placer, problem, evaluator)
    require_promise(bool(evaluator.asked), placer, "asks about no placement where memory is short")
    held = [np.bincount(p.device, minlength=2) * 5 for p in evaluator.asked]
    require_promise(all((h <= 10).all() for h in held), placer, "gives devices more weights than they can hold")


def check_start(placer: Placer) -> None:
    """Require an answer no worse than the start and the best single device."""
    optimum = Placement(np.repeat([1, 0], CHAIN // 2), DEVICES)
    problem = chain_problem(start=optimum)
    evaluator = SumEvaluator.of(problem)
    answer = _place_with_evaluator(placer, problem, evaluator)
    singles = [evaluator.value_s(Placement.single(CHAIN, d, DEVICES)) for d in range(2)]
    best_s = min(evaluator.value_s(optimum), *singles)
    require_promise(answer.value_s <= best_s, placer, "ends worse than its start or the best single device")


def check_refusals(placer: Placer) -> None:
    """Require that a refused placement is an answer like others, last, and that refusals of everything end as such."""
    problem = chain_problem()
    nothing = SumEvaluator.of(problem, refused=None)
    failed = _place_with_evaluator(placer, problem, nothing).candidates
    require_promise(bool(failed), placer, "gives no candidates where every placement is refused")
    refused = all(isinstance(c.result, MeasurementFailed) for c in failed)
    require_promise(refused, placer, "turns a refused placement into a measurement")
    require_promise(
        nothing.evaluations <= EVALUATIONS, placer, "spends more than its budget where every placement is refused"
    )
    one = SumEvaluator.of(problem, [Placement.single(CHAIN, 0, DEVICES).key()])
    candidates = _place_with_evaluator(placer, problem, one).candidates
    require_promise(
        math.isfinite(_candidate_value_s(candidates[0])), placer, "ends its search at a placement that is refused"
    )
    infinite = [i for i, c in enumerate(candidates) if math.isinf(_candidate_value_s(c))]
    require_promise(infinite in ([], [len(candidates) - 1]), placer, "does not give a refused placement last")


def check_impossible_problem(placer: Placer) -> None:
    """Require a DeviceError where no device can hold an operation."""
    graph = small_graph(3, [(0, 1), (1, 2)], weight_bytes=[50, 1, 1])
    problem = small_problem(graph, np.ones((3, 2)), topology=small_topology(memory_bytes=10))
    try:
        placer.place(problem, SumEvaluator.of(problem), Budget(EVALUATIONS), seed=0, progress=ignore_progress)
    except DeviceError:
        return
    raise AssertionError(f"{placer} raises no DeviceError where an operation fits no device")


def check_time_limit(placer: Placer) -> None:
    """Require that a time limit ends the search; this one is over before the second placement."""
    problem = chain_problem()
    evaluator = SumEvaluator.of(problem)
    placer.place(problem, evaluator, Budget(EVALUATIONS, seconds=1e-9), seed=0, progress=ignore_progress)
    require_promise(
        evaluator.evaluations == 1, placer, f"asks about {evaluator.evaluations} placements after its time is up"
    )


def check_explanations(placer: Placer) -> None:
    """Require a sentence that says why the answer is a single device, unless that is proven or the placer's idea."""
    if type(placer).__module__.rpartition(".")[2] == "single":
        return
    for budget in (*map(Budget, SMALL_BUDGETS), Budget(seconds=SHORT_S)):
        problem = chain_problem(group="edge_score")
        answer = placer.place(problem, SumEvaluator.of(problem), budget, seed=0, progress=ignore_progress)
        silent_about_it = answer.best.found_by == "single" and not answer.proven and not answer.notes
        require_promise(not silent_about_it, placer, f"answers a single device without a word why within {budget}")


def check_progress(placer: Placer) -> None:
    """Require progress that counts every evaluation, never falls, and whose value never gets worse."""
    told: list[Progress] = []
    problem = chain_problem()
    evaluator = SumEvaluator.of(problem)
    placer.place(problem, evaluator, Budget(EVALUATIONS), seed=0, progress=told.append)
    require_promise(bool(told), placer, "tells no progress")
    require_promise(
        told[-1].done == evaluator.evaluations, placer, f"tells {told[-1].done} of {evaluator.evaluations} evaluations"
    )
    _require_rising([p.done for p in told], placer, "tells progress that does not rise")
    _require_rising([-p.value_s for p in told], placer, "tells a value that gets worse", strictly=False)


def check_one_device_and_no_costs(placer: Placer) -> None:
    """Require an answer on one device alone, and where no costs are known."""
    alone = small_problem(small_graph(3, [(0, 1), (1, 2)]), np.ones((3, 1)), group="edge_score")
    devices = [
        c.placement.device.tolist() for c in _place_with_evaluator(placer, alone, SumEvaluator.of(alone)).candidates
    ]
    require_promise(devices == [[0, 0, 0]], placer, f"places three operations on one device as {devices}")
    answer = _place_with_evaluator(placer, chain_problem(costs_known=False), SumEvaluator.of(chain_problem()))
    require_promise(math.isfinite(answer.value_s), placer, "finds no placement where no costs are known")


def check_colocation(placer: Placer) -> None:
    """Require that operations that must share a device do."""
    problem = small_problem(chain_graph(colocate=[-1, 1, -1, -1, 1, *[-1] * 7]), chain_times())
    evaluator = SumEvaluator.of(problem)
    _place_with_evaluator(placer, problem, evaluator)
    together = all(p.device[1] == p.device[4] for p in evaluator.asked)
    require_promise(together, placer, "gives two devices to operations that must share one")


def check_global_state(placer: Placer) -> None:
    """Require that generators and threads of the process are left alone."""
    problem = chain_problem()
    with global_state_unchanged(placer):
        _place_with_evaluator(placer, problem, SumEvaluator.of(problem))


def check_groups(placer: Placer) -> None:
    """Require of a placer that learns no grouping that all operations of a group share a device."""
    if isinstance(placer, LearningPlacer):
        return
    problem = replace(chain_problem(grouping=FOURS), policy=None)
    evaluator = SumEvaluator.of(problem)
    _place_with_evaluator(placer, problem, evaluator)
    whole = all((p.device.reshape(-1, 4) == p.device[::4, None]).all() for p in evaluator.asked)
    require_promise(whole, placer, "gives two devices to the operations of one group")


def check_policy_inputs(placer: Placer) -> None:
    """Require a UsageError of a placer that learns where there is nothing to learn on."""
    if not isinstance(placer, LearningPlacer):
        return
    problem = replace(chain_problem(), policy=None)
    try:
        _place_with_evaluator(placer, problem, SumEvaluator.of(problem))
    except UsageError:
        return
    raise AssertionError(f"{placer} learns, and raises no UsageError where the problem has no policy inputs")


def check_checkpointer(placer: Placer) -> None:
    """Require of a placer that learns that it publishes its policy exactly if it says so by `keeps`."""
    if not isinstance(placer, LearningPlacer):
        return
    checkpointer, problem = MemoryCheckpointer(), chain_problem()
    if problem.policy is not None:
        problem = replace(problem, policy=replace(problem.policy, checkpointer=checkpointer))
    _place_with_evaluator(placer, problem, SumEvaluator.of(problem))
    published = bool(checkpointer.published)
    require_promise(
        published == placer.keeps, placer, f"has keeps={placer.keeps} and has published={published} a policy"
    )


_PROMISES = (
    check_answers,
    check_no_question_twice,
    check_seeds,
    check_allowed_devices,
    check_memory,
    check_start,
    check_refusals,
    check_impossible_problem,
    check_time_limit,
    check_explanations,
    check_progress,
    check_one_device_and_no_costs,
    check_colocation,
    check_global_state,
    check_groups,
    check_policy_inputs,
    check_checkpointer,
)
PROMISES = tuple(map(promise_that_ends, _PROMISES))  # each ends, whatever it tries


def _place_with_evaluator(
    placer: Placer, problem: Problem, evaluator: Evaluator, *, evaluations: int = EVALUATIONS, seed: int = 0
) -> Answer:
    try:
        return placer.place(problem, evaluator, Budget(evaluations), seed=seed, progress=ignore_progress)
    except DeviceError as error:
        raise AssertionError(f"{placer} finds no placement where there is one: {error}") from error


def _candidate_value_s(candidate: Candidate) -> float:
    return seconds_of(candidate.result)


def _require_rising(values: Sequence[float], placer: Placer, fault: str, *, strictly: bool = True) -> None:
    rising = all(a < b if strictly else a <= b for a, b in itertools.pairwise(values))
    require_promise(rising, placer, f"{fault}: {', '.join(f'{v:g}' for v in values)}")
