"""Two runs side by side: how their answers and all candidates of one name compare, and in what the runs differ."""

from __future__ import annotations

from pathlib import Path

from pipeline.deploy.compare import LEVEL, compare
from pipeline.report import charts
from pipeline.report.findings import FIGURES, settings_table
from pipeline.report.page import write_page
from pipeline.report.plain_page import PlainPage, Section
from pipeline.report.run import RunRecords
from pipeline.report.text import change_text, seconds_text, value_text
from pipeline.result.records import CandidateRecord
from pipeline.result.result_text import is_first_sight, model_name
from runtime.measuring.contest.statistics import TWIN, unpaired_ratio

LEAST = 0.02
STARTS = 3  # of each run, for an interval


def write_side_by_side(a: Path, b: Path, path: Path) -> None:
    """Write the page that compares two runs.

    Raises:
        StoreError: a folder holds no finished run, or the page cannot be written.
        UsageError: the runs were measured for different objectives.
    """
    write_page(path, side_by_side(RunRecords.load(a), RunRecords.load(b)))


def side_by_side(a: RunRecords, b: RunRecords) -> str:
    """Return the page that compares two runs; ratios are how many times as fast as the first the second is.

    Raises:
        UsageError: the runs were measured for different objectives.
    """
    comparison = compare(a.path, b.path, least=LEAST, across=True)
    verdict, notes = comparison.text, comparison.notes
    names = (a.path.name, b.path.name) if a.path.name != b.path.name else (str(a.path), str(b.path))
    first, second = names
    ratios = _interval_rows(a, b)
    sections = [
        Section("The answers", columns=("", *names, "change"), rows=_figure_rows(a.best, b.best), numbers=(1, 2, 3)),
        Section(
            "Candidates of both runs",
            words=f"Times as fast in {second} as in {first}, with unpaired intervals at {100 * LEVEL:g} %."
            if ratios
            else "No candidate of one name was measured in both.",
            chart=charts.draw_forest(
                ratios, label=f"{second} against {first}, candidate by candidate", reference=f"as fast as {first}"
            )
            if ratios
            else None,
            columns=("candidate", *(f"latency in {name}" for name in names), "times as fast"),
            rows=[(r.name, *_latency_texts(r.name, a, b), r.words) for r in ratios],
            numbers=(1, 2, 3),
        ),
        Section("Settings that differ", columns=("", *names), rows=_setting_rows(a, b)),
        Section("What else differs", columns=("", *names), rows=_difference_rows(a, b)),
    ]
    models = [model_name(run.result.model.path) for run in (a, b)]
    glance = [(name, run.result.verdict) for name, run in zip(names, (a, b), strict=True)]
    title = f"{first} and {second}: {' and '.join(dict.fromkeys(models))}"
    return PlainPage(title, verdict=verdict, glance=glance, notes=notes, sections=sections).text()


def _figure_rows(a: CandidateRecord, b: CandidateRecord) -> list[tuple[str, str, str, str]]:
    rows = [("answer", a.name, b.name, "")]
    for what, figure, write in FIGURES:
        one, other = figure(a), figure(b)
        if one is not None or other is not None:
            rows.append((what, write(one), write(other), change_text(other, one)))
    return [*rows, ("computed in", a.precision, b.precision, "")]


def _interval_rows(a: RunRecords, b: RunRecords) -> list[charts.ForestRow]:
    """Return for every candidate of both runs how many times as fast it is in the second."""
    there, those = (
        {c.name: c for c in run.result.candidates if c.name != TWIN and not is_first_sight(c, run.result.contest)}
        for run in (a, b)
    )
    rows = []
    for c in those.values():
        other = there.get(c.name)
        if other is None or c.latency_s is None or other.latency_s is None:
            continue
        kind = "best" if c.name in (a.result.best, b.result.best) else "other"
        if min(len(c.samples_s), len(other.samples_s)) < STARTS:
            ratio = other.latency_s.median / c.latency_s.median
            rows.append(charts.ForestRow(c.name, ratio, None, f"about {ratio:.2f}", kind))
            continue
        interval = unpaired_ratio(other.samples_s, c.samples_s, LEVEL)
        words = f"{interval.ratio:.3f} ({interval.low:.3f} to {interval.high:.3f})"
        rows.append(charts.ForestRow(c.name, interval.ratio, (interval.low, interval.high), words, kind))
    return rows


def _latency_texts(name: str, a: RunRecords, b: RunRecords) -> tuple[str, str]:
    latencies = [next(c.latency_s for c in run.result.candidates if c.name == name) for run in (a, b)]
    one, other = (seconds_text(latency.median if latency else None) for latency in latencies)
    return one, other


def _setting_rows(a: RunRecords, b: RunRecords) -> list[tuple[str, str, str]]:
    """Return the settings of the two answers that differ."""
    columns = []
    for run in (a, b):
        names, rows = settings_table(run)
        columns.append({key: values[0] for key, values in rows} if names else {})
    keys = dict.fromkeys([*columns[0], *columns[1]])
    return [(k, columns[0].get(k, ""), columns[1].get(k, "")) for k in keys if columns[0].get(k) != columns[1].get(k)]


def _difference_rows(a: RunRecords, b: RunRecords) -> list[tuple[str, str, str]]:
    """Return in what models, machines, versions and seeds differ."""
    told = []
    for run in (a, b):
        result = run.result
        facts = {
            "model": model_name(result.model.path),
            "SHA-256 of the model": result.model.sha256,
            "seed": result.seed,
        }
        facts |= {"machine": result.fingerprint, **result.hardware}
        told.append(facts | {f"version of {name}": version for name, version in result.versions.items()})
    keys = dict.fromkeys([*told[0], *told[1]])
    return [
        (k, value_text(told[0].get(k)), value_text(told[1].get(k))) for k in keys if told[0].get(k) != told[1].get(k)
    ]
