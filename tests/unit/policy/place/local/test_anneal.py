"""Annealing and the moves it draws, on problems small enough to try every placement."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from pipeline.core.devices import CostTable, Topology
from pipeline.core.errors import UsageError
from pipeline.core.graph import Graph, Grouping
from pipeline.core.placement import Placement
from pipeline.core.problem import Budget, Instance, Problem
from pipeline.core.simulation import Level, LocalSearch, Moves
from pipeline.core.stages import Answer, Simulator, Subject
from pipeline.shared.feasibility import made_feasible
from policy.place.base.search import Search
from policy.place.local.anneal import Anneal, BudgetClock, best_order, ranks, with_order, with_rank_priorities
from policy.place.local.neighbourhood import MoveShares, Neighbourhood
from runtime.simulators.dataflow.listsched import ListSched
from tests.toys import CHAIN, CHAIN_OPTIMUM_S, ToyEvaluator, chain_times, ignore_progress, toy_graph, toy_topology

DRAWN = 4000
EVERY_KIND = MoveShares(clusters=0.9, copies=0.5, swaps=0.2, orders=0.3, shifts=0.5)


def problem_of(
    graph: Graph,
    op_s: np.ndarray,
    *,
    grouping: Grouping | None = None,
    allowed: np.ndarray | None = None,
    topology: Topology | None = None,
) -> Problem:
    """Return the problem of placing operations that take op_s, float64 [n, p], seconds."""
    topology = topology or toy_topology(op_s.shape[1])
    costs = CostTable(graph.names, topology.names, op_s, np.zeros(topology.p), ("given",) * topology.p)
    grouping = grouping or Grouping.identity(graph.n)
    return Problem(Instance(graph, topology, grouping, costs, costs.supported if allowed is None else allowed))


def simulator_of(problem: Problem, level: str = "T2") -> Simulator:
    """Return listsched for a problem's own graph."""
    alone = Grouping.identity(problem.graph.n)
    return ListSched(level=level).bind(Subject(None, problem.graph, alone, problem.topology, problem.costs, 0))


def random_problem(seed: int, n: int = 7, p: int = 2) -> Problem:
    """Return random operations, reading random earlier ones, that take about as long as sending a tensor."""
    rng = np.random.default_rng(seed)
    edges = sorted({(int(rng.integers(0, i)), i) for i in range(1, n) for _ in range(2)})
    return problem_of(toy_graph(n, edges), rng.uniform(2e-4, 2e-3, (n, p)))


def optimum_of(problem: Problem, level: str) -> float:
    """Return the least time over all placements, first come, first served."""
    n, p = problem.graph.n, problem.topology.p
    every = np.array(list(product(range(p), repeat=n)), dtype=np.int32)
    return float(simulator_of(problem, level).simulate(every).value_s.min())


def annealed(problem: Problem, evaluations: int, *, level: str = "T2", seed: int = 0, **options: float) -> Answer:
    """Return the answer for a problem."""
    budget = Budget(evaluations)
    return Anneal(**options).place(problem, simulator_of(problem, level), budget, seed=seed, progress=ignore_progress)


def restricted_problem() -> Problem:
    """Return a problem with groups, ties and devices that are not allowed."""
    graph = replace(random_problem(3, 12).graph, colocate=np.array([0, -1, 0, -1, 1, -1, -1, 1, -1, -1, -1, -1]))
    grouping = Grouping.of_labels(np.array([0, 1, 2, 1, 3, 4, 5, 6, 7, 7, 8, 9]))
    allowed = np.ones((12, 3), bool)
    allowed[1, 0] = allowed[9, 2] = allowed[11, 1:] = False
    return problem_of(graph, np.full((12, 3), 1e-3), grouping=grouping, allowed=allowed)


