"""What is compared, in which order, and what is left where something fails at the end."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.core.accuracy import Accuracy
from pipeline.core.deadline import Deadline
from pipeline.core.measurement import MeasurementFailed
from pipeline.core.placement import Placement
from pipeline.core.settings import MeasureSettings
from pipeline.placing import comparison
from pipeline.placing.comparison import Conditions, on_devices, order_variants
from runtime.measuring.contest import contest
from runtime.measuring.contest import pair_bench as pairs
from runtime.measuring.contest.contenders import Contender
from runtime.measuring.contest.pair_bench import Start
from runtime.measuring.contest.statistics import Judgement, Rules, ratio_of
from runtime.measuring.contest.variant import Variant, VariantKind
from runtime.measuring.process.child import ChildError
from tests.models import two_towers
from tests.reports import accuracy
from tests.two_cpus import subject_of, write


def named(*kinds: VariantKind) -> list[Variant]:
    return [Variant(f"{kind} {i}", "test", "CPU", (), kind=kind) for i, kind in enumerate(kinds)]


def test_what_must_be_the_control_comes_first_and_what_the_runtime_chooses_last() -> None:
    known = named("own choice", "device", "settings", "settings", "settings", "hint", "default")
    splits = named("split", "split")
    assert [v.kind for v in order_variants(known, splits)] == [
        *("default", "settings", "settings", "split", "settings", "hint", "split", "device", "own choice")
    ]
    assert [v.kind for v in order_variants(known, splits, settings_first=True)] == [
        *("default", "settings", "settings", "settings", "hint", "device", "split", "split", "own choice")
    ]


@pytest.mark.parametrize(("objective", "requests"), [("latency", 1), ("throughput", 0)])
def test_splits_have_as_many_requests_in_flight_as_their_rivals(objective: Any, requests: int, tmp_path: Path) -> None:
    subject = subject_of(*write(two_towers(), tmp_path))
    device = np.arange(subject.graph.n, dtype=np.int32) % 2
    row = {"placer": "greedy", "rank": 0, **Placement(device, ("A", "B")).to_document(subject.graph.names)}
    variants, placements = comparison._split_variants(subject, [row], objective)
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
    told = [comparison._conditions_digest(subject, settings) for settings in kinds]
    metric.write_text("def top1(outputs): return 2.0")
    told.append(comparison._conditions_digest(subject, kinds[-1]))
    assert len(set(told)) == 5


def test_an_answer_that_fails_alone_at_the_end_is_an_answer_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = subject_of(*write(two_towers(), tmp_path))
    loaded = {"compile_s": 0.1, "executed_on": ["CPU"], "subgraphs": 1, "precisions": {}, "requests": 1}
    start = Start((1.0,), (1.0,), (1.0,), loaded | {"accuracy": accuracy().to_json(), "realtime": False})

    def ran(variants: Any, *_: Any, **__: Any) -> contest.Contest:
        entries = {v.name: Contender(v, {1: start}) for v in variants}
        return contest.Contest(entries, variants[0].name, variants[0].name, "", None, Rules())

    def fails(*_: Any) -> Any:
        raise ChildError(MeasurementFailed("crashed", "it was killed by SIGKILL"))

    monkeypatch.setattr(contest, "run_contest", ran)
    monkeypatch.setattr(pairs.PairBench, "alone", fails)
    said: list[str] = []
    terms = Conditions(MeasureSettings(settings=False), Deadline.after(60.0))
    found = on_devices(subject, [], terms, journal=tmp_path / "starts", progress=said.append)
    assert "CPU default failed to run alone: it was killed by SIGKILL" in said
    control = next(row for row in found["rows"] if row["name"] == found["contest"]["control"])
    assert (control["samples_s"], control["alone"]) == ([1.0], {})


LOADED = {"compile_s": 0.1, "executed_on": ["CPU"], "subgraphs": 1, "precisions": {"CPU": "f32"}, "requests": 4}


def of_entries(entries: dict[str, Contender], control: str) -> contest.Contest:
    return contest.Contest(entries, control, control, "", None, Rules(), beside=control)


def of_starts(name: str, *log_ratios: float) -> Contender:
    """Return who has had a start in the final for each of these, beside a control of a second."""
    starts = {i: Start((math.exp(-x),), (1.0,), (1.0,), LOADED) for i, x in enumerate(log_ratios, 1)}
    return Contender(named("settings")[0], final=starts) if name else Contender(named("default")[0])


def test_the_record_of_a_variant_is_that_of_its_starts(tmp_path: Path) -> None:
    subject = subject_of(*write(two_towers(), tmp_path))
    whole = accuracy(0.5, kinds=("noise", "zeros"))
    told = LOADED | {"accuracy": accuracy().to_json(), "realtime": False}
    first = Start((1.0, 1.0), (2.0, 2.0), (1.0, 1.5), told | {"compile_s": 0.3}, peak_bytes=9, cpu_s=0.2)
    second = Start((4.0,), (4.0,), (4.0,), told | {"accuracy": whole.to_json()}, peak_bytes=5, cpu_s=0.4)
    (variant,) = named("settings")
    entry = Contender(variant, screened={1: replace(second, variant_s=(9.0,))}, final={1: first, 2: second})
    (default,) = named("default")
    unseen = Contender(replace(variant, name="unseen"), left="no time", same_as="a")
    found = of_entries({default.name: Contender(default), variant.name: entry, "unseen": unseen}, default.name)
    row = comparison._contender_row(found, variant.name, None, subject.graph, {variant.name: [0.5]}, MeasureSettings())
    assert row["samples_s"] == [1.0, 4.0]  # the screening's are left out
    assert (row["difference"], Accuracy.from_json(row["accuracy"])) == (0.5, whole)  # which compared most
    assert row["log_ratios"] == {"1": pytest.approx(math.log(2.0)), "2": 0.0}
    control_s = math.sqrt(2.0 * 4.0)  # by its own turns
    assert row["latency_s"]["median"] == pytest.approx(control_s / math.sqrt(2.0))
    assert (row["latency_s"]["fastest"], row["latency_s"]["slowest"]) == pytest.approx((control_s / 2, control_s))
    assert (row["times_as_fast"], row["peak_bytes"]) == (pytest.approx(math.sqrt(2.0)), 9)
    assert row["rate"] == pytest.approx(1 / row["latency_s"]["median"])
    assert (row["compile_s"], row["cpu_s"]) == (pytest.approx(0.2), pytest.approx(0.3))
    assert (row["latencies_s"], row["alone_s"], row["requests"]) == ([1.0, 1.5, 4.0], [0.5], 4)
    untried = comparison._contender_row(found, "unseen", None, subject.graph, {}, MeasureSettings())
    assert (untried["samples_s"], untried["failed"], untried["left"]) == ([], None, "no time")
    assert untried["same_as"] == "a"


def test_ratios_to_another_baseline_hold_together_for_all_that_have_one() -> None:
    rows = {"default": [0.1, 0.2, 0.3], "a": [0.5, 0.8, 0.6], "b": [0.3, 0.3, 0.6], "once": [0.9]}
    ratios = {name: ratio_of(found, 0.95) for name, found in rows.items()}
    entries = {name: of_starts(name, *found) for name, found in rows.items()}
    judgement = Judgement(ratios, ("a",), (), 0.01, disturbed=False)
    found = contest.Contest(entries | {"half": of_starts("")}, "half", "default", "", judgement, Rules(level=0.94))
    over = comparison.contest_record(found, MeasureSettings(), checks_s=0.0)
    assert set(over.ratios) == {"default", "a", "b"}  # of one start no interval is known
    assert over.over_hint == {}
    expected = ratio_of([0.4, 0.6, 0.3], 1 - 0.06 / 3)  # three are compared with the default
    assert over.over_default.keys() == {"a", "b"}
    assert asdict(over.over_default["a"]) == pytest.approx(asdict(expected))


@pytest.mark.parametrize(("alone_s", "expected"), [(10.0, 4.0), (1.5, 1.5)])
def test_each_of_those_that_run_alone_has_half_of_the_time_left_at_most(alone_s: float, expected: float) -> None:
    asked: list[tuple[str, float]] = []

    class Bench:
        def alone(self, variant: Variant, seconds: float) -> list[float]:
            asked.append((variant.name, seconds))
            return [0.5]

    (control,), (answer,) = named("default"), named("settings")
    judgement = Judgement({}, (answer.name,), (), 0.01, disturbed=False)
    entries = {v.name: Contender(v) for v in (control, answer)}
    found = contest.Contest(entries, control.name, control.name, "", judgement, Rules())
    bench: Any = Bench()
    deadline = Deadline.after(8.0, lambda: 0.0)
    comparison._latencies_alone(found, bench, MeasureSettings(alone_s=alone_s), deadline, lambda text: None)
    assert asked == [(answer.name, expected), (control.name, expected)]
