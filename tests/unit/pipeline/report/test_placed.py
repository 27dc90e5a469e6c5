"""A placed graph: what crosses, what moving an operation would cost, why each is there; and the same for tools."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest

from pipeline.cli.main import run_command_line
from pipeline.core.devices import CostTable, Topology
from pipeline.core.graph import Graph
from pipeline.report.exports import node_data, node_times, operations_csv
from pipeline.report.placed_graph import ALONE, BEST, CONSTANT, PAYS, SHARED, STAYS, UNKNOWN, WHOLE, PlacedGraph
from pipeline.testing.graphs import graph_of
from tests.reports import DEVICES, HOSTILE, chain_graph, finished

MB = 1_000_000


def placed(where: str, op_s: list[list[float]], graph: Graph | None = None) -> PlacedGraph:
    """Return a chain a, b, ... of which each sends 1 MB, at 1 GB/s; where: a letter per operation."""
    chain = chain_graph([chr(ord("a") + i) for i in range(len(where))], out_bytes=MB) if graph is None else graph
    costs = CostTable(chain.names, ("A", "B"), np.array(op_s), np.zeros(2), ("given", "given"))
    topology = Topology.uniform(DEVICES, bytes_per_s=1e9, latency_s=0.0)
    return PlacedGraph.of(chain, dict(zip(chain.names, where, strict=True)), (costs, topology), "")


def reasons(case: PlacedGraph) -> list[int]:
    return case.reasons(case.transfers_s()).tolist()


def test_moving_an_operation_costs_what_its_neighbours_elsewhere_send_and_take() -> None:
    found = placed("AAB", [[1.0, 1.0]] * 3).transfers_s()
    assert found == pytest.approx(np.array([[0.0, 1e-3], [1e-3, 1e-3], [0.0, 1e-3]]))


def test_an_operation_is_where_it_is_for_a_reason() -> None:
    """On B, b would be quicker, by less than its tensors take; d runs nowhere else; e would pay."""
    case = placed("AAABBB", [[1e-3, 2e-3], [1e-3, 9e-4], [1e-3, 2e-3], [np.inf, 1e-3], [1.0, 9.0], [2e-3, 1e-3]])
    assert reasons(case) == [BEST, STAYS, BEST, ALONE, PAYS, BEST]


def test_constants_and_what_is_tied_have_reasons_of_their_own() -> None:
    types = ["Parameter", "Constant", "Convolution", "Result"]
    graph = graph_of(4, [(0, 2), (1, 2), (2, 3)], types=types, colocate=[-1, -1, 0, 0])
    case = placed("AAAB", [[1.0, 1.0]] * 4, graph)
    assert reasons(case)[1:] == [CONSTANT, SHARED, SHARED]


def test_one_device_for_all_is_reason_enough() -> None:
    assert reasons(placed("AA", [[2.0, 1.0]] * 2)) == [WHOLE, WHOLE]


def test_what_was_not_profiled_is_not_known() -> None:
    graph = chain_graph(["a", "b", "c"])
    case = PlacedGraph.of(graph, {"a": "X", "b": "Y"}, None, "left")
    assert case.devices == ("X", "Y", "left")
    assert reasons(case) == [UNKNOWN] * 3
    assert case.document()["times"] == [[None] * 3] * 3
    assert case.shares == pytest.approx({"X": 1 / 3, "Y": 1 / 3, "left": 1 / 3})


def test_a_tensor_crosses_once_per_device_that_reads_it_and_constants_never_do() -> None:
    graph = graph_of(5, [(0, 1), (0, 2), (0, 3), (4, 3)], types=["Parameter", "Relu", "Relu", "Relu", "Constant"])
    case = placed("ABBBA", [[1.0, 1.0]] * 5, graph)
    assert [(operation, target) for operation, target, _ in case.cuts] == [(0, 1)]


def test_the_document_keeps_names_and_columns_together() -> None:
    case = placed("ABAB", [[1e-3, np.inf], [2e-3, 3e-3], [np.inf, 1.0], [1e-6, 1.23456789e-3]])
    found = case.document()
    row = {name: i for i, name in enumerate(found["names"])}
    times = {name: [column[i] for column in found["times"]] for name, i in row.items()}
    assert times == {"a": [1000.0, -1], "b": [2000.0, 3000.0], "c": [-1, 1e6], "d": [1.0, 1235.0]}
    assert [found["devices"][found["device"][row[n]]] for n in "abcd"] == ["A", "B", "A", "B"]
    edges = {(found["names"][s], found["names"][t]) for s, t in zip(found["source"], found["target"], strict=True)}
    assert edges == {("a", "b"), ("b", "c"), ("c", "d")}
    assert found["bytes"] == [MB] * 3
    json.dumps(found, allow_nan=False)


def test_the_table_of_operations_keeps_hostile_names_and_unknown_times() -> None:
    graph = chain_graph(HOSTILE)
    rows = list(csv.DictReader(io.StringIO(operations_csv(PlacedGraph.of(graph, {}, None, "left")))))
    assert [r["operation"] for r in rows] == list(HOSTILE)
    assert {r["seconds_on_left"] for r in rows} == {""}
    case = placed("AB", [[1e-3, np.inf], [1.0, 2e-3]])
    first, second = csv.DictReader(io.StringIO(operations_csv(case)))
    assert (first["device"], first["seconds_on_A"], first["seconds_on_B"]) == ("A", "0.001", "inf")
    assert (first["bytes_sent_to_others"], second["bytes_sent_to_others"]) == (str(MB), "0")
    assert first["shape"] == "1x64"


def test_node_data_name_every_operation_with_its_device_and_time() -> None:
    case = placed("AB", [[1e-3, 1.0], [1.0, 2e-3]])
    devices = node_data(case, "main_graph")["main_graph"]["results"]
    assert {name: r["value"] for name, r in devices.items()} == {"a": "A, 1000 µs", "b": "B, 2000 µs"}
    assert devices["a"]["bgColor"] != devices["b"]["bgColor"]
    times = node_times(case, "main_graph")["main_graph"]
    assert {name: r["value"] for name, r in times["results"].items()} == pytest.approx({"a": 1000.0, "b": 2000.0})
    assert [s["stop"] for s in times["gradient"]] == [0, 1]


def test_a_run_is_exported_as_table_overlay_and_trace(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run")
    files = {o: tmp_path / n for o, n in (("--csv", "o.csv"), ("--model-explorer", "m.json"), ("--trace", "t.json"))}
    assert run_command_line(["report", str(folder), *(str(word) for pair in files.items() for word in pair)]) == 0
    assert len(files["--csv"].read_text(encoding="utf-8").splitlines()) == 6
    overlay = json.loads((tmp_path / "m-times.json").read_text(encoding="utf-8"))
    assert set(overlay["main_graph"]["results"]) == {"in", "conv1", "conv2", "conv3", "out"}
    events = json.loads(files["--trace"].read_text(encoding="utf-8"))["traceEvents"]
    assert {e["name"] for e in events if e["ph"] == "X" and e["tid"] == 0} == {"in", "conv1", "conv2", "conv3", "out"}


def test_what_cannot_be_exported_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = finished(tmp_path / "run")
    (folder / "graph.npz").unlink()
    assert run_command_line(["report", str(folder), "--csv", str(tmp_path / "o.csv")]) == 2
    assert "does not hold its graph" in capsys.readouterr().err
    assert run_command_line(["report", str(tmp_path), "--trace", str(tmp_path / "t.json")]) == 2
    assert "Only one finished run can be exported" in capsys.readouterr().err


def test_shares_are_of_the_time_that_is_known() -> None:
    case = placed("AAB", [[1.0, 1.0], [1.0, 1.0], [5.0, 2.0]])
    assert case.shares == {"A": 0.5, "B": 0.5}
    assert math.isclose(sum(case.shares.values()), 1.0)
