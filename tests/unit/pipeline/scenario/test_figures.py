"""What windows of load say: a second of them to draw, windows pooled, and turns beside one another."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.core.scenario import RequestLog
from pipeline.scenario.figures import Measured, one_second, pooled_window
from runtime.measuring.load.bench import Window


def window_of(due_s: list[float], took_s: float) -> Window:
    due = np.array(due_s)
    return Window({"a": RequestLog(due, due, due + took_s, np.ones(due.size, bool))}, 2.0, 1.0, 100)


def test_a_timeline_has_one_second_of_the_middle_of_a_window() -> None:
    rows = one_second(window_of([0.0, 1.4, 1.6, 2.4, 2.6, 4.0], 0.5))
    assert [row.due_s for row in rows] == pytest.approx([0.1, 0.9])
    assert [row.end_s for row in rows] == pytest.approx([0.6, 1.4])


def test_pooled_windows_have_the_requests_of_all() -> None:
    pooled = pooled_window([window_of([0.0, 1.0], 0.1), window_of([0.5], 0.3)])
    assert pooled.measured_s == 4.0
    assert pooled.logs["a"].latencies_s().tolist() == pytest.approx([0.1, 0.1, 0.3])


def test_the_ratio_of_two_that_take_turns_is_the_median_over_the_turns() -> None:
    drift = np.array([0.0, 0.7, 0.1, 3.0])
    one, other = (Measured(0.0, [], turns=(x + drift).tolist()) for x in (0.3, 0.0))
    assert one.log_ratio(other) == pytest.approx(0.3)
    assert Measured(2.0, []).log_ratio(Measured(0.5, [])) == 1.5
