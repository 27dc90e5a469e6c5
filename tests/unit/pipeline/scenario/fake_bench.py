"""A bench whose models take known seconds, each one request after another: no process, and a clock of its own."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipeline.core.measurement import MeasurementFailed
from pipeline.core.scenario import LoadScenario, ModelLoad, RequestLog, rank_of
from pipeline.shared.arrivals import arrival_times
from runtime.measuring.load.bench import LoadConfiguration, LoadError, Window
from runtime.measuring.load.drive import LoadTimes

# Seconds of one inference of a model in a configuration.
Seconds = Callable[[str, LoadConfiguration], float]


def serve(load: ModelLoad, seconds: float, times: LoadTimes, seed: int) -> RequestLog:
    due_s = arrival_times(load, times.due_s, seed) if load.rate else np.arange(0.0, times.due_s, seconds)
    end_s, free_s = np.empty_like(due_s), 0.0
    for i, due in enumerate(due_s):
        end_s[i] = free_s = max(due, free_s) + seconds
    return RequestLog(due_s, due_s, end_s, (due_s >= times.fill_s) & (due_s < times.fill_s + times.measured_s))


def missing_s(load: ModelLoad, log: RequestLog, until_late: float) -> float:
    """Return when it is certain that a percentile takes longer than so many deadlines; inf if it does not."""
    late_s = np.sort(log.end_s[log.measured & (log.end_s - log.origin_s > until_late * load.deadline_s)])
    may = int(log.measured.sum()) - rank_of(load.percentile, int(log.measured.sum()))
    return float(late_s[may]) if len(late_s) > may else math.inf


def cut(log: RequestLog, at_s: float, limit_s: float) -> RequestLog:
    """Return what is known at a time: what is neither served nor as late by then does not count."""
    due_s, origin_s, end_s, measured = (
        each[log.due_s < at_s] for each in (log.due_s, log.origin_s, log.end_s, log.measured)
    )
    waiting = end_s > at_s
    return RequestLog(
        due_s, origin_s, np.where(waiting, np.nan, end_s), measured & (~waiting | (at_s - origin_s > limit_s))
    )


class Time:
    """A clock that goes on when something is measured."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class FakeSeats:
    bench: FakeBench
    configuration: LoadConfiguration
    loaded: Mapping[str, Any]
    load_s: float = 0.1

    def window(self, scenario: LoadScenario, times: LoadTimes, *, seed: int) -> Window:
        bench = self.bench
        bench.windows.append((self.configuration.name, times))
        bench.beside.append(len(bench.present))
        noise = float(np.exp(bench.noise * bench.rng.standard_normal())) * bench.disturbed(bench.clock.now_s)
        logs = {
            m.name: serve(m, noise * bench.seconds(m.name, self.configuration), times, seed) for m in scenario.models
        }
        missed_s = min(missing_s(m, logs[m.name], times.until_late) for m in scenario.models)
        bench.clock.now_s += min(times.due_s, missed_s)
        if math.isfinite(missed_s):
            logs = {m.name: cut(logs[m.name], missed_s, times.until_late * m.deadline_s) for m in scenario.models}
        return Window(logs, min(times.measured_s, missed_s - times.fill_s), 1.0, bench.peak_bytes, bench.fails)


@dataclass
class FakeBench:
    """refused: names of configurations whose models cannot be loaded. fails: models that fail under load.

    disturbed: by how much all models are slowed at a time. present: configurations that are loaded now.
    """

    seconds: Seconds
    noise: float = 0.01
    refused: Callable[[LoadConfiguration], str] = lambda configuration: ""
    fails: Mapping[str, MeasurementFailed] = field(default_factory=dict)
    peak_bytes: int = 100
    disturbed: Callable[[float], float] = lambda now_s: 1.0
    present: list[str] = field(default_factory=list)
    clock: Time = field(default_factory=Time)
    windows: list[tuple[str, LoadTimes]] = field(default_factory=list)
    beside: list[int] = field(default_factory=list)
    seated: list[tuple[str, bool]] = field(default_factory=list)
    seats: type[FakeSeats] = FakeSeats
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    @contextlib.contextmanager
    def seat(self, configuration: LoadConfiguration, *, fresh: bool = True) -> Iterator[FakeSeats]:
        self.clock.now_s += 0.5
        self.seated.append((configuration.name, fresh))
        if model := self.refused(configuration):
            raise LoadError(model, MeasurementFailed("refused", "no such layer"))
        told = {name: {"requests": 1, "precisions": {"CPU": "f32"}} for name, _ in configuration.models}
        self.present.append(configuration.name)
        yield self.seats(self, configuration, told)
        self.present.remove(configuration.name)
