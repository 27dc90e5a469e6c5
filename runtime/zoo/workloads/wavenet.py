"""WaveNet: stacks of dilated causal convolutions over raw sound, every layer gated and with two outputs.

One output of a layer goes to the next, the other joins the skip connections of all layers before.

Source: van den Oord et al., WaveNet, 2016, sections 2.1 to 2.4; two and four stacks of nine layers as in Zhou et al.,
GDP, 2019. Chosen freely: 2048 samples at a batch of 64, 128 channels, 256 skip channels, no biases.
Layers: 0 the first convolution, 1.. the dilated layers, the last the head. Time steps: none.
"""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.core.workload import Workload
from runtime.zoo.workloads.builder import USUAL, Builder, NetworkOptions, require

LEVELS = 256  # values of a sample

# Auxiliary operations per operation of a type, such that there are 234 and 828 per stack in all, as published; those
# of the placeholder stand for the reading of sound files.
GLUE: Mapping[str, int] = {
    "ApplySGD": 1,
    "ApplyAdam": 1,
    "Conv": 7,
    "ConvBackpropFilter": 3,
    "ConvBackpropInput": 1,
    "Mean": 6,
    "MeanGrad": 8,
    "Mul": 1,
    "MulGrad": 1,
    "Placeholder": 140,
    "Relu": 6,
    "ReluGrad": 6,
    "SoftmaxCrossEntropy": 7,
    "Variable": 7,
}


def wavenet(
    *,
    stacks: int = 2,
    layers: int = 9,
    samples: int = 2048,
    batch: int = 64,
    channels: int = 128,
    skip: int = 256,
    recipe: NetworkOptions = USUAL,
) -> Workload:
    """Return a training step of WaveNet; `layers` counts those of one stack, whose dilations are 1, 2, 4, ..."""
    require(1, stacks=stacks, layers=layers)
    b = recipe.builder(GLUE)
    with b.at("input", layer=0):
        x = b.conv(b.placeholder((batch, samples, 1), name="sound"), channels, 2, padding="causal")
    total = -1  # no skip connection yet
    for i in range(stacks * layers):
        with b.at(f"stack{i // layers}/layer{i % layers}", layer=i + 1):
            x, total = _dilated_layer(b, x, total, skip, 2 ** (i % layers), last=i == stacks * layers - 1)
    with b.at("head", layer=stacks * layers + 1):
        hidden = b.conv(b.elementwise("Relu", total), skip, 1)
        logits = b.conv(b.elementwise("Relu", hidden), LEVELS, 1)
        loss = b.reduce("Mean", b.cross_entropy(logits))
    return recipe.finish(b, loss)


def _dilated_layer(b: Builder, x: int, total: int, skip: int, dilation: int, *, last: bool) -> tuple[int, int]:
    """Return the input of the next layer, and the sum of the skip connections so far.

    total: that sum before this layer, -1 for none. last: no layer comes behind, so that its input is not made.
    """
    channels = b.shape(x)[-1]
    if b.fidelity == "fused":
        return _fused_layer(b, x, total, skip)
    halves = b.split(b.conv(x, 2 * channels, 2, dilation=dilation, padding="causal"), 2)
    gated = b.elementwise("Mul", b.elementwise("Tanh", halves[0]), b.elementwise("Sigmoid", halves[1]))
    out = b.conv(gated, skip, 1)
    x = x if last else b.elementwise("Add", x, b.conv(gated, channels, 1))
    return x, out if total < 0 else b.elementwise("Add", total, out)


def _fused_layer(b: Builder, x: int, total: int, skip: int) -> tuple[int, int]:
    """Return what `_dilated_layer` does, from one operation."""
    batch, samples, channels = b.shape(x)
    weights = b.variable((channels, 2 * 2 * channels + channels + skip), name="weights")
    inputs = (x, weights) if total < 0 else (x, total, weights)
    flops = 2.0 * batch * samples * channels * b.shape(weights)[1]
    x, total = b.fused("DilatedConv", inputs, ((batch, samples, channels), (batch, samples, skip)), flops=flops)
    return x, total
