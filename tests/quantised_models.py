"""Dynamically quantised ONNX models as onnxruntime.quantization makes them, and their twins that compute in floats."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.exported_models import FLOAT, OnnxGraph

KINDS = ("transformer", "mlp", "conv", "lstm", "gru")
WAYS: Mapping[str, Mapping[str, Any]] = {
    "int8 per tensor": {"signed": True},
    "uint8 per tensor": {"signed": False},
    "int8 per channel": {"signed": True, "per_channel": True},
    "uint8 per channel": {"signed": False, "per_channel": True},
    "reduced range": {"signed": True, "per_channel": True, "reduce_range": True},
}


def quantised(float_model: Path, way: str, *, only: Sequence[str] = ()) -> Path:
    """Write a float model dynamically quantised, beside it; return its path. only: types of operations, all if none."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    options = dict(WAYS[way])
    kind = QuantType.QInt8 if options.pop("signed") else QuantType.QUInt8
    path = float_model.with_name(f"{float_model.stem} {way}.onnx")
    logging.disable(logging.WARNING)  # it advises to prepare models that need none
    try:
        quantize_dynamic(float_model, path, weight_type=kind, op_types_to_quantize=list(only) or None, **options)
    finally:
        logging.disable(logging.NOTSET)
    return path


def float_model(kind: str, folder: Path, *, scale: int = 1) -> Path:
    """Write a small float model of a kind; return its path. scale: how many times as wide, and as deep."""
    path = folder / f"{kind}.onnx"
    if kind == "transformer":
        return transformer(path, width=32 * scale, length=8 * scale, layers=scale)
    if kind == "mlp":
        return mlp(path, width=24 * scale)
    if kind == "conv":
        return convolutions(path, channels=8 * scale, pixels=12 * scale, layers=scale)
    return recurrent(path, kind.upper(), width=12 * scale, hidden=16 * scale, steps=6 * scale)


