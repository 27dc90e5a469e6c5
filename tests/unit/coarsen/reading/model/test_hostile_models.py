"""Shrunk failures of the campaign of mutated models."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import openvino as ov
import pytest
from onnx import TensorProto, helper, numpy_helper

from coarsen.reading.model.constant_growth import ReadLimits
from coarsen.reading.model.files import model_files, model_sha256
from coarsen.reading.model.onnx_checks import check_onnx
from coarsen.reading.model.read import read_model, save_model
from coarsen.reading.model.size_trial import why_refused
from coarsen.reading.read_in_process import read_in_process
from pipeline.core.errors import ModelError
from tests.onnx_models import onnx_file, relu_onnx


@pytest.mark.parametrize("text", [b"Softplus", b"Relu_2"])
def test_names_and_types_that_are_not_utf8_are_refused(text: bytes, tmp_path: Path) -> None:
    path = relu_onnx(tmp_path / "m.onnx", [1, 2, 3])
    path.write_bytes(path.read_bytes().replace(text, b"\xab" * len(text)))
    with pytest.raises(ModelError) as refused:
        read_model(path)
    assert str(path) in refused.value.cause


def test_a_model_that_no_ir_can_hold_is_refused(tmp_path: Path) -> None:
    left_out = helper.make_node("Sigmoid", [""], ["s"])
    path = onnx_file(tmp_path / "m.onnx", [left_out, helper.make_node("Add", ["s", "x"], ["y"])])
    with pytest.raises(ModelError, match=r"m\.onnx.*unsupported opset"):
        read_in_process(path, tmp_path, source=model_sha256(path), limits=ReadLimits())


@pytest.mark.parametrize("location", ["x" * 5000, "a\0b", "."])
def test_external_data_under_a_name_that_no_file_has_is_refused(location: str, tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.ones((1, 3, 8, 8), np.float32), "w")
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=location)
    path = onnx_file(tmp_path / "m.onnx", [helper.make_node("Add", ["x", "w"], ["y"])], [weight])
    assert model_files(path) == (path,)
    with pytest.raises(ModelError, match=r"m\.onnx"):
        read_model(path)


def test_a_name_that_an_ir_cannot_hold_is_the_same_in_graph_and_saved_model(tmp_path: Path) -> None:
    relu = helper.make_node("Relu", ["x"], ["a\0b"])
    path = onnx_file(tmp_path / "m.onnx", [relu, helper.make_node("Relu", ["a\0b"], ["y"])])
    model = read_model(path)
    save_model(model, tmp_path / "saved.xml")
    again = ov.Core().read_model(tmp_path / "saved.xml")
    assert {op.get_friendly_name() for op in again.get_ops()} == {op.get_friendly_name() for op in model.get_ops()}


def test_an_output_that_no_array_can_hold_is_refused(tmp_path: Path) -> None:
    shape = helper.make_tensor("shape", TensorProto.INT64, [3], [2**62, 0, 1000])
    path = onnx_file(tmp_path / "m.onnx", [helper.make_node("ConstantOfShape", ["shape"], ["y"])], [shape])
    assert "too big" in why_refused(ov.Core().read_model(path))


def test_what_openvino_never_comes_back_from_is_refused(tmp_path: Path) -> None:
    circle = [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])]
    path = onnx_file(tmp_path / "m.onnx", [*circle, helper.make_node("Relu", ["b"], ["y"])])
    with pytest.raises(ModelError, match="waits for itself"):
        read_model(path)
    model = onnx.load(relu_onnx(path, [1, 2, 3]))
    model.opset_import[0].version = 2**40
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="opset 1099511627776"):
        read_model(path)


@pytest.mark.parametrize("content", [b"", b"\xff" * 99, b"\x3a\xff", b"\x3b", b"\x08", b"\x42\x02\x10\xff"])
def test_what_is_no_protobuf_is_left_to_openvino(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(content)
    check_onnx(tmp_path / "m.onnx")


def test_an_operation_that_openvino_does_not_convert_is_named_with_its_reason(tmp_path: Path) -> None:
    """The body of a loop takes `y` beside what the loop hands on, as old exporters write it."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["go_on"]), helper.make_node("Add", ["x", "y"], ["next"])],
        "body",
        [
            helper.make_tensor_value_info(name, kind, shape)
            for name, kind, shape in (
                ("i", TensorProto.INT64, []),
                ("go", TensorProto.BOOL, []),
                ("x", TensorProto.FLOAT, [2]),
                ("y", TensorProto.FLOAT, [2]),
            )
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [2]),
        ],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["times", "", "a"], ["b"], name="steps", body=body)],
        "steps",
        [helper.make_tensor_value_info("a", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("b", TensorProto.FLOAT, [2])],
        [helper.make_tensor("times", TensorProto.INT64, [], [3])],
    )
    path = tmp_path / "steps.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())
    with pytest.raises(ModelError) as refused:
        read_model(path)
    assert re.search(r"cannot convert these operations of .*: Loop-\d+ \(at b, The provided loop", refused.value.cause)
    assert refused.value.remedy.startswith("Export the model without them")
