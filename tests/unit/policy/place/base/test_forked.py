"""Parts of a search in processes of their own: what shows while they run, what comes home, and how they end."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable

import numpy as np
import psutil
import pytest

from pipeline.core.errors import DeviceError, PlacewrightError
from pipeline.core.measurement import Prediction, seconds_of
from pipeline.core.placement import Placement
from pipeline.core.problem import Budget, Progress, ProgressHook
from pipeline.core.simulation import Moves
from pipeline.core.stages import Candidate
from pipeline.system.processors import processor_seconds
from pipeline.testing.simulated import simulator_of, wide_problem
from policy.place.base.forked import Board, can_fork
from policy.place.base.history import History
from policy.place.base.parallel import run_apart, run_parallel
from policy.place.base.search import Method, Search
from policy.place.exact.pipelined.milp import Milp
from policy.place.exact.shared.cpsat import CpSat
from policy.place.portfolio import Portfolio
from tests.toys import ignore_progress

pytestmark = pytest.mark.skipif(not can_fork(), reason="processes are forked on Linux alone")

Part = Callable[[Search], None]
LONG_S = 600.0
HANG_S = 30.0  # of what does not end by itself: longer than any test lets it take


class StopError(Exception):
    """What somebody who wants no more raises."""


def search_of(seconds: float = LONG_S, progress: ProgressHook = ignore_progress) -> Search:
    problem = wide_problem()
    return Search(problem, simulator_of(problem, "T2"), Budget(seconds=seconds), progress, author="test")


def spread(search: Search, offset: int = 0) -> Placement:
    """Return a placement on all devices, as colocation and pins of the problem want it."""
    device = (np.arange(18, dtype=np.int32) + offset) % 3
    device[9], device[5] = device[2], 1
    return Placement(device, search.problem.topology.names)


def idle(_: Search) -> None:
    """Do nothing."""


def endless(fork: Search) -> None:
    moves = Moves.single(np.zeros(8, np.int32), np.arange(8, dtype=np.int32) % 3, np.full(8, np.inf))
    while True:
        fork.local_search(Placement.single(fork.problem.graph.n, 0, fork.problem.topology.names), moves)


def asks(fork: Search) -> None:
    with fork.limited("asking"):
        fork.evaluate([spread(fork), spread(fork, 1)])


def halves(fork: Search) -> None:
    """Find, or so it says, a placement that takes half of the time, and tell of it."""
    placement = spread(fork)
    fork.history.note(placement.digest(), Candidate(placement, Prediction(fork.best_s / 2), "first"))
    fork.evaluate([spread(fork, 1)])


def pid_of(search: Search, *parts: Part) -> int:
    """Return in which process a part ran that tells it by a bound far below any value."""
    run_parallel(search, parts, workers=len(parts))
    return round(1 / search.bound_s)


def test_with_time_as_the_only_limit_parts_run_in_processes_of_their_own() -> None:
    def proves(fork: Search) -> None:
        fork.prove(1 / os.getpid(), "test")

    search = search_of()
    assert pid_of(search, proves, idle) != os.getpid()
    counted = Search(wide_problem(), simulator_of(wide_problem(), "T2"), Budget(10**6, LONG_S), ignore_progress)
    assert pid_of(counted, proves, idle) == os.getpid()  # equal seeds give equal answers there


def test_what_parts_found_proved_and_spent_comes_home() -> None:
    search = search_of()
    before, alone_s = search.spent, search.best_s
    run_parallel(search, [asks, lambda fork: fork.prove(fork.best_s / 3, "somebody")], workers=2)
    assert search.simulator is not None
    assert search.spent == search.simulator.evaluations == before + 2
    found = [candidate for candidate in search.answer().candidates if candidate.found_by == "asking"]
    assert {c.placement.digest() for c in found} == {spread(search).digest(), spread(search, 1).digest()}
    search.evaluate([spread(search)])
    assert search.spent == before + 2  # its value is known
    assert search.history.bound == (pytest.approx(alone_s / 3), "somebody")
    assert "asking" in search.authors


def test_parts_adopt_what_others_find_while_they_run() -> None:
    def adopts(fork: Search) -> None:
        before_s, begun_s = fork.best_s, time.monotonic()
        while fork.best_s == before_s and time.monotonic() - begun_s < 60:
            fork.adopt()
        fork.prove(fork.best_s / 4, "second")

    search = search_of()
    alone_s = search.best_s
    run_parallel(search, [halves, adopts], workers=2)
    assert search.best_s == alone_s / 2
    assert search.bound_s == alone_s / 8
    assert search.answer().candidates[0].found_by == "first"


def test_progress_is_told_here_while_parts_search() -> None:
    told: list[tuple[int, Progress]] = []
    search = search_of(0.5, lambda p: told.append((threading.get_ident(), p)))
    run_parallel(search, [endless, endless], workers=2)
    assert {thread for thread, _ in told} == {threading.get_ident()}
    assert len({p.done for _, p in told}) > 3
    assert told[-1][1].done == search.spent


def test_what_is_late_is_ended_and_what_it_had_shown_is_kept() -> None:
    def late(fork: Search) -> None:
        halves(fork)
        time.sleep(HANG_S)

    search = search_of(0.3)
    alone_s, begun_s = search.best_s, time.monotonic()
    run_parallel(search, [late, idle], workers=2)
    assert time.monotonic() - begun_s < 10
    assert search.best_s == alone_s / 2
    assert search.simulator is not None
    assert search.spent == search.simulator.evaluations


def test_a_part_that_does_not_look_at_the_clock_is_ended_and_the_search_goes_on_beside_others() -> None:
    def hangs(fork: Search) -> None:
        halves(fork)
        time.sleep(HANG_S)

    search, other = search_of(), History(18, wide_problem().topology.names)
    alone_s, begun_s = search.best_s, time.monotonic()
    search.share([other])
    with search.limited("hanging", seconds=0.3):
        run_apart(search, hangs)
    assert time.monotonic() - begun_s < 10
    assert search.best_s == alone_s / 2
    other.prove(alone_s / 8, "other")
    search.adopt()
    assert search.history.bound[1] == "other"
    assert search.left_s > 0


def test_a_part_that_need_not_be_apart_runs_here() -> None:
    def proves(fork: Search) -> None:
        fork.prove(1 / os.getpid(), "test")

    counted = Search(wide_problem(), simulator_of(wide_problem(), "T2"), Budget(10**6, LONG_S), ignore_progress)
    small = search_of()
    for search, above in ((counted, 0), (small, small.problem.graph.n)):
        run_apart(search, proves, above=above)
        assert round(1 / search.bound_s) == os.getpid()
    apart = search_of()
    run_apart(apart, proves)
    assert round(1 / apart.bound_s) != os.getpid()


@pytest.mark.parametrize(("method", "rules"), [(CpSat(), "T2"), (Milp(), "pipelined")])
def test_a_solver_that_hangs_ends_in_time(method: Method, rules: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: object, **__: object) -> None:
        time.sleep(HANG_S)

    monkeypatch.setattr("ortools.sat.python.cp_model.CpSolver.solve", hang)
    monkeypatch.setattr("scipy.optimize.milp", hang)
    problem, begun_s = wide_problem(), time.monotonic()
    answer = method.place(problem, simulator_of(problem, rules), Budget(seconds=1.0), seed=0, progress=ignore_progress)
    assert 0.9 < time.monotonic() - begun_s < 10
    assert math.isfinite(seconds_of(answer.candidates[0].result))


def test_the_proof_of_one_part_ends_the_others() -> None:
    def proves(fork: Search) -> None:
        fork.prove(fork.best_s, "test")

    search = search_of()
    run_parallel(search, [endless, proves], workers=2)
    assert search.proven


def test_what_the_progress_raises_ends_all_parts() -> None:
    def tired(p: Progress) -> None:
        if p.done > 100:
            raise StopError

    before = set(psutil.Process().children())
    with pytest.raises(StopError):
        run_parallel(search_of(progress=tired), [endless, endless], workers=2)
    assert set(psutil.Process().children()) <= before


def test_errors_of_parts_are_raised_here() -> None:
    def refuses(_: Search) -> None:
        raise DeviceError("Not on these devices.", "Use others.")

    def breaks(_: Search) -> None:
        raise StopError("in a part")

    def dies(_: Search) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(PlacewrightError, match="Not on these devices") as refused:
        run_parallel(search_of(), [endless, refuses], workers=2)
    assert refused.value.exit_code == DeviceError.exit_code
    with pytest.raises(RuntimeError, match="in a part"):
        run_parallel(search_of(), [endless, breaks], workers=2)
    with pytest.raises(PlacewrightError, match="SIGKILL"):
        run_parallel(search_of(), [endless, dies], workers=2)


@pytest.mark.parametrize("priority", [None, np.arange(4.0)])
def test_a_board_shows_the_best_that_was_written(priority: np.ndarray[tuple[int], np.dtype[np.float64]] | None) -> None:
    devices = ("A", "B")
    board, history = Board(4, devices), History(4, devices)
    board.look()
    assert (board.leader, board.bound) == (None, (0.0, ""))
    for value_s, author in ((2.0, "first"), (3.0, "second")):
        placement = Placement(np.array([0, 1, int(value_s) % 2, 1], np.int32), devices, priority)
        history = History(4, devices)
        history.note(placement.digest(), Candidate(placement, Prediction(value_s), author))
        history.prove(value_s / 4, author)
        board.write(history)
    board.look()
    assert board.leader is not None
    assert (board.leader.found_by, seconds_of(board.leader.result)) == ("first", 2.0)
    assert board.leader.placement.device.tolist() == [0, 1, 0, 1]
    assert (board.leader.placement.priority is None) == (priority is None)
    assert priority is None or np.array_equal(board.leader.placement.priority, priority)  # type: ignore[arg-type]
    assert board.bound == (0.75, "second")


def test_a_portfolio_ends_in_time_and_is_no_worse_than_its_parts() -> None:
    problem = wide_problem()
    begun_s = time.monotonic()
    simulator = simulator_of(problem, "T2")
    found = Portfolio().place(problem, simulator, Budget(seconds=0.5), seed=0, progress=ignore_progress)
    assert time.monotonic() - begun_s < 5
    assert math.isfinite(found.value_s)
    assert found.value_s <= search_of().best_s


def test_the_processor_time_of_parts_counts_as_that_of_the_search() -> None:
    begun_s, own_s = processor_seconds(), time.process_time()
    run_parallel(search_of(0.5), [endless, endless], workers=2)
    assert processor_seconds() - begun_s > 2 * (time.process_time() - own_s)