def transformer(path: Path, *, width: int, length: int, layers: int, heads: int = 2) -> Path:
    """Write an encoder: attentions over some heads and products with a GELU between, each with a layer norm."""
    g, x = OnnxGraph(), "x"

    def norm(x: str) -> str:
        ones, zeros = (g.const(np.full(width, value), np.float32) for value in (1, 0))
        return str(g.op("LayerNormalization", x, ones, zeros, axis=-1))

    for _ in range(layers):
        split = g.const([0, -1, heads, width // heads])
        q, k, v = (
            g.op("Transpose", g.op("Reshape", g.linear(x, width, width), split), perm=perm)
            for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        )
        scores = g.op("Mul", g.op("MatMul", q, k), g.const((width // heads) ** -0.5, np.float32))
        mixed = g.op("Transpose", g.op("MatMul", g.op("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
        x = norm(g.op("Add", x, g.linear(g.op("Reshape", mixed, g.const([0, -1, width])), width, width)))
        inner = g.linear(x, width, 4 * width)
        erf = g.op("Erf", g.op("Div", inner, g.const(2**0.5, np.float32)))
        gelu = g.op("Mul", g.op("Mul", inner, g.op("Add", erf, g.const(1, np.float32))), g.const(0.5, np.float32))
        x = norm(g.op("Add", x, g.linear(gelu, 4 * width, width)))
    return g.save(path, {"x": (FLOAT, [1, length, width])}, {"y": (x, FLOAT, [1, length, width])})


def mlp(path: Path, *, width: int) -> Path:
    """Write three Gemms, the second with its weights transposed, and Relus."""
    g, x = OnnxGraph(), "x"
    for before, after, transposed in ((width, 2 * width, 0), (2 * width, 2 * width, 1), (2 * width, width, 0)):
        weights = g.weight(after, before) if transposed else g.weight(before, after)
        x = g.op("Relu", g.op("Gemm", x, weights, g.weight(after), transB=transposed))
    return g.save(path, {"x": (FLOAT, [4, width])}, {"y": (x, FLOAT, [4, width])})


def convolutions(path: Path, *, channels: int, pixels: int, layers: int) -> Path:
    """Write convolutions with a bias, a depthwise one, one of 1 x 1 without a bias, and a Gemm."""
    g = OnnxGraph()
    x = g.conv("x", 3, channels)
    for _ in range(layers):
        x = g.conv(x, channels, channels)
    depthwise = g.weight(channels, 1, 3, 3)
    x = g.op("Relu", g.op("Conv", x, depthwise, group=channels, kernel_shape=[3, 3], pads=[1] * 4))
    x = g.op("Conv", x, g.weight(2 * channels, channels, 1, 1), kernel_shape=[1, 1], strides=[2, 2])
    x = g.op("Flatten", g.op("GlobalAveragePool", x))
    y = g.op("Gemm", x, g.weight(2 * channels, 10), g.weight(10))
    return g.save(path, {"x": (FLOAT, [1, 3, pixels, pixels])}, {"y": (y, FLOAT, [1, 10])})


def recurrent(path: Path, kind: str, *, width: int, hidden: int, steps: int) -> Path:
    """Write a bidirectional LSTM or GRU and a product behind it."""
    g = OnnxGraph()
    gates = {"LSTM": 4, "GRU": 3}[kind] * hidden
    weights = g.weight(2, gates, width), g.weight(2, gates, hidden), g.weight(2, 2 * gates)
    extra = {"linear_before_reset": 1} if kind == "GRU" else {}
    y = g.op(kind, "x", *weights, outputs=2, hidden_size=hidden, direction="bidirectional", **extra)[0]
    y = g.op("Reshape", g.op("Transpose", y, perm=[0, 2, 1, 3]), g.const([0, 0, -1]))
    y = g.linear(y, 2 * hidden, width)
    return g.save(path, {"x": (FLOAT, [steps, 1, width])}, {"y": (y, FLOAT, [steps, 1, width])})


def float_twin(path: Path) -> Path:
    """Write a quantised model with every integer operation replaced by its float one; return the path.

    DynamicQuantizeLinear gives its input, scale 1 and zero point 0; products are those of the input and the weights
    less their zero point; DynamicQuantizeLSTM is an LSTM of the weights times their scale.
    """
    model = onnx.load(path)
    known = {weight.name: numpy_helper.to_array(weight) for weight in model.graph.initializer}
    nodes: list[onnx.NodeProto] = []
    integers = ("MatMulInteger", "ConvInteger")
    products = {node.output[0] for node in model.graph.node if node.op_type in integers}

    def added(name: str, values: Any) -> str:
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(values, np.float32), name))
        return name

    for i, node in enumerate(model.graph.node):
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type == "DynamicQuantizeLinear":
            made = ((node.input[0], 0), (added(f"one_{i}", 1), 1), (added(f"zero_{i}", 0), 2))
            nodes += [helper.make_node("Identity", [name], [node.output[port]]) for name, port in made]
        elif node.op_type in integers:
            weights, zero = known[node.input[1]].astype(np.int32), known[node.input[3]].astype(np.int32)
            kind = node.op_type.removesuffix("Integer")
            zero = zero.reshape(-1, *[1] * (weights.ndim - 1)) if kind == "Conv" and zero.ndim else zero
            inputs = [node.input[0], added(f"weights_{i}", weights - zero)]
            nodes.append(helper.make_node(kind, inputs, list(node.output), name=node.name, **attributes))
        elif node.op_type == "Cast" and node.input[0] in products:
            nodes.append(helper.make_node("Identity", list(node.input), list(node.output)))
        elif node.op_type == "DynamicQuantizeLSTM":
            pairs = ((1, 8), (2, 10))
            kernels = [added(f"lstm_{i}_{w}", _lstm_weights(known, node.input, w, s)) for w, s in pairs]
            inputs = [node.input[0], *kernels, *node.input[3:8]]
            nodes.append(helper.make_node("LSTM", inputs, list(node.output), **attributes))
        else:
            nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    twin = path.with_name(f"{path.stem} in floats.onnx")
    onnx.save(model, twin)
    return twin


def _lstm_weights(known: Mapping[str, Any], inputs: Any, weights: int, scale: int) -> Any:
    """Return float32 [directions, 4 * hidden, width] of a DynamicQuantizeLSTM, which stores its weights transposed."""
    values, factor, zero = (known[inputs[i]] for i in (weights, scale, scale + 1))
    factor, zero = (array.reshape(len(values), 1, -1) for array in (factor, zero))
    return ((values.astype(np.float32) - zero.astype(np.float32)) * factor).transpose(0, 2, 1)
