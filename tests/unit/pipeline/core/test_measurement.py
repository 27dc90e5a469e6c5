"""Measurements as values."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.core.measurement import Measurement


def test_the_median_of_a_measurement_by_hand() -> None:
    assert Measurement(np.array([3.0, 1.0, 2.0])).value_s == 2.0
    assert Measurement(np.array([3.0, 1.0])).value_s == 2.0


@pytest.mark.parametrize("samples", [[], [np.nan], [1.0, np.inf], [-1.0]])
def test_a_measurement_needs_real_latencies(samples: list[float]) -> None:
    with pytest.raises(ValueError, match="at least one finite"):
        Measurement(np.array(samples))


def test_samples_are_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        Measurement(np.array([1.0])).samples_s[0] = 2.0
