"""Local responses of any bias give what ONNX Runtime gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import openvino as ov
import pytest

from coarsen.reading.model.read import read_model, read_with_inputs
from coarsen.reading.rewriting.local_responses import take_unit_biases
from coarsen.reading.sizes.shapes import InputShapes
from tests.exported_models import FLOAT, OnnxGraph

EXACT = {"INFERENCE_PRECISION_HINT": "f32"}


def with_local_responses(folder: Path, bias: float) -> Path:
    """Write two local responses in a row, the second of which is the output."""
    g = OnnxGraph()
    y = g.op("LRN", "x", size=5, alpha=0.5, beta=0.75, bias=bias)
    y = g.op("LRN", y, size=3, alpha=1e-4, beta=1.0, bias=bias)
    return g.save(folder / "responses.onnx", {"x": (FLOAT, [1, 8, 4, 4])}, {"y": (str(y), FLOAT, [1, 8, 4, 4])})


def prepared(path: Path) -> tuple[ov.Model, list[str]]:
    names: list[str] = []
    found, _ = read_with_inputs(
        path, InputShapes(keep_dynamic=True), prepare=lambda model: names.extend(take_unit_biases(model))
    )
    return found.model, names


@pytest.mark.parametrize("bias", [1.5, 0.5])
def test_any_bias_gives_what_onnx_runtime_gives(tmp_path: Path, bias: float) -> None:
    path = with_local_responses(tmp_path, bias)
    x = 3 * np.random.default_rng(0).standard_normal((1, 8, 4, 4)).astype(np.float32)
    [expected] = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    plain, (model, names) = read_model(path), prepared(path)
    assert len(names) == 2
    assert [port.get_any_name() for port in model.outputs] == [port.get_any_name() for port in plain.outputs]
    usual = ov.Core().compile_model(plain, "CPU", EXACT)([x])[0]
    assert np.abs(usual - expected).max() > 0.1 * np.abs(expected).max()  # else nothing need be done any more
    found = ov.Core().compile_model(model, "CPU", EXACT)([x])[0]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bias", [1.0, 2.0])
def test_whole_numbers_are_left_alone(tmp_path: Path, bias: float) -> None:
    model, names = prepared(with_local_responses(tmp_path, bias))
    assert names == []
    assert all(op.get_type_name() != "Multiply" for op in model.get_ordered_ops())
