"""Parts of a search on threads of their own: what they share, what is counted, and how they end."""

from __future__ import annotations

import threading
from functools import partial

import numpy as np
import pytest

from pipeline.core.placement import Placement
from pipeline.core.problem import Budget, Problem, Progress, ProgressHook
from pipeline.core.simulation import Moves
from pipeline.testing.simulated import SIMULATORS, simulator_of, wide_problem
from policy.place.base.parallel import run_parallel
from policy.place.base.search import Search
from policy.place.local.anneal import Anneal
from tests.toys import ToyEvaluator, ignore_progress

ENDLESS = 10**9


class StopError(Exception):
    """What somebody who wants no more raises."""


def search_of(problem: Problem, budget: Budget, progress: ProgressHook = ignore_progress) -> Search:
    return Search(problem, simulator_of(problem, "T2"), budget, progress, author="test")


def annealed(workers: int, progress: ProgressHook = ignore_progress) -> Search:
    """Return a search after three walks side by side."""
    search = search_of(wide_problem(), Budget(3000), progress)
    run_parallel(search, [partial(Anneal().run, seed=seed) for seed in range(3)], workers=workers)
    return search


def endless(fork: Search) -> None:
    moves = Moves.single(np.zeros(8, np.int32), np.arange(8, dtype=np.int32) % 3, np.full(8, np.inf))
    while True:
        fork.local_search(Placement.single(fork.problem.graph.n, 0, fork.problem.topology.names), moves)


def test_without_a_time_limit_the_number_of_workers_changes_nothing() -> None:
    one, two = annealed(1).answer(), annealed(2).answer()
    assert one.evaluations == two.evaluations
    assert [c.placement.key() for c in one.candidates] == [c.placement.key() for c in two.candidates]
    assert one.value_s == two.value_s


@pytest.mark.parametrize("workers", [1, 2])
def test_what_parts_found_is_taken_over_in_the_order_of_the_parts(workers: int) -> None:
    search = search_of(wide_problem(), Budget(100))
    device = np.arange(18, dtype=np.int32) % 3
    device[9], device[5] = device[2], 1  # tied, and pinned
    placement = Placement(device, search.problem.topology.names)

    def asks(fork: Search, author: str) -> None:
        fork.evaluate([placement], author=author)

    run_parallel(search, [partial(asks, author=author) for author in ("first", "second", "third")], workers=workers)
    [found] = [c for c in search.answer().candidates if c.placement.key() == placement.key()]
    assert found.found_by == "first"


@pytest.mark.parametrize("evaluations", [99, 100, 101])
def test_parts_share_all_evaluations_that_are_left(evaluations: int) -> None:
    search, shares = search_of(wide_problem(), Budget(evaluations)), list[int]()
    left = search.left
    run_parallel(search, [lambda fork: shares.append(fork.left)] * 3, workers=1)
    assert sum(shares) == left
    assert max(shares) - min(shares) <= 1


def test_all_that_parts_evaluate_is_counted_and_within_the_budget() -> None:
    search = annealed(2)
    assert search.simulator is not None
    assert search.spent == search.simulator.evaluations <= 3000
    assert search.spent > 1500  # more than one part alone may spend


def test_progress_is_told_on_the_thread_of_the_caller_and_rises_to_all_that_was_spent() -> None:
    told: list[tuple[int, Progress]] = []
    search = annealed(2, lambda p: told.append((threading.get_ident(), p)))
    assert {thread for thread, _ in told} == {threading.get_ident()}
    done = [p.done for _, p in told]
    assert done == sorted(set(done))
    assert done[-1] == search.spent
    assert told[-1][1].value_s == search.best_s


def test_what_the_progress_raises_ends_all_parts() -> None:
    before = threading.active_count()

    def tired(p: Progress) -> None:
        if p.done > 100:
            raise StopError

    search = search_of(wide_problem(), Budget(ENDLESS), tired)
    with pytest.raises(StopError):
        run_parallel(search, [endless, endless], workers=2)
    assert threading.active_count() == before


def test_what_a_part_raises_ends_the_others_and_reaches_the_caller() -> None:
    def faulty(fork: Search) -> None:
        raise StopError(str(fork.author))

    before = threading.active_count()
    with pytest.raises(StopError, match="test"):
        run_parallel(search_of(wide_problem(), Budget(ENDLESS)), [endless, faulty], workers=2)
    assert threading.active_count() == before


def test_with_a_time_limit_the_proof_of_one_part_ends_the_others() -> None:
    def proves(fork: Search) -> None:
        fork.prove(fork.best_s, "test")

    search = search_of(wide_problem(), Budget(ENDLESS, seconds=3600.0))
    run_parallel(search, [endless, proves], workers=2)
    assert search.proven


def test_a_search_that_measures_is_not_shared_by_threads() -> None:
    problem = wide_problem()
    search = Search(problem, ToyEvaluator.of(problem), Budget(9), ignore_progress)
    with pytest.raises(ValueError, match="simulator"):
        search.fork("test", evaluations=1, progress=ignore_progress)


@pytest.mark.parametrize("rules", sorted(SIMULATORS))
def test_a_fork_of_a_simulator_says_the_same_and_counts_by_itself(rules: str) -> None:
    problem = wide_problem()
    simulator = simulator_of(problem, rules)
    simulator.simulate(np.zeros((2, 18), np.int32))
    fork = simulator.fork()
    assert fork.evaluations == 0
    assert (fork.fingerprint, fork.execution) == (simulator.fingerprint, simulator.execution)
    placements = np.random.default_rng(0).integers(0, 3, (5, 18)).astype(np.int32)
    assert fork.simulate(placements).value_s.tolist() == simulator.simulate(placements).value_s.tolist()
    assert (simulator.evaluations, fork.evaluations) == (7, 5)
    simulator.absorb(fork.evaluations)
    assert simulator.evaluations == 12
