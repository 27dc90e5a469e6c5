"""When requests arrive: the one source of it, for loads that are measured and for those that are simulated."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import numpy as np

from pipeline.core.arrays import Float64
from pipeline.core.scenario import ModelLoad

BLOCK = 4096  # gaps drawn at first, and doubled: a longer load begins with the arrivals of a shorter one


def generator_of(seed: int, model: str, what: str) -> np.random.Generator:
    """Return the random numbers of one model for one purpose, which those of others do not change."""
    return np.random.default_rng([seed, zlib.crc32(f"{model} {what}".encode())])


def arrival_times(load: ModelLoad, seconds: float, seed: int) -> Float64:
    """Return float64, the rising times in [0, seconds) at which requests of a model with a rate are due.

    Equal arguments, equal times. All times are proportional to 1 / rate: at twice the rate the same pattern goes twice
    as fast. "periodic" begins anywhere in its first period. "trace" begins with its first arrival, is stretched so that
    its mean rate is `load.rate`, and repeated; at the rate of `trace_rate` it goes as fast as it was recorded. Empty
    for rate 0, closed loops and models that others cause.
    """
    if load.rate <= 0 or load.closed or load.after:
        return np.empty(0)
    times: Float64
    rng = generator_of(seed, load.name, "arrivals")
    if load.arrivals == "poisson":
        gaps = rng.standard_exponential(BLOCK)
        while gaps.sum() < seconds * load.rate:
            gaps = np.concatenate([gaps, rng.standard_exponential(gaps.size)])
        times = np.cumsum(gaps / load.rate)
    elif load.arrivals == "periodic":
        times = (np.arange(math.ceil(seconds * load.rate) + 1.0) + rng.random()) / load.rate
    else:
        one = np.sort(np.array(load.trace_s) - min(load.trace_s)) * trace_rate(load.trace_s) / load.rate
        length_s = len(one) / load.rate
        times = (np.arange(math.ceil(seconds / length_s) + 1.0)[:, None] * length_s + one).reshape(-1)
    return times[: np.searchsorted(times, seconds)]


def trace_rate(trace_s: Sequence[float]) -> float:
    """Return the mean rate of a trace that is repeated after its last gap, taken to be as long as the others' mean.

    1 for a trace of a single moment: nothing can be said of its rate.

    >>> trace_rate((0.0, 0.1, 0.4))
    5.0
    """
    span_s = max(trace_s) - min(trace_s)
    return (len(trace_s) - 1) / span_s if span_s > 0 else 1.0
