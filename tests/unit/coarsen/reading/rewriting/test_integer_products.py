"""Dynamically quantised products: recognised in full or left alone, and the same but for the rounding of inputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import openvino as ov
import pytest
from onnx import numpy_helper
from openvino import opset13 as op

from coarsen.reading.model.read import read_model
from coarsen.reading.rewriting.integer_products import dequantise_products, in_8_bits, integer_products
from tests.exported_models import FLOAT, OnnxGraph
from tests.processors import saturates
from tests.quantised_models import KINDS, WAYS, float_model, float_twin, quantised

Outputs = list[np.ndarray[Any, np.dtype[Any]]]
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
PRODUCTS = {"transformer": 6, "mlp": 3, "conv": 5, "lstm": 1, "gru": 1}
# Products of matrices and convolutions in every way, and what else there is in one.
QUANTISED = [
    *((kind, way) for kind in ("transformer", "conv") for way in WAYS),
    *((kind, "uint8 per channel") for kind in KINDS if kind not in ("transformer", "conv")),
]
# Of inputs to 8 bits: the models here lose 0.001 to 0.01 by it, and 0.05 where ONNX Runtime's sums saturate.
ROUNDING = 0.1 if saturates() else 0.03


def feed(model: ov.Model) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(1).standard_normal(list(model.inputs[0].shape)).astype(np.float32)


def outputs(model: ov.Model) -> Outputs:
    return list(ov.Core().compile_model(model, "CPU", EXACT)([feed(model)]).values())


def by_onnxruntime(path: Path, model: ov.Model) -> Outputs:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, {"x": feed(model)}))


def distance(found: Outputs, expected: Outputs) -> float:
    pairs = zip(found, expected, strict=True)
    return max(float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in pairs)


@pytest.mark.parametrize(("kind", "way"), QUANTISED)
def test_rewritten_models_compute_what_their_float_twins_do(kind: str, way: str, tmp_path: Path) -> None:
    path = quantised(float_model(kind, tmp_path), way)
    packed, plain = read_model(path), read_model(path)
    assert integer_products(packed) == PRODUCTS[kind]
    for model, is_packed in ((packed, True), (plain, False)):
        assert len(dequantise_products(model, packed=is_packed)) == PRODUCTS[kind]
        assert integer_products(model) == 0
        assert not any("Reduce" in op.get_type_name() and "Mean" not in op.get_type_name() for op in model.get_ops())
        assert distance(outputs(model), by_onnxruntime(float_twin(path), model)) < 1e-5
        assert distance(outputs(model), by_onnxruntime(path, model)) < ROUNDING


@pytest.mark.parametrize(("kind", "compressed"), [("transformer", True), ("conv", False), ("lstm", False)])
def test_models_that_were_converted_before_are_recognised_as_well(
    kind: str, tmp_path: Path, *, compressed: bool
) -> None:
    path = quantised(float_model(kind, tmp_path), "uint8 per channel")
    ov.save_model(ov.convert_model(path), tmp_path / "model.xml", compress_to_fp16=compressed)
    model = read_model(tmp_path / "model.xml")
    assert len(dequantise_products(model, packed=True)) == PRODUCTS[kind]
    assert distance(outputs(model), by_onnxruntime(float_twin(path), model)) < (2e-3 if compressed else 1e-5)


def test_weights_are_stored_in_8_bits_or_as_floats(tmp_path: Path) -> None:
    path = quantised(float_model("transformer", tmp_path), "uint8 per channel")
    for is_packed, types in ((True, {"i8", "u8"}), (False, {"f32"})):
        model = read_model(path)
        names = dequantise_products(model, packed=is_packed)
        weights = [node for node in model.get_ops() if node.get_friendly_name() in {f"{n}/weights" for n in names}]
        assert len(weights) == len(names)
        assert {node.get_output_element_type(0).get_type_name() for node in weights} <= types


def test_names_of_products_and_of_outputs_stay(tmp_path: Path) -> None:
    path = quantised(float_model("conv", tmp_path), "int8 per tensor")
    model = read_model(path)
    before, ports = {node.get_friendly_name() for node in model.get_ops()}, [p.get_names() for p in model.outputs]
    products = dequantise_products(model, packed=True)
    after = [node.get_friendly_name() for node in model.get_ops()]
    assert set(products) <= before & set(after)
    assert all(node.output(0).get_names() for node in model.get_ops() if node.get_friendly_name() in products)
    assert len(set(after)) == len(after)
    assert [p.get_names() for p in model.outputs] == ports


def test_an_output_right_behind_a_product_keeps_its_names(tmp_path: Path) -> None:
    model = dynamically_quantised(tmp_path, lambda nodes: None)
    names = model.outputs[0].get_names()
    assert names
    assert dequantise_products(model, packed=False) == ["product"]
    assert model.outputs[0].get_names() == names
    (product,) = (node for node in model.get_ops() if node.get_friendly_name() == "product")
    assert product.output(0).get_names() == names


def dynamically_quantised(folder: Path, change: Callable[[dict[str, onnx.NodeProto]], None]) -> ov.Model:
    """Return one product of inputs x [2, 4] and z, whose nodes were changed."""
    helper, kinds = onnx.helper, onnx.TensorProto
    nodes = {
        "quantise": helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
        "other": helper.make_node("DynamicQuantizeLinear", ["z"], ["q_z", "scale_z", "zero_z"]),
        "product": helper.make_node("MatMulInteger", ["q", "w", "zero", "w_zero"], ["integers"], name="product"),
        "cast": helper.make_node("Cast", ["integers"], ["floats"], to=kinds.FLOAT),
        "scales": helper.make_node("Mul", ["scale", "w_scale"], ["scales"]),
        "scaled": helper.make_node("Mul", ["floats", "scales"], ["y"]),
        "kept": helper.make_node("Mul", ["scale_z", "w_scale"], ["kept"]),
    }
    change(nodes)
    constants = {"w": np.arange(12, dtype=np.int8).reshape(4, 3), "w_zero": np.int8(3), "w_scale": np.float32(0.25)}
    graph = helper.make_graph(
        list(nodes.values()),
        "one",
        [helper.make_tensor_value_info(name, kinds.FLOAT, [2, 4]) for name in "xz"],
        [helper.make_tensor_value_info(name, kinds.FLOAT, None) for name in ("y", "kept")],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "one.onnx")
    return read_model(folder / "one.onnx")


def set_input(node: str, index: int, name: str) -> Callable[[dict[str, onnx.NodeProto]], None]:
    def change(nodes: dict[str, onnx.NodeProto]) -> None:
        nodes[node].input[index] = name

    return change


def compute_weights(nodes: dict[str, onnx.NodeProto]) -> None:
    """Multiply with the other quantised value, turned, instead of constants."""
    insert(nodes, onnx.helper.make_node("Transpose", ["q_z"], ["q_w"]))
    nodes["product"].input[1] = "q_w"


def insert(nodes: dict[str, onnx.NodeProto], *added: onnx.NodeProto) -> None:
    """Put nodes before the product, in whose order they are."""
    later = {name: nodes.pop(name) for name in ("product", "cast", "scales", "scaled", "kept")}
    nodes.update({f"added {i}": node for i, node in enumerate(added)} | later)


CHANGED = {
    "the scale of another value": set_input("scales", 0, "scale_z"),
    "the zero point of another value": set_input("product", 2, "zero_z"),
    "integers of another value": set_input("product", 0, "q_z"),
    "no scale": set_input("scaled", 1, "w_scale"),
    "the integers read once more": set_input("kept", 0, "floats"),
    "the integers given out as they are": lambda nodes: nodes["kept"].CopyFrom(
        onnx.helper.make_node("Cast", ["integers"], ["kept"], to=onnx.TensorProto.FLOAT)
    ),
    "weights that are computed": compute_weights,
}


@pytest.mark.parametrize("what", CHANGED)
def test_what_is_not_the_whole_pattern_is_left_alone(what: str, tmp_path: Path) -> None:
    model = dynamically_quantised(tmp_path, CHANGED[what])
    before = [node.get_type_name() for node in model.get_ordered_ops()]
    assert integer_products(model) == 1
    assert dequantise_products(model, packed=True) == []
    assert [node.get_type_name() for node in model.get_ordered_ops()] == before


def test_a_scale_along_another_dimension_than_the_channels_is_left_alone(tmp_path: Path) -> None:
    def convolve(scale: list[int]) -> int:
        g = OnnxGraph()
        q, step, zero = g.op("DynamicQuantizeLinear", "x", outputs=3)
        integers = g.op("ConvInteger", q, g.const(np.ones((3, 3, 1, 1)), np.int8), zero, g.const(0, np.int8))
        scales = g.op("Mul", step, g.const(np.arange(1, 4).reshape(scale), np.float32))
        y = g.op("Mul", g.op("Cast", integers, to=FLOAT), scales)
        g.save(tmp_path / "conv.onnx", {"x": (FLOAT, [1, 3, 3, 3])}, {"y": (y, FLOAT, [1, 3, 3, 3])})
        return len(dequantise_products(read_model(tmp_path / "conv.onnx"), packed=True))

    assert convolve([3, 1, 1]) == convolve([1, 3, 1, 1]) == 1
    assert convolve([3]) == convolve([1, 3, 1]) == 0


def test_the_least_of_one_row_is_not_the_least_of_all(tmp_path: Path) -> None:
    model = dynamically_quantised(tmp_path, lambda nodes: None)
    for node in model.get_ordered_ops():
        if node.get_type_name() == "ReduceMin":
            rows = op.reduce_min(node.input_value(0), op.constant(np.array([1])), keep_dims=False)
            first = op.gather(rows, op.constant(np.int64(0)), op.constant(np.int64(0)))
            for reader in node.output(0).get_target_inputs():
                reader.replace_source_output(first.output(0))
    model.validate_nodes_and_infer_types()
    assert dequantise_products(model, packed=True) == []


@pytest.mark.parametrize("move", ["Transpose", "Reshape"])
def test_quantised_inputs_may_be_moved_before_the_product(move: str, tmp_path: Path) -> None:
    def change(nodes: dict[str, onnx.NodeProto]) -> None:
        make = onnx.helper.make_node
        if move == "Transpose":
            insert(nodes, make("Transpose", ["q"], ["turned"]), make("Transpose", ["turned"], ["q_x"]))
        else:
            shape = numpy_helper.from_array(np.array([1, 2, 4]), "shape")
            insert(nodes, make("Constant", [], ["shape"], value=shape), make("Reshape", ["q", "shape"], ["q_x"]))
        nodes["product"].input[0] = "q_x"

    model, untouched = (dynamically_quantised(tmp_path, change) for _ in range(2))
    assert dequantise_products(model, packed=True) == ["product"]
    feeds = [np.random.default_rng(i).standard_normal((2, 4)).astype(np.float32) for i in range(2)]
    found, expected = (ov.Core().compile_model(m, "CPU", EXACT)(feeds)[0] for m in (model, untouched))
    np.testing.assert_allclose(found, expected, atol=0.02 * np.abs(expected).max())
    x = feeds[0] if move == "Transpose" else feeds[0].reshape(1, 2, 4)
    np.testing.assert_allclose(found, x @ (np.arange(12).reshape(4, 3) - 3) * 0.25, rtol=1e-5, atol=1e-5)


def test_products_in_branches_are_rewritten_as_well(tmp_path: Path) -> None:
    g, weights = OnnxGraph(), np.arange(12, dtype=np.int8).reshape(4, 3)
    q, step, zero = g.op("DynamicQuantizeLinear", "x", outputs=3)
    helper, branches = onnx.helper, {}
    for name in ("then", "else"):
        inner = OnnxGraph()
        own = inner.op("DynamicQuantizeLinear", "x", outputs=3) if name == "then" else (q, step, zero)
        integers = inner.op("MatMulInteger", own[0], inner.const(weights, np.int8), own[2], inner.const(3, np.int8))
        scales = inner.op("Mul", own[1], inner.const(0.25 if name == "then" else 0.5, np.float32))
        y = inner.op("Mul", inner.op("Cast", integers, to=FLOAT), scales)
        for tensor in inner.weights:
            tensor.name = f"{name}_{tensor.name}"
        for node in inner.nodes:
            for i, source in enumerate(node.input):
                node.input[i] = f"{name}_{source}" if source.startswith("const") else source
        out = helper.make_tensor_value_info(y, FLOAT, [2, 3])
        branches[f"{name}_branch"] = helper.make_graph(inner.nodes, name, [], [out], inner.weights)
    y = g.op("If", g.op("Greater", g.op("ReduceSum", "x", keepdims=0), g.const(0, np.float32)), **branches)
    g.save(tmp_path / "if.onnx", {"x": (FLOAT, [2, 4])}, {"y": (y, FLOAT, [2, 3])})
    model = read_model(tmp_path / "if.onnx")
    assert integer_products(model) == 2
    assert len(dequantise_products(model.clone(), packed=True)) == 1  # the other branch is handed integers from outside
    assert integer_products(model) == 2  # a clone has bodies of its own
    dequantise_products(model, packed=True)
    x = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
    for sign in (1, -1):
        x *= sign * np.sign(x.sum())
        found = ov.Core().compile_model(model, "CPU", EXACT)([x])[0]
        expected = x @ (weights - 3) * (0.25 if sign > 0 else 0.5)
        np.testing.assert_allclose(found, expected, atol=1e-5 if sign > 0 else 0.02 * np.abs(expected).max())


def test_integers_that_8_bits_do_not_hold_stay_floats() -> None:
    assert in_8_bits(np.array([[-300, 0]], np.int32)) is None
    stored = in_8_bits(np.array([[-128, 127]], np.int32))
    assert stored is not None
    assert stored[1] is None


def test_values_and_zero_points_give_the_integers_again() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        zero = rng.integers(0, 256, (5, 1))
        values = (rng.integers(0, 256, (5, 7)) - zero).astype(np.int32)
        stored = in_8_bits(values)
        assert stored is not None
        again = stored[0].astype(np.int32) - (0 if stored[1] is None else stored[1].astype(np.int32))
        np.testing.assert_array_equal(again, values)
