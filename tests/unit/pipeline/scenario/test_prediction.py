"""Predictions from probes, where the simulator is the truth and what is measured of it is noisy."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from pipeline.core.arrays import Float64
from pipeline.core.scenario import LoadScenario, ModelLoad
from pipeline.scenario.prediction import (
    IdleProbe,
    PairProbe,
    Probes,
    Setting,
    deadlines_hold,
    find_remedies,
    fit_service,
    held_out_error,
    predict_multiple,
    predict_scenario,
)
from pipeline.scenario.screening import service_times
from runtime.simulators.requests.requests import IDLE_S, ServiceModel, simulate_requests

MODELS, SETTINGS = ("detector", "classifier", "speech"), ("one thread", "two threads", "two streams")
NOISE = 0.05  # standard deviation of the logarithm of a measured time, and of what a whole probe is off by
SCENARIO = LoadScenario(
    (
        ModelLoad("detector", rate=18.0, deadline_s=0.2),
        ModelLoad("classifier", after="detector", calls=2.4, deadline_s=0.3),
        ModelLoad("speech", rate=12.0, arrivals="periodic", deadline_s=0.1),
    )
)
QUANTILES = (np.arange(4096) + 0.5) / 4096
EXPONENTIAL = -np.log1p(-QUANTILES)


@dataclass
class Machine:
    """A machine of which the truth is known; it is measured with noise."""

    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(5))

    def __post_init__(self) -> None:
        self.keys = [(model, setting) for model in MODELS for setting in SETTINGS]
        base = {"detector": 0.012, "classifier": 0.003, "speech": 0.02}
        speed = {"one thread": 1.0, "two threads": 0.6, "two streams": 1.05}
        self.alone_s = {
            (model, setting): base[model] * speed[setting] * self.rng.lognormal(0.0, 0.2, 400)
            for model, setting in self.keys
        }
        self.servers = {key: 2 if key[1] == "two streams" else 1 for key in self.keys}
        press = {key: self.rng.uniform(0.4, 1.4) * (1.6 if key[1] == "two threads" else 1.0) for key in self.keys}
        suffer = {key: self.rng.uniform(0.3, 0.8) for key in self.keys}
        self.slowdown = {
            (a, b): suffer[a] * press[b] * self.rng.lognormal(0.0, 0.1) for a in self.keys for b in self.keys
        }

    def service(self, settings: list[Setting]) -> ServiceModel:
        """Return the truth for settings, models of which may come twice."""
        names = tuple(f"{i} {model}" for i, (model, _) in enumerate(settings))
        slowdown = np.array([[self.slowdown[a, b] for b in settings] for a in settings])
        servers = np.array([self.servers[key] for key in settings])
        return ServiceModel(names, tuple(self.alone_s[key] for key in settings), servers, slowdown)

    def noisy(self, seconds: Float64) -> Float64:
        """Return times as they are measured."""
        whole = self.rng.lognormal(0.0, NOISE)
        return seconds * whole * self.rng.lognormal(0.0, NOISE, seconds.shape)

    def together(self, first: Setting, second: Setting) -> PairProbe:
        """Run the first beside one request of the second; both one after another, in closed loops."""
        service = replace(self.service([first, second]), servers=np.ones(2, np.int64))
        loads = tuple(ModelLoad(name, concurrency=1) for name in service.names)
        log = simulate_requests(LoadScenario(loads), service, seconds=5.0, seed=1, warm_up_s=0.1)[service.names[0]]
        return PairProbe(self.noisy(log.latencies_s()), 1)

    def probes(self) -> Probes:
        """Probe every setting alone, and every two."""
        return Probes(
            {key: self.noisy(self.alone_s[key]) for key in self.keys},
            {(a, b): self.together(a, b) for a in self.keys for b in self.keys if a[0] != b[0] or a == b},
            self.servers,
        )

    def measure(self, configuration: dict[str, str]) -> dict[str, float]:
        """Measure a configuration under the scenario's load."""
        truth = self.service(list(configuration.items()))
        service = replace(truth, names=tuple(configuration))
        logs = simulate_requests(SCENARIO, service, seconds=1_000.0, seed=77, warm_up_s=20.0)
        return {
            load.name: float(self.noisy(np.array(logs[load.name].percentile_s(load.percentile))))
            for load in SCENARIO.models
        }


CONFIGURATIONS = [dict(zip(MODELS, chosen, strict=True)) for chosen in itertools.product(SETTINGS, repeat=3)]


