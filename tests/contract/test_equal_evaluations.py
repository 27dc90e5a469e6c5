"""A budget of evaluations gives equal answers however slow the machine is: the clock decides nothing."""

from __future__ import annotations

import itertools
import time

import pytest

from pipeline.bench.league.entries import SOLVERS, list_entries
from tests.contract.test_controls import answer_of, case
from tests.contract.test_placers import PUBLISHED
from tests.slow import slow_where

SEARCHING = [entry.name for entry in list_entries()[0] if entry.kind not in SOLVERS and not entry.control_of]
LATE_S = 100.0  # that pass between two looks at the clock


@pytest.mark.parametrize("name", slow_where(SEARCHING, PUBLISHED))
def test_a_clock_that_runs_away_changes_no_answer_to_a_number_of_evaluations(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = answer_of(name, {})
    case().problem.forget()
    moments = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: LATE_S * next(moments))
    late = answer_of(name, {})
    case().problem.forget()
    assert [c.placement.device.tolist() for c in late.candidates] == [
        c.placement.device.tolist() for c in usual.candidates
    ]
    assert late.value_s == usual.value_s
    assert late.planned == usual.planned
