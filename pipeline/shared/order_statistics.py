"""Intervals of medians that hold for every distribution, from order statistics alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def median_interval_exact(samples: Sequence[float], level: float) -> tuple[float, float] | None:
    """Return (low, high), an interval that covers the median with at least `level`; None where n samples cannot.

    The interval is that of the k-th smallest and the k-th largest of n independent samples, with the largest k whose
    coverage 1 - 2 P(Binomial(n, 1/2) < k) is no less than the level: below 6 samples there is none at 95 %.

    Source: David and Nagaraja, Order Statistics, section 7.1 (distribution-free intervals for quantiles).

    >>> median_interval_exact([3.0, 1.0, 2.0, 5.0, 4.0, 6.0], 0.95)
    (1.0, 6.0)
    >>> median_interval_exact([3.0, 1.0, 2.0, 5.0, 4.0], 0.95) is None
    True

    Raises:
        ValueError: the level does not lie in (0, 1).
    """
    from scipy.special import bdtr

    if not 0 < level < 1:
        raise ValueError(f"level must lie in (0, 1), is {level}")
    ordered, n = np.sort(np.asarray(samples, np.float64)), len(samples)
    outside = 2 * bdtr(np.arange(n // 2, dtype=np.float64), n, 0.5)  # entry k - 1: what the interval of k misses
    k = int(np.count_nonzero(outside <= 1 - level + 1e-12))  # a level such as 1 - 2 / 2**6 is met exactly
    return None if k == 0 else (float(ordered[k - 1]), float(ordered[n - k]))


def least_samples(level: float) -> int:
    """Return how many samples an exact interval of the median needs at least.

    >>> least_samples(0.95), least_samples(0.975)
    (6, 7)
    """
    n = 1
    while 2 * 0.5**n > 1 - level + 1e-12:
        n += 1
    return n


def each_level(level: float) -> float:
    """Return the level at which each of two intervals must hold so that both do together with `level` (Bonferroni).

    >>> round(each_level(0.95), 4)
    0.975
    """
    return 1 - (1 - level) / 2


def unpaired_ratio_interval(
    numerator: Sequence[float], denominator: Sequence[float], level: float
) -> tuple[float, float] | None:
    """Return (low, high), covering the ratio of two medians with at least `level`; None where samples are too few.

    Nothing pairs the samples, so that each median has an interval of its own, and the ratio lies between their
    extremes whenever both hold. That is wider than need be, and never narrower.
    """
    over = median_interval_exact(numerator, each_level(level))
    under = median_interval_exact(denominator, each_level(level))
    return None if over is None or under is None else (over[0] / under[1], over[1] / under[0])
