"""Whether one run's best candidate is slower than another's, from the samples that both recorded."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from pipeline.core.errors import SlowerError, StoreError, UsageError
from pipeline.core.estimates import LatencyEstimate, RatioEstimate
from pipeline.deploy.several import is_scenario_run
from pipeline.placing.comparison import latency_of
from pipeline.result.deployment import PLACEMENT
from pipeline.result.records import PlacementRecord
from pipeline.result.result import Result
from pipeline.result.result_text import model_name
from pipeline.shared.payload import from_json, read_json
from runtime.measuring.contest.statistics import unpaired_ratio

LEVEL = 0.95
Verdict = Literal["slower", "faster", "same", "undecided"]


@dataclass(frozen=True, slots=True)
class ComparedRecord:
    """The best candidate of one run, and what it takes by its starts as they were measured."""

    run: str
    candidate: str
    latency_s: LatencyEstimate
    samples: int


@dataclass(frozen=True, slots=True)
class ComparisonRecord:
    """How long b takes in units of a.

    interval: of the ratio, holds at `level`; None where a run has a single start, which tells nothing of how far starts
    scatter. Two predictions have no noise, and an interval without width. paired: never, as nothing makes pairs of two
    runs' samples. least: the share by which b may be slower. notes: what else a reader should know.
    """

    schema: Literal["placewright.compare/2"]
    a: ComparedRecord
    b: ComparedRecord
    ratio: float
    interval: RatioEstimate | None
    level: float
    paired: Literal[False]
    least: float
    verdict: Verdict
    notes: list[str] = field(default_factory=list)
    text: str = ""


def compare(a: Path, b: Path, *, least: float, across: bool = False) -> ComparisonRecord:
    """Return how the best candidate of run b compares with that of run a.

    least: the share by which b may be slower, 0.02 for 2 %. across: compare different models or machines, too.

    The interval tells what varied from start to start while each run was measured, and nothing of what differs between
    one hour of the machine and another.

    Raises:
        StoreError: a folder holds no finished run.
        UsageError: the runs are of different models or machines, were measured for different objectives, or one alone
            was measured.
    """
    for path in (a, b):
        if is_scenario_run(path):
            raise UsageError(
                f"{path} is a run of several models, which compare does not support.",
                f"Look at their tables, or draw one: placewright report {path}",
            )
    runs = [Result.load(path) for path in (a, b)]
    notes = _describe_differences(*runs, across=across)
    notes += _describe_sameness(*runs)
    one, other = (_compared_record(run) for run in runs)
    ratio = other.latency_s.median / one.latency_s.median
    interval: RatioEstimate | None = None
    if all(_is_predicted(run) for run in runs):
        interval = RatioEstimate(ratio, ratio, ratio)
    elif min(one.samples, other.samples) > 1:
        interval = unpaired_ratio(runs[1].best.samples_s, runs[0].best.samples_s, LEVEL)
    record = ComparisonRecord(
        schema="placewright.compare/2",
        a=one,
        b=other,
        ratio=ratio if interval is None else interval.ratio,
        interval=interval,
        level=LEVEL,
        paired=False,
        least=least,
        verdict=_verdict_of_interval(interval, least),
        notes=notes,
    )
    return replace(record, text=_verdict_text(record))


def refuse_slower(comparison: ComparisonRecord) -> None:
    """Raise if the second run is slower.

    Raises:
        SlowerError: by more than was allowed, and the interval says so.
    """
    if comparison.verdict == "slower":
        raise SlowerError(
            comparison.text,
            f"Find what changed between the runs, or allow more than {tolerance_text(comparison.least)} with --least.",
        )


def tolerance_text(share: float) -> str:
    """Return by how much a run may be slower, exactly as it was asked for.

    >>> tolerance_text(0.02)
    '2 %'
    """
    return f"{100 * share:g} %"


def _verdict_text(comparison: ComparisonRecord) -> str:
    """Return the verdict in one sentence."""
    allowed, ratio = tolerance_text(comparison.least), f"it takes {comparison.ratio:.3f} times as long"
    words = {
        "slower": f"is slower: {ratio}",
        "faster": f"is faster: {ratio}",
        "same": f"is no slower by more than {allowed}: {ratio}",
        "undecided": f"may or may not be slower by more than {allowed}: {ratio}",
    }[comparison.verdict]
    if comparison.interval is None:
        few = min((comparison.a, comparison.b), key=lambda c: c.samples)
        return f"{comparison.b.run} {words} (a single start of {few.candidate} in {few.run} gives no interval)."
    low, high = comparison.interval.low, comparison.interval.high
    if low == high:
        return f"{comparison.b.run} {words}, as predicted."
    interval = f"{low:.3f} to {high:.3f} at {100 * comparison.level:g} %"
    return f"{comparison.b.run} {words} ({interval}, unpaired)."


def _verdict_of_interval(interval: RatioEstimate | None, least: float) -> Verdict:
    """Return what an interval of the ratio says."""
    if interval is None:
        return "undecided"
    if interval.low > 1 + least:
        return "slower"
    if interval.high < 1:
        return "faster"
    return "same" if interval.high <= 1 + least else "undecided"


def _compared_record(run: Result) -> ComparedRecord:
    """Return the best candidate of a run with its interval, by its starts as they were measured."""
    samples = run.best.samples_s
    return ComparedRecord(str(run.path), run.best.name, latency_of(samples), len(samples))


def _is_predicted(run: Result) -> bool:
    """Return whether a simulator or a file had the last word, whose figures have no noise."""
    return run.record.contest is None and len(run.best.samples_s) == 1


def _describe_differences(a: Result, b: Result, *, across: bool) -> list[str]:
    """Return in sentences in what two runs differ that are compared nevertheless.

    Raises:
        UsageError: they differ in what makes their times incomparable.
    """
    goals = [_objective_of(run.path) for run in (a, b)]
    if goals[0] != goals[1]:
        raise UsageError(
            f"{a.path} was measured for {goals[0]}, {b.path} for {goals[1]}.", "Compare runs of the same objective."
        )
    if (a.record.contest is None) != (b.record.contest is None) and _is_predicted(a) != _is_predicted(b):
        raise UsageError(
            f"{(a if _is_predicted(a) else b).path} is a prediction, the other run was measured.",
            "Compare two measured runs, or two predictions.",
        )
    conditions = [run.record.contest.condition if run.record.contest else "" for run in (a, b)]
    if conditions[0] != conditions[1]:
        raise UsageError(
            f"{a.path} was measured on {_condition(conditions[0])}, {b.path} on {_condition(conditions[1])}.",
            "Compare runs with one --condition.",
        )
    differences = []
    if a.record.model.sha256 != b.record.model.sha256:
        differences.append(
            f"The models differ: {model_name(a.record.model.path)} and {model_name(b.record.model.path)}."
        )
    if a.record.fingerprint != b.record.fingerprint:
        differences.append(f"The machines differ{_which_facts(a, b)}.")
    if differences and not across:
        raise UsageError(" ".join(differences), "Pass --across to compare them anyway.")
    return differences


def _describe_sameness(a: Result, b: Result) -> list[str]:
    """Return a sentence on starts that both runs have, as a run takes what is measured already from the store."""
    common = set(a.best.samples_s) & set(b.best.samples_s)
    same = (a.record.model.sha256, a.record.fingerprint) == (b.record.model.sha256, b.record.fingerprint)
    if _is_predicted(a) or not (common and same):
        return []
    return [
        f"{len(common)} of {len(b.best.samples_s)} starts of {b.path} are those of {a.path}, taken from the store, "
        "and so compared with themselves. Measure again with --remeasure."
    ]


def _condition(name: str) -> str:
    return f"a {name} machine" if name else "the machine as it was"


def _which_facts(a: Result, b: Result) -> str:
    """Return in what the facts of two machines differ: ": openvino 2026.4 and 2026.5"."""
    facts = [run.record.hardware for run in (a, b)]
    keys = sorted({k for f in facts for k in f if facts[0].get(k) != facts[1].get(k) and not isinstance(f[k], dict)})
    said = ", ".join(f"{key} {facts[0].get(key, 'unknown')} and {facts[1].get(key, 'unknown')}" for key in keys)
    return f": {said}" if said else ""


def _objective_of(path: Path) -> str:
    """Return what a run was measured for; latency where its placement.json is gone or says nothing.

    Raises:
        StoreError: the file is damaged.
    """
    file = path / PLACEMENT
    if not file.is_file():
        return "latency"
    try:
        return from_json(PlacementRecord, read_json(file)).objective
    except (OSError, ValueError) as error:
        raise StoreError(f"{file} is damaged.", f"Write it again: placewright measure --run {path}") from error
