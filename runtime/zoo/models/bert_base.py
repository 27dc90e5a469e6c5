"""BERT-base, uncased, for one sentence of 32 tokens.

Source: Devlin, Chang, Lee and Toutanova, BERT: Pre-training of Deep Bidirectional Transformers, NAACL 2019, section 3;
layer: Vaswani et al. 2017, section 3. Attention is written out as the products, scale, mask and softmax of eq. 1, and
the transposition of the keys is an operation of its own.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
import openvino as ov
from openvino import opset13 as op

from runtime.zoo.models.layers import Node, RandomWeights, integers, joined_heads, model, parameter
from runtime.zoo.workloads.transformer import POSITIONS, SEGMENTS, VOCABULARY

# Not made from the same description as the graph `bert-base-training`: that reproduces the operations of TensorFlow's
# training step (dropout, gradients, a classifier; no scaling of the scores), this one those of an exporter's inference.
LAYERS, WIDTH, HEADS, INNER = 12, 768, 12, 3072
TOKENS = 32
MASKED = -10000.0  # added to the score of a token that is not to be seen; fits fp16


def bert_base(seed: int) -> ov.Model:
    """Return the network.

    Inputs int64 [1, 32]: input_ids in [0, 30522), attention_mask (1: look, 0: padding), token_type_ids in {0, 1}.
    Outputs: last_hidden_state float32 [1, 32, 768], pooler_output float32 [1, 768].
    """
    weights = RandomWeights(np.random.default_rng(seed))
    words, mask, segments = (
        parameter(name, (1, TOKENS), ov.Type.i64) for name in ("input_ids", "attention_mask", "token_type_ids")
    )
    # the normalised sum of word, position and segment embeddings, [1, 32, 768]
    name = "embeddings"
    x = op.add(
        _lookup(weights, words, VOCABULARY, f"{name}.word_embeddings"),
        _lookup(weights, segments, SEGMENTS, f"{name}.token_type_embeddings"),
        name=f"{name}.add_token_type",
    )
    table = f"{name}.position_embeddings"
    positions = op.slice(
        weights.normal((POSITIONS, WIDTH), f"{table}.weight", std=1.0),
        *(integers([v], f"{table}.{which}") for which, v in (("start", 0), ("stop", TOKENS), ("step", 1), ("axes", 0))),
        name=table,
    )
    x = op.add(x, positions, name=f"{name}.add_position")
    x = weights.layer_norm(x, WIDTH, f"{name}.LayerNorm")
    bias = _mask_bias(weights, mask)
    for layer in range(LAYERS):
        # One encoder layer: attention and a two-layer perceptron, each added to its input and normalised
        name = f"encoder.layer.{layer}"
        y = _attention_of_heads(weights, x, bias, f"{name}.attention")
        y = weights.linear(y, (WIDTH, WIDTH), f"{name}.attention.output.dense")
        y = op.add(y, x, name=f"{name}.attention.output.residual")
        x = weights.layer_norm(y, WIDTH, f"{name}.attention.output.LayerNorm")
        y = weights.linear(x, (WIDTH, INNER), f"{name}.intermediate.dense")
        y = op.gelu(y, "erf", name=f"{name}.intermediate.gelu")
        y = weights.linear(y, (INNER, WIDTH), f"{name}.output.dense")
        x = weights.layer_norm(op.add(y, x, name=f"{name}.output.residual"), WIDTH, f"{name}.output.LayerNorm")
    index, axis = integers(0, "pooler.index"), integers(1, "pooler.axis")
    first = op.gather(x, index, axis, name="pooler.first_token")
    pooled = op.tanh(weights.linear(first, (WIDTH, WIDTH), "pooler.dense"), name="pooler.tanh")
    return model("bert-base", [words, mask, segments], {"last_hidden_state": x, "pooler_output": pooled})


def _lookup(weights: RandomWeights, ids: Node, rows: int, name: str) -> Node:
    """Return the row of a table for each id, [1, 32, 768]."""
    table = weights.normal((rows, WIDTH), f"{name}.weight", std=1.0)
    return op.gather(table, op.convert(ids, "i32", name=f"{name}.ids"), integers(0, f"{name}.axis"), name=name)


def _mask_bias(weights: RandomWeights, mask: Node) -> Node:
    """Return what is added to the scores, [1, 1, 1, 32]: 0 where the mask is 1, MASKED where it is 0."""
    name = "extended_mask"
    x = mask
    for axis, part in ((1, "heads"), (2, "queries")):
        x = op.unsqueeze(x, integers(axis, f"{name}.{part}_axis"))
        x.set_friendly_name(f"{name}.{part}")  # unsqueeze ignores its argument `name`
    x = op.convert(x, "f32", name=f"{name}.float")
    x = op.subtract(weights.scalar(1.0, f"{name}.one"), x, name=f"{name}.invert")
    return op.multiply(x, weights.scalar(MASKED, f"{name}.masked"), name=name)


def _attention_of_heads(weights: RandomWeights, x: Node, bias: Node, name: str) -> Node:
    """Return multi-head attention before its output layer, [1, 32, 768]."""
    query, key, value = (
        weights.heads(x, WIDTH, (1, TOKENS, HEADS, WIDTH // HEADS), f"{name}.self.{part}")
        for part in ("query", "key", "value")
    )
    order = integers([0, 1, 3, 2], f"{name}.self.key_transposed.order")
    key = op.transpose(key, order, name=f"{name}.self.key_transposed")  # [1, 12, 64, 32]
    scores = op.matmul(query, key, False, False, name=f"{name}.self.scores")  # [1, 12, 32, 32]
    root = weights.scalar(sqrt(WIDTH // HEADS), f"{name}.self.root")
    scores = op.add(op.divide(scores, root, name=f"{name}.self.scaled"), bias, name=f"{name}.self.masked")
    mixed = op.matmul(op.softmax(scores, -1, name=f"{name}.self.softmax"), value, False, False, name=f"{name}.self")
    return joined_heads(mixed, (1, TOKENS, WIDTH), f"{name}.self")
