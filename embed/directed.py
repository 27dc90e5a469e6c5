"""An encoder that tells producers from consumers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import SAGEConv

from embed.pretrain import embed_graph
from pipeline.core.arrays import Float32
from pipeline.core.errors import UsageError
from pipeline.core.graph import Graph
from pipeline.core.learning import Embedding
from pipeline.core.params import param
from pipeline.shared.torch_tools import leaving_no_file, torch_seeded


class DirectedLayer(nn.Module):
    """One hop along the edges and one against them.

    h'_v = LayerNorm(h_v + ReLU(W_self h_v + W_along mean_{u -> v} h_u + W_against mean_{v -> w} h_w))
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own = nn.Linear(width, width)
        self.along = leaving_no_file(SAGEConv(width, width, root_weight=False, bias=False))
        self.against = SAGEConv(width, width, root_weight=False, bias=False)
        self.norm = nn.LayerNorm(width)

    def forward(self, h: Tensor, edges: Tensor) -> Tensor:
        """Return float32 [n, width] from float32 [n, width] and edges int64 [2, m]."""
        message = self.own(h) + self.along(h, edges) + self.against(h, edges.flip(0))
        out: Tensor = self.norm(h + functional.relu(message))
        return out


class DirectedEncoder(nn.Module):
    """Layers with separate weights for messages along and against the edges.

    Source: Rossi et al., "Edge directionality improves learning on heterophilic graphs", LoG 2023
    (Dir-SAGE). Deliberate differences: the two directions are added with weight 1 each; residual and LayerNorm.
    """

    def __init__(self, features: int, width: int, layers: int) -> None:
        super().__init__()
        self.width = width
        self.enter = nn.Sequential(nn.Linear(features, width), nn.LayerNorm(width), nn.ReLU())
        self.layers = nn.ModuleList(DirectedLayer(width) for _ in range(layers))

    @property
    def module(self) -> nn.Module:
        """Return the encoder itself."""
        return self

    def forward(self, features: Tensor, edges: Tensor) -> Tensor:
        """Return embeddings float32 [n, width] of features float32 [n, f] on edges int64 [2, m]."""
        h: Tensor = self.enter(features)
        for layer in self.layers:
            h = layer(h, edges)
        return h


@dataclass(frozen=True, slots=True)
class Directed:
    """Builds `DirectedEncoder`s."""

    version: ClassVar[int] = 1

    width: int = param(64, "numbers per node embedding")
    layers: int = param(3, "layers, each of which sees one hop further both ways")
    pretrain_epochs: int = param(40, "epochs of self-supervised training on the graph; 0 for none")

    def __post_init__(self) -> None:
        if self.width < 1 or self.layers < 0 or self.pretrain_epochs < 0:
            raise UsageError(f"{self} has a parameter out of range.", "width must be at least 1, counts at least 0.")

    def encoder(self, features: int, *, seed: int) -> DirectedEncoder:
        """Return a fresh encoder for rows of `features` numbers, its parameters drawn from `seed`."""
        with torch_seeded(seed):
            return DirectedEncoder(features, self.width, self.layers)

    def embed(self, features: Float32, graph: Graph, *, seed: int) -> Embedding:
        """Return embeddings of float32 [n, f] after `pretrain_epochs` of Deep Graph Infomax."""
        encoder = self.encoder(features.shape[1], seed=seed)
        return embed_graph(encoder, features, graph, epochs=self.pretrain_epochs, seed=seed)
