"""A bidirectional sequence as the two operations it stands for, which do not wait for one another.

LSTMSequence, GRUSequence and RNNSequence take states [batch, directions, hidden] and weights [directions, ...], the
first direction forward, the second in reverse, and give outputs [batch, directions, ...]: halves of the ones go in,
and the outputs are concatenated. Each direction keeps the lengths of the sequences, from which the reverse one begins.

Source: OpenVINO, docs on LSTMSequence-5, GRUSequence-5 and RNNSequence-5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as opset

from coarsen.reading.rewrites import Rewritten

WAYS = ("forward", "reverse")
BY_STATE, BY_WEIGHT = 1, 0  # the dimension of directions
OUTPUTS = ("outputs", "hidden", "cell")

# Type -> (states that it takes and gives, what makes one).
SEQUENCES: Mapping[str, tuple[int, Callable[..., Any]]] = {
    "LSTMSequence": (2, opset.lstm_sequence),
    "GRUSequence": (1, opset.gru_sequence),
    "RNNSequence": (1, opset.rnn_sequence),
}
WEIGHTS = 3


def split_directions(model: ov.Model) -> list[Rewritten]:
    """Make two operations of every bidirectional sequence of a model, which is changed; return which, in order.

    The outputs stay the same. Sequences in bodies are left alone: a body is placed as a whole. Names in the model must
    be unique, and are afterwards.
    """
    operations = model.get_ordered_ops()
    taken = {op.get_friendly_name() for op in operations}
    found = [_split(op, taken) for op in operations if _is_bidirectional(op)]
    model.validate_nodes_and_infer_types()
    return found


def _is_bidirectional(op: Any) -> bool:
    """Return whether an operation is a bidirectional sequence of the present form: older ones have more inputs."""
    kind = op.get_type_name()
    if kind not in SEQUENCES or op.get_input_size() != 2 + SEQUENCES[kind][0] + WEIGHTS:
        return False
    return bool(op.get_attributes()["direction"] == "bidirectional")


def _split(op: Any, taken: set[str]) -> Rewritten:
    """Put two operations in the place of a bidirectional one, and concatenate what is read of their outputs."""
    states, make = SEQUENCES[op.get_type_name()]
    attributes = {key: value for key, value in op.get_attributes().items() if key != "direction"}
    hidden = attributes.pop("hidden_size")
    x, *initial = (op.input_value(i) for i in range(1 + states))
    lengths, *weights = (op.input_value(1 + states + i) for i in range(1 + WEIGHTS))
    pairs = [_halves(v, BY_STATE, taken) for v in initial], [_halves(v, BY_WEIGHT, taken) for v in weights]
    parts = []
    for i, way in enumerate(WAYS):
        own_states, own_weights = ([pair[i] for pair in group] for group in pairs)
        part = make(x, *own_states, lengths, *own_weights, hidden, way, **attributes)
        _name(part, f"{op.get_friendly_name()}/{way}", taken)
        parts.append(part)
    for port, which in enumerate(OUTPUTS[: 1 + states]):
        _join(op, port, which, parts, taken)
    return Rewritten(op.get_friendly_name(), tuple(part.get_friendly_name() for part in parts))


def _join(op: Any, port: int, which: str, parts: Sequence[Any], taken: set[str]) -> None:
    """Let all that reads an output of an operation read that of its parts side by side; tensors keep their names."""
    replaced = op.output(port)
    readers = replaced.get_target_inputs()
    if not readers:
        return
    joined = opset.concat([part.output(port) for part in parts], BY_STATE)
    _name(joined, f"{op.get_friendly_name()}/{which}", taken)
    joined.output(0).set_names(replaced.get_names())
    for reader in readers:
        reader.replace_source_output(joined.output(0))


def _halves(value: Any, axis: int, taken: set[str]) -> tuple[Any, Any]:
    """Return the two halves of a value along a dimension: constants where it is one, packed where it is packed."""
    node = value.get_node()
    name = node.get_friendly_name()
    if _is_plain(node):
        arrays = np.split(np.asarray(node.get_data()), 2, axis)
        first, second = (_name(opset.constant(a), f"{name}/{w}", taken) for a, w in zip(arrays, WAYS, strict=True))
        return first.output(0), second.output(0)
    if node.get_type_name() == "Convert" and _is_plain(node.input_value(0).get_node()):
        used = node.get_output_element_type(0)
        packed = zip(_halves(node.input_value(0), axis, taken), WAYS, strict=True)
        first, second = (_name(opset.convert(half, used.to_string()), f"{name}/{w}", taken) for half, w in packed)
        return first.output(0), second.output(0)
    where = _name(opset.constant(np.int64(axis)), f"{name}/axis", taken)
    both = _name(opset.split(value, where, len(WAYS)), f"{name}/split", taken)
    return both.output(0), both.output(1)


def _is_plain(node: Any) -> bool:
    """Return whether an operation is a constant of a type that numpy has."""
    if node.get_type_name() != "Constant":
        return False
    kind = node.get_output_element_type(0)
    return bool(kind.is_real() and kind.bitwidth >= 16 and kind != ov.Type.bf16)


def _name(node: Any, name: str, taken: set[str]) -> Any:
    """Give an operation a name, with a suffix if another one has it, and return it."""
    free, count = name, 1
    while free in taken:
        count += 1
        free = f"{name}_{count}"
    taken.add(free)
    node.set_friendly_name(free)
    return node
