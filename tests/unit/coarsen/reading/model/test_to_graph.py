"""The graph that is made of a model: edges, bytes, shapes, FLOPs and ties."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from coarsen.reading.model.read import to_graph
from pipeline.core.graph import Graph, topological_order
from tests import models
from tests.models import SMALL, names, through_file, types


def graph_of_file(model: ov.Model, folder: Path) -> Graph:
    return to_graph(through_file(model, folder), source="given")


def edges_by_name(graph: Graph) -> dict[tuple[str, str], int]:
    pairs = graph.edges.T.tolist()
    return {
        (graph.names[a], graph.names[b]): size for (a, b), size in zip(pairs, graph.edge_bytes.tolist(), strict=True)
    }


def reads_of(graph: Graph, name: str) -> list[tuple[int, int]]:
    """Return (port, bytes) of everything that is read of an operation."""
    maker = graph.edges[0, graph.reads.edge] == graph.names.index(name)
    return list(zip(graph.reads.port[maker].tolist(), graph.reads.size[maker].tolist(), strict=True))


def of(graph: Graph, name: str, field: str) -> float:
    return getattr(graph, field)[graph.names.index(name)]


def colocated(graph: Graph) -> set[frozenset[str]]:
    groups = {
        t: frozenset(n for n, u in zip(graph.names, graph.colocate, strict=True) if u == t) for t in set(graph.colocate)
    }
    groups.pop(-1, None)
    return set(groups.values())


@pytest.mark.parametrize("build", SMALL)
def test_the_graph_is_the_model(build: Callable[[], ov.Model], tmp_path: Path) -> None:
    model = through_file(build(), tmp_path)
    graph = to_graph(model, source="hash")
    assert list(graph.names) == names(model)
    assert [graph.type_names[t] for t in graph.op_type] == types(model)
    expected = {
        (o.input_value(i).get_node().get_friendly_name(), o.get_friendly_name())
        for o in model.get_ordered_ops()
        for i in range(o.get_input_size())
    }
    assert set(edges_by_name(graph)) == expected
    assert topological_order(graph).size == graph.n
    assert np.all(graph.edges[0] < graph.edges[1])
    assert graph.source == "hash"
    assert np.all(graph.kernel == -1)


def test_bytes_and_shapes_are_those_of_the_tensors(tmp_path: Path) -> None:
    graph = graph_of_file(models.two_towers(1, width=8), tmp_path)
    assert of(graph, "left0.weight", "weight_bytes") == 8 * 8 * 4
    assert of(graph, "left0.weight", "out_bytes") == 8 * 8 * 4
    assert of(graph, "left0", "out_bytes") == 8 * 4
    assert of(graph, "left0", "weight_bytes") == 0
    assert edges_by_name(graph)["left0", "left0.relu"] == 8 * 4
    assert graph.shape(graph.names.index("right0.weight")) == (8, 8)
    assert of(graph, "left0", "flops") == 2 * 8 * 8


def test_weights_do_not_flow(tmp_path: Path) -> None:
    graph = graph_of_file(models.quantised(), tmp_path)
    edges = edges_by_name(graph)
    assert [edges[e] for e in (("w1", "w1.unpack"), ("w1.unpack", "fq_w"), ("fq_w", "w1.square"))] == [0, 0, 0]
    assert edges["w1.square", "first"] == edges["w2", "second"] == edges["fq_x.il", "fq_x"] == 0
    assert edges["x", "fq_x"] == edges["fq_x", "first"] == edges["first", "relu"] == 16


def test_parallel_edges_merge(tmp_path: Path) -> None:
    x = op.parameter([4, 4], np.float32, name="x")
    square = op.multiply(x, x, name="square")  # one tensor read twice
    halves = op.split(square, models.constant(0, "axis", np.int64), 2, name="halves")
    total = op.add(halves.output(0), halves.output(1), name="total")  # two tensors of one operation
    graph = graph_of_file(ov.Model([op.result(total, name="out")], [x]), tmp_path)
    edges = edges_by_name(graph)
    assert edges["x", "square"] == 64
    assert edges["halves", "total"] == 32 + 32
    assert of(graph, "halves", "out_bytes") == 64
    assert graph.shape(graph.names.index("halves")) == (2, 4)


def test_an_output_that_nobody_reads_is_no_second_tensor(tmp_path: Path) -> None:
    x = op.parameter([1, 1, 4, 4], np.float32, name="x")
    pool = op.max_pool(x, [1, 1], [1, 1], [0, 0], [0, 0], [2, 2], name="pool")  # beside values it has int64 indices
    total = op.add(op.relu(pool.output(0), name="left"), op.tanh(pool.output(0), name="right"), name="total")
    graph = graph_of_file(ov.Model([op.result(total, name="out")], [x]), tmp_path)
    assert of(graph, "pool", "out_bytes") == 9 * 4
    assert len(reads_of(graph, "pool")) == 2
    assert {port for port, _ in reads_of(graph, "pool")} == {0}


def test_outputs_of_one_size_are_tensors_of_their_own(tmp_path: Path) -> None:
    x = op.parameter([4, 4], np.float32, name="x")
    halves = op.split(x, models.constant(0, "axis", np.int64), 2, name="halves")
    total = op.add(op.relu(halves.output(0), name="left"), op.tanh(halves.output(1), name="right"), name="total")
    graph = graph_of_file(ov.Model([op.result(total, name="out")], [x]), tmp_path)
    assert sorted(reads_of(graph, "halves")) == [(0, 32), (1, 32)]


def test_the_outputs_that_an_operation_reads_are_told_apart(tmp_path: Path) -> None:
    x = op.parameter([6, 4], np.float32, name="x")
    parts = op.variadic_split(x, models.constant(0, "axis", np.int64), [1, 2, 3], name="parts")
    both = op.concat([parts.output(2), parts.output(0)], 0, name="both")
    again = op.relu(parts.output(2), name="again")
    graph = graph_of_file(ov.Model([op.result(both, name="a"), op.result(again, name="b")], [x]), tmp_path)
    assert sorted(reads_of(graph, "parts")) == [(0, 16), (2, 48), (2, 48)]
    tensor = {port: t for (_, _, t, _), port in zip(graph.read_rows(), graph.reads.port.tolist(), strict=True) if port}
    assert len(tensor) == 1
    assert edges_by_name(graph)["parts", "both"] == 64


def test_bits_are_rounded_up_to_bytes(tmp_path: Path) -> None:
    x = op.parameter([3], np.float32, name="x")
    packed = op.constant(ov.Tensor(np.zeros(2, np.uint8), [3], ov.Type.u4), name="packed")
    model = ov.Model([op.result(op.add(x, op.convert(packed, "f32", name="unpack")))], [x])
    graph = graph_of_file(model, tmp_path)
    assert of(graph, "packed", "weight_bytes") == 2


def test_dynamic_dimensions_are_minus_one_and_count_one(tmp_path: Path) -> None:
    graph = graph_of_file(models.dynamic(), tmp_path)
    assert graph.shape(graph.names.index("x")) == (-1, 3, 4)
    assert of(graph, "x", "out_bytes") == 12 * 4
    assert of(graph, "product", "flops") == 2 * 12 * 5


def test_an_unknown_rank_is_an_empty_shape() -> None:
    x = op.parameter(ov.PartialShape.dynamic(), np.float32, name="x")
    graph = to_graph(ov.Model([op.result(op.relu(x, name="relu"), name="out")], [x]), source="")
    assert graph.shape(graph.names.index("relu")) == ()
    assert of(graph, "relu", "flops") == 1
    assert of(graph, "relu", "out_bytes") == 4


def test_an_if_is_one_operation_that_costs_its_dearer_branch(tmp_path: Path) -> None:
    graph = graph_of_file(models.with_if(), tmp_path)
    assert [graph.type_names[t] for t in graph.op_type].count("If") == 1
    assert graph.n == 4
    assert of(graph, "if", "flops") == 2 * 2 * 4 * 3  # the product; the other branch is a relu of 8
    assert of(graph, "if", "weight_bytes") == 4 * 3 * 4 + 3 * 8 + 8


def test_a_loop_costs_its_body_times_the_trip_count(tmp_path: Path) -> None:
    graph = graph_of_file(models.with_loop(5), tmp_path)
    assert of(graph, "loop", "flops") == 5 * 4
    assert of(graph, "loop", "weight_bytes") == 4 * 4 + 1  # counted once


def test_a_tensor_iterator_costs_its_body_times_its_steps(tmp_path: Path) -> None:
    graph = graph_of_file(models.with_tensor_iterator(6), tmp_path)
    assert of(graph, "iterator", "flops") == 6 * 4


def test_a_loop_of_unknown_length_counts_once() -> None:
    x = op.parameter(ov.PartialShape([1, -1, 4]), np.float32, name="x")
    row = op.parameter([1, 1, 4], np.float32, name="row")
    result = op.result(op.relu(row))
    iterator = op.tensor_iterator()
    iterator.set_friendly_name("iterator")
    iterator.set_body(ov.Model([result], [row], "body"))
    iterator.set_sliced_input(row, x.output(0), 0, 1, 1, -1, 1)
    rows = iterator.get_concatenated_slices(result.output(0), 0, 1, 1, -1, 1)
    graph = to_graph(ov.Model([op.result(rows, name="out")], [x]), source="")
    assert of(graph, "iterator", "flops") == 4


def test_the_reader_hands_attributes_to_the_formulas(tmp_path: Path) -> None:
    x = op.parameter([1, 2, 8, 8], np.float32, name="x")
    pooled = op.max_pool(x, [2, 2], [1, 1], [0, 0], [0, 0], [2, 2], name="pool")
    centred = op.mvn(
        pooled.output(0), models.constant([2, 3], "axes", np.int64), False, 1e-6, "inside_sqrt", name="mvn"
    )
    turned = op.matmul(centred, centred, True, False, name="turned")
    graph = graph_of_file(ov.Model([op.result(turned, name="out")], [x]), tmp_path)
    assert of(graph, "pool", "flops") == 32 * 4
    assert of(graph, "mvn", "flops") == 32 * 2
    assert of(graph, "turned", "flops") == 2 * 32 * 4


# Ties


def test_a_state_is_tied_with_what_lies_between_reading_and_writing_it(tmp_path: Path) -> None:
    graph = graph_of_file(models.with_state(), tmp_path)
    assert colocated(graph) == {frozenset({"read", "add", "relu", "new", "assign"})}
    assert graph.colocate.max() < graph.n


def test_a_tied_state_runs_with_everything_else_on_another_device(tmp_path: Path) -> None:
    model = through_file(models.with_state(), tmp_path)
    graph = to_graph(model, source="")
    core = ov.Core()
    core.register_plugin("openvino_intel_cpu_plugin", "OTHER_CPU")
    for o, t in zip(model.get_ordered_ops(), graph.colocate, strict=True):
        o.get_rt_info()["affinity"] = "CPU" if t >= 0 else "OTHER_CPU"
    config = {"INFERENCE_PRECISION_HINT": "f32"}
    placed = core.compile_model(model, "HETERO:CPU,OTHER_CPU", config).create_infer_request()
    whole = core.compile_model(through_file(models.with_state(), tmp_path), "CPU", config).create_infer_request()
    for _ in range(3):
        x = np.ones((1, 4), np.float32)
        np.testing.assert_allclose(placed.infer([x])[0], whole.infer([x])[0], rtol=1e-6)


def test_quantisation_is_tied_with_its_consumers_and_constants(tmp_path: Path) -> None:
    graph = graph_of_file(models.quantised(), tmp_path)
    limits = [{f"{fq}.{which}" for which in ("il", "ih", "ol", "oh")} for fq in ("fq_x", "fq_w", "fq_y")]
    first = {"fq_x", "fq_w", "w1", "w1.unpack", "w1.square", "first"} | limits[0] | limits[1]
    assert colocated(graph) == {frozenset(first), frozenset({"fq_y", "second"} | limits[2])}


def test_limits_shared_by_two_quantisations_do_not_tie_them(tmp_path: Path) -> None:
    x = op.parameter([1, 4], np.float32, name="x")
    zero, one = models.constant(0.0, "zero"), models.constant(1.0, "one")
    y = x
    for i in range(2):
        y = op.fake_quantize(y, zero, one, zero, one, 256)
        y.set_friendly_name(f"fq{i}")
        y = op.relu(y, name=f"relu{i}")
    graph = graph_of_file(ov.Model([op.result(y, name="out")], [x]), tmp_path)
    assert colocated(graph) == {frozenset({"fq0", "relu0"}), frozenset({"fq1", "relu1"})}


def test_what_dynamic_tensors_join_is_tied(tmp_path: Path) -> None:
    graph = graph_of_file(models.dynamic(), tmp_path)
    computed = {"x", "relu", "flat", "product", "out"}  # the shape, and its arithmetic, go with who takes it
    assert colocated(graph) == {frozenset({*computed, "shape", "rows", "target"})}


def test_a_plain_model_has_no_ties(tmp_path: Path) -> None:
    assert np.all(graph_of_file(models.two_towers(), tmp_path).colocate == -1)
