"""Transformer-XL: a language model that reads its text in segments and remembers those before.

No gradient flows into the memory, so segment s of layer l waits for segment s - 1 of layer l - 1 only: segments follow
one another through the layers like waves.

Source: Dai et al., Transformer-XL, 2019, section 3; sizes as in Zhou et al., GDP, 2019. Chosen freely: a full softmax
over 30,000 words instead of an adaptive one; queries are computed for the memory too, together with keys and values.
Layers: 0 the embedding, 1.. the blocks, the last the softmax. Time steps: the segments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.core.errors import UsageError
from pipeline.core.workload import Workload
from runtime.zoo.workloads.builder import USUAL, Builder, NetworkOptions, require
from runtime.zoo.workloads.recurrent import Projection, embeddings, total_loss

HEAD = 50  # numbers per attention head

# Auxiliary operations per operation of a type, such that two layers have 2,618 operations in all, as published.
GLUE: Mapping[str, int] = {
    "Add": 1,
    "AddGrad": 5,
    "ApplySGD": 1,
    "ApplyAdam": 1,
    "BatchMatMul": 4,
    "Concat": 1,
    "Dropout": 4,
    "DropoutGrad": 3,
    "Gather": 2,
    "LayerNorm": 12,
    "LayerNormGrad": 20,
    "Mask": 2,
    "MaskGrad": 2,
    "Mean": 2,
    "MeanGrad": 6,
    "Pad": 3,
    "RelativeShift": 3,
    "RelativeShiftGrad": 3,
    "Slice": 6,
    "Softmax": 2,
    "SoftmaxCrossEntropy": 3,
    "SoftmaxGrad": 3,
    "Variable": 3,
}


def txl(
    *,
    layers: int = 2,
    segments: int = 4,
    length: int = 64,
    batch: int = 64,
    hidden: int = 500,
    vocab: int = 30_000,
    recipe: NetworkOptions = USUAL,
) -> Workload:
    """Return a training step of Transformer-XL over `segments` segments of `length` tokens."""
    require(1, layers=layers)
    b = recipe.builder(GLUE)
    if hidden % HEAD:
        raise UsageError(f"hidden is {hidden}.", f"Choose a multiple of {HEAD}, the width of an attention head.")
    with b.at(layer=0):
        rows = embeddings(b, "embedding", vocab=vocab, width=hidden, batch=batch * length, steps=segments)
        x = [b.reshape(row, (batch, length, hidden)) for row in rows]
    for i in range(layers):
        with b.at(f"block{i}", layer=i + 1):
            block, memory = Block.of(b, hidden, length), b.placeholder((batch, length, hidden), name="memory")
            for s, inputs in enumerate(x):
                with b.at(f"s{s}", step=s):
                    x[s] = block.step(b, inputs, memory)
                memory = b.stop_gradient(inputs)
    with b.at("softmax", layer=layers + 1):
        projection, losses = Projection.of(b, hidden, vocab), []
        for s, h in enumerate(x):
            with b.at(f"s{s}", step=s):
                losses.append(projection.loss(b, h))
        with b.at(step=segments - 1):
            loss = total_loss(b, losses)
    return recipe.finish(b, loss)


@dataclass(frozen=True, slots=True)
class Norm:
    """The variables of a layer normalisation."""

    gamma: int
    beta: int

    @classmethod
    def of(cls, b: Builder, width: int, name: str) -> Norm:
        """Return a normalisation with new variables."""
        return cls(b.variable((width,), name=f"{name}/gamma"), b.variable((width,), name=f"{name}/beta"))


@dataclass(frozen=True, slots=True)
class Block:
    """The variables of one layer, which all segments read; positions: the encoding of distances, data."""

    qkv: int
    relative: int
    content_bias: int
    position_bias: int
    out: int
    expand: int
    expand_bias: int
    contract: int
    contract_bias: int
    norms: tuple[Norm, Norm]
    positions: int

    @classmethod
    def of(cls, b: Builder, hidden: int, length: int) -> Block:
        """Return a block with new variables; its inner layer is twice as wide."""
        heads = hidden // HEAD
        return cls(
            qkv=b.variable((hidden, 3 * hidden), name="qkv"),
            relative=b.variable((hidden, hidden), name="relative"),
            content_bias=b.variable((1, heads, 1, HEAD), name="content_bias"),
            position_bias=b.variable((1, heads, 1, HEAD), name="position_bias"),
            out=b.variable((hidden, hidden), name="out"),
            expand=b.variable((hidden, 2 * hidden), name="expand"),
            expand_bias=b.variable((2 * hidden,), name="expand_bias"),
            contract=b.variable((2 * hidden, hidden), name="contract"),
            contract_bias=b.variable((hidden,), name="contract_bias"),
            norms=(Norm.of(b, hidden, "norm0"), Norm.of(b, hidden, "norm1")),
            positions=b.placeholder((2 * length, hidden), name="positions"),
        )

    def step(self, b: Builder, x: int, memory: int) -> int:
        """Return the output [batch, length, hidden] for an input of that shape and the memory before it."""
        if b.fidelity == "fused":
            return self._fused(b, x, memory)
        # attention of x over memory and x, with distances relative to the reader
        batch, length, hidden = b.shape(x)
        heads = hidden // HEAD
        wide, narrow = (batch, heads, 2 * length, HEAD), (batch, heads, length, HEAD)
        q, k, v = b.split(b.matmul(b.concat((memory, x), axis=1), self.qkv), 3)
        q = b.reshape(b.slice(q, (batch, length, hidden)), narrow)
        k, v = b.reshape(k, wide), b.reshape(v, wide)
        r = b.reshape(b.matmul(self.positions, self.relative), (heads, 2 * length, HEAD))
        content = b.matmul(b.elementwise("Add", q, self.content_bias), k, transpose=True)
        position = self._against(b, b.elementwise("Add", q, self.position_bias), r)
        scores = b.elementwise("Add", content, b.elementwise("RelativeShift", position))
        weights = b.elementwise("Dropout", b.softmax(b.elementwise("Mask", scores)))
        x = self._normalised(
            b, x, b.matmul(b.reshape(b.matmul(weights, v), (batch, length, hidden)), self.out), self.norms[0]
        )
        inner = b.elementwise("Relu", b.bias(b.matmul(x, self.expand), self.expand_bias))
        y = b.bias(b.matmul(b.elementwise("Dropout", inner), self.contract), self.contract_bias)
        return self._normalised(b, x, y, self.norms[1])

    def _against(self, b: Builder, q: int, r: int) -> int:
        """Return q [batch, heads, length, head] times the distances r [heads, 2 length, head], for all of the batch."""
        batch, heads, length, width = b.shape(q)
        shape = (batch, heads, length, b.shape(r)[1])
        return b.op("BatchMatMul", (q, r), shape, flops=2.0 * batch * heads * length * shape[-1] * width)

    def _normalised(self, b: Builder, x: int, y: int, norm: Norm) -> int:
        """Return the normalised sum of x and y, some of y dropped."""
        return b.layer_norm(b.elementwise("Add", x, b.elementwise("Dropout", y)), norm.gamma, norm.beta)

    def _fused(self, b: Builder, x: int, memory: int) -> int:
        """Return the output of the block as one operation."""
        batch, length, hidden = b.shape(x)
        attention = (self.qkv, self.relative, self.content_bias, self.position_bias, self.out)
        inner = (self.expand, self.expand_bias, self.contract, self.contract_bias)
        norms = (self.norms[0].gamma, self.norms[0].beta, self.norms[1].gamma, self.norms[1].beta)
        per_token = 2 * hidden * 3 * hidden + hidden * hidden + 3 * 2 * length * hidden + 4 * hidden * hidden
        flops = 2.0 * (batch * length * per_token + 2 * length * hidden * hidden)
        inputs = (x, memory, self.positions, *attention, *inner, *norms)
        return b.fused("TransformerBlock", inputs, (b.shape(x),), flops=flops)[0]
