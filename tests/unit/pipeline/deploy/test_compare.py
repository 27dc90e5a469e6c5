"""Comparing two runs: what their intervals say, and which runs have nothing to do with one another."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.core.errors import SlowerError, StoreError, UsageError
from pipeline.deploy.compare import ComparisonRecord, compare, refuse_slower
from pipeline.placing.records import ContestRecord
from pipeline.result.schemas import schema_of
from pipeline.scenario.records import SCHEMA
from pipeline.settings.config import parse_share
from tests.deployments import deployed, measured, write
from tests.models import chain
from tests.two_cpus import two_cpus

CONTEST = ContestRecord(  # of a run that had no time for a final
    objective="latency",
    percentile=50.0,
    control="CPU",
    default="CPU",
    hint="",
    level=0.95,
    least=0.02,
    claimed=[],
    noise=None,
    disturbed=False,
    ratios={},
    over_default={},
    over_hint={},
)
STEADY = np.linspace(0.99e-3, 1.01e-3, 12)  # seconds


def compared(folder: Path, factor: float, *, spread: float = 1.0, least: float = 0.02) -> ComparisonRecord:
    """Return the comparison of steady samples with the same times a factor, `spread` times as far from their median."""
    middle = float(np.median(STEADY))
    a = measured(folder / "a", STEADY.tolist())
    b = measured(folder / "b", (factor * (middle + spread * (STEADY - middle))).tolist())
    return compare(a, b, least=least)


@pytest.mark.parametrize(
    ("factor", "spread", "verdict"),
    [
        (1.5, 1, "slower"),
        (1.05, 1, "slower"),
        (1.0, 1, "same"),
        (0.9, 1, "faster"),
        (1.1, 60, "undecided"),
        (1.02, 1, "undecided"),
    ],
)
def test_the_verdict_is_what_the_whole_interval_says(
    factor: float, spread: float, verdict: str, tmp_path: Path
) -> None:
    found = compared(tmp_path, factor, spread=spread)
    assert found.verdict == verdict
    assert found.interval is not None
    assert found.interval.low <= found.ratio <= found.interval.high
    assert found.ratio == pytest.approx(factor, rel=0.1 if spread > 1 else 1e-3)
    assert f"{found.interval.low:.3f} to {found.interval.high:.3f} at 95 %, unpaired" in found.text
    if verdict == "slower":
        with pytest.raises(SlowerError, match=f"takes {found.ratio:.3f} times") as caught:
            refuse_slower(found)
        assert caught.value.exit_code == 7
    else:
        refuse_slower(found)


def test_a_measurement_that_is_compared_with_itself_is_said(tmp_path: Path) -> None:
    a = measured(tmp_path / "a", [1e-3, 1.1e-3, 1.2e-3])
    again = measured(tmp_path / "b", [1e-3, 1.1e-3, 1.2e-3])
    (note,) = compare(a, again, least=0.02).notes
    assert note.startswith(f"3 of 3 starts of {again} are those of {a}, taken from the store")
    assert compare(a, measured(tmp_path / "c", [1.01e-3, 1.11e-3, 1.21e-3]), least=0.02).notes == []


def test_runs_of_several_models_are_refused_by_their_name(tmp_path: Path) -> None:
    a = measured(tmp_path / "a", STEADY.tolist())
    write(a / "result.json", {"schema": SCHEMA})
    with pytest.raises(UsageError, match=f"{a} is a run of several models, which compare does not support"):
        compare(a, a, least=0.02)


def test_what_may_be_slower_by_more_counts_only_beyond_that(tmp_path: Path) -> None:
    assert compared(tmp_path, 1.05, least=0.02).verdict == "slower"
    assert compared(tmp_path, 1.05, least=0.1).verdict == "same"


def test_a_single_start_decides_nothing_and_is_compared_nevertheless(tmp_path: Path) -> None:
    a, b = measured(tmp_path / "a", STEADY.tolist()), measured(tmp_path / "b", [2e-3], contest=CONTEST)
    found = compare(a, b, least=0.02)
    assert (found.verdict, found.interval, found.b.latency_s.low) == ("undecided", None, None)
    assert found.ratio == pytest.approx(2.0, rel=1e-2)
    assert f"it takes {found.ratio:.3f} times as long (a single start of CPU in {b} gives no interval)" in found.text
    refuse_slower(found)


def test_two_starts_have_an_interval_which_is_wide(tmp_path: Path) -> None:
    a, b = measured(tmp_path / "a", STEADY.tolist()), measured(tmp_path / "b", [1.4e-3, 1.6e-3], contest=CONTEST)
    found = compare(a, b, least=0.02)
    assert found.verdict == "undecided"
    assert found.interval is not None
    assert found.interval.low < 1 < found.ratio


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "same"), (1.5, "slower"), (0.9, "faster")])
def test_two_predictions_have_no_noise_and_are_compared_as_they_are(
    factor: float, verdict: str, tmp_path: Path
) -> None:
    a, b = measured(tmp_path / "a", [1e-3]), measured(tmp_path / "b", [factor * 1e-3])
    found = compare(a, b, least=0.02)
    assert found.interval is not None
    assert (found.verdict, found.ratio, found.interval.low) == (verdict, pytest.approx(factor), pytest.approx(factor))
    assert found.text.endswith("as predicted.")
    with pytest.raises(UsageError, match="is a prediction, the other run was measured"):
        compare(a, measured(tmp_path / "c", STEADY.tolist(), contest=CONTEST), least=0.02)


@pytest.mark.parametrize(
    ("other", "said"),
    [({"sha256": "1" * 64}, "models differ"), ({"fingerprint": "there"}, "machines differ: cpu of here and of there")],
)
def test_other_models_and_machines_are_compared_only_if_asked_for(
    other: dict[str, str], said: str, tmp_path: Path
) -> None:
    a, b = measured(tmp_path / "a", STEADY.tolist()), measured(tmp_path / "b", STEADY.tolist(), **other)
    with pytest.raises(UsageError, match=f"{said}.*--across"):
        compare(a, b, least=0.02)
    (note,) = compare(a, b, least=0.02, across=True).notes
    assert said in note


def test_runs_of_different_objectives_are_never_compared(tmp_path: Path) -> None:
    paths = [measured(tmp_path / name, STEADY.tolist()) for name in "ab"]
    deployed(paths[1], chain(2), two_cpus()[:1])
    document = json.loads((paths[1] / "placement.json").read_text(encoding="utf-8"))
    compare(*paths, least=0.02)
    write(paths[1] / "placement.json", document | {"objective": "throughput"})
    with pytest.raises(UsageError, match=r"a was measured for latency, .*b for throughput"):
        compare(*paths, least=0.02, across=True)


def test_runs_under_different_conditions_are_never_compared(tmp_path: Path) -> None:
    shared = replace(CONTEST, condition="shared", load_threads=1)
    paths = [measured(tmp_path / n, STEADY.tolist(), contest=c) for n, c in (("a", CONTEST), ("b", shared))]
    with pytest.raises(UsageError, match=r"a was measured on the machine as it was, .*b on a shared machine\."):
        compare(*paths, least=0.02, across=True)


def test_a_folder_without_a_result_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="b has no result"):
        compare(measured(tmp_path / "a", STEADY.tolist()), tmp_path / "b", least=0.02)


@pytest.mark.parametrize("text", ["", "2", "two", "-1%", "100%", "nan", "2%%"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="such as 2%"):
        parse_share(text, "slowdown")


def test_the_document_keeps_to_its_schema(tmp_path: Path) -> None:
    document = asdict(compared(tmp_path, 1.0))
    assert set(document) == set(schema_of("compare")["properties"])
    json.dumps(document)
