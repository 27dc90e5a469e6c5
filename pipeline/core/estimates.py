"""Figures with their uncertainty: what repeated starts say, and an interval that holds."""

from __future__ import annotations

import math
from dataclasses import dataclass

LARGEST = 700.0  # logarithm of what a float can still hold


@dataclass(frozen=True, slots=True)
class RatioEstimate:
    """How many times a figure is another, with an interval; without width where it is predicted.

    starts: on how many it rests; 0 for none.
    """

    ratio: float
    low: float
    high: float
    starts: int = 0

    @classmethod
    def of_logs(cls, mean: float, low: float, high: float, starts: int) -> RatioEstimate:
        """Return the ratio of logarithms; the upper end may be too large for a number."""
        return cls(math.exp(mean), math.exp(low), math.exp(high) if high < LARGEST else math.inf, starts)


@dataclass(frozen=True, slots=True)
class LatencyEstimate:
    """Seconds: the middle of all starts, and its 95 % interval; none where there are too few starts for one.

    fastest, slowest: of the starts; None where there is no more than one.
    """

    median: float
    low: float | None
    high: float | None
    fastest: float | None = None
    slowest: float | None = None
