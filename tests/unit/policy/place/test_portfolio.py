"""How the portfolio divides its budget: what runs, what does not, and what is made only once."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from ortools.sat.python import cp_model

from pipeline.bench.league.arena import load_arena
from pipeline.bench.league.protocol import GraphRef, LeagueInstance
from pipeline.core.errors import UsageError
from pipeline.core.graph import Grouping
from pipeline.core.placement import Placement
from pipeline.core.problem import Budget, Problem
from pipeline.core.stages import Answer, Subject
from pipeline.placing.searchers import Searcher
from pipeline.placing.setup import with_policy
from pipeline.testing.simulated import simulator_of, wide_problem
from policy.place import portfolio as module
from policy.place.base.search import Method, Search
from policy.place.exact.dataflow import objective
from policy.place.exact.shared import proofs
from policy.place.exact.shared.cpsat import CpSat, size_of
from policy.place.learned.hsdag.hsdag import Hsdag
from policy.place.lists import work
from policy.place.local import packings
from policy.place.local.anneal import Anneal
from policy.place.local.room import unlimited
from policy.place.portfolio import Portfolio
from policy.place.rules import catalogue
from policy.place.rules.metis import Metis
from tests.toys import chain_problem, ignore_progress

LONG = 2 * 2 * 200 * 18  # evaluations of which the first round leaves enough for two walks over 18 groups


@dataclass(frozen=True, slots=True)
class Spy(Method):
    """Notes that it ran, and what was left."""

    ran: list[float]

    def run(self, search: Search, *, seed: int) -> None:
        self.ran.append(search.left_s)


def placed(problem: Problem, rules: str, budget: Budget, placer: Portfolio | CpSat | None = None) -> Answer:
    return (placer or Portfolio()).place(
        problem, simulator_of(problem, rules), budget, seed=1, progress=ignore_progress
    )


def keys(answer: Answer) -> list[Any]:
    return [c.placement.key() for c in answer.candidates]


def counting(monkeypatch: pytest.MonkeyPatch, where: Any, name: str) -> list[Any]:
    """Return what a function is given from now on, call by call."""
    calls: list[Any] = []
    original = getattr(where, name)

    def counted(*given: Any, **named: Any) -> Any:
        calls.append(given)
        return original(*given, **named)

    monkeypatch.setattr(where, name, counted)
    return calls


def test_with_evaluations_alone_seed_and_budget_decide_for_any_number_of_workers() -> None:
    problem = wide_problem()
    one, two, again = (placed(problem, "T2", Budget(LONG), Portfolio(workers=w, solvable=0)) for w in (1, 2, 2))
    assert keys(one) == keys(two) == keys(again)
    assert one.evaluations == two.evaluations == again.evaluations


@pytest.mark.parametrize("seconds", [None, 2.0])
def test_evaluations_of_all_walks_are_counted_and_within_the_budget(seconds: float | None) -> None:
    problem = wide_problem()
    simulator = simulator_of(problem, "T2")
    placer = Portfolio(solvable=0)
    answer = placer.place(problem, simulator, Budget(LONG, seconds), seed=0, progress=ignore_progress)
    assert answer.evaluations == simulator.evaluations <= LONG


@pytest.mark.parametrize(("evaluations", "local_searches"), [(LONG // 2 + 3, 2), (LONG // 2 - 1, 1)])
def test_walks_share_evaluations_only_where_each_gets_enough(evaluations: int, local_searches: int) -> None:
    problem = wide_problem()
    search = Search(problem, simulator_of(problem, "T2"), Budget(evaluations), ignore_progress)
    assert Portfolio(workers=1)._local_searches(search) == local_searches


@pytest.mark.parametrize(("memory_bytes", "evaluations", "relaxed"), [(120, LONG, 1), (120, 400, 0), (0, LONG, 0)])
def test_one_of_two_walks_leaves_memory_aside_at_first_where_it_is_short(
    memory_bytes: int, evaluations: int, relaxed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = counting(monkeypatch, Anneal, "relax")
    problem = wide_problem(memory_bytes=memory_bytes)
    simulator = simulator_of(problem, "T2")
    budget = Budget(evaluations)
    answer = Portfolio(solvable=0).place(problem, simulator, budget, seed=1, progress=ignore_progress)
    assert len(calls) == relaxed
    assert answer.evaluations == simulator.evaluations <= evaluations


def test_the_start_that_leaves_memory_aside_is_as_fast_as_a_rule_blind_to_memory() -> None:
    tight, large = wide_problem(memory_bytes=80), wide_problem()
    search, free = (Search(p, simulator_of(p, "T2"), Budget(LONG), ignore_progress) for p in (tight, large))
    relaxed = Portfolio()._unlimited(search, 1)
    Metis().run(free, seed=1)
    assert relaxed is not None
    start = relaxed.start
    assert free.evaluate([start])[0] <= free.best_s
    assert search.simulate(start.device[None]).over_bytes[0] > 0  # it need not fit
    assert search.simulator is not None
    assert search.spent == search.simulator.evaluations
    assert Portfolio()._unlimited(free, 1) is None


def test_a_search_that_leaves_memory_aside_ends_at_once_where_the_time_is_over() -> None:
    problem = wide_problem(memory_bytes=80)
    search = Search(problem, simulator_of(problem, "T2"), Budget(LONG), ignore_progress)
    assert unlimited(search, seconds=-0.01).left_s < 0.01


def test_the_bound_and_the_work_are_made_once_per_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = wide_problem()
    proofs, works = counting(monkeypatch, objective, "dataflow_bounds"), counting(monkeypatch, work, "_uncontended")
    for _ in range(2):
        placed(problem, "T2", Budget(400))
    assert len(proofs) == 1
    # The problem's own once; those of joined groups and of other memory, which two rules make, each time.
    own = [given for given in works if len(given) == 1 or given[1:] == (None, None)]
    assert len(own) == 1
    placed(dataclasses.replace(problem, ordered=True), "T2", Budget(400))
    assert len(proofs) == 1
    placed(problem.on(tags=None), "T2", Budget(400))
    assert len(proofs) == 2


def test_packings_are_made_once_per_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = wide_problem(memory_bytes=200)
    made = counting(monkeypatch, packings, "_clustered")
    for _ in range(2):
        placed(problem, "T2", Budget(400))
    assert len(made) == 1


def test_a_bound_that_was_cut_short_is_proven_again_when_offered_more_time() -> None:
    cut, ready = proofs.Proof(1.0, "test", 0.5), proofs.Proof(1.0, "test", math.inf)
    assert [cut.improves_in(s) for s in (0.5, 1.0, 1.5)] == [False, False, True]
    assert not ready.improves_in(1e9)


def test_problems_that_differ_by_their_start_share_what_is_derived() -> None:
    problem = chain_problem()
    made = problem.derived(work._uncontended)
    begun = dataclasses.replace(problem, start=Placement.single(12, 0, ("A", "B")), ordered=True)
    assert begun.start is not None
    assert begun.derived(work._uncontended) is made
    assert problem.on(tags=None).derived(work._uncontended) is not made


def test_a_searcher_asked_twice_about_equal_devices_and_costs_has_one_instance() -> None:
    problem = chain_problem()
    searcher = Searcher("test", Portfolio(), problem, Grouping.identity(12), lambda subject: None)  # type: ignore[arg-type, return-value]
    subject = Subject(None, problem.graph, Grouping.identity(12), problem.topology, problem.costs, 0)
    first, again = (searcher._problem(s, None) for s in (subject, dataclasses.replace(subject, seed=1)))
    assert first.instance is again.instance
    dearer = dataclasses.replace(subject, costs=dataclasses.replace(problem.costs, op_s=2 * problem.costs.op_s))  # type: ignore[arg-type, union-attr, operator]
    assert searcher._problem(dearer, None).instance is not first.instance


@pytest.mark.parametrize("rules", ["T0", "T1", "T2", "sequential", "pipelined"])
def test_the_size_of_a_program_is_known_before_it_is_made(rules: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = wide_problem()
    search = Search(problem, simulator_of(problem, rules), Budget(50), ignore_progress)
    sizes = []

    def solve(self: CpSat, search: Search, made: Any, *_: Any) -> float:
        sizes.append(len(made.model.proto.variables))
        return 0.0

    monkeypatch.setattr(CpSat, "_solve", solve)
    CpSat().run(search, seed=0)
    timed = rules.startswith("T")
    assert sizes
    assert size_of(search) == pytest.approx(sizes[0] / (1 if timed else 4), rel=0.25)


@pytest.mark.parametrize("seconds", [None, 60.0])
def test_the_solver_is_not_asked_about_programs_that_are_too_large(
    seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, asked = wide_problem(), []
    monkeypatch.setattr(CpSat, "run", lambda self, search, *, seed: asked.append(self.largest))
    monkeypatch.setattr(Anneal, "run", lambda self, search, *, seed: None)
    search = Search(problem, simulator_of(problem, "T2"), Budget(100), ignore_progress)
    size = size_of(search)
    per_second = size if seconds is None else math.ceil(size / seconds)
    for solvable in (per_second - 2, per_second):
        asked.clear()
        placed(problem, "T2", Budget(100, seconds), Portfolio(solvable=solvable))
        assert bool(asked) == (solvable == per_second)


@pytest.mark.parametrize(("finds", "times"), [(False, 1), (True, 2)])
def test_a_solver_whose_glance_finds_nothing_is_not_asked_again(
    finds: bool, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def run(self: CpSat, search: Search, *, seed: int) -> None:
        asked.append(search.author)
        if finds:
            search.prove(search.bound_s + 1e-9, "test")

    monkeypatch.setattr(CpSat, "run", run)
    placed(wide_problem(), "T2", Budget(100))
    assert asked == ["cpsat"] * times


@pytest.mark.parametrize("evaluations", [100, 10_000])
def test_without_a_time_limit_the_solver_is_limited_in_proportion_to_the_evaluations(
    evaluations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = []

    def solve(self: Any, model: Any, callback: Any = None) -> Any:
        limits.append((self.parameters.max_deterministic_time, self.parameters.num_workers))
        return cp_model.UNKNOWN

    monkeypatch.setattr(cp_model.CpSolver, "solve", solve)
    monkeypatch.setattr(cp_model.CpSolver, "best_objective_bound", 0.0)
    problem = wide_problem()
    search = Search(problem, simulator_of(problem, "T2"), Budget(evaluations), ignore_progress)
    CpSat(effort=1e-6).run(search, seed=0)
    assert limits == [(pytest.approx(1e-6 * search.left), 1)]


@pytest.mark.parametrize(("per_second", "seconds", "runs"), [(1.0, 40.0, False), (3.0, 40.0, True), (1.0, None, False)])
def test_a_rule_of_thumb_runs_only_if_its_share_of_the_time_suffices(
    per_second: float, seconds: float | None, runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = Spy([])
    monkeypatch.setattr(catalogue, "RULES", {"spy": (spy, per_second)})
    monkeypatch.setattr(Portfolio, "_members", lambda self, _: {"rules": module._Rules(self)})
    monkeypatch.setattr(Anneal, "run", lambda self, search, *, seed: None)
    placed(wide_problem(), "T2", Budget(50, seconds))  # 18 operations
    assert bool(spy.ran) == runs


@pytest.mark.parametrize(("beside", "first"), [(True, "room"), (False, "rules")])
def test_beside_a_large_graph_what_fits_is_sought_before_rules_of_thumb(
    beside: bool, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    monkeypatch.setattr(module, "repair_memory", lambda *_, **__: order.append("room"))
    monkeypatch.setattr(Portfolio, "_rules", lambda *_, **__: order.append("rules"))
    problem = wide_problem(memory_bytes=60)
    search = Search(problem, simulator_of(problem, "T2"), Budget(LONG), ignore_progress)
    assert search.best is None
    module._Rules(Portfolio(), beside).run(search, seed=0)
    assert order[0] == first
    assert sorted(order) == ["room", "rules"]


@pytest.mark.parametrize("seed", [0, 1])
def test_where_memory_is_short_it_fits_with_as_many_evaluations_as_its_members(seed: int) -> None:
    graph = GraphRef("bert", "bert-base-training?layers=4&fidelity=core")
    arena = load_arena(LeagueInstance("transformer", graph, share=1.1))
    assert arena.case.problem is not None
    problem = with_policy(arena.case.problem)
    for placer in (Anneal(), Portfolio(), Hsdag()):
        simulator = arena.case.measurer.bind(arena.case.subject)
        answer = placer.place(problem.on(), simulator, Budget(1000), seed=seed, progress=ignore_progress)
        assert math.isfinite(answer.value_s), placer


@pytest.mark.parametrize(
    ("memory_bytes", "rules", "leads"),
    [(0, "T2", "neural_list"), (60, "T2", "anneal"), (0, "sequential", "anneal")],
)
def test_the_first_lane_is_left_to_what_is_most_often_best_alone(memory_bytes: int, rules: str, leads: str) -> None:
    problem = wide_problem(memory_bytes=memory_bytes)
    search = Search(problem, simulator_of(problem, rules), Budget(seconds=60.0), ignore_progress)
    assert module._leader(search, Portfolio()._members(search)) == leads


@pytest.mark.parametrize(("seconds", "leads"), [(1e-9, "multilevel"), (60.0, "neural_list")])
def test_clusters_lead_where_there_is_no_time_to_move_groups(
    seconds: float, leads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLUSTERED_FIRST", 1)
    problem = wide_problem()
    search = Search(problem, simulator_of(problem, "T2"), Budget(seconds=seconds), ignore_progress)
    assert module._leader(search, Portfolio()._members(search)) == leads


def test_a_minimum_cut_that_proves_itself_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    spy = Spy([])
    monkeypatch.setattr(catalogue, "RULES", {"spy": (spy, 1e9)})
    answer = placed(chain_problem(), "sequential", Budget(1000))
    assert answer.proven
    assert answer.best.found_by == "min_cut"
    assert answer.evaluations is not None
    assert answer.evaluations < 10
    assert not spy.ran


@pytest.mark.parametrize("wrong", [{"annealing": 1.1}, {"workers": 0}, {"solvable": -1}, {"effort": 0.0}])
def test_shares_and_limits_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Portfolio(**wrong)  # type: ignore[arg-type]


def test_nothing_that_is_derived_is_changed_by_who_uses_it() -> None:
    problem = wide_problem()
    before = [np.copy(part) for part in problem.derived(work._uncontended)]
    placed(problem, "T2", Budget(400))
    for part, old in zip(problem.derived(work._uncontended), before, strict=True):
        assert np.array_equal(part, old)
