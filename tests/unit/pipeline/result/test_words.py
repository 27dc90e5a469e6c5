"""What people read: candidates, failures and searches in words."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipeline.core.devices import CostTable
from pipeline.core.estimates import LatencyEstimate, RatioEstimate
from pipeline.placing.records import ContestRecord, SlowStartsRecord
from pipeline.result.records import CandidateRecord, FailureRecord
from pipeline.result.result_text import (
    alike_text,
    describe_candidate,
    disturbed_text,
    failure_text,
    format_milliseconds,
    pipelines_text,
    refusal_text,
    search_text,
    slow_starts_text,
    time_shares,
    untried_text,
    winner_text,
)
from pipeline.settings.config import Settings
from pipeline.stages.choices import search_settings
from tests.toys import toy_graph

PINNING = "ENABLE_CPU_PINNING"
CPU = {"plugin": "CPU", "properties": {"INFERENCE_NUM_THREADS": "1", "INFERENCE_PRECISION_HINT": "f32"}}


def row(**values: Any) -> dict[str, Any]:
    """Return a record of the measure stage."""
    return {"single": False, "devices": [], "subgraphs": 1, "executed_on": ["A"], **values}


def search(**values: Any) -> dict[str, Any]:
    """Return a record of a hybrid search."""
    return {
        "placer": "greedy",
        "reward": "hybrid",
        "evaluations": 42,
        "measurements": 5,
        "found_by": "heft",
        "value_s": 0.012,
        "measured_s": 0.0123,
        "predicted_s": 0.0125,
        "lower_bound_s": 0.01,
        "proven": False,
        "used": 5,
        "refused": None,
        "rounds": [{"error": 0.25}, {"error": None}, {"error": 0.05}],
    } | values


def test_shares_are_of_the_profiled_seconds_and_the_largest_comes_first() -> None:
    graph = toy_graph(3, [(0, 1), (1, 2)])
    op_s = np.array([[1.0, 9.0], [9.0, 3.0], [0.0, np.inf]])
    costs = CostTable(graph.names, ("A", "B"), op_s, np.zeros(2), ("given", "given"))
    found = time_shares(dict(zip(graph.names, "ABB", strict=True)), graph, costs)
    assert list(found.items()) == [("B", 0.75), ("A", 0.25)]


@pytest.mark.parametrize(
    ("record", "shares", "text"),
    [
        (row(subgraphs=3), {"A": 0.622, "B": 0.378}, "A 62 %, B 38 %, 3 sub-graphs"),
        (row(subgraphs=2), {"A": 0.999, "B": 0.001}, "A over 99 %, B under 1 %, 2 sub-graphs"),
        (row(single=True, devices=[CPU]), {}, "CPU, 1 thread, f32"),
        (row(subgraphs=2, executed_on=["A", "B"], target="AUTO:A,B"), {}, "chosen by AUTO:A,B: A and B, 2 sub-graphs"),
        ({"single": False, "devices": []}, {}, "chosen by OpenVINO"),
    ],
)
def test_a_candidate_is_described_by_what_it_is(record: dict[str, Any], shares: dict[str, float], text: str) -> None:
    assert describe_candidate(record, shares) == text


def test_no_two_ways_to_run_a_model_are_described_alike() -> None:
    def alone(properties: dict[str, str], plugin: str = "CPU", **more: Any) -> dict[str, Any]:
        return row(single=True, devices=[{"plugin": plugin, "properties": properties}], precision="f32", **more)

    one = {"INFERENCE_NUM_THREADS": "1"}
    settings = [one, one | {PINNING: "NO"}, one | {PINNING: "YES"}, one | {"NUM_STREAMS": "1"}, one | {"OTHER": "1"}]
    rows = [*map(alone, settings), alone(one, requests=4), alone(one, batch=4), alone(one, rewrite="int8-weights")]
    rows += [alone({}, plugin, kind="default") for plugin in ("CPU", "GPU")]
    rows += [alone({"PERFORMANCE_HINT": hint}, kind="hint") for hint in ("LATENCY", "THROUGHPUT")]
    rows += [row(target=target) for target in ("AUTO:A,B", "HETERO:A,B")]
    rows += [row(target="AUTO:A,B", properties={"PERFORMANCE_HINT": "CUMULATIVE_THROUGHPUT"})]
    words = [describe_candidate(each, {}) for each in rows]
    assert len(set(words)) == len(rows)
    assert words[1] == "CPU, 1 thread, unpinned"


def test_failures_are_words_and_no_kinds() -> None:
    wrong = {"kind": "wrong_output", "message": "outputs differ by 11.5 % from the reference (5 % allowed)"}
    assert failure_text(**wrong) == "outputs differ by 11.5 % from the reference (5 % allowed)"
    assert failure_text("out_of_memory", "bad_alloc") == "out of memory: bad_alloc"
    assert refusal_text("wrong_output: outputs differ") == "outputs differ"
    assert refusal_text("something: else") == "something: else"


def test_a_hybrid_search_tells_what_was_tried_measured_and_found() -> None:
    assert search_text(search()) == (
        "greedy simulated 42 placements, of which 5 were measured. "
        "The best, found by heft, took 12.30 ms (predicted: 12.50 ms). "
        "Median prediction error before each calibration of the simulator: 25.0 %, then 5.0 %."
    )


def test_a_search_that_could_not_be_calibrated_says_why() -> None:
    text = search_text(search(used=0, refused="crashed: gone", measurements=1, rounds=[], found_by="single"))
    assert "of which 1 was measured. The best, a single device, took" in text
    assert text.endswith("The simulator could not be calibrated to measurements: crashed: gone.")


def test_a_simulated_search_tells_its_bound() -> None:
    alone = {"reward": "simulated", "measurements": 0, "measured_s": None, "predicted_s": None, "rounds": []}
    text = search_text(search(**alone))
    assert "is predicted to take 12.00 ms; lower bound in the simulator 10.00 ms." in text
    assert "proven optimal" in search_text(search(**alone, proven=True))
    assert search_text(search(**alone, notes=["It learned."])) == f"{text} It learned."


def test_a_measured_search_counts_measurements_and_one_without_answer_says_so() -> None:
    assert search_text(search(reward="measured", rounds=[], evaluations=1)).startswith("greedy measured 1 placement. ")
    nothing = search(measured_s=None, predicted_s=None, value_s=None, measurements=0, rounds=[])
    assert search_text(nothing).endswith("of which none were measured. None of them is feasible.")
    known = search_text(nothing | {"value_s": 0.9})
    assert known.endswith("of which none were measured. It found no new placement.")


KNOWN = {"placer": "p", "baseline": False, "single": True, "devices_used": [], "subgraphs": 1}
CONTEST: dict[str, Any] = {
    **{
        "objective": "latency",
        "percentile": 50.0,
        "control": "control",
        "default": "control",
        "hint": "",
        "level": 0.95,
    },
    **{"least": 0.02, "noise": 0.01, "disturbed": False, "over_default": {}, "over_hint": {}, "claimed": []},
}


def test_what_was_in_the_screening_alone_is_told_without_milliseconds() -> None:
    latency = LatencyEstimate(2e-3, None, None, 1.9e-3, 2.25e-3)
    control = CandidateRecord(name="control", latency_s=latency, times_as_fast=1.0, **KNOWN)
    final = CandidateRecord(name="a", latency_s=latency, times_as_fast=1.1, log_ratios={"1": 0.1}, **KNOWN)
    seen = CandidateRecord(name="b", latency_s=latency, times_as_fast=1.2, **KNOWN)
    contest = ContestRecord(ratios={}, **CONTEST)
    assert format_milliseconds(control, contest) == format_milliseconds(final, contest) == ("2", "1.9 to 2.25")
    assert format_milliseconds(seen, contest) == ("", "")
    assert format_milliseconds(seen, None) == ("2", "1.9 to 2.25")  # of a simulator
    once = dataclasses.replace(final, latency_s=LatencyEstimate(2e-3, None, None))
    assert (format_milliseconds(once, contest), format_milliseconds(once, None)) == (("about 2", ""), ("2", ""))


def test_candidates_that_are_one_with_others_are_told_in_one_sentence() -> None:
    rows = [CandidateRecord(name=name, same_as=same, **KNOWN) for name, same in (("a", ""), ("b", "a"), ("c", "a"))]
    assert alike_text(rows[:1]) == ""
    assert alike_text(rows) == "Duplicates, which the plug-in runs as the candidate in brackets: b (a), c (a)."


def test_slow_starts_are_told_with_what_avoids_them() -> None:
    starts = {
        "control": SlowStartsRecord(8, 2, 1.74),
        "a": SlowStartsRecord(5, 0, 1.0),
        "b": SlowStartsRecord(7, 1, 2.0),
    }
    ratios = {name: RatioEstimate(1.0, 0.9, 1.1, 5) for name in "ab"}
    seen = {"nobody": SlowStartsRecord(1, 1, 3.0)}
    text = slow_starts_text(ContestRecord(ratios=ratios, starts=starts | seen, **CONTEST))
    assert text == (
        "2 of 8 starts of control took about 1.7 times as long as usual, "
        "1 of 7 starts of b took about 2.0 times as long as usual, for the whole start; "
        "none of the 5 starts of a was slow."
    )
    ratios = {"b": ratios["b"]}
    assert slow_starts_text(ContestRecord(ratios=ratios, starts=starts, **CONTEST)).endswith("is known to avoid it.")
    assert slow_starts_text(ContestRecord(ratios=ratios, **CONTEST)) == slow_starts_text(None) == ""


def test_threads_that_waited_for_processors_are_told_and_a_quiet_machine_is_the_advice() -> None:
    quiet, busy = (CandidateRecord(name="a", waited_share=share, **KNOWN) for share in (0.1, 0.37))
    plain = ContestRecord(ratios={}, starts={}, **CONTEST)
    shared = dataclasses.replace(plain, condition="shared")

    def told(*candidates: CandidateRecord, contest: ContestRecord | None = plain) -> str:
        return disturbed_text(SimpleNamespace(candidates=candidates, contest=contest))  # type: ignore[arg-type]

    assert told(quiet) == told() == ""
    assert "up to 37% of their time" in told(quiet, busy)
    assert told(busy, contest=None).endswith("Measure again while the machine is quiet.")
    assert told(busy, contest=shared) == ""  # the load was asked for


def test_what_there_was_no_time_for_is_told_in_one_sentence() -> None:
    ran, failed = LatencyEstimate(1.0, None, None), FailureRecord("refused", "no")
    known = {"placer": "p", "baseline": False, "single": True, "devices_used": [], "subgraphs": 1}
    rows = [CandidateRecord(name="a", latency_s=ran, **known), CandidateRecord(name="b", failed=failed, **known)]
    rows += [CandidateRecord(name="copy", same_as="a", **known)]
    assert untried_text(rows) == ""
    rows += [CandidateRecord(name=name, **known) for name in "cdefgh"]
    assert (
        untried_text(rows)
        == "Not tried within the budget: c, d, e, f and 2 more. A larger --budget continues from here."
    )


def test_the_fastest_split_of_every_placer_is_told_the_fastest_first() -> None:
    def candidate(placer: str, median_s: float | None) -> CandidateRecord:
        latency = None if median_s is None else LatencyEstimate(median_s, median_s, median_s)
        baseline = placer == "baseline"
        return CandidateRecord(placer, placer, baseline, baseline, ["A"], 1, latency_s=latency)

    found = [candidate("baseline", 0.01), candidate("calibration", 0.015), candidate("hsdag", 0.02)]
    found += [candidate("portfolio", 0.025), candidate("hsdag", 0.03), candidate("greedy", None)]
    assert winner_text(found) == "Fastest split by placer: hsdag 20.00 ms, portfolio 25.00 ms."
    assert winner_text(found[:1]) == ""


def test_rates_of_pipelines_stand_beside_what_was_predicted() -> None:
    known = {"placer": "dp", "baseline": False, "single": False, "devices_used": [], "subgraphs": 2}
    rows = [
        CandidateRecord(name=f"dp 1 {runner}", rate=rate, **known)
        for runner, rate in (("pipeline", 80.0), ("serial", 9))
    ]
    told = [
        {"placer": "dp", "evaluator": "pipelined", "value_s": 0.01},
        {"placer": "heft", "evaluator": "pipelined", "value_s": 1.0},
    ]
    assert pipelines_text(told, rows) == "Inferences per second: dp 1 pipeline 80 (predicted: 100)."
    assert pipelines_text([told[0] | {"evaluator": "listsched"}], rows) == ""


@pytest.mark.parametrize(("objective", "asked"), [("latency", "listsched"), ("throughput", "pipelined")])
def test_segments_are_searched_with_the_simulator_of_what_counts(objective: str, asked: str) -> None:
    given = Settings().updated({"measure.objective": objective, "measure.runtime": "dataflow"}, "a test")
    assert search_settings(given).place.evaluator == asked
    chosen = given.updated({"place.evaluator": "sequential", "place.reward": "simulated"}, "a test")
    assert search_settings(chosen).place.evaluator == "sequential"
