"""What the measuring child does with its requests, without a runtime and under a clock that counts its questions."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from runtime.measuring import worker


class Impatient(queue.SimpleQueue[Any]):
    """A queue that raises where nothing comes, so that a request that is never begun fails the test."""

    def get(self) -> Any:  # type: ignore[override]
        return super().get(timeout=10)


class Together:
    """Requests of which none ends before all are in flight; then all end, in the order of their beginning."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.running: list[Request] = []
        self.most = 0

    def begin(self, request: Request) -> None:
        self.running.append(request)
        self.most = max(self.most, len(self.running))
        if len(self.running) == self.count:
            for ended in [self.running.pop(0) for _ in range(self.count)]:
                ended.end()


class Request:
    def __init__(self, batch: Together) -> None:
        self.batch = batch
        self.end: Callable[[], None]

    def set_callback(self, told: Callable[[None], None], _: None) -> None:
        self.end = lambda: told(None)

    def start_async(self) -> None:
        self.batch.begin(self)

    def wait(self) -> None:
        pass


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    counting = SimpleNamespace(perf_counter=lambda: float(next(ticks)), process_time=lambda: 0.0)
    monkeypatch.setattr(worker, "time", counting)
    monkeypatch.setattr(worker, "queue", SimpleNamespace(SimpleQueue=Impatient))


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("count", [4, 8])
def test_all_requests_are_in_flight_at_once_and_a_period_is_shorter_than_a_latency(count: int) -> None:
    session = worker.Session()
    batch = Together(count)
    session.requests = [Request(batch) for _ in range(count)]  # type: ignore[misc]
    told = session.run({"seconds": 0.0, "minimum": 3, "realtime": False})
    assert batch.most == count
    assert len(told["samples_s"]) == 3 * count
    assert told["period_s"] < sum(told["samples_s"]) / len(told["samples_s"])
