"""LSTMs of 8-bit weights whose input lies within [-1, 1] are written so that the CPU plug-in runs them in int8."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from coarsen.reading.model.constant_growth import ReadLimits
from coarsen.reading.model.files import model_sha256
from coarsen.reading.read_in_process import read_in_process
from coarsen.reading.rewriting.recurrent import fill_up_recurrent, quantise_recurrent, quantised_rows
from pipeline.shared.model_forms import FORMS, INT8_LSTM, ModelForm, form_file, form_notes
from pipeline.shared.payload import read_json
from tests.exported_models import FLOAT, OnnxGraph
from tests.processors import saturates
from tests.quantised_models import quantised

LENGTH, WIDTH = 12, 32


def stacked(path: Path, directions: int = 1) -> Path:
    """Write two LSTMs and a product: the first takes the model's input, the second what the first gives."""
    g, x = OnnxGraph(), "x"
    way = "bidirectional" if directions == 2 else "forward"
    for width in (WIDTH, directions * WIDTH):
        weights = (
            g.weight(directions, 4 * WIDTH, width),
            g.weight(directions, 4 * WIDTH, WIDTH),
            g.weight(directions, 8 * WIDTH),
        )
        y = g.op("LSTM", x, *weights, outputs=2, hidden_size=WIDTH, direction=way)[0]
        x = g.op("Reshape", g.op("Transpose", y, perm=[0, 2, 1, 3]), g.const([0, 0, -1]))
    y = g.linear(x, directions * WIDTH, 8)
    return g.save(path, {"x": (FLOAT, [LENGTH, 1, WIDTH])}, {"y": (y, FLOAT, [LENGTH, 1, 8])})


def kernels(model: ov.Model) -> list[str]:
    """Return which kernels the CPU runs LSTMs with, "ref_any_I8" in int8."""
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    facts = [node.get_rt_info() for node in compiled.get_runtime_model().get_ops()]
    return [str(each["primitiveType"].value) for each in facts if str(each["layerType"].value) in ("RNNSeq", "RNNCell")]


@pytest.mark.parametrize("way", ["int8 per tensor", "uint8 per tensor"])
@pytest.mark.parametrize("directions", [1, 2])
def test_the_second_lstm_runs_in_int8_and_nearly_the_same(directions: int, way: str, tmp_path: Path) -> None:
    path = quantised(stacked(tmp_path / "lstms.onnx", directions), way)
    read_in_process(path, tmp_path, source=model_sha256(path), limits=ReadLimits())
    forms = [ModelForm.from_json(row) for row in read_json(tmp_path / FORMS)]
    (form,) = (each for each in forms if each.rewrite == INT8_LSTM)
    assert len(form.products) == 1
    assert form_notes(forms)[-1].startswith(f"{form.products[0]} can be computed in int8")
    core = ov.Core()
    plain, rewritten = (core.read_model(form_file(tmp_path / "model.xml", name)) for name in ("", INT8_LSTM))
    assert set(form.products) <= {each.get_friendly_name() for each in rewritten.get_ops()}
    assert sum("I8" in kernel for kernel in kernels(rewritten)) == directions
    x = np.random.default_rng(0).standard_normal((LENGTH, 1, WIDTH)).astype(np.float32)
    how = {"INFERENCE_PRECISION_HINT": "f32"}
    expected, found = (core.compile_model(each, "CPU", how)(x)[0] for each in (plain, rewritten))
    distance = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert 0 < distance < 0.1  # steps of 1/128, of states of about 0.1


