"""An encoder without parameters: the features are the embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from embed.pretrain import embed_graph
from pipeline.core.arrays import Float32
from pipeline.core.graph import Graph
from pipeline.core.learning import Embedding


class IdentityEncoder(nn.Module):
    """Returns what it is given."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.width = features

    @property
    def module(self) -> nn.Module:
        """Return the encoder itself."""
        return self

    def forward(self, features: Tensor, edges: Tensor) -> Tensor:
        """Return the features, float32 [n, f]."""
        return features


@dataclass(frozen=True, slots=True)
class Identity:
    """Leaves the features as they are: the baseline that says what a graph neural network adds."""

    version: ClassVar[int] = 1
    seeded: ClassVar[bool] = False

    def encoder(self, features: int, *, seed: int) -> IdentityEncoder:
        """Return the encoder for rows of `features` numbers; nothing is drawn."""
        return IdentityEncoder(features)

    def embed(self, features: Float32, graph: Graph, *, seed: int) -> Embedding:
        """Return the features and no weights."""
        return embed_graph(self.encoder(features.shape[1], seed=seed), features, graph, epochs=0, seed=seed)
