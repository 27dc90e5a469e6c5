"""The page of a search, or of a placement that was simulated, without hardware."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from pipeline.core.figures import bound_text, bytes_text, gap_text, share_text, times_as_fast
from pipeline.core.placement import Placement
from pipeline.offline.records import SearchDocument, SimulateRecord
from pipeline.offline.scenario import LoadedScenario, Scenario, load
from pipeline.report import charts
from pipeline.report.page import graph_context, write_page
from pipeline.report.placed_graph import REGRET_COLUMNS, REGRET_WORDS, PlacedGraph, regret_rows
from pipeline.report.plain_page import PlainPage, Section
from pipeline.report.text import count_text, seconds_text, value_text
from pipeline.report.timeline import timeline_context

Answer = SearchDocument | SimulateRecord


def write_search_page(
    scenario: Scenario, answer: Answer, path: Path, *, command: str, curve: Sequence[Mapping[str, Any]] = ()
) -> None:
    """Write the page of an answer to a scenario.

    command: what made it. curve: rows of the learning curve.

    Raises:
        StoreError: the page cannot be written.
    """
    write_page(path, search_page(load(scenario), answer, command=command, curve=curve))


def search_page(case: LoadedScenario, answer: Answer, *, command: str, curve: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return the page of an answer, which is of the case's graph or of the model that it was merged from."""
    placement = _answer_placement(case, answer)
    document = placement.to_json(case.graph.names)
    placed = PlacedGraph.of(case.graph, document, (case.costs, case.topology), "")
    timeline = case.simulator().timeline(placement)
    devices, now = list(case.topology.names), _next_command(answer, command)
    return PlainPage(
        answer["graph"],
        verdict=_describe_verdict(answer),
        glance=_answer_questions(answer, placed, now),
        now=now,
        notes=answer["notes"] if _is_search(answer) else (),
        sections=[
            Section(
                "Devices",
                columns=("device", "share of the time", "busy", "utilization", "peak memory"),
                rows=_device_rows(answer, placed),
                numbers=(1, 2, 3, 4),
            ),
            *_regret_sections(answer),
        ],
        after=[
            Section("The search", chart=charts.draw_curves(curve)),
            Section("Provenance", columns=("", ""), rows=_provenance_rows(answer), text=command),
        ],
        more={**graph_context(placed), **timeline_context({"predicted": timeline}, case.graph, devices)},
    ).text()


def _answer_placement(case: LoadedScenario, answer: Answer) -> Placement:
    """Return the answer's placement of the case's operations; those of a model that were merged share a device."""
    names, devices = case.graph.names, {d: j for j, d in enumerate(case.topology.names)}
    device = np.array([devices[answer["placement"][name]] for name in names], np.int32)
    order = answer["priority"]
    priority = None if order is None else np.array([order[name] for name in names])
    return Placement(device, case.topology.names, priority)


def _is_search(answer: Answer) -> TypeGuard[SearchDocument]:
    return "found_by" in answer


def _describe_verdict(answer: Answer) -> str:
    takes = f"Simulated: {seconds_text(answer['value_s'])}"
    single_s, value_s = answer["single_s"], answer["value_s"]
    if single_s is not None and 0 < value_s < single_s:
        takes += f", {times_as_fast(value_s, single_s):.4g} times as fast as the best single device"
    return f"{takes}. {_describe_bound(answer)}".strip()


def _describe_bound(answer: Answer) -> str:
    """Return how far from optimal a search's answer may be; "" of a placement that was simulated alone."""
    if not _is_search(answer):
        return ""
    if answer["proven"]:
        return f"Proven optimal in the simulator ({bound_text(answer['bound_by'])})."
    bound_s = answer["lower_bound_s"]
    if bound_s <= 0:
        return "No lower bound known."
    bound = f"Lower bound {seconds_text(bound_s)} ({bound_text(answer['bound_by'])})"
    return f"{bound}; gap at most {gap_text(answer['gap'])}."


