"""What a run found: which candidate wins, when nothing does, and what the files hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.devices import DeviceSpec
from pipeline.core.errors import MeasurementError, OutputMismatchError, StoreError
from pipeline.core.measurement import MeasurementFailed
from pipeline.core.placement import Placement
from pipeline.core.stages import Candidate
from pipeline.placing.finals import check_something_ran, distinct_finalists, shortlist
from pipeline.runs.records import LatencyRecord, SpeedupRecord, to_json
from pipeline.runs.result import Result, candidate_rows, decide, versions


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


def winner(*rows: dict[str, Any]) -> tuple[str, str, SpeedupRecord]:
    return decide(candidate_rows(rows, 0), 0)


def test_a_candidate_twice_as_fast_in_every_round_wins_with_ratio_two() -> None:
    single, split = [2.0, 4.0, 6.0, 8.0], [1.0, 2.0, 3.0, 4.0]
    best, verdict, speedup = winner(measured("A", single, single=True), measured("greedy 1", split))
    assert best == "greedy 1"
    assert speedup == SpeedupRecord(2.0, 2.0, 2.0)
    assert "2.000 times as fast as the best single device, A" in verdict


def test_a_candidate_whose_interval_touches_one_does_not_win() -> None:
    single = [1.0] * 9
    split = [1.0] * 4 + [0.5] * 5  # the median ratio is 2, but 1 is well within its interval
    best, verdict, speedup = winner(measured("A", single, single=True), measured("greedy 1", split))
    assert best == "A"
    assert "Nothing measured here beats" in verdict
    assert speedup == SpeedupRecord(1.0, 1.0, 1.0)


def test_a_candidate_that_is_as_fast_as_the_single_device_does_not_win() -> None:
    assert winner(measured("A", [1.0] * 5, single=True), measured("greedy 1", [1.0] * 5))[0] == "A"


def test_ratios_are_of_equal_rounds_and_not_of_medians() -> None:
    # Every round favours the candidate by a tenth, though rounds differ a hundredfold.
    single = [1.0, 100.0, 3.0, 50.0, 7.0]
    best, _, speedup = winner(measured("A", single, single=True), measured("greedy 1", [s / 1.1 for s in single]))
    assert best == "greedy 1"
    assert speedup.ratio == pytest.approx(1.1, rel=1e-12)


def test_the_fastest_single_device_is_the_yardstick() -> None:
    rows = [measured("A", [3.0] * 5, single=True), measured("B", [2.0] * 5, single=True)]
    best, verdict, speedup = winner(*rows, measured("greedy 1", [1.0] * 5))
    assert (best, speedup.ratio) == ("greedy 1", 2.0)
    assert "single device, B" in verdict
    assert winner(*rows)[0] == "B"


def test_auto_on_one_of_the_single_devices_is_no_gain_over_it_however_fast_it_was() -> None:
    auto = measured("AUTO", [0.5] * 6) | {"placer": "baseline", "baseline": True, "executed_on": ["A"]}
    best, _, speedup = winner(measured("A", [1.0] * 6, single=True), auto)
    assert best == "A"
    assert speedup.ratio == 1.0
    elsewhere = auto | {"executed_on": ["GPU"]}
    assert winner(measured("A", [1.0] * 6, single=True), elsewhere)[0] == "AUTO"


def test_claims_are_held_to_one_level_together() -> None:
    single, split = [1.0] * 12, [0.9] * 10 + [1.2] * 2  # alone its interval clears 1, among ten it does not
    rows = [measured("A", single, single=True), measured("greedy 1", split)]
    assert winner(*rows)[0] == "greedy 1"
    assert winner(*rows, *(measured(f"random {i}", [2.0] * 12) for i in range(40)))[0] == "A"


def test_where_no_single_device_runs_the_model_the_fastest_candidate_is_best() -> None:
    best, verdict, _ = winner(
        failed("A", "refused", single=True), measured("slow", [2.0] * 3), measured("fast", [1.0] * 3)
    )
    assert best == "fast"
    assert "No single device runs the model" in verdict


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


def test_rows_stand_fastest_first_and_failed_last_with_their_median_and_interval() -> None:
    rows = candidate_rows([failed("x", "timeout"), measured("b", [2.0, 2.0]), measured("a", [1.0, 1.0])], 0)
    assert [r.name for r in rows] == ["a", "b", "x"]
    assert rows[0].latency_s == LatencyRecord(1.0, 1.0, 1.0)
    assert (rows[2].latency_s, rows[2].samples_s, rows[2].devices_used) == (None, [], [])


times = st.lists(st.floats(1e-4, 1e-1), min_size=4, max_size=4)


@given(st.lists(times, min_size=1, max_size=4), st.lists(times, max_size=4))
@settings(max_examples=60, deadline=None)
def test_the_best_is_a_candidate_and_its_ratio_lies_within_its_interval(
    singles: list[list[float]], splits: list[list[float]]
) -> None:
    rows = [measured(f"s{i}", t, single=True) for i, t in enumerate(singles)]
    rows += [measured(f"p{i}", t) for i, t in enumerate(splits)]
    best, _, speedup = winner(*rows)
    by_name = {r["name"]: r for r in rows}
    assert best in by_name
    assert speedup.low <= speedup.ratio <= speedup.high
    if by_name[best]["single"]:
        assert np.median(by_name[best]["samples_s"]) == min(np.median(t) for t in singles)
    else:
        assert speedup.low > 1.0


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
    assert list(shortlist(found, most)) == found[:kept]


def test_nothing_found_is_a_short_list_of_nothing() -> None:
    assert list(shortlist([], 3)) == []


def test_a_finalist_that_could_not_be_evaluated_stands_last_and_is_no_bug() -> None:
    rows = [finalist("a", 0, None, "A", "B"), finalist("b", 0, 1.0, "B", "A"), finalist("c", 0, None, "B", "B", "A")]
    assert next(r["placer"] for r in distinct_finalists(rows, 5)) == "b"


def test_a_folder_without_a_result_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds no result"):
        Result.load(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": "placewright.result/99"}'])
def test_a_damaged_or_foreign_result_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "result.json").write_text(text, encoding="utf-8")
    with pytest.raises(StoreError):
        Result.load(tmp_path)


def result_document() -> dict[str, Any]:
    """Return the content of a result.json, every key as docs/result.md has it."""
    rows = [measured("A", [1.0] * 3, single=True), measured("greedy 1", [0.5] * 3), failed("B", "refused")]
    candidates = candidate_rows(rows, 0)
    best, verdict, speedup = decide(candidates, 0)
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
        "best": best,
        "verdict": verdict,
        "notes": [],
        "speedup_over_best_single": {"ratio": speedup.ratio, "low": speedup.low, "high": speedup.high},
        "files": {"result": "result.json"},
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
    document = {k: v for k, v in result_document().items() if k not in ("searches", "notes")}
    later = ("precision", "waited_share", "realtime", "shares", "about")
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
    assert {"placewright", "openvino", "torch", "numpy"} <= set(versions())
