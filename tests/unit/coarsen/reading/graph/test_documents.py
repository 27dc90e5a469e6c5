"""Graphs as JSON: our own documents, and the format of Tarnawski et al."""

from __future__ import annotations

import copy
import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from coarsen.reading.graph.document import read_document, to_document
from coarsen.reading.graph.graph_file import read_graph
from coarsen.reading.graph.msr import LINK_BYTES_PER_S, read_msr
from coarsen.reading.model.read import save_model
from pipeline.core.errors import CyclicGraphError, ModelError, UsageError
from pipeline.core.graph import Graph, Grouping, contract
from pipeline.core.workload import Tags, Workload
from tests import ROOT
from tests.models import two_towers
from tests.published import MSR
from tests.strategies import graphs

FULL: dict[str, Any] = {
    "format": "placewright.graph/1",
    "link_bytes_per_s": 5e9,
    "memory_bytes": 1000,
    "operations": [
        {"name": "x", "type": "Parameter", "output_bytes": 8, "time_s": 0, "layer": 0},
        {
            **{"name": "w", "type": "MatMul", "flops": 6.5, "weight_bytes": 40, "output_bytes": 16, "shape": [2, -1]},
            **{"time_s": {"*": 0.25, "gpu": 0.5}, "colocate": "state", "layer": 1, "step": 3},
        },
        {"name": "y", "time_s": {"*": None, "gpu": 0.125}, "colocate": "state"},
    ],
    "edges": [{"from": "w", "to": "y", "bytes": 12}, {"from": "x", "to": "y"}, {"from": "x", "to": "w", "bytes": 0}],
}
FULL["operations"][0]["time_s"] = {"*": 0, "gpu": 0.0625}


def changed(document: dict[str, Any], *path: Any, to: Any) -> dict[str, Any]:
    """Return a copy of a document with one value replaced."""
    found = copy.deepcopy(document)
    at: Any = found
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = to
    return found


def same(a: Graph, b: Graph) -> bool:
    """Return whether two graphs are equal but for the numbering of types and ties, and kernels."""
    arrays = ("edges", "flops", "weight_bytes", "out_bytes", "edge_bytes", "shape_ptr", "shape_dim")
    types = [[g.type_names[t] for t in g.op_type] for g in (a, b)]
    ties = [np.where(g.colocate < 0, -np.arange(1, g.n + 1), g.colocate) for g in (a, b)]
    alike = [np.unique(t, return_inverse=True)[1] for t in ties]
    together = [x[:, None] == x for x in alike]
    return (
        a.names == b.names
        and types[0] == types[1]
        and np.array_equal(together[0], together[1])
        and all(np.array_equal(getattr(a, name), getattr(b, name)) for name in arrays)
    )


def test_every_field_of_a_document_arrives() -> None:
    found = read_document(FULL, where="it", source="abc")
    graph = found.graph
    assert graph.names == ("x", "w", "y")
    assert [graph.type_names[t] for t in graph.op_type] == ["Parameter", "MatMul", "Operation"]
    assert graph.edges.tolist() == [[0, 0, 1], [1, 2, 2]]
    assert graph.edge_bytes.tolist() == [0, 8, 12]
    assert graph.flops.tolist() == [0, 6.5, 0]
    assert graph.weight_bytes.tolist() == [0, 40, 0]
    assert graph.out_bytes.tolist() == [8, 16, 0]
    assert [graph.shape(i) for i in range(3)] == [(), (2, -1), ()]
    assert graph.colocate.tolist() == [-1, 0, 0]
    assert graph.source == "abc"
    assert found.tags.layer.tolist() == [0, 1, -1]
    assert found.tags.step.tolist() == [-1, 3, -1]
    assert {k: t.tolist() for k, t in found.times.items()} == {"*": [0, 0.25, np.inf], "gpu": [0.0625, 0.5, 0.125]}
    assert (found.link_bytes_per_s, found.memory_bytes) == (5e9, 1000)


def test_the_least_document_has_names_and_edges() -> None:
    found = read_document(
        {"operations": [{"name": "a"}, {"name": "b"}], "edges": [{"from": "a", "to": "b"}]}, where="it"
    )
    assert found.graph.m == 1
    assert not found.times
    assert found.graph.edge_bytes.tolist() == [0]


def test_an_output_without_size_is_as_large_as_the_most_that_is_read_of_it() -> None:
    edges = [{"from": "a", "to": "b", "bytes": 5}, {"from": "a", "to": "c", "bytes": 7}, {"from": "a", "to": "d"}]
    document = {"operations": [{"name": n} for n in "abcd"], "edges": edges}
    found = read_document(document, where="it").graph
    assert found.out_bytes.tolist() == [7, 0, 0, 0]
    assert found.edge_bytes.tolist() == [5, 7, 7]


