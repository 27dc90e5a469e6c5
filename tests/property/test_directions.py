"""A bidirectional sequence split into its directions gives what it gave, whatever its kind, its lengths and its use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openvino import opset13 as op

from coarsen.reading.rewriting.split_directions import split_directions

BATCH, STEPS, BEFORE, HIDDEN = 2, 5, 3, 4
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
F32 = {"INFERENCE_PRECISION_HINT": "f32"}


@dataclass(frozen=True)
class Case:
    """A model of one bidirectional sequence.

    lengths: "all" steps, "some" of each row, or "given" as an input. weights: "plain", "packed" as fp16, or "computed".
    states: "constant", or "given" as inputs. ports: the outputs that are read. dynamic: whether the number of steps is,
    and the batch, too, where states are given: the runtime refuses constant states of a dynamic batch.
    """

    kind: str
    lengths: str = "all"
    weights: str = "plain"
    states: str = "constant"
    ports: tuple[int, ...] = (0,)
    dynamic: bool = False
    options: tuple[tuple[str, Any], ...] = ()


@st.composite
def cases(draw: st.DrawFn) -> Case:
    kind = draw(st.sampled_from(sorted(GATES)))
    options = {"linear_before_reset": draw(st.booleans())} if kind == "GRU" else {}
    if kind == "RNN":
        options |= {"activations": [draw(st.sampled_from(["tanh", "relu", "sigmoid"]))]}
    if draw(st.booleans()):
        options |= {"clip": 0.5}
    return Case(
        kind,
        draw(st.sampled_from(["all", "some", "given"])),
        draw(st.sampled_from(["plain", "packed", "computed"])),
        draw(st.sampled_from(["constant", "given"])),
        tuple(sorted(draw(st.sets(st.integers(0, 2 if kind == "LSTM" else 1), min_size=1)))),
        draw(st.booleans()),
        tuple(options.items()),
    )


def built(case: Case, seed: int = 0) -> ov.Model:
    """Return the model of a case."""
    rng = np.random.default_rng(seed)
    rows = GATES[case.kind] * HIDDEN
    biases = rows + HIDDEN if dict(case.options).get("linear_before_reset") else rows

    def weight(name: str, *shape: int) -> Any:
        values = rng.standard_normal(shape).astype(np.float16)
        stored = op.constant(values if case.weights == "packed" else values.astype(np.float32), name=name)
        if case.weights == "packed":
            return op.convert(stored, "f32", name=f"{name}.unpack")
        return op.tanh(stored, name=f"{name}.computed") if case.weights == "computed" else stored

    batch = -1 if case.dynamic and case.states == "given" else BATCH
    x = op.parameter([batch, -1 if case.dynamic else STEPS, BEFORE], np.float32, name="x")
    inputs, states = [x], []
    for i in range(2 if case.kind == "LSTM" else 1):
        state: Any = op.constant(rng.standard_normal((BATCH, 2, HIDDEN)).astype(np.float32), name=f"state{i}")
        if case.states == "given":
            state = op.parameter([batch, 2, HIDDEN], np.float32, name=f"state{i}")
            inputs.append(state)
        states.append(state)
    lengths: Any = op.constant(np.array({"all": [STEPS] * 2, "some": [STEPS, 3]}.get(case.lengths, [])), name="lengths")
    if case.lengths == "given":
        lengths = op.parameter([batch], np.int64, name="lengths")
        inputs.append(lengths)
    packed = weight("W", 2, rows, BEFORE), weight("R", 2, rows, HIDDEN), weight("B", 2, biases)
    make = {"LSTM": op.lstm_sequence, "GRU": op.gru_sequence, "RNN": op.rnn_sequence}[case.kind]
    node = make(x, *states, lengths, *packed, HIDDEN, "bidirectional", name="rnn", **dict(case.options))
    for port in case.ports:
        node.output(port).set_names({f"out{port}"})
    results = [op.result(node.output(port), name=f"result{port}") for port in case.ports]
    return ov.Model(results, inputs, "one sequence")


def arrays(model: ov.Model, seed: int = 1) -> dict[str, np.ndarray[Any, Any]]:
    """Return arrays for the inputs, by the name of their operation."""
    rng = np.random.default_rng(seed)
    sizes = {"x": (BATCH, STEPS, BEFORE), "state0": (BATCH, 2, HIDDEN), "state1": (BATCH, 2, HIDDEN)}
    names = [parameter.get_friendly_name() for parameter in model.get_parameters()]
    return {
        name: np.array([STEPS, 2]) if name == "lengths" else rng.standard_normal(sizes[name]).astype(np.float32)
        for name in names
    }


def outputs(model: ov.Model, feed: Mapping[str, np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """Return what the model gives on the CPU."""
    request = ov.Core().compile_model(model, "CPU", F32).create_infer_request()
    for i, parameter in enumerate(model.get_parameters()):
        request.set_input_tensor(i, ov.Tensor(np.ascontiguousarray(feed[parameter.get_friendly_name()])))
    request.infer()
    return [np.array(tensor.data) for tensor in request.output_tensors]


def directions(model: ov.Model) -> list[str]:
    """Return the directions of all sequences of a model."""
    types = ("LSTMSequence", "GRUSequence", "RNNSequence")
    return [o.get_attributes()["direction"] for o in model.get_ordered_ops() if o.get_type_name() in types]


@given(case=cases())
@settings(max_examples=12, deadline=None)
def test_the_directions_of_a_sequence_give_its_outputs(case: Case) -> None:
    model = built(case)
    feed = arrays(model)
    before = outputs(model, feed)
    shapes = [str(port.get_partial_shape()) for port in model.outputs]
    (split,) = split_directions(model)
    assert (split.name, split.parts) == ("rnn", ("rnn/forward", "rnn/reverse"))
    assert sorted(directions(model)) == ["forward", "reverse"]
    assert [str(port.get_partial_shape()) for port in model.outputs] == shapes
    assert [port.get_names() for port in model.outputs] == [{f"out{port}"} for port in case.ports]
    for found, expected in zip(outputs(model, feed), before, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)  # sums in another order
    names = [o.get_friendly_name() for o in model.get_ordered_ops()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("weights", ["plain", "packed"])
def test_the_halves_of_constants_are_constants_and_stay_packed(weights: str) -> None:
    model = built(Case("LSTM", weights=weights))
    split_directions(model)
    layers = [o for o in model.get_ordered_ops() if o.get_type_name() == "LSTMSequence"]
    kinds = {layer.input_value(i).get_node().get_type_name() for layer in layers for i in (4, 5, 6)}
    assert kinds == {"plain": {"Constant"}, "packed": {"Convert"}}[weights]
    assert all(o.get_type_name() != "Split" for o in model.get_ordered_ops())
