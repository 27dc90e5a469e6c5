"""What an answer's operations would cost elsewhere: where it splits the model as it was profiled, and nowhere else."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from pipeline.core.devices import CostTable, DeviceSpec, Topology
from pipeline.placing.records import MeasuredRow
from pipeline.report.placed_graph import regret_rows
from pipeline.result.second_best import second_best_devices
from pipeline.settings.config import Settings
from tests.strategies import graph_of

GRAPH = graph_of(4, [(0, 1), (1, 2), (2, 3)])
TOPOLOGY = Topology.uniform((DeviceSpec("A", "A", "A"), DeviceSpec("B", "B", "B")), bytes_per_s=1e12, latency_s=1.0)
OP_S = np.array([[1.0, 9.0], [1.0, 5.0], [5.0, 1.0], [9.0, 2.0]])
PROFILE = CostTable(GRAPH.names, TOPOLOGY.names, OP_S, np.zeros(2), ("given", "given")), TOPOLOGY


def answer(*devices: str, **other: Any) -> MeasuredRow:
    row = {"placement": dict(zip(GRAPH.names, devices, strict=True)), "target": "HETERO:A,B", **other}
    return cast("MeasuredRow", row)


def test_the_operations_that_need_their_device_most_come_first() -> None:
    found = second_best_devices(Settings(), GRAPH, PROFILE, answer("A", "A", "B", "B"))
    costs = {row["operations"][0]: row["cost_s"] for row in found}
    # Moved alone, an end takes its own cut along; one in the middle moves the cut there is.
    expected = dict(zip(GRAPH.names, [8.0 + 1.0, 4.0, 4.0, 7.0 + 1.0], strict=True))
    assert costs == pytest.approx(expected)
    assert [row["operations"][0] for row in found][:2] == [GRAPH.names[0], GRAPH.names[3]]
    assert {row["operations"][0]: (row["device"], row["second"]) for row in found}[GRAPH.names[0]] == ("A", "B")
    assert regret_rows(found)[0] == (GRAPH.names[0], "A", "B", "9 s")


@pytest.mark.parametrize(
    "row",
    [
        answer("A", "A", "A", "A"),
        answer("A", "A", "B", "C"),
        answer("A", "A", "B", "B", rewrite="halves"),
        cast("MeasuredRow", {"placement": None, "target": "AUTO"}),
    ],
    ids=["one device", "not profiled", "rewritten", "left to the runtime"],
)
def test_of_other_answers_nothing_is_said(row: MeasuredRow) -> None:
    assert second_best_devices(Settings(), GRAPH, PROFILE, row) == []
