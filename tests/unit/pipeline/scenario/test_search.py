"""The search: it finds the best configuration, claims what starts support, and goes on after an interruption."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.core.deadline import Deadline
from pipeline.core.errors import MeasurementError
from pipeline.core.measurement import MeasurementFailed
from pipeline.core.scenario import LoadScenario, ModelLoad, ScenarioObjective
from pipeline.core.settings import MeasureSettings
from pipeline.scenario.configurations import BASELINES, HINTS, ConfigurationSpace, configured
from pipeline.scenario.figures import EXACT, NEAR, LoadMultiples, StartTurns, Yardstick
from pipeline.scenario.run import configuration_record
from pipeline.scenario.search import STEP, ScenarioOutcome, ScenarioSearch, StartJournal
from runtime.machines.devices import Plugin
from runtime.measuring.contest.statistics import TWIN
from runtime.measuring.contest.variant import Variant
from runtime.measuring.load.bench import LoadConfiguration, Seats
from tests.unit.pipeline.scenario.fake_bench import FakeBench, Time

KEYS = ("INFERENCE_NUM_THREADS", "NUM_STREAMS", "ENABLE_CPU_PINNING", "ENABLE_CPU_RESERVATION", "PERFORMANCE_HINT")
CPU = Plugin("CPU", "a CPU", "1", 0, ("f32",), "f32", frozenset((*KEYS, "INFERENCE_PRECISION_HINT")))
OPEN = (ModelLoad("a", rate=10, deadline_s=0.1), ModelLoad("b", rate=20, deadline_s=0.05))
CLOSED = (ModelLoad("a"), ModelLoad("b"))


def reserved_is_best(model: str, configuration: LoadConfiguration) -> float:
    given = [variant.devices[0].properties for _, variant in configuration.models]
    alone = all(p.get("ENABLE_CPU_RESERVATION") == "YES" and p["INFERENCE_NUM_THREADS"] == "1" for p in given)
    return {"a": 0.004, "b": 0.002}[model] * (0.5 if alone and given else 1.0)


def all_alike(model: str, configuration: LoadConfiguration) -> float:
    return 0.003


def search(
    folder: Path,
    bench: FakeBench,
    models: Sequence[ModelLoad] = CLOSED,
    objective: ScenarioObjective = "throughput",
    *,
    budget_s: float = 400.0,
    check: Callable[[str, Variant], MeasurementFailed | None] = lambda model, variant: None,
    memory_bytes: int = 0,
) -> ScenarioOutcome:
    folder.mkdir(exist_ok=True)
    scenario = LoadScenario(tuple(models), objective, memory_bytes=memory_bytes)
    deadline = Deadline.after(budget_s, bench.clock)
    plugins = {load.name: {"CPU": CPU} for load in models}
    made = ScenarioSearch(
        scenario,
        ConfigurationSpace(scenario, plugins, processors=2),
        bench,
        Yardstick(scenario, deadline=deadline),
        MeasureSettings(),
        deadline,
        StartJournal.of(folder / "starts.jsonl", "here"),
        check,
        lambda text: None,
    )
    return made.run()


@pytest.mark.parametrize(("models", "objective"), [(CLOSED, "throughput"), (OPEN, "latency"), (OPEN, "load")])
def test_the_best_configuration_is_found_and_its_gain_claimed(
    tmp_path: Path, models: Sequence[ModelLoad], objective: ScenarioObjective
) -> None:
    found = search(tmp_path, FakeBench(reserved_is_best), models, objective)
    assert "reserved" in found.best
    assert found.judgement is not None
    ratio = found.judgement.ratios[found.best]
    assert ratio.low < 2 < ratio.high or 1.7 < ratio.ratio < 2.5
    assert found.control in ("plug-in defaults", "latency hint", "throughput hint")


def test_no_gain_is_claimed_where_all_are_alike(tmp_path: Path) -> None:
    found = search(tmp_path, FakeBench(all_alike))
    assert found.judgement is not None
    assert found.judgement.claimed == ()
    assert found.best == found.control


def test_the_multiple_that_is_said_to_hold_is_near_the_true_one(tmp_path: Path) -> None:
    # One server each, 2 ms of work and periodic: the greatest load is 500 per second of a, or 50 times its rate.
    models = [
        ModelLoad("a", rate=10, arrivals="periodic", deadline_s=0.005),
        ModelLoad("b", rate=1, deadline_s=math.inf),
    ]
    found = search(tmp_path, FakeBench(reserved_is_best, noise=0.001), models, "load", budget_s=2000)
    assert found.checked is not None
    assert found.checked.holds
    assert 42 < found.checked.multiple < 52


def test_configurations_of_a_start_are_loaded_together_and_take_turns(tmp_path: Path) -> None:
    bench = FakeBench(reserved_is_best)
    found = search(tmp_path, bench)
    final = [name for (name, _), beside in zip(bench.windows, bench.beside, strict=True) if beside > 2]
    n = max(bench.beside)
    assert set(final) >= {found.control, found.best, TWIN, *(BASELINES[kind] for kind in HINTS)}
    one, two = final[:n], final[n : 2 * n]
    assert one == list(reversed(two))
    assert sorted(one) == sorted(set(one))


def test_a_first_sight_that_held_and_then_missed_has_a_load_multiple_between() -> None:
    # One server each, 3 ms of work and periodic: the greatest load is 33 times the rate of a.
    models = [ModelLoad("a", rate=10, arrivals="periodic", deadline_s=0.01), ModelLoad("b", rate=1, deadline_s=9.0)]
    bench = FakeBench(all_alike, noise=0.0)
    with bench.seat(configured("", {}, "process")) as seats:
        sight = Yardstick(LoadScenario(tuple(models), "load")).sight(seats, 0, 20.0)
    assert sight.windows == 2
    assert sight.held
    assert sight.multiple == 20.0 < math.exp(sight.goodness) < 45.0


def test_a_first_sight_that_holds_nothing_has_no_load_multiple(tmp_path: Path) -> None:
    def slow_hint(model: str, configuration: LoadConfiguration) -> float:
        return 0.004 * (20 if configuration.name == "latency hint" else 1)

    found = search(tmp_path, FakeBench(slow_hint), OPEN, "load")
    entrant = found.entrants["latency hint"]
    assert entrant.sight is not None
    assert not entrant.sight.held
    scenario = LoadScenario(OPEN, "load")
    record = configuration_record(scenario, entrant, found, MeasureSettings(), {})
    assert (record.value, record.sight, record.below) == (None, None, entrant.sight.multiple)
    known = configuration_record(scenario, found.entrants[found.best], found, MeasureSettings(), {})
    assert known.value is not None
    assert known.below is None


def test_a_start_looks_near_what_its_configuration_held_at_first_sight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = dict[str, dict[int, float]]()

    def recorded(yardstick: Yardstick, seats: Seats, seed: int, guess: float) -> StartTurns:
        first.setdefault(seats.configuration.name, {})[seed] = guess
        return StartTurns(yardstick, seats, seed, guess)

    monkeypatch.setattr("pipeline.scenario.search.StartTurns", recorded)
    found = search(tmp_path, FakeBench(reserved_is_best), OPEN, "load")
    best, twin = found.entrants[found.best], found.entrants[found.control]
    assert best.sight is not None
    assert twin.sight is not None
    assert best.sight.goodness > twin.sight.goodness + 0.4
    for name, sight in ((found.best, best.sight), (TWIN, twin.sight), (found.control, twin.sight)):
        assert [math.log(guess) for guess in first[name].values()] == pytest.approx([sight.goodness] * len(first[name]))
    assert len(set(first[TWIN])) == len(first[TWIN]) > 2  # arrivals of their own


@pytest.mark.parametrize(("times", "low", "high"), [(1.6, 0.4, 0.8), (0.7, 1.0, 2.0)])
def test_a_check_says_what_it_has_seen_to_hold_be_it_less_or_more(
    tmp_path: Path, times: float, low: float, high: float
) -> None:
    def otherwise_when_checked(model: str, configuration: LoadConfiguration) -> float:
        return reserved_is_best(model, configuration) * (times if bench.seated[-1][1] else 1.0)

    bench = FakeBench(otherwise_when_checked)
    found = search(tmp_path, bench, OPEN, "load", budget_s=2000)
    assert found.checked is not None
    assert found.checked.holds
    assert low < found.checked.multiple / math.exp(found.entrants[found.best].standing) < high


def test_the_check_runs_in_a_new_process(tmp_path: Path) -> None:
    bench = FakeBench(reserved_is_best)
    found = search(tmp_path, bench)
    assert bench.seated[-1] == (found.best, True)
    assert not any(new for _, new in bench.seated[:-1])


def test_a_gain_is_claimed_though_the_machine_changes_more_from_start_to_start(tmp_path: Path) -> None:
    def fifth_better(model: str, configuration: LoadConfiguration) -> float:
        better = reserved_is_best(model, configuration) < reserved_is_best(model, configured("", {}, "process"))
        return 0.004 * (0.8 if better else 1.0)

    def by_the_minute(now_s: float) -> float:
        return 1.6 if int(now_s / 11.0) % 2 else 1.0

    found = search(tmp_path, FakeBench(fifth_better, disturbed=by_the_minute, noise=0.02), budget_s=200)
    assert found.judgement is not None
    assert "reserved" in found.best


@pytest.mark.parametrize("objective", ["throughput", "load"])
def test_without_a_significant_gain_the_answer_is_the_best_baseline(
    tmp_path: Path, objective: ScenarioObjective
) -> None:
    def hint_is_best(model: str, configuration: LoadConfiguration) -> float:
        return 0.004 * (0.7 if configuration.name in ("throughput hint", TWIN) else 1.0)

    models = CLOSED if objective == "throughput" else OPEN
    found = search(tmp_path, FakeBench(hint_is_best, noise=0.1), models, objective, budget_s=150)
    assert found.best == "throughput hint"


def test_a_bad_start_of_a_final_that_was_cut_short_does_not_choose_the_answer(tmp_path: Path) -> None:
    def slow_beside_others(model: str, configuration: LoadConfiguration) -> float:
        if len(bench.present) < 2:
            return 0.0036 if configuration.name == "plug-in defaults" else 0.004
        bench.clock.now_s += 0.5  # turns take longer than they should
        return 0.036 if configuration.name in ("plug-in defaults", TWIN) else 0.004

    bench = FakeBench(slow_beside_others, noise=0.0)
    found = search(tmp_path, bench, budget_s=60)
    assert 0 < len(found.entrants["plug-in defaults"].starts) < MeasureSettings().least_starts
    assert found.best == "latency hint"


def test_an_interrupted_search_goes_on_where_it_was(tmp_path: Path) -> None:
    whole = FakeBench(reserved_is_best)
    found = search(tmp_path / "whole", whole)

    class KilledError(Exception):
        pass

    def until_start(count: int) -> FakeBench:
        bench = FakeBench(reserved_is_best)

        def refused(configuration: LoadConfiguration) -> str:
            if len(bench.seated) > count:
                raise KilledError
            return ""

        bench.refused = refused
        return bench

    with pytest.raises(KilledError):
        search(tmp_path / "cut", until_start(15))
    with (tmp_path / "cut" / "starts.jsonl").open("a") as journal:
        journal.write('{"context": "here", "key": "torn')
    again = FakeBench(reserved_is_best)
    resumed = search(tmp_path / "cut", again)
    assert "reserved" in resumed.best
    assert "reserved" in found.best
    assert len(again.seated) <= len(whole.seated) - 15


def test_the_budget_is_a_deadline(tmp_path: Path) -> None:
    for budget_s in (20.0, 60.0, 120.0):
        bench = FakeBench(reserved_is_best)
        search(tmp_path / str(budget_s), bench, OPEN, "load", budget_s=budget_s)
        assert bench.clock() < 1.1 * budget_s + 10


def test_a_configuration_that_fails_is_named_with_its_model_and_is_not_the_answer(tmp_path: Path) -> None:
    def refused(configuration: LoadConfiguration) -> str:
        return "b" if "reserved" in configuration.name else ""

    found = search(tmp_path, FakeBench(reserved_is_best, refused=refused))
    failed = [e for e in found.entrants.values() if e.failed is not None]
    assert failed
    assert {e.failed_model for e in failed} == {"b"}
    assert found.best not in [e.candidate.name for e in failed]


def test_wrong_outputs_leave(tmp_path: Path) -> None:
    def wrong(model: str, variant: Variant) -> MeasurementFailed | None:
        bad = "reserved" in variant.name and model == "a"
        return MeasurementFailed("wrong_output", "off by 1") if bad else None

    found = search(tmp_path, FakeBench(reserved_is_best), check=wrong)
    assert "reserved" not in found.best
    assert any(e.failed_model == "a" for e in found.entrants.values())


def test_nothing_runs(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match="b: no such layer"):
        search(tmp_path, FakeBench(all_alike, refused=lambda configuration: "b"))


def test_a_model_that_fails_under_load_is_named(tmp_path: Path) -> None:
    bench = FakeBench(all_alike, fails={"b": MeasurementFailed("timeout", "it hangs")})
    with pytest.raises(MeasurementError, match="b: it hangs"):
        search(tmp_path, bench)


def test_a_deadline_that_no_request_can_keep_is_named(tmp_path: Path) -> None:
    models = [ModelLoad("a", rate=10, deadline_s=0.001), ModelLoad("b", rate=10, deadline_s=1.0)]
    with pytest.raises(MeasurementError, match="The deadline of a, 1 ms, cannot be kept") as caught:
        search(tmp_path, FakeBench(all_alike), models, "load")
    assert "3 ms at best" in caught.value.cause


def test_fifty_models_are_searched(tmp_path: Path) -> None:
    found = search(tmp_path, FakeBench(all_alike), [ModelLoad(f"m{i}") for i in range(50)], budget_s=200)
    assert len(found.entrants[found.best].candidate.configuration.models) == 50


@pytest.mark.parametrize("budget_s", [50.0, 60.0, 75.0, 90.0])
def test_screening_leaves_time_for_a_final(tmp_path: Path, budget_s: float) -> None:
    bench = FakeBench(reserved_is_best)
    found = search(tmp_path, bench, budget_s=budget_s)
    assert found.judgement is not None
    assert found.missing_s == 0
    assert bench.clock() <= budget_s


@pytest.mark.parametrize("budget_s", [120.0, 150.0])
@pytest.mark.parametrize("times", [1.0, 3.0, 20.0])
def test_a_load_that_should_grow_has_a_final(tmp_path: Path, budget_s: float, times: float) -> None:
    models = [replace(m, rate=m.rate * times, deadline_s=m.deadline_s / times) for m in OPEN]

    def as_much_work(model: str, configuration: LoadConfiguration) -> float:
        return 3 * reserved_is_best(model, configuration) / times

    bench = FakeBench(as_much_work)
    found = search(tmp_path, bench, models, "load", budget_s=budget_s)
    assert "reserved" in found.best
    for name in (found.control, found.best, TWIN):
        assert len(found.entrants[name].starts) >= MeasureSettings().least_starts
    assert bench.clock() <= budget_s + 10
    assert found.checked is not None
    assert all(f.holds for f in found.checked.stated)


def test_a_final_that_does_not_fit_is_begun_and_a_later_run_goes_on(tmp_path: Path) -> None:
    def as_much_work(model: str, configuration: LoadConfiguration) -> float:
        return 3 * reserved_is_best(model, configuration)

    bench = FakeBench(as_much_work)
    found = search(tmp_path, bench, OPEN, "load", budget_s=36.0)
    begun = {name: dict(e.starts) for name, e in found.entrants.items() if e.starts}
    assert {len(starts) for starts in begun.values()} == {1}
    assert TWIN in begun
    assert found.missing_s > 0
    assert found.judgement is not None
    assert not found.judgement.claimed
    assert bench.clock() <= 37
    again = search(tmp_path, FakeBench(as_much_work), OPEN, "load", budget_s=36.0)
    assert again.missing_s == 0
    assert "reserved" in again.best
    for name in begun:
        assert again.entrants[name].starts[1].goodness == begun[name][1].goodness
        assert len(again.entrants[name].starts) >= MeasureSettings().least_starts


def test_a_first_multiple_that_is_too_great_is_lowered_after_several_missed_it(tmp_path: Path) -> None:
    def slow_together(model: str, configuration: LoadConfiguration) -> float:
        return 0.012 if len(configuration.models) > 1 else 0.001

    bench = FakeBench(slow_together)
    found = search(tmp_path, bench, OPEN, "load")
    sights = [e.sight for e in found.entrants.values() if e.sight is not None]
    first = sights[0].multiple
    assert [s.held for s in sights[:3]] == [False] * 3
    assert [s.multiple for s in sights[:3]] == [first] * 3
    assert all(first > s.multiple >= first / STEP**4 for s in sights[3:5])
    assert any(s.held for s in sights)


@pytest.mark.parametrize("objective", ["load", "latency"])
def test_what_is_usually_good_has_a_first_sight_however_long_baselines_took(
    tmp_path: Path, objective: ScenarioObjective
) -> None:
    def slow(model: str, configuration: LoadConfiguration) -> float:
        return 0.04

    models = [replace(m, rate=m.rate / 10, deadline_s=0.4) for m in OPEN]
    found = search(tmp_path, FakeBench(slow), models, objective, budget_s=120)
    seen = [e for e in found.entrants.values() if e.sight is not None]
    assert sum(e.candidate.kind == "searched" for e in seen) >= 1


def test_latencies_at_first_sight_are_of_few_requests(tmp_path: Path) -> None:
    bench = FakeBench(reserved_is_best)
    found = search(tmp_path, bench, OPEN, "latency")
    sight = found.entrants["plug-in defaults"].sight
    assert sight is not None
    assert math.isfinite(sight.goodness)
    assert all(f.latency_s is None for f in sight.figures if f.requests < 100)
    assert any(f.requests < 100 for f in sight.figures)


def test_windows_of_a_final_are_shorter_where_time_is_short(tmp_path: Path) -> None:
    def windows(budget_s: float) -> list[float]:
        bench = FakeBench(lambda *at: 10 * reserved_is_best(*at))
        models = [replace(m, rate=m.rate / 10, deadline_s=m.deadline_s * 2) for m in OPEN]
        search(tmp_path / f"{budget_s}", bench, models, "load", budget_s=budget_s)
        took_s = [times.due_s for _, times in bench.windows]
        assert bench.clock() < budget_s + max(took_s) + sum(took_s[-2:])  # the window that was under way, and the check
        return [
            times.measured_s
            for (_, times), beside in zip(bench.windows, bench.beside, strict=True)
            if beside > 2 and math.isfinite(times.until_late)
        ]

    assert 0 < statistics.median(windows(150.0)) < 0.6 * statistics.median(windows(1000.0))


def test_figures_are_of_a_load_that_held(tmp_path: Path) -> None:
    found = search(tmp_path, FakeBench(reserved_is_best), OPEN, "load")
    for start in found.entrants[found.best].starts.values():
        assert {f.multiple for f in start.figures} == {start.multiple}
        assert math.log(start.multiple) == pytest.approx(start.goodness, abs=NEAR)
        deadlines = {load.name: load.deadline_s for load in OPEN}
        assert all(seconds <= deadlines[name] * math.exp(EXACT) for name, seconds in start.seen_s.items())


def test_a_start_that_the_deadline_cuts_short_says_nothing() -> None:
    clock = Time()
    bench = FakeBench(reserved_is_best, clock=clock)
    yardstick = Yardstick(LoadScenario(OPEN, "load"), deadline=Deadline.after(0.1, clock))
    with bench.seat(configured("", {}, "process")) as seats:
        turns = StartTurns(yardstick, seats, 1, 60.0)
        turns.turn()
    assert turns.over
    assert not turns.ended


def test_a_start_ends_near_the_greatest_multiple_wherever_it_begins() -> None:
    # One server each, 3 ms of work and periodic: the greatest load is 333 per second of a, or 33 times its rate.
    models = [ModelLoad("a", rate=10, arrivals="periodic", deadline_s=0.01), ModelLoad("b", rate=1, deadline_s=9.0)]
    yardstick = Yardstick(LoadScenario(tuple(models), "load"))
    for guess in (1.0, 22.0, 300.0):
        bench = FakeBench(all_alike, noise=0.0)
        with bench.seat(configured("", {}, "process")) as seats:
            turns = StartTurns(yardstick, seats, 1, guess)
            while not turns.over:
                turns.turn()
        assert turns.ended
        assert len(turns.seen) < 9
        assert turns.measured().held
        assert math.exp(turns.measured().goodness) == pytest.approx(1 / 0.03, rel=0.3)


def test_a_start_is_over_where_deadlines_hold_at_no_multiple() -> None:
    models = [ModelLoad("a", rate=10, deadline_s=0.002)]
    bench = FakeBench(all_alike, noise=0.0)
    with bench.seat(configured("", {}, "process")) as seats:
        turns = StartTurns(Yardstick(LoadScenario(tuple(models), "load")), seats, 1, 1.0)
        while not turns.over:
            turns.turn()
    said = turns.measured()
    assert not said.held
    assert said.limit.startswith("its deadlines do not hold at 0.0")


@pytest.mark.parametrize("slope", [1.5, 3.0, 6.0])
def test_the_greatest_multiple_is_where_a_line_crosses_the_deadline(slope: float) -> None:
    found = LoadMultiples()
    for _ in range(6):
        multiple = found.greatest if found.looks else 4.0
        found.add(multiple, slope * math.log(multiple / 5.0))
    assert found.greatest == pytest.approx(5.0, rel=0.05)
    assert found.near


def test_a_start_does_not_end_far_from_what_it_says() -> None:
    found = LoadMultiples()
    found.add(1.0, -3.0)
    assert not found.near
    assert math.log(found.greatest) > NEAR
    found.add(100.0, 3.0)
    assert not found.near
    assert 1.0 < found.greatest < 100.0
    assert found.missed


def test_deadlines_that_hold_above_a_multiple_where_they_were_missed_end_between() -> None:
    found = LoadMultiples()
    found.add(2.0, 0.5)
    found.add(2.2, -0.2)
    assert 2.0 < found.greatest < 2.2
    assert found.near
