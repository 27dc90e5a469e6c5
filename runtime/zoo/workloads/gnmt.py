"""Google's neural translation: a deep encoder, bidirectional at the bottom, and a decoder that waits for attention.

The encoder is parallel over its layers; the decoder is serial in time, for its bottom layer reads the attention of the
step before. Residual connections from the third layer on.

Source: Wu et al., Google's Neural Machine Translation System, 2016; batch and depths as in Zhou et al., GDP, 2019.
Chosen freely: 40 time steps on both sides, vocabularies of 32,000, additive attention over the whole source.
Layers: 0 both embeddings, 1.. encoder and decoder layer i + 1, the attention in 1, the last the softmax. Time steps of
the decoder follow those of the encoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.core.workload import Workload
from runtime.zoo.workloads.builder import USUAL, Builder, NetworkOptions, require
from runtime.zoo.workloads.recurrent import GLUE, LstmCell, Projection, embeddings, lstm, total_loss


def gnmt(
    *,
    layers: int = 2,
    steps: int = 40,
    batch: int = 64,
    hidden: int = 1024,
    vocab: int = 32_000,
    recipe: NetworkOptions = USUAL,
) -> Workload:
    """Return a training step of GNMT; `steps` is the length of source and target."""
    require(2, layers=layers)
    b = recipe.builder(GLUE)
    with b.at(layer=0):
        source = embeddings(b, "source", vocab=vocab, width=hidden, batch=batch, steps=steps)
        target = embeddings(b, "target", vocab=vocab, width=hidden, batch=batch, steps=steps, first_step=steps)
    attention = Attention.over(b, _encoder(b, source, hidden, layers), hidden)
    outputs = _decoder(b, target, attention, hidden, layers)
    with b.at("softmax", layer=layers + 1):
        projection, losses = Projection.of(b, hidden, vocab), []
        for t, h in enumerate(outputs):
            with b.at(f"t{t}", step=steps + t):
                losses.append(projection.loss(b, h))
        with b.at(step=2 * steps - 1):
            loss = total_loss(b, losses)
    return recipe.finish(b, loss)


def _encoder(b: Builder, x: Sequence[int], hidden: int, layers: int) -> Sequence[int]:
    """Return the outputs of the top layer per time step."""
    forwards, _ = lstm(b, "enc0", x, hidden, layer=1)
    backwards, _ = lstm(b, "enc0b", x[::-1], hidden, layer=1)
    joined = []
    for t, both in enumerate(zip(forwards, backwards[::-1], strict=True)):
        with b.at(f"enc0/t{t}", layer=1, step=t):
            joined.append(b.concat(both))
    x = joined
    for i in range(1, layers):
        h, _ = lstm(b, f"enc{i}", x, hidden, layer=i + 1)
        x = [_residual(b, f"enc{i}", t, pair, i + 1) for t, pair in enumerate(zip(x, h, strict=True))] if i > 1 else h
    return x


def _residual(b: Builder, name: str, t: int, pair: tuple[int, int], layer: int) -> int:
    """Return the sum of a layer's input and output."""
    with b.at(f"{name}/t{t}", layer=layer, step=t):
        return b.elementwise("Add", *pair)


@dataclass(frozen=True, slots=True)
class Attention:
    """Additive attention over the source.

    memory, keys: [batch, source, hidden]. Source: Bahdanau, Cho, Bengio 2015, appendix A.1.2.
    """

    memory: int
    keys: int
    query_weights: int
    score_weights: int

    @classmethod
    def over(cls, b: Builder, encoded: Sequence[int], hidden: int) -> Attention:
        """Return the attention over the outputs of an encoder per time step, each [batch, hidden]."""
        with b.at("attention", layer=1, step=len(encoded) - 1):
            memory = b.stack(encoded, axis=1)
            keys = b.matmul(memory, b.variable((hidden, hidden), name="memory_weights"))
            query_weights = b.variable((hidden, hidden), name="query_weights")
            return cls(memory, keys, query_weights, b.variable((hidden, 1), name="score_weights"))

    def step(self, b: Builder, h: int) -> int:
        """Return the context [batch, hidden] of a query [batch, hidden]."""
        rows, length, hidden = b.shape(self.memory)
        query = b.reshape(b.matmul(h, self.query_weights), (rows, 1, hidden))
        scores = b.matmul(b.elementwise("Tanh", b.elementwise("Add", self.keys, query)), self.score_weights)
        weights = b.softmax(b.reshape(scores, (rows, 1, length)))
        return b.reshape(b.matmul(weights, self.memory), (rows, hidden))


def _decoder(b: Builder, x: Sequence[int], attention: Attention, hidden: int, layers: int) -> list[int]:
    """Return the outputs of the top layer per time step."""
    rows, steps = b.shape(x[0])[0], len(x)
    cells, states = [], []
    for i in range(layers):
        with b.at(f"dec{i}", layer=i + 1):
            cells.append(LstmCell.of(b, 2 * hidden, hidden))
            zeros = b.placeholder((rows, hidden), name="zeros")
            states.append((zeros, zeros))
    context, outputs = states[0][0], []
    for t, word in enumerate(x):
        with b.at(f"dec0/t{t}", layer=1, step=steps + t):
            states[0] = cells[0].step(b, b.concat((word, context)), states[0])
            h = states[0][0]
        with b.at(f"attention/t{t}", layer=1, step=steps + t):
            context = attention.step(b, h)
        for i in range(1, layers):
            with b.at(f"dec{i}/t{t}", layer=i + 1, step=steps + t):
                states[i] = cells[i].step(b, b.concat((h, context)), states[i])
                h = b.elementwise("Add", h, states[i][0]) if i > 1 else states[i][0]
        outputs.append(h)
    return outputs