def _answer_questions(answer: Answer, placed: PlacedGraph, now: str) -> list[tuple[str, str]]:
    """Return the questions that a person has at first sight, in the order of every page, and the answers.

    now: the command to copy; "" for none.
    """
    size = f"{count_text(answer['operations'], 'operation')}, {count_text(answer['edges'], 'edge')}"
    used = ", ".join(f"{device} {share_text(share)} of the time" for device, share in placed.shares.items())
    sent = f"{bytes_text(answer['cut_bytes'])} sent between devices"
    memory = "within all memory limits" if answer["memory"] else "memory limits ignored"
    if answer["over_bytes"]:
        memory = f"infeasible: {bytes_text(answer['over_bytes'])} over the memory limits"
    rows = [
        ("The answer", f"{seconds_text(answer['value_s'])} for {size}, on {answer['topology']}."),
        ("By how much", _describe_gain(answer)),
        ("How sure", _describe_certainty(answer)),
        ("Where it runs", f"{used}; {sent}; {memory}."),
    ]
    if now:
        rows.append(
            ("What to do now", "Copy this command: it writes the placement as JSON, which placewright simulate takes.")
        )
    return rows


def _describe_gain(answer: Answer) -> str:
    single_s, value_s = answer["single_s"], answer["value_s"]
    if single_s is None:
        return "No single device can run all operations."
    if value_s >= single_s:
        return f"No gain over the best single device, {answer['single_device']} ({seconds_text(single_s)})."
    return (
        f"{seconds_text(single_s)} on the best single device, {answer['single_device']}, becomes "
        f"{seconds_text(value_s)}: {times_as_fast(value_s, single_s):.4g} times as fast."
    )


def _describe_certainty(answer: Answer) -> str:
    rules = f"{answer['evaluator']} {answer['level'] or ''}".strip()
    origins = ", ".join(sorted(set(answer["costs"].values())))
    text = f"A prediction of the simulator ({rules}); operation times are {origins}, no device was measured."
    if not _is_search(answer):
        return text
    tried = f"{count_text(answer['evaluations'], 'placement')} in {seconds_text(answer['seconds'])}"
    return f"{_describe_bound(answer)} Found by {answer['found_by']}, after {tried}. {text}"


def _next_command(answer: Answer, command: str) -> str:
    """Return the command that writes the answer of a search to a file; "" of what was simulated."""
    if not _is_search(answer) or "--out" in shlex.split(command):
        return ""
    return f"{command} --out answer.json"


def _device_rows(answer: Answer, placed: PlacedGraph) -> list[tuple[str, ...]]:
    """Return by device its share of the time, how long it is busy, that over the whole, and its peak memory."""
    whole_s, peak, shares = answer["value_s"] or 1.0, answer["peak_bytes"], placed.shares
    return [
        (d, share_text(shares.get(d, 0.0)), seconds_text(s), share_text(s / whole_s), bytes_text(peak[d]))
        for d, s in answer["busy_s"].items()
    ]


def _regret_sections(answer: Answer) -> list[Section]:
    """Return what the second-best devices of the operations cost that need their own most."""
    rows = regret_rows(answer["regret"]) if _is_search(answer) else []
    if not rows:
        return []
    title = "Operations that need their device most"
    return [Section(title, REGRET_WORDS, columns=REGRET_COLUMNS, rows=rows, numbers=(3,))]


def _provenance_rows(answer: Answer) -> list[tuple[str, str]]:
    keys = (
        "graph",
        "topology",
        "evaluator",
        "level",
        "memory",
        "ties",
        "mode",
        "placer",
        "seed",
        "bound_by",
        "gap",
        "proven",
    )
    known: Mapping[str, Any] = {**answer}
    written = {"gap": gap_text}
    return [(key, written.get(key, value_text)(known[key])) for key in keys if key in known]
