"""What a run found, in the words and tables of its page: the answer, what it changes, and what to do with it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipeline.core.errors import UsageError
from pipeline.core.figures import bytes_text, number_text, share_text
from pipeline.deploy.emit import TARGETS, library_of
from pipeline.deploy.rendering import python_literal
from pipeline.report.charts import ForestRow, front_of
from pipeline.report.run import TAKEN, RunRecords
from pipeline.report.text import change_text, count_text, interval_text, seconds_text, value_text
from pipeline.result.accuracy import accuracy_cell
from pipeline.result.deployment import Deployment
from pipeline.result.records import CandidateRecord, PlacementRecord
from pipeline.result.result_text import disturbed_text, failure_text, format_speedup, is_first_sight, is_untried
from pipeline.result.verdict import gain_over_default, possible_gain
from runtime.measuring.contest.statistics import TWIN

SIDE_BY_SIDE = 5  # candidates whose settings are compared

Figure = Callable[[CandidateRecord], float | None]
FIGURES: tuple[tuple[str, Figure, Callable[[float | None], str]], ...] = (
    (TAKEN, lambda c: c.latency_s.median if c.latency_s else None, seconds_text),
    ("latency, p90", lambda c: c.percentiles.get("90"), seconds_text),
    ("latency, p99", lambda c: c.percentiles.get("99"), seconds_text),
    ("inferences per second", lambda c: c.rate, number_text),
    ("memory of the process", lambda c: c.peak_bytes, bytes_text),
    ("time to load", lambda c: c.compile_s, seconds_text),
    ("processor time of an inference", lambda c: c.cpu_s, seconds_text),
    ("output difference", lambda c: c.difference, lambda v: "" if v is None else f"{100 * v:.2g} %"),
)
"""What is known of a candidate beside its ratios: in words, the figure, and how it is written."""


@dataclass(frozen=True, slots=True)
class Change:
    """A row of what the answer changes: a figure now, of the baseline, and the difference in words."""

    what: str
    before: str
    after: str
    change: str


@dataclass(frozen=True, slots=True)
class Instruction:
    """Something to do: what for, and the text to copy."""

    what: str
    text: str


def answer_questions(run: RunRecords) -> list[tuple[str, str]]:
    """Return questions that a person has at first sight, and the answers."""
    best = run.best
    return [
        ("The answer", f"{best.name}: {best.about}" if best.about else best.name),
        ("By how much", _describe_gain(run)),
        ("How sure", describe_certainty(run)),
        ("Where it runs", _describe_shares(run)),
        ("What to do now", _describe_advice(run)),
    ]


def _describe_gain(run: RunRecords) -> str:
    """Return by how much the answer is better than the best baseline, and than the plug-in defaults."""
    gain, control, contest = run.result.speedup_over_best_single, run.control, run.result.contest
    if control is None or control.name == run.best.name:
        most = 0.0 if contest is None else possible_gain(contest, {c.name: c for c in run.result.candidates})
        bound = f"; a searched candidate is at most {100 * most:.1f} % better" if 0 < most < 1 else ""
        gained = None if contest is None else gain_over_default(contest)
        if gained is not None and contest is not None:
            return (
                f"{gained.ratio:.3f} times {run.better} as {contest.default}, the plug-in defaults "
                f"({gained.low:.3f} to {gained.high:.3f}): the answer is {run.best.name}, the best baseline{bound}."
            )
        return f"No significant gain: the answer is {run.best.name}, the best baseline{bound}."
    words = f"{gain.ratio:.3f} times {run.better} as {control.name}"
    if contest is None:
        return f"{words}, as predicted."
    if gain.low == gain.high:
        return f"No significant gain over {control.name}."
    words = f"{words}, the best baseline ({gain.low:.3f} to {gain.high:.3f})"
    over = contest.over_default.get(run.best.name)
    if over is None or contest.default in ("", control.name):
        default = ", which has plug-in defaults" * (control.name == contest.default)
        return f"{words}{default}."
    return f"{words}; {over.ratio:.3f} times {run.better} as the plug-in defaults ({over.low:.3f} to {over.high:.3f})."


def describe_certainty(run: RunRecords) -> str:
    """Return in a sentence or two how far the answer can be relied on."""
    contest = run.result.contest
    if contest is None:
        return "This is a prediction of a simulator; no device was measured."
    level = f"{100 * contest.level:g} %"
    compared_with = [n for n in contest.ratios if n not in (TWIN, contest.control)]
    if not contest.ratios:
        return "Not compared: the budget ended before the first comparison."
    starts = max(r.starts for r in contest.ratios.values())
    text = (
        f"All intervals hold simultaneously ({level} confidence): {count_text(len(compared_with), 'candidate')}, each "
        f"started from scratch up to {count_text(starts, 'time')} beside {contest.control}."
    )
    untried = sum(map(is_untried, run.result.candidates))
    if untried:
        text += f" {count_text(untried, 'other')} not tried within the budget."
    if contest.disturbed:
        return f"{text} Other processes disturbed the machine: two runs of the baseline differ."
    if contest.noise is not None:
        text += f" Noise: two runs of the baseline differ by at most {100 * contest.noise:.1f} %."
    return text


def _describe_shares(run: RunRecords) -> str:
    """Return which share of the work each device has."""
    best = run.best
    if best.shares:
        parts = f", in {best.subgraphs} sub-graphs" if (best.subgraphs or 1) > 1 else ""
        return ", ".join(f"{device} {share_text(share)} of the time" for device, share in best.shares.items()) + parts
    return f"All on {' and '.join(best.devices_used)}." if best.devices_used else "The runtime decides."


def _describe_advice(run: RunRecords) -> str:
    if run.control is not None and run.best.name == run.control.name:
        contest, candidates = run.result.contest, run.result.candidates
        plain = run.best.kind in ("default", "")
        leave = f"Leave the model on {run.best.name}" if plain else f"Run it on {run.best.name} by this code"
        if (contest is not None and contest.disturbed) or disturbed_text(run.result):
            return f"{leave}, and measure again while the machine is quiet."
        if (contest is not None and not contest.ratios) or any(map(is_untried, candidates)):
            return f"{leave}; a larger --budget compares the rest."
        return f"{leave}: no compared candidate is significantly faster."
    return "Copy this code, or write a program with `placewright emit`."


def list_changes(run: RunRecords) -> list[Change]:
    """Return what the answer changes beside a baseline (`RunRecords.beside`); only figures that are known."""
    best, control = run.best, run.beside
    rows = []
    for what, figure, write in FIGURES:
        new, old = figure(best), None if control is None else figure(control)
        if new is not None:
            name = run.taken if what == TAKEN else what
            rows.append(Change(name, write(old), write(new), change_text(new, old)))
    if best.precision:
        rows.append(Change("computed in", control.precision if control else "", best.precision, ""))
    return rows


def deployment_steps(run: RunRecords) -> list[Instruction]:
    """Return what to do with the answer, as text to copy."""
    folder = shlex.quote(str(run.path))
    instructions = [Instruction("Load it in your own program", program_text(run))]
    instructions.append(
        Instruction("Write a stand-alone program with the model", f"placewright emit {folder} --to python")
    )
    if (run.path / "placed.xml").is_file():
        deployment = Deployment.load(run.path)
        for target in TARGETS:
            if target in ("benchmark-app", "ovms") and _fits_plain_tool(deployment, target):
                instructions.append(Instruction(f"Files for {target}", f"placewright emit {folder} --to {target}"))
    instructions.append(Instruction("Show where every operation runs", f"placewright where --run {folder}"))
    instructions.append(Instruction("Fail a build on a slow-down", f"placewright compare {folder} LATER_RUN"))
    return instructions


def _fits_plain_tool(deployment: Deployment, target: str) -> bool:
    """Return whether a tool that knows plug-ins alone can run the answer."""
    try:
        deployment.plain(target)
    except UsageError:
        return False
    return True


def program_text(run: RunRecords) -> str:
    """Return lines that run the answer: of plain OpenVINO, as long as that can run it."""
    if run.in_segments or run.placement.runtime == "onnxruntime":
        return f"import pipeline\n\nmodel = pipeline.load({str(run.path)!r})"
    record, model = run.placement, str(run.path / "placed.xml")
    lines = ["import openvino as ov", "", "core = ov.Core()"]
    for device in record.devices.values():
        if device.openvino_name != device.plugin:
            library = library_of(device.plugin)
            lines.append(f"core.register_plugin({library!r}, {device.openvino_name!r})")
        if device.properties:
            lines.append(f"core.set_property({device.openvino_name!r}, {python_literal(dict(device.properties))})")
    lines.append(f"model = core.read_model({model!r})")
    if _record_is_split(record):
        path = str(run.path / "placement.json")
        lines = ["import json", "import pathlib", *lines]
        lines.append(f"document = json.loads(pathlib.Path({path!r}).read_text())")
        lines.append("for op in model.get_ops():  # OpenVINO forgets affinities when it saves a model")
        lines.append('    device = document["devices"][document["placement"][op.get_friendly_name()]]')
        lines.append('    op.get_rt_info()["affinity"] = device["openvino_name"]')
    lines.append(f"compiled = core.compile_model(model, {record.target!r}, {python_literal(dict(record.properties))})")
    return "\n".join(lines)


def _record_is_split(record: PlacementRecord) -> bool:
    return bool(record.placement) and record.target.startswith("HETERO")


def forest_rows(run: RunRecords) -> list[ForestRow]:
    """Return the rows of the forest plot, the fastest first: times as fast as the best baseline."""
    contest = run.result.contest
    if contest is None:
        return []
    rows = []
    for c in run.result.candidates:
        if c.times_as_fast is None:
            continue
        ratio = contest.ratios.get(c.name)
        kind = "best" if c.name == run.result.best else "baseline" if c.baseline else "other"
        ends = None if ratio is None or c.name == contest.control else (ratio.low, ratio.high)
        rows.append(
            ForestRow(c.name, ratio.ratio if ratio else c.times_as_fast, ends, format_speedup(c, contest), kind)
        )
    return rows


def candidate_cells(run: RunRecords) -> list[dict[str, str]]:
    """Return the cells of every candidate, those that never ran last."""
    rows = []
    points = pareto_points(run)
    front = front_of(points)
    for c in run.result.candidates:
        middle = c.latency_s.median if c.latency_s is not None else None
        sight = is_first_sight(c, run.result.contest)
        ends = (c.latency_s.fastest, c.latency_s.slowest) if c.latency_s is not None and not sight else (None, None)
        about = "about " if run.result.contest is not None and middle is not None and ends[0] is None else ""
        why = failure_text(c.failed.kind, c.failed.message) if c.failed else c.left
        row = {
            "name": c.name,
            "best": "yes" if c.name == run.result.best else "",
            "kind": c.kind or ("baseline" if c.baseline else "split"),
            "about": _describe_candidate(c),
            "ran": "" if middle is None else "yes",
            "latency": "" if sight else about + seconds_text(middle),
            "range": interval_text(*ends, seconds_text),
            "interval": interval_text(c.latency_s.low, c.latency_s.high, seconds_text) if c.latency_s else "",
            "p99": "" if sight else seconds_text(c.percentiles.get("99")),
            "rate": "" if sight else number_text(c.rate),
            "ratio": format_speedup(c, run.result.contest),
            "memory": bytes_text(c.peak_bytes),
            "load": seconds_text(c.compile_s),
            "precision": c.precision,
            "accuracy": accuracy_cell(c),
            "front": "yes" if c.name in front else "",
            "failed": why if middle is None else "",
        }
        rows.append(row)
    return rows


def _describe_candidate(c: CandidateRecord) -> str:
    if c.name == TWIN:
        return "the baseline again, to measure noise"
    return f"duplicate of {c.same_as}" if c.same_as else c.limit or c.about


def candidate_figures(c: CandidateRecord, run: RunRecords) -> dict[str, float | None]:
    """Return what the cells of `candidate_cells` that hold numbers are sorted by; None where a candidate has none."""
    contest = run.result.contest
    ratio = contest.ratios.get(c.name) if contest is not None else None
    sight = is_first_sight(c, contest)
    return {
        "latency": c.latency_s.median if c.latency_s is not None and not sight else None,
        "range": c.latency_s.fastest if c.latency_s is not None and not sight else None,
        "interval": c.latency_s.low if c.latency_s is not None else None,
        "p99": None if sight else c.percentiles.get("99"),
        "rate": None if sight else c.rate,
        "ratio": ratio.ratio if ratio is not None else c.times_as_fast,
        "memory": c.peak_bytes,
        "load": c.compile_s,
        "accuracy": c.difference,
    }


def pareto_points(run: RunRecords) -> list[tuple[str, float, float]]:
    """Return name, latency and rate of what was measured; the twin of the baseline stands for noise and is left out."""
    return [
        (c.name, c.percentiles.get("50", c.latency_s.median) if run.counts_rate else c.latency_s.median, c.rate)
        for c in run.result.candidates
        if c.latency_s is not None and c.rate and c.name != TWIN and not is_first_sight(c, run.result.contest)
    ]


def settings_table(run: RunRecords) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Return the names of the most telling candidates, and rows of a setting and its value for each."""
    chosen = _notable_candidates(run)
    columns: list[dict[str, str]] = []
    for c in chosen:
        column = {"device string": c.target, "requests in flight": str(c.requests), "computed in": c.precision}
        column["inferences at once"] = str(c.batch)
        for device, properties in c.settings.items():
            column |= {f"{device}: {key}": value_text(value) for key, value in properties.items()}
        columns.append(column)
    keys = dict.fromkeys(key for column in columns for key in column)
    rows = [(key, [column.get(key, "") for column in columns]) for key in keys]
    return [c.name for c in chosen], [row for row in rows if any(row[1])]


