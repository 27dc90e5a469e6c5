"""A grouped convolution or an attention in two parts gives what it gave, and so does what follows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openvino import opset13 as op

from coarsen.reading.rewriting.split_groups import split_groups

F32 = {"INFERENCE_PRECISION_HINT": "f32"}
SIDE = 6


@dataclass(frozen=True)
class Grouped:
    """A convolution of `groups` groups, and what follows it. after: channels per group it gives."""

    groups: int
    after: int
    packed: bool
    stride: int
    bias: bool
    activation: str
    dynamic: bool
    read_twice: bool


grouped = st.builds(
    Grouped,
    st.integers(2, 5),
    st.integers(1, 3),
    st.booleans(),
    st.integers(1, 2),
    st.booleans(),
    st.sampled_from(["", "relu", "clamp", "gelu"]),
    st.booleans(),
    st.booleans(),
)


def convolution(case: Grouped) -> ov.Model:
    """Return the model of a case; read_twice: an output of its own for what the convolution gives."""
    rng = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> Any:
        values = rng.standard_normal(shape).astype(np.float16)
        if case.packed:
            return op.convert(op.constant(values, name=name), "f32", name=f"{name}.unpack")
        return op.constant(values.astype(np.float32), name=name)

    x = op.parameter([-1 if case.dynamic else 2, 3 * case.groups, SIDE, SIDE], np.float32, name="x")
    filters, pads = weight("w", case.groups, case.after, 3, 3, 3), [1, 1]
    conv = op.group_convolution(x, filters, [case.stride] * 2, pads, pads, [1, 1], name="conv")
    y = conv
    if case.bias:
        bias = weight("b", 1, case.groups * case.after, 1, 1)
        y = op.add(bias, y, name="add") if case.read_twice else op.add(y, bias, name="add")
    make = {"relu": op.relu, "clamp": lambda v, name: op.clamp(v, 0.0, 1.0, name=name)}
    make["gelu"] = lambda v, name: op.gelu(v, "erf", name=name)
    if case.activation:
        y = make[case.activation](y, name="act")
    y.output(0).set_names({"y"})
    results = [op.result(y, name="out")]
    if case.read_twice:
        results.append(op.result(op.negative(conv, name="minus"), name="second"))
    return ov.Model(results, [x], "grouped")


def outputs(model: ov.Model, feed: list[Any]) -> list[Any]:
    return list(ov.Core().compile_model(model, "CPU", F32)(feed).values())


def of_type(model: ov.Model, kind: str) -> list[str]:
    return [o.get_friendly_name() for o in model.get_ordered_ops() if o.get_type_name() == kind]


@given(case=grouped)
@settings(max_examples=10, deadline=None)
def test_a_grouped_convolution_in_parts_gives_its_outputs(case: Grouped) -> None:
    model = convolution(case)
    x = np.random.default_rng(1).standard_normal((2, 3 * case.groups, SIDE, SIDE)).astype(np.float32)
    before, shapes = outputs(model, [x]), [str(port.get_partial_shape()) for port in model.outputs]
    (row,) = split_groups(model)
    assert row.parts == ("conv/first", "conv/second")
    assert [str(port.get_partial_shape()) for port in model.outputs] == shapes
    assert model.outputs[0].get_names() == {"y"}
    for found, expected in zip(outputs(model, [x]), before, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)  # sums in another order
    follows = not case.read_twice
    assert len(of_type(model, "Add")) == (1 + follows if case.bias else 0)
    kind = {"relu": "Relu", "clamp": "Clamp", "gelu": "Gelu"}.get(case.activation)
    assert kind is None or len(of_type(model, kind)) == 1 + follows


@pytest.mark.parametrize("mask", ["none", "shared", "by head", "flat"])
@pytest.mark.parametrize("heads", [2, 5])
def test_attention_by_heads_gives_its_outputs(heads: int, mask: str) -> None:
    shape, keys = [1, heads, 6, 8], [1, heads, 7, 8]
    inputs = [op.parameter(s, np.float32, name=n) for n, s in (("q", shape), ("k", keys), ("v", keys))]
    masks = {"shared": [1, 1, 6, 7], "by head": [1, heads, 6, 7], "flat": [6, 7]}
    if mask != "none":
        inputs.append(op.parameter(masks[mask], np.float32, name="mask"))
    scale = op.constant(np.float32(0.3), name="scale")
    extra = {"scale": scale} if mask != "none" else {}
    y = op.scaled_dot_product_attention(*inputs, **extra, causal=mask == "none", name="attention")
    model = ov.Model([op.result(y, name="out")], inputs, "attention")
    rng = np.random.default_rng(0)
    feed = [rng.standard_normal(tuple(port.shape)).astype(np.float32) for port in model.inputs]
    before = outputs(model, feed)
    (row,) = split_groups(model)
    assert row.parts == ("attention/first", "attention/second")
    np.testing.assert_allclose(outputs(model, feed)[0], before[0], rtol=1e-5, atol=1e-5)


def test_what_has_no_parts_worth_having_is_left_alone() -> None:
    x = op.parameter([1, 4, SIDE, SIDE], np.float32, name="x")
    depthwise = op.group_convolution(x, np.ones((4, 1, 1, 3, 3), np.float32), [1, 1], [1, 1], [1, 1], [1, 1])
    limits = [op.constant(np.float32(v)) for v in (-1.0, 1.0, -1.0, 1.0)]
    filters = op.fake_quantize(op.constant(np.ones((2, 2, 2, 3, 3), np.float32)), *limits, 255)
    quantised = op.group_convolution(depthwise, filters, [1, 1], [1, 1], [1, 1], [1, 1])
    head = op.parameter([1, 1, 5, 4], np.float32, name="head")
    alone = op.scaled_dot_product_attention(head, head, head)
    model = ov.Model([op.result(quantised), op.result(alone)], [x, head], "left alone")
    names = [o.get_friendly_name() for o in model.get_ordered_ops()]
    assert split_groups(model) == []
    assert [o.get_friendly_name() for o in model.get_ordered_ops()] == names
