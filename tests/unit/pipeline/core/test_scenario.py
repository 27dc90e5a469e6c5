"""What is known of requests, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.core.scenario import RequestLog


@pytest.mark.parametrize(
    ("percentile", "n", "rank"),
    [(50.0, 1, 1), (50.0, 4, 2), (99.0, 100, 99), (99.0, 101, 100), (99.0, 110, 109), (99.9, 1000, 999)],
)
def test_a_percentile_is_the_least_latency_that_so_many_do_not_exceed(percentile: float, n: int, rank: int) -> None:
    end_s = np.random.default_rng(0).permutation(n) + 1.0
    log = RequestLog(np.zeros(n), np.zeros(n), end_s, np.ones(n, np.bool_))
    assert log.percentile_s(percentile) == rank
