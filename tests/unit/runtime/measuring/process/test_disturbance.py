"""Whether other processes took the processors away."""

from __future__ import annotations

import threading

import pytest

from runtime.measuring.process.disturbance import Look, disturbed_share, read_processor_times, waited_between

S = 10**9  # nanoseconds


def test_what_threads_waited_is_part_of_what_they_wanted() -> None:
    # Thread 1 ran 1 s and waited 3 s since before, thread 2 was born and waited 4 s, thread 3 has ended.
    before = {"1": (S, 0), "3": (5 * S, 9 * S)}
    after = {"1": (2 * S, 3 * S), "2": (0, 4 * S)}
    assert waited_between(before, after) == {"run_delay_s": pytest.approx(7.0), "runnable_s": pytest.approx(8.0)}
    assert waited_between({}, {}) == {"run_delay_s": 0.0, "runnable_s": 0.0}


@pytest.mark.parametrize(
    ("waited", "others_s", "share"),
    [
        (1, 5.0, 0.25),  # 1 of 4 s that the thread wanted to run, others had the processor
        (1, 0.4, 0.1),  # it waited for 0.6 s for threads of its own process
        (0, 5.0, 0.0),  # others ran on processors that nobody here wanted
        (1, -0.1, 0.0),  # the clocks tick at different times
    ],
)
def test_no_more_waiting_is_blamed_on_others_than_they_ran(waited: int, others_s: float, share: float) -> None:
    before, after = Look({"1": (S, S)}, 7.0), Look({"1": ((4 - waited) * S + S, S + waited * S)}, 7.0 + others_s)
    assert disturbed_share(before, after) == pytest.approx(share)
    assert disturbed_share(before, Look(before.threads, 9.0)) == 0.0


def test_a_look_has_the_threads_of_this_process() -> None:
    assert str(threading.get_native_id()) in read_processor_times().threads
