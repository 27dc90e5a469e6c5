"""The bookkeeping of placers, and the rules by which the single ones work."""

from __future__ import annotations

import dataclasses
import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings

from pipeline.core.errors import DeviceError
from pipeline.core.graph import Graph, Grouping, is_acyclic, topological_order
from pipeline.core.measurement import MeasurementFailed, Prediction, seconds_of
from pipeline.core.placement import Placement
from pipeline.core.problem import Budget, Problem, Progress
from pipeline.core.stages import Candidate
from pipeline.core.tensors import INFERRED
from pipeline.shared.feasibility import made_feasible
from pipeline.shared.graphs import visit_order
from policy.place.base.groups import mostly_on
from policy.place.base.history import ANSWERS, History
from policy.place.base.search import Search
from policy.place.local.greedy import Greedy, GroupedProblem, build
from policy.place.rules.random import Random
from policy.place.rules.single import Single
from tests.strategies import graphs
from tests.toys import (
    CHAIN,
    CHAIN_OPTIMUM_S,
    CUT_S,
    ToyEvaluator,
    chain_problem,
    ignore_progress,
    optimum_s,
    toy_graph,
    toy_problem,
    toy_topology,
)

PAIR = np.array([[1.0, 2.0], [1.0, 2.0]]) * 1e-3


def pair_problem(**options: object) -> Problem:
    """Return two operations, one after the other, that take 1 ms on A and 2 ms on B."""
    return toy_problem(toy_graph(2, [(0, 1)]), PAIR, **options)  # type: ignore[arg-type]


def on(*device: int) -> Placement:
    return Placement(np.array(device), ("A", "B"))


def search_of(problem: Problem, evaluations: int = 100, refused: list[Placement] | None = None) -> Search:
    evaluator = ToyEvaluator.of(problem, [p.key() for p in refused or []])
    return Search(problem, evaluator, Budget(evaluations), ignore_progress)


def asked(search: Search) -> list[list[int]]:
    evaluator = search._evaluator
    assert isinstance(evaluator, ToyEvaluator)
    return [p.device.tolist() for p in evaluator.asked]


def test_a_search_opens_with_the_start_and_every_single_device():
    search = search_of(pair_problem(start=on(0, 1)))
    assert asked(search) == [[0, 1], [0, 0], [1, 1]]
    assert search.best_s == pytest.approx(2e-3)
    assert search.best is not None
    assert search.best.device.tolist() == [0, 0]


def test_a_search_that_cannot_afford_its_opening_asks_about_the_start_first():
    assert asked(search_of(pair_problem(start=on(0, 1)), evaluations=1)) == [[0, 1]]


def test_a_start_that_is_a_single_device_is_asked_about_once():
    assert asked(search_of(pair_problem(start=on(1, 1)))) == [[1, 1], [0, 0]]


def test_a_placement_seen_before_costs_nothing():
    search = search_of(pair_problem())
    values = search.evaluate([on(0, 1), on(0, 1), on(0, 0)])
    assert values.tolist() == pytest.approx([3e-3 + CUT_S, 3e-3 + CUT_S, 2e-3])
    assert asked(search) == [[0, 0], [1, 1], [0, 1]]
    assert search.spent == 3


def test_a_placement_that_does_not_fit_is_not_sent():
    allowed = np.array([[True, True], [True, False]])
    search = search_of(pair_problem(allowed=allowed))
    assert search.evaluate([on(0, 1)]).tolist() == [math.inf]
    assert asked(search) == [[0, 0]]


def test_a_placement_beyond_the_budget_has_no_value():
    search = search_of(pair_problem(), evaluations=3)
    values = search.evaluate([on(0, 1), on(1, 0)])
    assert values[0] == pytest.approx(3e-3 + CUT_S)
    assert math.isnan(values[1])
    assert search.done
    assert len(asked(search)) == 3


def test_a_search_that_is_out_of_time_stops_after_one_evaluation():
    problem = pair_problem()
    search = Search(problem, ToyEvaluator.of(problem), Budget(100, seconds=1e-9), ignore_progress)
    assert asked(search) == [[0, 0]]
    assert search.done


def test_a_failed_placement_is_infinite_never_the_best_and_last_of_the_candidates():
    search = search_of(pair_problem(), refused=[on(0, 0)])
    assert search.evaluate([on(0, 0)]).tolist() == [math.inf]
    assert search.best is not None
    assert search.best.device.tolist() == [1, 1]
    found = search.answer().candidates
    assert [c.placement.device.tolist() for c in found] == [[1, 1], [0, 0]]
    assert isinstance(found[-1].result, MeasurementFailed)