def _notable_candidates(run: RunRecords) -> Sequence[CandidateRecord]:
    """Return the answer, the baselines, and the fastest others."""
    contest = run.result.contest
    known = {c.name: c for c in run.result.candidates if c.latency_s is not None and c.name != TWIN}
    names = [run.result.best]
    if contest is not None:
        names += [contest.control, contest.default, contest.hint]
    names += list(known)
    return [known[n] for n in dict.fromkeys(names) if n in known][:SIDE_BY_SIDE]


def predicted_and_measured(run: RunRecords, predicted_s: float | None) -> list[tuple[str, float, float]]:
    """Return name, predicted and measured seconds of all that has both; predicted_s: of the answer."""
    rows = []
    measured = {c.name: c.latency_s.median for c in run.result.candidates if c.latency_s is not None}
    if run.profile is not None and run.result.contest is not None:
        costs, topology = run.profile
        total = costs.op_s.sum(axis=0) + costs.launch_s
        rows += [
            (f"{d}, by the profile", float(total[j]), measured[d])
            for j, d in enumerate(topology.names)
            if d in measured
        ]
    for search in run.result.searches:
        predicted, took = search.get("predicted_s"), search.get("measured_s")
        if predicted is not None and took is not None:
            rows.append((f"{search['placer']}'s best", predicted, took))
    if predicted_s is not None and run.result.contest is not None and run.best.name in measured:
        rows.append((run.best.name, predicted_s, measured[run.best.name]))
    unique = {name: (name, p, m) for name, p, m in rows if p > 0 and m > 0 and p != float("inf")}
    return list(unique.values())
