"""Probes before measuring: who is measured first, how far predictions are off, and what would make a load fit."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.core.scenario import LoadScenario, ModelLoad, RequestLog
from pipeline.scenario.configurations import BASELINES, USUAL, ConfigurationSpace
from pipeline.scenario.records import ConfigurationRecord, ScenarioContest, ScenarioForecast
from pipeline.scenario.screening import FILL_S, PROBES_SHARE, service_times
from pipeline.scenario.search import ALONE_S, ScenarioOutcome
from pipeline.scenario.verdict import decide_scenario, scenario_notes
from runtime.measuring.load.bench import LoadConfiguration, Window
from runtime.measuring.load.drive import LoadTimes
from runtime.simulators.requests.requests import ServiceModel, simulate_requests
from tests.unit.pipeline.scenario.fake_bench import FakeBench, FakeSeats
from tests.unit.pipeline.scenario.test_search import CPU, all_alike, search

BASE_S = {"a": 0.02, "b": 0.005}
LOADS = (ModelLoad("a", rate=15, deadline_s=0.1), ModelLoad("b", rate=40, deadline_s=0.04))


class SharedSeats(FakeSeats):
    """Models whose requests slow one another down: less on reserved processors, more with more threads."""

    def window(self, scenario: LoadScenario, times: LoadTimes, *, seed: int) -> Window:
        bench = self.bench
        bench.clock.now_s += times.due_s
        bench.windows.append((self.configuration.name, times))
        bench.beside.append(len(bench.present))
        idle = [not (m.rate or m.concurrency or m.after) for m in scenario.models]
        driven = (replace(m, concurrency=1) if i else m for m, i in zip(scenario.models, idle, strict=True))
        scenario = replace(scenario, models=tuple(driven))
        service = service_of(self.configuration).of([m.name for m in scenario.models])
        logs = simulate_requests(scenario, service, seconds=times.measured_s, seed=seed, warm_up_s=times.fill_s)
        return Window(logs, times.measured_s, 1.0, bench.peak_bytes, bench.fails)


@dataclass
class SharedBench(FakeBench):
    """A machine of known truth on which models share processors."""

    seats: type[FakeSeats] = SharedSeats


def service_of(configuration: LoadConfiguration) -> ServiceModel:
    names = [name for name, _ in configuration.models]
    given = [variant.devices[0].properties for _, variant in configuration.models]
    threads = [int(p.get("INFERENCE_NUM_THREADS", "2")) for p in given]
    reserved = all(p.get("ENABLE_CPU_RESERVATION") == "YES" for p in given)
    spread = np.random.default_rng(3).lognormal(0.0, 0.1, (len(names), 300))
    alone_s = tuple(BASE_S[n] * k**-0.6 * s for n, k, s in zip(names, threads, spread, strict=True))
    press = 0.05 if reserved else 1.5 * np.array(threads)
    slowdown = np.ones((len(names), 1)) * press * (1 - np.eye(len(names)))
    return ServiceModel(tuple(names), alone_s, np.ones(len(names), np.int64), slowdown)


def probed_s(bench: FakeBench) -> float:
    """Return how long probes took, with half a second for each configuration that was loaded for them."""
    return sum(t.due_s for _, t in bench.windows if t.fill_s == FILL_S and t.measured_s != ALONE_S)


def tuned(folder: Path, loads: tuple[ModelLoad, ...] = LOADS, budget_s: float = 400.0) -> ScenarioOutcome:
    return search(folder, SharedBench(all_alike), loads, "load", budget_s=budget_s)


def test_what_is_predicted_to_be_good_is_measured_first_after_the_baselines(tmp_path: Path) -> None:
    found = tuned(tmp_path)
    scenario = LoadScenario(LOADS, "load")
    first = [c.name for c in ConfigurationSpace(scenario, {m.name: {"CPU": CPU} for m in LOADS}, processors=2).first()]
    kinds = [e.candidate.kind for e in found.entrants.values()]
    assert set(kinds[: len(BASELINES)]) == set(BASELINES)
    tried = [e for name, e in found.entrants.items() if name in first and e.candidate.kind == "searched"]
    assert {e.candidate.name for e in tried} == set(first)
    assert [e.candidate.name for e in tried[:USUAL]] == first[:USUAL]
    assert all(p.configuration for p in found.forecast.predictions)
    said = {p.configuration: p.value for p in found.forecast.predictions if p.value is not None}
    ordered = [said[e.candidate.name] for e in tried[USUAL:] if e.candidate.name in said]
    assert len(ordered) > 2
    assert ordered == sorted(ordered, reverse=True)


def test_predictions_that_are_far_off_order_nothing_and_are_told_so(tmp_path: Path) -> None:
    class OtherwiseSeats(SharedSeats):
        """Models that are probed as above, and serve under load as if nothing had been said."""

        def window(self, scenario: LoadScenario, times: LoadTimes, *, seed: int) -> Window:
            return (SharedSeats if times.fill_s == FILL_S else FakeSeats).window(self, scenario, times, seed=seed)

    bench = SharedBench(all_alike, seats=OtherwiseSeats)
    found = search(tmp_path, bench, LOADS, "load")
    first = [c.name for c in ConfigurationSpace(LoadScenario(LOADS), {m.name: {"CPU": CPU} for m in LOADS}, 2).first()]
    tried = [n for n, e in found.entrants.items() if n in first and e.sight is not None]
    assert tried == first
    assert not found.forecast.used
    assert any("not ordered by them" in note for note in scenario_notes("load", [], None, found.forecast))


def test_predictions_are_told_with_how_far_they_are_off(tmp_path: Path) -> None:
    forecast = tuned(tmp_path).forecast
    assert all(0 < ratio < 1.05 for pair in forecast.pairs for ratio in pair.over_alone)
    reserved = next(p for p in forecast.pairs if "reserved" in p.configuration)
    assert min(reserved.over_alone) == pytest.approx(1 / 1.05, rel=0.05)
    assert forecast.compared >= 3  # those that held near a multiple that was tried
    assert forecast.error is not None
    assert forecast.error < 0.1
    assert forecast.rank_correlation is not None
    assert forecast.rank_correlation > 0.8
    assert forecast.remedies == []
    for row in forecast.predictions:
        assert set(row.latencies_s) <= {"a", "b"}
        assert row.multiple > 0


@pytest.mark.parametrize("budget_s", [30.0, 120.0, 400.0])
def test_probes_take_a_bounded_share_of_the_budget(tmp_path: Path, budget_s: float) -> None:
    bench = SharedBench(all_alike)
    search(tmp_path, bench, LOADS, "load", budget_s=budget_s)
    one_s = 0.5 + 3 * (FILL_S + 0.6)  # that is under way when the share is used up
    assert 0 < probed_s(bench) <= PROBES_SHARE * budget_s + one_s


def test_closed_loops_are_not_probed(tmp_path: Path) -> None:
    bench = FakeBench(all_alike)
    found = search(tmp_path, bench)
    assert probed_s(bench) == 0
    assert found.forecast.predictions == []
    assert found.forecast.error is None


def test_probes_are_not_run_again_after_an_interruption(tmp_path: Path) -> None:
    first, again = SharedBench(all_alike), SharedBench(all_alike)
    found = search(tmp_path, first, LOADS, "load", budget_s=400)
    resumed = search(tmp_path, again, LOADS, "load", budget_s=400)
    assert probed_s(first) > 0
    assert probed_s(again) <= 0.35 * probed_s(first)  # more of the neighbours
    known = {p.configuration: p for p in resumed.forecast.predictions}
    assert found.forecast.predictions
    assert all(p.configuration in known for p in found.forecast.predictions)


def test_a_configuration_that_fails_in_a_probe_is_still_measured_and_named(tmp_path: Path) -> None:
    bench = SharedBench(all_alike, refused=lambda c: "b" if "reserved" in c.name else "")
    found = search(tmp_path, bench, LOADS, "load", budget_s=400)
    failed = [e for e in found.entrants.values() if e.failed is not None]
    assert failed
    assert {e.failed_model for e in failed} == {"b"}


def test_what_would_make_the_stated_load_fit_is_predicted(tmp_path: Path) -> None:
    # A request of a takes 13 ms at best, so that 120 per second are too many, whatever b does.
    found = tuned(tmp_path, (ModelLoad("a", rate=120, deadline_s=0.1), ModelLoad("b", rate=60, deadline_s=0.04)))
    assert found.forecast.remedies
    assert found.forecast.remedies[0].startswith("predicted to fit if a had ")
    answer = next(
        ConfigurationRecord(name, e.candidate.kind, [], "process", math.exp(e.standing))
        for name, e in found.entrants.items()
        if name == found.best
    )
    contest = ScenarioContest(found.control, 0.95, 0.02, [], None, disturbed=False)
    verdict, _ = decide_scenario("load", answer, [answer], contest, found.checked, found.forecast.remedies)
    assert "Predicted to fit if a had " in verdict
    assert "does not fit" in verdict


def test_what_would_fit_is_predicted_where_only_baselines_were_tried(tmp_path: Path) -> None:
    loads = (ModelLoad("a", rate=1200, deadline_s=0.1), ModelLoad("b", rate=60, deadline_s=0.04))
    found = tuned(tmp_path, loads, budget_s=25.0)
    assert not any(e.sight for e in found.entrants.values() if e.candidate.kind == "searched")
    assert found.forecast.remedies[0].startswith("predicted to fit if a had ")


def test_what_requests_took_counts_from_when_one_of_the_servers_took_them_on() -> None:
    due_s = np.array([0.0, 1.0, 1.5, 2.0, 9.0])
    end_s = np.array([0.5, 3.0, 2.5, math.nan, 9.5])
    log = RequestLog(due_s, due_s, end_s, np.ones(5, np.bool_))
    one, two = service_times(log, 1), service_times(log, 2)
    assert one.seconds.tolist() == [2.0, -0.5, 0.5]
    assert two.seconds.tolist() == [2.0, 1.0, 0.5]
    assert two.idle_s.tolist() == [0.5, 0.0, 6.0]
    assert service_times(RequestLog(due_s[:1], due_s[:1], end_s[:1], np.ones(1, np.bool_)), 1).seconds.size == 0


def test_a_setting_that_was_in_no_pair_is_not_predicted(tmp_path: Path) -> None:
    forecast = tuned(tmp_path).forecast
    probed = {p.configuration for p in forecast.pairs}
    assert "threads shared equally" not in {p.configuration for p in forecast.predictions}
    assert {p.configuration for p in forecast.predictions} & probed


def test_what_was_probed_alone_is_not_probed_again_with_threads_kept_apart_in_another_way(tmp_path: Path) -> None:
    bench = SharedBench(all_alike)
    search(tmp_path, bench, LOADS, "load")
    alone = {n: t for n, t in bench.windows if t.fill_s == FILL_S}
    counts = {name: sum(n == name and t.fill_s == FILL_S for n, t in bench.windows) for name in alone}
    reserved, unpinned = (f"a and b: CPU 1 thread f32 {mode}" for mode in ("reserved", "unpinned"))
    assert counts[reserved] == 1 + 2  # b alone at a low rate, for which a is too slow, and each beside the other
    assert counts[unpinned] == 2


def test_the_notes_say_how_far_predictions_are_off() -> None:
    forecast = ScenarioForecast([], [], 0.123, 0.9, 14)
    (note,) = scenario_notes("load", [], None, forecast)
    assert "multiples of the load" in note
    assert "latencies" in scenario_notes("latency", [], None, forecast)[0]
    assert "12 % (median of 14 " in note
    assert note.startswith("Predicted ")
    assert "0.90" in note
    assert scenario_notes("load", [], None, ScenarioForecast()) == []