def test_candidates_are_limited_and_best_first():
    search = search_of(pair_problem())
    search.evaluate([on(0, 1), on(1, 0)])
    assert [c.placement.device.tolist() for c in search.answer(2).candidates] == [[0, 0], [0, 1]]


def test_a_search_that_saw_nothing_says_that_nothing_fits():
    search = search_of(pair_problem(allowed=np.array([[True, False], [False, True]])))
    with pytest.raises(DeviceError, match="2 nodes"):
        search.answer()


def test_progress_is_told_with_the_best_so_far():
    told: list[Progress] = []
    problem = pair_problem()
    search = Search(problem, ToyEvaluator.of(problem), Budget(9), told.append)
    search.evaluate([on(0, 1)])
    assert [(p.done, p.total) for p in told] == [(2, 9), (3, 9)]
    assert [p.value_s for p in told] == pytest.approx([2e-3, 2e-3])


def test_the_best_single_device_is_known_though_too_many_others_are_better():
    whole = History(6, ("A", "B"))
    part = whole.fork()
    for i, device in enumerate([(1,) * 6, *product((0, 1), repeat=6)][: ANSWERS + 2]):
        placement = on(*device)
        part.note(placement.digest(), Candidate(placement, Prediction(9.0 if i == 0 else 20.0 if i == 1 else 1.0)))
    assert 9.0 not in [seconds_of(candidate.result) for candidate in part.ranked()]
    whole.join(part)
    assert (whole.single_s, whole.best_s) == (9.0, 1.0)


def test_a_history_of_nothing_is_gone_on_from():
    going_on = History(6, ("A", "B"))
    going_on.resume(History(6, ("A", "B")).state())
    assert (going_on.value_s, going_on.ranked(), going_on.best_s) == ({}, [], math.inf)


def test_a_group_without_a_common_device_is_taken_apart():
    graph = toy_graph(4, [])
    allowed = np.array([[True, False], [False, True], [True, True], [True, True]])
    problem = toy_problem(graph, np.ones((4, 2)), allowed=allowed)
    assert made_feasible(problem, Grouping(np.array([0, 0, 1, 1]))).group.tolist() == [0, 1, 2, 2]


def test_groups_that_hold_tied_operations_are_one():
    problem = toy_problem(toy_graph(4, [], colocate=[-1, 1, 1, -1]), np.ones((4, 2)))
    assert made_feasible(problem, Grouping(np.array([0, 0, 1, 2]))).group.tolist() == [0, 0, 0, 1]


def test_tied_operations_stay_together_when_their_group_is_taken_apart():
    allowed = np.array([[True, False], [False, True], [False, True]])
    problem = toy_problem(toy_graph(3, [], colocate=[-1, 1, 1]), np.ones((3, 2)), allowed=allowed)
    assert made_feasible(problem, Grouping(np.array([0, 0, 0]))).group.tolist() == [0, 1, 1]


def test_what_a_device_may_not_run_goes_where_it_is_fastest():
    op_s = np.array([[1.0, np.inf, 1.0], [np.inf, 3.0, 2.0], [1.0, 1.0, 1.0]])
    problem = toy_problem(toy_graph(3, []), op_s)
    assert mostly_on(problem, 0).device.tolist() == [0, 2, 0]
    assert mostly_on(problem, 1).device.tolist() == [0, 1, 1]


def test_single_gives_an_answer_where_no_device_runs_everything():
    op_s = np.array([[1.0, np.inf], [np.inf, 1.0]]) * 1e-3
    problem = toy_problem(toy_graph(2, [(0, 1)]), op_s)
    found = Single().place(problem, ToyEvaluator.of(problem), Budget(9), seed=0, progress=ignore_progress).candidates
    assert [c.placement.device.tolist() for c in found] == [[0, 1]]