@pytest.mark.parametrize("ordered", [False, True])
def test_moves_name_each_node_of_whole_groups_once(ordered: bool) -> None:
    problem, rng = restricted_problem(), np.random.default_rng(0)
    group = made_feasible(problem, problem.grouping).group
    moves = Neighbourhood.of(problem)
    placement = replace(moves.anywhere(problem.topology.names), priority=rng.random(12) if ordered else None)
    drawn = moves.drawn(rng, placement, EVERY_KIND, np.zeros(DRAWN))
    for i in range(DRAWN):
        nodes = drawn.node[drawn.ptr[i] : drawn.ptr[i + 1]]
        assert nodes.size == np.unique(nodes).size == np.isin(group, group[nodes]).sum() > 0
        if drawn.device[i] >= 0:
            assert problem.allowed[group == group[nodes[0]], drawn.device[i]].all()
    assert ordered or not drawn.shift.any()
    assert not ordered or (np.isfinite(drawn.shift).all() and drawn.shift.any())


def test_single_moves_take_every_group_to_every_device_where_it_may_go() -> None:
    problem, rng = restricted_problem(), np.random.default_rng(1)
    grouping = made_feasible(problem, problem.grouping)
    moves = Neighbourhood.of(problem)
    drawn = moves.drawn(rng, moves.anywhere(problem.topology.names), MoveShares(), np.zeros(DRAWN))
    met = {(int(g), int(d)) for g, d in zip(grouping.group[drawn.node[drawn.ptr[:-1]]], drawn.device, strict=True)}
    allowed = problem.group_allowed(grouping)
    assert met == {(g, d) for g, d in np.argwhere(allowed).tolist() if allowed[g].sum() > 1}


def test_copies_go_where_a_neighbour_is() -> None:
    problem, rng = random_problem(5, 9), np.random.default_rng(2)
    moves = Neighbourhood.of(problem)
    drawn = moves.drawn(rng, moves.anywhere(problem.topology.names), MoveShares(copies=1.0), np.zeros(DRAWN))
    pairs = {tuple(sorted(pair)) for pair in zip(drawn.node.tolist(), drawn.like.tolist(), strict=True)}
    assert pairs == {tuple(edge) for edge in problem.graph.edges.T.tolist()}


def test_changes_of_order_reach_every_place_on_the_device() -> None:
    problem, rng = problem_of(toy_graph(6, []), np.full((6, 2), 1e-3)), np.random.default_rng(3)
    device = np.array([0, 0, 1, 0, 1, 0], np.int32)
    placement = Placement(device, problem.topology.names, np.array([5.0, 1.0, 2.0, 4.0, 3.0, 6.0]))
    drawn = Neighbourhood.of(problem).drawn(rng, placement, MoveShares(orders=1.0), np.zeros(DRAWN))
    met = set()
    for i in np.flatnonzero(drawn.node[drawn.ptr[:-1]] == 0):
        priority = drawn.applied(int(i), placement).priority
        assert priority is not None
        met.add(int((priority[[1, 3, 5]] < priority[0]).sum()))
    assert met == {0, 1, 2, 3}


def test_nothing_is_drawn_where_nothing_can_move() -> None:
    problem = problem_of(toy_graph(2, [(0, 1)]), np.full((2, 1), 1e-3))
    moves = Neighbourhood.of(problem)
    placement = moves.anywhere(problem.topology.names)
    assert moves.drawn(np.random.default_rng(0), placement, MoveShares(), np.zeros(5)).r == 0
    assert annealed(problem, 100).best.placement.n == 2


@pytest.mark.parametrize("level", ["T0", "T1", "T2"])
def test_anneal_finds_the_optimum_of_small_problems(level: Level) -> None:
    for seed in range(6):
        problem = random_problem(seed)
        best_s = annealed(problem, 1500, level=level, seed=seed).best.result.value_s  # type: ignore[union-attr]
        assert best_s == pytest.approx(optimum_of(problem, level), rel=1e-12)


