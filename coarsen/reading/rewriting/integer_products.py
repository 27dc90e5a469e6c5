"""Products of dynamically quantised models, as products of floating numbers whose weights are compressed or plain.

A dynamically quantised product finds the least and the greatest number of its input, rounds the input to 8 bits between
them, multiplies integers, and scales the result. OpenVINO reads DynamicQuantizeLinear, MatMulInteger and ConvInteger of
ONNX as some twenty primitive operations per product and runs them as they stand. Here the product is one of the input
itself with the weights times their scale: exact for the weights; what is lost is the rounding of the input, so that
outputs come nearer to the model that was quantised. Given compressed weights, the CPU plug-in quantises the input
again, by groups (DYNAMIC_QUANTIZATION_GROUP_SIZE), within its own kernels.

What is recognised is matched operation by operation. A product of which anything differs is left as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import opset13 as opset

from coarsen.reading.model.read import models_within
from coarsen.reading.rewriting.empty_ranges import LEVELS, without_guard
from coarsen.reading.rewriting.slices import set_name
from pipeline.core.arrays import Float32, Int32

logger = logging.getLogger(__name__)

PRODUCTS = ("MatMul", "Convolution", "GroupConvolution")
ROUNDED = 1e-3  # how far a constant of the pattern may be off: IR stores 1/255 in f16
MOST_DEPTH = 16  # of what is computed from constants alone
_EXACT = 1 << 24  # integers up to this are exact in f32


@dataclass(frozen=True, slots=True)
class QuantisedWeights:
    """Integers [n, k] or [channels, ...] that a product takes as weights, and the scale of each row.

    values: int32, the zero point subtracted. scale: float32, of as many dimensions, 1 but for the first ones.
    """

    values: Int32
    scale: Float32


@dataclass(frozen=True, slots=True)
class _Quantised:
    """A dynamically quantised value: what it was before, the scale of its steps, and how it was moved afterwards.

    moves: the Transposes and Reshapes, the last first.
    """

    x: Any
    scale: Any
    moves: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class _Product:
    """An integer product: its operation, what its input was before it was quantised, and what scales the results.

    ends: each the output that holds scaled floating numbers, with the weights' scale in the product's output.
    """

    op: Any
    activation: _Quantised
    values: Int32
    ends: Sequence[tuple[Any, Float32]]


def integer_products(model: ov.Model) -> int:
    """Return how many products of integers a model and its bodies have, recognised or not."""
    return sum(_is_integer_product(op) for inner in models_within(model) for op in inner.get_ordered_ops())


def dequantise_products(model: ov.Model, *, packed: bool) -> list[str]:
    """Make products of floating numbers of the dynamically quantised ones of a model, which is changed.

    packed: keep the weights as integers, which are unpacked for the product; they become floating constants otherwise.
    Returns the names of the products, which they keep; those within bodies of loops and branches are among them.
    """
    rewritten = []
    for inner in models_within(model):
        operations = inner.get_ordered_ops()
        taken = {op.get_friendly_name() for op in operations}
        for op in operations:
            product = _match_product(op) if _is_integer_product(op) else None
            if product is not None and _replace_product(product, taken, packed=packed):
                rewritten.append(op.get_friendly_name())
        inner.validate_nodes_and_infer_types()
    model.validate_nodes_and_infer_types()
    return rewritten


def _is_integer_product(op: Any) -> bool:
    return op.get_type_name() in PRODUCTS and bool(op.get_output_element_type(0).is_integral())


def _match_product(op: Any) -> _Product | None:
    """Return what a product of integers stands for, None where a part of the pattern is missing."""
    activation, values = _match_centred(op.input_value(0)), _constant_integers(op.input_value(1))
    if activation is None or values is None:
        return None
    ends = [_scaled_outputs(reader.get_node(), activation.scale) for reader in op.output(0).get_target_inputs()]
    known = [end for each in ends if each is not None for end in each]
    if not ends or None in ends or not known:
        return None
    return _Product(op, activation, values, known)


def _constant_integers(value: Any) -> Int32 | None:
    """Return the integers that a value always is, None where there are none, or f32 does not hold them exactly."""
    array = constant_value(value)
    if array is None or array.dtype.kind not in "iu" or not array.size or np.abs(array).max() >= _EXACT:
        return None
    return array.astype(np.int32)


def _match_centred(value: Any) -> _Quantised | None:
    """Return what integers stand for that are a quantised value less its zero point, perhaps in another shape."""
    node = value.get_node()
    if node.get_type_name() != "Subtract":
        return None
    quantised, zero_point = (_before_widening(node.input_value(i)) for i in (0, 1))
    moves = []
    while quantised.get_node().get_type_name() in ("Transpose", "Reshape"):
        moves.append(quantised.get_node())
        quantised = quantised.get_node().input_value(0)
    known = _match_quantised(quantised, zero_point)
    return None if known is None else _Quantised(known.x, known.scale, tuple(moves))


def _before_widening(value: Any) -> Any:
    """Return what a value was before it was converted to more bits, itself if it was not."""
    node = value.get_node()
    return node.input_value(0) if node.get_type_name() == "Convert" and _is_integral(node.input_value(0)) else value


def _is_integral(value: Any) -> bool:
    return bool(value.get_element_type().is_integral())


def _match_quantised(value: Any, zero_point: Any) -> _Quantised | None:
    """Return what DynamicQuantizeLinear was given that gave this value, None where it is not one.

    u8(clamp(round(x * 255 / range) + zero point)) with range = max(x, 0) - min(x, 0),
    zero point = u8(clamp(round((0 - min(x, 0)) / scale))) and scale = range / 255.
    """
    total = _producer_of_type(_before_clamping(value), "Add")
    if total is None:
        return None
    for first, second in ((0, 1), (1, 0)):
        steps, shift = total.input_value(first), total.input_value(second)
        rounded, shifted = _producer_of_type(steps, "Round"), _producer_of_type(shift, "Convert")
        if rounded is not None and shifted is not None and is_same_output(shifted.input_value(0), zero_point):
            return _scaled_steps(rounded.input_value(0), zero_point)
    return None


def _scaled_steps(steps: Any, zero_point: Any) -> _Quantised | None:
    """Return the value and scale of x * 255 / range, or of x / scale, where all of it is about one x."""
    divided, shift = _producer_of_type(steps, "Divide"), _producer_of_type(_before_clamping(zero_point), "Round")
    lowest = None if shift is None else _producer_of_type(shift.input_value(0), "Divide")
    if divided is None or lowest is None:
        return None
    scale, negated = lowest.input_value(1), _producer_of_type(lowest.input_value(0), "Subtract")
    spread = _match_multiple(scale, 1 / LEVELS)
    ends = None if spread is None else _producer_of_type(without_guard(spread), "Subtract")
    if negated is None or ends is None or not is_number(negated.input_value(0), 0.0):
        return None
    greatest, least = ends.input_value(0), ends.input_value(1)
    if is_same_output(divided.input_value(1), scale):
        x = divided.input_value(0)
    else:
        x = _match_multiple(divided.input_value(0), LEVELS) if is_same_output(divided.input_value(1), spread) else None
    if x is None or not is_same_output(negated.input_value(1), least):
        return None
    found = _is_end(greatest, x, "Maximum", "ReduceMax") and _is_end(least, x, "Minimum", "ReduceMin")
    return _Quantised(x, scale) if found else None


def _is_end(value: Any, x: Any, bound: str, reduction: str) -> bool:
    """Return whether a value is the greatest, or least, number of all of x and 0."""
    node = _producer_of_type(value, bound)
    if node is None:
        return False
    for first, second in ((0, 1), (1, 0)):
        reduced = _producer_of_type(node.input_value(second), reduction)
        if (
            reduced is not None
            and is_number(node.input_value(first), 0.0)
            and is_same_output(reduced.input_value(0), x)
        ):
            axes, rank = constant_value(reduced.input_value(1)), x.get_partial_shape().rank
            if axes is None or rank.is_dynamic:
                return False
            return {int(axis) % rank.get_length() for axis in axes.ravel()} == set(range(rank.get_length()))
    return False


def _before_clamping(value: Any) -> Any | None:
    """Return what is limited to 0 .. 255 and stored in 8 bits as a value, None where that is not done."""
    node = value.get_node()
    if node.get_type_name() != "Convert" or value.get_element_type() != ov.Type.u8:
        return None
    clamp = _producer_of_type(node.input_value(0), "Clamp")
    if clamp is None:
        return None
    limits = clamp.get_attributes()
    return clamp.input_value(0) if (limits["min"], limits["max"]) == (0.0, LEVELS) else None


def _producer_of_type(value: Any | None, kind: str) -> Any | None:
    """Return the operation of a type that gives a value; None where it is of another one."""
    node = None if value is None else value.get_node()
    return node if node is not None and node.get_type_name() == kind else None


def _match_multiple(value: Any, number: float) -> Any | None:
    """Return what a value is the given multiple of, None where it is not the product, or quotient, with a constant."""
    node = value.get_node()
    if node.get_type_name() == "Divide":
        return node.input_value(0) if is_number(node.input_value(1), 1 / number) else None
    if node.get_type_name() != "Multiply":
        return None
    for first, second in ((0, 1), (1, 0)):
        if is_number(node.input_value(second), number):
            return node.input_value(first)
    return None


def _scaled_outputs(reader: Any, scale: Any) -> list[tuple[Any, Float32]] | None:
    """Return the outputs, with the weights' scale, that are integers read by a Convert times the input's scale."""
    if reader.get_type_name() != "Convert" or reader.get_output_element_type(0) != ov.Type.f32:
        return None
    ends = []
    for target in reader.output(0).get_target_inputs():
        node = target.get_node()
        if node.get_type_name() != "Multiply":
            return None
        factor = _scale_factor(node.input_value(1 - target.get_index()), scale)
        if factor is None:
            return None
        ends.append((node.output(0), factor))
    return ends or None


def _scale_factor(value: Any, scale: Any) -> Float32 | None:
    """Return the constant by which a value is the multiple of a scale, 1 for the scale itself."""
    if is_same_output(value, scale):
        return np.ones((), np.float32)
    node = value.get_node()
    if node.get_type_name() != "Multiply":
        return None
    for first, second in ((0, 1), (1, 0)):
        if is_same_output(node.input_value(first), scale):
            constant = constant_value(node.input_value(second))
            return None if constant is None else constant.astype(np.float32)
    return None


def _replace_product(product: _Product, taken: set[str], *, packed: bool) -> bool:
    """Put products of floating numbers in the place of an integer one; return whether its scales allowed that."""
    rows = [(end, _by_row(product, scale)) for end, scale in product.ends]
    made = [(end, weights) for end, weights in rows if weights is not None]
    if len(made) < len(rows):
        return False
    name = product.op.get_friendly_name()
    taken.discard(name)
    x = product.activation.x
    for move in reversed(product.activation.moves):
        x = set_name(_copy_move(x, move), f"{name}/{move.get_type_name()}", taken).output(0)
    for end, weights in made:
        constant = unpack_weights(weights, name, taken) if packed else plain_weights(weights, name, taken)
        node = set_name(_product_of(product.op, x, constant), name, taken)
        node.output(0).set_names(end.get_names())
        for reader in end.get_target_inputs():
            reader.replace_source_output(node.output(0))
    return True


def _copy_move(x: Any, move: Any) -> Any:
    """Return a Transpose or Reshape of a value like one of another value."""
    if move.get_type_name() == "Transpose":
        return opset.transpose(x, move.input_value(1))
    return opset.reshape(x, move.input_value(1), move.get_attributes()["special_zero"])


def _by_row(product: _Product, scale: Float32) -> QuantisedWeights | None:
    """Return the weights of a product in the layout of its floating one, None where scales are not one per row."""
    op, values = product.op, product.values
    rank = op.get_output_partial_shape(0).rank
    if rank.is_dynamic or scale.ndim > rank.get_length():
        return None
    if op.get_type_name() == "MatMul":
        return _of_matmul(op, values, scale)
    depth = 2 if op.get_type_name() == "GroupConvolution" else 1  # dimensions of the weights that count channels
    channels = int(np.prod(values.shape[:depth]))
    spread = scale.reshape([1] * (rank.get_length() - scale.ndim) + list(scale.shape))
    if spread.shape not in ((1,) * spread.ndim, (1, channels) + (1,) * (spread.ndim - 2)):
        return None
    rows = np.broadcast_to(spread.ravel(), channels)
    return QuantisedWeights(
        values, rows.reshape([*values.shape[:depth], *[1] * (values.ndim - depth)]).astype(np.float32)
    )


def _of_matmul(op: Any, values: Int32, scale: Float32) -> QuantisedWeights | None:
    """Return weights [n, k] of a MatMul, whatever is written; leading dimensions of 1 are dropped."""
    if op.get_attributes()["transpose_a"]:
        return None
    before = op.input_value(0).get_partial_shape().rank
    if values.ndim < 2 or values.size != values.shape[-1] * values.shape[-2] or before.get_length() < values.ndim:
        return None
    matrix = values.reshape(values.shape[-2], values.shape[-1])
    matrix = matrix if op.get_attributes()["transpose_b"] else matrix.T
    if scale.size not in (1, matrix.shape[0]) or (scale.size > 1 and scale.shape[-1] != scale.size):
        return None
    return QuantisedWeights(
        np.ascontiguousarray(matrix), np.broadcast_to(scale.reshape(-1, 1), (len(matrix), 1)).copy()
    )


def _product_of(op: Any, x: Any, weights: Any) -> Any:
    """Return a product as an integer one is, of floating inputs."""
    attributes = op.get_attributes()
    if op.get_type_name() == "MatMul":
        return opset.matmul(x, weights, False, True)
    make = opset.convolution if op.get_type_name() == "Convolution" else opset.group_convolution
    return make(x, weights, **attributes)


def plain_weights(weights: QuantisedWeights, name: str, taken: set[str]) -> Any:
    """Return weights as one floating constant."""
    return set_name(opset.constant(weights.values.astype(np.float32) * weights.scale), f"{name}/weights", taken)


def unpack_weights(weights: QuantisedWeights, name: str, taken: set[str]) -> Any:
    """Return weights as integers of 8 bits, and what unpacks them: Convert, Subtract of a zero point, Multiply.

    They are floating constants where 8 bits do not hold them.
    """
    stored = in_8_bits(weights.values)
    if stored is None:
        return plain_weights(weights, name, taken)
    values, zero_point = stored
    constant = set_name(opset.constant(values), f"{name}/weights", taken)
    value = set_name(opset.convert(constant, "f32"), f"{name}/unpacked", taken)
    if zero_point is not None:
        shift = set_name(opset.constant(zero_point), f"{name}/zero_point", taken)
        shift = set_name(opset.convert(shift, "f32"), f"{name}/zero_point/unpacked", taken)
        value = set_name(opset.subtract(value, shift), f"{name}/centred", taken)
    scale = set_name(opset.constant(weights.scale), f"{name}/scale", taken)
    return set_name(opset.multiply(value, scale), f"{name}/scaled", taken)


def in_8_bits(values: Int32) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8] | None] | None:
    """Return integers as int8 with no zero point, else as uint8 with that of each row; None where neither holds them.

    zero point: uint8, of as many dimensions as the values, 1 but for the first.

    >>> values, zero_point = in_8_bits(np.array([[-200, 55], [0, 3]], np.int32))
    >>> values.tolist(), zero_point.tolist()
    ([[0, 255], [0, 3]], [[200], [0]])
    """
    if values.min() >= -128 and values.max() <= 127:
        return values.astype(np.int8), None
    inner = tuple(range(1, values.ndim))
    least, greatest = values.min(axis=inner, keepdims=True), values.max(axis=inner, keepdims=True)
    zero_point = np.maximum(0, -least)
    if (greatest + zero_point > LEVELS).any() or (zero_point > LEVELS).any():
        return None
    return (values + zero_point).astype(np.uint8), zero_point.astype(np.uint8)


def is_same_output(a: Any, b: Any) -> bool:
    """Return whether two values are one output of one operation."""
    return bool(a.get_node().get_name() == b.get_node().get_name() and a.get_index() == b.get_index())


def is_number(value: Any, number: float) -> bool:
    """Return whether a value is this constant number, as nearly as f16 tells it."""
    array = constant_value(value) if value.get_partial_shape().is_static else None
    return array is not None and array.size == 1 and abs(float(array.ravel()[0]) - number) <= ROUNDED * abs(number)


def constant_value(value: Any, depth: int = MOST_DEPTH) -> npt.NDArray[Any] | None:
    """Return the array that a value always is, None where it depends on inputs or on operations not known here."""
    node = value.get_node()
    kind = node.get_type_name()
    if kind == "Constant":
        plain = value.get_element_type() != ov.Type.bf16 and value.get_element_type().bitwidth >= 8  # numpy has these
        return np.asarray(node.get_data()) if plain else None
    if kind not in ("Convert", "Subtract", "Multiply", "Transpose", "Reshape") or not depth:
        return None
    inputs = [constant_value(node.input_value(i), depth - 1) for i in range(node.get_input_size())]
    first, second = inputs[0], inputs[-1]
    if first is None or second is None:
        return None
    array: npt.NDArray[Any]
    match kind:
        case "Convert":
            array = first.astype(value.get_element_type().to_dtype())
        case "Subtract":
            array = first - second
        case "Multiply":
            array = first * second
        case "Transpose":
            array = np.transpose(first, second.tolist() if second.size else None)
        case _:
            array = first.reshape(value.get_shape())
    return array
