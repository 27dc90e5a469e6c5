"""What is compared, in which order, and what is left where something fails at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.core.deadline import Deadline
from pipeline.core.measurement import MeasurementFailed
from pipeline.core.placement import Placement
from pipeline.core.settings import MeasureSettings
from pipeline.placing import comparison
from pipeline.placing.comparison import Conditions, in_order, on_devices
from runtime.measuring import contest, pairs
from runtime.measuring.child import ChildError
from runtime.measuring.claims import Rules
from runtime.measuring.entrants import Entrant
from runtime.measuring.pairs import Start
from runtime.measuring.variant import Variant, VariantKind
from tests.models import two_towers
from tests.two_cpus import subject_of, write


def named(*kinds: VariantKind) -> list[Variant]:
    return [Variant(f"{kind} {i}", "test", "CPU", (), kind=kind) for i, kind in enumerate(kinds)]


def test_what_must_be_the_control_comes_first_and_what_the_runtime_chooses_last() -> None:
    known = named("own choice", "device", "settings", "settings", "settings", "hint", "default")
    splits = named("split", "split")
    assert [v.kind for v in in_order(known, splits)] == [
        *("hint", "default", "settings", "settings", "split", "settings", "split", "device", "own choice")
    ]


@pytest.mark.parametrize(("objective", "requests"), [("latency", 1), ("throughput", 0)])
def test_splits_have_as_many_requests_in_flight_as_their_rivals(objective: Any, requests: int, tmp_path: Path) -> None:
    subject = subject_of(*write(two_towers(), tmp_path))
    device = np.arange(subject.graph.n, dtype=np.int32) % 2
    row = {"placer": "greedy", "rank": 0, **Placement(device, ("A", "B")).to_document(subject.graph.names)}
    variants, placements = comparison._splits(subject, [row], objective)
    assert [(v.name, v.kind, v.requests) for v in variants] == [("greedy 1", "split", requests)]
    assert list(placements) == ["greedy 1"]


def test_percentiles_alone_have_exact_intervals_where_there_are_latencies_enough() -> None:
    assert comparison.intervals_of([1.0] * 5) == {}
    ends = comparison.intervals_of([float(i) for i in range(1, 101)])
    assert ends == {"50": (40.0, 61.0), "90": (84.0, 96.0)}


def test_starts_measured_under_another_tolerance_are_not_taken_for_these(tmp_path: Path) -> None:
    subject = subject_of(*write(two_towers(), tmp_path))
    metric = tmp_path / "quality.py"
    metric.write_text("def top1(outputs): return 1.0")
    kinds = [MeasureSettings(), MeasureSettings(low_tolerance=0.3), MeasureSettings(decode_steps=2)]
    kinds += [MeasureSettings(metric=f"{metric}:top1")]
    told = [comparison._conditions(subject, settings) for settings in kinds]
    metric.write_text("def top1(outputs): return 2.0")
    told.append(comparison._conditions(subject, kinds[-1]))
    assert len(set(told)) == 5


def test_an_answer_that_fails_alone_at_the_end_is_an_answer_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = subject_of(*write(two_towers(), tmp_path))
    loaded = {"compile_s": 0.1, "executed_on": ["CPU"], "subgraphs": 1, "precisions": {}, "requests": 1}
    start = Start((1.0,), (1.0,), (1.0,), loaded | {"difference": 0.0, "realtime": False})

    def ran(variants: Any, *_: Any, **__: Any) -> contest.Contest:
        entries = {v.name: Entrant(v, {1: start}) for v in variants}
        return contest.Contest(entries, variants[0].name, variants[0].name, "", None, Rules())

    def fails(*_: Any) -> Any:
        raise ChildError(MeasurementFailed("crashed", "it was killed by SIGKILL"))

    monkeypatch.setattr(contest, "contest", ran)
    monkeypatch.setattr(pairs.PairBench, "alone", fails)
    said: list[str] = []
    terms = Conditions(MeasureSettings(settings=False), Deadline.after(60.0))
    found = on_devices(subject, [], terms, journal=tmp_path / "starts", progress=said.append)
    assert "CPU default did not run alone: it was killed by SIGKILL" in said
    control = next(row for row in found["rows"] if row["name"] == found["contest"]["control"])
    assert (control["samples_s"], control["alone"]) == ([1.0], {})
