"""Arrays that a user gives for the inputs of a model."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from coarsen.reading.model.constant_growth import ReadLimits
from coarsen.reading.model.files import model_sha256
from coarsen.reading.model.read import save_model
from coarsen.reading.read_in_process import read_in_process
from coarsen.reading.sizes.shapes import InputShapes, inputs_sha256
from pipeline.core.errors import UsageError
from pipeline.core.settings import MeasureSettings
from pipeline.settings.config import Settings
from pipeline.shared.model_inputs import GIVEN, TIMED
from pipeline.stages.host import HostMachine, ModelFile
from pipeline.stages.plan import plan_tasks
from runtime.measuring.contest.hetero import reference_outputs
from tests.exported_models import text_classifier, uint8_images
from tests.models import chain

IDS = np.arange(9, dtype=np.int64)[None]
TEXT = {"input_ids": IDS, "attention_mask": np.ones_like(IDS), "token_type_ids": np.zeros_like(IDS)}


def read(model: Path, arrays: dict[str, Any], *shapes: str) -> Path:
    """Return the folder into which a model was read with these arrays."""
    data, out = model.parent / "data.npz", model.parent / "out"
    np.savez(data, **arrays)
    out.mkdir()
    given = InputShapes(shapes, data=str(data), data_sha256=inputs_sha256(str(data)))
    read_in_process(model, out, source=model_sha256(model), limits=ReadLimits(), shapes=given)
    return out


def refusal(model: Path, arrays: dict[str, Any], *shapes: str) -> str:
    with pytest.raises(UsageError) as raised:
        read(model, arrays, *shapes)
    assert "\n" not in str(raised.value)
    return raised.value.cause


def test_arrays_give_the_shapes_and_are_what_is_measured_with(tmp_path: Path) -> None:
    out = read(text_classifier(tmp_path), TEXT)
    assert {c["name"]: c["shape"] for c in json.loads((out / "shapes.json").read_text())} == dict.fromkeys(
        TEXT, "[1,9]"
    )
    first = reference_outputs(out / "model.xml", MeasureSettings(), seed=0).outputs[TIMED]
    np.savez(out / GIVEN, **TEXT | {"input_ids": IDS[:, ::-1]})
    other = reference_outputs(out / "model.xml", MeasureSettings(), seed=0).outputs[TIMED]
    assert not np.array_equal(first["output_0"], other["output_0"])


def test_names_that_are_no_inputs_and_inputs_without_an_array_are_named(tmp_path: Path) -> None:
    cause = refusal(text_classifier(tmp_path), {"ids": IDS, "attention_mask": IDS})
    assert "ids is no input; no array for input_ids, token_type_ids" in cause
    assert "Its inputs: input_ids int64 [?,?], attention_mask int64 [?,?], token_type_ids" in cause


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((1, 32, 32, 3), np.float32), "input_tensor:0 is uint8, the array is float32"),
        (np.zeros((1, 3, 32, 32), np.uint8), "input_tensor:0 has the shape [?,?,?,3], the array [1,3,32,32]"),
        (np.zeros((32, 32, 3), np.uint8), "the array [32,32,3]"),
        (np.zeros((1, 0, 32, 3), np.uint8), "the array [1,0,32,3]"),
    ],
)
def test_arrays_of_a_wrong_type_or_shape_are_named(tmp_path: Path, array: Any, words: str) -> None:
    assert words in refusal(uint8_images(tmp_path), {"input_tensor:0": array})


def test_a_cache_may_be_empty_and_an_input_of_unknown_rank_a_scalar(tmp_path: Path) -> None:
    new = op.parameter(ov.PartialShape([-1, -1, 4]), np.float32, name="new")
    past = op.parameter(ov.PartialShape([-1, -1, 4]), np.float32, name="past")
    scale = op.parameter(ov.PartialShape.dynamic(), np.float32, name="scale")
    present = op.multiply(op.concat([past, new], 1, name="both"), scale, name="present")
    save_model(ov.Model([op.result(present)], [new, past, scale]), tmp_path / "m.xml")
    arrays = {
        name: np.ones(shape, np.float32) for name, shape in (("new", (1, 3, 4)), ("past", (1, 0, 4)), ("scale", ()))
    }
    out = read(tmp_path / "m.xml", arrays)
    assert [c["shape"] for c in json.loads((out / "shapes.json").read_text())] == ["[1,3,4]", "[1,0,4]", "[]"]
    assert reference_outputs(out / "model.xml", MeasureSettings(), seed=0).outputs[TIMED]["output_0"].shape == (1, 3, 4)


def test_sizes_that_the_model_does_not_bear_are_refused_and_others_offered(tmp_path: Path) -> None:
    ids = np.zeros((1, 65), np.int64)  # one more than there are positions
    assert "does not run with the shape" in refusal(text_classifier(tmp_path), dict.fromkeys(TEXT, ids))


def test_what_is_no_file_of_arrays_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        inputs_sha256(str(tmp_path / "gone.npz"))
    assert "is not an npz file of arrays of numbers" in refusal(
        text_classifier(tmp_path), {"a": np.array([{}], object)}
    )


def test_arrays_that_change_meanwhile_are_refused(tmp_path: Path) -> None:
    model, data = text_classifier(tmp_path), tmp_path / "data.npz"
    np.savez(data, **TEXT)
    shapes = InputShapes(data=str(data), data_sha256=hashlib.sha256(b"before").hexdigest())
    (tmp_path / "out").mkdir()
    with pytest.raises(UsageError, match="changed while the model was being read"):
        read_in_process(model, tmp_path / "out", source=model_sha256(model), limits=ReadLimits(), shapes=shapes)


def key(data: Path | None) -> str:
    """Return the key of reading with these arrays, on which those of all other stages depend."""
    settings = Settings().updated({"coarsen.input": str(data or "")}, "the test")
    (task,) = plan_tasks(ModelFile(Path("m.xml"), "0" * 64), settings, HostMachine((), {}, "here"), upto="read")
    return task.key


def test_the_content_of_the_arrays_is_part_of_the_key(tmp_path: Path) -> None:
    a, b, c = tmp_path / "a.npz", tmp_path / "b.npz", tmp_path / "c.npz"
    for path, value in ((a, 1.0), (b, 2.0), (c, 1.0)):
        np.savez(path, x=np.full(2, value))
    assert key(a) == key(c)
    assert len({key(a), key(b), key(None)}) == 3


def test_without_arrays_none_are_kept(tmp_path: Path) -> None:
    save_model(chain(2), tmp_path / "m.xml")
    (tmp_path / "out").mkdir()
    read_in_process(tmp_path / "m.xml", tmp_path / "out", source=model_sha256(tmp_path / "m.xml"), limits=ReadLimits())
    assert not (tmp_path / "out" / GIVEN).exists()