def test_latencies_of_configurations_that_were_never_measured_are_predicted() -> None:
    machine = Machine()
    probes = machine.probes()
    measured = [(configuration, machine.measure(configuration)) for configuration in CONFIGURATIONS]
    found = held_out_error(SCENARIO, probes, measured)
    assert found.count == 27 * 3
    assert found.median < 0.12
    assert found.rank_correlation > 0.9
    less = held_out_error(SCENARIO, probes, measured, without_pairs=True)
    assert found.median < less.median < 0.25
    assert less.rank_correlation > 0.8
    deaf = replace(probes, together={pair: replace_seconds(probes, pair) for pair in probes.together})
    assert held_out_error(SCENARIO, deaf, measured).median > 2 * found.median


def replace_seconds(probes: Probes, pair: tuple[Setting, Setting]) -> PairProbe:
    """Return a probe in which nothing slowed anything."""
    return PairProbe(probes.alone_s[pair[0]], 1)


def sparse(service: ServiceModel, beside: str = "") -> tuple[Float64, Float64]:
    """Return seconds of requests of `a` at a low rate, and how long it had been idle before each."""
    loads = [ModelLoad("a", rate=25.0), *([ModelLoad(beside, concurrency=1)] if beside else [])]
    log = simulate_requests(LoadScenario(tuple(loads)), service, seconds=40.0, seed=9, warm_up_s=0.1)["a"]
    return service_times(log, 1)


def test_requests_with_pauses_and_slices_of_time_are_predicted_from_sparse_probes() -> None:
    rng = np.random.default_rng(4)
    alone_s = (0.01 * rng.lognormal(0.0, 0.1, 300), 0.05 * rng.lognormal(0.0, 0.1, 300))
    after_idle = np.array([np.linspace(1.0, 2.5, IDLE_S.size), np.ones(IDLE_S.size)])
    beside = np.ones((2, 2, 10))
    beside[0, 1] = [0.7] * 9 + [3.7]  # every tenth waits for a slice of time
    slowdown = np.array([[0.0, 0.6], [0.2, 0.0]])
    truth = ServiceModel(("a", "b"), alone_s, np.ones(2, np.int64), slowdown, after_idle, beside)
    a, b = ("a", "s"), ("b", "s")
    seconds, idle_s = sparse(truth, "b")
    probes = Probes(
        {a: alone_s[0], b: alone_s[1]},
        {(a, b): PairProbe(seconds, 1, idle_s), (b, a): PairProbe(1.2 * alone_s[1], 1)},
        {a: 1, b: 1},
        {a: IdleProbe(*sparse(truth))},
    )
    fitted = fit_service(probes, {"a": "s", "b": "s"})
    assert fitted.after_idle[0] == pytest.approx(after_idle[0], rel=0.25)
    assert fitted.slowdown[0, 1] == pytest.approx(0.6, rel=0.25)
    assert fitted.beside[0, 1].mean() == pytest.approx(1.0)
    assert fitted.beside[0, 1].max() > 2
    scenario = LoadScenario((ModelLoad("a", rate=15.0), ModelLoad("b", rate=6.0)))
    wanted, found = predict_scenario(scenario, truth).latency_s, predict_scenario(scenario, fitted).latency_s
    assert found["a"] == pytest.approx(wanted["a"], rel=0.2)
    closed = replace(probes, together={**probes.together, (a, b): PairProbe(1.6 * alone_s[0], 1)}, sparse={})
    deaf = predict_scenario(scenario, fit_service(closed, {"a": "s", "b": "s"})).latency_s
    assert deaf["a"] < 0.6 * wanted["a"]


def test_what_was_not_seen_after_a_pause_counts_as_after_a_shorter_one() -> None:
    setting = ("a", "s")
    seconds, idle_s = np.array([2.0, 2.0, 2.2, 9.0]), np.array([1e-3, 1e-3, 9e-4, 0.2])
    probes = Probes({setting: np.ones(3)}, {}, {setting: 1}, {setting: IdleProbe(seconds, idle_s)})
    assert probes.after_idle(setting).tolist() == [1, 1, 2, 2, 2, 2, 2]  # one alone after 0.2 s says too little
    assert Probes({setting: np.ones(3)}, {}, {setting: 1}).after_idle(setting).tolist() == [1] * IDLE_S.size


def two(slow: float, *, rate: float = 5.0, deadline_s: float = 1.0) -> tuple[LoadScenario, ServiceModel]:
    """Return two models of exponential work of mean 0.1 s that slow each other."""
    slowdown = np.array([[0.0, slow], [slow, 0.0]])
    service = ServiceModel(("a", "b"), (EXPONENTIAL / 10, EXPONENTIAL / 10), np.ones(2, np.int64), slowdown)
    return LoadScenario(tuple(ModelLoad(n, rate=rate, deadline_s=deadline_s) for n in "ab")), service


def test_the_load_multiple_of_an_m_m_1_queue_is_found() -> None:
    scenario, service = two(0.0)
    # p99 = ln(100) / (10 - 5 m) = 1 s
    assert predict_multiple(scenario, service) == pytest.approx((10 - math.log(100)) / 5, rel=0.05)
    multiple = predict_multiple(scenario, service)
    for part in (0.9, 1.1):
        scaled = scenario.scaled(multiple * part)
        logs = simulate_requests(scaled, service, seconds=20_000.0, seed=3, warm_up_s=100.0)
        assert deadlines_hold(scaled, logs) == (part < 1)


