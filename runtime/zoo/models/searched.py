"""Cells of searched and of random networks: many small convolutions side by side.

Source: Zoph, Vasudevan, Shlens and Le, Learning Transferable Architectures for Scalable Image Recognition, CVPR 2018,
figure 4 (NASNet-A's normal cell); Xie, Kirillov, Girshick and He, Exploring Randomly Wired Neural Networks for Image
Recognition, ICCV 2019, section 3 (nodes, WS(4, 0.75)). Sizes are freely chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import openvino as ov
from openvino import opset13 as op

from runtime.zoo.models.layers import Node, RandomWeights, average_pool, channels_of, flat_mean, model, parameter, relu
from runtime.zoo.workloads.nasnet import NORMAL
from runtime.zoo.workloads.random_graphs import watts_strogatz

SIDE, STEM, CLASSES = 56, 32, 100
CELLS, FILTERS = 3, 64
NODES, NEAREST, REWIRED = 16, 2, 0.75  # of the random graphs; NEAREST on either side
STAGES = ((96, 1), (192, 2))  # channels, seed of the graph: wiring is part of the network, whatever its weights


def nasnet_cells(seed: int) -> ov.Model:
    """Return three normal cells on 28 x 28: image float32 [1, 3, 56, 56] -> logits float32 [1, 100]."""
    blocks = _Blocks(RandomWeights(np.random.default_rng(seed)))
    image = parameter("image", (1, 3, SIDE, SIDE), ov.Type.f32)
    before, x = _stem(blocks.weights, image)
    for i in range(CELLS):
        before, x = x, blocks.cell(x, before, f"cell{i}")
    return model("nasnet-cells", [image], {"logits": _head(blocks.weights, relu(x, "head.relu"))})


def randwire(seed: int) -> ov.Model:
    """Return two random graphs of 16 nodes: image float32 [1, 3, 56, 56] -> logits float32 [1, 100]."""
    blocks = _Blocks(RandomWeights(np.random.default_rng(seed)))
    image = parameter("image", (1, 3, SIDE, SIDE), ov.Type.f32)
    x = _stem(blocks.weights, image)[1]
    for i, (channels, wiring) in enumerate(STAGES):
        x = blocks.wired(x, channels, wiring, f"stage{i}")
    return model("randwire", [image], {"logits": _head(blocks.weights, x)})


def _stem(weights: RandomWeights, image: Node) -> tuple[Node, Node]:
    """Return two tensors of 28 x 28: of few channels, and of many."""
    first = weights.convolution(image, (3, STEM), "stem.0", kernel=(3, 3), stride=2, padding=(1, 1))
    return first, weights.convolution(
        relu(first, "stem.relu"), (STEM, FILTERS), "stem.1", kernel=(3, 3), padding=(1, 1)
    )


def _head(weights: RandomWeights, x: Node) -> Node:
    """Return the logits, [1, 100]."""
    channels = channels_of(x)
    return weights.linear(flat_mean(x, channels, "head.pool"), (channels, CLASSES), "head.fc")


@dataclass(frozen=True, slots=True)
class _Blocks:
    """The parts of such networks; `name` is what their operations are called after."""

    weights: RandomWeights

    def cell(self, last: Node, before: Node, name: str) -> Node:
        """Return the states of a cell that are joined, [1, 6 x 64, 28, 28]; last, before: outputs of earlier cells."""
        states = [self._fitted(x, f"{name}.in{i}") for i, x in enumerate((last, before))]
        for pair in NORMAL.pairs:
            own = f"{name}.state{len(states)}"
            sides = [self._operation(kind, states[i], f"{own}.{side}") for side, (i, kind) in enumerate(pair)]
            states.append(op.add(*sides, name=own))
        return op.concat([states[i] for i in NORMAL.joined], 1, name=f"{name}.joined")

    def _fitted(self, x: Node, name: str) -> Node:
        """Return x rectified and projected to the channels of a state."""
        return self.weights.convolution(relu(x, f"{name}.relu"), (channels_of(x), FILTERS), name)

    def _operation(self, kind: str, x: Node, name: str) -> Node:
        """Return an operation of a cell; NASNet's separable convolution is two of them, one on the other."""
        if kind == "identity":
            return x
        if kind == "average":
            return average_pool(x, name)
        size = int(kind.removeprefix("separable"))
        for part in ("first", "second"):
            x = self.separable(x, FILTERS, f"{name}.{part}", size=size)
        return x

    def separable(self, x: Node, after: int, name: str, *, size: int = 3, stride: int = 1) -> Node:
        """Return x rectified, convolved channel by channel, then projected."""
        y = self.weights.depthwise(
            relu(x, f"{name}.relu"), channels_of(x), f"{name}.depthwise", size=size, stride=stride
        )
        return self.weights.convolution(y, (channels_of(x), after), f"{name}.pointwise")

    def wired(self, x: Node, channels: int, wiring: int, name: str) -> Node:
        """Return the mean of a random graph's last nodes; its first ones halve the size of x.

        A node adds up its inputs, each times a factor, and hands on the sum rectified and convolved.
        """
        graph = watts_strogatz(seed=wiring, n=NODES, degree=NEAREST, rewire=REWIRED, order="natural").graph
        nodes: list[Node] = []
        for i in range(NODES):
            sources = graph.edges[0, graph.edges[1] == i].tolist()
            total = self._sum([nodes[j] for j in sources], f"{name}.node{i}") if sources else x
            nodes.append(self.separable(total, channels, f"{name}.node{i}", stride=1 if sources else 2))
        last = [nodes[i] for i in range(NODES) if i not in graph.edges[0]]
        return self._sum(last, f"{name}.out", share=1 / len(last))

    def _sum(self, terms: list[Node], name: str, *, share: float = 0.5) -> Node:
        """Return the sum of terms, each times a factor: sigmoid(0) for edges, whose factors are learned."""
        factors = [self.weights.scalar(share, f"{name}.factor{i}") for i in range(len(terms))]
        scaled = [
            op.multiply(x, f, name=f"{name}.scaled{i}") for i, (x, f) in enumerate(zip(terms, factors, strict=True))
        ]
        total = scaled[0]
        for i, term in enumerate(scaled[1:], 1):
            total = op.add(total, term, name=f"{name}.sum{i}")
        return total
