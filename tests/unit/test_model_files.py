"""The files of a model: which they are, their hash, and those that are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import helper

from coarsen.reading.files import model_files, sha256_of
from coarsen.reading.read import read_model, save_model
from pipeline.core.errors import ModelError
from tests import models
from tests.models import names, types
from tests.onnx_models import convolution_onnx, onnx_file


def test_the_files_of_an_ir_are_xml_and_bin(tmp_path: Path) -> None:
    save_model(models.two_towers(), tmp_path / "model.xml")
    assert model_files(tmp_path / "model.xml") == (tmp_path / "model.xml", tmp_path / "model.bin")


def test_external_data_of_an_onnx_file_is_found(tmp_path: Path) -> None:
    path = convolution_onnx(tmp_path / "model.onnx")
    long_name = "weights" * 30 + ".data"  # its length takes two bytes in the file
    onnx.save(onnx.load(path), path, save_as_external_data=True, location=long_name, size_threshold=0)
    assert model_files(path) == (path, tmp_path / long_name)
    assert types(read_model(path))


def test_external_data_outside_the_folder_is_not_looked_at(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "in").mkdir()
    path = convolution_onnx(tmp_path / "in" / "model.onnx")
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="xx_secret", size_threshold=0)
    path.write_bytes(path.read_bytes().replace(b"xx_secret", b"../secret"))
    assert model_files(path) == (path,)


def test_the_hash_sees_contents_and_order_but_not_names(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("a", "b", "c", "ab", "empty")}
    for name, content in (("a", "1"), ("b", "2"), ("c", "1"), ("ab", "12"), ("empty", "")):
        files[name].write_text(content)
    assert sha256_of([files["a"], files["b"]]) == sha256_of([files["c"], files["b"]])
    assert sha256_of([files["a"], files["b"]]) != sha256_of([files["b"], files["a"]])
    assert sha256_of([files["a"], files["b"]]) != sha256_of([files["ab"], files["empty"]])


@pytest.mark.parametrize("ask", [read_model, model_files, lambda path: sha256_of([path])])
def test_a_missing_file_is_a_model_error(ask: Callable[[Path], object], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="absent"):
        ask(tmp_path / "absent.xml")


# What is refused


def good_ir(folder: Path) -> tuple[bytes, bytes]:
    save_model(models.two_towers(), folder / "good.xml")
    return (folder / "good.xml").read_bytes(), (folder / "good.bin").read_bytes()


def refusal(path: Path) -> ModelError:
    with pytest.raises(ModelError) as caught:
        read_model(path)
    error = caught.value
    assert type(error) is ModelError
    assert error.cause
    assert error.remedy
    assert "\n" not in str(error)
    assert str(path.with_suffix("")) in error.cause
    return error


def test_a_folder_is_refused(tmp_path: Path) -> None:
    assert "is a folder" in refusal(tmp_path).cause


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"<html><body/></html>", "root element is <html>, not <net>"),
        (b"not xml at all", "not OpenVINO IR: syntax error"),
        (b"", "not OpenVINO IR: no element found"),
        (b'<net version="9"></net>', "version 9, older than 10"),
        (b"<net></net>", "version none"),
        (b'<net version="11"><layer type="Const"><data offset="?"/></layer></net>', "not OpenVINO IR: invalid literal"),
        (b'<?xml version="1.0"?><net name="m" version="11"><layers/><edges/></net>', "no operations to place"),
    ],
)
def test_an_xml_that_is_no_ir_is_refused(content: bytes, cause: str, tmp_path: Path) -> None:
    (tmp_path / "model.xml").write_bytes(content)
    assert cause in refusal(tmp_path / "model.xml").cause


def test_an_ir_cut_short_is_refused(tmp_path: Path) -> None:
    xml, _ = good_ir(tmp_path)
    (tmp_path / "model.xml").write_bytes(xml[: len(xml) // 2])
    assert "is not OpenVINO IR" in refusal(tmp_path / "model.xml").cause


def test_missing_weights_are_named(tmp_path: Path) -> None:
    good_ir(tmp_path)
    (tmp_path / "good.bin").unlink()
    error = refusal(tmp_path / "good.xml")
    assert "good.bin is missing" in error.cause
    assert "Copy good.bin" in error.remedy


@pytest.mark.parametrize("missing", [1, 500, 1024])
def test_truncated_weights_are_measured(missing: int, tmp_path: Path) -> None:
    _, weights = good_ir(tmp_path)
    assert len(weights) == 1024
    (tmp_path / "good.bin").write_bytes(weights[: len(weights) - missing])
    assert f"truncated: {1024 - missing} bytes of at least 1024" in refusal(tmp_path / "good.xml").cause


def test_weights_inside_bodies_are_looked_for(tmp_path: Path) -> None:
    save_model(models.with_if(), tmp_path / "good.xml")
    (tmp_path / "good.bin").write_bytes(b"")
    assert "truncated" in refusal(tmp_path / "good.xml").cause


def test_an_ir_without_constants_needs_no_weights(tmp_path: Path) -> None:
    save_model(models.chain(2), tmp_path / "good.xml")
    (tmp_path / "good.bin").unlink()
    assert names(read_model(tmp_path / "good.xml")) == ["x", "op0", "op1", "out"]


def test_an_operation_openvino_does_not_know_is_named(tmp_path: Path) -> None:
    xml, _ = good_ir(tmp_path)
    (tmp_path / "good.xml").write_bytes(xml.replace(b'type="MatMul"', b'type="FooBar"'))
    assert "FooBar" in refusal(tmp_path / "good.xml").cause


def test_a_model_that_computes_nothing_is_refused(tmp_path: Path) -> None:
    save_model(models.chain(0), tmp_path / "model.xml")
    assert "no operations to place" in refusal(tmp_path / "model.xml").cause


def test_a_model_without_outputs_is_refused(tmp_path: Path) -> None:
    model = models.with_state()
    model.remove_result(model.results[0])
    save_model(model, tmp_path / "model.xml")
    assert "no outputs" in refusal(tmp_path / "model.xml").cause


def test_all_operations_openvino_cannot_convert_are_named_at_once(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Foo", ["x"], ["a"], domain="own"),
        helper.make_node("Bar", ["a"], ["b"], domain="own"),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    error = refusal(onnx_file(tmp_path / "model.onnx", nodes))
    assert "own.Foo" in error.cause
    assert "own.Bar" in error.cause
    assert "Relu" not in error.cause


@pytest.mark.parametrize("name", ["model.onnx", "model.foo", "model.tflite", "model"])
@pytest.mark.parametrize("content", [b"", b"\x00\x01nonsense" * 20])
def test_a_file_of_no_format_is_refused_in_openvinos_words(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    assert "Unable to read the model" in refusal(tmp_path / name).cause


def test_an_onnx_file_cut_short_is_refused(tmp_path: Path) -> None:
    path = convolution_onnx(tmp_path / "model.onnx")
    path.write_bytes(path.read_bytes()[:300])
    refusal(path)


def test_missing_external_data_is_refused(tmp_path: Path) -> None:
    path = convolution_onnx(tmp_path / "model.onnx")
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="weights.data", size_threshold=0)
    (tmp_path / "weights.data").unlink()
    assert "weights.data" in refusal(path).cause