def test_random_draws_every_placement_of_a_small_problem():
    problem = chain_problem(grouping=Grouping(np.arange(CHAIN) // 4))
    evaluator = ToyEvaluator.of(problem)
    Random().place(problem, evaluator, Budget(100), seed=0, progress=ignore_progress)
    assert len({p.key() for p in evaluator.asked}) == len(evaluator.asked) == 2**3


def test_random_draws_each_allowed_device_equally_often():
    op_s = np.array([[1.0, 1.0, np.inf]] * 8) * 1e-3
    problem = toy_problem(toy_graph(8, []), op_s)
    evaluator = ToyEvaluator.of(problem)
    Random(batch=50).place(problem, evaluator, Budget(200), seed=0, progress=ignore_progress)
    share = np.mean([p.device for p in evaluator.asked])
    assert share == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(200 * 8))  # four standard errors


def test_greedy_builds_by_least_added_time_or_by_earliest_finish():
    # Two operations of 2 s on A or 3 s on B, then one that is 1 s on both. Added up, A A A is best at every step. Side
    # by side 1 finishes on B at 3 (A: 4); 2 finishes on B at max(2 + cut, 3) + 1 = 4 (A: max(3 + cut, 2) + 1 = 4.0005).
    op_s = np.array([[2.0, 3.0], [2.0, 3.0], [1.0, 1.0]])
    problem = toy_problem(toy_graph(3, [(0, 2), (1, 2)]), op_s)
    groups = GroupedProblem.of(problem)
    assert groups.costs is not None
    assert build(groups, groups.costs, side_by_side=False).tolist() == [0, 0, 0]
    assert build(groups, groups.costs, side_by_side=True).tolist() == [0, 1, 1]


def test_greedy_counts_the_bytes_of_each_tensor_that_arrives():
    # Both consumers are faster on B. What 3 reads takes a second to move there, what 2 reads half a millisecond.
    graph = dataclasses.replace(toy_graph(4, [(0, 3), (1, 2)]), edge_bytes=np.array([16_000, 4]), reads=INFERRED)
    op_s = np.array([[1.0, 9.0], [1.0, 9.0], [1.0, 0.5], [1.0, 0.5]])
    groups = GroupedProblem.of(toy_problem(graph, op_s))
    assert groups.costs is not None
    assert build(groups, groups.costs, side_by_side=False).tolist() == [0, 0, 1, 0]


def test_greedy_does_not_fill_a_device_beyond_its_memory():
    topology = toy_topology(memory_bytes=10)
    graph = toy_graph(2, [(0, 1)], weight_bytes=[6, 6])
    groups = GroupedProblem.of(toy_problem(graph, PAIR, topology=topology))
    assert groups.costs is not None
    assert build(groups, groups.costs, side_by_side=False).tolist() == [0, 1]


def test_greedy_climbs_from_a_bad_start_until_no_single_move_helps():
    problem = chain_problem(start=Placement(np.arange(CHAIN) % 2, ("A", "B")), costs_known=False)
    evaluator = ToyEvaluator.of(chain_problem())
    found = Greedy().place(problem, evaluator, Budget(500), seed=0, progress=ignore_progress).candidates
    best = found[0].result
    assert not isinstance(best, MeasurementFailed)
    # One cut more than the optimum: no single move leads on from there.
    assert best.value_s == pytest.approx(CHAIN_OPTIMUM_S + CUT_S)
    assert evaluator.evaluations < 500


def test_greedy_moves_whole_groups():
    problem = chain_problem(grouping=Grouping(np.arange(CHAIN) // 3))
    evaluator = ToyEvaluator.of(problem)
    Greedy().place(problem, evaluator, Budget(500), seed=0, progress=ignore_progress)
    assert all((p.device.reshape(-1, 3) == p.device[::3, None]).all() for p in evaluator.asked)


@settings(deadline=None, max_examples=50)
@given(graphs(min_n=1))
def test_visit_order_is_topological_where_there_is_such_an_order(graph: Graph):
    place = np.argsort(visit_order(graph))
    assert (place[graph.edges[0]] < place[graph.edges[1]]).all()
    assert sorted(visit_order(graph).tolist()) == sorted(topological_order(graph).tolist())


def test_visit_order_breaks_a_cycle_at_the_node_that_waits_for_least():
    cyclic = toy_graph(4, [(0, 1), (1, 2), (2, 1), (2, 3), (3, 1)])
    assert not is_acyclic(cyclic)
    assert visit_order(cyclic).tolist() == [0, 2, 3, 1]


def test_the_toys_have_the_optimum_they_claim():
    assert optimum_s(chain_problem()) == pytest.approx(CHAIN_OPTIMUM_S)


def test_plug_ins_of_earlier_releases_find_what_they_import():
    import policy.place.search as earlier
    from policy.place.base import search as now

    assert {name: getattr(earlier, name) for name in earlier.__all__} == {
        name: getattr(now, name) for name in ("BudgetEndedError", "Method", "Search", "policy_of")
    }