def test_anneal_finds_a_known_optimum_of_an_evaluator_that_is_no_simulator() -> None:
    problem = problem_of(toy_graph(CHAIN, [(i, i + 1) for i in range(CHAIN - 1)]), chain_times())
    answer = Anneal().place(problem, ToyEvaluator.of(problem), Budget(1500), seed=0, progress=ignore_progress)
    assert answer.best.result.value_s == pytest.approx(CHAIN_OPTIMUM_S)  # type: ignore[union-attr]


def test_anneal_orders_operations_where_it_may() -> None:
    # Devices are pinned; 1 must run before 0 so that the long operation 2, which reads it elsewhere, begins early.
    op_s = np.array([[1e-3, 1e-3], [1e-3, 1e-3], [5e-3, 5e-3]])
    allowed = np.array([[True, False], [True, False], [False, True]])
    problem = problem_of(toy_graph(3, [(1, 2)]), op_s, allowed=allowed)
    start = replace(problem, start=Placement(np.array([0, 0, 1]), problem.topology.names))
    plain, free = annealed(start, 50), annealed(replace(start, ordered=True), 50)
    assert plain.best.placement.priority is None
    assert plain.best.result.value_s == pytest.approx(7.5e-3)  # type: ignore[union-attr]
    assert free.best.result.value_s == pytest.approx(6.5e-3)  # type: ignore[union-attr]


@pytest.mark.parametrize("ordered", [False, True])
def test_priorities_are_only_where_the_problem_allows_them(ordered: bool) -> None:
    answer = annealed(replace(random_problem(8, 10), ordered=ordered), 600)
    assert any(candidate.placement.priority is not None for candidate in answer.candidates) == ordered


@pytest.mark.parametrize("evaluations", [1, 2, 3, 4, 20])
@pytest.mark.parametrize("ordered", [False, True])
def test_the_start_is_never_lost_nor_the_budget_exceeded(evaluations: int, ordered: bool) -> None:
    plain = random_problem(9, 10, p=3)
    good = annealed(plain, 3000).best
    problem, spent = replace(plain, start=good.placement, ordered=ordered), []
    answer = Anneal().place(
        problem, simulator_of(problem), Budget(evaluations), seed=1, progress=lambda told: spent.append(told.done)
    )
    assert answer.best.result.value_s <= good.result.value_s  # type: ignore[union-attr]
    assert max(spent) <= evaluations


@pytest.mark.parametrize("level", ["T0", "T1", "T2"])
def test_the_first_order_keeps_the_time_of_first_come_first_served(level: Level) -> None:
    rng = np.random.default_rng(11)
    for seed in range(20):
        problem = replace(random_problem(seed, 15, p=3), ordered=True)
        placement = Placement(rng.integers(0, 3, 15), problem.topology.names)
        search = Search(replace(problem, start=placement), simulator_of(problem, level), Budget(50), ignore_progress)
        before_s, after_s = search.evaluate([placement, with_order(search, placement)])
        assert after_s == pytest.approx(before_s, rel=1e-12)
        assert search.evaluate([best_order(search, placement)])[0] <= after_s


def test_an_operation_without_time_stays_before_the_one_that_starts_with_it() -> None:
    # 1 is ready and done once 3 has ended, when 0 begins as well; 2 reads it elsewhere.
    op_s = np.array([2e-3, 0.0, 3e-3, 1e-3])
    start_s = np.array([1e-3, 1e-3, 1.5e-3, 0.0])
    assert ranks(start_s, start_s + op_s).tolist() == [2.0, 1.0, 3.0, 0.0]


def test_equal_seeds_give_equal_answers() -> None:
    problem = replace(random_problem(12, 12, p=3), ordered=True)
    first, second, other = (annealed(problem, 700, seed=seed) for seed in (4, 4, 5))
    keys = [[candidate.placement.key() for candidate in answer.candidates] for answer in (first, second, other)]
    assert keys[0] == keys[1] != keys[2]


