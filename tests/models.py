"""Small models for tests, every operation with a name that is the same on every call."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
from openvino import opset13 as op
from openvino.op.util import Variable, VariableInfo

from coarsen.reading.model.read import read_model, save_model


def constant(values: object, name: str, dtype: type[np.generic] = np.float32) -> ov.Node:
    """Return a named constant."""
    return op.constant(np.asarray(values, dtype), name=name)


def chain(n: int, *, width: int = 8) -> ov.Model:
    """Return n operations one after the other between an input and an output: relu, tanh, relu, ..."""
    x = op.parameter([1, width], np.float32, name="x")
    y = x
    for i in range(n):
        y = op.tanh(y, name=f"op{i}") if i % 2 else op.relu(y, name=f"op{i}")
    return ov.Model([op.result(y, name="out")], [x], "chain")


def two_towers(depth: int = 2, *, width: int = 8, seed: int = 0) -> ov.Model:
    """Return two towers of `depth` matrix products and relus side by side, their outputs added."""
    rng = np.random.default_rng(seed)
    x = op.parameter([1, width], np.float32, name="x")
    tops = []
    for tower in ("left", "right"):
        y = x
        for i in range(depth):
            weight = constant(rng.standard_normal((width, width)) / np.sqrt(width), f"{tower}{i}.weight")
            y = op.relu(op.matmul(y, weight, False, False, name=f"{tower}{i}"), name=f"{tower}{i}.relu")
        tops.append(y)
    return ov.Model([op.result(op.add(*tops, name="sum"), name="out")], [x], "two_towers")


def with_state() -> ov.Model:
    """Return a running state s: s <- tanh(relu(s + x)); the output is 2 s."""
    x = op.parameter([1, 4], np.float32, name="x")
    info = VariableInfo()
    info.data_shape, info.data_type, info.variable_id = ov.PartialShape([1, 4]), ov.Type.f32, "s"
    variable = Variable(info)
    read = op.read_value(constant(np.zeros((1, 4)), "initial"), variable)
    read.set_friendly_name("read")
    new = op.tanh(op.relu(op.add(read, x, name="add"), name="relu"), name="new")
    assign = op.assign(new, variable)
    assign.set_friendly_name("assign")
    doubled = op.multiply(new, constant(2.0, "two"), name="doubled")
    return ov.Model([op.result(doubled, name="out")], [assign], [x], "with_state")


def growing_cache() -> ov.Model:
    """Return attention over a cache of keys, empty at first, that every inference appends to, as decoders keep it.

    x [?, ?, 4] is appended; mask [?, ?] must have an entry for every key: no second inference of equal sizes runs.
    """
    x, mask = op.parameter(ov.PartialShape([-1, -1, 4]), name="x"), op.parameter(ov.PartialShape([-1, -1]), name="mask")
    axis = constant(0, "axis", np.int64)
    batch = op.gather(op.shape_of(x, name="shape"), constant([0], "first", np.int64), axis, name="batch")
    none = op.concat([batch, constant([0, 4], "none", np.int64)], 0, name="empty")
    info = VariableInfo()
    info.data_shape, info.data_type, info.variable_id = ov.PartialShape([-1, -1, 4]), ov.Type.f32, "keys"
    variable = Variable(info)
    past = op.read_value(op.broadcast(constant(0.0, "zero"), none, name="initial"), variable)
    past.set_friendly_name("past")
    keys = op.concat([past, x], 1, name="keys")
    assign = op.assign(keys, variable)
    assign.set_friendly_name("assign")
    row = op.unsqueeze(mask, constant([1], "row", np.int64), name="masks")  # [batch, 1, keys]
    scores = op.add(op.matmul(x, keys, False, True, name="products"), row, name="scores")
    attended = op.matmul(op.softmax(scores, -1, name="softmax"), keys, False, False, name="attended")
    return ov.Model([op.result(attended, name="out")], [assign], [x, mask], "growing_cache")


def with_if() -> ov.Model:
    """Return x W if the condition holds, otherwise relu(x); x [2, 4], W [4, 3] or relu's first 3 columns."""
    condition = op.parameter([], np.bool_, name="condition")
    x = op.parameter([2, 4], np.float32, name="x")
    inner_then, inner_else = (op.parameter([2, 4], np.float32, name=f"x_{branch}") for branch in ("then", "else"))
    product = op.matmul(inner_then, constant(np.ones((4, 3)), "W"), False, False, name="product")
    then = ov.Model([op.result(product)], [inner_then], "then")
    columns = op.gather(op.relu(inner_else), constant([0, 1, 2], "i", np.int64), constant(1, "axis", np.int64))
    otherwise = ov.Model([op.result(columns)], [inner_else], "else")
    choice = op.if_op(condition.output(0))
    choice.set_friendly_name("if")
    choice.set_then_body(then)
    choice.set_else_body(otherwise)
    choice.set_input(x.output(0), inner_then, inner_else)
    choice.set_output(then.results[0], otherwise.results[0])
    return ov.Model([op.result(choice.output(0), name="out")], [condition, x], "with_if")


