"""Sizes that models of open height, width or length are meant for, and inferences that tell whether they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnx
import openvino as ov
import pytest
from onnx import helper, numpy_helper
from openvino import opset13 as op

from coarsen.reading.model import choose_sizes as choosing
from coarsen.reading.model import size_trial as trial
from coarsen.reading.model.constant_growth import ReadLimits
from coarsen.reading.model.files import model_sha256
from coarsen.reading.model.read import read_shaped, save_model
from coarsen.reading.model.size_trial import try_sizes
from coarsen.reading.model.trial_log import Tries
from coarsen.reading.read_in_process import read_in_process
from coarsen.reading.sizes.dimensions import AxisRole, dimension_names, role_of
from coarsen.reading.sizes.shapes import ChosenShape, InputShapes, assumption_of, describe_shapes, shape_notes
from coarsen.reading.sizes.stated_sizes import numbers_in, stated_sides
from pipeline.core.errors import ModelError
from tests.models import constant, with_state
from tests.open_models import (
    anchored_detector,
    any_frames,
    any_image,
    coarse_detector,
    digit_reader,
    line_reader,
    molecule,
    patches,
    without_batch,
)


def chosen_of(path: Path) -> list[ChosenShape]:
    return read_shaped(path, InputShapes())[1]


def shapes_of(path: Path) -> list[str]:
    return [chosen.shape for chosen in chosen_of(path)]


@pytest.mark.parametrize("merges", [False, True])
@pytest.mark.parametrize(("rows", "shape"), [(48, "[1,3,48,320]"), (32, "[1,3,32,320]"), (64, "[1,3,64,256]")])
def test_a_recogniser_of_lines_gets_the_height_that_comes_to_one(tmp_path: Path, rows: int, shape: str, merges: bool):
    (chosen,) = chosen_of(line_reader(tmp_path, rows=rows, merges=merges))
    assert (chosen.shape, chosen.why) == (shape, "a line of text")


def test_a_dimension_that_is_removed_must_be_one(tmp_path: Path):
    x = op.parameter(ov.PartialShape([-1, -1, 4]), np.float32, name="x")
    halves = op.reshape(x, constant([1, -1, 128, 4], "halves", np.int64), False, name="halves")
    save_model(
        ov.Model([op.result(op.squeeze(halves, constant([1], "axis", np.int64), name="whole"))], [x]),
        tmp_path / "m.xml",
    )
    assert shapes_of(tmp_path / "m.xml") == ["[1,128,4]"]
    fixed = op.squeeze(op.relu(x), constant([1], "axis", np.int64), name="one")
    save_model(ov.Model([op.result(fixed)], [x]), tmp_path / "one.xml")
    assert shapes_of(tmp_path / "one.xml") == ["[1,1,4]"]


def test_rows_that_become_features_are_a_line_as_well(tmp_path: Path):
    (chosen,) = chosen_of(digit_reader(tmp_path))
    assert (chosen.shape, chosen.why) == ("[1,1,32,320]", "a line of text")


def test_an_image_may_come_without_a_batch(tmp_path: Path):
    assert shapes_of(without_batch(tmp_path)) == ["[3,224,224]"]


def test_a_detector_is_no_recogniser_of_lines(tmp_path: Path):
    (chosen,) = chosen_of(coarse_detector(tmp_path))
    assert (chosen.shape, chosen.why) == ("[1,3,224,224]", "usual")


@pytest.mark.parametrize(("number", "side"), [(320.0, 320), (416.0, 416), (319.0, 320), (256.0, 224), (255.0, 224)])
def test_a_number_that_coordinates_are_divided_by_tells_the_side(tmp_path: Path, number: float, side: int):
    assert shapes_of(coarse_detector(tmp_path, normalised_by=number)) == [f"[1,3,{side},{side}]"]


@pytest.mark.parametrize("seed", range(6))
def test_a_table_of_anchors_tells_the_side_of_the_images(tmp_path: Path, seed: int):
    rng = np.random.default_rng(seed)
    side = int(rng.choice([192, 256, 320, 384, 416, 512]))
    strides = [(8, 16), (8, 16, 32), (16, 32), (4, 8)][rng.integers(4)]
    each = int(rng.integers(1, 4))
    (chosen,) = chosen_of(anchored_detector(tmp_path, side=side, strides=strides, each=each))
    assert chosen.shape == f"[1,3,{side},{side}]"
    assert chosen.why == f"a table of {sum((side // s) ** 2 * each for s in strides)} rows"


@pytest.mark.parametrize("side", [320, 384])
def test_positions_that_are_resized_tell_the_side_of_the_images(tmp_path: Path, side: int):
    assert shapes_of(patches(tmp_path, side=side)) == [f"[1,3,{side},{side}]"]


@pytest.mark.parametrize(
    ("metadata", "shape"),
    [
        ({"imgsz": "[640, 640]"}, "[1,3,640,640]"),
        ({"imgsz": "[480, 640]", "stride": "32", "batch": "1"}, "[1,3,480,640]"),
        ({"input_size": "192"}, "[1,3,192,192]"),
        ({"rec_image_shape": "3,48,320"}, "[1,3,48,320]"),
        ({"rec_img_shape": "3x48x320"}, "[1,3,48,320]"),
        ({"input_shape": "[1, 240, 320, 3]"}, "[1,3,240,320]"),
        ({"height": "96", "width": "160"}, "[1,3,96,160]"),
        ({"orig_height": "1", "width": "160", "height": "96", "orig_width": "2"}, "[1,3,96,160]"),
        ({"batch_size": "8", "hidden_size": "768", "patch_size": "16", "version": "3"}, "[1,3,224,224]"),
        ({"model_size": "40", "train_size": "5000", "input_dim": "80", "stride": "32"}, "[1,3,224,224]"),
        ({"imgsz": "large", "names": "{0: 'person'}"}, "[1,3,224,224]"),
    ],
)
def test_metadata_state_the_size_of_images(tmp_path: Path, metadata: dict[str, str], shape: str):
    assert shapes_of(any_image(tmp_path, metadata)) == [shape]


def test_runtime_information_of_an_ir_states_the_size_as_well(tmp_path: Path):
    model = ov.Core().read_model(any_image(tmp_path, {}))
    model.set_rt_info("[416, 416]", ["model_info", "imgsz"])
    save_model(model, tmp_path / "m.xml")
    (chosen,) = chosen_of(tmp_path / "m.xml")
    assert (chosen.shape, chosen.why) == ("[1,3,416,416]", "metadata imgsz")


def test_a_stated_size_that_does_not_fit_is_passed_over(tmp_path: Path):
    path = line_reader(tmp_path)
    onnx_model = onnx.load(path)
    helper.set_model_props(onnx_model, {"imgsz": "[640, 640]"})
    onnx.save(onnx_model, path)
    assert shapes_of(path) == ["[1,3,48,320]"]


@pytest.mark.parametrize("atoms", ["num_atoms", "x1"])  # the second says nothing, but the names of the inputs do
def test_a_molecule_has_more_than_one_atom(tmp_path: Path, atoms: str):
    assert shapes_of(molecule(tmp_path, atoms=atoms)) == ["[32]", "[32,3]"]


def test_the_name_of_a_first_dimension_tells_whether_it_is_the_batch(tmp_path: Path):
    assert shapes_of(any_frames(tmp_path, {})) == ["[128,20]"]
    assert shapes_of(any_frames(tmp_path, {}, name="batch_size")) == ["[1,20]"]
    assert shapes_of(any_frames(tmp_path, {}, name="DynamicDimension.0")) == ["[1,20]"]
    assert shapes_of(any_frames(tmp_path, {}, name="samples")) == ["[16000,20]"]


def test_metadata_called_like_a_dimension_give_its_size(tmp_path: Path):
    assert shapes_of(any_frames(tmp_path, {"frames": "300"})) == ["[300,20]"]
    assert shapes_of(any_frames(tmp_path, {"seq_length": "77"}, name="time")) == ["[77,20]"]


def test_roles_follow_from_names():
    names = [
        "batch",
        "N",
        "batch_size",
        "sequence_length",
        "num_edges",
        "n_samples",
        "img_h",
        "unk__7",
        "",
        "s77",
        "nope",
    ]
    assert [role_of(name) for name in names] == [
        AxisRole.BATCH, AxisRole.BATCH, AxisRole.BATCH, AxisRole.LENGTH, AxisRole.EDGES, AxisRole.SAMPLES,
        AxisRole.HEIGHT,
        AxisRole.UNKNOWN, AxisRole.UNKNOWN, AxisRole.UNKNOWN, AxisRole.UNKNOWN,
    ]  # fmt: skip


def test_what_is_no_size_is_not_taken_for_one():
    assert numbers_in("[640, 640]") == (640, 640)
    assert [numbers_in(text) for text in ("yolo 640", "1.5", "", "0", "[0, 3]", "99999", "{0: 1}", "-3")] == [()] * 8
    assert list(stated_sides({"input_size": "3", "imgsz": "[1, 2, 3]", "input_shape": "[1, 7, 64, 64]"})) == []


@pytest.mark.parametrize("seed", range(5))
def test_names_of_dimensions_are_those_that_onnx_reads(tmp_path: Path, seed: int):
    rng = np.random.default_rng(seed)
    words = ["batch", "höhe", "x" * 300, "", None, 7, 2**40]
    inputs = [
        helper.make_tensor_value_info(
            f"in{i}", int(rng.choice([1, 7])), [words[k] for k in rng.integers(0, len(words), rng.integers(0, 5))]
        )
        for i in range(rng.integers(1, 5))
    ]
    weights = [numpy_helper.from_array(rng.standard_normal(int(rng.integers(1, 500))), f"w{i}") for i in range(3)]
    nodes = [helper.make_node("Identity", ["in0"], ["y"])]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", 1, None)], weights)
    model = helper.make_model(graph, producer_name="p" * 200)
    helper.set_model_props(model, {"a": "b"})
    onnx.save(model, tmp_path / "m.onnx")
    told = {
        i.name: tuple(d.dim_param for d in i.type.tensor_type.shape.dim)
        for i in onnx.load(tmp_path / "m.onnx").graph.input
    }
    assert dimension_names(tmp_path / "m.onnx") == told
    assert dimension_names(tmp_path / "m.xml") == {}


def noisy(when: Callable[[ov.Node], ov.Node]) -> ov.Model:
    """Return a model of any length whose outputs are off by noise where a function of their number is true."""
    x = op.parameter(ov.PartialShape([-1, -1]), np.float32, name="x")
    count = op.gather(op.shape_of(x), constant(1, "one", np.int64), constant(0, "axis", np.int64))
    noise = op.random_uniform(constant([1], "of", np.int64), constant(0.0, "low"), constant(1.0, "high"), "f32")
    return ov.Model([op.result(op.select(when(count), op.add(x, noise), x, name="y"))], [x])


def test_a_size_with_which_outputs_differ_from_inference_to_inference_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(trial, "RANDOM", frozenset())  # what draws random numbers stands for memory that nobody set
    save_model(noisy(lambda n: op.equal(n, constant(128, "usual", np.int64))), tmp_path / "m.xml")
    assert shapes_of(tmp_path / "m.xml") == ["[1,64]"]
    save_model(noisy(lambda n: op.greater(n, constant(0, "none", np.int64))), tmp_path / "all.xml")
    with pytest.raises(ModelError, match=r"with x \[1,128\]: of two inferences with the same inputs, the output"):
        shapes_of(tmp_path / "all.xml")


def test_a_model_that_draws_random_numbers_is_not_compared(tmp_path: Path):
    save_model(noisy(lambda n: op.greater(n, constant(0, "none", np.int64))), tmp_path / "m.xml")
    (chosen,) = chosen_of(tmp_path / "m.xml")
    assert (chosen.shape, chosen.trial) == ("[1,128]", "compared: nothing, because it draws random numbers")


def test_outputs_of_one_thread_and_of_all_must_agree(monkeypatch: pytest.MonkeyPatch):
    compiled = trial._compile_model

    def other(model: ov.Model, properties: dict[str, object] | None = None) -> ov.CompiledModel:
        if not properties:
            return compiled(model)
        other = model.clone()
        other.get_results()[0].input(0).replace_source_output(op.exp(other.get_parameters()[0]).output(0))
        return compiled(other)

    monkeypatch.setattr(trial, "_compile_model", other)
    x = op.parameter([1, 4], np.float32, name="x")
    assert "of 1 thread and of all, the output" in try_sizes(ov.Model([op.result(op.relu(x))], [x])).fault
    rounded = try_sizes(ov.Model([op.result(op.round(x, "half_to_even"))], [x]))
    assert rounded.fault == ""
    assert "1 thread and all (the output" in rounded.compared
    assert "as rounding may do" in rounded.compared


def flat_below(length: int) -> ov.Model:
    """Return a model whose output is 0 everywhere with fewer numbers than this."""
    x = op.parameter(ov.PartialShape([-1, -1]), np.float32, name="x")
    count = op.gather(op.shape_of(x), constant(1, "one", np.int64), constant(0, "axis", np.int64))
    enough = op.convert(op.greater_equal(count, constant(length, "length", np.int64)), "f32")
    return ov.Model([op.result(op.multiply(x, enough, name="y"))], [x])


def test_outputs_that_are_the_same_everywhere_ask_for_a_larger_size(tmp_path: Path):
    save_model(flat_below(200), tmp_path / "m.xml")
    assert shapes_of(tmp_path / "m.xml") == ["[1,256]"]


def test_a_smaller_size_does_not_hide_that_outputs_are_the_same_everywhere(tmp_path: Path):
    x = op.parameter(ov.PartialShape([-1, -1]), np.float32, name="x")
    count = op.gather(op.shape_of(x), constant(1, "one", np.int64), constant(0, "axis", np.int64))
    few = op.convert(op.less(count, constant(100, "most", np.int64)), "f32")
    save_model(ov.Model([op.result(op.multiply(x, few, name="y"))], [x]), tmp_path / "m.xml")
    assert shapes_of(tmp_path / "m.xml") == ["[1,128]"]


def test_what_is_known_of_sizes_outlives_the_process(tmp_path: Path):
    tries = Tries(tmp_path / "tries.jsonl")
    assert (tries.faults(), tries.unfinished()) == ({}, "")
    tries.begin("x [1]")
    assert (tries.faults(), tries.unfinished()) == ({}, "x [1]")
    tries.end("x [1]", "it was killed")
    tries.begin("x [2]")
    tries.end("x [2]", "")
    assert (Tries(tries.path).faults(), tries.unfinished()) == ({"x [1]": "it was killed"}, "")
    Tries().begin("x [1]")
    assert Tries().unfinished() == ""


def test_where_no_larger_size_helps_the_first_stays_and_that_is_told(tmp_path: Path):
    save_model(flat_below(100_000), tmp_path / "m.xml")
    chosen = chosen_of(tmp_path / "m.xml")
    assert [c.shape for c in chosen] == ["[1,128]"]
    (note,) = shape_notes([asdict(c) for c in chosen])
    assert "is 0 everywhere" in note
    assert "two inferences" in note


def test_what_no_input_leads_to_may_be_the_same_everywhere(tmp_path: Path):
    x = op.parameter(ov.PartialShape([-1, -1]), np.float32, name="x")
    ones = op.broadcast(constant(1.0, "one"), op.shape_of(x), name="ones")
    best = op.convert(op.greater(x, constant(99.0, "most")), "i32", name="decisions")
    outs = [op.result(out) for out in (op.relu(x), ones, op.reduce_sum(x, constant([0, 1], "all", np.int64)), best)]
    save_model(ov.Model(outs, [x]), tmp_path / "m.xml")
    (chosen,) = chosen_of(tmp_path / "m.xml")
    assert (chosen.shape, chosen.trial) == ("[1,128]", "compared: two inferences, 1 thread and all")


def rows_above(x: ov.Node) -> ov.Node:
    """Return the rows of an input whose sum is huge: none."""
    sums = op.reduce_sum(x, constant([1], "row", np.int64))
    rows = op.non_zero(op.greater(sums, constant(1e9, "huge")), "i64")
    return op.gather(x, op.squeeze(rows, constant([0], "first", np.int64)), constant(0, "axis", np.int64))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda x: op.log(op.negative(op.abs(x))), "is not a number"),
        (lambda x: op.multiply(x, constant(0.0, "nothing")), "is 0 everywhere"),
        (lambda x: op.convert(op.greater(x, constant(99.0, "most")), "i32"), "is 0 everywhere"),
        (rows_above, "is empty"),
    ],
)  # fmt: skip
def test_outputs_that_tell_nothing_are_a_doubt(build: Callable[[ov.Node], ov.Node], words: str):
    x = op.parameter([1, 4], np.float32, name="x")
    model = ov.Model([op.result(build(x))], [x])
    assert words in try_sizes(model).doubt
    assert "two inferences" in try_sizes(model, doubtful=True).compared


def test_what_takes_long_is_compared_less_and_that_is_told():
    x = op.parameter([1, 4], np.float32, name="x")
    told = try_sizes(ov.Model([op.result(op.relu(x))], [x]), comparing_s=0.0)
    assert told.fault == ""
    assert told.compared.startswith("nothing; two inferences and 1 thread and all were not compared: compiling takes")


def test_states_are_those_of_the_beginning_in_every_inference_that_is_compared():
    assert try_sizes(with_state()).fault == ""


def test_a_given_size_is_run_but_not_judged(tmp_path: Path):
    save_model(flat_below(200), tmp_path / "m.xml")
    (chosen,) = read_shaped(tmp_path / "m.xml", InputShapes(("x=1x8",)))[1]
    assert (chosen.shape, chosen.trial) == ("[1,8]", "")


def test_no_more_sizes_are_tried_than_is_worth_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tried = []
    original = choosing.try_sizes
    monkeypatch.setattr(choosing, "try_sizes", lambda model, **kw: tried.append(1) or original(model, **kw))
    save_model(flat_below(100_000), tmp_path / "m.xml")
    chosen_of(tmp_path / "m.xml")
    assert len(tried) == 1 + choosing.MOST_LARGER + 1  # the first, larger ones, and the first once more


def test_a_verdict_begins_with_the_sizes_that_nobody_gave():
    rows = [
        {"name": name, "declared": "[?]", "shape": "[1,4]", "given": given, "why": "usual", "trial": ""}
        for name, given in (("a", False), ("b", True), ("c", False), ("d", False), ("e", False))
    ]
    assert assumption_of(rows[1:2]) == ""
    assert assumption_of(rows[:2]) == "Assumed sizes: --shape 'a=1x4'; pass your own that way. "
    assert assumption_of(rows) == (
        "Assumed sizes: --shape 'a=1x4' --shape 'c=1x4' --shape 'd=1x4' and 1 more of the notes; "
        "pass your own that way. "
    )
    assert assumption_of([], open_size=8) == (
        "Assumed sizes: open dimensions measured with --set measure.dynamic_size=8; pass your own that way. "
    )


def test_sizes_that_someone_else_found_wrong_are_passed_over(tmp_path: Path):
    path, out = any_image(tmp_path, {"imgsz": "[96, 96]"}), tmp_path / "out"
    out.mkdir()
    known = describe_shapes([ChosenShape("x", "", "[1,3,96,96]", given=False)])
    for unfit, shape in (({}, "[1,3,96,96]"), ({known: "its outputs are not those of the reference"}, "[1,3,224,224]")):
        read_in_process(path, out, source=model_sha256(path), limits=ReadLimits(), unfit=unfit)
        (row,) = json.loads((out / "shapes.json").read_text())
        assert row["shape"] == shape
