"""Several models on one machine: the load of each, what is wanted of it, and the requests that were served."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from pipeline.core.arrays import Bool, Float64, frozen

Arrivals = Literal["poisson", "periodic", "trace"]
LatePolicy = Literal["queue", "drop"]
ScenarioObjective = Literal["load", "latency", "throughput"]
Isolation = Literal["process", "processes"]  # all models in one process, or one process each


@dataclass(frozen=True, slots=True)
class Phase:
    """One way in which a model is called, with the same weights: prefill or decode, short or long inputs.

    of: what the model is called; a phase has its own name in a scenario. share: of the model's requests.
    """

    name: str
    of: str
    share: float


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """The requests of one model, and what is wanted of them.

    rate: requests per second (open loop); 0 where `concurrency` requests are always in flight (closed loop), or where
    the results of another model, `after`, cause them: `calls` on average for each.
    trace_s: float64 [k], times of arrival in seconds for "trace"; repeated at its end.
    deadline_s: from the moment when a request is due, of a chain when its first is, to its end; inf for none. It holds
    if the stated percentile of the latencies does not exceed it.
    late: a request that waits longer than its deadline is served all the same ("queue"), or dropped.
    devices: names of those that may run the model; () for all.
    """

    name: str
    rate: float = 0.0
    concurrency: int = 0
    arrivals: Arrivals = "poisson"
    trace_s: tuple[float, ...] = ()
    deadline_s: float = math.inf
    percentile: float = 99.0
    weight: float = 1.0
    late: LatePolicy = "queue"
    after: str = ""
    calls: float = 1.0
    devices: tuple[str, ...] = ()
    phase: Phase | None = None

    @property
    def closed(self) -> bool:
        """Return whether a new request begins whenever one has ended."""
        return self.concurrency > 0


@dataclass(frozen=True, slots=True)
class LoadScenario:
    """Models that share a machine. Limits of 0 are none.

    memory_bytes: of all processes together. load_s: until all models are compiled. processor_s: processor time per
    second of load.
    """

    models: tuple[ModelLoad, ...]
    objective: ScenarioObjective = "load"
    isolation: Isolation = "process"
    memory_bytes: int = 0
    load_s: float = 0.0
    processor_s: float = 0.0

    def model(self, name: str) -> ModelLoad:
        """Return the load of one model."""
        return next(m for m in self.models if m.name == name)

    def families(self) -> dict[str, list[str]]:
        """Return the phases of every model that has several: their names as models of the scenario."""
        families: dict[str, list[str]] = {}
        for load in self.models:
            if load.phase is not None:
                families.setdefault(load.phase.of, []).append(load.name)
        return {family: phases for family, phases in families.items() if len(phases) > 1}

    def scaled(self, multiple: float) -> LoadScenario:
        """Return the scenario with all rates multiplied; closed loops stay."""
        return replace(self, models=tuple(replace(m, rate=m.rate * multiple) for m in self.models))

    def rates(self, first: Mapping[str, float] | None = None) -> dict[str, float]:
        """Return requests per second of every model, those of chains from what causes them.

        first: of the models that nothing causes, in place of those stated.
        """
        loads = {load.name: load for load in self.models}
        rates = {}
        for name in loads:
            root, *caused = chain_to(name, loads)
            rate = loads[root].rate if first is None else first[root]
            rates[name] = rate * math.prod(loads[n].calls for n in caused)
        return rates


def chain_to(name: str, loads: Mapping[str, ModelLoad]) -> list[str]:
    """Return the models whose results lead to one, as far as they are there: the first first, and itself last."""
    chain = [name]
    while (before := loads[chain[-1]].after) in loads and before not in chain:
        chain.append(before)
    return chain[::-1]


def rank_of(percentile: float, n: int) -> int:
    """Return the place from 1 that a percentile has among n latencies in rising order.

    >>> rank_of(99.0, 100), rank_of(99.0, 110)
    (99, 109)
    """
    return math.ceil(round(n * percentile / 100, 6))


@dataclass(frozen=True, slots=True, eq=False)
class RequestLog:
    """Requests of one model, k of them, in the order in which they were due; seconds since the load began.

    due_s: float64 [k], when a request should begin, whether or not anything was free. origin_s: float64 [k], when the
    first request of its chain was due; due_s itself without a chain. end_s: float64 [k], nan where it was dropped.
    measured: bool [k], whether it counts: those due while the load fills and drains the machine do not.
    """

    due_s: Float64
    origin_s: Float64
    end_s: Float64
    measured: Bool

    def __post_init__(self) -> None:
        k = len(self.due_s)
        for name in ("due_s", "origin_s", "end_s"):
            object.__setattr__(self, name, frozen(getattr(self, name), np.float64, (k,), name))
        object.__setattr__(self, "measured", frozen(self.measured, np.bool_, (k,), "measured"))

    @property
    def dropped(self) -> int:
        """Return how many of the measured requests were dropped."""
        return int(np.isnan(self.end_s[self.measured]).sum())

    def latencies_s(self) -> Float64:
        """Return float64, seconds from when the chain of a measured request was due; inf for one that was dropped."""
        seconds: Float64 = (self.end_s - self.origin_s)[self.measured]
        return np.where(np.isnan(seconds), np.inf, seconds)

    def percentile_s(self, percentile: float) -> float:
        """Return the least latency that at least this percentage of the measured requests does not exceed."""
        seconds = self.latencies_s()
        return float(np.sort(seconds)[rank_of(percentile, seconds.size) - 1]) if seconds.size else math.nan
