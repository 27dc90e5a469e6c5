"""The moment by which work is to be done."""

from __future__ import annotations

import math

from pipeline.core.deadline import NEVER, Deadline


class Clock:
    """Says what it is told."""

    now = 10.0

    def __call__(self) -> float:
        return self.now


def test_what_is_left_shrinks_to_nothing() -> None:
    clock = Clock()
    found = Deadline.after(5.0, clock)
    assert (found.left_s, found.passed) == (5.0, False)
    clock.now = 16.0
    assert (found.left_s, found.passed) == (0.0, True)


def test_a_share_is_of_what_is_left_without_the_reserve() -> None:
    clock = Clock()
    found = Deadline.after(10.0, clock)
    clock.now = 12.0
    assert found.share(0.5).left_s == 4.0
    assert found.share(0.5, reserve_s=2.0).left_s == 3.0
    assert found.share(0.5, reserve_s=20.0).left_s == 0.0


def test_no_deadline_stays_none_whatever_is_asked_of_it() -> None:
    assert NEVER.share(0.1).left_s == NEVER.later(5.0).left_s == Deadline.after(None).left_s == math.inf
    assert not NEVER.passed


def test_a_later_one() -> None:
    assert Deadline.after(1.0, Clock()).later(3.0).left_s == 4.0
