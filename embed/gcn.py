"""The encoder of HSDAG: graph convolutions that do not see the direction of an edge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import GCNConv
from torch_geometric.utils import to_undirected

from embed.pretrain import embed_graph
from pipeline.core.arrays import Float32
from pipeline.core.errors import UsageError
from pipeline.core.graph import Graph
from pipeline.core.learning import Embedding
from pipeline.core.params import param
from pipeline.shared.torch_tools import leaving_no_file, torch_seeded


class GcnEncoder(nn.Module):
    """Graph convolutions on the symmetrised graph behind an input network, added to what went in.

        X = MLP(features)
        Z^0 = X,  Z^(l+1) = dropout(ReLU(D^(-1/2) (A + A^T + I) D^(-1/2) Z^l W^l))
        Z = LayerNorm(X + Z^L)

    Source: Kipf and Welling, "Semi-supervised classification with graph convolutional networks", ICLR 2017, eq. 2;
    input network and residual as in Duan et al., NeurIPS 2024 (HSDAG). Deliberate
    difference: one normalised input network of two layers, no dropout unless asked for.
    """

    def __init__(self, features: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.width = width
        self.enter = nn.Sequential(
            nn.Linear(features, width),
            nn.LayerNorm(width),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(width, width),
            nn.LayerNorm(width),
            nn.ReLU(),
        )
        self.convolutions = nn.ModuleList(leaving_no_file(GCNConv(width, width)) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.dropout = dropout

    @property
    def module(self) -> nn.Module:
        """Return the encoder itself."""
        return self

    def forward(self, features: Tensor, edges: Tensor) -> Tensor:
        """Return embeddings float32 [n, width] of features float32 [n, f] on edges int64 [2, m]."""
        x: Tensor = self.enter(features)
        both = to_undirected(edges, num_nodes=features.shape[0])
        z = x
        for convolution in self.convolutions:
            z = functional.dropout(functional.relu(convolution(z, both)), self.dropout, self.training)
        out: Tensor = self.norm(x + z)
        return out


@dataclass(frozen=True, slots=True)
class Gcn:
    """Builds `GcnEncoder`s."""

    version: ClassVar[int] = 1

    width: int = param(128, "numbers per node embedding")
    layers: int = param(2, "graph convolutions, each of which sees one hop further")
    dropout: float = param(0.0, "share of activations dropped while training")
    pretrain_epochs: int = param(40, "epochs of self-supervised training on the graph; 0 for none")

    def __post_init__(self) -> None:
        if self.width < 1 or self.layers < 0 or self.pretrain_epochs < 0 or not 0 <= self.dropout < 1:
            raise UsageError(
                f"{self} has a parameter out of range.",
                "width must be at least 1, counts at least 0, dropout in [0, 1).",
            )

    def encoder(self, features: int, *, seed: int) -> GcnEncoder:
        """Return a fresh encoder for rows of `features` numbers, its parameters drawn from `seed`."""
        with torch_seeded(seed):
            return GcnEncoder(features, self.width, self.layers, self.dropout)

    def embed(self, features: Float32, graph: Graph, *, seed: int) -> Embedding:
        """Return embeddings of float32 [n, f] after `pretrain_epochs` of Deep Graph Infomax."""
        encoder = self.encoder(features.shape[1], seed=seed)
        return embed_graph(encoder, features, graph, epochs=self.pretrain_epochs, seed=seed)
