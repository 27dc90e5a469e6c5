"""Arrivals: reproducible, at the stated rate, and of the stated kind."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeline.core.scenario import Arrivals, ModelLoad
from pipeline.shared.arrivals import arrival_times, trace_rate

TRACE_S = (0.3, 0.4, 0.45, 1.5)
KINDS: tuple[Arrivals, ...] = ("poisson", "periodic", "trace")


def load_of(kind: Arrivals, rate: float = 20.0, name: str = "detector") -> ModelLoad:
    """Return a load of one kind."""
    return ModelLoad(name, rate=rate, arrivals=kind, trace_s=TRACE_S if kind == "trace" else ())


@pytest.mark.parametrize("kind", KINDS)
def test_arrivals_are_reproducible_rising_and_within_the_load(kind: Arrivals) -> None:
    times = arrival_times(load_of(kind), 300.0, 7)
    assert np.array_equal(times, arrival_times(load_of(kind), 300.0, 7))
    assert (np.diff(times) >= 0).all()
    assert times[0] >= 0
    assert times[-1] < 300.0


@pytest.mark.parametrize("kind", KINDS)
def test_a_longer_load_begins_with_the_arrivals_of_a_shorter_one(kind: Arrivals) -> None:
    short, long = (arrival_times(load_of(kind), seconds, 7) for seconds in (300.0, 3000.0))
    assert np.array_equal(short, long[: short.size])


@pytest.mark.parametrize("kind", KINDS)
def test_twice_the_rate_is_the_same_pattern_twice_as_fast(kind: Arrivals) -> None:
    slow, fast = (arrival_times(load_of(kind, rate), 40.0 / rate, 3) for rate in (10.0, 20.0))
    assert np.allclose(slow, 2 * fast, rtol=1e-12, atol=0)  # the rounding of one product


@pytest.mark.parametrize("kind", KINDS)
def test_the_rate_is_kept(kind: Arrivals) -> None:
    # 20,000 expected; poisson: a standard deviation of 141, and four of them
    assert abs(arrival_times(load_of(kind), 1000.0, 7).size - 20_000) <= (4 * 141 if kind == "poisson" else 2)


def test_another_seed_and_another_name_arrive_at_other_times() -> None:
    one = arrival_times(load_of("poisson"), 10.0, 7)
    for other in (arrival_times(load_of("poisson"), 10.0, 8), arrival_times(load_of("poisson", name="x"), 10.0, 7)):
        assert np.intersect1d(one, other).size == 0


def test_poisson_gaps_are_exponential() -> None:
    gaps = np.diff(arrival_times(load_of("poisson", 100.0), 1000.0, 1)) * 100.0
    shares = [(gaps > x).mean() for x in (0.5, 1.0, 2.0, 4.0)]
    assert np.allclose(shares, np.exp([-0.5, -1.0, -2.0, -4.0]), atol=4 * 0.5 / np.sqrt(gaps.size))  # 4 deviations


def test_periods_are_equal() -> None:
    assert np.allclose(np.diff(arrival_times(load_of("periodic", 30.0), 2.0, 5)), 1 / 30, atol=1e-12)


def test_a_trace_at_its_own_rate_is_played_as_recorded_and_repeated() -> None:
    rate = trace_rate(TRACE_S)
    assert rate == 3 / 1.2
    times = arrival_times(load_of("trace", rate), 3.2, 0)
    assert np.allclose(times, [t + begin_s - TRACE_S[0] for begin_s in (0.0, 1.6) for t in TRACE_S])


def test_a_trace_of_one_moment_keeps_the_rate() -> None:
    load = replace(load_of("trace", 4.0), trace_s=(0.0,))
    assert np.allclose(arrival_times(load, 1.0, 0), [0.0, 0.25, 0.5, 0.75])


@pytest.mark.parametrize(
    "load",
    [ModelLoad("x", rate=0.0), ModelLoad("x", rate=9.0, concurrency=2), ModelLoad("x", rate=9.0, after="camera")],
)
def test_nothing_arrives_without_a_rate_of_its_own(load: ModelLoad) -> None:
    assert arrival_times(load, 10.0, 0).size == 0
