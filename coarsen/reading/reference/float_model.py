"""A quantised ONNX model computed in floating point: its weights as they are stored, its activations not rounded.

Every operation is replaced on its own, so that no pattern has to be recognised. What quantises an activation gives it
back, clipped to the range that the integers have; what dequantises it does nothing; and what multiplies integers
multiplies these numbers by the weights without their zero point. Of dynamic quantisation the scale is 1 and the zero
point 0, and the scales of the weights that follow make the result right. How far the model itself is from its twin is
what the rounding of its activations costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.core.errors import MissingPackageError, ModelError

QUANTISED = (b"DynamicQuantizeLinear", b"DynamicQuantizeLSTM", b"QuantizeLinear")  # a file without them has no twin
PASSED_ON = frozenset(
    {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "MaxPool", "Flatten", "Slice", "Gather", "Identity"}
)
INTEGER_PRODUCTS = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}


def float_twin(path: Path) -> bytes | None:
    """Return the twin of a quantised ONNX file as the content of another; None for a model that is not quantised.

    Raises:
        MissingPackageError: onnx is not installed.
        ModelError: it has operations on integers (QLinearConv ..) that have no counterpart.
    """
    content = path.read_bytes()
    if not any(name in content for name in QUANTISED):
        return None
    try:
        import onnx
    except ImportError as error:
        raise MissingPackageError("Computing a quantised model in floating point takes", "onnx") from error
    model = onnx.load(str(path))
    integers = sorted({node.op_type for node in model.graph.node if node.op_type.startswith("QLinear")})
    if integers:
        raise ModelError(f"{', '.join(integers)} have no counterpart in floating point")
    _replace_operations(model.graph, onnx)
    twin: bytes = model.SerializeToString()
    return twin


def _replace_operations(graph: Any, onnx: Any) -> None:
    """Replace the operations of a graph, and of those inside it."""
    floats: set[str] = set()  # tensors that are floating point in the twin and integers in the model
    constants = {c.name: c for c in graph.initializer}
    constants |= {n.output[0]: n.attribute[0].t for n in graph.node if n.op_type == "Constant" and n.attribute}
    nodes = []
    del graph.value_info[:]  # some of these types are no longer right
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                _replace_operations(inner, onnx)
        if node.op_type == "DynamicQuantizeLinear":
            floats.add(node.output[0])
            nodes += _unrounded_nodes(node, onnx)
        elif node.op_type in INTEGER_PRODUCTS and node.input[0] in floats:
            floats.add(node.output[0])
            nodes += _float_product(node, constants, onnx)
        elif node.op_type == "DynamicQuantizeLSTM":
            nodes += _float_lstm(node, onnx)
        elif node.op_type == "QuantizeLinear" and node.input[0] not in constants:
            floats.add(node.output[0])
            nodes += _clipping_nodes(node, constants, onnx)
        elif node.op_type == "DequantizeLinear" and node.input[0] in floats:
            nodes.append(onnx.helper.make_node("Identity", [node.input[0]], [node.output[0]], name=node.name))
        elif node.op_type in PASSED_ON and node.input[0] in floats:
            floats.add(node.output[0])
            nodes.append(node)
        else:  # of these, Cast to floating point takes floating point as well
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


def _unrounded_nodes(node: Any, onnx: Any) -> list[Any]:
    """Return what gives a tensor back in place of its quantised values, with a scale of 1 and a zero point of 0."""
    make, types = onnx.helper, onnx.TensorProto
    scale = make.make_tensor(f"{node.output[1]}_one", types.FLOAT, [], [1.0])
    zero = make.make_tensor(f"{node.output[2]}_zero", types.UINT8, [], [0])
    nodes = [make.make_node("Identity", [node.input[0]], [node.output[0]], name=f"{node.name}_unrounded")]
    for name, value in ((node.output[1], scale), (node.output[2], zero)):
        if name:
            nodes.append(make.make_node("Constant", [], [name], name=f"{name}_constant", value=value))
    return nodes


def _clipping_nodes(node: Any, constants: Mapping[str, Any], onnx: Any) -> list[Any]:
    """Return what clips a tensor to the range of its quantised values, where that is one range and known."""
    make, types = onnx.helper, onnx.TensorProto
    # Value of a constant, None of what is none
    scale, zero = (
        onnx.numpy_helper.to_array(constants[name]) if name in constants else None
        for name in (*node.input[1:3], "")[:2]
    )
    if scale is None or zero is None or scale.size != 1 or zero.size != 1 or zero.dtype.kind not in "iu":
        return [make.make_node("Identity", [node.input[0]], [node.output[0]], name=node.name)]
    limits = np.iinfo(zero.dtype)
    nodes, names = [], []
    for end in (limits.min, limits.max):
        names.append(f"{node.output[0]}_{'low' if end == limits.min else 'high'}")
        value = make.make_tensor(f"{names[-1]}_value", types.FLOAT, [], [(end - int(zero.item())) * scale.item()])
        nodes.append(make.make_node("Constant", [], [names[-1]], name=f"{names[-1]}_constant", value=value))
    return [*nodes, make.make_node("Clip", [node.input[0], *names], [node.output[0]], name=node.name)]


def _float_product(node: Any, constants: Mapping[str, Any], onnx: Any) -> list[Any]:
    """Return the product of floating point numbers in place of one of integers."""
    make, types = onnx.helper, onnx.TensorProto
    weights = f"{node.output[0]}_weights"
    nodes = [make.make_node("Cast", [node.input[1]], [weights], name=f"{weights}_cast", to=types.FLOAT)]
    if len(node.input) > 3 and node.input[3]:
        zero, centred = f"{weights}_zero", f"{weights}_centred"
        nodes.append(make.make_node("Cast", [node.input[3]], [zero], name=f"{zero}_cast", to=types.FLOAT))
        shaped, rank = zero, len(constants[node.input[1]].dims) if node.input[1] in constants else 0
        if node.op_type == "ConvInteger" and rank:  # a zero point for all channels, the first dimension, or for each
            shaped = f"{zero}_shaped"
            # zero points of a convolution's weights, one or as many as channels: [c, 1, ...]
            target = f"{shaped}_target"
            value = make.make_tensor(f"{target}_value", onnx.TensorProto.INT64, [rank], [-1] + [1] * (rank - 1))
            nodes += [
                make.make_node("Constant", [], [target], name=f"{target}_constant", value=value),
                make.make_node("Reshape", [zero, target], [shaped], name=f"{shaped}_reshape"),
            ]
        nodes.append(make.make_node("Sub", [weights, shaped], [centred], name=f"{centred}_sub"))
        weights = centred
    kind = INTEGER_PRODUCTS[node.op_type]
    product = make.make_node(kind, [node.input[0], weights], [node.output[0]], name=node.name)
    product.attribute.extend(node.attribute)
    return [*nodes, product]


def _float_lstm(node: Any, onnx: Any) -> list[Any]:
    """Return an LSTM of floating point weights in place of com.microsoft's of quantised ones, [dirs, inputs, 4 h]."""
    make, types = onnx.helper, onnx.TensorProto
    stem = node.output[0] or node.output[1] or node.output[2]
    target = f"{stem}_rows"
    value = make.make_tensor(f"{target}_value", types.INT64, [3], [0, 1, -1])  # a scale for each direction, or column
    nodes = [make.make_node("Constant", [], [target], name=f"{target}_constant", value=value)]
    inputs = list(node.input)
    for at, scale, zero in ((1, 8, 9), (2, 10, 11)):
        name = f"{stem}_weights_{at}"
        steps = [
            ("Cast", [inputs[at]], {"to": types.FLOAT}),
            ("Cast", [inputs[zero]], {"to": types.FLOAT}),
            ("Reshape", [f"{name}_1", target], {}),
            ("Sub", [f"{name}_0", f"{name}_2"], {}),
            ("Reshape", [inputs[scale], target], {}),
            ("Mul", [f"{name}_3", f"{name}_4"], {}),
            ("Transpose", [f"{name}_5"], {"perm": [0, 2, 1]}),
        ]
        nodes += [
            make.make_node(kind, taken, [f"{name}_{i}"], name=f"{name}_{i}", **attributes)
            for i, (kind, taken, attributes) in enumerate(steps)
        ]
        inputs[at] = f"{name}_6"
    lstm = make.make_node("LSTM", inputs[:8], list(node.output), name=node.name)
    lstm.attribute.extend(node.attribute)
    return [*nodes, lstm]
