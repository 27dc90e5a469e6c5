"""Inception-v3 for 299 x 299 images, as it is at inference: without the auxiliary head and dropout.

Source: Szegedy, Vanhoucke, Ioffe, Shlens and Wojna, Rethinking the Inception Architecture for Computer Vision, CVPR
2016, figures 5 to 7; names, widths and the scaling of the input channels as in torchvision (transform_input).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import openvino as ov
from openvino import opset13 as op

from runtime.zoo.models.layers import (
    Node,
    Pair,
    RandomWeights,
    average_pool,
    flat_mean,
    integers,
    max_pool,
    model,
    parameter,
    relu,
)

# What images were normalised with, and what the network was trained with: mean and deviation of each channel.
IMAGE_MEAN, IMAGE_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TRAINED_MEAN, TRAINED_STD = 0.5, 0.5
CLASSES = 1000
POINT, SQUARE, ROW, COLUMN = (1, 1), (3, 3), (1, 7), (7, 1)


def inception_v3(seed: int) -> ov.Model:
    """Return the network: input float32 [1, 3, 299, 299], logits float32 [1, 1000]."""
    net = _Network(RandomWeights(np.random.default_rng(seed)))
    image = parameter("image", (1, 3, 299, 299), ov.Type.f32)
    x = net.transform_input(image)
    x = net.conv(x, 3, 32, "Conv2d_1a_3x3", SQUARE, stride=2)
    x = net.conv(x, 32, 32, "Conv2d_2a_3x3", SQUARE)
    x = net.conv(x, 32, 64, "Conv2d_2b_3x3", SQUARE, same=True)
    x = net.conv(max_pool(x, "maxpool1"), 64, 80, "Conv2d_3b_1x1")
    x = max_pool(net.conv(x, 80, 192, "Conv2d_4a_3x3", SQUARE), "maxpool2")
    for name, channels, pooled in (("Mixed_5b", 192, 32), ("Mixed_5c", 256, 64), ("Mixed_5d", 288, 64)):
        x = net.block_a(x, channels, pooled, name)
    x = net.block_b(x, 288, "Mixed_6a")
    for name, width in (("Mixed_6b", 128), ("Mixed_6c", 160), ("Mixed_6d", 160), ("Mixed_6e", 192)):
        x = net.block_c(x, 768, width, name)
    x = net.block_d(x, 768, "Mixed_7a")
    for name, channels in (("Mixed_7b", 1280), ("Mixed_7c", 2048)):
        x = net.block_e(x, channels, name)
    logits = net.weights.linear(flat_mean(x, 2048, "avgpool"), (2048, CLASSES), "fc")
    return model("inception-v3", [image], {"logits": logits})


def _concat(branches: Sequence[Node], name: str) -> Node:
    """Return the channels of all branches."""
    return op.concat(list(branches), 1, name=name)


@dataclass(frozen=True, slots=True)
class _Network:
    """The blocks of the network. `channels` is what a block takes, `name` its name in torchvision."""

    weights: RandomWeights

    def conv(
        self, x: Node, before: int, after: int, name: str, kernel: Pair = POINT, *, stride: int = 1, same: bool = False
    ) -> Node:
        """Return convolution, folded batch normalisation and ReLU; `same` pads so that the size stays."""
        padding = (kernel[0] // 2, kernel[1] // 2) if same else (0, 0)
        y = self.weights.convolution(x, (before, after), name, kernel=kernel, stride=stride, padding=padding)
        return relu(y, f"{name}.relu")

    def chain(self, x: Node, channels: int, name: str, steps: Sequence[tuple[str, int, Pair]]) -> Node:
        """Return convolutions one after the other, each (name, width, kernel), that keep the size."""
        for step, width, kernel in steps:
            x = self.conv(x, channels, width, f"{name}.{step}", kernel, same=True)
            channels = width
        return x

    def transform_input(self, image: Node) -> Node:
        """Return the image with each channel scaled to the normalisation that the network was trained with."""
        scaled = []
        for channel, (mean, std) in enumerate(zip(IMAGE_MEAN, IMAGE_STD, strict=True)):
            name = f"transform_input.{channel}"
            x = op.gather(image, integers([channel], f"{name}.index"), integers(1, f"{name}.axis"), name=name)
            x = op.multiply(x, self.weights.scalar(std / TRAINED_STD, f"{name}.factor"), name=f"{name}.scale")
            shift = self.weights.scalar((mean - TRAINED_MEAN) / TRAINED_STD, f"{name}.offset")
            scaled.append(op.add(x, shift, name=f"{name}.shift"))
        return _concat(scaled, "transform_input")

    def block_a(self, x: Node, channels: int, pooled: int, name: str) -> Node:
        """Return 1 x 1, 5 x 5, two 3 x 3 and a pooled branch, side by side (figure 5)."""
        branches = (
            self.chain(x, channels, name, [("branch1x1", 64, POINT)]),
            self.chain(x, channels, name, [("branch5x5_1", 48, POINT), ("branch5x5_2", 64, (5, 5))]),
            self.chain(x, channels, name, _doubled("branch3x3dbl_1", "branch3x3dbl_2", "branch3x3dbl_3")),
            self.pooled(x, channels, pooled, name),
        )
        return _concat(branches, name)

    def pooled(self, x: Node, channels: int, width: int, name: str) -> Node:
        """Return the branch of average pooling and a 1 x 1 convolution."""
        return self.conv(average_pool(x, f"{name}.avgpool"), channels, width, f"{name}.branch_pool")

    def block_b(self, x: Node, channels: int, name: str) -> Node:
        """Return half the size: a 3 x 3, two 3 x 3 and a pooled branch of stride 2."""
        double = self.chain(x, channels, name, _doubled("branch3x3dbl_1", "branch3x3dbl_2"))
        branches = (
            self.conv(x, channels, 384, f"{name}.branch3x3", SQUARE, stride=2),
            self.conv(double, 96, 96, f"{name}.branch3x3dbl_3", SQUARE, stride=2),
            max_pool(x, f"{name}.maxpool"),
        )
        return _concat(branches, name)

    def block_c(self, x: Node, channels: int, width: int, name: str) -> Node:
        """Return branches of 7 x 7 convolutions, each split into a row and a column (figure 6)."""
        single = [("branch7x7_1", width, POINT), ("branch7x7_2", width, ROW), ("branch7x7_3", 192, COLUMN)]
        double = [("branch7x7dbl_1", width, POINT), ("branch7x7dbl_2", width, COLUMN), ("branch7x7dbl_3", width, ROW)]
        double += [("branch7x7dbl_4", width, COLUMN), ("branch7x7dbl_5", 192, ROW)]
        branches = (
            self.chain(x, channels, name, [("branch1x1", 192, POINT)]),
            self.chain(x, channels, name, single),
            self.chain(x, channels, name, double),
            self.pooled(x, channels, 192, name),
        )
        return _concat(branches, name)

    def block_d(self, x: Node, channels: int, name: str) -> Node:
        """Return half the size: a 3 x 3, a split 7 x 7 with 3 x 3, and a pooled branch of stride 2."""
        short = self.chain(x, channels, name, [("branch3x3_1", 192, POINT)])
        steps = [("branch7x7x3_1", 192, POINT), ("branch7x7x3_2", 192, ROW), ("branch7x7x3_3", 192, COLUMN)]
        long = self.chain(x, channels, name, steps)
        branches = (
            self.conv(short, 192, 320, f"{name}.branch3x3_2", SQUARE, stride=2),
            self.conv(long, 192, 192, f"{name}.branch7x7x3_4", SQUARE, stride=2),
            max_pool(x, f"{name}.maxpool"),
        )
        return _concat(branches, name)

    def block_e(self, x: Node, channels: int, name: str) -> Node:
        """Return branches that end in a 1 x 3 and a 3 x 1 convolution side by side (figure 7)."""
        single = self.chain(x, channels, name, [("branch3x3_1", 384, POINT)])
        double = self.chain(x, channels, name, [("branch3x3dbl_1", 448, POINT), ("branch3x3dbl_2", 384, SQUARE)])
        branches = (
            self.chain(x, channels, name, [("branch1x1", 320, POINT)]),
            self.fork(single, f"{name}.branch3x3_2"),
            self.fork(double, f"{name}.branch3x3dbl_3"),
            self.pooled(x, channels, 192, name),
        )
        return _concat(branches, name)

    def fork(self, x: Node, name: str) -> Node:
        """Return a 1 x 3 and a 3 x 1 convolution of the same input, side by side."""
        row = self.conv(x, 384, 384, f"{name}a", (1, 3), same=True)
        return _concat((row, self.conv(x, 384, 384, f"{name}b", (3, 1), same=True)), name)


def _doubled(*steps: str) -> list[tuple[str, int, Pair]]:
    """Return the steps of the branch of two 3 x 3 convolutions: 1 x 1 to 64 channels, then 3 x 3 to 96."""
    return [(step, 96 if i else 64, SQUARE if i else POINT) for i, step in enumerate(steps)]
