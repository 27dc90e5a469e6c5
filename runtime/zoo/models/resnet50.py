"""ResNet-50 for 224 x 224 images.

Source: He, Zhang, Ren and Sun, Deep Residual Learning for Image Recognition, CVPR 2016, table 1; the stride of a block
is in its 3 x 3 convolution, as in torchvision.
"""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset13 as op

from runtime.zoo.models.layers import Node, RandomWeights, flat_mean, max_pool, model, parameter, relu

STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # width, blocks, stride of the first block
EXPANSION = 4
CLASSES = 1000


def resnet50(seed: int) -> ov.Model:
    """Return the network: input float32 [1, 3, 224, 224], logits float32 [1, 1000]."""
    weights = RandomWeights(np.random.default_rng(seed))
    image = parameter("image", (1, 3, 224, 224), ov.Type.f32)
    x = weights.convolution(image, (3, 64), "conv1", kernel=(7, 7), stride=2, padding=(3, 3))
    x = max_pool(relu(x, "relu"), "maxpool", padding=1)
    channels = 64
    for stage, (width, blocks, stride) in enumerate(STAGES, 1):
        for block in range(blocks):
            x = _bottleneck(weights, x, (channels, width), stride if block == 0 else 1, f"layer{stage}.{block}")
            channels = width * EXPANSION
    logits = weights.linear(flat_mean(x, channels, "avgpool"), (channels, CLASSES), "fc")
    return model("resnet50", [image], {"logits": logits})


def _bottleneck(weights: RandomWeights, x: Node, channels: tuple[int, int], stride: int, name: str) -> Node:
    """Return a block of 1 x 1, 3 x 3 and 1 x 1 convolutions with a shortcut; channels: (in, width)."""
    before, width = channels
    after = width * EXPANSION
    y = relu(weights.convolution(x, (before, width), f"{name}.conv1"), f"{name}.relu1")
    y = weights.convolution(y, (width, width), f"{name}.conv2", kernel=(3, 3), stride=stride, padding=(1, 1))
    # Half the gain: shortcut and branch add up, and 16 blocks must not make the values grow out of fp16.
    y = weights.convolution(relu(y, f"{name}.relu2"), (width, after), f"{name}.conv3", gain=0.5)
    if before != after:
        x = weights.convolution(x, (before, after), f"{name}.downsample", stride=stride, gain=0.7)
    return relu(op.add(y, x, name=f"{name}.add"), f"{name}.relu3")
