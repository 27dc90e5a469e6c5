"""Measurements and the intervals made of them."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.core.measurement import Measurement, median_interval, ratio_interval


def test_the_median_of_a_measurement_by_hand() -> None:
    assert Measurement(np.array([3.0, 1.0, 2.0])).value_s == 2.0
    assert Measurement(np.array([3.0, 1.0])).value_s == 2.0


@pytest.mark.parametrize("samples", [[], [np.nan], [1.0, np.inf], [-1.0]])
def test_a_measurement_needs_real_latencies(samples: list[float]) -> None:
    with pytest.raises(ValueError, match="at least one finite"):
        Measurement(np.array(samples))


def test_samples_are_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        Measurement(np.array([1.0])).samples_s[0] = 2.0


def test_an_interval_covers_its_median() -> None:
    samples = np.random.default_rng(0).exponential(1.0, 31)
    found = median_interval(samples)
    assert found.low < found.median < found.high
    assert found.median == np.median(samples)
    assert samples.min() <= found.low
    assert found.high <= samples.max()


def test_an_interval_covers_the_true_median_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for i in range(100):
        found = median_interval(rng.standard_normal(25), seed=i, resamples=300)
        hits += found.low <= 0.0 <= found.high
    # 95 of 100 expected; the percentile interval of a median is known to be a little off: 4 deviations are allowed.
    assert hits >= 86


def test_a_narrower_level_gives_a_narrower_interval() -> None:
    samples = np.random.default_rng(0).standard_normal(40)
    wide, narrow = median_interval(samples, level=0.95), median_interval(samples, level=0.5)
    assert wide.low <= narrow.low < narrow.high <= wide.high
    assert (wide.low, wide.high) != (narrow.low, narrow.high)


def test_an_interval_depends_on_the_seed_alone() -> None:
    samples = np.random.default_rng(0).standard_normal(12)
    state = np.random.get_state()[1].tolist()  # noqa: NPY002  to see that it is left alone
    assert median_interval(samples, seed=3, resamples=50) == median_interval(samples, seed=3, resamples=50)
    assert median_interval(samples, seed=3, resamples=50) != median_interval(samples, seed=4, resamples=50)
    assert np.random.get_state()[1].tolist() == state  # noqa: NPY002


def test_equal_samples_have_an_interval_without_width() -> None:
    for samples in ([2.0], [2.0, 2.0, 2.0]):
        found = median_interval(np.array(samples))
        assert (found.low, found.median, found.high) == (2.0, 2.0, 2.0)


def test_ratios_are_taken_round_by_round() -> None:
    slow = np.array([2.0, 20.0, 200.0])  # what disturbs one round disturbs both
    found = ratio_interval(slow, slow / 2)
    assert (found.low, found.median, found.high) == (2.0, 2.0, 2.0)
    shuffled = ratio_interval(slow, slow[[1, 2, 0]] / 2)
    assert shuffled.low < shuffled.high


def test_ratios_of_unequal_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="one shape"):
        ratio_interval(np.ones(3), np.ones(2))
