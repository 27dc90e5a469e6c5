"""The page of a scenario: what the machine holds of several models' load, and under which configuration."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from pipeline.core.figures import bytes_text, number_text
from pipeline.deploy.several import ScenarioDeployment
from pipeline.report import charts
from pipeline.report.page import write_page
from pipeline.report.plain_page import PlainPage, Section, TableCell, number_cell
from pipeline.report.text import count_text, interval_text, seconds_text
from pipeline.scenario.records import ConfigurationRecord, ScenarioResult, ServedFigures
from pipeline.scenario.verdict import scenario_table

HELD = {True: "holds", False: "missed", None: ""}
BETTER = {"load": "the load", "throughput": "the rates", "latency": "as fast"}  # what a ratio counts, by objective


def write_scenario_page(run: Path, path: Path) -> None:
    """Write the page of a finished scenario.

    Raises:
        StoreError: the run is damaged, or the page cannot be written.
    """
    write_page(path, scenario_page(ScenarioDeployment.load(run).result, run))


def scenario_page(result: ScenarioResult, run: Path) -> str:
    """Return the page of a scenario's result; run: its directory, as commands name it."""
    columns, rows = scenario_table(result)
    points = _front_points(result)
    return PlainPage(
        Path(result.source).name,
        verdict=result.verdict,
        glance=_answer_questions(result),
        now=f"placewright emit {run} --to python",
        notes=result.notes,
        sections=[
            Section(
                "Configurations",
                words="All models at once, relative to the control; hollow points are screening estimates without an "
                "interval.",
                chart=charts.draw_forest(
                    _forest_rows(result),
                    label="configurations",
                    reference=_control(result),
                    better=BETTER[result.objective],
                ),
                columns=columns,
                rows=rows,
            ),
            Section(
                "Latency and rate", words=_front_words(result), chart=charts.draw_pareto(points) if points else None
            ),
            *_load_sections(result),
            Section(
                "How each model runs",
                words="In the order in which they are compiled, which decides who reserves processors first.",
                columns=("model", "device", "properties", "requests in flight", "precision"),
                rows=_model_rows(result.answer),
                numbers=(3,),
            ),
        ],
        after=[
            Section(
                "Alone",
                words="What a model does while nothing else runs, under one setting.",
                columns=("model", "setting", "inferences per second"),
                rows=[[a.model, a.about, number_cell(number_text(a.rate), a.rate)] for a in result.alone],
                numbers=(2,),
                filtered=True,
            ),
            Section("Provenance", columns=("", ""), rows=_provenance_rows(result)),
        ],
    ).text()


def _control(result: ScenarioResult) -> str:
    return result.contest.control if result.contest is not None else result.best


def _answer_questions(result: ScenarioResult) -> list[tuple[str, str]]:
    """Return the questions that a person has at first sight, in the order of every page, and the answers."""
    answer, contest = result.answer, result.contest
    gain = f"No significant gain over {_control(result)}."
    if contest is not None and answer.name in contest.claimed:
        each = {_control(result): result.speedup, **contest.over}
        gain = "; ".join(
            f"{r.ratio:.3g} times {name} ({interval_text(r.low, r.high, lambda v: f'{v:.3g}')})"
            for name, r in each.items()
        )
    starts = f"{count_text(len(answer.log_ratios), 'start')} beside {_control(result)}."
    if not answer.log_ratios:
        starts = (
            "It is the baseline that all others were compared with." if contest else "One start alone: an estimate."
        )
    check = ""
    if result.check is not None and result.check.holds is not None:
        held = "hold" if result.check.holds else "do not hold"
        check = f" In fresh processes all deadlines {held} at {result.check.multiple:.3g} times the stated load."
    processes = "one process" if answer.isolation == "process" else "a process each"
    where = "; ".join(f"{m.name}: {m.about}" for m in answer.models)
    return [
        ("The answer", f"{answer.name}, in {processes}."),
        ("By how much", gain),
        ("How sure", f"{starts}{check}"),
        ("Where it runs", f"{where}."),
        ("What to do now", "Copy this command: it writes a program that runs all models as they were measured."),
    ]