@pytest.mark.parametrize("kind", ["lstm", "gru", "linear before reset"])
@pytest.mark.parametrize("directions", [1, 2])
def test_a_recurrent_layer_that_is_filled_up_gives_the_same(kind: str, directions: int) -> None:
    rng, hidden, width = np.random.default_rng(0), 40, 5
    gates = 4 if kind == "lstm" else 3

    def drawn(*shape: int) -> Any:
        return op.constant(rng.standard_normal(shape).astype(np.float32) / 4)

    x = op.parameter([1, 6, width], np.float32, name="x")
    states = [drawn(1, directions, hidden) for _ in range(gates - 2)]
    weights = [drawn(directions, gates * hidden, size) for size in (width, hidden)]
    bias = drawn(directions, (gates + (kind == "linear before reset")) * hidden)
    given = (x, *states, op.constant(np.array([6], np.int32)), *weights, bias)
    way = "bidirectional" if directions == 2 else "forward"
    if kind == "lstm":
        layer = op.lstm_sequence(*given, hidden, way, activations=["sigmoid", "tanh", "relu"])
    else:
        layer = op.gru_sequence(*given, hidden, way, linear_before_reset=kind != "gru")
    model = ov.Model([op.result(end) for end in layer.outputs()], [x], "m")
    names, values = [end.get_names() for end in model.outputs], rng.standard_normal((1, 6, width)).astype(np.float32)
    how = {"INFERENCE_PRECISION_HINT": "f32"}
    expected = list(ov.Core().compile_model(model, "CPU", how)(values).values())
    assert fill_up_recurrent(model) == [layer.get_friendly_name()]
    [whole] = [each for each in model.get_ordered_ops() if each.get_type_name().endswith("Sequence")]
    assert whole.get_attributes()["hidden_size"] == 64
    assert [end.get_names() for end in model.outputs] == names
    for found, wanted in zip(ov.Core().compile_model(model, "CPU", how)(values).values(), expected, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert fill_up_recurrent(model) == []


def one_lstm(
    make_input: Any, *, state: float = 0.0, clip: float = 0.0, narrow: bool = True, width: int = 4, hidden: int = 4
) -> ov.Model:
    """Return a model of one LSTM of a sequence of 6 whose weights have 8 bits, or not."""
    x = op.parameter([1, 6, width], np.float32, name="x")
    rng = np.random.default_rng(0)
    weights = []
    for size in (width, hidden):
        stored = rng.integers(-127, 127, (1, 4 * hidden, size)).astype(np.float32)
        scaled = op.multiply(op.constant(stored), op.constant(np.float32(0.01)))
        weights.append(scaled if narrow else op.constant(stored * np.float32(0.01)))
    first, length = op.constant(np.full((1, 1, hidden), state, np.float32)), op.constant(np.array([6], np.int32))
    bias = op.constant(rng.standard_normal((1, 4 * hidden)).astype(np.float32))
    lstm = op.lstm_sequence(make_input(x), first, first, length, *weights, bias, hidden, "forward", clip=clip)
    lstm.set_friendly_name("lstm")
    return ov.Model([op.result(end) for end in lstm.outputs()], [x], "m")


@pytest.mark.parametrize("way", [(40, 96), (64, 48), (64, 64)])
def test_an_lstm_is_filled_up_to_whole_tiles_and_its_outputs_stay(way: tuple[int, int]) -> None:
    model = one_lstm(op.tanh, width=way[0], hidden=way[1])
    core, shapes = ov.Core(), [end.get_shape() for end in model.outputs]
    x = np.random.default_rng(1).standard_normal((1, 6, way[0])).astype(np.float32)
    how = {"INFERENCE_PRECISION_HINT": "f32"}
    expected = list(core.compile_model(model, "CPU", how)(x).values())
    assert quantise_recurrent(model) == ["lstm"]
    [lstm] = [each for each in model.get_ordered_ops() if each.get_friendly_name() == "lstm"]
    assert not any(size % 64 for i in (0, 4, 5) for size in [lstm.get_input_shape(i)[-1]])
    assert [end.get_shape() for end in model.outputs] == shapes
    assert any("I8" in kernel for kernel in kernels(model))
    if saturates():
        pytest.skip("the integers of this processor saturate, so that outputs of the kernel say nothing")
    for found, wanted in zip(core.compile_model(model, "CPU", how)(x).values(), expected, strict=True):
        assert np.linalg.norm(found - wanted) < 0.1 * np.linalg.norm(wanted)  # steps of 1/128


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (one_lstm(op.tanh), ["lstm"]),
        (one_lstm(op.sigmoid), ["lstm"]),
        (one_lstm(lambda x: op.squeeze(op.unsqueeze(op.tanh(x), op.constant([0])), op.constant([0]))), ["lstm"]),
        (one_lstm(lambda x: op.concat([op.tanh(x), op.sigmoid(x)], 1)), ["lstm"]),
        (one_lstm(lambda x: op.concat([op.tanh(x), op.relu(x)], 1)), []),
        (one_lstm(op.relu), []),
        (one_lstm(lambda x: x), []),
        (one_lstm(lambda x: op.add(op.tanh(x), op.tanh(x))), []),
        (one_lstm(op.tanh, state=0.5), []),
        (one_lstm(op.tanh, clip=2.0), []),
        (one_lstm(op.tanh, narrow=False), []),
    ],
    ids=[
        "tanh",
        "sigmoid",
        "moved",
        "joined",
        "joined with more",
        "relu",
        "input",
        "sum",
        "a state",
        "clipped",
        "floating weights",
    ],
)
def test_only_what_is_known_to_fit_is_rewritten(model: ov.Model, names: list[str]) -> None:
    before = {each.get_friendly_name() for each in model.get_ordered_ops()}
    assert quantise_recurrent(model) == names
    after = [each.get_friendly_name() for each in model.get_ordered_ops()]
    assert len(set(after)) == len(after)
    assert names or set(after) == before


def test_weights_keep_their_values_where_one_scale_holds_them() -> None:
    values = np.array([[[127, -3], [5, 0]]], np.float32) * np.float32(0.02)
    stored = quantised_rows(values)
    assert stored.values.tolist() == [[[127, -3], [5, 0]]]
    np.testing.assert_allclose(stored.values * stored.scale, values, rtol=1e-6)
    drawn = np.random.default_rng(0).standard_normal((2, 8, 16)).astype(np.float32)
    rounded = quantised_rows(drawn)
    assert rounded.scale.shape == (2, 8, 1)
    np.testing.assert_allclose(rounded.values * rounded.scale, drawn, atol=np.abs(drawn).max() / 250)