def test_edges_of_one_output_carry_one_tensor_whatever_their_bytes() -> None:
    edges = [
        {"from": "a", "to": "b", "bytes": 60, "output": 1},
        {"from": "a", "to": "c", "bytes": 50, "output": 1},
        {"from": "a", "to": "b", "bytes": 7, "output": 3},
    ]
    graph = read_document({"operations": [{"name": n} for n in "abc"], "edges": edges}, where="it").graph
    assert graph.edges.T.tolist() == [[0, 1], [0, 2]]
    assert graph.edge_bytes.tolist() == [67, 50]
    assert graph.out_bytes.tolist() == [67, 0, 0]
    assert list(graph.read_rows()) == [(0, 1, 0, 60), (0, 1, 1, 7), (0, 2, 0, 50)]
    assert graph.reads.port.tolist() == [1, 3, 1]
    both = contract(graph, Grouping(np.array([0, 1, 1])))
    assert list(both.read_rows()) == [(0, 1, 0, 60), (0, 1, 1, 7)]


def test_a_number_as_time_holds_for_every_device() -> None:
    document = {"operations": [{"name": "a", "time_s": 2}], "edges": []}
    assert read_document(document, where="it").times["*"].tolist() == [2]


def test_the_star_of_an_operation_holds_for_the_devices_it_does_not_name() -> None:
    rows = [{"name": "a", "time_s": 0}, {"name": "b", "time_s": {"cpu": 1, "gpu": 2}}]
    found = read_document({"operations": rows, "edges": []}, where="it").times
    assert {k: t.tolist() for k, t in found.items()} == {"cpu": [0, 1], "gpu": [0, 2]}


def test_the_example_of_the_documentation_is_read() -> None:
    page = (ROOT / "docs" / "graph.md").read_text(encoding="utf-8")
    found = read_document(json.loads(page.split("```json")[1].split("```")[0]), where="it")
    assert found.graph.n == 3
    assert set(found.times) == {"cpu", "gpu"}


@given(graphs(min_n=1))
def test_a_graph_written_as_json_text_is_read_back_the_same(graph: Graph) -> None:
    rng = np.random.default_rng(graph.n)
    graph = dataclasses.replace(graph, colocate=rng.integers(-1, graph.n, graph.n))
    times = {"*": rng.random(graph.n), "npu": np.where(rng.random(graph.n) < 0.5, np.inf, 0.1)}
    tags = Tags(rng.integers(-1, 4, graph.n), rng.integers(-1, 2, graph.n))
    workload = Workload(graph, tags, times, 3e9, 12345)
    found = read_document(json.loads(json.dumps(to_document(workload), allow_nan=False)), where="it")
    assert same(found.graph, graph)
    assert found.graph.reads.same_as(graph.reads)
    assert found.tags.layer.tolist() == tags.layer.tolist()
    assert found.tags.step.tolist() == tags.step.tolist()
    assert {k: t.tolist() for k, t in found.times.items()} == {k: t.tolist() for k, t in times.items()}
    assert (found.link_bytes_per_s, found.memory_bytes) == (3e9, 12345)


