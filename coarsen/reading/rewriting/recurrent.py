"""LSTMs whose weights have 8 bits, written so that the CPU plug-in computes them in int8.

OpenVINO reads DynamicQuantizeLSTM as an LSTM of floating weights. Its CPU plug-in has kernels in int8 for an LSTM whose
input and state are quantised to one fixed scale. The state has one: what an LSTM gives lies within [-1, 1]. So has an
input that an LSTM, a Tanh or a Sigmoid gave, moved but not computed with. Any other input has no range that is known,
and its LSTM stays as it is. The plug-in looks for a state that is quantised as it runs: the initial zeros are made of
the input, since a constant would be folded.

Its kernels compute `TILE` numbers at once, and take up to three times as long for an input or a state of 96 as for one
of 128: both are filled up with zeros, which change nothing.
"""

from __future__ import annotations

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
X, STATE, CELL, LENGTHS, WEIGHTS, BIAS = 0, 1, 2, 3, (4, 5), 6  # inputs of an LSTM
GATES = 4
TILE, SMALL = 64, 32  # numbers of 8 bits in a tile of AMX; what is not larger than half of one gains nothing
BOUNDED = ("Tanh", "Sigmoid", "Softmax")
MOVES = ("Transpose", "Squeeze", "Unsqueeze", "Reshape", "Slice", "StridedSlice", "Split", "VariadicSplit", "Gather")


def quantise_recurrent(model: ov.Model) -> list[str]:
    """Quantise input, state and weights of LSTMs that allow it, in a model, which is changed; return their names."""
    operations = model.get_ordered_ops()
    known = {op.get_friendly_name(): op for op in operations if _fits(op)}
    if not known:
        return []
    folded = model.clone()
    manager = Manager()
    manager.register_pass(ConstantFolding())
    manager.run_passes(folded)
    plain = {op.get_friendly_name(): op for op in folded.get_ordered_ops()}
    taken = {op.get_friendly_name() for op in operations}
    written = []
    for name, op in known.items():
        constants = [constant_value(plain[name].input_value(i)) for i in (*WEIGHTS, BIAS)] if name in plain else [None]
        if any(each is None for each in constants):
            continue
        weights = [np.asarray(each, np.float32) for each in constants]
        op, weights = _filled_up(op, weights, name, taken)
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


def _filled_up(op: Any, weights: list[Float32], name: str, taken: set[str]) -> tuple[Any, list[Float32]]:
    """Return an LSTM in whole tiles that takes another's place, and its weights [d, 4 n, k] and bias [d, 4 n].

    What is added computes zeros, or what nothing reads, whatever the input is.
    """
    (directions, _, width), hidden = weights[0].shape, weights[1].shape[-1]
    wide, large = _whole_tiles(width), _whole_tiles(hidden)
    if (wide, large) == (width, hidden):
        return op, weights
    filled = []
    for each, inner in zip(weights, (wide, large, None), strict=True):
        gates = each.reshape(directions, GATES, hidden, -1)  # [d, 4, n, k]
        more = 0 if inner is None else inner - gates.shape[-1]
        gates = np.pad(gates, [(0, 0), (0, 0), (0, large - hidden), (0, more)])
        filled.append(gates.reshape(directions, GATES * large, *([] if inner is None else [-1])))

    def widened(i: int, by: int) -> Any:
        return set_name(opset.pad(op.input_value(i), [0, 0, 0], [0, 0, by], "constant"), f"{name}/filled_{i}", taken)

    first = [widened(X, wide - width), *(widened(i, large - hidden) for i in (STATE, CELL)), op.input_value(LENGTHS)]
    constants = [set_name(opset.constant(each), f"{name}/constant", taken) for each in filled]
    lstm = opset.lstm_sequence(*first, *constants, large, op.get_attributes()["direction"])
    lstm.set_friendly_name(name)
    for end, inner in zip(op.outputs(), lstm.outputs(), strict=True):
        narrow = set_name(opset.slice(inner, [0], [hidden], [1], [-1]), f"{name}/narrowed", taken).output(0)
        narrow.set_names(end.get_names())
        for reader in end.get_target_inputs():
            reader.replace_source_output(narrow)
    return lstm, filled


def _whole_tiles(size: int) -> int:
    """Return a size of whole tiles.

    >>> [_whole_tiles(size) for size in (32, 40, 64, 96)]
    [32, 64, 64, 128]
    """
    return size if size <= SMALL else -(-size // TILE) * TILE


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
