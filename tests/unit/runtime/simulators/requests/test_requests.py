"""The simulator of requests against queueing theory: known means and percentiles, within confidence bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from pipeline.core.arrays import Float64
from pipeline.core.scenario import LoadScenario, ModelLoad, RequestLog
from runtime.simulators.requests.requests import IDLE_S, ServiceModel, simulate_requests

RUNS = 20
DEVIATIONS = 4.0  # of the mean of the runs; the seeds are fixed, so that it fails for a wrong law, or never
UNLIMITED = 10**6
QUANTILES = (np.arange(2**16) + 0.5) / 2**16
EXPONENTIAL = -np.log1p(-QUANTILES)  # mean 1, but for a share of 5e-6
PARETO = (1 - QUANTILES) ** (-1 / 2.5) * 0.6  # mean 1, but for a share of 0.0006


def service_of(**models: tuple[Float64 | float, int]) -> ServiceModel:
    """Return models that do not slow one another, from their seconds alone and their servers."""
    alone_s = tuple(np.atleast_1d(np.asarray(seconds, np.float64)) for seconds, _ in models.values())
    servers = np.array([k for _, k in models.values()])
    return ServiceModel(tuple(models), alone_s, servers, np.zeros((len(models),) * 2))


def mean_s(name: str) -> Callable[[dict[str, RequestLog]], float]:
    """Return what says the mean latency of a model."""
    return lambda logs: float(logs[name].latencies_s().mean())


def mean_of_runs(
    loads: tuple[ModelLoad, ...],
    service: ServiceModel,
    figure: Callable[[dict[str, RequestLog]], float],
    *,
    seconds: float,
) -> tuple[float, float]:
    """Return the mean of a figure over runs of different seeds, and how far that may lie off."""
    found = [
        figure(simulate_requests(LoadScenario(loads), service, seconds=seconds, seed=seed, warm_up_s=seconds / 20))
        for seed in range(RUNS)
    ]
    return float(np.mean(found)), DEVIATIONS * float(np.std(found, ddof=1)) / math.sqrt(RUNS)


@pytest.mark.parametrize("percentile", [50.0, 99.0])
@pytest.mark.parametrize("rate", [3.0, 7.0, 9.0])
def test_times_in_an_m_m_1_queue_are_exponential(rate: float, percentile: float) -> None:
    value, bound = mean_of_runs(
        (ModelLoad("a", rate=rate),),
        service_of(a=(EXPONENTIAL / 10.0, 1)),
        lambda logs: logs["a"].percentile_s(percentile),
        seconds=30_000.0,
    )
    assert value == pytest.approx(math.log(100 / (100 - percentile)) / (10.0 - rate), abs=bound)
    assert bound < 0.1 * value


def test_requests_wait_in_an_m_d_1_queue_as_pollaczek_and_khinchine_say() -> None:
    service, rho = service_of(a=(0.1, 1)), 0.8
    value, bound = mean_of_runs(
        (ModelLoad("a", rate=8.0),), service, lambda logs: mean_s("a")(logs) - 0.1, seconds=10_000.0
    )
    assert value == pytest.approx(rho / (2 * 10.0 * (1 - rho)), abs=bound)
    assert bound < 0.03 * value


@pytest.mark.parametrize("work", [np.ones(1), EXPONENTIAL, PARETO], ids=["deterministic", "exponential", "pareto"])
def test_processor_sharing_knows_the_mean_of_the_work_alone(work: Float64) -> None:
    service = replace(service_of(a=(work / 10.0, UNLIMITED)), slowdown=np.ones((1, 1)))
    value, bound = mean_of_runs((ModelLoad("a", rate=7.0),), service, mean_s("a"), seconds=10_000.0)
    assert value == pytest.approx(work.mean() / 10.0 / (1 - 0.7 * work.mean()), abs=bound)
    assert bound < 0.05 * value


def test_models_that_share_a_processor_are_one_queue() -> None:
    names = ("a", "b")
    service = ServiceModel(names, (EXPONENTIAL / 10.0, np.array([0.05])), np.array([UNLIMITED] * 2), np.ones((2, 2)))
    loads = (ModelLoad("a", rate=4.0), ModelLoad("b", rate=6.0))
    rho = 4.0 / 10.0 + 6.0 * 0.05
    for name, alone_s in (("a", 0.1), ("b", 0.05)):
        value, bound = mean_of_runs(loads, service, mean_s(name), seconds=10_000.0)
        assert value == pytest.approx(alone_s / (1 - rho), abs=bound)


def test_queues_in_series_are_those_of_jackson() -> None:
    loads = (ModelLoad("a", rate=6.0), ModelLoad("b", after="a"))
    service = service_of(a=(EXPONENTIAL / 10.0, 1), b=(EXPONENTIAL / 8.0, 1))
    value, bound = mean_of_runs(loads, service, mean_s("b"), seconds=10_000.0)
    assert value == pytest.approx(1 / (10.0 - 6.0) + 1 / (8.0 - 6.0), abs=bound)  # from when the first was due
    own, bound = mean_of_runs(
        loads,
        service,
        lambda logs: float((logs["b"].end_s - logs["b"].due_s)[logs["b"].measured].mean()),
        seconds=10_000.0,
    )
    assert own == pytest.approx(1 / (8.0 - 6.0), abs=bound)


def test_several_servers_wait_as_erlang_says() -> None:
    servers, rate, mu = 3, 24.0, 10.0
    load = rate / mu
    waits = load**servers / math.factorial(servers) * servers / (servers - load)
    waits /= sum(load**k / math.factorial(k) for k in range(servers)) + waits
    value, bound = mean_of_runs(
        (ModelLoad("a", rate=rate),),
        service_of(a=(EXPONENTIAL / mu, servers)),
        mean_s("a"),
        seconds=5_000.0,
    )
    assert value == pytest.approx(1 / mu + waits / (servers * mu - rate), abs=bound)


def test_a_backlog_grows_by_what_comes_more_than_is_served() -> None:
    loads, service = (ModelLoad("a", rate=15.0),), service_of(a=(EXPONENTIAL / 10.0, 1))

    def left(logs: dict[str, RequestLog]) -> float:
        return float((logs["a"].end_s > 1_100.0).sum())

    value, bound = mean_of_runs(loads, service, left, seconds=1_000.0)  # 1,100 s with warming up and ending
    assert value == pytest.approx((15.0 - 10.0) * 1_100.0, abs=bound)


def test_an_overload_drops_what_cannot_be_served_in_time() -> None:
    load = ModelLoad("a", rate=15.0, deadline_s=2.0, late="drop")
    service = service_of(a=(EXPONENTIAL / 10.0, 1))
    share, bound = mean_of_runs(
        (load,), service, lambda logs: logs["a"].dropped / logs["a"].measured.sum(), seconds=1_000.0
    )
    assert share == pytest.approx(1 / 3, abs=bound)
    log = simulate_requests(LoadScenario((load,)), service, seconds=100.0, seed=0, warm_up_s=10.0)["a"]
    waited = log.latencies_s()
    assert math.isinf(log.percentile_s(99.0))
    assert np.median(waited[np.isfinite(waited)]) == pytest.approx(2.1, abs=0.3)  # the deadline, and its own service
    patient = simulate_requests(
        LoadScenario((replace(load, late="queue"),)), service, seconds=100.0, seed=0, warm_up_s=10.0
    )["a"]
    assert patient.dropped == 0


def test_calls_are_their_mean_and_one_of_the_nearest_numbers() -> None:
    loads = (ModelLoad("a", rate=50.0), ModelLoad("b", after="a", calls=3.2))
    service = service_of(a=(0.001, 1), b=(0.001, 4))
    log = simulate_requests(LoadScenario(loads), service, seconds=1_000.0, seed=3, warm_up_s=0.0)["b"]
    counts = np.unique(log.origin_s, return_counts=True)[1]
    assert set(counts.tolist()) == {3, 4}
    assert counts.mean() == pytest.approx(3.2, abs=4 * 0.4 / math.sqrt(counts.size))  # four deviations


def test_a_closed_loop_keeps_its_requests_in_flight() -> None:
    loads = (ModelLoad("a", concurrency=3), ModelLoad("b", after="a"))
    service = service_of(a=(0.1, 3), b=(0.05, 1))
    log = simulate_requests(LoadScenario(loads), service, seconds=100.0, seed=0, warm_up_s=1.0)["a"]
    # Three chains of 0.1 and 0.05 s, and one server for the second part: it is never idle.
    assert log.measured.sum() / 100.0 == pytest.approx(1 / 0.05, rel=0.01)


def test_a_model_that_is_slowed_by_others_goes_at_the_speed_of_the_definition() -> None:
    names, servers = ("a", "b", "c"), np.array([2, 3, 1])
    slowdown = np.array([[0.25, 0.5, 0.125], [0, 0, 0], [0, 0, 0]])
    service = ServiceModel(names, (np.array([0.1]), np.array([1e4]), np.array([1e4])), servers, slowdown)
    loads = tuple(ModelLoad(name, concurrency=int(k)) for name, k in zip(names, servers, strict=True))
    log = simulate_requests(LoadScenario(loads), service, seconds=10.0, seed=0, warm_up_s=1.0)["a"]
    assert np.allclose(log.latencies_s(), 0.1 * (1 + 0.25 + 3 * 0.5 + 0.125), rtol=1e-9)  # rounding of the clock


def test_a_request_takes_longer_the_longer_its_model_was_idle() -> None:
    work_s, after_idle = 0.001, np.linspace(1.0, 4.0, IDLE_S.size)[None]
    service = replace(service_of(a=(work_s, 1)), after_idle=after_idle)
    loop = simulate_requests(LoadScenario((ModelLoad("a", concurrency=1),)), service, seconds=5.0, seed=0, warm_up_s=1)
    assert np.allclose(loop["a"].latencies_s(), work_s)
    for idle_s, factor in ((0.002, (after_idle[0, 2] + after_idle[0, 3]) / 2), (0.5, 4.0)):
        load = ModelLoad("a", rate=1 / (work_s * factor + idle_s), arrivals="periodic")
        log = simulate_requests(LoadScenario((load,)), service, seconds=10.0, seed=0, warm_up_s=5.0)["a"]
        assert np.allclose(log.latencies_s(), work_s * factor)


def test_beside_others_some_requests_take_much_longer_and_alone_none() -> None:
    beside = np.ones((2, 2, 4))
    beside[0, 1] = 0.5, 0.5, 0.5, 2.5
    service = replace(service_of(a=(0.01, 1), b=(1e4, 1)), beside=beside)
    a, b = ModelLoad("a", rate=5.0, arrivals="periodic"), ModelLoad("b", concurrency=1)
    there = simulate_requests(LoadScenario((a, b)), service, seconds=800.0, seed=0, warm_up_s=1.0)["a"].latencies_s()
    values, counts = np.unique(there.round(9), return_counts=True)
    assert values.tolist() == pytest.approx([0.005, 0.025])
    assert counts[1] / counts.sum() == pytest.approx(0.25, abs=4 * math.sqrt(0.25 * 0.75 / counts.sum()))
    alone = simulate_requests(LoadScenario((a,)), service, seconds=10.0, seed=0, warm_up_s=1.0)["a"]
    assert np.allclose(alone.latencies_s(), 0.01)


@pytest.mark.parametrize("field", ["after_idle", "beside"])
@pytest.mark.parametrize("wrong", [0.0, math.nan])
def test_factors_must_be_above_0(field: str, wrong: float) -> None:
    service = service_of(a=(0.1, 1))
    value = getattr(service, field).copy()
    value[0, 0] = wrong
    with pytest.raises(ValueError, match=field):
        replace(service, **{field: value})


def test_logs_are_reproducible_and_a_model_draws_the_same_beside_others() -> None:
    service = service_of(a=(EXPONENTIAL / 10.0, 1), b=(EXPONENTIAL / 10.0, 1))
    a, b = ModelLoad("a", rate=5.0), ModelLoad("b", rate=8.0)
    both, again, alone = (
        simulate_requests(LoadScenario(loads), service, seconds=100.0, seed=4, warm_up_s=1.0)
        for loads in ((a, b), (a, b), (a,))
    )
    for other in (again, alone):
        assert np.array_equal(both["a"].end_s, other["a"].end_s)
    assert both["a"].due_s.size != both["b"].due_s.size


def test_fifty_models_and_one_without_requests() -> None:
    rng = np.random.default_rng(0)
    names = tuple(f"m{i}" for i in range(50))
    service = ServiceModel(
        names, tuple(rng.uniform(0.001, 0.01, (50, 9))), np.full(50, 2), rng.uniform(0, 0.2, (50, 50))
    )
    loads = tuple(ModelLoad(name, rate=0.0 if name == "m7" else 2.0) for name in names)
    logs = simulate_requests(LoadScenario(loads), service, seconds=50.0, seed=0, warm_up_s=1.0)
    assert logs["m7"].due_s.size == 0
    assert math.isnan(logs["m7"].percentile_s(99.0))
    assert all(np.isfinite(log.end_s).all() for log in logs.values())
    assert sum(log.measured.sum() for log in logs.values()) == pytest.approx(49 * 2 * 50, rel=0.1)


def test_nothing_at_all_is_simulated() -> None:
    logs = simulate_requests(
        LoadScenario((ModelLoad("a"),)), service_of(a=(0.1, 1)), seconds=1.0, seed=0, warm_up_s=0.0
    )
    assert logs["a"].due_s.size == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"alone_s": (np.empty(0),)}, "alone_s"),
        ({"alone_s": (np.array([np.nan]),)}, "alone_s"),
        ({"servers": np.array([0])}, "servers"),
        ({"slowdown": np.array([[-0.1]])}, "slowdown"),
    ],
)
def test_a_service_model_without_meaning_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        replace(service_of(a=(0.1, 1)), **change)  # type: ignore[arg-type]