def test_a_deadline_shorter_than_the_work_holds_at_no_load_and_none_at_every() -> None:
    assert predict_multiple(*two(0.0, deadline_s=0.01)) == 0.0
    assert math.isinf(predict_multiple(*two(0.0, deadline_s=math.inf)))


def test_a_multiple_below_the_stated_load_is_found() -> None:
    assert predict_multiple(*two(0.0, rate=20.0)) == pytest.approx((10 - math.log(100)) / 20, rel=0.05)


def test_closed_loops_are_predicted_as_rates() -> None:
    _, service = two(1.0)
    found = predict_scenario(LoadScenario(tuple(ModelLoad(n, concurrency=1) for n in "ab")), service)
    assert found.rate == pytest.approx({"a": 5.0, "b": 5.0}, rel=0.05)
    assert math.isinf(found.multiple)


def test_what_would_fit_is_named_where_the_load_does_not() -> None:
    scenario, service = two(1.0, rate=4.8)
    assert predict_multiple(scenario, service) < 1
    remedies = find_remedies(scenario, service)
    assert {(r.kind, r.model) for r in remedies} == {(k, m) for k in ("rate", "core") for m in "ab"}
    for remedy in remedies:
        assert remedy.describe().startswith("predicted to ")
        if remedy.kind == "core":  # nothing slows the two any more
            assert remedy.value == pytest.approx((10 - math.log(100)) / 4.8, rel=0.06)
        else:
            assert 0 < remedy.value < 1
    assert find_remedies(*two(0.0)) == []


def test_one_model_that_is_too_slow_alone_is_the_one_to_slow_down() -> None:
    scenario, service = two(0.0)
    models = (replace(scenario.models[0], rate=20.0), scenario.models[1])
    remedies = find_remedies(LoadScenario(models), service)
    assert [(r.kind, r.model) for r in remedies] == [("rate", "a")]
    assert remedies[0].value == pytest.approx((10 - math.log(100)) / 20, abs=0.03)  # few requests beyond p99


def test_one_model_with_one_request_needs_no_pair_and_two_do() -> None:
    alone_s = {("a", "s"): np.array([0.1]), ("b", "s"): np.array([0.2])}
    probes = Probes(alone_s, {}, {("a", "s"): 1, ("b", "s"): 1})
    assert fit_service(probes, {"a": "s"}).slowdown.tolist() == [[0.0]]
    with pytest.raises(ValueError, match="no two of a, b"):
        fit_service(probes, {"a": "s", "b": "s"})


def test_a_pair_that_was_not_probed_slows_by_sensitivity_and_pressure() -> None:
    keys = [(name, "s") for name in "abc"]
    suffer, press = dict(zip(keys, (0.2, 0.4, 0.8), strict=True)), dict(zip(keys, (1.0, 0.5, 0.25), strict=True))
    together = {(x, y): PairProbe(np.array([1.0 + 2 * suffer[x] * press[y]]), 2) for x in keys for y in keys if x != y}
    kept = {pair: probe for pair, probe in together.items() if pair != (keys[0], keys[2])}
    probes = Probes({key: np.ones(1) for key in keys}, kept, dict.fromkeys(keys, 1))
    slowdown = fit_service(probes, dict.fromkeys("abc", "s")).slowdown
    assert slowdown[1, 0] == pytest.approx(0.4)  # as probed, for one request of two
    assert slowdown[0, 2] == pytest.approx(0.05, rel=0.35)  # with the ridge


def test_the_error_and_the_order_of_latencies_are_told_apart() -> None:
    alone_s = {("a", s): np.array([seconds]) for s, seconds in (("x", 0.1), ("y", 0.2), ("z", 0.4))}
    probes = Probes(alone_s, {}, dict.fromkeys(alone_s, 1))
    scenario = LoadScenario((ModelLoad("a", concurrency=1),))
    for measured_s, median, correlation in (
        ((0.1, 0.25, 0.8), 0.2, 1.0),
        ((0.8, 0.25, 0.1), 0.875, -1.0),
        ((math.inf, math.nan, 0.1), 3.0, -1.0),
        ((0.1, 0.1, 0.1), 1.0, math.nan),
    ):
        measured = [({"a": s}, {"a": seconds}) for s, seconds in zip("xyz", measured_s, strict=True)]
        found = held_out_error(scenario, probes, measured)
        assert found.median == pytest.approx(median)
        assert found.rank_correlation == pytest.approx(correlation, nan_ok=True)
        assert found.count == sum(not math.isnan(seconds) for seconds in measured_s)
