"""Inception-v3 and ResNet-50 as graphs, and the layers that other networks of images share with them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal

from pipeline.core.workload import Workload
from runtime.zoo.networks import CLASSES, INPUT, POINT, NetworkBlock, Window, inception_v3_blocks, resnet50_blocks
from runtime.zoo.workloads.builder import GLUE, USUAL, Builder, NetworkOptions

FUSED_FLOPS = 5  # per number that a fused convolution puts out: normalisation 4, rectification 1

# TensorFlow 1 without fused batch normalisation: 15 nodes of its own, 22 for the moving averages of mean and variance,
# about ten for the gradient of each of the 15, and variables with initialisers, readers and slots of the optimizer.
UNFUSED: Mapping[str, int] = {
    **GLUE,
    "BatchNorm": 14 + 22,
    "BatchNormGrad": 156,
    "Conv": 2,
    "ConvBackpropFilter": 4,
    "ConvBackpropInput": 4,
    "Variable": 11,
    "ApplySGD": 4,
}

Padding = Literal["same", "valid"]


def inception_v3(*, batch: int = 32, recipe: NetworkOptions = USUAL) -> Workload:
    """Return Inception-v3 for images of 299 x 299: a training step, or the class probabilities."""
    b = recipe.builder(UNFUSED)
    images = b.placeholder((batch, 299, 299, 3), name="images")
    return _network(b, images, inception_v3_blocks(), recipe)


def resnet50(*, batch: int = 32, recipe: NetworkOptions = USUAL) -> Workload:
    """Return ResNet-50 for images of 224 x 224: a training step, or the class probabilities."""
    b = recipe.builder()
    with b.at("stem", layer=0):
        images = b.placeholder((batch, 224, 224, 3), name="images")
    return _network(b, images, resnet50_blocks(), recipe)


def _network(b: Builder, x: int, blocks: Iterable[NetworkBlock], recipe: NetworkOptions) -> Workload:
    """Return the network of blocks over images x, with its classifier."""
    layer = 0
    for layer, block in enumerate(blocks):
        with b.at(block.scope, layer=layer):
            x = _block_output(b, x, block)
    with b.at("head", layer=layer + 1):
        return classified(b, x, recipe)


def _block_output(b: Builder, x: int, block: NetworkBlock) -> int:
    """Return the output of a block; joins of joins are one operation."""
    made = {INPUT: [x]}
    for layer in block.layers:
        read = [tensor for name in layer.of for tensor in made[name]]
        padding: Padding = "same" if layer.same else "valid"
        if layer.kind == "join":
            made[layer.name] = read
            continue
        if layer.kind == "conv":
            y = normalised(b, read[0], layer.filters, layer.window, stride=layer.stride, padding=padding)
            y = rectified(b, y) if layer.relu else y
        elif layer.kind == "add":
            y = b.elementwise("Relu", b.elementwise("Add", *read))
        else:
            pool: Literal["MaxPool", "AvgPool"] = "MaxPool" if layer.kind == "max" else "AvgPool"
            y = b.pool(pool, read[0], layer.window, layer.stride, padding=padding)
        made[layer.name] = [y]
    outputs = made[block.layers[-1].name]
    return b.concat(outputs) if len(outputs) > 1 else outputs[0]


def classified(b: Builder, x: int, recipe: NetworkOptions) -> Workload:
    """Return the network that classifies the features x [batch, rows, columns, channels]."""
    logits = b.dense(b.reduce("Mean", x, (1, 2)), CLASSES)
    if not recipe.training:
        b.softmax(logits)
        return b.workload()
    return recipe.finish(b, b.reduce("Mean", b.cross_entropy(logits)))


def normalised(
    b: Builder, x: int, filters: int, window: Window = POINT, *, stride: int = 1, padding: Padding = "same"
) -> int:
    """Return a convolution, batch-normalised."""
    if b.fidelity == "fused":
        # what `normalised` and `rectified` do, as one operation
        batch, rows, columns, channels = b.shape(x)
        lost = [0, 0] if padding == "same" else [k - 1 for k in window]
        shape = (batch, -(-(rows - lost[0]) // stride), -(-(columns - lost[1]) // stride), filters)
        scaled = window[0] * window[1] * channels + 2  # scale and shift included
        weights = b.variable((scaled, filters), name="weights")
        flops = math.prod(shape) * (2.0 * math.prod(window) * channels + FUSED_FLOPS)
        return b.fused("Conv", (x, weights), (shape,), flops=flops)[0]
    return b.batch_norm(b.conv(x, filters, window, stride, padding=padding))


def rectified(b: Builder, x: int) -> int:
    """Return x without what is negative; a fused convolution does it on the way in or out."""
    return x if b.fidelity == "fused" else b.elementwise("Relu", x)