def _forest_rows(result: ScenarioResult) -> list[charts.ForestRow]:
    rows = []
    for c in result.configurations:
        kind = "best" if c.name == result.best else "baseline" if c.kind not in ("searched", "twin") else "other"
        if c.over_control is not None:
            ratio = c.over_control
            between = interval_text(ratio.low, ratio.high, lambda v: f"{v:.3g}")
            words = f"{ratio.ratio:.3g} ({between})"
            rows.append(charts.ForestRow(c.name, ratio.ratio, (ratio.low, ratio.high), words, kind))
        elif c.name == _control(result):
            rows.append(charts.ForestRow(c.name, 1.0, None, "1", kind))
        elif c.sight is not None:
            rows.append(charts.ForestRow(c.name, c.sight, None, f"about {c.sight:.3g}", kind))
    return rows


def _front_points(result: ScenarioResult) -> list[charts.Point]:
    """Return every configuration by the geometric means over models of their percentiles and their rates."""
    means = {
        c.name: (
            statistics.geometric_mean([f.latency_s for f in c.figures if f.latency_s]),
            statistics.geometric_mean([f.rate for f in c.figures if f.rate]),
        )
        for c in result.configurations
        if c.figures and all(f.latency_s and f.rate for f in c.figures)
    }
    front = charts.front_of([(name, *mean) for name, mean in means.items()])
    return [
        charts.Point(name, latency_s, rate, name in front, "best" if name == result.best else "other")
        for name, (latency_s, rate) in means.items()
    ]


def _front_words(result: ScenarioResult) -> str:
    return "Geometric means over the models, of the percentile that each is judged by and of the rate." * bool(
        _front_points(result)
    )


def _load_sections(result: ScenarioResult) -> list[Section]:
    """Return what became of the requests: a second of them, and tables as compared and in the check."""
    tables: list[tuple[str, Sequence[ServedFigures]]] = [("The answer under load", result.answer.figures)]
    if result.check is not None:
        tables.append(("Checked in fresh processes, at the stated load", result.check.stated))
        tables.append((f"Checked at {result.check.multiple:.3g} times the stated load", result.check.greatest))
    deadlines = {m.name: m.deadline_s for m in result.models if m.deadline_s is not None}
    timeline = result.check.timeline if result.check is not None else []
    words = "Each request from when it was due to its end, in fresh processes; what is late or dropped stands out."
    drawn = [Section("A second under load", words=words, chart=charts.draw_requests(timeline, deadlines))]
    columns = ("model", "due per second", "served per second", "p50", "p90", "p99", "deadline", "late", "dropped")
    return drawn * bool(timeline) + [
        Section(title, columns=columns, rows=[_served_row(result, f) for f in figures], numbers=tuple(range(1, 9)))
        for title, figures in tables
        if figures
    ]


def _served_row(result: ScenarioResult, figures: ServedFigures) -> list[str | TableCell]:
    load = next(m for m in result.models if m.name == figures.name)
    deadline = "none"
    if load.deadline_s is not None and math.isfinite(load.deadline_s):
        deadline = f"{seconds_text(load.deadline_s)} at p{load.percentile:g} {HELD[figures.holds]}".rstrip()
    told = [figures.latencies_s.get(share) for share in ("50", "90", "99")]
    return [
        figures.name,
        number_cell(number_text(figures.offered), figures.offered),
        number_cell(number_text(figures.rate), figures.rate),
        *(number_cell("" if s is None else seconds_text(s), s) for s in told),
        deadline,
        f"{100 * figures.late:.3g} %",
        f"{figures.dropped}",
    ]


def _model_rows(answer: ConfigurationRecord) -> list[list[str]]:
    return [
        [
            model.name,
            model.target,
            ", ".join(f"{k}={v}" for device in model.devices.values() for k, v in device.properties.items())
            or "plug-in defaults",
            f"{model.requests}" if model.requests else "as many as the plug-in advises",
            model.precision,
        ]
        for model in answer.models
    ]


def _provenance_rows(result: ScenarioResult) -> list[list[str]]:
    answer = result.answer
    rows = [
        [m.name, f"{m.path} ({', '.join(m.shapes) or 'sizes of the file'}), sha256 {m.sha256[:12]}"]
        for m in result.models
    ]
    if answer.peak_bytes:
        rows.append(["memory", f"{bytes_text(answer.peak_bytes)} at most, of all processes"])
    rows.append(["machine", f"{result.hardware.get('cpu', '')}, {result.fingerprint}"])
    rows.append(["versions", ", ".join(f"{name} {version}" for name, version in result.versions.items())])
    return [*rows, ["seed", f"{result.seed}"]]
