"""Splitting bidirectional sequences: what is left alone, names, models of exporters, and what is part of the key."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
from onnx import TensorProto, helper
from openvino import opset13 as op

from coarsen.reading.model.constant_growth import ReadLimits
from coarsen.reading.model.files import model_sha256
from coarsen.reading.model.read import read_model
from coarsen.reading.read_in_process import read_in_process
from coarsen.reading.rewriting.rewrites import Rewrites
from coarsen.reading.rewriting.split_directions import split_directions
from pipeline.shared.payload import load_graph, read_json
from tests.exported_models import OnnxGraph
from tests.models import through_file, two_towers
from tests.unit.pipeline.stages.test_keys import tasks

STEPS, BATCH, WIDTH, HIDDEN = 6, 1, 5, 4


def stack_onnx(path: Path) -> Path:
    """Write two bidirectional LSTM layers as torch.onnx does; outputs are the states, and the last ones of all."""
    g = OnnxGraph()
    x, width, last = "x", WIDTH, []
    for _ in range(2):
        weights = g.weight(2, 4 * HIDDEN, width), g.weight(2, 4 * HIDDEN, HIDDEN), g.weight(2, 8 * HIDDEN)
        zeros = g.const(np.zeros((2, BATCH, HIDDEN)), np.float32)
        y, h, _c = g.op("LSTM", x, *weights, "", zeros, zeros, outputs=3, hidden_size=HIDDEN, direction="bidirectional")
        x = g.op("Reshape", g.op("Transpose", y, perm=[0, 2, 1, 3]), g.const([0, 0, -1]))
        width = 2 * HIDDEN
        last.append(h)
    g.nodes.append(helper.make_node("Concat", last, ["h"], name="/Concat_last", axis=0))
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in (x, "h")]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [STEPS, BATCH, WIDTH])]
    graph = helper.make_graph(g.nodes, "stack", inputs, outputs, g.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    path.write_bytes(model.SerializeToString())
    return path


def outputs(model: ov.Model) -> list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    x = np.random.default_rng(0).standard_normal((STEPS, BATCH, WIDTH)).astype(np.float32)
    return list(ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})([x]).values())


def test_a_stack_as_exporters_write_it_keeps_its_outputs_and_their_names(tmp_path: Path) -> None:
    model = read_model(stack_onnx(tmp_path / "stack.onnx"))
    before, names = outputs(model), [port.get_names() for port in model.outputs]
    assert [len(row.parts) for row in split_directions(model)] == [2, 2]
    for found, expected in zip(outputs(model), before, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert [port.get_names() for port in model.outputs] == names
    layers = [o for o in model.get_ordered_ops() if o.get_type_name() == "LSTMSequence"]
    assert len(layers) == 4
    assert all(
        layer.input_value(i).get_node().get_type_name() == "Constant" for layer in layers for i in (1, 2, 4, 5, 6)
    )


def test_directions_do_not_wait_for_one_another(tmp_path: Path) -> None:
    model = read_model(stack_onnx(tmp_path / "stack.onnx"))
    split_directions(model)
    for layer in [o for o in model.get_ordered_ops() if o.get_type_name() == "LSTMSequence"]:
        sources = [layer.input_value(i).get_node() for i in range(layer.get_input_size())]
        assert "LSTMSequence" not in {source.get_type_name() for source in sources}


def test_one_direction_and_all_else_are_left_alone(tmp_path: Path) -> None:
    x = op.parameter([1, 3, 2], np.float32, name="x")
    state = op.constant(np.zeros((1, 1, 4), np.float32))
    weights = [op.constant(np.ones(shape, np.float32)) for shape in ((1, 4, 2), (1, 4, 4), (1, 4))]
    rnn = op.rnn_sequence(x, state, op.constant(np.array([3])), *weights, 4, "reverse", name="rnn")
    forward = ov.Model([op.result(rnn.output(0))], [x], "reverse")
    for model in (forward, through_file(two_towers(), tmp_path)):
        before = [o.get_friendly_name() for o in model.get_ordered_ops()]
        assert split_directions(model) == []
        assert [o.get_friendly_name() for o in model.get_ordered_ops()] == before


def test_quantised_weights_keep_a_sequence_whole() -> None:
    x = op.parameter([1, 3, 2], np.float32, name="x")
    state = op.constant(np.zeros((1, 2, 4), np.float32))
    limits = [op.constant(np.float32(v)) for v in (-1.0, 1.0, -1.0, 1.0)]
    w, r, b = (op.constant(np.ones(shape, np.float32)) for shape in ((2, 4, 2), (2, 4, 4), (2, 4)))
    rnn = op.rnn_sequence(
        x, state, op.constant(np.array([3])), op.fake_quantize(w, *limits, 255), r, b, 4, "bidirectional"
    )
    assert split_directions(ov.Model([op.result(rnn.output(0))], [x], "quantised")) == []


def test_names_that_are_taken_get_a_suffix() -> None:
    x = op.parameter([1, 3, 2], np.float32, name="rnn/forward")
    state = op.constant(np.zeros((1, 2, 4), np.float32), name="state")
    shapes = {"W": (2, 4, 2), "R": (2, 4, 4), "B": (2, 4)}
    weights = [op.constant(np.ones(shape, np.float32), name=name) for name, shape in shapes.items()]
    lengths = op.constant(np.array([3]), name="lengths")
    rnn = op.rnn_sequence(x, state, lengths, *weights, 4, "bidirectional", name="rnn")
    model = ov.Model([op.result(rnn.output(0), name="out")], [x], "taken")
    (row,) = split_directions(model)
    assert row.parts == ("rnn/forward_2", "rnn/reverse")
    assert set(row.parts) <= {o.get_friendly_name() for o in model.get_ordered_ops()}


def test_reading_splits_only_if_asked_and_tells_what(tmp_path: Path) -> None:
    path = stack_onnx(tmp_path / "stack.onnx")
    graphs = {}
    for directions in (False, True):
        out = tmp_path / str(directions)
        out.mkdir()
        rewrites = Rewrites(directions=directions)
        read_in_process(path, out, source=model_sha256(path), limits=ReadLimits(), rewrites=rewrites)
        graphs[directions] = load_graph(out / "graph.npz")
    assert not (tmp_path / "False" / "rewritten.json").exists()
    rows = read_json(tmp_path / "True" / "rewritten.json")
    assert all(row["name"] in graphs[False].names for row in rows)
    assert {part for row in rows for part in row["parts"]} <= set(graphs[True].names)
    assert graphs[True].flops.sum() == graphs[False].flops.sum()  # the same arithmetic


def test_only_what_is_asked_for_is_part_of_the_key() -> None:
    plain, split = tasks()["read"], tasks(coarsen__split_directions=True)["read"]
    assert not any(plain.params["rewrites"].values())
    assert plain.key != split.key
    assert tasks(coarsen__split_groups=True)["read"].key not in (plain.key, split.key)
    assert tasks(coarsen__split_directions=False)["read"].key == plain.key
