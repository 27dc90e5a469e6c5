"""Ending what a simulator does when the time is up: one thread waits for that moment, however often it works."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.core.stages import Interruptible

SAME_S = 1e-3  # seconds within which two moments are one


class Watch:
    """Interrupts a simulator that still works at a given moment; moments may change between its tasks.

    A thread for each task would cost more than many a task.
    """

    def __init__(self, simulator: Interruptible) -> None:
        self._simulator = simulator
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._at_s = 0.0  # the moment, of time.monotonic()
        self._working = False

    @contextmanager
    def until(self, at_s: float) -> Iterator[None]:
        """Interrupt what the simulator does meanwhile at a moment, of time.monotonic()."""
        with self._lock:
            self._working = True
        if self._timer is None or abs(at_s - self._at_s) > SAME_S or not self._timer.is_alive():
            self._set(at_s)
        try:
            yield
        finally:
            with self._lock:
                self._working = False
            self._simulator.resume()

    def _set(self, at_s: float) -> None:
        self.close()
        self._at_s = at_s
        self._timer = threading.Timer(max(0.0, at_s - time.monotonic()), self._ring)
        self._timer.daemon = True
        self._timer.start()

    def _ring(self) -> None:
        with self._lock:
            if self._working and threading.current_thread() is self._timer:
                self._simulator.interrupt()

    def close(self) -> None:
        """Watch no more."""
        with self._lock:
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
