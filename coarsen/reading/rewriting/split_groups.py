"""A grouped convolution, or an attention over several heads, as two operations of half the groups or heads each.

Groups and heads do not wait for one another. What follows a convolution channel by channel, a bias or an activation, is
halved with it, so that the runtime can go on running both as one kernel. Depthwise convolutions are left as they are,
and so are convolutions whose weights are computed: halving them would split what quantises them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import openvino as ov
from openvino import opset13 as opset

from coarsen.reading.rewriting.rewrites import Rewritten
from coarsen.reading.rewriting.slices import concatenate_outputs, is_packed, set_name, slice_value

ENDS = ("first", "second")
CHANNELS, GROUPS, HEADS = 1, 0, 1  # dimensions: of a tensor, of a convolution's weights, of queries, keys and values
SCALE = 4  # the input of an attention after queries, keys, values and the mask

# What is applied number by number -> what makes one of an input and the attributes.
ACTIVATIONS: Mapping[str, Callable[[Any, Mapping[str, Any]], Any]] = {
    "Relu": lambda x, _: opset.relu(x),
    "Sigmoid": lambda x, _: opset.sigmoid(x),
    "Tanh": lambda x, _: opset.tanh(x),
    "HSwish": lambda x, _: opset.hswish(x),
    "Clamp": lambda x, attributes: opset.clamp(x, attributes["min"], attributes["max"]),
    "Gelu": lambda x, attributes: opset.gelu(x, attributes["approximation_mode"]),
}
PER_CHANNEL: Mapping[str, Callable[[Any, Any], Any]] = {"Add": opset.add, "Multiply": opset.multiply}


def split_groups(model: ov.Model) -> list[Rewritten]:
    """Make two operations of every grouped convolution and attention of a model, which is changed; return which.

    The outputs stay the same. Names in the model must be unique, and are afterwards.
    """
    operations = model.get_ordered_ops()
    taken = {op.get_friendly_name() for op in operations}
    rewritten = []
    for op in operations:
        if _is_grouped(op):
            rewritten.append(_split_convolution(op, taken))
        elif _has_heads(op):
            rewritten.append(_split_attention(op, taken))
    model.validate_nodes_and_infer_types()
    return rewritten


def _is_grouped(op: Any) -> bool:
    """Return whether an operation is a convolution of several groups with more than one channel each."""
    if op.get_type_name() != "GroupConvolution" or not is_packed(op.input_value(1).get_node()):
        return False
    groups, _, before = list(op.get_input_shape(1))[:3]
    return bool(groups > 1 and before > 1)


def _has_heads(op: Any) -> bool:
    """Return whether an operation is an attention [batch, heads, length, width] over several heads."""
    if op.get_type_name() != "ScaledDotProductAttention" or op.get_input_size() > SCALE + 1:
        return False
    shapes = [op.get_input_partial_shape(i) for i in range(3)]
    if any(shape.rank.is_dynamic or len(shape) != 4 or shape[HEADS].is_dynamic for shape in shapes):
        return False
    masked = op.get_input_size() > 3
    known = not masked or not op.get_input_partial_shape(3).rank.is_dynamic
    heads = {shape[HEADS].get_length() for shape in shapes}
    return known and len(heads) == 1 and heads != {1}


def _half_sizes(count: int, each: int = 1) -> dict[str, int]:
    """Return how much of a dimension each half takes; each: numbers per group or head."""
    return dict(zip(ENDS, (each * (count // 2), each * (count - count // 2)), strict=True))


def _split_convolution(op: Any, taken: set[str]) -> Rewritten:
    name, attributes = op.get_friendly_name(), op.get_attributes()
    groups, after, before = list(op.get_input_shape(1))[:3]
    inputs = slice_value(op.input_value(0), CHANNELS, _half_sizes(groups, before), taken)
    weights = slice_value(op.input_value(1), GROUPS, _half_sizes(groups), taken)
    parts = [
        set_name(opset.group_convolution(x, w, **attributes), f"{name}/{end}", taken)
        for x, w, end in zip(inputs, weights, ENDS, strict=True)
    ]
    last, values = op, [part.output(0) for part in parts]
    for follower in _channelwise_followers(op, groups * after):
        last, values = follower, _halve_follower(follower, last, values, _half_sizes(groups, after), taken)
    concatenate_outputs(last.output(0), values, CHANNELS, f"{last.get_friendly_name()}/joined", taken)
    return Rewritten(name, tuple(part.get_friendly_name() for part in parts))


def _channelwise_followers(op: Any, channels: int) -> Iterator[Any]:
    """Yield what alone is applied to the output of an operation, channel by channel, and what is applied to that."""
    while True:
        readers = op.output(0).get_target_inputs()
        if len(readers) != 1:
            return
        before, op = op, next(iter(readers)).get_node()
        if op.get_type_name() not in ACTIVATIONS and _channel_constant(op, before, channels) is None:
            return
        yield op


def _channel_constant(op: Any, before: Any, channels: int) -> Any | None:
    """Return what an Add or Multiply takes beside the output of `before`, if it is a constant [1, channels, 1, ...]."""
    if op.get_type_name() not in PER_CHANNEL:
        return None
    values = [op.input_value(i) for i in (0, 1)]
    other = next((v for v in values if v.get_node().get_name() != before.get_name()), None)
    if other is None or not is_packed(other.get_node()):
        return None
    shape, rank = list(other.get_shape()), before.get_output_partial_shape(0).rank
    fits = shape == [1, channels, *[1] * (len(shape) - 2)] and rank.is_static and rank.get_length() == len(shape)
    return other if fits else None


def _halve_follower(op: Any, before: Any, values: Sequence[Any], sizes: dict[str, int], taken: set[str]) -> list[Any]:
    """Return the outputs of an operation that is applied to the halves of what it was applied to."""
    kind, name = op.get_type_name(), op.get_friendly_name()
    if kind in ACTIVATIONS:
        parts = [ACTIVATIONS[kind](value, op.get_attributes()) for value in values]
    else:
        others = slice_value(_channel_constant(op, before, sum(sizes.values())), CHANNELS, sizes, taken)
        parts = [PER_CHANNEL[kind](value, other) for value, other in zip(values, others, strict=True)]
    return [set_name(part, f"{name}/{end}", taken).output(0) for part, end in zip(parts, ENDS, strict=True)]


def _split_attention(op: Any, taken: set[str]) -> Rewritten:
    name, sizes = op.get_friendly_name(), _half_sizes(op.get_input_partial_shape(0)[HEADS].get_length())
    taken_in = [slice_value(op.input_value(i), HEADS, sizes, taken) for i in range(3)]
    if op.get_input_size() > 3:
        mask = op.input_value(3)
        shape = mask.get_partial_shape()
        by_head = len(shape) == 4 and not (shape[HEADS].is_static and shape[HEADS].get_length() == 1)
        taken_in.append(slice_value(mask, HEADS, sizes, taken) if by_head else [mask, mask])
    if op.get_input_size() > SCALE:
        taken_in.append([op.input_value(SCALE)] * 2)
    causal = op.get_attributes()["causal"]
    parts = []
    for i, end in enumerate(ENDS):
        part = opset.scaled_dot_product_attention(*(pair[i] for pair in taken_in), causal=causal)
        parts.append(set_name(part, f"{name}/{end}", taken))
    concatenate_outputs(op.output(0), [part.output(0) for part in parts], HEADS, f"{name}/joined", taken)
    return Rewritten(name, tuple(part.get_friendly_name() for part in parts))
