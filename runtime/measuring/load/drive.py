"""Puts several models under load: requests of open loops, closed loops and chains, served by threads.

Every request that a model can have in flight is a thread. A thread takes the next request in the order in which they
are due, waits until it is, and serves it: what finds no thread free begins later, and its latency counts from the
moment when it was due. Nothing that serves slowly can so slow down the arrivals (no coordinated omission).

    open loop    arrivals are drawn before the load begins; see `pipeline.shared.arrivals`
    closed loop  a request begins when the one before has ended, and with it all that its results have caused
    chain        every result of one model causes requests of the next, due at once

What is due before the load has filled the machine, or after the measured part, is served and does not count. Once the
last is due, what is still waiting has `drain_s` to be served; then it counts as dropped. A model that raises an error,
or hangs, is named, and the others go on.

A load may end early: once more requests of an open loop than its percentile leaves out, of all that are drawn, take
longer than so many deadlines. What was due by then and was neither served nor as late yet does not count.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipeline.core.scenario import LoadScenario, ModelLoad, RequestLog, rank_of
from pipeline.shared.arrivals import arrival_times, generator_of

SLICE_S = 0.05  # of waiting for a request that is due, until it is seen that the load has ended
Serve = Callable[[], object]  # runs one inference


@dataclass(frozen=True, slots=True)
class LoadTimes:
    """Seconds: until the load has filled the machine, of the part that counts, of load behind it, and to finish.

    hang_s: that one inference may take once all time is over, before its model is said to hang. until_late: deadlines,
    by which it ends where a percentile takes longer.
    """

    fill_s: float
    measured_s: float
    tail_s: float
    drain_s: float
    hang_s: float = 10.0
    until_late: float = math.inf

    def counts(self, origin_s: float) -> bool:
        """Return whether a request counts, the first of whose chain was due then."""
        return 0 <= origin_s - self.fill_s < self.measured_s

    @property
    def due_s(self) -> float:
        """Return until when requests are due."""
        return self.fill_s + self.measured_s + self.tail_s


@dataclass(slots=True)
class Chain:
    """A request, with all that its results cause: when it was due, and how many of them have not ended.

    loop: the model whose closed loop goes on once all have; None in an open loop.
    """

    origin_s: float
    loop: ModelQueue | None = None
    open: int = 1


@dataclass(frozen=True, slots=True)
class Due:
    """A request that is to begin at a time."""

    due_s: float
    chain: Chain


@dataclass(slots=True)
class ModelQueue:
    """The requests of one model: those still to begin, and what became of those that were served.

    arrivals: of an open loop, in their order; next: how many of them were taken. waiting: those of closed loops and
    chains; None at the end. served: (due, origin, end) of each, end nan where it was dropped. late: how many that count
    took longer than limit_s; most_late: how many may.
    """

    load: ModelLoad
    arrivals: Sequence[float]
    after: Sequence[ModelLoad]
    calls: Mapping[str, np.random.Generator]
    next: int = 0
    waiting: queue.SimpleQueue[Due | None] = field(default_factory=queue.SimpleQueue)
    served: list[tuple[float, float, float]] = field(default_factory=list)
    error: Exception | None = None
    late: int = 0
    limit_s: float = math.inf
    most_late: float = math.inf


class Drive:
    """One load on all models. Make it, and `run` it once."""

    def __init__(
        self, servers: Mapping[str, Sequence[Serve]], scenario: LoadScenario, times: LoadTimes, seed: int
    ) -> None:
        """Draw all that is random.

        servers: model -> what serves one request each; those of models without a load stay idle. scenario: closed
        loops have a concurrency.
        """
        self.servers = {load.name: servers[load.name] for load in scenario.models}
        self.times = times
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._stopped = False
        self._begun_s = 0.0
        self._missed_s = math.inf
        self.queues = {
            load.name: ModelQueue(
                load,
                arrival_times(load, times.due_s, seed).tolist(),
                [m for m in scenario.models if m.after == load.name],
                {m.name: generator_of(seed, m.name, "calls") for m in scenario.models if m.after == load.name},
            )
            for load in scenario.models
        }
        self._pending = sum(len(q.arrivals) + q.load.concurrency for q in self.queues.values())
        for q in self.queues.values():
            q.limit_s = times.until_late * q.load.deadline_s
            if q.load.rate and math.isfinite(q.limit_s):
                n = sum(map(times.counts, q.arrivals))
                q.most_late = n - rank_of(q.load.percentile, n)

    def run(self, begin_s: float = 0.0) -> tuple[dict[str, RequestLog], dict[str, Exception]]:
        """Return the requests of every model, and the errors of those that failed.

        begin_s: on the clock `time.perf_counter`, so that several processes can begin together; 0 for at once.
        """
        self._begun_s = max(begin_s, time.perf_counter() + 0.01)
        for q in self.queues.values():
            for _ in range(q.load.concurrency):
                q.waiting.put(Due(0.0, Chain(0.0, q)))
        if not self._pending:
            self._over.set()
        threads = [
            (name, threading.Thread(target=self._serve, args=(self.queues[name], serve), daemon=True))
            for name, serves in self.servers.items()
            for serve in serves
        ]
        for _, thread in threads:
            thread.start()
        self._over.wait(self._begun_s + self.times.due_s + self.times.drain_s - time.perf_counter())
        self._stopped = True
        for q in self.queues.values():
            for _ in threads:
                q.waiting.put(None)
        until = time.perf_counter() + self.times.hang_s
        for name, thread in threads:
            thread.join(max(0.0, until - time.perf_counter()))
            if thread.is_alive():
                self.queues[name].error = TimeoutError(f"an inference has not ended within {self.times.hang_s:g} s")
        errors = {name: q.error for name, q in self.queues.items() if q.error is not None}
        return {name: self._log(q) for name, q in self.queues.items()}, errors

    @property
    def measured_s(self) -> float:
        """Return how long the part was that counts."""
        return min(self.times.measured_s, self._missed_s - self.times.fill_s)

    def _now(self) -> float:
        return time.perf_counter() - self._begun_s

    def _take(self, q: ModelQueue) -> Due | None:
        """Return the next request of a model, once it is due; None at the end."""
        if not q.load.rate:
            taken = q.waiting.get()
        else:
            with self._lock:
                i = q.next
                q.next += 1
            taken = Due(q.arrivals[i], Chain(q.arrivals[i])) if i < len(q.arrivals) else None
        if taken is None:
            return None
        while (early_s := taken.due_s - self._now()) > 0 and not self._stopped:
            time.sleep(min(early_s, SLICE_S))
        return taken if self._now() < self._missed_s else None

    def _serve(self, q: ModelQueue, serve: Serve) -> None:
        """Serve requests of a model until there are no more."""
        while (taken := self._take(q)) is not None:
            late = q.load.late == "drop" and self._now() - taken.chain.origin_s > q.load.deadline_s
            served = not (late or self._stopped or q.error)
            if served:
                try:
                    serve()
                except Exception as error:  # noqa: BLE001  a device may raise anything; it is told of its model
                    q.error, served = error, False
            self._end(q, taken, self._now() if served else math.nan)

    def _end(self, q: ModelQueue, taken: Due, end_s: float) -> None:
        """Note the end of a request, and let begin what it causes."""
        q.served.append((taken.due_s, taken.chain.origin_s, end_s))
        caused = [] if math.isnan(end_s) else [(load, draw_calls(load, q.calls[load.name])) for load in q.after]
        more = sum(count for _, count in caused)
        now_s, loop = self._now(), taken.chain.loop
        with self._lock:
            taken.chain.open += more - 1
            again = not taken.chain.open and now_s < self.times.due_s
            if loop is None or loop.error:
                again = False
            self._pending += more - 1 + again
            finished = not self._pending
            q.late += self.times.counts(taken.chain.origin_s) and not end_s - taken.chain.origin_s <= q.limit_s
            if q.late > q.most_late and not self._stopped:
                self._missed_s, finished = min(self._missed_s, now_s), True
        for load, count in caused:
            for _ in range(count):
                self.queues[load.name].waiting.put(Due(end_s, taken.chain))
        if again and loop is not None:
            loop.waiting.put(Due(now_s, Chain(now_s, loop)))
        if finished:
            self._over.set()

    def _log(self, q: ModelQueue) -> RequestLog:
        """Return what became of the requests of a model, in the order in which they were due."""
        rows = list(q.served)
        left = Counter(q.arrivals) - Counter(due_s for due_s, _, _ in rows) if q.load.rate else Counter[float]()
        rows += [(due_s, due_s, math.nan) for due_s in left.elements()]
        while not q.waiting.empty():  # of a model that hangs
            if (due := q.waiting.get()) is not None:
                rows.append((due.due_s, due.chain.origin_s, math.nan))
        table = np.array(sorted(row for row in rows if row[0] < self._missed_s), dtype=np.float64).reshape(-1, 3)
        due_s, origin_s, end_s = table.T
        measured = np.array([self.times.counts(s) for s in origin_s.tolist()], np.bool_)
        if math.isfinite(self._missed_s):
            measured &= ~np.isnan(end_s) | (self._missed_s - origin_s > q.limit_s)
        return RequestLog(due_s, origin_s, end_s, measured)


def draw_calls(load: ModelLoad, rng: np.random.Generator) -> int:
    """Return how many requests one result of the model before causes: one of the two nearest numbers."""
    return int(load.calls) + int(rng.random() < load.calls % 1)
