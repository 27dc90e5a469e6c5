"""Quantisation written as arithmetic computes what FakeQuantize does, and leaves none of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from coarsen.reading.rewriting.quantisers import spell_out_quantisation

COMPARED = {"INFERENCE_PRECISION_HINT": "f32"}


def quantised(limits: tuple[Any, Any, Any, Any], levels: int = 256) -> ov.Model:
    """Return a model that quantises x [4, 3] between limits."""
    x = op.parameter([4, 3], np.float32, name="x")
    y = op.fake_quantize(x, *(op.constant(np.array(limit, np.float32)) for limit in limits), levels)
    y.set_friendly_name("quantise")
    y.output(0).set_names({"quantised"})
    return ov.Model([op.result(op.negative(y))], [x], "m")


@pytest.mark.parametrize(
    ("limits", "levels"),
    [
        ((-1.0, 1.5, -1.0, 1.5), 256),
        ((-1.0, 1.5, 0.0, 255.0), 256),
        (([[-1.0, 0.0, -2.0]], [[1.0, 2.0, 3.0]], [[-1.0, 0.0, -2.0]], [[1.0, 2.0, 3.0]]), 16),
    ],
    ids=["one scale", "integers", "a scale per channel"],
)
def test_arithmetic_gives_what_fake_quantize_does(limits: tuple[Any, Any, Any, Any], levels: int) -> None:
    model = quantised(limits, levels)
    x = np.linspace(-4, 4, 12, dtype=np.float32).reshape(4, 3) + np.float32(0.011)
    expected = ov.Core().compile_model(model.clone(), "CPU", COMPARED)(x)[0]
    assert spell_out_quantisation(model) == ["quantise"]
    assert "FakeQuantize" not in {each.get_type_name() for each in model.get_ordered_ops()}
    found = ov.Core().compile_model(model, "CPU", COMPARED)(x)[0]
    assert len(np.unique(expected)) > 4
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


def test_halves_are_rounded_to_even_numbers_as_onnx_does() -> None:
    model = quantised((0.0, 255.0, 0.0, 255.0))
    spell_out_quantisation(model)
    x = np.arange(12, dtype=np.float32).reshape(4, 3) + np.float32(0.5)
    np.testing.assert_array_equal(ov.Core().compile_model(model, "CPU", COMPARED)(x)[0], -np.rint(x))


def test_the_result_keeps_its_name_and_other_names_are_unique() -> None:
    model = quantised((-1.0, 1.0, -1.0, 1.0))
    spell_out_quantisation(model)
    names = [each.get_friendly_name() for each in model.get_ordered_ops()]
    assert len(set(names)) == len(names)
    (kept,) = (each for each in model.get_ordered_ops() if each.get_friendly_name() == "quantise")
    assert (kept.get_type_name(), kept.output(0).get_names()) == ("Add", {"quantised"})


def test_limits_that_are_the_wrong_way_round_or_computed_stay() -> None:
    backwards = quantised((1.0, -1.0, -1.0, 1.0))
    x = op.parameter([4, 3], np.float32)
    low, high = op.reduce_min(x, op.constant([0, 1])), op.reduce_max(x, op.constant([0, 1]))
    computed = ov.Model([op.result(op.fake_quantize(x, low, high, low, high, 256))], [x], "m")
    assert spell_out_quantisation(backwards) == spell_out_quantisation(computed) == []
