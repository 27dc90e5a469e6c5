"""The encoder of GDP: GraphSAGE with max pooling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from embed.pretrain import embed_graph
from pipeline.core.arrays import Float32
from pipeline.core.errors import UsageError
from pipeline.core.graph import Graph
from pipeline.core.learning import Embedding
from pipeline.core.params import param
from pipeline.shared.torch_tools import torch_seeded

Neighbourhood = Literal["both", "union"]


class PoolingLayer(nn.Module):
    """One hop: each node takes the element-wise maximum of what its neighbours say, and joins it to what it knows.

        h_N(v) = max over u in N(v) of sigmoid(W h_u + b),   h'_v = ReLU(F [h_v; h_N(v)] + c)

    "both": producers and consumers have pools, and W and b, of their own; "union": one pool of all neighbours. The
    maximum over nobody is 0, below which no sigmoid lies.
    """

    def __init__(self, width: int, neighbours: Neighbourhood) -> None:
        super().__init__()
        self.pools = nn.ModuleList(nn.Linear(width, width) for _ in range(2 if neighbours == "both" else 1))
        self.join = nn.Linear((1 + len(self.pools)) * width, width)

    def forward(self, h: Tensor, edges: Tensor) -> Tensor:
        """Return float32 [n, width] from float32 [n, width] and edges int64 [2, m]."""
        if len(self.pools) == 1:
            heard = [_greatest_message(torch.sigmoid(self.pools[0](h)), torch.cat([edges, edges.flip(0)], dim=1))]
        else:
            ways = (edges, edges.flip(0))
            heard = [_greatest_message(torch.sigmoid(pool(h)), way) for pool, way in zip(self.pools, ways, strict=True)]
        out: Tensor = torch.relu(self.join(torch.cat([h, *heard], dim=1)))
        return out


def _greatest_message(said: Tensor, edges: Tensor) -> Tensor:
    """Return float32 [n, h], the greatest of what the sources of each node's edges say, float32 [n, h]; 0 for none."""
    source, target = edges
    index = target[:, None].expand(-1, said.shape[1])
    return torch.zeros_like(said).scatter_reduce(0, index, said[source], "amax")


class SageEncoder(nn.Module):
    """Layers of max pooling behind an input layer.

    Source: Hamilton, Ying and Leskovec, "Inductive representation learning on large graphs", NeurIPS 2017, eq. 3, with
    the sigmoid of Zhou et al., GDP, 2019. Deliberate differences: all neighbours, no sample of them; by default
    producers and consumers apart. GraphSAGE's unsupervised loss is not used: what learns trains the encoder.
    """

    def __init__(self, features: int, width: int, layers: int, neighbours: Neighbourhood) -> None:
        super().__init__()
        self.width = width
        self.enter = nn.Linear(features, width)
        self.layers = nn.ModuleList(PoolingLayer(width, neighbours) for _ in range(layers))

    @property
    def module(self) -> nn.Module:
        """Return the encoder itself."""
        return self

    def forward(self, features: Tensor, edges: Tensor) -> Tensor:
        """Return embeddings float32 [n, width] of features float32 [n, f] on edges int64 [2, m]."""
        h: Tensor = torch.relu(self.enter(features))
        for layer in self.layers:
            h = layer(h, edges)
        return h


@dataclass(frozen=True, slots=True)
class Sage:
    """Builds `SageEncoder`s."""

    version: ClassVar[int] = 1

    width: int = param(128, "numbers per node embedding")
    layers: int = param(3, "layers, each of which sees one hop further both ways")
    neighbours: Literal["both", "union"] = param(
        "both", "both: a pool for producers and one for consumers; union: one for all"
    )
    pretrain_epochs: int = param(0, "epochs of self-supervised training on the graph; 0 for none")

    def __post_init__(self) -> None:
        if self.width < 1 or self.layers < 0 or self.pretrain_epochs < 0:
            raise UsageError(f"{self} has a parameter out of range.", "width must be at least 1, counts at least 0.")
        if self.neighbours not in get_args(Neighbourhood):
            raise UsageError(f"{self} has an unknown kind of neighbours.", "Use both or union.")

    def encoder(self, features: int, *, seed: int) -> SageEncoder:
        """Return a fresh encoder for rows of `features` numbers, its parameters drawn from `seed`."""
        with torch_seeded(seed):
            return SageEncoder(features, self.width, self.layers, self.neighbours)

    def embed(self, features: Float32, graph: Graph, *, seed: int) -> Embedding:
        """Return embeddings of float32 [n, f] after `pretrain_epochs` of Deep Graph Infomax."""
        encoder = self.encoder(features.shape[1], seed=seed)
        return embed_graph(encoder, features, graph, epochs=self.pretrain_epochs, seed=seed)
