"""The page of a search, or of a placement that was simulated, without hardware."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from pipeline.core.figures import bound_text, bytes_text, gap_text, share_text
from pipeline.core.placement import Placement
from pipeline.offline.records import SearchDocument, SimulateRecord
from pipeline.offline.scenario import LoadedScenario, Scenario, load
from pipeline.report import charts
from pipeline.report.page import graph_context, write_page
from pipeline.report.placed_graph import PlacedGraph
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
    devices = list(case.topology.names)
    return PlainPage(
        answer["graph"],
        verdict=_describe_verdict(answer),
        glance=_answer_questions(answer),
        sections=[
            Section(
                "Devices",
                columns=("device", "share of the time", "busy", "utilization", "peak memory"),
                rows=_device_rows(answer, placed),
                numbers=(1, 2, 3, 4),
            ),
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
    takes = f"Simulated: {seconds_text(answer['value_s'])}."
    if not _is_search(answer):
        return takes
    if answer["proven"]:
        return f"{takes} Proven optimal in the simulator ({bound_text(answer['bound_by'])})."
    bound_s = answer["lower_bound_s"]
    if bound_s <= 0:
        return f"{takes} No lower bound known."
    return f"{takes} Lower bound {seconds_text(bound_s)}; gap at most {gap_text(answer['gap'])}."


def _answer_questions(answer: Answer) -> list[tuple[str, str]]:
    rules = f"{answer['evaluator']} {answer['level'] or ''}".strip()
    size = f"{count_text(answer['operations'], 'operation')}, {count_text(answer['edges'], 'edge')}"
    rows = [("What", f"{size}, on {', '.join(answer['devices'])} ({answer['topology']})"), ("Execution model", rules)]
    if _is_search(answer):
        found_by = f"{answer['found_by']}, by {answer['placer']}"
        tried = f"{count_text(answer['evaluations'], 'placement')} in {seconds_text(answer['seconds'])}"
        rows.append(("Found by", f"{found_by}, after {tried}"))
    fits = "Within the memory limits of all devices."
    if answer["over_bytes"]:
        fits = f"Infeasible: {bytes_text(answer['over_bytes'])} over the memory limits."
    rows.append(("Memory", fits if answer["memory"] else "Memory limits were ignored."))
    rows.append(("Sent between devices", bytes_text(answer["cut_bytes"])))
    rows.append(
        (
            "How sure",
            "A simulator says so; the times of operations are "
            + ", ".join(sorted(set(answer["costs"].values())))
            + ".",
        )
    )
    return rows


def _device_rows(answer: Answer, placed: PlacedGraph) -> list[tuple[str, ...]]:
    """Return by device its share of the time, how long it is busy, that over the whole, and its peak memory."""
    whole_s, peak, shares = answer["value_s"] or 1.0, answer["peak_bytes"], placed.shares
    return [
        (d, share_text(shares.get(d, 0.0)), seconds_text(s), share_text(s / whole_s), bytes_text(peak[d]))
        for d, s in answer["busy_s"].items()
    ]


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
