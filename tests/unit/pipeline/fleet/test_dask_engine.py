"""The Dask engine over a client that stands for one whose connections were lost."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from pipeline.fleet.dask_engine import Fleet
from pipeline.fleet.engine import silent
from pipeline.store.store import Store

JOIN_S = 3.0


class Silent:
    """A client whose calls on workers are never answered: it gives up where it is told to, and else fails the test."""

    status = "running"
    limits: list[float]

    def __init__(self) -> None:
        self.limits = []

    async def _run(self, function: Any, **_: Any) -> None:
        raise NotImplementedError

    def run(self, *_: Any, **__: Any) -> None:
        pytest.fail("this waits for ever")

    def sync(self, function: Any, *_: Any, callback_timeout: float, **__: Any) -> None:
        self.limits.append(callback_timeout)
        raise TimeoutError

    def scheduler_info(self, n_workers: int) -> dict[str, Any]:
        return {"workers": {"tcp://w": {"name": "w0", "nthreads": 1}}}


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    made = Fleet(contextlib.nullcontext(""), module="m", store=Store(tmp_path), say=silent, join_s=JOIN_S)
    made._client = Silent()
    return made


def test_leaving_waits_no_longer_than_workers_may_take_to_answer(fleet: Fleet) -> None:
    fleet.__exit__(None, None, None)
    assert fleet._client.limits == [JOIN_S]


def test_a_worker_that_does_not_answer_is_not_used(fleet: Fleet) -> None:
    assert fleet._introduce("tcp://w") == []
    assert fleet._unusable == {"w0": "it does not answer"}
    assert not fleet.workers()
