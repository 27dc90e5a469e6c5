"""report.html of one run, made from the records of its directory alone."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.core.errors import PlacewrightError
from pipeline.core.figures import number_text, share_text
from pipeline.core.simulation import Timeline
from pipeline.report import charts, findings
from pipeline.report.page import graph_context, is_current, render_page, write_page
from pipeline.report.placed_graph import REGRET_COLUMNS, REGRET_WORDS, regret_rows
from pipeline.report.plain_page import TableCell, number_cell
from pipeline.report.run import RunRecords, page_key
from pipeline.report.text import seconds_text, value_text
from pipeline.report.timeline import timeline_context
from pipeline.result.accuracy import accuracy_text, checks_text
from pipeline.result.result import Result
from pipeline.result.result_text import (
    alone_text,
    model_name,
    pipelines_text,
    reader_warnings,
    search_text,
    sizes_text,
    winner_text,
)
from runtime.measuring.contest.statistics import TWIN

REPORT = "report.html"
DRAWN = 8  # candidates whose latencies are drawn
LEAST_SAMPLES = 10  # latencies that a distribution is drawn of
COLUMNS = [
    *("of starts", "95 % interval", "p99", "per second", "precision", "outputs differ by"),
    *("memory", "loads in", "description"),
]
SECTIONS = (
    ("notes", "Notes", "notes"),
    ("do", "Deploy", "steps"),
    ("changes", "What it changes", "changes"),
    ("candidates", "Candidates", "candidates"),
    ("latencies", "Latencies", "distributions"),
    ("front", "Throughput", "pareto"),
    ("settings", "Settings", "settings"),
    ("graph", "Placed graph", ""),
    ("timeline", "Timeline", ""),
    ("search", "Search", "searches"),
    ("calibration", "Calibration", "calibration"),
    ("time", "Time", "stages"),
    ("provenance", "Provenance", ""),
)


def write_report(folder: Path, *, path: Path | None = None, again: bool = False) -> None:
    """Write the page of a run; one that was made of the same records is left as it is.

    path: report.html in the run directory unless given. again: write it in any case.

    Raises:
        StoreError: the folder holds no finished run, a file is damaged, or the page cannot be written.
    """
    target = path if path is not None else folder / REPORT
    if again or not is_current(target, page_key(folder, Result.load(folder).record)):
        write_page(target, page_of(RunRecords.load(folder)))


def page_of(run: RunRecords) -> str:
    """Return the page of a run."""
    result = run.result
    context: dict[str, Any] = {
        "title": model_name(result.model.path),
        "verdict": result.verdict,
        "glance": findings.answer_questions(run),
        "notes": reader_warnings(result),
        "steps": findings.deployment_steps(run),
        "best": result.best,
        "baseline": run.beside.name if run.beside is not None else "",
        **_candidates_context(run),
        **_latencies_context(run),
        **_front_context(run),
        "settings": _settings_context(run),
    }
    rows = findings.list_changes(run)
    pairs = [(c.what, c.before, c.after, c.change) if context["baseline"] else (c.what, c.after) for c in rows]
    timelines = run_timelines(run)
    context |= {"changes": pairs, **_graph_context(run), **_timeline_context(run, timelines)}
    context |= {
        **_search_context(run),
        **_calibration_context(run, timelines),
        **_stages_context(run),
        **_provenance_context(run),
    }
    context["sections"] = [(i, name) for i, name, needs in SECTIONS if not needs or context[needs]]
    return render_page("run.html.j2", context, key=page_key(run.path, result), graph=bool(context["graph"]))


def run_timelines(run: RunRecords) -> dict[str, Timeline | str]:
    """Return by "predicted" and "measured" the timelines of the answer, or why there is none."""
    measured = run.measured
    none = "Devices tell no timeline of an inference that runs as one compiled model, so there is nothing measured."
    if run.in_segments:
        none = (
            f"No timeline was measured yet; measure it with: placewright report {shlex.quote(str(run.path))} --measure"
        )
    return {"predicted": run.timeline(), "measured": none if measured is None else measured}


def _candidates_context(run: RunRecords) -> dict[str, Any]:
    rows = findings.candidate_cells(run)
    keys = (
        *("name", "latency", "range", "interval", "p99", "rate", "ratio", "precision", "accuracy"),
        *("memory", "load", "about"),
    )
    figures = {c.name: findings.candidate_figures(c, run) for c in run.result.candidates}

    def cells(row: Mapping[str, str]) -> list[str | TableCell]:
        value = figures[row["name"]]
        return [number_cell(row[k], value[k]) if k in value else row[k] for k in keys]

    there = [{"kind": "best" if r["best"] else "", "cells": cells(r)} for r in rows if r["ran"]]
    intervals = findings.forest_rows(run)
    reference = run.control.name if run.control is not None else ""
    label = f"Candidates relative to {reference}: times {run.better}"
    return {
        "candidate_columns": ["candidate", run.taken, *COLUMNS[:4], f"times {run.better}", *COLUMNS[4:]],
        "better": run.better,
        "candidates": there,
        "unmeasured": [(r["name"], r["failed"]) for r in rows if not r["ran"]],
        "forest": charts.draw_forest(intervals, label=label, reference=reference, better=run.better)
        if intervals
        else None,
        "reference": reference,
    }


def _latencies_context(run: RunRecords) -> dict[str, Any]:
    enough = {name: s for name, s in run.samples.items() if s.size >= LEAST_SAMPLES}
    order = [c.name for c in run.result.candidates if c.name in enough and c.name != TWIN]
    first = [n for n in (run.result.best, run.control.name if run.control else "") if n in order]
    chosen = list(dict.fromkeys([*first, *order]))[:DRAWN]
    known = {c.name: c for c in run.result.candidates}
    shares = ("50", "90", "99", "99.9")
    return {
        "distributions": charts.draw_distributions({n: enough[n] for n in chosen}, run.result.best) if chosen else None,
        "percentiles": [
            (n, f"{enough[n].size:,}", *(seconds_text(known[n].percentiles.get(p)) for p in shares)) for n in chosen
        ],
    }


def _front_context(run: RunRecords) -> dict[str, Any]:
    points = findings.pareto_points(run)
    front = charts.front_of(points)
    kinds = {run.result.best: "best"}
    shown = [charts.Point(n, s, r, n in front, kinds.get(n, "other")) for n, s, r in points]
    rows = [(n, seconds_text(s), number_text(r)) for n, s, r in sorted(points, key=lambda p: p[1]) if n in front]
    return {"pareto": charts.draw_pareto(shown) if len(points) > 1 else None, "front": rows}


def _settings_context(run: RunRecords) -> dict[str, Any] | None:
    names, rows = findings.settings_table(run)
    return {"names": names, "rows": [(key, *values) for key, values in rows]} if rows else None


def _graph_context(run: RunRecords) -> dict[str, Any]:
    placed = run.placed_graph()
    if placed is not None:
        told = {
            "regret_columns": REGRET_COLUMNS,
            "regret": regret_rows(run.result.regret),
            "regret_words": f"Operations that need their device most. {REGRET_WORDS} Predicted.",
        }
        return {**graph_context(placed), **told}
    why = "This run was made by a version that did not store its graph; run it again to see it."
    return {"graph": None, "legend": [], "cuts": [], "cut_caption": "", "ungraphed": why}


def _timeline_context(run: RunRecords, timelines: Mapping[str, Timeline | str]) -> dict[str, Any]:
    known = {name: t for name, t in timelines.items() if isinstance(t, Timeline)}
    reasons = " ".join(t for t in timelines.values() if isinstance(t, str))
    if not known:
        return {"timeline": None, "timeline_words": "", "untimed": reasons}
    return {**timeline_context(known, run.graph, list(run.profile[1].names) if run.profile else []), "untimed": reasons}


def _search_context(run: RunRecords) -> dict[str, Any]:
    told = [search_text(s) for s in run.result.searches]
    result = run.result
    rates = pipelines_text(result.searches, result.candidates)
    metric = result.contest.metric if result.contest else ""
    alone = alone_text(result.candidates, result.best)
    checks = checks_text(result.contest) if result.contest else ""
    others = (
        winner_text(result.candidates),
        rates,
        sizes_text(run.best),
        alone,
        accuracy_text(run.best, metric),
        checks,
    )
    return {"curve": charts.draw_curves(run.curve), "searches": [line for line in (*told, *others) if line]}


def _calibration_context(run: RunRecords, timelines: Mapping[str, Timeline | str]) -> dict[str, Any]:
    predicted = timelines["predicted"]
    value_s = predicted.value_s if isinstance(predicted, Timeline) else None
    rows = findings.predicted_and_measured(run, value_s)
    together = next((s["rounds"] for s in run.result.searches if "rounds" in s), [])  # of all placers
    rounds = [
        (str(i + 1), str(r["evaluations"]), str(r["measurements"]), share_text(r["error"]))
        for i, r in enumerate(together)
    ]
    return {
        "calibration": charts.draw_predictions(rows) if rows else None,
        "residuals": [(n, seconds_text(p), seconds_text(m), f"{100 * (m / p - 1):+.1f} %") for n, p, m in rows],
        "rounds": rounds,
    }


def _stages_context(run: RunRecords) -> dict[str, Any]:
    stages = run.result.stages
    whole = sum(s.seconds for s in stages) or 1.0
    rows = [
        (s.stage, s.name, seconds_text(s.seconds), share_text(s.seconds / whole), f"ran: {s.why}" if s.ran else s.why)
        for s in stages
    ]
    return {
        "stages": rows,
        "stage_chart": charts.draw_stages([(s.stage, s.seconds) for s in stages]) if stages else None,
    }


def _provenance_context(run: RunRecords) -> dict[str, Any]:
    result = run.result
    machine = [("fingerprint of the machine", result.fingerprint), *result.hardware.items()]
    versions = [(f"version of {name}", version) for name, version in result.versions.items()]
    devices = [(f"device {d.name}", f"{d.plugin}: {value_text(dict(d.properties))}") for d in result.devices]
    model = [("model", result.model.path), ("its SHA-256", result.model.sha256), ("seed", str(result.seed))]
    rows = [*model, *devices, *versions, *machine]
    return {
        "reproduce": _reproducing_command(run),
        "provenance": [(what, value_text(value)) for what, value in rows],
        "keys": [(s.stage, s.key) for s in result.stages],
        "configuration": list(_flat_settings(run.manifest["settings"])),
    }


def _reproducing_command(run: RunRecords) -> str:
    """Return the command that makes the run again, "" where this version does not know its settings."""
    try:
        return run.reproduce()
    except (PlacewrightError, KeyError):
        return ""


def _flat_settings(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows = []
    for key, value in settings.items():
        rows += (
            _flat_settings(value, f"{prefix}{key}.")
            if isinstance(value, Mapping)
            else [(f"{prefix}{key}", value_text(value))]
        )
    return rows
