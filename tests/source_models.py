"""Models whose outputs are compared: ONNX files with an attention mask, and quantised; an IR that bf16 spoils."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import openvino as ov
from onnx import TensorProto, helper, numpy_helper
from openvino import opset13 as op

from tests.models import constant

LEAST = -3.4028234663852886e38  # what T5 adds to the scores of what is masked
HEADS, WIDTH = 2, 16
IDS = 50


class _Net:
    """The nodes and constants of a graph in the making; a node is called like its output."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def const(self, name: str, value: npt.ArrayLike) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def add(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def save(self, path: Path, inputs: list[Any], outputs: list[Any]) -> Path:
        graph = helper.make_graph(self.nodes, "g", inputs, outputs, self.constants)
        path.write_bytes(
            helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8).SerializeToString()
        )
        return path


def masked_attention(path: Path) -> Path:
    """Write a layer of attention with relative positions and a mask, as T5 has them: ids and mask [batch, length].

    OpenVINO 2026.4 computes it wrongly on the CPU once its shapes are concrete: by 50 %.
    """
    net, rng, dim = _Net(), np.random.default_rng(0), HEADS * WIDTH
    net.const("table", rng.standard_normal((IDS, dim)).astype(np.float32))
    net.const("split", np.array([0, 0, HEADS, WIDTH]))
    net.const("join", np.array([0, 0, dim]))
    for name in ("q", "k", "v", "o"):
        net.const(f"w{name}", (rng.standard_normal((dim, dim)) / np.sqrt(dim)).astype(np.float32))
    x = net.add("Gather", ["table", "input_ids"], "x")
    for name in ("q", "k", "v"):
        heads = net.add("Reshape", [net.add("MatMul", [x, f"w{name}"], f"{name}_flat"), "split"], f"{name}_split")
        net.add("Transpose", [heads], name, perm=[0, 2, 3, 1] if name == "k" else [0, 2, 1, 3])
    net.add("MatMul", ["q", "k"], "scores")
    for name, value in (("first", [0]), ("second", [1]), ("middle", [1, 2])):
        net.const(name, np.array(value))
    net.const("unit", np.float32(1))
    net.const("least", np.float32(LEAST))
    mask = net.add("Unsqueeze", [net.add("Cast", ["attention_mask"], "mask_f", to=TensorProto.FLOAT), "middle"], "mask")
    masked = net.add("Mul", [net.add("Sub", ["unit", mask], "inverted"), "least"], "masked")
    for name, number in (("zero", 0), ("one", 1), ("seven", 7)):
        net.const(name, np.array(number))
    length = net.add("Gather", [net.add("Shape", ["input_ids"], "shape"), "one"], "length", axis=0)
    places = net.add("Range", ["zero", length, "one"], "places")
    rows = net.add("Unsqueeze", [places, "second"], "rows")
    relative = net.add("Sub", [net.add("Unsqueeze", [places, "first"], "columns"), rows], "relative")
    bucket = net.add("Min", [net.add("Abs", [relative], "distance"), "seven"], "bucket")
    net.const("biases", rng.standard_normal((8, HEADS)).astype(np.float32))
    by_head = net.add("Transpose", [net.add("Gather", ["biases", bucket], "looked_up")], "by_head", perm=[2, 0, 1])
    bias = net.add("Unsqueeze", [by_head, "first"], "bias")
    logits = net.add("Add", ["scores", net.add("Add", [bias, masked], "position_bias")], "logits")
    mixed = net.add("MatMul", [net.add("Softmax", [logits], "shares", axis=-1), "v"], "mixed")
    joined = net.add("Reshape", [net.add("Transpose", [mixed], "back", perm=[0, 2, 1, 3]), "join"], "joined")
    net.add("MatMul", [joined, "wo"], "y")
    ids = [
        helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", "length"])
        for n in ("input_ids", "attention_mask")
    ]
    return net.save(path, ids, [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "length", dim])])


def perceptron(path: Path, *, layers: int = 2, width: int = 24) -> Path:
    """Write products with weights and Relu between them: x [1, width] to y [1, width]."""
    net, rng = _Net(), np.random.default_rng(0)
    last = "x"
    for i in range(layers):
        net.const(f"w{i}", (rng.standard_normal((width, width)) / np.sqrt(width)).astype(np.float32))
        last = net.add("Relu", [net.add("MatMul", [last, f"w{i}"], f"product{i}")], f"relu{i}")
    net.add("Identity", [last], "y")
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, width])] for name in "xy"]
    return net.save(path, *ends)


def dynamically_quantised(source: Path, path: Path) -> Path:
    """Write a model with its weights in int8, its activations rounded to u8 as it runs."""
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(source, path)
    return path


def cancelling(width: int = 32) -> ov.Model:
    """Return products around 1000 from which 1000 is subtracted: x [4, width]; in bf16 nothing is left."""
    rng = np.random.default_rng(0)
    x = op.parameter([4, width], np.float32, name="x")
    weights = [constant(rng.standard_normal((width, width)) / np.sqrt(width), f"w{i}") for i in range(2)]
    far = constant(np.full((1, width), 1000.0), "far")
    shifted = op.add(op.matmul(x, weights[0], False, False, name="first"), far, name="shifted")
    passed = op.matmul(shifted, constant(np.eye(width), "eye"), False, False, name="passed")
    cancelled = op.subtract(passed, far, name="cancelled")
    return ov.Model([op.result(op.matmul(cancelled, weights[1], False, False, name="last"), name="out")], [x], "cancel")
