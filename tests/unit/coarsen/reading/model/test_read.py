"""The model reader: what it keeps of a file, and the names it gives."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openvino import opset13 as op

from coarsen.reading.model.files import model_sha256
from coarsen.reading.model.read import name_the_nameless, read_model, save_model, to_graph
from tests import models
from tests.models import SMALL, names, through_file, types
from tests.onnx_models import convolution_onnx, relu_onnx


def weight_bytes(model: ov.Model, name: str) -> int:
    graph = to_graph(model, source="")
    return int(graph.weight_bytes[graph.names.index(name)])


# What is kept


@pytest.mark.parametrize("build", SMALL)
def test_names_and_order_survive_saving_and_reading(build: Callable[[], ov.Model], tmp_path: Path) -> None:
    model = through_file(build(), tmp_path)
    save_model(model, tmp_path / "again.xml")
    assert names(ov.Core().read_model(tmp_path / "again.xml")) == names(model)
    assert names(read_model(tmp_path / "again.xml")) == names(model)


def test_folding_keeps_what_the_model_computes(tmp_path: Path) -> None:
    path = convolution_onnx(tmp_path / "model.onnx")
    image = np.random.default_rng(1).standard_normal((1, 3, 8, 8)).astype(np.float32)
    core, exact = ov.Core(), {"INFERENCE_PRECISION_HINT": "f32"}
    ours = core.compile_model(read_model(path), "CPU", exact)([image])[0]
    theirs = core.compile_model(core.read_model(path), "CPU", exact)([image])[0]
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)  # float32 sums in another order


def test_shape_arithmetic_is_folded_away(tmp_path: Path) -> None:
    found = types(read_model(convolution_onnx(tmp_path / "model.onnx")))
    assert "Relu" in found
    assert not {"ShapeOf", "Slice", "Concat", "Broadcast", "Range"} & set(found)


@pytest.mark.parametrize("dtype", [np.float16, np.int8, np.uint8])
def test_packed_weights_stay_packed(dtype: type[np.generic], tmp_path: Path) -> None:
    x = op.parameter([1, 4], np.float32, name="x")
    unpacked = op.convert(models.constant(np.ones((4, 4)), "w", dtype), "f32", name="unpack")
    scaled = op.multiply(unpacked, models.constant(0.5, "scale"), name="scaled")
    model = ov.Model([op.result(op.matmul(x, scaled, False, False), name="out")], [x])
    read = through_file(model, tmp_path)
    assert "unpack" in names(read)
    assert "scaled" in names(read)
    assert weight_bytes(read, "w") == 16 * np.dtype(dtype).itemsize
    assert not any("DisableConstantFolding_0" in o.get_rt_info() for o in read.get_ordered_ops())  # no trace left


def test_fp16_weights_of_openvinos_own_compression_stay_packed(tmp_path: Path) -> None:
    ov.save_model(models.two_towers(), tmp_path / "model.xml", compress_to_fp16=True)
    assert types(read_model(tmp_path / "model.xml")).count("Convert") == 4


def test_packed_weights_inside_a_body_stay_packed(tmp_path: Path) -> None:
    ov.save_model(models.with_if(), tmp_path / "model.xml", compress_to_fp16=True)
    assert (
        weight_bytes(read_model(tmp_path / "model.xml"), "if") == 4 * 3 * 2 + 3 * 8 + 8
    )  # W in fp16, three indices and an axis


@pytest.mark.parametrize("dtype", [np.bool_, np.int32, np.int64])
def test_conversions_that_save_nothing_are_folded(dtype: type[np.generic], tmp_path: Path) -> None:
    x = op.parameter([1, 4], np.float32, name="x")
    values = op.convert(models.constant([1, 0, 1, 1], "mask", dtype), "f32", name="to_float")
    model = ov.Model([op.result(op.multiply(x, values))], [x])
    assert "Convert" not in types(through_file(model, tmp_path))


def test_saving_changes_no_precision_and_leaves_no_other_file(tmp_path: Path) -> None:
    save_model(models.two_towers(), tmp_path / "new" / "model.xml")
    assert {p.name for p in (tmp_path / "new").iterdir()} == {"model.xml", "model.bin"}
    assert (tmp_path / "new" / "model.bin").stat().st_size == 4 * 8 * 8 * 4


def test_a_model_can_be_saved_over_its_own_file(tmp_path: Path) -> None:
    model = through_file(models.two_towers(), tmp_path)
    before = model_sha256(tmp_path / "model.xml")
    save_model(model, tmp_path / "model.xml")
    assert model_sha256(tmp_path / "model.xml") == before


# Names


def test_an_onnx_file_read_twice_gives_the_same_names(tmp_path: Path) -> None:
    path = convolution_onnx(tmp_path / "model.onnx")
    first, second = (names(read_model(path)) for _ in range(2))
    assert first == second
    assert len(set(first)) == len(first)
    assert {"x", "c", "twice", "norm", "w"} <= set(first)  # names of the file
    assert not [name for name in first if re.fullmatch(r"[A-Z]\w*_\d+", name)]  # numbers OpenVINO counted


def test_nameless_operations_are_called_after_what_they_serve(tmp_path: Path) -> None:
    found = read_model(convolution_onnx(tmp_path / "model.onnx"))
    mvn = next(o for o in found.get_ordered_ops() if o.get_type_name() == "MVN")
    assert mvn.get_friendly_name() == "norm/MVN"


def counted(model: ov.Model) -> list[int]:
    return [int(o.get_name().split("_")[1]) for o in model.get_ordered_ops() if o.get_type_name() == "Relu"]


def test_an_onnx_name_that_looks_counted_is_kept(tmp_path: Path) -> None:
    core = ov.Core()
    path = relu_onnx(tmp_path / "model.onnx", range(4))
    first, second = (counted(core.read_model(path)) for _ in range(2))
    next_reading = [2 * b - a for a, b in zip(first, second, strict=True)]  # readings count equally far
    model = core.read_model(relu_onnx(path, next_reading))
    relus = [o for o in model.get_ordered_ops() if o.get_type_name() == "Relu"]
    assert [o.get_friendly_name() for o in relus] == [o.get_name() for o in relus]  # what the name of none looks like
    name_the_nameless(model)
    assert [o.get_friendly_name() for o in relus] == [f"Relu_{i}" for i in next_reading]


def test_equal_names_get_suffixes_that_are_free(tmp_path: Path) -> None:
    model = models.chain(5)
    for o in model.get_ordered_ops():
        if o.get_friendly_name() in ("op0", "op2", "op3"):
            o.set_friendly_name("same")
        if o.get_friendly_name() == "op1":
            o.set_friendly_name("same_2")
    assert names(through_file(model, tmp_path)) == ["x", "same", "same_2", "same_3", "same_4", "op4", "out"]


@settings(max_examples=15, deadline=None)  # reading is timed by nobody here
@given(given_names=st.lists(st.sampled_from(["a", "a_2", "a_3", "a_2_2", "x", "out"]), min_size=5, max_size=5))
def test_names_are_unique_and_the_first_keeps_its_own(
    given_names: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    model = models.chain(5)
    for i, name in enumerate(given_names):
        model.get_ordered_ops()[i + 1].set_friendly_name(name)
    found = names(through_file(model, tmp_path_factory.mktemp("names")))
    wanted = ["x", *given_names, "out"]
    assert len(set(found)) == len(found)
    assert all(found[wanted.index(name)] == name for name in set(wanted))
    assert all(new.startswith(old) for new, old in zip(found, wanted, strict=True))


def test_names_with_markup_survive(tmp_path: Path) -> None:
    model = models.chain(2)
    model.get_ordered_ops()[1].set_friendly_name("<a&b>\"' \u00e9")
    assert "<a&b>\"' \u00e9" in names(through_file(model, tmp_path))