@pytest.mark.parametrize(
    ("document", "cause"),
    [
        (changed(FULL, "edgs", to=[]), "unknown key 'edgs' .did you mean 'edges'"),
        (changed(FULL, "operations", 1, "flop", to=1), "operation w has an unknown key 'flop' .did you mean 'flops'"),
        (changed(FULL, "edges", 0, "size", to=1), "edge w -> y has an unknown key 'size'"),
        (changed(FULL, "operations", to={}), "operations is {}, but must be a list"),
        (changed(FULL, "operations", to=[]), r"operations is \[\], but must be a list of at least 1"),
        (changed(FULL, "operations", 1, "name", to="x"), "two operations are called 'x'"),
        (changed(FULL, "operations", 1, "name", to=3), "name of operation 2 is 3, but must be text"),
        (changed(FULL, "operations", 1, "flops", to=-1), "flops of operation w is -1"),
        (changed(FULL, "operations", 1, "flops", to=float("inf")), "flops of operation w is inf"),
        (changed(FULL, "operations", 1, "weight_bytes", to=1e30), "weight_bytes of operation w is 1e[+]30"),
        (changed(FULL, "operations", 1, "weight_bytes", to="1"), "weight_bytes of operation w is '1'"),
        (changed(FULL, "operations", 1, "output_bytes", to=True), "output_bytes of operation w is True"),
        (changed(FULL, "operations", 1, "time_s", "*", to=-0.5), "'[*]' of time_s of operation w is -0.5"),
        (changed(FULL, "operations", 1, "time_s", "*", to=float("nan")), "'[*]' of time_s of operation w is nan"),
        (changed(FULL, "operations", 1, "time_s", to={"cpu": 1}), "time_s on 'gpu' is missing for w"),
        (
            {"operations": [{"name": "a", "time_s": 1}, {"name": "b"}], "edges": []},
            "time_s is missing for b",
        ),
        (
            changed(FULL, "operations", 1, "shape", to=[1.5]),
            "shape 1 of operation w is 1.5",
        ),
        (
            changed(FULL, "operations", 1, "colocate", to=[1]),
            r"colocate of operation w is \[1\], but must be text or",
        ),
        (changed(FULL, "operations", 1, "layer", to="1"), "layer of operation w is '1'"),
        (changed(FULL, "edges", 0, "from", to="q"), "the edge 'q' -> 'y' names 'q', which is not an operation"),
        (changed(FULL, "edges", 0, "from", to=["q"]), r"from of edge 1 is \['q'\], but must be text"),
        (changed(FULL, "edges", 0, "bytes", to=-3), "bytes of edge w -> y is -3"),
        (changed(FULL, "edges", 1, to={"from": "w", "to": "y"}), "the edge w -> y is listed twice"),
        (
            changed(FULL, "edges", to=[{"from": "w", "to": "y", "output": 1}] * 2),
            "the edge w -> y of output 1 is listed twice",
        ),
        (
            changed(FULL, "edges", to=[{"from": "w", "to": "y", "output": 1}, {"from": "w", "to": "x"}]),
            "some edges of 'w' say which output they carry, and some do not",
        ),
        (changed(FULL, "edges", 0, "output", to=-1), "output of edge w -> y is -1"),
        (changed(FULL, "memory_bytes", to="1GB"), "memory_bytes is '1GB'"),
    ],
)
def test_a_wrong_document_names_what_is_wrong(document: dict[str, Any], cause: str) -> None:
    with pytest.raises(ModelError, match=cause):
        read_document(document, where="it")


def test_all_faults_of_a_document_are_named_at_once() -> None:
    document = changed(changed(FULL, "operations", 1, "flops", to=-1), "operations", 2, "layer", to=0.5)
    with pytest.raises(ModelError, match=r"flops of operation w.*layer of operation y"):
        read_document(document, where="it")


def test_a_cycle_is_named() -> None:
    names = "abcd"
    ring = [{"from": a, "to": b} for a, b in ("ab", "bc", "cb", "cd")]
    with pytest.raises(CyclicGraphError, match=r"has a cycle: (b -> c -> b|c -> b -> c)\."):
        read_document({"operations": [{"name": n} for n in names], "edges": ring}, where="it")
    with pytest.raises(CyclicGraphError, match=r"has a cycle: a -> a\."):
        read_document({"operations": [{"name": "a"}], "edges": [{"from": "a", "to": "a"}]}, where="it")


NODE = {"supportedOnFpga": True, "cpuLatency": 4.0, "fpgaLatency": 0.5, "isBackwardNode": False}
OFFICIAL: dict[str, Any] = {
    "maxSizePerFPGA": 629145600.0,
    "maxFPGAs": 4,
    "maxCPUs": 8,
    "nodes": [
        {**NODE, "id": 7, "name": "a", "colorClass": 3, "size": 1024.0, "layerId": 2},
        {**NODE, "id": 2, "name": "b", "colorClass": 3, "supportedOnFpga": 0, "isBackwardNode": 1},
        {**NODE, "id": 40, "name": "c", "supportedOnFpga": 1, "cpuLatency": 0, "fpgaLatency": 0},
    ],
    "edges": [
        {"sourceId": 7, "destId": 40, "cost": 0.030517578125, "size": 1.0},
        {"sourceId": 7, "destId": 2, "cost": 0.030517578125},
        {"sourceId": 2, "destId": 40},
    ],
}


