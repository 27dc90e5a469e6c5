"""Recurrent networks: bidirectional LSTM stacks, and the encoder of GNMT cut along time.

A bidirectional layer is one operation, as exporters write it: no placement can separate its directions unless they
are made two operations first (`coarsen.split_directions`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
import openvino as ov
from openvino import opset13 as op

from runtime.zoo.models.layers import Node, RandomWeights, integers, model, parameter

STEPS = 32
STACKED = 2  # layers of the stacks
GATES = 4


def bilstm_128(seed: int) -> ov.Model:
    """Return two bidirectional layers of 128; see `_lstm_stack`."""
    return _lstm_stack("bilstm-128", 128, seed)


def bilstm_512(seed: int) -> ov.Model:
    """Return two bidirectional layers of 512; see `_lstm_stack`."""
    return _lstm_stack("bilstm-512", 512, seed)


def _lstm_stack(name: str, hidden: int, seed: int) -> ov.Model:
    """Return bidirectional layers one on the other: sequence float32 [1, 32, hidden] -> states [1, 32, 2 hidden].

    The second output, last [2, 1, hidden], are the states in which the upper layer's two directions end.
    """
    layers = _Layers(RandomWeights(np.random.default_rng(seed)))
    sequence = parameter("sequence", (1, STEPS, hidden), ov.Type.f32)
    x, width, lstm = sequence, hidden, sequence
    for layer in range(STACKED):
        lstm = layers.lstm(x, (width, hidden), f"layer{layer}", directions=2)
        x, width = layers.joined(lstm.output(0), hidden, f"layer{layer}"), 2 * hidden
    last = op.transpose(lstm.output(1), integers([1, 0, 2], "last.order"), name="last.by_direction")
    return model(name, [sequence], {"states": x, "last": last})


VOCABULARY, WIDTH, ENCODER_LAYERS, PIECES = 8000, 192, 6, 4
FIRST_RESIDUAL = 2


def gnmt_encoder(seed: int) -> ov.Model:
    """Return the encoder: tokens int64 [1, 32] in [0, 8000) -> states float32 [1, 32, 192].

    The lowest layer is bidirectional, those above it run forward, with residual connections from the third on. They
    are cut into pieces of time whose states are handed on, so that a layer may begin before the one below it has ended:
    what GNMT's layers do on devices of their own.

    Source: Wu et al., Google's Neural Machine Translation System, 2016, sections 3.1 to 3.3; widths are freely chosen.
    """
    # Not made from the graph `gnmt2`, which unrolls every cell as TensorFlow does: here a layer is one operation.
    layers = _Layers(RandomWeights(np.random.default_rng(seed)))
    tokens = parameter("tokens", (1, STEPS), ov.Type.i64)
    table = layers.weights.normal((VOCABULARY, WIDTH), "embedding.weight", std=1.0)
    x = op.gather(table, tokens, integers(0, "embedding.axis"), name="embedding")
    x = layers.joined(layers.lstm(x, (WIDTH, WIDTH), "layer0", directions=2).output(0), WIDTH, "layer0")
    cut = op.split(x, integers(1, "pieces.axis"), PIECES, name="pieces")
    pieces, width = [cut.output(i) for i in range(PIECES)], 2 * WIDTH
    for layer in range(1, ENCODER_LAYERS):
        residual = layer >= FIRST_RESIDUAL
        pieces, width = layers.forward(pieces, (width, WIDTH), f"layer{layer}", residual=residual), WIDTH
    return model("gnmt-encoder", [tokens], {"states": op.concat(pieces, 1, name="joined")})


@dataclass(frozen=True, slots=True)
class _Layers:
    """Layers of LSTMs. `sizes` is (in, hidden), `name` what the operations are called after."""

    weights: RandomWeights

    def lstm(self, x: Node, sizes: tuple[int, int], name: str, *, directions: int) -> Node:
        """Return one LSTMSequence that starts from zeros."""
        zeros = np.zeros((1, directions, sizes[1]), np.float32)
        states = [op.constant(zeros, name=f"{name}.initial_{which}") for which in ("hidden", "cell")]
        packed = self._packed(sizes, name, directions)
        return _lstm_sequence(x, states, packed, name, "bidirectional" if directions > 1 else "forward")

    def forward(self, pieces: list[Node], sizes: tuple[int, int], name: str, *, residual: bool) -> list[Node]:
        """Return a layer over pieces of time, each of which begins in the states in which the one before it ends."""
        packed = self._packed(sizes, name, 1)
        zeros = np.zeros((1, 1, sizes[1]), np.float32)
        states = [op.constant(zeros, name=f"{name}.initial_{which}") for which in ("hidden", "cell")]
        outputs = []
        for i, piece in enumerate(pieces):
            own = f"{name}.piece{i}"
            lstm = _lstm_sequence(piece, states, packed, own, "forward")
            states = [lstm.output(1), lstm.output(2)]
            y = op.squeeze(lstm.output(0), integers([1], f"{own}.direction"), name=f"{own}.squeezed")
            outputs.append(op.add(y, piece, name=f"{own}.residual") if residual else y)
        return outputs

    def joined(self, y: Node, hidden: int, name: str) -> Node:
        """Return the directions of [1, 2, 32, hidden] side by side, [1, 32, 2 hidden]."""
        order = integers([0, 2, 1, 3], f"{name}.order")
        y = op.transpose(y, order, name=f"{name}.by_step")  # [1, 32, 2, hidden]
        return op.reshape(y, integers([1, STEPS, 2 * hidden], f"{name}.shape"), False, name=f"{name}.joined")

    def _packed(self, sizes: tuple[int, int], name: str, directions: int) -> list[Node]:
        """Return W [directions, 4 hidden, in], R [directions, 4 hidden, hidden] and B [directions, 4 hidden]."""
        before, hidden = sizes
        rows, std = GATES * hidden, sqrt(1 / hidden)
        return [
            self.weights.normal((directions, rows, before), f"{name}.W", std=sqrt(1 / before)),
            self.weights.normal((directions, rows, hidden), f"{name}.R", std=std),
            self.weights.normal((directions, rows), f"{name}.B", std=0.1),
        ]


def _lstm_sequence(x: Node, states: list[Node], packed: list[Node], name: str, direction: str) -> Node:
    """Return the LSTMSequence of these weights over the whole length of x."""
    lengths = op.constant(np.array([x.shape[1]], np.int64), name=f"{name}.lengths")
    hidden = packed[1].get_output_shape(0)[-1]
    return op.lstm_sequence(x, *states, lengths, *packed, hidden, direction, name=name)
