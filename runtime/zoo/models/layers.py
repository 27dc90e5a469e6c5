"""The layers the networks of this folder are built of, each a few operations named after the layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import pi, prod, sqrt
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as op

Node = Any
"""An operation of OpenVINO's Python interface, or one output of it."""

Pair = tuple[int, int]

LEFT_BY_RELU = 0.5 - 0.5 / pi
"""The variance of max(z, 0) for a standard normal z: what a filter whose weights sum to 0 sees of it."""


def parameter(name: str, shape: Sequence[int], element_type: Any) -> Node:
    """Return an input of the network, its tensor named like itself."""
    node = op.parameter(list(shape), element_type, name=name)
    node.output(0).set_names({name})
    return node


def model(name: str, inputs: Sequence[Node], outputs: dict[str, Node]) -> ov.Model:
    """Return the model of named outputs."""
    results = []
    for output_name, node in outputs.items():
        node.output(0).add_names({output_name})
        results.append(op.result(node, name=output_name))
    return ov.Model(results, list(inputs), name)


def integers(values: Sequence[int] | int, name: str) -> Node:
    """Return an int64 constant: axes, an order or a shape."""
    return op.constant(np.array(values, np.int64), name=name)


def channels_of(x: Node) -> int:
    """Return the channels of x [b, channels, ...]."""
    return int(x.shape[1])


def relu(x: Node, name: str) -> Node:
    """Return max(x, 0)."""
    return op.relu(x, name=name)


def max_pool(x: Node, name: str, *, kernel: int = 3, stride: int = 2, padding: int = 0) -> Node:
    """Return the maximum over each window."""
    pads = [padding, padding]
    node = op.max_pool(x, [stride] * 2, [1, 1], pads, pads, [kernel] * 2, name=name)
    return node.output(0)


def average_pool(x: Node, name: str) -> Node:
    """Return the mean over 3 x 3 windows, stride 1, padded with zeros that count."""
    return op.avg_pool(x, [1, 1], [1, 1], [1, 1], [3, 3], False, name=name)


def flat_mean(x: Node, channels: int, name: str, *, flat: str = "flatten") -> Node:
    """Return the mean over height and width, [1, channels]."""
    mean = op.reduce_mean(x, integers([2, 3], f"{name}.axes"), keep_dims=True, name=name)
    return op.reshape(mean, integers([1, channels], f"{flat}.shape"), False, name=flat)


def joined_heads(x: Node, shape: Sequence[int], name: str) -> Node:
    """Return heads [b, heads, t, n] side by side again, [b, t, heads n]; shape: as in `RandomWeights.heads`."""
    joined = op.transpose(x, integers([0, 2, 1, 3], f"{name}.joined.order"), name=f"{name}.joined")
    return op.reshape(joined, integers(shape, f"{name}.flat.shape"), 0 in shape, name=f"{name}.flat")


@dataclass(frozen=True, slots=True)
class RandomWeights:
    """Draws the weights of a network, one after the other, from one generator."""

    rng: np.random.Generator

    def packed(self, values: np.ndarray[Any, Any], name: str) -> Node:
        """Return values stored as fp16 and unpacked to fp32: a Constant and a Convert."""
        return op.convert(op.constant(values.astype(np.float16), name=name), "f32", name=f"{name}.unpack")

    def normal(self, shape: Sequence[int], name: str, *, std: float, mean: float = 0.0) -> Node:
        """Return packed weights drawn from a normal distribution."""
        return self.packed(self.rng.standard_normal(shape, dtype=np.float32) * np.float32(std) + np.float32(mean), name)

    def scalar(self, value: float, name: str) -> Node:
        """Return one packed number."""
        return self.packed(np.array(value), name)

    def convolution(
        self,
        x: Node,
        channels: Pair,
        name: str,
        *,
        kernel: Pair = (1, 1),
        stride: int = 1,
        padding: Pair = (0, 0),
        gain: float = 1.0,
    ) -> Node:
        """Return a convolution with the batch normalisation after it folded in: its weights, and its shift as bias.

        channels: (in, out). gain: by how much the output's standard deviation is to exceed what keeps it level.

        The weights of a filter sum to 0, so that it answers to differences and not to the mean that ReLU leaves: with
        plain random weights all inputs of a deep network end in nearly the same output.
        Source: Brock, De and Smith 2021, Characterizing Signal Propagation (scaled weight standardization);
        the division by each filter's own deviation is left out.
        """
        before, after = channels
        weight = self.rng.standard_normal((after, before, *kernel), dtype=np.float32)
        weight -= weight.mean(axis=(1, 2, 3), keepdims=True)
        weight *= np.float32(gain / sqrt(LEFT_BY_RELU * before * prod(kernel)))
        pads = list(padding)
        unpacked = self.packed(weight, f"{name}.weight")
        y = op.convolution(x, unpacked, [stride] * 2, pads, pads, [1, 1], name=name)
        return op.add(y, self.normal((1, after, 1, 1), f"{name}.bias", std=0.1), name=f"{name}.add")

    def depthwise(self, x: Node, channels: int, name: str, *, size: int, stride: int = 1) -> Node:
        """Return a convolution of each channel on its own that keeps the size at stride 1, without bias."""
        weight = self.rng.standard_normal((channels, 1, 1, size, size), dtype=np.float32)
        unpacked = self.packed(weight * np.float32(1 / size), f"{name}.weight")
        pads = [size // 2] * 2
        return op.group_convolution(x, unpacked, [stride] * 2, pads, pads, [1, 1], name=name)

    def linear(self, x: Node, sizes: Pair, name: str) -> Node:
        """Return x W^T + b, a fully connected layer of sizes (in, out), at about x's standard deviation."""
        before, after = sizes
        weight = self.normal((after, before), f"{name}.weight", std=sqrt(1 / before))
        y = op.matmul(x, weight, False, True, name=name)
        ones = (1,) * (y.get_output_partial_shape(0).rank.get_length() - 1)
        return op.add(y, self.normal((*ones, after), f"{name}.bias", std=0.1), name=f"{name}.add")

    def heads(self, x: Node, width: int, shape: Sequence[int], name: str) -> Node:
        """Return a linear layer of x [b, t, width], split into heads [b, heads, t, width / heads].

        shape: [b, t, heads, width / heads]; 0 for a dimension that x has as well.
        """
        y = self.linear(x, (width, width), name)
        y = op.reshape(y, integers(shape, f"{name}.heads.shape"), 0 in shape, name=f"{name}.heads")
        return op.transpose(y, integers([0, 2, 1, 3], f"{name}.split.order"), name=f"{name}.split")

    def layer_norm(self, x: Node, width: int, name: str) -> Node:
        """Return x normalised over its last axis, then scaled and shifted.

        Source: Ba, Kiros and Hinton 2016, eq. 4; epsilon 1e-12 as in BERT.
        """
        y = op.mvn(x, integers([-1], f"{name}.axes"), True, 1e-12, "inside_sqrt", name=name)
        y = op.multiply(y, self.normal((1, 1, width), f"{name}.weight", std=0.1, mean=1.0), name=f"{name}.scale")
        return op.add(y, self.normal((1, 1, width), f"{name}.bias", std=0.1), name=f"{name}.shift")
