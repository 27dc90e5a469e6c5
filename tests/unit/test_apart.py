"""Work on a thread of its own: what it gives back, and what an interrupt does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

import pytest

from pipeline import apart as module
from pipeline.apart import StoppedError, apart
from pipeline.core.errors import UsageError


def test_work_runs_on_another_thread_and_gives_back_what_it_returns() -> None:
    assert apart(lambda check: threading.current_thread()) is not threading.main_thread()


def test_what_work_raises_reaches_the_caller() -> None:
    def work(check: Callable[[], None]) -> None:
        raise UsageError("wrong", "do it right")

    with pytest.raises(UsageError, match="wrong"):
        apart(work)


def test_an_interrupt_reaches_the_caller_and_ends_the_work() -> None:
    ended = threading.Event()

    def work(check: Callable[[], None]) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        try:
            while True:
                check()
        except StoppedError:
            ended.set()

    with pytest.raises(KeyboardInterrupt):
        apart(work)
    assert ended.is_set()


def test_work_that_never_asks_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE_S", 0.01)
    enough = threading.Event()

    def work(check: Callable[[], None]) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        enough.wait()

    with pytest.raises(KeyboardInterrupt):
        apart(work)
    enough.set()
