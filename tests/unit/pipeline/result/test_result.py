"""What a run found: the candidates in order, and what the files hold."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.core.devices import DeviceSpec
from pipeline.core.errors import MeasurementError, OutputMismatchError, StoreError
from pipeline.core.estimates import LatencyEstimate
from pipeline.core.measurement import MeasurementFailed
from pipeline.core.placement import Placement
from pipeline.core.stages import Candidate
from pipeline.placing.comparison import latency_of, percentiles_of
from pipeline.placing.shortlist import check_something_ran, distinct_finalists, shortlist_candidates
from pipeline.result.records import CandidateRecord, to_json
from pipeline.result.result import Result, candidate_records, read_versions, write_samples
from pipeline.result.verdict import decide_predicted
from pipeline.shared.payload import load_arrays


def measured(name: str, samples_s: list[float], *, single: bool = False) -> dict[str, Any]:
    """Return a measured row as the measure stage writes it."""
    return {
        "name": name,
        "placer": "baseline" if single else "greedy",
        "baseline": single,
        "single": single,
        "failed": None,
        "samples_s": samples_s,
        "executed_on": ["A"] if single else ["A", "B"],
        "subgraphs": 1 if single else 2,
    }


def failed(name: str, kind: str, *, single: bool = False, message: str = "why") -> dict[str, Any]:
    """Return the row of a candidate that could not be measured."""
    row = measured(name, [], single=single)
    del row["samples_s"], row["executed_on"], row["subgraphs"]
    return row | {"failed": {"kind": kind, "message": message}}


def test_all_candidates_with_wrong_outputs_are_an_output_mismatch() -> None:
    rows = [failed("B", "refused"), failed("A", "wrong_output", message="output_0 differs by 2")]
    with pytest.raises(OutputMismatchError, match=r"A: wrong_output \(output_0 differs by 2\)") as raised:
        check_something_ran(rows)
    assert raised.value.exit_code == 6


def test_nothing_that_ran_is_a_measurement_error() -> None:
    rows = [failed("A", "refused"), failed("B", "timeout")]
    with pytest.raises(MeasurementError, match=r"A: refused \(why\); B: timeout \(why\)") as raised:
        check_something_ran(rows)
    assert raised.value.exit_code == 5
    check_something_ran([*rows, measured("C", [1.0])])


def test_rows_stand_fastest_first_and_failed_last() -> None:
    rows = candidate_records(
        [failed("x", "timeout"), measured("b", [2.0] * 3), measured("a", [1.0] * 3), measured("late", [])], "latency"
    )
    assert [r.name for r in rows] == ["a", "b", "x", "late"]
    assert rows[0].latency_s == LatencyEstimate(1.0, None, None)
    assert (rows[2].latency_s, rows[2].samples_s, rows[2].devices_used) == (None, [], [])


def test_rows_of_a_contest_stand_by_how_they_compare_not_by_when_the_machine_was_quick() -> None:
    quick = measured("quick hour", [1.0] * 3) | {"times_as_fast": 0.9}
    faster = measured("faster", [2.0] * 3) | {"times_as_fast": 1.1}
    assert [r.name for r in candidate_records([quick, faster], "latency")] == ["faster", "quick hour"]


def test_two_starts_have_no_interval_and_three_have_students() -> None:
    assert asdict(latency_of([1.0, 4.0])) == {
        **{"median": pytest.approx(2.0), "low": None, "high": None},
        **{"fastest": 1.0, "slowest": 4.0},
    }
    half = 4.302653 * math.log(2) / math.sqrt(3)
    ends = {"median": 2.0, "low": 2 * math.exp(-half), "high": 2 * math.exp(half), "fastest": 1.0, "slowest": 4.0}
    assert asdict(latency_of([1.0, 2.0, 4.0])) == pytest.approx(ends)


def test_percentiles_are_told_by_samples_enough() -> None:
    assert percentiles_of([2.0]) == {"50": 2.0}
    assert set(percentiles_of([1.0] * 100)) == {"50", "90"}
    assert percentiles_of(list(range(1000)))["99"] == pytest.approx(989, abs=1)
    assert set(percentiles_of([1.0] * 10_000)) == {"50", "90", "99", "99.9"}
    assert percentiles_of([]) == {}


def test_the_rate_of_requests_in_flight_is_told_by_the_objective() -> None:
    row = measured("a", [0.5, 0.5, 9.0]) | {"latencies_s": [1.0, 1.0, 4.0]}
    assert [candidate_records([row], objective)[0].rate for objective in ("throughput", "latency")] == [2.0, 0.5]


def test_samples_are_written_by_name(tmp_path: Path) -> None:
    rows = [measured("b", [1.0]), measured("a", [1.0]) | {"latencies_s": [1.0, 2.0], "alone_s": [3.0]}]
    assert write_samples(tmp_path, rows[:1]) == {}
    assert write_samples(tmp_path, rows) == {"samples": "samples.npz"}
    arrays = load_arrays(tmp_path / "samples.npz")
    assert json.loads(arrays["names"].tobytes()) == ["a"]
    assert (arrays["0"].tolist(), arrays["0_alone"].tolist()) == ([1.0, 2.0], [3.0])


def finalist(placer: str, rank: int, value_s: float | None, *devices: str) -> dict[str, Any]:
    placement = {f"op{i}": d for i, d in enumerate(devices)}
    return {"placer": placer, "rank": rank, "value_s": value_s, "placement": placement}


def test_finalists_are_each_placers_best_first_distinct_and_on_more_than_one_device() -> None:
    rows = [
        finalist("greedy", 0, 1.0, "A", "A"),  # a single device is measured as a baseline
        finalist("greedy", 1, 2.0, "A", "B"),
        finalist("hsdag", 0, 3.0, "B", "A"),
        finalist("hsdag", 1, 2.5, "A", "B"),  # the same as greedy's second
    ]
    chosen = distinct_finalists(rows, 5)
    assert [(r["placer"], r["rank"]) for r in chosen] == [("hsdag", 0), ("greedy", 1)]
    assert distinct_finalists(rows, 1) == chosen[:1]


@pytest.mark.parametrize(("most", "kept"), [(1, 3), (2, 5), (3, 6), (9, 6)])
def test_single_devices_do_not_crowd_out_placements_on_several(most: int, kept: int) -> None:
    found = [
        Candidate(Placement(np.array(device, np.int32), ("A", "B")), MeasurementFailed("refused", ""))
        for device in ([0, 0], [1, 1], [0, 1], [1, 1], [1, 0], [0, 1])
    ]
    assert list(shortlist_candidates(found, most)) == found[:kept]


def test_nothing_found_is_a_short_list_of_nothing() -> None:
    assert list(shortlist_candidates([], 3)) == []


def test_a_finalist_that_could_not_be_evaluated_stands_last_and_is_no_bug() -> None:
    rows = [finalist("a", 0, None, "A", "B"), finalist("b", 0, 1.0, "B", "A"), finalist("c", 0, None, "B", "B", "A")]
    assert next(r["placer"] for r in distinct_finalists(rows, 5)) == "b"


def test_a_folder_without_a_result_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="has no result"):
        Result.load(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": "placewright.result/99"}'])
def test_a_damaged_or_foreign_result_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "result.json").write_text(text, encoding="utf-8")
    with pytest.raises(StoreError):
        Result.load(tmp_path)


def result_document() -> dict[str, Any]:
    """Return the content of a result.json, every key as docs/result.md has it."""
    rows = [measured("A", [1.0] * 3, single=True), measured("greedy 1", [0.5] * 3), failed("B", "refused")]
    candidates = candidate_records(rows, "latency")
    verdict = decide_predicted(candidates)
    return {
        "schema": "placewright.result/1",
        "model": {"path": "m.xml", "sha256": "00"},
        "devices": [DeviceSpec("A", "CPU", "CPU_A", {"INFERENCE_NUM_THREADS": "1"}).to_json()],
        "fingerprint": "f",
        "hardware": {"cpu": "a CPU"},
        "versions": {"numpy": "2"},
        "seed": 3,
        "stages": [{"stage": "read", "name": "read", "key": "k", "ran": True, "why": "new", "seconds": 0.5}],
        "searches": [SEARCH],
        "candidates": [to_json(c) for c in candidates],
        "best": verdict.best,
        "verdict": verdict.text,
        "notes": [],
        "contest": CONTEST,
        "speedup_over_best_single": asdict(verdict.gain),
        "regret": [],
        "files": {"result": "result.json"},
    }


EARLY = {"name", "placer", "baseline", "single", "devices_used", "subgraphs", "latency_s", "samples_s", "failed"}
CONTEST = {
    **{"objective": "latency", "percentile": 50.0, "control": "A", "default": "A", "hint": "", "level": 0.95},
    **{
        "least": 0.02,
        "claimed": [],
        "noise": None,
        "disturbed": False,
        "missing_s": 0.0,
        "metric": "",
        "condition": "",
        "load_threads": 0,
        "checks_s": 0.0,
        "starts": {"A": {"starts": 6, "slow": 1, "times": 1.7}},
    },
    **{
        "ratios": {"greedy 1": {"ratio": 2.0, "low": 1.9, "high": 2.1, "starts": 5}},
        "over_default": {},
        "over_hint": {},
    },
}
SEARCH = {
    **{"placer": "greedy", "reward": "simulated", "evaluator": "sequential", "evaluations": 20, "measurements": 0},
    **{"found_by": "start", "value_s": 1.0, "measured_s": None, "lower_bound_s": 0.5, "bound_by": "path"},
    **{"gap": 0.5, "proven": False},
}


def test_a_result_is_read_back_with_every_key_and_value(tmp_path: Path) -> None:
    document = result_document()
    (tmp_path / "result.json").write_text(json.dumps(document), encoding="utf-8")
    (tmp_path / "placement.json").write_text(json.dumps({"placement": {"x": "A"}}), encoding="utf-8")
    result = Result.load(tmp_path)
    assert result.document == document
    assert list(result.document) == list(document)
    assert (result.best.name, result.verdict) == ("greedy 1", document["verdict"])
    assert result.placement == {"x": "A"}


def test_a_result_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    document = {k: v for k, v in result_document().items() if k not in ("searches", "notes", "contest")}
    later = CandidateRecord.__dataclass_fields__.keys() - EARLY
    document["candidates"] = [{k: v for k, v in c.items() if k not in later} for c in document["candidates"]]
    (tmp_path / "result.json").write_text(json.dumps(document | {"of_old": 1}), encoding="utf-8")
    result = Result.load(tmp_path)
    assert (result.best.name, result.best.about, result.record.notes) == ("greedy 1", "", [])


@pytest.mark.parametrize(("key", "value"), [("candidates", [{"name": "a"}]), ("seed", "x"), ("files", None)])
def test_a_result_whose_values_have_other_types_is_damaged(tmp_path: Path, key: str, value: Any) -> None:
    (tmp_path / "result.json").write_text(json.dumps(result_document() | {key: value}), encoding="utf-8")
    with pytest.raises(StoreError, match="is damaged"):
        Result.load(tmp_path)


def test_versions_name_every_package_a_result_depends_on() -> None:
    assert {"placewright", "openvino", "torch", "numpy"} <= set(read_versions())
