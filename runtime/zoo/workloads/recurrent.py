"""The parts of sequence models that several networks share: LSTM layers, embeddings, the softmax over a vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runtime.zoo.workloads.builder import Builder

# Auxiliary operations per operation of a type, such that RNNLM and GNMT have as many operations in all as published.
GLUE: Mapping[str, int] = {
    "AddScalar": 1,
    "AddScalarGrad": 4,
    "ApplySGD": 3,
    "ApplyAdam": 3,
    "BatchMatMul": 14,
    "Concat": 1,
    "MatMul": 2,
    "Mean": 3,
    "MeanGrad": 6,
    "MulGrad": 5,
    "Pack": 1,
    "Slice": 6,
    "Softmax": 12,
    "SoftmaxGrad": 15,
    "Split": 1,
    "Tanh": 2,
    "TanhGrad": 3,
    "Variable": 6,
}


@dataclass(frozen=True, slots=True)
class LstmCell:
    """The variables of one LSTM layer, which all its steps read.

    Source: Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000 and its bias of 1; all gates come
    from one product, in the order i, f, o, g.
    """

    weights: int
    bias: int
    hidden: int

    @classmethod
    def of(cls, b: Builder, inputs: int, hidden: int) -> LstmCell:
        """Return a cell with new variables for an input of `inputs` numbers."""
        weights = b.variable((inputs + hidden, 4 * hidden), name="weights")
        return cls(weights, b.variable((4 * hidden,), name="bias"), hidden)

    def step(self, b: Builder, x: int, state: tuple[int, int]) -> tuple[int, int]:
        """Return the state (h, c), both [batch, hidden], after the input x [batch, inputs]."""
        h, c = state
        rows = b.shape(x)[0]
        if b.fidelity == "fused":
            flops = 2.0 * rows * (b.shape(x)[1] + self.hidden) * 4 * self.hidden
            shape = (rows, self.hidden)
            h, c = b.fused("LSTMCell", (x, h, c, self.weights, self.bias), (shape, shape), flops=flops)
            return h, c
        gates = b.bias(b.matmul(b.concat((x, h)), self.weights), self.bias)
        i, f, o, g = b.split(gates, 4)
        f = b.elementwise("Sigmoid", b.elementwise("AddScalar", f))
        new = b.elementwise("Mul", b.elementwise("Sigmoid", i), b.elementwise("Tanh", g))
        c = b.elementwise("Add", b.elementwise("Mul", c, f), new)
        return b.elementwise("Mul", b.elementwise("Tanh", c), b.elementwise("Sigmoid", o)), c


def lstm(
    b: Builder,
    name: str,
    inputs: Sequence[int],
    hidden: int,
    *,
    layer: int,
    first_step: int = 0,
    state: tuple[int, int] | None = None,
) -> tuple[list[int], tuple[int, int]]:
    """Return the outputs of an LSTM layer per time step, each [batch, hidden], and its last state.

    inputs: per time step [batch, ...]. state: before the first step; zeros by default.
    """
    outputs: list[int] = []
    with b.at(name, layer=layer):
        rows, width = b.shape(inputs[0])
        cell = LstmCell.of(b, width, hidden)
        if state is None:
            zeros = b.placeholder((rows, hidden), name="zeros")
            state = (zeros, zeros)
        for t, x in enumerate(inputs):
            with b.at(f"t{t}", step=first_step + t):
                state = cell.step(b, x, state)
                outputs.append(state[0])
    return outputs, state


@dataclass(frozen=True, slots=True)
class Projection:
    """The variables of the softmax over a vocabulary, which all steps read."""

    weights: int
    bias: int

    @classmethod
    def of(cls, b: Builder, hidden: int, vocab: int) -> Projection:
        """Return a projection with new variables."""
        return cls(b.variable((hidden, vocab), name="weights"), b.variable((vocab,), name="bias"))

    def loss(self, b: Builder, x: int) -> int:
        """Return the loss of each row of x [..., hidden]."""
        return b.cross_entropy(b.bias(b.matmul(x, self.weights), self.bias))


def embeddings(
    b: Builder, name: str, *, vocab: int, width: int, batch: int, steps: int, first_step: int = 0
) -> list[int]:
    """Return the embedded tokens of each time step, `steps` of [batch, width]."""
    with b.at(name):
        table = b.variable((vocab, width), name="table")
        tokens = b.split(b.placeholder((steps, batch), name="tokens"), steps, axis=0)
        outputs = []
        for t, row in enumerate(tokens):
            with b.at(f"t{t}", step=first_step + t):
                outputs.append(b.gather(table, b.reshape(row, (batch,))))
    return outputs


def dot_attention(b: Builder, h: int, memory: int) -> int:
    """Return the mean of memory [batch, source, hidden], weighted by its agreement with h [batch, hidden]."""
    rows, hidden = b.shape(h)
    scores = b.matmul(b.reshape(h, (rows, 1, hidden)), memory, transpose=True)
    return b.reshape(b.matmul(b.softmax(scores), memory), (rows, hidden))


def total_loss(b: Builder, losses: Sequence[int]) -> int:
    """Return the mean loss of all time steps."""
    return b.reduce("Mean", b.elementwise("AddN", *losses) if len(losses) > 1 else losses[0])
