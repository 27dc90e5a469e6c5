"""Methods that others call are interruptible: they look at the clock in between, and hand over what they have."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest

from pipeline.core.measurement import MeasurementFailed, Prediction
from pipeline.core.placement import Placement
from pipeline.core.problem import Budget, Problem
from pipeline.core.simulation import Moves
from pipeline.core.stages import Candidate, is_interruptible
from pipeline.settings.registry import build_implementation
from pipeline.testing.simulated import check_deadline, simulator_of, wide_problem
from policy.place import portfolio as module
from policy.place.base.parallel import run_parallel
from policy.place.base.search import BudgetEndedError, Method, Search
from policy.place.exact.calls.latency_dp import LatencyDp
from policy.place.exact.calls.series import SeriesProgram
from policy.place.exact.shared.stages import order_of, prefixes_of
from policy.place.learned.neural_list.instances import list_instances
from policy.place.learned.neural_list.list_policy import shipped
from policy.place.learned.neural_list.planning import plans
from policy.place.learned.neural_list.sampling import Noise
from policy.place.lists import listing
from policy.place.lists.etf import earliest_first, no_favourites, static_level
from policy.place.lists.listing import list_schedule
from policy.place.lists.m_sct import relaxed
from policy.place.lists.work import upward, work_of
from policy.place.local.anneal import Anneal, AnnealFurther, BudgetClock, Cooling, OvertakenError
from policy.place.local.packings import packings
from policy.place.local.room import repair_memory
from policy.place.portfolio import Portfolio
from policy.place.rules import catalogue
from tests.small_cases import small_case
from tests.toys import ignore_progress
from tests.unit.policy.place.exact.shared.test_exact_clock import lanes


def search_of(problem: Problem, rules: str = "T2", budget: Budget | None = None) -> Search:
    return Search(problem, simulator_of(problem, rules), budget or Budget(10_000), ignore_progress, author="test")


def ended(times: int) -> Callable[[], None]:
    """Return what lets go on so many times, and then raises."""
    left = iter([True] * times)

    def look() -> None:
        if not next(left, False):
            raise BudgetEndedError

    return look


@pytest.mark.parametrize("kind", ["list", "insertion", "etf", "learned"])
def test_a_schedule_made_in_slices_is_the_same_and_ends_when_told_to(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = search_of(wide_problem())
    work = work_of(search.problem, execution=search.execution)

    def schedule(look: Callable[[], None]) -> tuple[list[float], list[int]]:
        if kind == "learned":
            instance = replace(list_instances(search)[0], look=look)
            made = instance.schedule(shipped()[0].scores(instance.context), width=4)
        elif kind == "etf":
            made = earliest_first(work, static_level(work), no_favourites(work), look)
        else:
            made = list_schedule(work, -upward(work), np.zeros(work.op_s.shape), kind == "insertion", look)
        return made.finish_s.tolist(), made.homes.device.tolist()

    whole = schedule(ended(0))  # small ones are made in one go, and nobody looks
    monkeypatch.setattr(listing, "CELLS", 1)
    assert schedule(ended(10**6)) == whole
    with pytest.raises(BudgetEndedError):
        schedule(ended(5))


def test_what_was_planned_before_the_time_ended_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    search = search_of(wide_problem())
    monkeypatch.setattr(listing, "CELLS", 1)
    noise, rng = Noise(0.4, 0.1), np.random.default_rng(0)
    monkeypatch.setattr(search, "look", ended(200))  # a schedule of 18 operations takes 18 looks
    some = plans(list_instances(search), shipped(), noise, rng)
    monkeypatch.setattr(search, "look", ended(10**6))
    assert 1 <= len(some) < len(plans(list_instances(search), shipped(), noise, np.random.default_rng(0)))
    monkeypatch.setattr(search, "look", ended(3))
    assert plans(list_instances(search), shipped(), noise, rng) == []


def test_a_linear_program_without_time_is_given_up() -> None:
    work = work_of(wide_problem())
    producer = np.repeat(np.arange(work.order.size), np.diff(work.out_ptr))
    apart = work.group[producer] != work.group[work.out_node]
    assert relaxed(work, producer, apart) is not None
    assert relaxed(work, producer, apart, 0.0) is None


def test_a_part_that_runs_out_of_time_ends_quietly_and_the_search_goes_on() -> None:
    search = search_of(wide_problem(), budget=Budget(seconds=60.0))
    with search.limited("part", seconds=0.0):
        search.look()
        raise AssertionError("the look must end the part")
    search.look()
    assert search.left_s > 0


def test_nobody_waits_for_a_search_that_was_stopped() -> None:
    search = search_of(wide_problem(), budget=Budget(seconds=60.0))
    search.stopped = lambda: True
    assert search.left_s == 0
    with pytest.raises(BudgetEndedError):
        search.look()


@dataclass(frozen=True, slots=True)
class Stubborn(Method):
    """Takes all the time that it is given, and finds nothing."""

    def run(self, search: Search, *, seed: int) -> None:
        while search.left_s > 0:
            pass


def test_a_member_that_never_comes_back_takes_its_share_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "RULES", {})
    members = {"multilevel": Stubborn(), "anneal": AnnealFurther()}
    monkeypatch.setattr(Portfolio, "_members", lambda *_: dict(members))
    monkeypatch.setattr(module, "enumerated", lambda _: False)
    problem = wide_problem()
    answer = Portfolio().place(
        problem, simulator_of(problem, "T2"), Budget(seconds=1.0), seed=0, progress=ignore_progress
    )
    assert answer.best.found_by == "anneal"
    rounds = Portfolio(workers=1).place(
        problem, simulator_of(problem, "T2"), Budget(seconds=1.0), seed=0, progress=ignore_progress
    )
    assert rounds.best.found_by == "anneal"  # on one core, too


def test_a_member_that_improves_is_called_again_before_one_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    called = list[str]()

    @dataclass(frozen=True, slots=True)
    class Member(Method):
        name: str
        gains: bool

        def run(self, search: Search, *, seed: int) -> None:
            called.append(self.name)
            search.spent += 1
            if self.gains:
                search.prove(search.bound_s + 0.01 * search.best_s, "test")

    search = search_of(wide_problem(), budget=Budget(30))
    members = {"idle": Member("idle", False), "busy": Member("busy", True)}
    Portfolio()._follow(search, members, 0)
    assert called[:2] == ["idle", "busy"]
    assert set(called[2:]) == {"busy"}


def test_a_member_that_spends_nothing_is_not_called_again() -> None:
    search = search_of(wide_problem(), budget=Budget(30))

    @dataclass(frozen=True, slots=True)
    class Idle(Method):
        def run(self, search: Search, *, seed: int) -> None: ...

    Portfolio()._follow(search, {"idle": Idle()}, 0)  # comes back
    assert search.left > 0


@pytest.mark.parametrize(
    ("before", "after", "gain"),
    [
        ((math.inf, 0.0), (math.inf, 0.0), 0.0),
        ((math.inf, 0.0), (2.0, 0.0), 1.0),
        ((4.0, 1.0), (3.0, 1.0), 0.25),
        ((4.0, 1.0), (4.0, 3.0), 0.05),  # a tenth of half of the incumbent
    ],
)
def test_a_gain_is_the_share_by_which_the_incumbent_fell_and_a_tenth_of_what_the_bound_rose(
    before: tuple[float, float], after: tuple[float, float], gain: float
) -> None:
    assert module._gain(before, after) == pytest.approx(gain)


def test_lanes_tell_one_another_what_they_find_only_where_time_is_limited() -> None:
    problem = wide_problem()
    device = np.arange(18, dtype=np.int32) % 3
    device[9], device[5] = device[2], 1  # colocated, and pinned
    found = Placement(device, problem.topology.names)

    def knows(budget: Budget) -> bool:
        search, known = search_of(problem, budget=budget), list[bool]()

        def finds(fork: Search) -> None:
            fork.evaluate([found])

        def adopts(fork: Search) -> None:
            fork.adopt()
            known.append(fork.best is not None and fork.best.key() == found.key())

        run_parallel(search, [finds, adopts], workers=1)  # the one after the other
        return known[0]

    assert knows(Budget(1000, seconds=60.0))
    assert not knows(Budget(1000))


def test_packings_are_made_as_they_are_asked_for_and_only_once() -> None:
    search = search_of(wide_problem(memory_bytes=80))
    first = next(packings(search))
    every = list(packings(search))
    assert every[0] is first
    assert [p.tolist() for p in packings(search)] == [p.tolist() for p in every]
    assert len({p.tobytes() for p in every}) == len(every) > 4


def test_making_room_stops_packing_when_its_share_of_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = wide_problem(memory_bytes=80)
    every = len(list(packings(search_of(problem))))
    asked = list[int]()

    def some(search: Search) -> Iterator[np.ndarray]:
        for i in range(every):
            asked.append(i)
            search._last_s -= 10.0  # as though it took 10 s
            yield np.zeros(18, np.int32)

    monkeypatch.setattr("policy.place.local.room.packings", some)
    search = search_of(problem, budget=Budget(seconds=100.0))
    repair_memory(search, seed=0)
    assert len(asked) == 3  # 0.3 of the time, as nothing fits


# Cases whose memory the outputs fill, of which the solver's program knows nothing.
@pytest.mark.parametrize("number", [8, 26, 112, 176, 190, 208, 234, 278, 280, 290])
def test_the_solver_alone_places_what_fits_with_its_activations(number: int) -> None:
    case = small_case(number)
    answer = build_implementation("place", "cpsat").place(
        case.problem, case.simulator(), Budget(3000), seed=0, progress=ignore_progress
    )
    assert math.isfinite(answer.value_s)
    assert case.again_s(answer.best.placement) == pytest.approx(answer.value_s, rel=1e-12)


def test_calls_begin_with_intervals_of_an_order_whatever_becomes_of_the_ideals() -> None:
    problem = lanes(9)  # 3 ** 9 ideals
    search = search_of(problem, "latency", Budget(10_000, seconds=4.0))
    program = SeriesProgram.of(problem)
    assert program is not None
    ideals = prefixes_of(program.stages, order_of(program.stages.elements, -np.arange(18.0)))
    assert ideals.size == 19
    staged = program.least_sum(ideals, lambda: True)
    assert staged is not None
    LatencyDp(memory_mb=1).run(search, seed=0)  # no room for all ideals
    assert "ideals" not in search.details
    assert search.best_s <= search_of(problem, "latency").evaluate([program.placement(staged.device)])[0]


def test_a_simulator_that_is_interrupted_says_so_and_works_again() -> None:
    problem = wide_problem()
    problem = problem.on(costs=None if problem.costs is None else _launching(problem))
    simulator = simulator_of(problem, "sequential")
    assert is_interruptible(simulator)
    device = np.zeros(18, np.int32)
    device[[1, 2, 3, 4, 5, 9]] = 1  # one chain is elsewhere, so that source, sink and other chains wait for it
    placement = Placement(device, problem.topology.names)
    known_s = simulator_of(problem, "sequential").simulate(device[None]).value_s[0]
    simulator.interrupt()
    [answer] = simulator.evaluate([placement])
    assert isinstance(answer, MeasurementFailed)
    assert answer.kind == "timeout"
    assert simulator.simulate(device[None]).value_s.tolist() == [math.inf]
    moves = Moves.single(np.zeros(4, np.int32), np.array([0, 1, 2, 0], np.int32), np.full(4, math.inf))
    local_search = simulator.local_search(placement, moves, allowed=problem.allowed, limit=10)
    assert (local_search.evaluations, local_search.best_s) == (0, math.inf)
    simulator.resume()
    assert simulator.simulate(device[None]).value_s[0] == known_s
    assert math.isfinite(known_s)


def _launching(problem: Problem):  # type: ignore[no-untyped-def]
    assert problem.costs is not None
    return replace(problem.costs, launch_s=np.full(3, 1e-3))


@dataclass(frozen=True, slots=True)
class Late(Method):
    """Asks on when its time is up."""

    def run(self, search: Search, *, seed: int) -> None:
        rng, p = np.random.default_rng(seed), search.problem.topology.p
        for _ in range(2000):
            device = rng.integers(p, size=(1, search.problem.graph.n)).astype(np.int32)
            assert search.simulator is not None
            search.simulator.simulate(device)


def test_a_placer_that_asks_on_when_its_time_is_up_is_found() -> None:
    with pytest.raises(AssertionError, match=r"Late\(\) asks its evaluator \d+ times after its time is up"):
        check_deadline(Late())


@pytest.mark.parametrize(
    ("elapsed_s", "ahead", "expected"), [(0, 2.0, "on"), (60, 2.0, "again"), (60, 1.01, "from"), (60, 1.0, "on")]
)
def test_a_local_search_goes_on_from_what_others_found_or_begins_again_where_it_is_far_behind(
    elapsed_s: float, ahead: float, expected: str
) -> None:
    search, other = (search_of(wide_problem(), budget=Budget(seconds=100.0)) for _ in range(2))
    search.share([other.history])
    device = np.arange(18, dtype=np.int32) % 3
    device[9], device[5] = device[2], 1  # colocated, and pinned
    found = Placement(device, search.problem.topology.names)
    other.history.note(found.digest(), Candidate(found, Prediction(search.best_s / ahead), "other"))
    clock = BudgetClock(search, time.monotonic() - elapsed_s, 0, 10**6, 100.0)
    cooling = Cooling(clock, 1.0, 1.0, 0.1)
    if expected == "again":
        with pytest.raises(OvertakenError):
            Anneal()._adopted(search, cooling)
        return
    adopted = Anneal()._adopted(search, cooling)
    assert (adopted is not None and adopted.key() == found.key()) == (expected == "from")
