"""What devices that run at the same time take longer."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from pipeline.core.devices import CostTable
from pipeline.shared.payload import load_slowdown
from pipeline.testing.problems import small_topology
from runtime.measuring.company import ROUNDS, slowdown

MAIN = threading.main_thread()


def beside() -> bool:
    """Return whether the caller runs beside others: then it has a thread of its own."""
    return threading.current_thread() is not MAIN


def test_the_slowdown_is_what_it_takes_beside_others_over_alone() -> None:
    assert slowdown([lambda: 3.0 if beside() else 2.0, lambda: 5.0 if beside() else 1.0], 2) == [1.5, 5.0]


def test_nobody_is_faster_in_company() -> None:
    assert slowdown([lambda: 1.0 if beside() else 2.0, lambda: 1.0], 2) == [1.0, 1.0]


def test_all_go_on_until_each_has_run_often_enough() -> None:
    counts = [0, 0]

    def counted(i: int) -> float:
        counts[i] += beside()
        return 1.0

    assert slowdown([partial(counted, 0), partial(counted, 1)], 3) == [1.0, 1.0]
    assert min(counts) >= ROUNDS * 3


def test_one_that_fails_ends_all() -> None:
    def failing() -> float:
        if beside():
            raise RuntimeError("no memory")
        return 1.0

    with pytest.raises(RuntimeError, match="no memory"):
        slowdown([lambda: 1.0, failing], 2)


def test_operations_beside_others_take_longer_and_what_was_not_asked_does_not(tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_text('{"slowdown": {"B": 1.5}}')
    topology = small_topology(2)
    found = load_slowdown(tmp_path / "profile.json", topology)
    assert found.tolist() == [1.0, 1.5]
    costs = CostTable(("x",), topology.names, np.array([[1.0, 2.0]]), np.zeros(2), ("given", "given"))
    assert costs.slower(found).op_s.tolist() == [[1.0, 3.0]]
