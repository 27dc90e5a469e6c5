"""What is said of a scenario, in sentences."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

from pipeline.core.estimates import RatioEstimate
from pipeline.scenario.records import CheckRecord, ConfigurationRecord, ScenarioContest, ScenarioResult, ServedFigures
from pipeline.scenario.verdict import decide_scenario, scenario_notes, scenario_table

DEFAULT = ConfigurationRecord("plug-in defaults", "defaults", [], "process", value=1.2, log_ratios={"1": 0.0})
BEST = ConfigurationRecord(
    "each reserved", "searched", [], "process", value=1.9, between=(1.7, 2.1), log_ratios={"1": 0.46},
    over_control=RatioEstimate(1.58, 1.4, 1.8, 3), sight=1.6,
)  # fmt: skip
CONTEST = ScenarioContest("plug-in defaults", 0.95, 0.02, ["each reserved"], 0.03, False)
SERVED = ServedFigures("a", 1.0, 15.0, 15.0, 300, 0, 0.05, {"50": 0.01}, 0.005, True)
CHECK = CheckRecord(1.9, [SERVED], [SERVED], True)


def test_the_multiple_that_the_check_confirmed_is_said_with_its_range_and_that_of_the_defaults() -> None:
    text, gain = decide_scenario("load", BEST, [BEST, DEFAULT], CONTEST, CHECK)
    assert text == (
        "The machine holds 1.9 times the stated load within all deadlines (1.7 to 2.1 over starts); plug-in defaults "
        "1.2 times. Use each reserved: 1.58 times the load of plug-in defaults (1.40 to 1.80)."
    )
    assert gain.ratio == 1.58


def test_a_check_that_confirms_less_than_the_starts_says_so() -> None:
    text, _ = decide_scenario("load", BEST, [BEST], CONTEST, replace(CHECK, multiple=1.6))
    assert text.startswith(
        "The machine holds 1.6 times the stated load within all deadlines (1.7 to 2.1 over starts, of which the check "
        "in fresh processes confirmed this much)."
    )


def test_without_a_claim_the_control_is_used() -> None:
    text, gain = decide_scenario("throughput", DEFAULT, [DEFAULT, BEST], replace(CONTEST, claimed=[]), None)
    assert text == "No significant gain of 2 % or more over plug-in defaults. Use it."
    assert gain.ratio == 1.0


def test_a_first_sight_is_told_where_no_time_was_left() -> None:
    contest = replace(CONTEST, claimed=[], missing_s=8.2)
    text, _ = decide_scenario("throughput", DEFAULT, [DEFAULT, BEST], contest, None)
    assert "Use plug-in defaults; add 9 s or more to --budget." in text
    assert "At first sight each reserved was 1.6 times the rates" in text


def test_starts_that_are_too_few_to_decide_are_counted() -> None:
    contest, control = replace(CONTEST, claimed=[], missing_s=8.2), replace(DEFAULT, log_ratios={})
    for logs, said in (
        ({}, "No time to compare was left. Use plug-in defaults; add 9 s"),
        ({"1": 0.4}, "1 start of a comparison is too few to decide. Use plug-in defaults; add 9 s"),
        ({"1": 0.4, "2": 0.5}, "2 starts of a comparison are too few to decide. Use plug-in defaults; add 9 s"),
    ):
        rows = [control, replace(BEST, log_ratios=logs)]
        assert said in decide_scenario("throughput", control, rows, contest, None)[0]


def test_a_load_that_does_not_fit_names_what_would_and_whose_deadline_is_missed() -> None:
    late = replace(SERVED, holds=False)
    text, _ = decide_scenario(
        "load", DEFAULT, [DEFAULT], replace(CONTEST, claimed=[]), CheckRecord(0.6, [late], [SERVED], True)
    )
    assert text.startswith("The stated load does not fit: 0.6 times of it would; a misses its deadline at it.")


def test_where_no_multiple_that_was_tried_held_it_is_said_below_which_the_greatest_lies() -> None:
    slow = replace(DEFAULT, value=None, below=13.42, log_ratios={})
    text, _ = decide_scenario("load", BEST, [BEST, slow], CONTEST, CHECK)
    assert "; plug-in defaults less than 13 times." in text
    assert scenario_notes("load", [slow], None) == []  # it was tried
    table = SimpleNamespace(objective="load", configurations=[slow], best="each reserved")
    assert scenario_table(cast("ScenarioResult", table))[1][0][:2] == ["plug-in defaults", "below 13.4"]
    failed = replace(CHECK, multiple=2.5, holds=False)
    text, _ = decide_scenario("load", slow, [slow], replace(CONTEST, claimed=[]), failed)
    assert text.startswith("The machine held the stated load, but not 2.5 times of it, the least multiple that was")
    full = replace(DEFAULT, value=1.3, limit="3 GB of memory, 2 GB allowed", log_ratios={})
    text, _ = decide_scenario("load", full, [full], replace(CONTEST, claimed=[]), failed)
    assert text.startswith("The machine seemed to hold 1.3 times the stated load, but 3 GB of memory, 2 GB allowed.")
    late = replace(failed, stated=[replace(SERVED, holds=False)])
    text, _ = decide_scenario("load", slow, [slow], replace(CONTEST, claimed=[]), late)
    assert text.startswith("The stated load does not fit")


def test_what_cannot_be_told_is_said() -> None:
    short = replace(SERVED, latency_s=None, holds=None)
    check = CheckRecord(2.0, [short], [short], None)
    text, _ = decide_scenario("load", DEFAULT, [DEFAULT], replace(CONTEST, claimed=[]), check)
    assert text.startswith("It cannot be told whether the deadlines hold: too few requests were seen")
    assert scenario_notes("load", [DEFAULT], check) == [
        "Too few requests of a were seen to tell the percentile. Use a larger --budget."
    ]


def test_a_busy_machine_is_named() -> None:
    (said,) = scenario_notes("throughput", [DEFAULT], None, others=0.48)
    assert said.startswith("Other processes took 48% of the processors while models were under load.")
    assert scenario_notes("throughput", [DEFAULT], None, others=0.05) == []