def test_every_field_of_the_official_format_arrives() -> None:
    found = read_msr(OFFICIAL, where="it")
    graph = found.graph
    assert graph.names == ("a", "b", "c")
    assert graph.edges.tolist() == [[0, 0, 1], [1, 2, 2]]
    assert graph.edge_bytes.tolist() == [65536, 65536, 0]
    assert graph.out_bytes.tolist() == [65536, 0, 0]
    assert graph.weight_bytes.tolist() == [1024, 0, 0]
    assert graph.colocate.tolist() == [0, 0, -1]
    assert [graph.type_names[t] for t in graph.op_type] == ["Forward", "Backward", "Forward"]
    assert found.tags.layer.tolist() == [2, -1, -1]
    assert found.times["cpu"].tolist() == [0.004, 0.004, 0]
    assert found.times["*"].tolist() == [0.0005, np.inf, 0]
    assert (found.link_bytes_per_s, found.memory_bytes) == (2.0**31, 629145600)


def test_a_cost_is_the_time_its_bytes_take_over_the_link_of_the_format() -> None:
    found = read_msr(OFFICIAL, where="it")
    assert found.graph.edge_bytes[0] / found.link_bytes_per_s == 0.030517578125e-3
    scaled = read_msr(OFFICIAL, where="it", cost_scale=1000.0)
    assert scaled.graph.edge_bytes[0] / LINK_BYTES_PER_S == pytest.approx(0.030517578125, rel=1e-12)


def test_nodes_without_names_or_with_equal_ones_go_by_their_ids() -> None:
    equal = changed(OFFICIAL, "nodes", 1, "name", to="a")
    assert read_msr(equal, where="it").graph.names == ("a#7", "a#2", "c#40")
    nameless = copy.deepcopy(OFFICIAL)
    del nameless["nodes"][2]["name"]
    assert read_msr(nameless, where="it").graph.names == ("a#7", "b#2", "#40")


def test_an_edge_told_twice_counts_once() -> None:
    twice = changed(OFFICIAL, "edges", to=[*OFFICIAL["edges"], OFFICIAL["edges"][0]])
    assert read_msr(twice, where="it").graph.m == 3


def test_what_a_node_may_leave_out_has_the_formats_defaults() -> None:
    bare = {"id": 1, "cpuLatency": 1, "fpgaLatency": 2}
    found = read_msr({"nodes": [bare], "edges": []}, where="it")
    assert found.times["*"].tolist() == [0.002]
    assert found.graph.weight_bytes.tolist() == [0]
    assert found.memory_bytes == 0


@pytest.mark.parametrize(
    ("document", "cause"),
    [
        (changed(OFFICIAL, "nodes", 1, "id", to=7), "two nodes have the id 7"),
        (changed(OFFICIAL, "nodes", 1, "id", to="2"), "id of node b is '2', but must be a whole number"),
        (changed(OFFICIAL, "nodes", 1, "cpuLatency", to=-1), "cpuLatency of node b is -1"),
        (changed(OFFICIAL, "nodes", 1, "fpgaLatency", to=float("nan")), "fpgaLatency of node b is nan"),
        (changed(OFFICIAL, "nodes", 1, "fpgaLatency", to=None), "fpgaLatency of node b is None"),
        (changed(OFFICIAL, "nodes", 0, "size", to=-4), "size of node a is -4"),
        (
            changed(OFFICIAL, "nodes", 0, "supportedOnFpga", to=2),
            "supportedOnFpga of node a is 2, but must",
        ),
        (changed(OFFICIAL, "nodes", 0, "supportedOnFpga", to=[]), "supportedOnFpga of node a is"),
        (changed(OFFICIAL, "nodes", 0, "isBackwardNode", to="no"), "isBackwardNode of node a is 'no'"),
        (changed(OFFICIAL, "nodes", 0, "colorClass", to="red"), "colorClass of node a is 'red'"),
        (changed(OFFICIAL, "edges", 1, "cost", to=0.0306), "edges that leave a cost 0.0305176 and 0.0306"),
        (changed(OFFICIAL, "edges", 1, "cost", to=-1), "cost of edge 7 -> 2 is -1"),
        (changed(OFFICIAL, "edges", 1, "cost", to=1e15), "is not plausible"),
        (changed(OFFICIAL, "edges", 1, "cost", to=1e308), "is not plausible"),
        (changed(OFFICIAL, "edges", 1, "destId", to=8), "names 8, which is no node's id"),
        (changed(OFFICIAL, "maxSizePerFPGA", to=-1), "maxSizePerFPGA is -1"),
        (changed(OFFICIAL, "nodes", to=[]), r"nodes is \[\], but must be a list of at least 1"),
        (changed(OFFICIAL, "edges", to=None), "edges is None, but must be a list"),
    ],
)
def test_a_wrong_official_document_names_what_is_wrong(document: dict[str, Any], cause: str) -> None:
    with pytest.raises(ModelError, match=cause):
        read_msr(document, where="it")


