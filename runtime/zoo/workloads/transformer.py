"""BERT, and a Transformer block whose feed-forward network is a mixture of experts.

Source: Devlin, Chang, Lee and Toutanova, BERT, NAACL 2019, base size, with its classifier; Lepikhin et al., GShard,
ICLR 2021, section 2.2: every token goes to its best two experts, by products with one-hot tensors.
"""

from __future__ import annotations

import math

from pipeline.core.errors import UsageError
from pipeline.core.workload import Workload
from runtime.zoo.workloads.builder import USUAL, Builder, NetworkOptions

VOCABULARY, POSITIONS, SEGMENTS = 30522, 512, 2
CLASSES = 2
SLACK = 1.25  # how many more tokens an expert has room for than an even share


def bert(
    *,
    batch: int = 32,
    sequence: int = 128,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    recipe: NetworkOptions = USUAL,
) -> Workload:
    """Return a BERT that classifies sequences: a training step, or the class probabilities."""
    _check_heads(hidden, heads)
    if not 0 < sequence <= POSITIONS:
        raise UsageError(f"BERT cannot read {sequence} tokens.", f"Give 1 to {POSITIONS}.")
    b = recipe.builder()
    with b.at("embeddings", layer=0):
        mask = b.placeholder((batch, 1, 1, sequence), name="mask")
        # the sum of the embeddings of tokens, segments and positions
        tokens, segments = (b.placeholder((batch, sequence), name=name) for name in ("tokens", "segments"))
        words = b.gather(b.variable((VOCABULARY, hidden), name="words"), tokens)
        kinds = b.gather(b.variable((SEGMENTS, hidden), name="kinds"), segments)
        places = b.slice(b.variable((POSITIONS, hidden), name="places"), (sequence, hidden))
        x = b.elementwise("Add", b.elementwise("Add", words, kinds), places)
        x = _drop_in_training(b, _normalise(b, x), recipe)
    for layer in range(layers):
        with b.at(f"layer{layer}", layer=layer + 1):
            with b.at("attention"):
                y = _drop_in_training(b, _self_attention(b, x, mask, heads, recipe), recipe)
                x = _normalise(b, b.elementwise("Add", x, y))
            with b.at("feed_forward"):
                y = _drop_in_training(b, _feed_forward(b, x, "Gelu"), recipe)
                x = _normalise(b, b.elementwise("Add", x, y))
    with b.at("head", layer=layers + 1):
        first = b.reshape(b.slice(x, (batch, 1, hidden)), (batch, hidden))
        pooled = b.elementwise("Tanh", b.dense(first, hidden))
        logits = b.dense(_drop_in_training(b, pooled, recipe), CLASSES)
        if recipe.training:
            return recipe.finish(b, b.reduce("Mean", b.cross_entropy(logits)))
        b.softmax(logits)
        return b.workload()


def moe_block(
    *,
    batch: int = 8,
    sequence: int = 512,
    hidden: int = 1024,
    heads: int = 16,
    experts: int = 8,
    blocks: int = 1,
    recipe: NetworkOptions = USUAL,
) -> Workload:
    """Return Transformer blocks of attention and a mixture of experts, of which each token takes the best two.

    A training step ends in the mean of the last block's output, in place of a head.
    """
    _check_heads(hidden, heads)
    if experts < 2:
        raise UsageError(f"A mixture of {experts} experts cannot offer two.", "Give at least 2 experts.")
    b = recipe.builder()
    x = b.placeholder((batch, sequence, hidden), name="tokens")
    mask = b.placeholder((1, 1, sequence, sequence), name="mask")
    for block in range(blocks):
        with b.at(f"block{block}", layer=block):
            with b.at("attention"):
                y = _self_attention(b, _normalise(b, x), mask, heads, recipe)
                x = b.elementwise("Add", x, y)
            with b.at("experts"):
                x = b.elementwise("Add", x, _mixture(b, _normalise(b, x), experts))
    if recipe.training:
        return recipe.finish(b, b.reduce("Mean", x))
    return b.workload()


def _self_attention(b: Builder, x: int, mask: int, heads: int, recipe: NetworkOptions) -> int:
    """Return multi-head self-attention of x [batch, sequence, hidden]."""
    batch, sequence, hidden = b.shape(x)
    split = (batch, sequence, heads, hidden // heads)
    if b.fidelity == "fused":
        weights = b.variable((4, hidden + 1, hidden), name="weights")  # biases included
        flops = 2.0 * batch * sequence * hidden * (4 * hidden + 2 * sequence)
        return b.fused("Attention", (x, mask, weights), (b.shape(x),), flops=flops)[0]

    def projected(name: str) -> int:
        with b.at(name):
            return b.transpose(b.reshape(b.dense(x, hidden), split), (0, 2, 1, 3))

    q, k, v = projected("query"), projected("key"), projected("value")
    scores = b.elementwise("Add", b.matmul(q, k, transpose=True), mask)
    mixed = b.matmul(_drop_in_training(b, b.softmax(scores), recipe), v)
    with b.at("output"):
        return b.dense(b.reshape(b.transpose(mixed, (0, 2, 1, 3)), (batch, sequence, hidden)), hidden)


def _feed_forward(b: Builder, x: int, type: str) -> int:
    """Return x [..., hidden] through an inner layer of four times the width; type: its activation."""
    hidden = b.shape(x)[-1]
    if b.fidelity == "fused":
        weights = b.variable((8 * hidden + 5, hidden), name="weights")  # biases included
        return b.fused("FeedForward", (x, weights), (b.shape(x),), flops=16.0 * math.prod(b.shape(x)) * hidden)[0]
    return b.dense(b.elementwise(type, b.dense(x, 4 * hidden)), hidden)


def _mixture(b: Builder, x: int, experts: int) -> int:
    """Return what the two best experts make of each token of x [batch, sequence, hidden], weighted by their gates.

    Each sequence gives each expert a fixed number of places. The gates, as weights [sequence, places] per expert,
    gather the expert's tokens by one product and scatter its answers by another.
    """
    batch, sequence, _ = b.shape(x)
    places = math.ceil(SLACK * 2 * sequence / experts)
    with b.at("gate"):
        gates = b.softmax(b.dense(x, experts, bias=False))
        shape = (batch, sequence, experts, places)
        weights = b.split(b.op("TopTwo", (gates,), shape, flops=4.0 * math.prod(shape)), experts, 2)
    answers = []
    for i, weight in enumerate(weights):
        with b.at(f"expert{i}", step=i):
            weight = b.reshape(weight, (batch, sequence, places))
            chosen = b.elementwise("Greater", b.stop_gradient(weight))
            tokens = b.matmul(b.transpose(chosen, (0, 2, 1)), x)
            answers.append(b.matmul(weight, _feed_forward(b, tokens, "Relu")))
    return b.elementwise("AddN", *answers)


def _normalise(b: Builder, x: int) -> int:
    """Return x normalised over its last axis, scaled and shifted."""
    width = b.shape(x)[-1]
    return b.layer_norm(x, b.variable((width,), name="gamma"), b.variable((width,), name="beta"))


def _drop_in_training(b: Builder, x: int, recipe: NetworkOptions) -> int:
    """Return x with a part of it set to zero where the network is being trained."""
    return b.elementwise("Dropout", x) if recipe.training else x


def _check_heads(hidden: int, heads: int) -> None:
    """Raise UsageError unless heads can share the hidden units equally."""
    if heads < 1 or hidden < heads or hidden % heads:
        raise UsageError(f"{heads} heads cannot share {hidden} units.", "Give a divisor of the units.")
