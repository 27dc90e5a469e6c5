"""Comparisons under a condition: without real-time scheduling, or beside a load of a stated size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.core.settings import MeasureSettings
from pipeline.placing import comparison
from pipeline.result.verdict import condition_text
from pipeline.system.process import cpu_count
from runtime.measuring.contest import pair_bench as pairs
from runtime.measuring.contest.baselines import reference_variant
from runtime.measuring.contest.pair_bench import PairBench
from runtime.measuring.process.load import beside_load, load_threads
from tests.models import two_towers
from tests.two_cpus import subject_of, write
from tests.unit.pipeline.result.test_verdict import contest


@pytest.mark.parametrize(
    ("settings", "threads"),
    [
        ({}, 0),
        ({"condition": "quiet", "load_threads": 3}, 0),
        ({"condition": "shared"}, max(1, cpu_count() // 2)),
        ({"condition": "shared", "load_threads": 3}, 3),
    ],
)
def test_a_shared_machine_has_a_busy_thread_for_every_two_processors(settings: dict[str, Any], threads: int) -> None:
    assert load_threads(MeasureSettings(**settings)) == threads


def test_the_load_runs_at_usual_priority_while_it_is_asked_for() -> None:
    def children() -> set[psutil.Process]:
        return set(psutil.Process().children())

    before = children()
    with beside_load(2):
        busy = children() - before
        assert len(busy) == 2
        assert {process.nice() for process in busy} == {psutil.Process().nice()}
        spent = [process.cpu_times().user for process in busy]
        while any(p.cpu_times().user <= s for p, s in zip(busy, spent, strict=True)):
            pass
    assert not any(process.is_running() for process in busy)


@pytest.mark.parametrize(("condition", "asked"), [("", True), ("quiet", False), ("shared", False)])
def test_real_time_scheduling_is_for_no_condition_alone(
    condition: Any, asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = write(two_towers(), tmp_path)
    monkeypatch.setattr(pairs, "realtime_helps", lambda *_: True)
    monkeypatch.setattr(pairs.PairBench, "_turns", lambda self, *_: self.realtime)
    monkeypatch.setattr(pairs, "replace", lambda turns, **_: turns)
    with PairBench(model, MeasureSettings(turn_s=0.01, condition=condition), 0) as bench:
        found: Any = bench.start(reference_variant(), reference_variant(), part="screening", number=1, pairs=1)
    assert found is asked


def test_starts_of_one_condition_are_not_taken_for_those_of_another(tmp_path: Path) -> None:
    subject = subject_of(*write(two_towers(), tmp_path))
    shared = MeasureSettings(condition="shared", load_threads=1)
    kinds = [MeasureSettings(), MeasureSettings(condition="quiet"), shared, replace(shared, load_threads=2)]
    assert len({comparison._conditions_digest(subject, settings) for settings in kinds}) == 4


def test_the_condition_is_told() -> None:
    assert condition_text(contest([], {})) == ""
    assert condition_text(contest([], {}, condition="quiet")) == " Measured without real-time scheduling."
    one, two = (condition_text(contest([], {}, condition="shared", load_threads=n)) for n in (1, 2))
    assert one == " Measured on a shared machine: beside 1 busy thread that placewright kept running."
    assert "beside 2 busy threads" in two
