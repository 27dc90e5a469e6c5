"""Charts: what stands where."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest

from pipeline.report.charts import draw_cumulative


def test_a_cumulative_distribution_rises_by_equal_steps_at_its_values() -> None:
    drawing = draw_cumulative({"one": np.array([2.0, 0.5, 1.0])}, label="Ratios", along="ratio")
    (outline,) = re.findall(r'd="M([^"]*)"[^>]*class="curve line0"', drawing) or re.findall(
        r'class="curve line0"[^>]*d="M([^"]*)"', drawing
    )
    places = [tuple(map(float, place.split())) for place in outline.split("L")]
    steps = [(a[0], a[1] - b[1]) for a, b in pairwise(places) if a[1] != b[1]]
    assert len(steps) == 3
    assert np.ptp([height for _, height in steps]) < 0.2  # pixels; a third of the height each
    left, middle, right = (x for x, _ in steps)
    assert middle - left == pytest.approx(right - middle, abs=0.2)  # by their logarithms
    assert middle > left
    assert "one: median 1" in drawing
