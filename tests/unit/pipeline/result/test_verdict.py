"""What a result says to use, and what it claims of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeline.core.estimates import LatencyEstimate, RatioEstimate
from pipeline.placing.records import ContestRecord
from pipeline.result.accuracy import accuracy_cell, accuracy_inputs, accuracy_text, checks_text
from pipeline.result.records import CandidateRecord, FailureRecord, SizeRecord
from pipeline.result.result_text import sizes_text
from pipeline.result.verdict import Limits, decide_contest, decide_predicted
from tests.reports import accuracy

FREE = Limits()


def candidate(name: str, ms: float = 1.0, **more: Any) -> CandidateRecord:
    """Return a candidate of one device in f32 that took so many milliseconds."""
    known: dict[str, Any] = {"placer": "settings", "baseline": False, "single": True, "devices_used": ["CPU"]}
    known |= {"subgraphs": 1, "precision": "f32", "latency_s": LatencyEstimate(ms * 1e-3, None, None)}
    return CandidateRecord(name=name, **known | more)


def contest(claimed: list[str], ratios: dict[str, RatioEstimate], **more: Any) -> ContestRecord:
    known: dict[str, Any] = {"objective": "latency", "percentile": 50.0, "control": "half", "default": "default"}
    known |= {"hint": "", "level": 0.95, "least": 0.02, "noise": 0.01, "disturbed": False}
    known |= {"over_default": {}, "over_hint": {}}
    return ContestRecord(claimed=claimed, ratios=ratios, **known | more)


def ratio(value: float) -> RatioEstimate:
    return RatioEstimate(value, value - 0.05, value + 0.05, 6)


HALF = candidate("half", 2.0, baseline=True)
FAST = candidate("fast", 1.0)


def test_what_is_claimed_is_the_answer_with_its_gain_over_every_yardstick() -> None:
    found = contest(["fast"], {"fast": ratio(2.0)}, over_default={"fast": ratio(3.0)})
    verdict = decide_contest([FAST, HALF], found, FREE)
    assert verdict.best == "fast"
    assert (verdict.gain.ratio, verdict.gain.low, verdict.gain.high) == (2.0, 1.95, 2.05)
    assert "2.000 times as fast as the best baseline, half (1.950 to 2.050, 95 %" in verdict.text
    assert "3.000 times the plug-in defaults, default (2.950 to 3.050)" in verdict.text


def test_without_a_claim_the_control_is_the_answer_and_the_text_bounds_what_is_to_be_had() -> None:
    verdict = decide_contest([FAST, HALF], contest([], {"fast": RatioEstimate(1.01, 0.98, 1.031, 6)}), FREE)
    assert (verdict.best, verdict.gain.ratio) == ("half", 1.0)
    assert "at most 3.1 % is possible" in verdict.text


def test_a_baseline_that_beats_the_plug_in_default_is_told_as_the_gain_that_it_is() -> None:
    default = candidate("default", 5.6, baseline=True)
    ratios = {"fast": RatioEstimate(1.01, 0.98, 1.031, 6), "default": RatioEstimate(0.4, 0.32, 0.5, 6)}
    text = decide_contest([FAST, HALF, default], contest([], ratios), FREE).text
    assert text == (
        "Use half, the best baseline: 2.500 times as fast as the plug-in defaults, default (2.000 to 3.125, "
        "95 % confidence). Nothing searched is significantly faster, by 2 % or more, than half: at most "
        "3.1 % is possible."
    )
    for told in (
        contest([], {**ratios, "default": RatioEstimate(0.9, 0.8, 1.0, 6)}),
        contest([], {**ratios, "default": RatioEstimate(0.4, 0.32, 0.5, 2)}),  # two starts are no evidence
        replace(contest([], {**ratios, "default": RatioEstimate(0.96, 0.95, 0.97, 6)}), noise=0.06),  # the twin's
    ):
        assert "plug-in defaults" not in decide_contest([FAST, HALF, default], told, FREE).text


def test_the_bound_is_of_what_was_tried_where_something_was_not() -> None:
    untried = replace(candidate("slow", 1.0), latency_s=None, left="not tried within the budget")
    ratios = {"fast": RatioEstimate(1.01, 0.98, 1.031, 6)}
    assert "at most 3.1 % is possible)" in decide_contest([FAST, HALF], contest([], ratios), FREE).text
    assert (
        "at most 3.1 % is possible of what was tried)"
        in decide_contest([FAST, HALF, untried], contest([], ratios), FREE).text
    )


def test_the_sizes_that_an_answer_is_for_are_told_and_what_it_gains_at_each() -> None:
    sizes = [SizeRecord("x=1x8", 0.75, 2.5, 1e-3), SizeRecord("x=1x64", 0.25, 1.2, 4e-3)]
    fast, half = replace(FAST, sizes=sizes), replace(HALF, sizes=[replace(s, times_as_fast=1.0) for s in sizes])
    claimed = decide_contest([fast, half], contest(["fast"], {"fast": ratio(2.0)}), FREE)
    assert claimed.text.endswith("By size that is 2.500 times at x=1x8 (75 %), 1.200 times at x=1x64 (25 %).")
    neither = decide_contest([fast, half], contest([], {"fast": ratio(1.0)}), FREE)
    assert neither.text.endswith("All of this is for x=1x8 (75 %), x=1x64 (25 %) together.")
    assert sizes_text(fast) == (
        "fast by size: 1 ms at x=1x8, 2.500 times as fast; 4 ms at x=1x64, 1.200 times as fast."
    )


def test_what_other_baselines_may_gain_is_not_to_be_had() -> None:
    slow = candidate("default", 3.0, baseline=True)
    ratios = {"fast": RatioEstimate(1.01, 0.98, 1.031, 6), "default": RatioEstimate(0.7, 0.3, 1.6, 3)}
    text = decide_contest([FAST, HALF, slow], contest([], ratios), FREE).text
    assert "at most 3.1 % is possible of what was searched)" in text


def test_where_the_default_is_the_best_baseline_its_gain_is_told_once() -> None:
    found = contest(["fast"], {"fast": ratio(2.0)}, default="half", over_default={"fast": ratio(2.0)})
    text = decide_contest([FAST, HALF], found, FREE).text
    assert "as the best baseline, half" in text
    assert "the plug-in defaults" not in text


def test_a_disturbed_machine_cannot_decide() -> None:
    verdict = decide_contest([FAST, HALF], contest([], {"fast": ratio(1.1)}, disturbed=True, noise=0.2), FREE)
    assert verdict.best == "half"
    assert "No decision" in verdict.text
    assert "22.1 %" in verdict.text


def test_without_time_for_a_comparison_it_says_so() -> None:
    verdict = decide_contest([FAST, HALF], contest([], {}, missing_s=12.3), FREE)
    assert "No time was left to compare" in verdict.text
    assert verdict.text.endswith("Add at least 13 s to --budget.")
    striking = replace(FAST, times_as_fast=2.9)
    verdict = decide_contest([striking, HALF], contest([], {}), FREE)
    assert verdict.best == "half"  # what was not compared is no answer
    alike = replace(striking, name="twice", same_as="half")
    assert "twice" not in decide_contest([alike, HALF, FAST], contest([], {}), FREE).text
    assert verdict.text.endswith(
        "In the screening fast was about 2.9 times as fast; confirm it with a larger --budget."
    )
    few = contest([], {"fast": RatioEstimate(2.9, 0.1, 80.0, 2)})
    assert "about 2.9 times" in decide_contest([striking, HALF], few, FREE).text
    many = contest([], {"fast": RatioEstimate(1.3, 0.9, 1.9, 5)})
    assert "screening" not in decide_contest([striking, HALF], many, FREE).text


def test_where_baselines_alone_were_compared_it_says_why() -> None:
    slow = candidate("default", 3.0, baseline=True, log_ratios={"1": -0.4})
    ratios = {"default": RatioEstimate(0.7, 0.6, 0.8, 3)}
    assert (
        "No time was left to compare"
        in decide_contest([FAST, HALF, slow], contest([], ratios, missing_s=3.0), FREE).text
    )
    alike = replace(FAST, same_as="half")
    assert (
        decide_contest([alike, HALF], contest([], {}), FREE).text
        == "Every candidate that runs is equivalent to half. Use it."
    )
    assert decide_contest([alike, HALF, slow], contest([], ratios), FREE).text == (
        "Use half, the best baseline: 1.429 times as fast as the plug-in defaults, default (1.250 to 1.667, "
        "95 % confidence). Everything searched is equivalent to a baseline."
    )


def test_where_everything_is_slower_nothing_is_to_be_had() -> None:
    verdict = decide_contest([FAST, HALF], contest([], {"fast": RatioEstimate(0.8, 0.7, 0.9, 5)}), FREE)
    assert "at most 0.0 % is possible" in verdict.text


def split(ahead: dict[str, float]) -> CandidateRecord:
    return candidate("split", 0.9, single=False, log_ratios=ahead)


@pytest.mark.parametrize(
    ("starts", "best"),
    [
        ([0.8, 0.8, 0.8, 0.8, 0.8], "split"),
        ([0.8, 0.8, 0.6, 0.8, 0.8], "fast"),
        ([0.8, 0.8, 0.8, 0.8], "fast"),  # by chance once in 16 times
    ],
)
def test_a_split_must_be_faster_than_one_device_in_every_start_to_go_before_it(starts: list[float], best: str) -> None:
    found = contest(["split", "fast"], {"split": ratio(2.2), "fast": ratio(2.0)})
    alone = replace(FAST, log_ratios={str(i): 0.7 for i in range(5)})
    ahead = split({str(i): x for i, x in enumerate(starts)})
    assert decide_contest([ahead, alone, HALF], found, FREE).best == best


@pytest.mark.parametrize(
    ("starts", "best"),
    [
        ([0.201, 0.21, 0.205], "plain"),  # 0.6 % ahead for certain, which is not worth it
        ([0.1, 0.4, 0.28], "plain"),  # 6 % ahead, perhaps
        ([0.30, 0.301, 0.299], "unpinned"),
    ],
)
def test_of_settings_that_may_be_equally_fast_the_simplest_is_the_answer(starts: list[float], best: str) -> None:
    def settings(name: str, ahead: list[float], **pinning: str) -> CandidateRecord:
        properties = {"CPU": {"INFERENCE_PRECISION_HINT": "f32", **pinning}}
        return candidate(name, settings=properties, log_ratios={str(i): x for i, x in enumerate(ahead)})

    plain = settings("plain", [0.2, 0.2, 0.2])
    pinned = settings("pinned", [0.2, 0.2, 0.2], ENABLE_CPU_PINNING="YES")
    unpinned = settings("unpinned", starts, ENABLE_CPU_PINNING="NO")
    found = contest(["unpinned", "pinned", "plain"], {n: ratio(1.2) for n in ("unpinned", "pinned", "plain")})
    assert decide_contest([unpinned, pinned, plain, HALF], found, FREE).best == best


def test_the_fastest_exact_and_the_fastest_allowed_answer_are_told_where_they_differ() -> None:
    low = candidate("low", 0.5, precision="bf16", accuracy=accuracy(0.0123, exact=False, tolerance=0.05))
    fast, half = (replace(c, accuracy=accuracy()) for c in (FAST, HALF))
    found = contest(["low", "fast"], {"low": ratio(4.0), "fast": ratio(2.0)})
    known = [replace(c, times_as_fast=1.0) for c in (low, fast, half)]
    assert decide_contest(known, found, FREE).notes == (
        "Fastest exact answer: fast, f32, 2.000 (1.950 to 2.050) times as fast as half; outputs differ by 0.0001 %.",
        "Fastest answer within the tolerance (5 %): low, bf16, 4.000 (3.950 to 4.050) times as fast as half; "
        "outputs differ by 1.2 %.",
    )
    exact, _ = decide_contest([low, half], contest(["low"], {"low": ratio(4.0)}), FREE).notes
    assert exact == "Fastest exact answer: half, f32, the best baseline; outputs differ by 0.0001 %."
    assert decide_contest([fast, half], contest(["fast"], {"fast": ratio(2.0)}), FREE).notes == ()
    assert low.accuracy is not None
    sampled = replace(low, accuracy=replace(low.accuracy, kinds=(*low.accuracy.kinds, "noise #2")))
    assert decide_contest([sampled, half], contest(["low"], {"low": ratio(4.0)}), FREE).notes[0] == exact
    unsure = replace(fast, times_as_fast=0.8)
    exact, _ = decide_contest([low, unsure], contest([], {}, control="low"), FREE).notes
    assert exact.startswith("Fastest exact answer: fast, f32, about 0.80 times as fast as low;")
    none = "No candidate that was compared on all inputs is exact."
    assert decide_contest([low], contest([], {}, control="low"), FREE).notes[0] == none
    more = replace(low, accuracy=accuracy(0.0123, exact=False, tolerance=0.05, kinds=("noise", "smooth")))
    assert decide_contest([more, half], contest(["low"], {"low": ratio(4.0)}), FREE).notes[0] == none


def test_accuracy_is_told_with_its_limits_and_with_what_it_was_judged_on() -> None:
    told = accuracy(
        0.042,
        exact=False,
        tolerance=0.05,
        **{"kind": "smooth", "channel": "output_0[4]", "channel_difference": 0.19, "indices": 1 / 128},
        **{"flips": 230, "decisions": 4120, "kinds": ("noise", "smooth", "noise #2"), "rows": 0.05},
    )
    low = candidate("low", precision="bf16", accuracy=told)
    assert accuracy_text(low) == (
        "low, bf16: outputs differ by 4.2 % from the reference (5 % allowed, output_0), by 2.1 % in the mean, "
        "output_0[4] by 19 %, 0.78 % of indices differ (10 % allowed), 5 % of rows have no match (20 % allowed), "
        "230 of 4120 decisions flip; compared on noise (2 samples), smooth."
    )
    assert accuracy_cell(low) == "4.2 %"
    ruled = replace(low, accuracy=accuracy(0.059, rule="output_0 8.9 %, as rounding moves the reference"))
    assert "by 5.9 % from the reference (0.1 % allowed, output_0; output_0 8.9 %, as rounding moves" in accuracy_text(
        ruled
    )
    assert accuracy_text(candidate("unknown")) == accuracy_cell(candidate("unknown")) == ""
    judged = accuracy_text(replace(low, accuracy=accuracy(0.0, lost=0.005)), "top1")
    assert judged == "low, bf16: top1 falls by 0.5 % from the reference, outputs differ by 0 % from the reference."
    assert accuracy_cell(replace(low, accuracy=accuracy(0.01))) == "1 % on noise"
    assert checks_text(contest([], {}, checks_s=0.84)) == (
        "Comparing outputs took 0.8 s while candidates were measured."
    )
    assert checks_text(contest([], {})) == ""
    assert accuracy_inputs(low, given=False) == "Accuracy was checked on generated inputs; pass your own with --input."
    alone = replace(low, accuracy=replace(accuracy(0.0), kinds=("timed",)))
    assert accuracy_inputs(alone, given=False).startswith("The source was not run: outputs were compared with this")
    assert accuracy_inputs(low, given=True) == accuracy_inputs(candidate("unknown"), given=False) == ""


@pytest.mark.parametrize(
    ("limits", "more", "words"),
    [
        (Limits(p99_s=0.01), {"percentiles": {"99": 0.02}}, "p99 is 20.00 ms, 10 ms allowed for p99"),
        (Limits(min_rate=100), {"rate": 50.0}, "50.0 inferences per second, 100 wanted"),
        (Limits(max_memory_bytes=10**8), {"peak_bytes": 2 * 10**8}, "200 MB of memory, 100 MB allowed"),
        (Limits(max_load_s=1.0), {"compile_s": 1.5}, "loads in 1.50 s, 1 s allowed"),
    ],
)
def test_the_fastest_that_keeps_the_limits_wins(limits: Limits, more: dict[str, Any], words: str) -> None:
    over = candidate("over", 0.5, **more)
    assert limits.broken_by(over) == words
    found = contest(["over", "fast"], {"over": ratio(4.0), "fast": ratio(2.0)})
    assert decide_contest([over, FAST, HALF], found, limits).best == "fast"
    assert decide_contest([over, FAST, HALF], found, FREE).best == "over"


def test_few_latencies_tell_of_a_p99_what_lower_percentiles_can() -> None:
    limits = Limits(p99_s=0.01)
    slow, untold = (candidate("half", baseline=True, percentiles={"50": ms * 1e-3, "90": ms * 1e-3}) for ms in (20, 5))
    verdict = decide_contest([slow], contest([], {}), limits)
    assert "p90 is 20.00 ms, 10 ms allowed for p99" in verdict.text
    verdict = decide_contest([untold], contest([], {}), limits)
    assert verdict.best == "half"
    assert verdict.notes == ("Too few latencies of half were measured for its p99. Use a larger --budget.",)
    fast = replace(FAST, percentiles={"50": 0.005})
    verdict = decide_contest([fast, slow], contest([], {}), limits)
    assert verdict.text.startswith("Use fast, the fastest candidate within the limits; half is not: p90 is 20.00 ms")
    assert verdict.notes == ("Too few latencies of fast were measured for its p99. Use a larger --budget.",)


def test_what_one_inference_in_a_thousand_takes_breaks_no_limit_on_the_p99() -> None:
    rare = candidate("half", percentiles={"50": 0.005, "99": 0.009, "99.9": 0.02})
    assert Limits(p99_s=0.01).broken_by(rare) == ""
    assert Limits(p99_s=0.008).broken_by(rare) == "p99 is 9.00 ms, 8 ms allowed for p99"


def test_limits_that_the_control_breaks_are_told() -> None:
    limits = Limits(max_load_s=1.0)
    slow_to_load = replace(HALF, compile_s=2.0)
    verdict = decide_contest([slow_to_load, FAST], contest([], {}), limits)
    assert verdict.best == "fast"
    assert "half is not: loads in 2.00 s" in verdict.text
    assert "No candidate is within the limits" in decide_contest([slow_to_load], contest([], {}), limits).text


def test_a_simulator_predicts_and_gives_no_interval() -> None:
    faster = candidate("split", 1.0, single=False)
    verdict = decide_predicted([faster, HALF])
    assert (verdict.best, verdict.gain.ratio) == ("split", 2.0)
    assert verdict.text == "split is predicted to be 2.000 times as fast as the best single device, half."
    assert decide_predicted([HALF, faster]).best == "half"
    refused = replace(HALF, latency_s=None, failed=FailureRecord("refused", "why"))
    assert "No single device can run the model" in decide_predicted([faster, refused]).text
