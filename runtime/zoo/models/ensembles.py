"""Networks side by side: an ensemble of classifiers, and experts between which a gate decides.

Source: Shazeer et al., Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts Layer, 2017, eq. 1,
here with a dense gate: every expert is computed. Sizes are freely chosen.
"""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset13 as op

from runtime.zoo.models.layers import Node, RandomWeights, flat_mean, integers, model, parameter, relu

SIDE, CLASSES = 64, 100
MEMBERS = ("red", "green", "blue", "grey")
STEPS = ((3, 32, 2), (32, 48, 1), (48, 64, 2), (64, 64, 1), (64, 96, 2), (96, 96, 1))  # in, out, stride


def ensemble(seed: int) -> ov.Model:
    """Return four convolutional classifiers and the mean of what they say.

    Input image float32 [1, 3, 64, 64]; output probabilities float32 [1, 100].
    """
    weights = RandomWeights(np.random.default_rng(seed))
    image = parameter("image", (1, 3, SIDE, SIDE), ov.Type.f32)
    said = [_classifier(weights, image, name) for name in MEMBERS]
    total = said[0]
    for name, other in zip(MEMBERS[1:], said[1:], strict=True):
        total = op.add(total, other, name=f"{name}.added")
    mean = op.multiply(total, weights.scalar(1 / len(MEMBERS), "share"), name="mean")
    return model("ensemble", [image], {"probabilities": mean})


def _classifier(weights: RandomWeights, image: Node, name: str) -> Node:
    """Return the class probabilities of one classifier, [1, 100]."""
    x = image
    for i, (before, after, stride) in enumerate(STEPS):
        x = weights.convolution(x, (before, after), f"{name}.conv{i}", kernel=(3, 3), stride=stride, padding=(1, 1))
        x = relu(x, f"{name}.relu{i}")
    channels = STEPS[-1][1]
    pooled = flat_mean(x, channels, f"{name}.pool", flat=f"{name}.flatten")
    logits = weights.linear(pooled, (channels, CLASSES), f"{name}.fc")
    return op.softmax(logits, 1, name=f"{name}.softmax")


TOKENS, WIDTH, INNER, EXPERTS, LAYERS = 16, 384, 1536, 4, 2


def mixture_of_experts(seed: int) -> ov.Model:
    """Return two layers of four experts: x float32 [1, 16, 384] -> y float32 [1, 16, 384]."""
    weights = RandomWeights(np.random.default_rng(seed))
    given = parameter("x", (1, TOKENS, WIDTH), ov.Type.f32)
    x = given
    for layer in range(LAYERS):
        name = f"layer{layer}"
        mixed = _mix_experts(weights, weights.layer_norm(x, WIDTH, f"{name}.norm"), name)
        x = op.add(x, mixed, name=f"{name}.residual")
    return model("mixture-of-experts", [given], {"y": x})


def _mix_experts(weights: RandomWeights, x: Node, name: str) -> Node:
    """Return what the experts say, each weighted by its column of the gate."""
    gate = op.softmax(weights.linear(x, (WIDTH, EXPERTS), f"{name}.gate"), -1, name=f"{name}.gate.softmax")
    shares = op.split(gate, integers(-1, f"{name}.gate.axis"), EXPERTS, name=f"{name}.gate.shares")
    terms = []
    for i in range(EXPERTS):
        own = f"{name}.expert{i}"
        y = weights.linear(x, (WIDTH, INNER), f"{own}.up")
        y = weights.linear(op.gelu(y, "erf", name=f"{own}.gelu"), (INNER, WIDTH), f"{own}.down")
        terms.append(op.multiply(y, shares.output(i), name=f"{own}.weighted"))
    total = terms[0]
    for i, term in enumerate(terms[1:], 1):
        total = op.add(total, term, name=f"{name}.sum{i}")
    return total
