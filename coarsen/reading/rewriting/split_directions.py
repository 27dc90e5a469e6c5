"""A bidirectional sequence as the two operations it stands for, which do not wait for one another.

LSTMSequence, GRUSequence and RNNSequence take states [batch, directions, hidden] and weights [directions, ...], the
first direction forward, the second in reverse, and give outputs [batch, directions, ...]: halves of the ones go in,
and the outputs are concatenated. Each direction keeps the lengths of the sequences, from which the reverse one begins.

Source: OpenVINO, docs on LSTMSequence-5, GRUSequence-5 and RNNSequence-5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import openvino as ov
from openvino import opset13 as opset

from coarsen.reading.rewriting.rewrites import Rewritten
from coarsen.reading.rewriting.slices import concatenate_outputs, set_name, slice_value

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

    The outputs stay the same. Sequences in bodies are left alone: a body is placed as a whole; so are quantised ones.
    Names in the model must be unique, and are afterwards.
    """
    operations = model.get_ordered_ops()
    taken = {op.get_friendly_name() for op in operations}
    rewritten = [_split_operation(op, taken) for op in operations if _is_bidirectional(op)]
    model.validate_nodes_and_infer_types()
    return rewritten


def _is_bidirectional(op: Any) -> bool:
    """Return whether an operation is a bidirectional sequence of the present form: older ones have more inputs.

    One with quantised weights is none: the runtime computes in int8 only where it finds FakeQuantize right at them.
    """
    kind = op.get_type_name()
    if kind not in SEQUENCES or op.get_input_size() != 2 + SEQUENCES[kind][0] + WEIGHTS:
        return False
    weights = [op.input_value(op.get_input_size() - WEIGHTS + i).get_node().get_type_name() for i in range(WEIGHTS)]
    return bool(op.get_attributes()["direction"] == "bidirectional") and "FakeQuantize" not in weights


def _split_operation(op: Any, taken: set[str]) -> Rewritten:
    """Put two operations in the place of a bidirectional one, and concatenate what is read of their outputs."""
    states, make = SEQUENCES[op.get_type_name()]
    attributes = {key: value for key, value in op.get_attributes().items() if key != "direction"}
    hidden = attributes.pop("hidden_size")
    x, *initial = (op.input_value(i) for i in range(1 + states))
    lengths, *weights = (op.input_value(1 + states + i) for i in range(1 + WEIGHTS))
    one_each = dict.fromkeys(WAYS, 1)
    pairs = [
        [slice_value(value, axis, one_each, taken) for value in values]
        for values, axis in ((initial, BY_STATE), (weights, BY_WEIGHT))
    ]
    parts = []
    for i, way in enumerate(WAYS):
        own_states, own_weights = ([pair[i] for pair in group] for group in pairs)
        part = make(x, *own_states, lengths, *own_weights, hidden, way, **attributes)
        parts.append(set_name(part, f"{op.get_friendly_name()}/{way}", taken))
    for port, which in enumerate(OUTPUTS[: 1 + states]):
        if op.output(port).get_target_inputs():
            read = [part.output(port) for part in parts]
            concatenate_outputs(op.output(port), read, BY_STATE, f"{op.get_friendly_name()}/{which}", taken)
    return Rewritten(op.get_friendly_name(), tuple(part.get_friendly_name() for part in parts))
