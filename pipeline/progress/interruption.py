"""Long work on a thread of its own, so that Ctrl-C ends it at once and safely."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from pipeline.system.process import LOOK_EVERY_S

T = TypeVar("T")

GRACE_S = 2.0  # seconds that interrupted work gets to notice before it is left behind


class StoppedError(Exception):
    """Work that nobody waits for any more ends with this, unseen."""


def run_interruptible(work: Callable[[Callable[[], None]], T], *, within_s: float | None = None) -> T:
    """Return what `work` returns or raises, run on another thread than the one that signals interrupt.

    An interrupt while a compiled kernel hands back several arrays ends the process: numba does not look whether making
    them raised. Here it meets the waiting caller instead, in the middle of a kernel, too. work: gets a function to
    call now and then, which raises `StoppedError` once the caller has gone.

    Raises:
        TimeoutError: the work has not ended in time; it is left behind.
    """
    gone = threading.Event()
    outcome: Future[T] = Future()

    def check() -> None:
        if gone.is_set():
            raise StoppedError

    def body() -> None:
        try:
            outcome.set_result(work(check))
        except BaseException as error:  # noqa: BLE001  handed on to the caller, whatever it is
            outcome.set_exception(error)

    thread = threading.Thread(target=body, name="placewright-search", daemon=True)
    try:
        thread.start()  # may be interrupted itself, when the work has begun
        begun = time.monotonic()
        while not wait([outcome], LOOK_EVERY_S).done:  # Windows tells of Ctrl-C between waits, not within them
            if within_s is not None and time.monotonic() - begun > within_s:
                gone.set()
                raise TimeoutError
        return outcome.result()
    except KeyboardInterrupt:
        gone.set()
        wait([outcome], GRACE_S)
        raise
