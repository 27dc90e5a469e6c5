"""Inception-v3 and ResNet-50 as models, as they are at inference."""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset13 as op

from runtime.zoo.models.layers import (
    Node,
    RandomWeights,
    average_pool,
    channels_of,
    flat_mean,
    integers,
    max_pool,
    model,
    parameter,
    relu,
)
from runtime.zoo.networks import CLASSES, INPUT, NetworkBlock, inception_v3_blocks, resnet50_blocks

# What images were normalised with, and what Inception-v3 was trained with: mean and deviation of each channel.
IMAGE_MEAN, IMAGE_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TRAINED_MEAN, TRAINED_STD = 0.5, 0.5


def inception_v3(seed: int) -> ov.Model:
    """Return the network: input float32 [1, 3, 299, 299], logits float32 [1, 1000]."""
    weights = RandomWeights(np.random.default_rng(seed))
    image = parameter("image", (1, 3, 299, 299), ov.Type.f32)
    x = _transform_input(weights, image)
    for block in inception_v3_blocks():
        x = _block_output(weights, x, block)
    return model("inception-v3", [image], {"logits": _logits(weights, x)})


def resnet50(seed: int) -> ov.Model:
    """Return the network: input float32 [1, 3, 224, 224], logits float32 [1, 1000]."""
    weights = RandomWeights(np.random.default_rng(seed))
    x = image = parameter("image", (1, 3, 224, 224), ov.Type.f32)
    for block in resnet50_blocks():
        x = _block_output(weights, x, block)
    return model("resnet50", [image], {"logits": _logits(weights, x)})


def _transform_input(weights: RandomWeights, image: Node) -> Node:
    """Return the image with each channel scaled to the normalisation that Inception-v3 was trained with.

    Source: torchvision, `transform_input`.
    """
    scaled = []
    for channel, (mean, std) in enumerate(zip(IMAGE_MEAN, IMAGE_STD, strict=True)):
        name = f"transform_input.{channel}"
        x = op.gather(image, integers([channel], f"{name}.index"), integers(1, f"{name}.axis"), name=name)
        x = op.multiply(x, weights.scalar(std / TRAINED_STD, f"{name}.factor"), name=f"{name}.scale")
        shift = weights.scalar((mean - TRAINED_MEAN) / TRAINED_STD, f"{name}.offset")
        scaled.append(op.add(x, shift, name=f"{name}.shift"))
    return op.concat(scaled, 1, name="transform_input")


def _block_output(weights: RandomWeights, x: Node, block: NetworkBlock) -> Node:
    """Return the output of a block; batch normalisation is folded into the convolutions."""
    made = {INPUT: x}
    for layer in sorted(block.layers, key=lambda layer: layer.name not in block.drawn_first):
        name, read = block.full_name(layer.name), [made[source] for source in layer.of]
        pads = (layer.window[0] // 2, layer.window[1] // 2) if layer.same else (0, 0)
        if layer.kind == "conv":
            channels = channels_of(read[0]), layer.filters
            y = weights.convolution(
                read[0], channels, name, kernel=layer.window, stride=layer.stride, padding=pads, gain=layer.gain
            )
        elif layer.kind == "max":
            y = max_pool(read[0], name, padding=pads[0])
        elif layer.kind == "mean":
            y = average_pool(read[0], name)
        else:
            y = op.add(*read, name=name) if layer.kind == "add" else op.concat(read, 1, name=name)
        made[layer.name] = relu(y, block.full_name(layer.relu)) if layer.relu else y
    return made[block.layers[-1].name]


def _logits(weights: RandomWeights, x: Node) -> Node:
    """Return the logits of the features x, [1, 1000]."""
    channels = channels_of(x)
    return weights.linear(flat_mean(x, channels, "avgpool"), (channels, CLASSES), "fc")
