"""Timelines of a report: what the end waited for, measured ones read back, drawn and traced beside predicted ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.core.errors import StoreError
from pipeline.core.simulation import Timeline
from pipeline.report.run import RunRecords
from pipeline.report.run_page import page_of, run_timelines
from pipeline.report.timeline import critical_steps, draw_timelines, measured_timeline, timelines_trace
from pipeline.testing.graphs import graph_of
from tests.reports import Page, finished, write

MEASURED: dict[str, Any] = {
    "schema": "placewright.timeline/1",
    "devices": ["A", "B"],
    "steps": [
        {"name": "segment 1", "device": "A", "start_s": 0.0, "end_s": 0.001},
        {"name": "segment 2", "device": "B", "start_s": 0.0015, "end_s": 0.003},
    ],
    "transfers": [{"step": "segment 1", "target": "B", "start_s": 0.001, "end_s": 0.0015, "bytes": 4096}],
    "value_s": 0.003,
}


def timeline(
    device: list[int], spans: list[tuple[float, float]], sends: list[tuple[int, int, float, float]]
) -> Timeline:
    """Return operations 0, 1, ... by device, begin and end, and sends of (operation, target, begin, end)."""
    where = np.array(device, np.int32)
    sent = np.array([s[0] for s in sends], np.int32)
    return Timeline(
        names=tuple(str(i) for i in range(len(device))),
        devices=("A", "B"),
        device=where,
        start_s=np.array([s for s, _ in spans]),
        end_s=np.array([e for _, e in spans]),
        sent=sent,
        source=where[sent],
        target=np.array([s[1] for s in sends], np.int32),
        sent_start_s=np.array([s[2] for s in sends]),
        sent_end_s=np.array([s[3] for s in sends]),
        sent_bytes=np.full(len(sends), 8),
        value_s=max(e for _, e in spans),
    )


def test_the_critical_path_goes_over_the_transfer_that_the_end_waited_for() -> None:
    """0 on A feeds 3 on B by a transfer; 1 and 2 run meanwhile and are waited for by nobody."""
    graph = graph_of(4, [(0, 3), (1, 3), (0, 2)])
    line = timeline([0, 1, 0, 1], [(0, 2), (0, 1), (2, 3), (5, 6)], [(0, 1, 2.0, 5.0)])
    assert critical_steps(line, graph).tolist() == [True, False, False, True, True]


def test_the_critical_path_goes_over_a_device_that_was_busy_with_others() -> None:
    graph = graph_of(3, [(0, 2)])
    line = timeline([0, 0, 0], [(0, 1), (1, 4), (4, 5)], [])
    assert critical_steps(line, graph).tolist() == [True, True, True]


def test_a_link_that_sent_something_else_first_is_on_the_critical_path() -> None:
    graph = graph_of(4, [(0, 2), (1, 3)])
    line = timeline([0, 0, 1, 1], [(0, 1), (1, 1.5), (4, 4.5), (7, 8)], [(0, 1, 1.0, 4.0), (1, 1, 4.0, 7.0)])
    assert critical_steps(line, graph).tolist() == [True, False, False, True, True, True]


def test_a_timeline_of_nothing_has_no_critical_path() -> None:
    line = Timeline((), ("A",), *(np.zeros(0) for _ in range(3)), *(np.zeros(0) for _ in range(6)), value_s=0.0)
    assert critical_steps(line, None).tolist() == []


def test_a_measured_timeline_stands_beside_the_predicted_one(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run")
    write(folder / "timeline.json", MEASURED)
    run = RunRecords.load(folder)
    found = run_timelines(run)
    assert {name for name, t in found.items() if isinstance(t, Timeline)} == {"predicted", "measured"}
    assert run.measured is not None
    assert critical_steps(run.measured, None).tolist() == [True, True, True]
    text = Page(page_of(run)).text
    assert "measured: 3 ms" in text
    assert "segment 1 (4.096 kB): 1 ms to 1.5 ms" in text
    events = timelines_trace({name: t for name, t in found.items() if isinstance(t, Timeline)})["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert set(processes.values()) == {"A, predicted", "B, predicted", "A, measured", "B, measured"}
    assert len(processes) == 4


def test_a_damaged_timeline_is_said(tmp_path: Path) -> None:
    assert measured_timeline(tmp_path) is None
    write(tmp_path / "timeline.json", {**MEASURED, "transfers": [{**MEASURED["transfers"][0], "target": "C"}]})
    with pytest.raises(StoreError, match=r"timeline.json is damaged"):
        measured_timeline(tmp_path)


def test_a_run_whose_answer_was_not_profiled_says_why_there_is_no_timeline(tmp_path: Path) -> None:
    run = RunRecords.load(finished(tmp_path / "run"))
    run.placement.placement.update(dict.fromkeys(run.placement.placement, "CPU"))
    assert "CPU was measured as a whole" in Page(page_of(run)).text


def test_many_steps_without_gaps_are_drawn_as_few_bars() -> None:
    n = 5000
    spans = [(i * 1e-6, (i + 1) * 1e-6) for i in range(n)]
    line = timeline([0] * n, spans, [])
    path = critical_steps(line, None)
    assert path.all()
    svg = str(draw_timelines({"predicted": line}, {"predicted": path}, {"A": 0, "B": 1}))
    assert svg.count("<rect") == 2
    assert "5,000 operations, 0 to 4999: 0 s to 5 ms" in svg
