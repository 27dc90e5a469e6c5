"""The simulator of requests once more, in plain Python: rest of the work of every request in flight, step by step."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from pipeline.core.scenario import LoadScenario, ModelLoad, RequestLog
from pipeline.shared.arrivals import arrival_times, generator_of
from runtime.simulators.requests.kernels import LEAST_BESIDE
from runtime.simulators.requests.requests import IDLE_S, ServiceModel

MASK = 2**64 - 1


def splitmix(stream: int, number: int) -> float:
    """Return a number in [0, 1), as `Source` of the kernels says."""
    bits = (stream + (number + 1) * 0x9E3779B97F4A7C15) & MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & MASK
    return float((bits ^ (bits >> 31)) >> 11) / 2**53


@dataclass
class Request:
    """A request under way; parent: None for the first of a chain. open: of its chain, those that have not ended."""

    load: ModelLoad
    due_s: float
    parent: Request | None
    rest_s: float = 0.0
    end_s: float = math.nan
    open: int = 0

    @property
    def first(self) -> Request:
        """Return the first request of the chain."""
        return self if self.parent is None else self.parent.first


class PlainQueues:
    """One run."""

    def __init__(self, scenario: LoadScenario, service: ServiceModel, until_s: float, seed: int) -> None:
        self.models, self.until_s = scenario.models, until_s
        self.at = {m.name: service.names.index(m.name) for m in self.models}
        self.service = service
        self.streams = {
            (m.name, what): int(generator_of(seed, m.name, what).integers(2**62))
            for m in self.models
            for what in ("work", "calls", "beside")
        }
        self.drawn = dict.fromkeys(self.streams, 0)
        self.queue: dict[str, deque[Request]] = {m.name: deque() for m in self.models}
        self.busy: dict[str, list[Request]] = {m.name: [] for m in self.models}
        self.rested_s: dict[str, float] = {}
        self.all: list[Request] = []
        self.arrivals = sorted(
            (time, i)
            for i, m in enumerate(self.models)
            for time in ([0.0] * m.concurrency if m.closed else arrival_times(m, until_s, seed).tolist())
        )

    def draw(self, name: str, what: str) -> float:
        """Return the next random number of a model for a purpose."""
        self.drawn[name, what] += 1
        return splitmix(self.streams[name, what], self.drawn[name, what] - 1)

    def speed(self, load: ModelLoad) -> float:
        """Return how fast a request of a model in flight goes now."""
        row = self.service.slowdown[self.at[load.name]]
        return 1 / float(1 + sum(row[self.at[m.name]] * (len(self.busy[m.name]) - (m is load)) for m in self.models))

    def begin(self, load: ModelLoad, now_s: float, parent: Request | None) -> None:
        """Let a request be due."""
        request = Request(load, now_s, parent)
        samples = self.service.alone_s[self.at[load.name]]
        request.rest_s = samples[int(self.draw(load.name, "work") * len(samples))]
        request.first.open += 1
        self.all.append(request)
        free = len(self.busy[load.name]) < self.service.servers[self.at[load.name]]
        if free and not self.busy[load.name]:
            idle_s = now_s - self.rested_s.get(load.name, -math.inf)
            request.rest_s *= np.interp(idle_s, IDLE_S, self.service.after_idle[self.at[load.name]])
        (self.busy if free else self.queue)[load.name].append(request)
        if free:
            self.enter(request)

    def enter(self, request: Request) -> None:
        """Stretch the work of a request that is in flight from now on by what is there beside it."""
        i, place = self.at[request.load.name], self.draw(request.load.name, "beside")
        beside = self.service.beside
        others = [m for m in self.models if len(self.busy[m.name]) > (m is request.load)]
        more = sum(beside[i, self.at[m.name], int(place * beside.shape[2])] - 1 for m in others)
        request.rest_s *= max(1 + more, LEAST_BESIDE)

    def leave(self, request: Request, now_s: float) -> None:
        """End a request, and let a closed loop go on."""
        first = request.first
        first.open -= 1
        if not first.open and first.load.closed and now_s < self.until_s:
            self.begin(first.load, now_s, None)

    def end(self, request: Request, now_s: float) -> None:
        """End a request that was served."""
        request.end_s = now_s
        load, queue = request.load, self.queue[request.load.name]
        taken = None
        while taken is None and queue:
            taken = queue.popleft()
            if load.late == "drop" and now_s - taken.first.due_s > load.deadline_s:
                self.leave(taken, now_s)
                taken = None
        self.busy[load.name].remove(request)
        if taken is not None:
            self.busy[load.name].append(taken)
            self.enter(taken)
        if not self.busy[load.name]:
            self.rested_s[load.name] = now_s
        for other in self.models:
            if other.after == load.name:
                more = self.draw(other.name, "calls") < other.calls % 1
                for _ in range(int(other.calls) + more):
                    self.begin(other, now_s, request)
        self.leave(request, now_s)

    def run(self) -> list[Request]:
        """Return all requests in the order in which they were due."""
        now_s = 0.0
        while True:
            under_way = [r for m in self.models for r in self.busy[m.name]]
            next_s = (
                min((now_s + r.rest_s / self.speed(r.load), i) for i, r in enumerate([*under_way]))
                if under_way
                else None
            )
            arrives = self.arrivals and (next_s is None or self.arrivals[0][0] < next_s[0])
            if not arrives and next_s is None:
                return self.all
            then_s = self.arrivals[0][0] if arrives else next_s[0]  # type: ignore[index]
            speeds = {m.name: self.speed(m) for m in self.models if self.busy[m.name]}
            for r in under_way:
                r.rest_s -= (then_s - now_s) * speeds[r.load.name]
            now_s = then_s
            if arrives:
                self.begin(self.models[self.arrivals.pop(0)[1]], now_s, None)
            else:
                self.end(under_way[next_s[1]], now_s)  # type: ignore[index]


def simulate_plainly(
    scenario: LoadScenario, service: ServiceModel, *, seconds: float, seed: int, warm_up_s: float
) -> dict[str, RequestLog]:
    """Return what `simulate_requests` returns."""
    requests = PlainQueues(scenario, service, seconds + 2 * warm_up_s, seed).run()
    logs = {}
    for m in scenario.models:
        mine = [r for r in requests if r.load is m]
        origin_s = np.array([r.first.due_s for r in mine])
        logs[m.name] = RequestLog(
            np.array([r.due_s for r in mine]),
            origin_s,
            np.array([r.end_s for r in mine]),
            (origin_s >= warm_up_s) & (origin_s < warm_up_s + seconds),
        )
    return logs
