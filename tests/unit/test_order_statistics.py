"""Exact intervals of the median: their coverage by enumeration, by simulation, and where there can be none."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pipeline.shared.order_statistics import (
    each_level,
    least_samples,
    median_interval_exact,
    unpaired_ratio_interval,
)


def coverage(n: int, k: int) -> float:
    """Return the probability that the median lies between the k-th smallest and the k-th largest of n samples."""
    return 1 - 2 * sum(math.comb(n, i) for i in range(k)) / 2**n


@pytest.mark.parametrize("n", [1, 2, 5, 6, 7, 12, 25, 100])
@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.975])
def test_the_interval_is_the_narrowest_whose_coverage_reaches_the_level(n: int, level: float) -> None:
    ranks = [k for k in range(1, n // 2 + 1) if coverage(n, k) >= level]
    found = median_interval_exact(np.arange(1.0, n + 1)[::-1].tolist(), level)
    assert found == ((float(ranks[-1]), float(n + 1 - ranks[-1])) if ranks else None)


@pytest.mark.parametrize("level", [0.5, 0.95, 0.975, 0.99])
def test_the_least_number_of_samples_is_where_intervals_begin(level: float) -> None:
    n = least_samples(level)
    assert median_interval_exact([1.0] * n, level) == (1.0, 1.0)
    assert median_interval_exact([1.0] * (n - 1), level) is None


def test_a_level_that_is_met_exactly_counts() -> None:
    assert median_interval_exact([1.0, 2.0, 3.0, 4.0, 5.0], 1 - 2 / 2**5) == (1.0, 5.0)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.5, math.nan])
def test_a_level_outside_of_0_and_1_is_an_error(level: float) -> None:
    with pytest.raises(ValueError, match="level must lie in"):
        median_interval_exact([1.0], level)


def test_no_samples_have_no_interval() -> None:
    assert median_interval_exact([], 0.5) is None


def test_the_level_of_each_of_two_holds_for_both() -> None:
    assert 1 - 2 * (1 - each_level(0.95)) == pytest.approx(0.95)


def test_the_ratio_of_two_medians_is_covered_as_often_as_stated() -> None:
    rng, held, trials = np.random.default_rng(0), 0, 2000
    for _ in range(trials):
        slow, quick = (scale * np.exp(rng.standard_normal(12)) for scale in (1.5, 1.0))  # skewed, as latencies are
        found = unpaired_ratio_interval(slow.tolist(), quick.tolist(), 0.95)
        assert found is not None
        held += found[0] <= 1.5 <= found[1]
    assert held / trials >= 0.95


def test_one_run_with_too_few_samples_leaves_no_ratio() -> None:
    assert unpaired_ratio_interval([1.0] * 6, [1.0] * 20, 0.95) is None
    assert unpaired_ratio_interval([1.0] * 20, [1.0] * 6, 0.95) is None
    assert unpaired_ratio_interval([2.0] * 7, [1.0] * 7, 0.95) == (2.0, 2.0)
