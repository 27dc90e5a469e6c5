"""Ratios with intervals, and how tables and pictures of them are written in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.core.arrays import Float64

LEVEL = 0.95
RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Interval:
    """A point estimate and its 95 % bootstrap interval."""

    median: float
    low: float
    high: float


def geometric_mean(ratios: Sequence[Float64], *, seed: int = 0) -> Interval:
    """Return the geometric mean of ratios and its bootstrap interval over seeds.

    ratios: for each model float64 [r], one ratio per seed. The mean over a model's seeds comes first, so that models
    count alike; the interval resamples the seeds of each model. One seed gives an interval of no width.
    Source: Efron and Tibshirani, An Introduction to the Bootstrap, section 13.3 (percentile interval).

    >>> geometric_mean([np.array([2.0]), np.array([8.0])])
    Interval(median=4.0, low=4.0, high=4.0)
    """
    rng = np.random.default_rng(seed)
    logs = [np.log(r) for r in ratios]
    drawn = [x[rng.integers(0, x.size, (RESAMPLES, x.size))].mean(axis=1) for x in logs]
    low, high = np.quantile(np.mean(drawn, axis=0), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(*(round(float(np.exp(x)), 12) for x in (np.mean([x.mean() for x in logs]), low, high)))


def pictures_of(pictures: Sequence[tuple[str, str]]) -> list[str]:
    """Return the lines that show pictures, of titles and files."""
    shown = [line for title, file in pictures for line in (f"![{title}]({file})", "")]
    return ["## Intervals", "", *shown] if shown else []


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table; all columns but the first are right-aligned.

    >>> markdown(["a", "b"], [["x", "1"]])
    ['| a | b |', '|---|---:|', '| x | 1 |']
    """
    rule = "|---|" + "---:|" * (len(header) - 1)
    return [f"| {' | '.join(header)} |", rule, *(f"| {' | '.join(row)} |" for row in rows)]


def ratio_text(ratio: Mapping[str, Any] | None, digits: int = 4) -> str:
    """Return a ratio, with its interval if that has a width."""
    if ratio is None:
        return "-"
    median, low, high = (f"{ratio[key]:.{digits}f}" for key in ("median", "low", "high"))
    return median if ratio["high"] - ratio["low"] < 1e-9 else f"{median} [{low}, {high}]"
