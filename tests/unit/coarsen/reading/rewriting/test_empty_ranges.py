"""Dynamic quantisation of zeros gives what ONNX Runtime gives, and is still recognised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import openvino as ov
from onnx import TensorProto, helper

from coarsen.reading.model.read import read_model, read_with_inputs
from coarsen.reading.rewriting.empty_ranges import guard_empty_ranges
from coarsen.reading.rewriting.integer_products import dequantise_products, integer_products
from coarsen.reading.sizes.shapes import InputShapes
from tests.exported_models import FLOAT, OnnxGraph
from tests.quantised_models import float_model, quantised

EXACT = {"INFERENCE_PRECISION_HINT": "f32"}


def guarded(path: Path) -> tuple[ov.Model, list[str]]:
    """Return a model that is guarded before its constants are folded, and the names of its ranges."""
    names: list[str] = []
    found, _ = read_with_inputs(
        path, InputShapes(keep_dynamic=True), prepare=lambda model: names.extend(guard_empty_ranges(model))
    )
    return found.model, names


def run(model: ov.Model, x: Any) -> Any:
    return ov.Core().compile_model(model, "CPU", EXACT)([x])[0]


def with_integer_bias(folder: Path) -> Path:
    """Write a product of bytes whose bias is rounded in steps of the product's scale, as early quantisers wrote it."""
    g = OnnxGraph()
    g.nodes.append(helper.make_node("DynamicQuantizeLinear", ["x"], ["bytes", "scale", "zero"], name="quantise"))
    weights = g.const(g.rng.integers(-100, 100, (8, 6)), np.int8)
    product = g.op("MatMulInteger", "bytes", weights, "zero")
    step = g.op("Mul", "scale", g.const(0.02, np.float32))
    steps = g.op("Floor", g.op("Div", g.const(g.rng.standard_normal(6), np.float32), step))
    total = g.op("Add", product, g.op("Cast", steps, to=TensorProto.INT32))
    y = g.op("Mul", g.op("Cast", total, to=TensorProto.FLOAT), step)
    return g.save(folder / "biased.onnx", {"x": (FLOAT, [3, 8])}, {"y": (str(y), FLOAT, [3, 6])})


def test_zeros_give_what_onnx_runtime_gives(tmp_path: Path) -> None:
    path = with_integer_bias(tmp_path)
    plain, (model, names) = read_model(path), guarded(path)
    assert len(names) == 1
    zeros = np.zeros((3, 8), np.float32)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    [expected] = session.run(None, {"x": zeros})
    assert np.abs(expected).max() > 0.1
    assert np.abs(run(plain, zeros) - expected).max() > 0.1  # the bias is lost, or another number
    np.testing.assert_allclose(run(model, zeros), expected, atol=1e-6)
    noise = np.random.default_rng(0).standard_normal(zeros.shape).astype(np.float32)
    np.testing.assert_array_equal(run(model, noise), run(plain, noise))


def test_guarded_products_are_recognised(tmp_path: Path) -> None:
    path = quantised(float_model("conv", tmp_path), "uint8 per channel")
    model, names = guarded(path)
    products = integer_products(model)
    assert products == 5 == len(set(names))
    assert len(dequantise_products(model, packed=False)) == products
    zeros = np.zeros(list(model.inputs[0].shape), np.float32)
    assert np.isfinite(run(model, zeros)).all()


def test_other_differences_are_left_alone(tmp_path: Path) -> None:
    model = read_model(float_model("conv", tmp_path))
    before = len(model.get_ops())
    assert guard_empty_ranges(model) == []
    assert len(model.get_ops()) == before