def with_loop(trips: int = 5) -> ov.Model:
    """Return x [1, 4] to which [1, 4] ones are added `trips` times by a Loop."""
    x = op.parameter([1, 4], np.float32, name="x")
    inner = op.parameter([1, 4], np.float32, name="inner")
    body_result = op.result(op.add(inner, constant(np.ones((1, 4)), "ones"), name="increment"))
    go_on = op.result(constant(True, "go_on", np.bool_))
    body = ov.Model([go_on, body_result], [inner], "body")
    loop = op.loop(constant(trips, "trips", np.int64), constant(True, "start", np.bool_))
    loop.set_friendly_name("loop")
    loop.set_function(body)
    loop.set_special_body_ports([-1, 0])
    loop.set_merged_input(inner, x.output(0), body_result.output(0))
    last = loop.get_iter_value(body_result.output(0), -1)
    return ov.Model([op.result(last, name="out")], [x], "with_loop")


def with_tensor_iterator(steps: int = 6) -> ov.Model:
    """Return the running sum over the `steps` rows of x [1, steps, 4], by a TensorIterator."""
    x = op.parameter([1, steps, 4], np.float32, name="x")
    row, total = (op.parameter([1, 1, 4], np.float32, name=name) for name in ("row", "total"))
    body_result = op.result(op.add(row, total, name="increment"))
    iterator = op.tensor_iterator()
    iterator.set_friendly_name("iterator")
    iterator.set_body(ov.Model([body_result], [row, total], "body"))
    iterator.set_sliced_input(row, x.output(0), 0, 1, 1, -1, 1)
    iterator.set_merged_input(total, constant(np.zeros((1, 1, 4)), "zero").output(0), body_result.output(0))
    last = iterator.get_iter_value(body_result.output(0), -1)
    return ov.Model([op.result(last, name="out")], [x], "with_tensor_iterator")


def broadcast_model(side: int) -> ov.Model:
    """Return the sum of x [1, 1] added to one number that is broadcast to a matrix of side x side."""
    x = op.parameter([1, 1], np.float32, name="x")
    shape = constant([side, side], "shape", np.int64)
    total = op.add(x, op.broadcast(constant([[1.0]], "one"), shape, name="big"), name="sum")
    return ov.Model(
        [op.result(op.reduce_sum(total, constant([0, 1], "axes", np.int64), False, name="total"), name="out")],
        [x],
        "broadcast",
    )


def _limits(name: str, low: float, high: float) -> list[ov.Node]:
    """Return the four limits of a FakeQuantize: of its input, then the same of its output."""
    return [constant(v, f"{name}.{which}") for which, v in zip(("il", "ih", "ol", "oh"), (low, high) * 2, strict=True)]


def quantised() -> ov.Model:
    """Return two quantised matrix products; the weights of the first are int8 and pass a Reshape."""
    x = op.parameter([1, 4], np.float32, name="x")
    quantised_x = op.fake_quantize(x, *_limits("fq_x", 0.0, 1.0), 256)
    quantised_x.set_friendly_name("fq_x")
    stored = op.convert(constant(np.arange(16) - 8, "w1", np.int8), "f32", name="w1.unpack")
    quantised_w = op.fake_quantize(stored, *_limits("fq_w", -8.0, 7.0), 255)
    quantised_w.set_friendly_name("fq_w")
    weight = op.reshape(quantised_w, constant([4, 4], "w1.shape", np.int64), False, name="w1.square")
    first = op.relu(op.matmul(quantised_x, weight, False, False, name="first"), name="relu")
    quantised_y = op.fake_quantize(first, *_limits("fq_y", 0.0, 4.0), 256)
    quantised_y.set_friendly_name("fq_y")
    second = op.matmul(quantised_y, constant(np.eye(4), "w2"), False, False, name="second")
    return ov.Model([op.result(second, name="out")], [x], "quantised")


def dynamic() -> ov.Model:
    """Return x [?, 3, 4] flattened to [?, 12] with a shape computed from x's, times a matrix; rows are dynamic."""
    x = op.parameter(ov.PartialShape([-1, 3, 4]), np.float32, name="x")
    rows = op.gather(
        op.shape_of(x, name="shape"), constant([0], "first", np.int64), constant(0, "axis", np.int64), name="rows"
    )
    target = op.concat([rows, constant([12], "width", np.int64)], 0, name="target")
    flat = op.reshape(op.relu(x, name="relu"), target, False, name="flat")
    weight = constant(np.ones((12, 5)), "weight")
    return ov.Model([op.result(op.matmul(flat, weight, False, False, name="product"), name="out")], [x], "dynamic")


SMALL = (
    lambda: chain(3),
    two_towers,
    with_state,
    with_if,
    with_loop,
    with_tensor_iterator,
    quantised,
    dynamic,
)
"""Builders of all of these."""


def through_file(model: ov.Model, folder: Path) -> ov.Model:
    """Return a model as the reader gives it back after it was saved in `folder`."""
    save_model(model, folder / "model.xml")
    return read_model(folder / "model.xml")


def types(model: ov.Model) -> list[str]:
    """Return the types of the operations in order."""
    return [o.get_type_name() for o in model.get_ordered_ops()]


def names(model: ov.Model) -> list[str]:
    """Return the names of the operations in order."""
    return [o.get_friendly_name() for o in model.get_ordered_ops()]
