"""Several inferences computed at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as op
import pytest

from coarsen.reading.model.read import read_shaped, save_model, to_graph
from coarsen.reading.sizes.shapes import InputShapes
from pipeline.core.settings import MeasureSettings
from runtime.measuring.contest.pair_bench import PairBench, Start
from runtime.measuring.contest.space import settings_variant
from runtime.measuring.process.batching import repeat_outputs, save_batched, set_batch
from tests.exported_models import dynamic_batch_cnn, lstm_with_state
from tests.models import two_towers
from tests.two_cpus import write


def of(*shape: int, output: tuple[int, ...] = ()) -> ov.Model:
    x = op.parameter(list(shape), np.float32, name="x")
    y = op.reshape(x, list(output), special_zero=False) if output else op.relu(x)
    return ov.Model([op.result(y)], [x])


def names_read(path: Path) -> list[str]:
    """Return the names of the operations of a model as placements name them."""
    return sorted(to_graph(read_shaped(path, InputShapes())[0], source="").names)


def test_a_batched_model_computes_as_many_inferences(tmp_path: Path) -> None:
    path, _ = write(two_towers(), tmp_path)
    names = save_batched(path, tmp_path / "four.xml", 4)
    assert sorted(names) == names_read(tmp_path / "four.xml")
    one, four = (ov.Core().compile_model(p, "CPU") for p in (path, tmp_path / "four.xml"))
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(4, *list(port.shape)[1:])).astype(np.float32) for port in one.inputs]
    whole = four(arrays)[0]
    for i in range(4):
        assert np.allclose(whole[i : i + 1], one([a[i : i + 1] for a in arrays])[0], rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (of(3, 8), "no first dimension of 1"),
        (of(1, 8, output=(8,)), "no first dimension of 1"),
        (of(1, 8, output=(1, 4, 2)), r"\S"),
    ],
)
def test_a_model_without_a_batch_is_refused(model: ov.Model, words: str) -> None:
    with pytest.raises((ValueError, RuntimeError), match=words):
        set_batch(model, 4)


def test_a_model_whose_shapes_name_its_batch_is_placed_as_it_is_read_again(tmp_path: Path) -> None:
    model, _ = read_shaped(dynamic_batch_cnn(tmp_path), InputShapes())
    source, target = tmp_path / "read.xml", tmp_path / "sixteen.xml"
    save_model(model, source)
    assert sorted(save_batched(source, target, 16)) == names_read(target)


def test_a_model_with_state_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="state"):
        set_batch(ov.Core().read_model(lstm_with_state(tmp_path)), 2)


def test_equal_inferences_give_equal_outputs() -> None:
    assert repeat_outputs({"y": np.array([[1, 2]])}, 2)["y"].tolist() == [[1, 2], [1, 2]]


def test_the_outputs_of_a_batch_are_checked_as_those_of_one_inference(tmp_path: Path) -> None:
    path, _ = write(two_towers(), tmp_path)
    settings = MeasureSettings(turn_s=0.01, realtime=False, objective="throughput")
    several = settings_variant("CPU", {"INFERENCE_PRECISION_HINT": "f32"}, 1, 4)
    single = settings_variant("CPU", {"INFERENCE_PRECISION_HINT": "f32"}, 1)
    with PairBench(path, settings, 0) as bench:
        found = bench.start(several, single, part="final", number=1, pairs=1)
        assert isinstance(found, Start)
        assert found.loaded["accuracy"]["difference"] <= settings.tolerance
