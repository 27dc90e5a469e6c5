"""A run as other tools take it: a table of its operations, an overlay for Model Explorer, a trace for Perfetto."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

from pipeline.core.errors import StoreError
from pipeline.core.simulation import Timeline
from pipeline.progress.curve import COLOURS
from pipeline.report.placed_graph import REASONS, PlacedGraph
from pipeline.report.run import RunRecords
from pipeline.report.run_page import run_timelines
from pipeline.report.timeline import timelines_trace
from pipeline.store.store import write_text


def operations_csv(placed: PlacedGraph) -> str:
    """Return a row per operation: name, type, shape, device, seconds on each device, bytes sent, and why it is there.

    Seconds are empty where nobody knows them, and inf where a device does not support the operation.
    """
    graph, text = placed.graph, io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    seconds = [f"seconds_on_{device}" for device in placed.devices]
    writer.writerow(["operation", "type", "shape", "device", *seconds, "bytes_sent_to_others", "why"])
    sent = [0] * graph.n
    for operation, _, size in placed.cuts:
        sent[operation] += size
    why = placed.reasons(placed.transfers_s())
    for i, name in enumerate(graph.names):
        costs = ["" if math.isnan(s) else repr(s) for s in placed.op_s[i].tolist()]
        shape = "x".join(map(str, graph.shape(i)))
        kind, device = graph.type_names[int(graph.op_type[i])], placed.devices[int(placed.device[i])]
        writer.writerow([name, kind, shape, device, *costs, sent[i], REASONS[int(why[i])]])
    return text.getvalue()


def node_data(placed: PlacedGraph, graph_id: str) -> dict[str, Any]:
    """Return the placement as an overlay of Model Explorer: {graph: {"results": {operation: value and colour}}}.

    A value is the device's name. Nodes are found by their ids or by the names of their outputs.

    Source: google-ai-edge/model-explorer, node_data_builder.py: ModelNodeData, whose colours go before thresholds.
    """
    own_s = placed.own_s.tolist()
    results = {}
    for i, name in enumerate(placed.graph.names):
        device = int(placed.device[i])
        words = placed.devices[device]
        if math.isfinite(own_s[i]) and own_s[i] > 0:
            words = f"{words}, {own_s[i] * 1e6:.4g} µs"
        results[name] = {"value": words, "bgColor": COLOURS[device % len(COLOURS)], "textColor": "#ffffff"}
    return {graph_id: {"name": "placewright: device and time", "results": results}}


def node_times(placed: PlacedGraph, graph_id: str) -> dict[str, Any]:
    """Return the microseconds of every operation where it is placed as an overlay of Model Explorer."""
    own_s = zip(placed.graph.names, placed.own_s.tolist(), strict=True)
    results = {name: {"value": s * 1e6} for name, s in own_s if math.isfinite(s)}
    gradient = [{"stop": 0, "bgColor": "#ffffff"}, {"stop": 1, "bgColor": COLOURS[1]}]
    return {graph_id: {"name": "placewright: µs", "results": results, "gradient": gradient}}


def write_csv(run: RunRecords, path: Path) -> None:
    """Write the operations of a run as CSV.

    Raises:
        StoreError: the run did not keep its graph, or the file cannot be written.
    """
    write_text(path, operations_csv(_require_placed_graph(run)))


def write_node_data(run: RunRecords, path: Path) -> list[Path]:
    """Write two overlays for Model Explorer, devices at the path and times beside it; return their paths.

    Raises:
        StoreError: the run did not keep its graph, or a file cannot be written.
    """
    placed, graph_id = _require_placed_graph(run), "main_graph"
    times = path.with_name(f"{path.stem}-times{path.suffix}")
    write_text(path, json.dumps(node_data(placed, graph_id)))
    write_text(times, json.dumps(node_times(placed, graph_id)))
    return [path, times]


def write_run_trace(run: RunRecords, path: Path) -> None:
    """Write the timelines of a run as one trace for Perfetto, compressed if the name ends in .gz.

    Raises:
        StoreError: there is no timeline.
        UsageError: the file cannot be written.
    """
    from pipeline.progress.perfetto import write_events

    timelines = run_timelines(run)
    known = {name: t for name, t in timelines.items() if isinstance(t, Timeline)}
    if not known:
        reasons = " ".join(t for t in timelines.values() if isinstance(t, str))
        raise StoreError(f"{run.path} has no timeline: {reasons}", "Leave --trace out.")
    write_events(path, timelines_trace(known))


def _require_placed_graph(run: RunRecords) -> PlacedGraph:
    placed = run.placed_graph()
    if placed is None:
        raise StoreError(
            f"{run.path} does not hold its graph.", f"Write it again: placewright measure --run {run.path}"
        )
    return placed
