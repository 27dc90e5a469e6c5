"""Inputs drawn from a seed."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from pipeline.core.errors import ModelError
from runtime.measuring.inputs import concrete_shape, make_inputs


def model() -> ov.Model:
    ports = [
        op.parameter(ov.PartialShape([-1, 3, -1]), np.float32, name="x"),
        op.parameter([50], np.int64, name="index"),
        op.parameter([50], np.bool_, name="mask"),
    ]
    return ov.Model([op.result(p) for p in ports], ports)


def test_inputs_fit_their_ports() -> None:
    x, index, mask = make_inputs(model().inputs, seed=0, dynamic_size=5)
    assert (x.shape, x.dtype) == ((1, 3, 5), np.float32)
    assert (index.dtype, set(index.tolist())) == (np.int64, {0, 1})
    assert (mask.dtype, set(mask.tolist())) == (np.bool_, {True, False})


def test_inputs_depend_on_the_seed_alone() -> None:
    first, again, other = (make_inputs(model().inputs, seed=s, dynamic_size=5) for s in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0], other[0])


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("[?,?]", (1, 8)),
        ("[2,?]", (2, 8)),
        ("[?,1..4]", (1, 4)),
        ("[?,10..20]", (1, 10)),
        ("[3..9,..12]", (3, 8)),
        ("[]", ()),
    ],
)
def test_dynamic_dimensions_are_set_within_their_bounds(shape: str, expected: tuple[int, ...]) -> None:
    assert concrete_shape(ov.PartialShape(shape), dynamic_size=8, name="x") == expected


def test_an_unknown_rank_cannot_be_filled() -> None:
    with pytest.raises(ModelError, match="'x' has no known rank"):
        concrete_shape(ov.PartialShape.dynamic(), dynamic_size=8, name="x")