def test_a_time_limit_alone_ends_the_search() -> None:
    problem = random_problem(13, 12, p=3)
    answer = Anneal().place(
        problem, simulator_of(problem), Budget(10**9, seconds=0.3), seed=0, progress=ignore_progress
    )
    alone_s = problem.costs.op_s.sum(axis=0).min()  # type: ignore[union-attr]
    assert answer.best.result.value_s < alone_s  # type: ignore[union-attr]


def test_anneal_finds_placements_that_fit_where_no_device_holds_all() -> None:
    graph = toy_graph(8, [(i, i + 1) for i in range(7)], weight_bytes=[10] * 8)
    problem = problem_of(graph, np.full((8, 3), 1e-3), topology=toy_topology(3, memory_bytes=50))
    best = annealed(problem, 800).best
    assert problem.fits(best.placement)
    assert math.isfinite(best.result.value_s)  # type: ignore[union-attr]


def test_the_first_part_of_a_relaxed_walk_is_the_same_whatever_devices_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    walks = []
    for memory_bytes in (30, 60):
        graph = toy_graph(12, [(i, i + 1) for i in range(11)], weight_bytes=[5] * 12)
        times = np.random.default_rng(0).uniform(1e-3, 2e-3, (12, 3))
        problem = problem_of(graph, times, topology=toy_topology(3, memory_bytes=memory_bytes))
        search = Search(problem, simulator_of(problem), Budget(4000), ignore_progress)
        ends, original = [], search.local_search

        def noted(start: Placement, moves: Moves, ends: list = ends, original=original) -> LocalSearch:  # type: ignore[type-arg, no-untyped-def]
            found: LocalSearch = original(start, moves)
            if moves.price_s_per_byte == 0.0:
                ends.append(found.end.device.tolist())
            return found

        monkeypatch.setattr(search, "local_search", noted)
        Anneal().relax(search, Placement.single(12, 0, problem.topology.names), seed=0)
        assert search.best is not None
        assert problem.fits(search.best)
        walks.append(ends)
    assert len(walks[0]) > 4
    assert walks[0] == walks[1]


def test_the_clock_follows_what_ends_first() -> None:
    problem = random_problem(14)
    search = Search(problem, simulator_of(problem), Budget(100), ignore_progress)
    clock = BudgetClock.of(search)
    assert clock.share() == 0.0
    search.evaluate([Placement(np.array([0, 1, 0, 1, 0, 1, 0]), problem.topology.names)])
    assert clock.share() == pytest.approx(clock.step())
    assert replace(clock, began_s=clock.began_s - 3.0, left_s=2.0).share() == 1.0


@pytest.mark.parametrize(
    "wrong", [{"copies": 1.5}, {"orders": -0.1}, {"cold": 2.0}, {"cold": 0.0}, {"evaluations_per_group": 0.0}]
)
def test_shares_and_temperatures_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Anneal(**wrong)


def test_levelled_priorities_keep_the_order_and_stay_small():
    placement = Placement(np.array([0, 0, 0, 0]), ("A",), np.array([1e300, -1e300, 3.0, 3.0]))
    levelled_plan = with_rank_priorities(placement)
    assert levelled_plan.priority is not None
    assert levelled_plan.priority.tolist() == [3, 0, 1, 2]
    assert with_rank_priorities(Placement(placement.device, placement.devices)).priority is None


def test_a_cluster_has_as_many_groups_as_it_was_chosen_to_have() -> None:
    ring = toy_graph(8, [(i, i + 1) for i in range(7)])
    problem = problem_of(ring, np.ones((8, 2)))
    moves = Neighbourhood.of(problem)
    placement = moves.anywhere(problem.topology.names)
    for length, mean in ((1, 1.0), (4, 2.0)):
        shares = MoveShares(clusters=1.0, shortest=length, longest=length)
        size = np.diff(moves.drawn(np.random.default_rng(0), placement, shares, np.zeros(200)).ptr)
        assert size.max() == length  # a random walk may meet a group again
        assert size.mean() >= mean
