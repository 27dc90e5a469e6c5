"""What may be said of a scenario: the verdict, and the table that people read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pipeline.core.estimates import RatioEstimate
from pipeline.core.figures import bytes_text
from pipeline.core.scenario import ScenarioObjective
from pipeline.result.result_text import DISTURBED
from pipeline.scenario.records import (
    CheckRecord,
    ConfigurationRecord,
    ScenarioContest,
    ScenarioForecast,
    ScenarioResult,
    ServedFigures,
)

STRIKING = 1.1  # times as good as the control, above which a first sight is worth a word
NONE = RatioEstimate(1.0, 1.0, 1.0)
WHAT: Mapping[ScenarioObjective, str] = {
    "throughput": "times the rates (geometric mean)",
    "latency": "times as fast (weighted latencies)",
    "load": "times the load",
}


def decide_scenario(
    objective: ScenarioObjective,
    answer: ConfigurationRecord,
    rows: Sequence[ConfigurationRecord],
    contest: ScenarioContest,
    check: CheckRecord | None,
    remedies: Sequence[str] = (),
) -> tuple[str, RatioEstimate]:
    """Return the verdict in a few sentences, and the gain over the control.

    remedies: what is predicted to make the stated load fit, where it does not.

    The load multiple that is said to hold is the one that the check has confirmed, where there was one.
    """
    gain, parts = NONE, list[str]()
    if objective == "load":
        parts.append(_load_sentence(answer, check))
        default = next((r for r in rows if r.kind == "defaults" and r is not answer), None)
        if default is not None and (default.value or default.below):
            parts[-1] = f"{parts[-1].removesuffix('.')}; plug-in defaults {_multiple_text(default)} times."
        if remedies:
            said = "; ".join(remedies)
            parts.append(f"{said[0].upper()}{said[1:]}.")
    if answer.name not in contest.claimed:
        control = contest.control
        if answer.limit:
            parts.append(f"No configuration keeps the limits; {answer.name}: {answer.limit}.")
        elif answer.name != control:
            parts.append(f"Use {answer.name}: the best of those that keep the limits, at first sight.")
        elif contest.disturbed:
            parts.append(f"No decision: other processes disturb this machine too much. Use {control}; measure again.")
        elif contest.missing_s:
            begun = max((len(r.log_ratios) for r in rows), default=0)
            short = f"{begun} start{'s' * (begun > 1)} of a comparison {'are' if begun > 1 else 'is'} too few to decide"
            parts.append(
                f"{short if begun else 'No time to compare was left'}. Use {control}; add "
                f"{math.ceil(contest.missing_s)} s or more to --budget."
            )
            first = max(
                (r for r in rows if r.kind == "searched" and r.sight), key=lambda r: r.sight or 0.0, default=None
            )
            if first is not None and (first.sight or 0.0) > STRIKING:
                parts.append(f"At first sight {first.name} was {first.sight:.1f} {WHAT[objective]} of it.")
        else:
            parts.append(f"No significant gain of {100 * contest.least:g} % or more over {control}. Use it.")
    else:
        gain = answer.over_control or NONE
        others = [f"{ratio.ratio:.2f} times {name}" for name, ratio in contest.over.items() if name != contest.control]
        text = f"Use {answer.name}: {gain.ratio:.2f} {WHAT[objective]} of {contest.control} ({_between(gain)})"
        parts.append("; ".join([text, *others]) + ".")
    return " ".join(parts), gain


def scenario_notes(
    objective: ScenarioObjective,
    rows: Sequence[ConfigurationRecord],
    check: CheckRecord | None,
    forecast: ScenarioForecast | None = None,
    others: float = 0.0,
) -> list[str]:
    """Return what else there is to say: percentiles that cannot be told, deadlines missed, what failed.

    others: share of the processors that other processes took.
    """
    notes: list[str] = []
    if others > DISTURBED:
        notes.append(
            f"Other processes took {others:.0%} of the processors while models were under load. Measure again while "
            "the machine is quiet."
        )
    if check is not None and check.holds is None and any(f.latency_s is None for f in check.stated):
        short = [f.name for f in check.stated if f.latency_s is None and not f.dropped]
        if short and objective != "throughput":
            notes.append(
                f"Too few requests of {', '.join(short)} were seen to tell the percentile. Use a larger --budget."
            )
    if check is not None and check.holds is False and objective == "latency":
        missed = [f"{f.name}: {100 * f.late:.1f} % late" for f in check.stated if f.holds is False]
        notes.append(f"In the check deadlines did not hold: {'; '.join(missed)}.")
    untried = sum(r.value is None and r.below is None and r.failed is None for r in rows)
    if untried:
        notes.append(f"{untried} configurations were not tried within the budget.")
    if forecast is not None and forecast.error is not None:
        order = "" if forecast.rank_correlation is None else f", rank correlation {forecast.rank_correlation:.2f}"
        used = ", by which configurations were ordered before measuring," if forecast.used else ""
        what = "multiples of the load" if objective == "load" else "latencies"
        notes.append(
            f"Predicted {what}{used} were off by {100 * forecast.error:.0f} % (median of {forecast.compared} that "
            f"were not fitted to{order})" + ("." if forecast.used else "; so configurations were not ordered by them.")
        )
    failed = [r for r in rows if r.failed and (r.kind != "searched" or r.failed.kind != "refused")]
    notes += [
        f"{r.name}: {r.failed_model or 'the models together'} failed ({r.failed.message})." for r in failed if r.failed
    ]
    return notes


def _load_sentence(answer: ConfigurationRecord, check: CheckRecord | None) -> str:
    """Return how many times the stated load the machine holds."""
    if check is not None and check.holds:
        multiple = check.multiple
        said = f"The machine holds {multiple:.2g} times the stated load within all deadlines"
        between = f" ({answer.between[0]:.2g} to {answer.between[1]:.2g} over starts)" if answer.between else ""
        if answer.between and multiple < answer.between[0]:
            between = f"{between.removesuffix(')')}, of which the check in fresh processes confirmed this much)"
        if multiple < 1:
            worst = [f.name for f in check.stated if f.holds is False]
            late = f"; {', '.join(worst)} {'misses its' if len(worst) == 1 else 'miss their'} deadline at it" * bool(
                worst
            )
            return f"The stated load does not fit: {multiple:.2g} times of it would{between}{late}."
        return f"{said}{between}."
    if check is not None and check.holds is None:
        return "It cannot be told whether the deadlines hold: too few requests were seen for the percentile."
    if answer.value is not None and not answer.limit:
        if answer.value < 1:
            return f"The stated load does not fit: {answer.value:.2g} times of it seemed to, which no check confirmed."
        return f"The machine seemed to hold {answer.value:.2g} times the stated load, which the check did not confirm."
    if answer.value is not None:
        return f"The machine seemed to hold {answer.value:.2g} times the stated load, but {answer.limit}."
    least = min((x for x in (answer.below, check.multiple if check else None) if x), default=0.0)
    holds = {f.holds for f in check.stated} if check is not None else {None}
    if False in holds or not least:
        return "The stated load does not fit, nor any share of it that was tried."
    stated = "held the stated load, but not" if True in holds else "was not seen to hold the stated load, nor"
    return f"The machine {stated} {least:.2g} times of it, the least multiple that was tried."


def _multiple_text(row: ConfigurationRecord) -> str:
    return f"{row.value:.2g}" if row.value else f"less than {row.below:.2g}"


def _between(ratio: RatioEstimate) -> str:
    high = f"{ratio.high:.2f}" if ratio.high < 1e3 else "?"
    return f"{ratio.low:.2f} to {high}"


def scenario_table(result: ScenarioResult) -> tuple[list[str], list[list[str]]]:
    """Return the columns and the rows of the table of configurations; the answer is marked with a star."""
    value = {"load": "times the load", "throughput": "rate (mean)", "latency": "ms (weighted)"}[result.objective]
    columns = ["configuration", value, "over control", "per model", "memory", "note"]
    rows = []
    for c in result.configurations:
        if c.kind == "twin" or (c.value is None and c.below is None and c.failed is None):
            continue
        factor = 1e3 if result.objective == "latency" else 1.0
        about = "" if c.log_ratios or c.between else "about "
        unknown = "-" if c.below is None else f"below {_three_digits(c.below)}"
        shown = unknown if c.value is None else f"{about}{_three_digits(c.value * factor)}"
        ratio = f"{c.over_control.ratio:.2f} ({_between(c.over_control)})" if c.over_control else ""
        note = c.failed.message[:60] if c.failed else c.limit or c.left
        mark = "*" if c.name == result.best else ""
        rows.append(
            [mark + c.name, shown, ratio, "; ".join(map(_figures_cell, c.figures)), bytes_text(c.peak_bytes, 3), note]
        )
    return columns, rows


def _figures_cell(f: ServedFigures) -> str:
    latency = "" if f.latency_s is None else f", {_three_digits(1e3 * f.latency_s)} ms"
    return f"{f.name} {_three_digits(f.rate)}/s{latency}"


def _three_digits(value: float) -> str:
    """Return a figure with three digits, all of those before the point.

    >>> _three_digits(2523.75), _three_digits(0.01234)
    ('2524', '0.0123')
    """
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
