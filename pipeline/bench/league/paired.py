"""Tests of pairs, instance by instance: Wilcoxon's signed ranks, and Holm's correction for many of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.core.arrays import Float64

ALPHA = 0.05  # below which a probability tells two apart
DIGITS = 9  # after which logarithms of seconds are equal


def log_ratios(one: Mapping[str, float], other: Mapping[str, float]) -> Float64:
    """Return float64 [r], the logarithms of seconds over those of the other, of the instances of both."""
    common = sorted(one.keys() & other.keys())
    logs: Float64 = np.log(np.array([one[i] / other[i] for i in common], np.float64))
    return logs.round(DIGITS)


def signed_rank_p(differences: Float64) -> float:
    """Return how likely it is that differences, float64 [r], are as far to one side by chance; 1 where all are 0.

    >>> signed_rank_p(np.full(8, -0.1)) < 0.01, signed_rank_p(np.zeros(8))
    (True, 1.0)
    """
    from scipy.stats import wilcoxon

    return float(wilcoxon(differences, zero_method="pratt").pvalue) if differences.any() else 1.0


def holm(p: Sequence[float]) -> list[float]:
    """Return probabilities corrected for as many tests as there are.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected, least = [0.0] * len(p), 0.0
    for at, i in enumerate(np.argsort(p, kind="stable").tolist()):
        least = max(least, min(1.0, (len(p) - at) * p[i]))
        corrected[i] = least
    return corrected
