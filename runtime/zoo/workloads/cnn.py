"""Inception-v3 and ResNet-50 for ImageNet.

Source: Szegedy, Vanhoucke, Ioffe, Shlens and Wojna, Rethinking the Inception Architecture for Computer Vision, CVPR
2016, figures 5 to 7, without the auxiliary head; He, Zhang, Ren and Sun, Deep Residual Learning for Image
Recognition, CVPR 2016, table 1, with the stride in the 3 x 3 convolution.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from pipeline.core.workload import Workload
from runtime.zoo.workloads.builder import GLUE, Builder, NetworkOptions

_RECIPE = NetworkOptions()
CLASSES = 1000
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

Window = tuple[int, int]
Padding = Literal["same", "valid"]
Step = tuple[int, Window]  # filters and window of a convolution that keeps the size

POINT, SQUARE, ROW, COLUMN = (1, 1), (3, 3), (1, 7), (7, 1)


def inception_v3(*, batch: int = 32, recipe: NetworkOptions = _RECIPE) -> Workload:
    """Return Inception-v3 for images of 299 x 299: a training step, or the class probabilities."""
    b = recipe.builder(UNFUSED)
    x = b.placeholder((batch, 299, 299, 3), name="images")
    with b.at("stem", layer=0):
        x = _convolved(b, x, 32, SQUARE, stride=2, padding="valid")
        x = _convolved(b, x, 32, SQUARE, padding="valid")
        x = _convolved(b, x, 64, SQUARE)
        x = b.pool("MaxPool", x, 3, 2, padding="valid")
        x = _convolved(b, _convolved(b, x, 80), 192, SQUARE, padding="valid")
        x = b.pool("MaxPool", x, 3, 2, padding="valid")
    for i, (kind, width) in enumerate(_MIXED):
        with b.at(f"mixed{i}", layer=i + 1):
            x = b.concat(_BLOCKS[kind](b, x, width))
    with b.at("head", layer=len(_MIXED) + 1):
        return classified(b, x, recipe)


def resnet50(*, batch: int = 32, recipe: NetworkOptions = _RECIPE) -> Workload:
    """Return ResNet-50 for images of 224 x 224: a training step, or the class probabilities."""
    b = recipe.builder()
    with b.at("stem", layer=0):
        x = b.placeholder((batch, 224, 224, 3), name="images")
        x = b.pool("MaxPool", _convolved(b, x, 64, (7, 7), stride=2), 3, 2)
    layer = 0
    for stage, (units, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512))):
        for unit in range(units):
            layer += 1
            with b.at(f"stage{stage}/unit{unit}", layer=layer):
                x = _residual(b, x, width, stride=2 if stage and not unit else 1)
    with b.at("head", layer=layer + 1):
        return classified(b, x, recipe)


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
        return _fused(b, x, filters, window, stride=stride, padding=padding)
    return b.batch_norm(b.conv(x, filters, window, stride, padding=padding))


def rectified(b: Builder, x: int) -> int:
    """Return x without what is negative; a fused convolution does it on the way in or out."""
    return x if b.fidelity == "fused" else b.elementwise("Relu", x)


def _fused(b: Builder, x: int, filters: int, window: Window, *, stride: int, padding: Padding) -> int:
    """Return what `normalised` and `rectified` do, from one operation."""
    batch, rows, columns, channels = b.shape(x)
    lost = [0, 0] if padding == "same" else [k - 1 for k in window]
    shape = (batch, -(-(rows - lost[0]) // stride), -(-(columns - lost[1]) // stride), filters)
    weights = b.variable((window[0] * window[1] * channels + 2, filters), name="weights")  # scale and shift included
    flops = math.prod(shape) * (2.0 * math.prod(window) * channels + FUSED_FLOPS)
    return b.fused("Conv", (x, weights), (shape,), flops=flops)[0]


def _convolved(
    b: Builder, x: int, filters: int, window: Window = POINT, *, stride: int = 1, padding: Padding = "same"
) -> int:
    """Return a convolution, batch-normalised and rectified."""
    return rectified(b, normalised(b, x, filters, window, stride=stride, padding=padding))


def _chain(b: Builder, x: int, *steps: Step) -> int:
    """Return convolutions one after the other."""
    for filters, window in steps:
        x = _convolved(b, x, filters, window)
    return x


def _halved(b: Builder, x: int, filters: int) -> int:
    """Return a 3 x 3 convolution that halves the size."""
    return _convolved(b, x, filters, SQUARE, stride=2, padding="valid")


def _pooled(b: Builder, x: int, filters: int) -> int:
    """Return the branch of average pooling and a 1 x 1 convolution."""
    return _convolved(b, b.pool("AvgPool", x, 3), filters)


def _block_a(b: Builder, x: int, width: int) -> Sequence[int]:
    """Return the branches of figure 5; width: of the pooled one."""
    return (
        _convolved(b, x, 64),
        _chain(b, x, (48, POINT), (64, (5, 5))),
        _chain(b, x, (64, POINT), (96, SQUARE), (96, SQUARE)),
        _pooled(b, x, width),
    )


def _reduction_a(b: Builder, x: int, width: int) -> Sequence[int]:
    """Return the branches that halve 35 x 35."""
    double = _chain(b, x, (64, POINT), (96, SQUARE))
    return _halved(b, x, width), _halved(b, double, 96), b.pool("MaxPool", x, 3, 2, padding="valid")


def _block_b(b: Builder, x: int, width: int) -> Sequence[int]:
    """Return the branches of figure 6, with 7 x 7 split into rows and columns; width: of the inner convolutions."""
    return (
        _convolved(b, x, 192),
        _chain(b, x, (width, POINT), (width, ROW), (192, COLUMN)),
        _chain(b, x, (width, POINT), (width, COLUMN), (width, ROW), (width, COLUMN), (192, ROW)),
        _pooled(b, x, 192),
    )


def _reduction_b(b: Builder, x: int, width: int) -> Sequence[int]:
    """Return the branches that halve 17 x 17."""
    long = _chain(b, x, (width, POINT), (width, ROW), (width, COLUMN))
    return (
        _halved(b, _convolved(b, x, width), 320),
        _halved(b, long, width),
        b.pool("MaxPool", x, 3, 2, padding="valid"),
    )


def _block_c(b: Builder, x: int, width: int) -> Sequence[int]:
    """Return the branches of figure 7, of which two end in a row and a column side by side; width: of those."""
    single, double = _convolved(b, x, width), _chain(b, x, (448, POINT), (width, SQUARE))
    forks = [_convolved(b, y, width, window) for y in (single, double) for window in ((1, 3), (3, 1))]
    return (_convolved(b, x, 320), *forks, _pooled(b, x, 192))


_BLOCKS = {"a": _block_a, "a/2": _reduction_a, "b": _block_b, "b/2": _reduction_b, "c": _block_c}
_MIXED = (
    ("a", 32),
    ("a", 64),
    ("a", 64),
    ("a/2", 384),
    ("b", 128),
    ("b", 160),
    ("b", 160),
    ("b", 192),
    ("b/2", 192),
    ("c", 384),
    ("c", 384),
)


def _residual(b: Builder, x: int, width: int, *, stride: int) -> int:
    """Return a bottleneck of 1 x 1, 3 x 3 and 1 x 1 convolutions, added to x or to a projection of it."""
    kept = x
    if stride > 1 or b.shape(x)[-1] != 4 * width:
        kept = normalised(b, x, 4 * width, stride=stride)
    y = _convolved(b, _convolved(b, x, width), width, SQUARE, stride=stride)
    return b.elementwise("Relu", b.elementwise("Add", normalised(b, y, 4 * width), kept))
