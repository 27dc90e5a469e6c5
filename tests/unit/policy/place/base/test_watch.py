"""What ends a simulator's work when the time is up."""

from __future__ import annotations

import threading
import time

from policy.place.base.watch import Watch

SOON_S, LONG_S = 0.05, 600.0


class Worker:
    """Notes when it is interrupted, and when it may go on."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self.resumed = 0

    def interrupt(self) -> None:
        self.stopped.set()

    def resume(self) -> None:
        self.stopped.clear()
        self.resumed += 1


def test_work_is_interrupted_at_the_moment_and_may_go_on_afterwards() -> None:
    worker = Worker()
    watch = Watch(worker)
    with watch.until(time.monotonic() + SOON_S):
        assert worker.stopped.wait(10)
    assert not worker.stopped.is_set()
    assert worker.resumed == 1


def test_many_tasks_with_one_moment_need_one_thread() -> None:
    worker = Worker()
    watch, at_s, before = Watch(worker), time.monotonic() + LONG_S, threading.active_count()
    for _ in range(50):
        with watch.until(at_s):
            assert threading.active_count() == before + 1
        assert not worker.stopped.is_set()
    watch.close()
    ends_s = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < ends_s:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_a_moment_between_two_tasks_interrupts_none_and_an_earlier_one_counts() -> None:
    worker = Worker()
    watch = Watch(worker)
    with watch.until(time.monotonic() + SOON_S):
        pass
    time.sleep(2 * SOON_S)
    assert not worker.stopped.is_set()
    with watch.until(time.monotonic() + LONG_S):
        assert not worker.stopped.wait(2 * SOON_S)
    with watch.until(time.monotonic() + SOON_S):
        assert worker.stopped.wait(10)
    with watch.until(time.monotonic() - 1.0):  # long over
        assert worker.stopped.wait(10)
    watch.close()
