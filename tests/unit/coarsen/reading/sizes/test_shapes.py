"""Dynamic inputs of models as exporters leave them, and the sizes they get."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from coarsen.reading.model.constant_growth import ReadLimits
from coarsen.reading.model.files import model_sha256
from coarsen.reading.model.read import read_shaped, save_model
from coarsen.reading.read_in_process import read_in_process
from coarsen.reading.sizes.shapes import InputShapes, concrete_models, shape_notes
from pipeline.core.devices import Topology
from pipeline.core.errors import ModelError, UsageError
from pipeline.core.graph import Grouping
from pipeline.core.measurement import Measurement, MeasurementFailed
from pipeline.core.placement import Placement
from pipeline.core.stages import Subject
from pipeline.shared.model_inputs import SEQUENCE
from pipeline.shared.payload import load_graph
from runtime.measuring.contest.hetero import Hetero
from runtime.measuring.outputs.inputs import sequence_length
from tests.exported_models import text_recogniser
from tests.models import constant, dynamic, growing_cache, with_state
from tests.two_cpus import two_cpus


def image(*, flat: int = 0, batch: int = -1) -> ov.Model:
    """Return a convolution over images of any size; flat: elements per image of its pooled output, 0 for any."""
    x = op.parameter(ov.PartialShape([batch, 3, -1, -1]), np.float32, name="image")
    x.output(0).set_names({"image"})
    weight = constant(np.ones((2, 3, 3, 3)), "weight")
    found = op.relu(op.convolution(x, weight, [2, 2], [1, 1], [1, 1], [1, 1], name="conv"), name="relu")
    if flat:
        found = op.reshape(found, constant([-1, flat], "shape", np.int64), False, name="flat")
        found = op.matmul(found, constant(np.ones((flat, 4)), "head"), False, False, name="scores")
        found = op.add(found, constant(np.ones((1, 4)), "bias"), name="biased")
    return ov.Model([op.result(found, name="out")], [x], "image")


def text() -> ov.Model:
    """Return a table look-up under a mask, both of any length."""
    ids, mask = (op.parameter(ov.PartialShape([-1, -1]), np.int64, name=name) for name in ("ids", "mask"))
    rows = op.gather(constant(np.ones((50, 4)), "table"), ids, constant(0, "axis", np.int64), name="rows")
    scale = op.unsqueeze(op.convert(mask, "f32", name="float"), constant([2], "last", np.int64), name="wide")
    return ov.Model([op.result(op.multiply(rows, scale, name="masked"), name="out")], [ids, mask], "text")


def shapes_of(model: ov.Model, given: Sequence[str] = (), *, keep: bool = False) -> list[str]:
    made, _ = next(concrete_models(model, InputShapes(tuple(given), keep)))
    return [str(port.get_partial_shape()) for port in made.inputs]


def test_images_get_the_usual_size_and_a_batch_of_one():
    assert shapes_of(image()) == ["[1,3,224,224]"]
    assert shapes_of(image(batch=4)) == ["[4,3,224,224]"]


def test_texts_get_the_usual_length():
    assert shapes_of(text()) == ["[1,128]", "[1,128]"]
    assert shapes_of(dynamic()) == ["[1,3,4]"]


def test_the_batch_of_a_state_may_stand_second():
    x = op.parameter(ov.PartialShape([-1, -1, 4]), np.float32, name="x")
    state = op.parameter(ov.PartialShape([2, -1, 4]), np.float32, name="state")
    last = op.reduce_sum(x, constant([1], "time", np.int64), True, name="last")  # [batch, 1, 4]
    turned = op.transpose(state, constant([1, 0, 2], "order", np.int64), name="turned")  # [batch, 2, 4]
    model = ov.Model([op.result(op.concat([last, turned], 1, name="both"), name="out")], [x, state], "lstm")
    assert shapes_of(model) == ["[1,128,4]", "[2,1,4]"]


def test_sizes_that_do_not_fit_together_are_passed_over():
    assert shapes_of(image(flat=2 * 32 * 32, batch=1)) == ["[1,3,64,64]"]


def test_a_matrix_behind_a_flattening_implies_the_size():
    model = image(flat=2 * 50 * 50, batch=1)  # two channels of half the side
    assert shapes_of(model) == ["[1,3,100,100]"]


def test_a_table_of_positions_implies_the_length():
    x = op.parameter(ov.PartialShape([-1, -1, 4]), np.float32, name="x")
    placed = op.add(x, constant(np.ones((1, 77, 4)), "positions"), name="placed")
    assert shapes_of(ov.Model([op.result(placed)], [x])) == ["[1,77,4]"]


def test_what_is_empty_whatever_the_sizes_is_meant_to():
    x = op.parameter(ov.PartialShape([-1, 4]), np.float32, name="x")
    mean = op.reduce_mean(x, constant([0, 1], "all", np.int64), True, name="mean")
    scalar = op.reshape(mean, constant([], "of a scalar", np.int64), False, name="scalar")
    assert shapes_of(ov.Model([op.result(scalar)], [x])) == ["[1,4]"]


def test_an_image_that_pooling_leaves_nothing_of_is_too_small():
    x = op.parameter(ov.PartialShape([-1, 3, -1, -1]), np.float32, name="x")
    model = ov.Model([op.result(op.slice(
        x, *(constant([n], name, np.int64) for n, name in ((224, "from"), (1000, "to"), (1, "step"), (3, "axis")))
    ))], [x])  # fmt: skip
    assert shapes_of(model) == ["[1,3,256,256]"]


def test_a_cache_that_is_empty_at_first_grows(tmp_path: Path):
    save_model(growing_cache(), tmp_path / "m.xml")
    model, chosen = read_shaped(tmp_path / "m.xml", InputShapes())
    assert [shape.shape for shape in chosen] == ["[1,128,4]", "[1,128]"]
    assert [str(v.get_info().data_shape) for v in model.get_variables()] == ["[?,?,4]"]
    request = ov.Core().compile_model(model, "CPU").create_infer_request()
    request.infer([np.ones((1, 128, 4), np.float32), np.ones((1, 128), np.float32)])
    assert request.query_state()[0].state.shape == [1, 128, 4]


def test_a_sequence_ends_where_a_second_inference_of_equal_sizes_fails(tmp_path: Path):
    for build, inferences in ((growing_cache, 1), (with_state, 5)):
        save_model(build(), tmp_path / "source.xml")
        out = tmp_path / build.__name__
        out.mkdir()
        sha256 = model_sha256(tmp_path / "source.xml")
        read_in_process(tmp_path / "source.xml", out, source=sha256, limits=ReadLimits())
        assert sequence_length(out / "model.xml", 5) == inferences
    told = json.loads((tmp_path / "growing_cache" / SEQUENCE).read_text())["why"]
    assert "scores" in told


def traced(length: int) -> ov.Model:
    """Return a model of any length by its inputs, but of one by a shape within, as tracing an example leaves it."""
    x = op.parameter(ov.PartialShape([-1, -1, 4]), np.float32, name="x")
    batch = op.gather(
        op.shape_of(x, name="s"), constant([0], "one", np.int64), constant(0, "axis", np.int64), name="batch"
    )
    target = op.concat([batch, constant([length], "baked in", np.int64), constant([4], "width", np.int64)], 0)
    return ov.Model([op.result(op.reshape(x, target, False, name="heads"))], [x])


def test_the_length_of_an_example_that_a_model_was_traced_with_is_found():
    assert shapes_of(traced(9)) == ["[1,9,4]"]


def test_where_no_shape_fits_the_first_misfit_is_told(tmp_path: Path):
    save_model(traced(1999), tmp_path / "m.xml")
    with pytest.raises(ModelError, match=r"with x \[1,128,4\] its shapes do not fit: at heads, "):
        read_shaped(tmp_path / "m.xml", InputShapes())


def test_an_input_of_unknown_rank_needs_a_shape(tmp_path: Path):
    x, scale = op.parameter([1, 4], np.float32, name="x"), op.parameter(ov.PartialShape.dynamic(), name="scale")
    save_model(ov.Model([op.result(op.multiply(x, scale, name="scaled"))], [x, scale]), tmp_path / "m.xml")
    with pytest.raises(ModelError, match="The rank of scale is unknown") as raised:
        read_shaped(tmp_path / "m.xml", InputShapes())
    assert "--shape 'scale=scalar'" in raised.value.remedy
    assert read_shaped(tmp_path / "m.xml", InputShapes(keep_dynamic=True))[1] == []
    for given, shape in (("scalar", "[]"), ("1x4", "[1,4]")):
        assert [c.shape for c in read_shaped(tmp_path / "m.xml", InputShapes((f"scale={given}",)))[1]] == [shape]


def test_a_shape_without_elements_must_leave_the_outputs_some():
    with pytest.raises(UsageError, match="some output then has no elements"):
        shapes_of(text(), ["ids=1x0", "mask=1x0"])


def test_a_decoder_that_is_given_its_cache_makes_a_step():
    ids, mask = (op.parameter(ov.PartialShape([-1, -1]), np.int64, name=name) for name in ("ids", "attention_mask"))
    past = op.parameter(ov.PartialShape([-1, 4, -1, 8]), np.float32, name="past_key_values.0.key")
    axes = constant([1, 3], "axes", np.int64)
    row = op.unsqueeze(op.convert(ids, "f32", name="float"), axes, name="row")  # [batch, 1, ids, 1]
    one = op.multiply(row, constant(np.ones((1, 4, 1, 8)), "key"), name="one")
    keys = op.concat([past, one], 2, name="keys")
    wide = op.unsqueeze(op.convert(mask, "f32", name="real"), axes, name="wide")
    model = ov.Model([op.result(op.add(keys, wide, name="masked"))], [ids, mask, past])
    assert shapes_of(model) == ["[1,1]", "[1,129]", "[1,4,128,8]"]


def test_the_first_misfit_is_told_with_the_shapes_that_are_given(tmp_path: Path):
    x, y = (op.parameter(ov.PartialShape([-1, -1]), np.float32, name=name) for name in ("x", "y"))
    save_model(ov.Model([op.result(op.add(x, y, "none", name="sum"))], [x, y]), tmp_path / "m.xml")
    with pytest.raises(ModelError, match=r"inputs y \[\?,\?\]; with y \[1,128\] its shapes do not fit") as raised:
        read_shaped(tmp_path / "m.xml", InputShapes(("x=1x1999",)))
    assert "x=" not in raised.value.remedy


def test_height_and_width_may_differ_if_nothing_else_fits():
    x = op.parameter(ov.PartialShape([-1, 3, -1, -1]), np.float32, name="x")
    lines = op.reshape(x, constant([1, 3, 48, -1], "lines", np.int64), False, name="lines")
    found = op.add(lines, op.broadcast(constant(0.5, "half"), op.shape_of(x, name="s"), name="b"), name="same")
    found = op.add(found, constant(np.ones((1, 1, 1, 160)), "wide"), name="wide")
    assert shapes_of(ov.Model([op.result(found)], [x])) == ["[1,3,48,160]"]


def test_a_picture_and_its_text_have_sizes_of_their_own():
    picture, ids = image(), op.parameter(ov.PartialShape([-1, -1]), np.int64, name="ids")
    rows = op.gather(constant(np.ones((50, 4)), "table"), ids, constant(0, "axis", np.int64), name="rows")
    rows = op.add(rows, op.slice(
        constant(np.ones((1, 77, 4)), "positions"), constant([0], "from", np.int64),
        op.gather(op.shape_of(ids), constant([1], "one", np.int64), constant(0, "axis2", np.int64)),
        constant([1], "step", np.int64), constant([1], "axes", np.int64),
    ))  # fmt: skip
    model = ov.Model([*picture.get_results(), op.result(rows)], [*picture.get_parameters(), ids], "both")
    assert shapes_of(model) == ["[1,3,224,224]", "[1,64]"]


def at_run_time(multiple: int) -> ov.Model:
    """Return a model whose shapes fit for any length, but which runs for multiples of a number only."""
    x = op.parameter(ov.PartialShape([-1, -1]), np.float32, name="x")
    # How many rows are not zero is known only while it runs: all of them.
    count = op.reduce_sum(op.convert(op.equal(x, x), "i64"), constant([0, 1], "all", np.int64), False, name="count")
    rows = op.unsqueeze(op.divide(count, constant(multiple, "multiple", np.int64)), constant([0], "front", np.int64))
    target = op.concat([rows, constant([multiple], "width", np.int64)], 0, name="target")
    return ov.Model([op.result(op.reshape(x, target, False, name="windows"), name="out")], [x], "at_run_time")


def test_an_inference_must_run_with_the_sizes(tmp_path: Path):
    save_model(at_run_time(5), tmp_path / "m.xml")
    assert shapes_of(at_run_time(5)) == ["[1,128]"]  # by its shapes alone
    _, (chosen,) = read_shaped(tmp_path / "m.xml", InputShapes())
    assert int(chosen.shape.strip("[]").split(",")[1]) % 5 == 0


def test_a_model_that_runs_with_no_size_says_which_input_needs_one_and_how_to_give_it(tmp_path: Path):
    save_model(at_run_time(1031), tmp_path / "m.xml")
    with pytest.raises(ModelError) as raised:
        read_shaped(tmp_path / "m.xml", InputShapes())
    assert "dynamic inputs x [?,?]; with x [1,128]: at windows, " in raised.value.cause
    assert "--shape 'x=1x224'" in raised.value.remedy
    assert raised.value.exit_code == 3
    assert len(read_shaped(tmp_path / "m.xml", InputShapes(("x=1x1031",)))[1]) == 1
    assert read_shaped(tmp_path / "m.xml", InputShapes(keep_dynamic=True, dynamic_size=2062))[1] == []


def test_shapes_that_a_user_gives_must_run_as_well(tmp_path: Path):
    save_model(at_run_time(5), tmp_path / "m.xml")
    with pytest.raises(UsageError, match=r"does not run with x \[1,12\]: at windows"):
        read_shaped(tmp_path / "m.xml", InputShapes(("x=1x12",)))


def test_a_dynamic_model_must_run_with_the_size_it_is_measured_with(tmp_path: Path):
    path = text_recogniser(tmp_path)
    with pytest.raises(UsageError) as raised:
        read_shaped(path, InputShapes(keep_dynamic=True, dynamic_size=8))
    assert "does not run with x [1,3,48,8], the measured size of its dynamic inputs: at /Re" in str(raised.value)
    assert "Set measure.dynamic_size to another size. Give others, as in --shape 'x=1x3x48x320'." in str(raised.value)
    assert read_shaped(path, InputShapes(keep_dynamic=True))[1] == []  # nobody is going to run it


def test_a_wrong_shape_is_answered_with_one_that_fits():
    with pytest.raises(UsageError) as raised:
        shapes_of(image(flat=2 * 50 * 50, batch=1), ["image=1x3x64x64x2"])
    assert raised.value.remedy == "Give others, as in --shape 'image=1x3x100x100'."


def test_bounds_are_kept():
    x = op.parameter(ov.PartialShape("[2..8,3,10..20,?]"), np.float32, name="x")
    assert shapes_of(ov.Model([op.result(op.relu(x))], [x])) == ["[2,3,20,224]"]


def test_shapes_that_are_given_count():
    assert shapes_of(image(), ["image=2x3x64x96"]) == ["[2,3,64,96]"]
    assert shapes_of(image(), ["2x3x64x96"]) == ["[2,3,64,96]"]
    assert shapes_of(image(), ["1x3x?x64"]) == ["[1,3,?,64]"]
    assert shapes_of(text(), ["mask=3x7", "ids=3x7"]) == ["[3,7]", "[3,7]"]


def test_dynamic_inputs_may_stay_so():
    assert shapes_of(image(), keep=True) == ["[?,3,?,?]"]
    assert shapes_of(text(), ["ids=1x9"], keep=True) == ["[1,9]", "[?,?]"]


@pytest.mark.parametrize(
    ("model", "given", "words"),
    [
        (image, ["picture=1x3x8x8"], "'picture=1x3x8x8' names no input of the model; its inputs are image"),
        (image, ["image=axb"], r"'image=axb' gives image no shape: 'axb' is none"),
        (image, ["image:1,3,8,8"], "NAME=1x3x224x224"),
        (text, ["1x8"], "its inputs are ids .*, mask"),
        (image, ["image=1x4x8x8"], r"does not run with the shape image \[1,4,8,8\]: at conv, [^']*channel"),
        (image, ["image=1x3x0x8"], r"does not run with the shape image \[1,3,0,8\]"),
        (image, ["image=1x3x-1x8"], "NAME=1x3x224x224"),
        (image, ["image=1x3x8"], "does not run with the shape image"),
    ],
)
def test_a_shape_that_fits_nothing_is_a_usage_error(model, given: list[str], words: str):
    with pytest.raises(UsageError, match=words):
        shapes_of(model(), given)


def test_a_shape_computed_from_the_inputs_is_folded_away(tmp_path: Path):
    save_model(dynamic(), tmp_path / "m.xml")
    model, chosen = read_shaped(tmp_path / "m.xml", InputShapes())
    assert not {"ShapeOf", "Gather", "Concat"} & {o.get_type_name() for o in model.get_ops()}
    assert not any(out.get_partial_shape().is_dynamic for o in model.get_ops() for out in o.outputs())
    assert [(c.name, c.declared, c.shape, c.given) for c in chosen] == [("x", "[?,3,4]", "[1,3,4]", False)]


def test_what_was_assumed_is_told(tmp_path: Path):
    save_model(image(), tmp_path / "m.xml")
    (tmp_path / "out").mkdir()
    source = model_sha256(tmp_path / "m.xml")
    read_in_process(tmp_path / "m.xml", tmp_path / "out", source=source, limits=ReadLimits())
    (note,) = shape_notes(json.loads((tmp_path / "out" / "shapes.json").read_text()))
    assert "image [?,3,?,?] is now [1,3,224,224]" in note
    assert "--shape 'image=1x3x224x224'" in note
    assert shape_notes([{"name": "x", "declared": "[?]", "shape": "[1]", "given": True}]) == []


def test_a_wrong_shape_crosses_the_process_as_a_usage_error(tmp_path: Path):
    save_model(image(), tmp_path / "m.xml")
    (tmp_path / "out").mkdir()
    with pytest.raises(UsageError, match="its inputs are image"):
        read_in_process(
            tmp_path / "m.xml",
            tmp_path / "out",
            source=model_sha256(tmp_path / "m.xml"),
            limits=ReadLimits(),
            shapes=InputShapes(("x=1x2",)),
        )


@pytest.mark.parametrize("keep", [False, True])
def test_a_split_of_a_model_with_dynamic_inputs_runs_once_they_have_sizes(tmp_path: Path, keep: bool):
    save_model(image(), tmp_path / "m.xml")
    (tmp_path / "out").mkdir()
    shapes, source = InputShapes(keep_dynamic=keep), model_sha256(tmp_path / "m.xml")
    read_in_process(tmp_path / "m.xml", tmp_path / "out", source=source, limits=ReadLimits(), shapes=shapes)
    graph = load_graph(tmp_path / "out" / "graph.npz")
    topology = Topology.uniform(two_cpus(), bytes_per_s=1e9, latency_s=1e-5)
    subject = Subject(tmp_path / "out" / "model.xml", graph, Grouping.identity(graph.n), topology, None, 0)
    device = np.array([name in ("relu", "out") for name in graph.names], np.int32)
    (found,) = Hetero(seconds=0.05).bind(subject).evaluate([Placement(device, topology.names)])
    if keep:
        assert isinstance(found, MeasurementFailed)
        assert found.message.startswith("it is cut through a dynamic tensor")
    else:
        assert isinstance(found, Measurement)
        assert found.subgraphs == 2


@pytest.mark.parametrize("text", ["image=1x3x64x96", "image[1,3,64,96]", "image[1, 3, 64, 96]"])
def test_a_shape_is_written_with_an_x_or_as_in_openvinos_tools(text: str) -> None:
    assert shapes_of(image(), [text]) == ["[1,3,64,96]"]