def test_costs_that_differ_by_less_than_a_millionth_are_one() -> None:
    assert read_msr(changed(OFFICIAL, "edges", 1, "cost", to=0.0305180), where="it").graph.m == 3


def test_a_cycle_of_an_official_document_is_named() -> None:
    back = [*OFFICIAL["edges"], {"sourceId": 40, "destId": 7, "cost": 0}]
    with pytest.raises(CyclicGraphError, match=r"a -> (b -> )?c -> a|c -> a|b -> c"):
        read_msr(changed(OFFICIAL, "edges", to=back), where="it")


def write(folder: Path, content: str) -> Path:
    path = folder / "graph.json"
    path.write_text(content, encoding="utf-8")
    return path


def test_a_json_file_is_told_apart_by_its_keys(tmp_path: Path) -> None:
    assert read_graph(write(tmp_path, json.dumps(FULL))).workload.graph.names == ("x", "w", "y")
    assert read_graph(write(tmp_path, json.dumps(OFFICIAL))).workload.graph.names == ("a", "b", "c")


@pytest.mark.parametrize(
    ("content", "cause"),
    [("{", "is not valid JSON"), ("[1]", "no JSON object"), ('{"a": 1}', "is not a graph: its keys are a")],
)
def test_a_file_that_is_no_graph_is_an_unreadable_model(content: str, cause: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=cause):
        read_graph(write(tmp_path, content))


def test_a_missing_file_is_an_unreadable_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        read_graph(tmp_path / "none.json")


def test_costs_are_scaled_only_where_there_are_costs(tmp_path: Path) -> None:
    found = read_graph(write(tmp_path, json.dumps(OFFICIAL)), cost_scale=2.0)
    assert found.workload.graph.edge_bytes.tolist() == [131072, 131072, 0]
    with pytest.raises(UsageError, match="bytes on its edges"):
        read_graph(write(tmp_path, json.dumps(FULL)), cost_scale=2.0)
    with pytest.raises(UsageError, match="cost scale must be above 0, got 0"):
        read_graph(write(tmp_path, json.dumps(OFFICIAL)), cost_scale=0.0)


def test_a_model_is_read_with_its_weights_folded(tmp_path: Path) -> None:
    save_model(two_towers(2, width=16), tmp_path / "m.xml")
    found = read_graph(tmp_path / "m.xml")
    graph = found.workload.graph
    types = {graph.type_names[t] for t in graph.op_type}
    assert "MatMul" in types
    assert "Constant" not in types
    assert found.members is not None
    names, grouping = found.members
    assert set(graph.names) < set(names)
    assert grouping.n == len(names)
    assert grouping.k == graph.n


@pytest.mark.skipif(not MSR.exists(), reason="the official inputs are not here")
@pytest.mark.parametrize(
    "path", sorted(MSR.rglob("*-inputs/*/*.json")), ids=lambda p: f"{p.parent.parent.name}-{p.stem}"
)
def test_every_official_file_is_read_and_survives_as_our_document(path: Path) -> None:
    document = json.loads(path.read_bytes())
    found = read_graph(path).workload
    assert found.graph.n == len(document["nodes"])
    assert found.times["cpu"].sum() == pytest.approx(sum(n["cpuLatency"] for n in document["nodes"]) / 1e3)
    cost = {e["sourceId"]: e["cost"] for e in document["edges"]}
    # Bytes are whole: each cost is off by half a byte at most.
    assert found.graph.out_bytes.sum() / 2.0**31 == pytest.approx(sum(cost.values()) / 1e3, abs=len(cost) / 2.0**31)
    again = read_document(to_document(found), where="it")
    assert same(again.graph, found.graph)


def test_a_compressed_graph_is_the_graph(tmp_path: Path) -> None:
    plain, compressed = tmp_path / "a.json", tmp_path / "a.json.gz"
    plain.write_text(json.dumps(FULL), encoding="utf-8")
    compressed.write_bytes(gzip.compress(plain.read_bytes()))
    first, second = read_graph(plain).workload.graph, read_graph(compressed).workload.graph
    assert first.names == second.names
    assert first.source == second.source
    compressed.write_bytes(gzip.compress(plain.read_bytes())[:-20])
    with pytest.raises(ModelError, match="is not valid gzip"):
        read_graph(compressed)
    compressed.write_bytes(plain.read_bytes())
    with pytest.raises(ModelError, match="is not valid gzip"):
        read_graph(compressed)
