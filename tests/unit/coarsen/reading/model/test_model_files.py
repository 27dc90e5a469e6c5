"""The files of a model: which they are, their hash, and those that are refused."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import helper

from coarsen.reading.model.files import model_files, model_sha256, require_unchanged
from coarsen.reading.model.read import read_model, save_model
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


@pytest.mark.parametrize("name", ["model.foo", "model"])
def test_external_data_is_found_whatever_an_onnx_file_is_called(name: str, tmp_path: Path) -> None:
    path = convolution_onnx(tmp_path / name)
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="w.data", size_threshold=0)
    assert model_files(path) == (path, tmp_path / "w.data")
    assert types(read_model(path))


CHECKPOINT = ("a-1.meta", "a-1.data-00000-of-00002", "a-1.data-00001-of-00002", "a-1.index")
OTHERS = ("a-1.data", "a-10.index", "a-1.index.bak", "b.index", "checkpoint")


def written(folder: Path, **contents: str) -> Path:
    """Write files of these contents, each named by its path below the folder; return the folder."""
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


def test_a_checkpoint_is_its_graph_its_index_and_all_its_data(tmp_path: Path) -> None:
    written(tmp_path, **dict.fromkeys((*CHECKPOINT, *OTHERS), ""))
    assert [file.name for file in model_files(tmp_path / "a-1.meta")] == list(CHECKPOINT)


@pytest.mark.parametrize("changed", CHECKPOINT)
def test_the_hash_of_a_checkpoint_sees_each_of_its_files(changed: str, tmp_path: Path) -> None:
    written(tmp_path, **dict.fromkeys((*CHECKPOINT, *OTHERS), "old"))
    before = model_sha256(tmp_path / "a-1.meta")
    written(tmp_path, **dict.fromkeys(OTHERS, "new"))
    assert model_sha256(tmp_path / "a-1.meta") == before
    written(tmp_path, **{changed: "new"})
    assert model_sha256(tmp_path / "a-1.meta") != before


def test_a_model_that_is_renamed_as_a_whole_keeps_its_hash(tmp_path: Path) -> None:
    for first, second, suffixes in (
        ("a", "b", (".xml", ".bin")),
        ("a", "b", (".pdmodel", ".pdiparams")),
        ("a-1", "b", (".meta", ".index", ".data-00000-of-00001")),
        ("one", "two", ("/saved_model.pb", "/variables/variables.index")),
    ):
        for stem in (first, second):
            written(tmp_path, **{stem + suffix: suffix for suffix in suffixes})
        paths = [tmp_path / (stem + suffixes[0].replace("/saved_model.pb", "")) for stem in (first, second)]
        assert model_sha256(paths[0]) == model_sha256(paths[1])


def test_files_that_swap_names_are_another_model(tmp_path: Path) -> None:
    for folder, first, second in (("one", "1", "2"), ("two", "2", "1")):
        written(
            tmp_path / folder,
            **{"m.meta": "", "m.data-00000-of-00002": first, "m.data-00001-of-00002": second},
            **{"saved_model.pb": "", "assets/words": first, "assets/codes": second},
        )
    one, two = tmp_path / "one", tmp_path / "two"
    assert model_sha256(one / "m.meta") != model_sha256(two / "m.meta")
    assert model_sha256(one) != model_sha256(two)


def test_a_file_of_a_folder_that_is_renamed_is_another_model(tmp_path: Path) -> None:
    folder = written(tmp_path, **{"saved_model.pb": "", "assets/words": "1"})
    before = model_sha256(folder)
    (folder / "assets" / "words").rename(folder / "assets" / "terms")
    assert model_sha256(folder) != before


def test_bytes_that_move_from_one_file_to_the_next_are_seen(tmp_path: Path) -> None:
    hashes = [
        model_sha256(written(tmp_path, **{"a.xml": first, "a.bin": second}) / "a.xml")
        for first, second in (("1", "2"), ("2", "1"), ("12", ""), ("", "12"))
    ]
    assert len(set(hashes)) == 4


@pytest.mark.parametrize("ask", [read_model, model_files, model_sha256])
def test_a_missing_file_is_a_model_error(ask: Callable[[Path], object], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="absent"):
        ask(tmp_path / "absent.xml")


# Files that change while they are read


def test_a_model_that_stays_as_it_is_may_be_read(tmp_path: Path) -> None:
    path = written(tmp_path, **{"a.xml": "1", "a.bin": "2"}) / "a.xml"
    with require_unchanged(path, model_sha256(path)):
        path.read_text()
    with pytest.raises(ModelError, match="no good"), require_unchanged(path, model_sha256(path)):
        raise ModelError("It is no good.", "")


@pytest.mark.parametrize("touched", ["a.xml", "a.bin"])
def test_a_model_whose_content_changes_is_refused(touched: str, tmp_path: Path) -> None:
    path = written(tmp_path, **{"a.xml": "1", "a.bin": "2"}) / "a.xml"
    with (
        pytest.raises(ModelError, match=r"a\.xml changed while it was being read") as raised,
        require_unchanged(path, model_sha256(path)),
    ):
        (tmp_path / touched).write_text("3")
    assert "again" in raised.value.remedy


def test_a_model_that_changes_there_and_back_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, **{"a.xml": "1"}) / "a.xml"
    os.utime(path, ns=(1, 1))
    with pytest.raises(ModelError, match="changed while"), require_unchanged(path, model_sha256(path)):
        list(map(path.write_text, "21"))


def test_a_model_that_changed_before_it_is_read_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, **{"a.xml": "1"}) / "a.xml"
    before = model_sha256(path)
    path.write_text("2")
    with pytest.raises(ModelError, match="changed while"), require_unchanged(path, before):
        path.read_text()


@pytest.mark.parametrize("gone", ["a.bin", "a.xml"])
def test_a_model_that_goes_is_refused_for_that_and_not_for_what_the_reader_says(gone: str, tmp_path: Path) -> None:
    def read() -> None:
        with require_unchanged(path, model_sha256(path)):
            (tmp_path / gone).unlink()
            raise ModelError("It is no good.", "")

    path = written(tmp_path, **{"a.xml": "1", "a.bin": "2"}) / "a.xml"
    with pytest.raises(ModelError, match="changed while") as raised:
        read()
    assert "no good" in str(raised.value.__cause__)


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
    (tmp_path / "weights.data").write_bytes((tmp_path / "weights.data").read_bytes()[:8])
    assert re.search(r"weights\.data, where \S+ has its weights, holds less than it should", refusal(path).cause)
    (tmp_path / "weights.data").unlink()
    error = refusal(path)
    assert re.search(r"weights\.data, where \S+ has its weights, is missing", error.cause)
    assert "Copy weights.data" in error.remedy
