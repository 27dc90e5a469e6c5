"""Small ONNX files for tests."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def onnx_file(
    path: Path, nodes: Sequence[onnx.NodeProto], initializers: Sequence[onnx.TensorProto] = (), *, outputs: str = "y"
) -> Path:
    """Write a model of input x [1, 3, 8, 8] to `path`, and return the path."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        list(initializers),
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    model = helper.make_model(graph, opset_imports=opsets)
    model.ir_version = 8
    path.write_bytes(model.SerializeToString())
    return path


def convolution_onnx(path: Path) -> Path:
    """Write a convolution and a layer normalisation with unnamed operations and shape arithmetic between them."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((4, 3, 3, 3)).astype(np.float32),
        "b": np.ones(4, np.float32),
        "minus": np.array([-1]),
        "zero": np.array([0]),
        "one": np.array([1]),
        "gain": np.ones(144, np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"]),
        helper.make_node("Relu", ["c"], ["r"], name="twice"),
        helper.make_node("Shape", ["r"], ["s"]),
        helper.make_node("Slice", ["s", "zero", "one", "zero"], ["rows"]),
        helper.make_node("Concat", ["rows", "minus"], ["target"], axis=0),
        helper.make_node("Reshape", ["r", "target"], ["flat"], name="twice"),
        helper.make_node("LayerNormalization", ["flat", "gain"], ["n"], name="norm"),
        helper.make_node("HardSwish", ["n"], ["y"]),
    ]
    return onnx_file(path, nodes, [numpy_helper.from_array(value, name) for name, value in weights.items()])


def relu_onnx(path: Path, numbers: Sequence[int]) -> Path:
    """Write a chain of Relu operations called Relu_<number>, as older exporters do, and an unnamed end."""
    ends = ["x", *(f"t{i}" for i in numbers)]
    nodes = [
        helper.make_node("Relu", [a], [b], name=f"Relu_{i}")
        for i, (a, b) in zip(numbers, itertools.pairwise(ends), strict=True)
    ]
    return onnx_file(path, [*nodes, helper.make_node("Softplus", [ends[-1]], ["y"])])
