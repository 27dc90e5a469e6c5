"""A decoder of text that keeps the keys and values of earlier tokens: one set of weights for a prompt and for steps.

Source: Radford et al., Language Models are Unsupervised Multitask Learners, 2019, section 2.3 (layers normalised at
their input, learned positions); Vaswani et al. 2017, section 3. Keys and values are inputs and outputs, as exporters
write them, and how many there are is open: a prompt is many tokens after none or few, a step one token after many.
Sizes are freely chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
import openvino as ov
from openvino import opset13 as op

from runtime.zoo.models.layers import Node, RandomWeights, integers, joined_heads, model, parameter

LAYERS, WIDTH, HEADS, INNER = 4, 384, 6, 1536
VOCABULARY, POSITIONS = 4000, 1024
MASKED = -10000.0  # added to the score of a later token; fits fp16
OPEN = -1  # a dimension that is not fixed


@dataclass(frozen=True, slots=True)
class _Tokens:
    """Where new tokens are, int64 [t]; bias: 0 where one of them sees another, MASKED else, [t, past + t]."""

    positions: Node
    bias: Node


def decoder(seed: int) -> ov.Model:
    """Return the network.

    Inputs: input_ids int64 [1, t] in [0, 4000); past_key_0, past_value_0, ... of 4 layers, float32 [1, 6, past, 64].
    Outputs: logits float32 [1, t, 4000]; present_key_0, present_value_0, ... float32 [1, 6, past + t, 64].
    """
    weights = RandomWeights(np.random.default_rng(seed))
    ids = parameter("input_ids", (1, OPEN), ov.Type.i64)
    kept = {
        f"{which}_{layer}": parameter(f"past_{which}_{layer}", (1, HEADS, OPEN, WIDTH // HEADS), ov.Type.f32)
        for layer in range(LAYERS)
        for which in ("key", "value")
    }
    tokens = _place_tokens(weights, ids, kept["key_0"])
    words = weights.normal((VOCABULARY, WIDTH), "words.weight", std=1.0)
    places = weights.normal((POSITIONS, WIDTH), "positions.weight", std=1.0)
    x = op.gather(words, ids, integers(0, "words.axis"), name="words")
    x = op.add(x, op.gather(places, tokens.positions, integers(0, "positions.axis"), name="positions"), name="embedded")
    outputs: dict[str, Node] = {}
    for layer in range(LAYERS):
        name = f"layer.{layer}"
        y = weights.layer_norm(x, WIDTH, f"{name}.before_attention")
        query, key, value = (
            weights.heads(y, WIDTH, (0, 0, HEADS, WIDTH // HEADS), f"{name}.{part}")
            for part in ("query", "key", "value")
        )
        for part, new in (("key", key), ("value", value)):
            outputs[f"present_{part}_{layer}"] = op.concat([kept[f"{part}_{layer}"], new], 2, name=f"{name}.{part}.all")
        seen = outputs[f"present_key_{layer}"], outputs[f"present_value_{layer}"]
        y = _attention(weights, query, *seen, tokens.bias, f"{name}.attention")
        x = op.add(x, weights.linear(y, (WIDTH, WIDTH), f"{name}.attention.out"), name=f"{name}.attended")
        y = weights.layer_norm(x, WIDTH, f"{name}.before_perceptron")
        y = op.gelu(weights.linear(y, (WIDTH, INNER), f"{name}.up"), "erf", name=f"{name}.gelu")
        x = op.add(x, weights.linear(y, (INNER, WIDTH), f"{name}.down"), name=f"{name}.out")
    x = weights.layer_norm(x, WIDTH, "last")
    logits = weights.linear(x, (WIDTH, VOCABULARY), "head")
    return model("decoder", [ids, *kept.values()], {"logits": logits, **outputs})


def _place_tokens(weights: RandomWeights, ids: Node, past: Node) -> _Tokens:
    """Return where the new tokens are, behind those whose keys are there."""
    zero, one = integers(0, "tokens.zero"), integers(1, "tokens.one")
    new = op.gather(op.shape_of(ids, "i64", name="tokens.shape"), one, zero, name="tokens.new")
    of_past = op.shape_of(past, "i64", name="tokens.past_shape")
    before = op.gather(of_past, integers(2, "tokens.past_axis"), zero, name="tokens.before")
    whole = op.add(before, new, name="tokens.whole")
    positions = op.range(before, whole, one, "i64", name="tokens.positions")
    columns = op.range(zero, whole, one, "i64", name="tokens.columns")
    rows = op.unsqueeze(positions, one)
    rows.set_friendly_name("tokens.rows")  # unsqueeze ignores its argument `name`
    seen = op.less_equal(columns, rows, name="tokens.seen")
    clear, masked = weights.scalar(0.0, "tokens.clear"), weights.scalar(MASKED, "tokens.masked")
    return _Tokens(positions, op.select(seen, clear, masked, name="tokens.bias"))


def _attention(weights: RandomWeights, query: Node, key: Node, value: Node, bias: Node, name: str) -> Node:
    """Return multi-head attention of the new tokens to all, before its output layer, [1, t, 384]."""
    root = weights.scalar(sqrt(WIDTH // HEADS), f"{name}.root")
    scores = op.divide(op.matmul(query, key, False, True, name=f"{name}.scores"), root, name=f"{name}.scaled")
    share = op.softmax(op.add(scores, bias, name=f"{name}.masked"), -1, name=f"{name}.softmax")
    mixed = op.matmul(share, value, False, False, name=name)
    return joined_heads(mixed, (0, 0, WIDTH), name)
