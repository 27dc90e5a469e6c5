"""LSTMs whose weights have 8 bits, written so that the CPU plug-in computes them in int8.

OpenVINO reads DynamicQuantizeLSTM as an LSTM of floating weights. Its CPU plug-in has kernels in int8 for an LSTM whose
input and state are quantised to one fixed scale. The state has one: what an LSTM gives lies within [-1, 1]. So has an
input that an LSTM, a Tanh or a Sigmoid gave, moved but not computed with. Any other input has no range that is known,
and its LSTM stays as it is. The plug-in looks for a state that is quantised as it runs: the initial zeros are made of
the input, since a constant would be folded.

Its kernels compute `TILE` numbers at once, in 16 bits `SMALL`, and take up to three times as long for a width of 100 as
for 128: input and state are filled up with zeros, which change nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as opset
from openvino.passes import ConstantFolding, Manager

from coarsen.reading.rewriting.integer_products import QuantisedWeights, constant_value, unpack_weights
from coarsen.reading.rewriting.slices import set_name
from pipeline.core.arrays import Float32

LSTM = "LSTMSequence"
LEVELS, LEAST_X, MOST_X = 256, -1.0, 127 / 128  # steps of 1/128, a power of two: others came out wrong
LEAST = -128  # of integers of 8 bits, signed or not
TINY = float(np.finfo(np.float32).tiny)
LARGEST = 127  # of the integers that weights become
USUAL = ["sigmoid", "tanh", "tanh"]  # activations of an LSTM, whose output then lies within [-1, 1]
X, STATE, WEIGHTS = 0, 1, (4, 5)  # inputs of an LSTM
SEQUENCES = {LSTM: (opset.lstm_sequence,), "GRUSequence": (opset.gru_sequence, "linear_before_reset")}
KEPT = ("direction", "activations", "activations_alpha", "activations_beta", "clip")
TILE, SMALL = 64, 32  # numbers of 8 and of 16 bits in a row of a tile of AMX; smaller layers gain nothing
BOUNDED = ("Tanh", "Sigmoid", "Softmax")
MOVES = ("Transpose", "Squeeze", "Unsqueeze", "Reshape", "Slice", "StridedSlice", "Split", "VariadicSplit", "Gather")


def quantise_recurrent(model: ov.Model) -> list[str]:
    """Quantise input, state and weights of LSTMs that allow it, in a model, which is changed; return their names."""
    taken = {op.get_friendly_name() for op in model.get_ordered_ops()}
    written = []
    for op, weights in _with_weights(model, _fits):
        name = op.get_friendly_name()
        op, weights = _filled_up(op, weights, TILE, taken)
        for i, each in zip(WEIGHTS, weights, strict=False):
            stored = quantised_rows(each)
            op.input(i).replace_source_output(unpack_weights(stored, f"{name}/{'WR'[i - WEIGHTS[0]]}", taken).output(0))
        # Zeros of a shape [batch, directions, hidden] that are computed of a value [batch, length, width]
        first, one, axes = (set_name(opset.constant(v), f"{name}/first", taken) for v in ([0, 0], [1, 1], [1, 2]))
        any_one = set_name(opset.slice(op.input_value(X), first, one, one, axes), f"{name}/any", taken)
        zero = set_name(opset.clamp(any_one, 0.0, 0.0), f"{name}/zero", taken)
        target = set_name(
            opset.constant(np.array(list(op.input_value(STATE).get_shape()), np.int64)), f"{name}/shape", taken
        )
        state = set_name(opset.broadcast(zero, target), f"{name}/zeros", taken).output(0)
        op.input(STATE).replace_source_output(_quantised(state, f"{name}/state", taken))
        op.input(X).replace_source_output(_quantised(op.input_value(X), f"{name}/input", taken))
        written.append(name)
    model.validate_nodes_and_infer_types()
    return written


def fill_up_recurrent(model: ov.Model) -> list[str]:
    """Fill recurrent layers up to whole tiles of 16 bits in a model, which is changed; return their names."""

    def is_narrow(op: Any) -> bool:
        return (
            op.get_type_name() in SEQUENCES and _whole_tiles(size := op.get_attributes()["hidden_size"], SMALL) > size
        )

    taken = {op.get_friendly_name() for op in model.get_ordered_ops()}
    return [
        _filled_up(op, weights, SMALL, taken)[0].get_friendly_name() for op, weights in _with_weights(model, is_narrow)
    ]


def _with_weights(model: ov.Model, fits: Callable[[Any], bool]) -> list[tuple[Any, list[Float32]]]:
    """Return the recurrent layers that fit and whose constants are known: weights [d, g n, k] twice, bias [d, b n]."""
    known = {op.get_friendly_name(): op for op in model.get_ordered_ops() if fits(op)}
    if not known:
        return []
    folded = model.clone()
    manager = Manager()
    manager.register_pass(ConstantFolding())
    manager.run_passes(folded)
    plain = {op.get_friendly_name(): op for op in folded.get_ordered_ops() if op.get_friendly_name() in known}
    found = []
    for name, same in plain.items():
        constants = [constant_value(value) for value in same.input_values()[-3:]]
        if not any(each is None for each in constants):
            found.append((known[name], [np.asarray(each, np.float32) for each in constants]))
    return found


def _filled_up(op: Any, weights: list[Float32], tile: int, taken: set[str]) -> tuple[Any, list[Float32]]:
    """Return a layer in whole tiles that takes another's place, and its weights [d, g n, k] and bias [d, b n].

    What is added computes zeros, or what nothing reads, whatever the input is.
    """
    (directions, _, width), hidden = weights[0].shape, weights[1].shape[-1]
    wide, large = _whole_tiles(width, tile), _whole_tiles(hidden, tile)
    if (wide, large) == (width, hidden):
        return op, weights
    name = op.get_friendly_name()
    filled = []
    for each, inner in zip(weights, (wide, large, 1), strict=True):
        gates = each.reshape(directions, -1, hidden, each.shape[2] if each.ndim == 3 else 1)  # [d, g, n, k]
        gates = np.pad(gates, [(0, 0), (0, 0), (0, large - hidden), (0, inner - gates.shape[-1])])
        filled.append(gates.reshape(directions, -1, *[inner] * (each.ndim - 2)))
    *first, lengths = op.input_values()[:-3]
    for i, by in enumerate([wide - width, *[large - hidden] * (len(first) - 1)]):
        first[i] = set_name(opset.pad(first[i], [0, 0, 0], [0, 0, by], "constant"), f"{name}/filled", taken)
    constants = [set_name(opset.constant(each), f"{name}/constant", taken) for each in filled]
    make, *names = SEQUENCES[op.get_type_name()]
    attributes = {key: value for key, value in op.get_attributes().items() if key in (*KEPT, *names)}
    whole = make(*first, lengths, *constants, large, **attributes)
    whole.set_friendly_name(name)
    for end, inner in zip(op.outputs(), whole.outputs(), strict=True):
        narrow = set_name(opset.slice(inner, [0], [hidden], [1], [-1]), f"{name}/narrowed", taken).output(0)
        narrow.set_names(end.get_names())
        for reader in end.get_target_inputs():
            reader.replace_source_output(narrow)
    return whole, filled


def _whole_tiles(size: int, tile: int) -> int:
    """Return a size of whole tiles, or as it is where it is small.

    >>> [_whole_tiles(size, 64) for size in (32, 40, 64, 96)]
    [32, 64, 64, 128]
    """
    return size if size <= SMALL else -(-size // tile) * tile


def quantised_rows(weights: Float32) -> QuantisedWeights:
    """Return weights [d, n, k] in 8 bits: with one scale where all are its multiples, else with one for each row."""
    whole = max(float(np.abs(weights).max()), TINY) / LARGEST
    steps = weights / np.float32(whole)
    if np.abs(steps - np.round(steps)).max() < 1e-3:
        return QuantisedWeights(np.round(steps).astype(np.int32), np.full((*weights.shape[:-1], 1), whole, np.float32))
    scale = np.maximum(np.abs(weights).max(axis=-1, keepdims=True), TINY) / LARGEST
    return QuantisedWeights(np.round(weights / scale).astype(np.int32), scale.astype(np.float32))


def _fits(op: Any) -> bool:
    """Return whether an LSTM has weights of 8 bits, an input within [-1, 1], and zeros to begin with."""
    if op.get_type_name() != LSTM or not _is_usual(op) or not _stored_narrow(op.input_value(WEIGHTS[0])):
        return False
    state = constant_value(op.input_value(STATE))
    return state is not None and not state.any() and _is_bounded(op.input_value(X))


def _is_usual(op: Any) -> bool:
    attributes = op.get_attributes()
    return attributes["activations"] == USUAL and not attributes["clip"]


def _is_bounded(value: Any) -> bool:
    """Return whether a value lies within [-1, 1] whatever the inputs of the model are."""
    node = value.get_node()
    kind = node.get_type_name()
    if kind in (LSTM, "LSTMCell"):
        cell = 2 if kind == LSTM else 1
        return value.get_index() != cell and _is_usual(node)
    if kind in MOVES:
        return _is_bounded(node.input_value(0))
    if kind == "Concat":
        return all(_is_bounded(each) for each in node.input_values())
    return kind in BOUNDED


def _stored_narrow(value: Any) -> bool:
    """Return whether a value is made of constants alone, the first of which holds integers of 8 bits.

    OpenVINO reads those of DynamicQuantizeLSTM as floating numbers, and scales them as it runs.
    """
    node = value.get_node()
    if node.get_type_name() == "Constant":  # nothing scales it
        return False
    while node.get_type_name() != "Constant" and node.get_input_size():
        node = node.input_value(0).get_node()
    array = constant_value(node.output(0)) if node.get_type_name() == "Constant" else None
    if array is None or not array.size:
        return False
    return bool((array == np.round(array)).all() and array.min() >= LEAST and array.max() < LEVELS)


def _quantised(value: Any, name: str, taken: set[str]) -> Any:
    limits = (LEAST_X, MOST_X) * 2
    ends = [set_name(opset.constant(np.float32(end)), f"{name}/limit", taken) for end in limits]
    return set_name(opset.fake_quantize(value, *ends, LEVELS), f"{name}/quantised", taken).output(0)
