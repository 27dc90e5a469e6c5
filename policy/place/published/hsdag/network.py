"""The networks of graph parsing: scores of edges, features of clusters, rounds of both."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.core.arrays import Int64
from policy.place.published.hsdag.clusters import Clusters, Links, parse_in_turn, parse_symmetric


@dataclass(frozen=True, slots=True)
class ParsingRounds:
    """How a graph is parsed.

    to_fixed_point: repeat until no edges are left, instead of one round. noisy_scores: while training, dropout may
    give the two directions of an edge different scores. score_layers, pool_layers: graph convolutions in each round
    before the scores, and before pooling. dropout: of activations, in the scorer and the convolutions.
    """

    to_fixed_point: bool
    noisy_scores: bool
    score_layers: int
    pool_layers: int
    dropout: float


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Links as tensors, with what graph convolutions weight them by.

    row, column: int64 [2 e]. weight: float32 [2 e, 1], 1 / sqrt(d_row d_column), and own: float32 [n, 1], 1 / d, for
    degrees d that count the node itself.
    """

    row: Tensor
    column: Tensor
    weight: Tensor
    own: Tensor

    @classmethod
    def of(cls, links: Links) -> Entries:
        """Return the tensors of links."""
        row, column = torch.from_numpy(links.row), torch.from_numpy(links.column)
        degree = torch.bincount(row, minlength=links.n)[:, None] + 1.0
        return cls(row, column, (degree[row] * degree[column]).rsqrt(), 1 / degree)


class Convolutions(nn.Module):
    """Graph convolutions added to what went in; without layers nothing happens.

        Z^0 = X,  Z^(l+1) = dropout(ReLU(D^(-1/2) (A + I) D^(-1/2) Z^l W^l + b^l)),  Z = LayerNorm(X + Z^L)

    Source: Kipf and Welling, "Semi-supervised classification with graph convolutional networks", ICLR 2017, eq. 2.
    """

    def __init__(self, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.norm = nn.LayerNorm(width) if layers else nn.Identity()
        self.dropout = dropout

    def forward(self, x: Tensor, at: Entries) -> Tensor:
        """Return float32 [n, h] from float32 [n, h]."""
        if not len(self.layers):
            return x
        z = x
        for layer in self.layers:
            near = torch.zeros_like(z).index_add(0, at.row, z[at.column] * at.weight) + z * at.own
            z = functional.dropout(functional.relu(layer(near)), self.dropout, self.training)
        out: Tensor = self.norm(x + z)
        return out


class EdgeScorer(nn.Module):
    """The score of an edge from the embeddings of its ends, sigmoid(phi(z_v * z_u)), phi a network of two layers."""

    def __init__(self, width: int, hidden: int, dropout: float, *, noisy: bool) -> None:
        super().__init__()
        self.noisy = noisy
        self.phi = nn.Sequential(
            nn.Linear(width, hidden), nn.LayerNorm(hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, 1)
        )

    @property
    def symmetric(self) -> bool:
        """Return whether both directions of an edge have one score."""
        return not (self.noisy and self.training)

    def forward(self, z: Tensor, links: Links) -> Tensor:
        """Return float32 [2 e], the scores of the entries, from embeddings float32 [n, h]."""
        if self.symmetric:
            once = links.row < links.column  # row by row, so in the order of the pairs
            return self._score(z, links.row[once], links.column[once])[torch.from_numpy(links.pair)]
        return self._score(z, links.row, links.column)

    def _score(self, z: Tensor, row: Int64, column: Int64) -> Tensor:
        score: Tensor = self.phi(z[torch.from_numpy(row)] * z[torch.from_numpy(column)])
        return torch.sigmoid(score.squeeze(1))


class Added(nn.Module):
    """One linear layer added to what goes in, normalised: LayerNorm(x + W x + b)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Return float32 [n, h] from float32 [n, h]."""
        out: Tensor = self.norm(x + self.linear(x))
        return out


class Pool(nn.Module):
    """Features of clusters.

        f_c = strength_c * after(sum of before(h_v) over the nodes v of c)

    strength_c is the sum of the scores of the cluster's inside entries, 1 where it has none. The choice of the
    clusters has no gradient: through the strengths alone the scores are learned.

    Source: Song et al., "Graph parsing networks", ICLR 2024, where the strength is written as the mean of the scores
    times the number of entries. An entry whose ends were parted counts where its row ended up.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.after = Added(width), Added(width)

    def forward(self, h: Tensor, links: Links, clusters: Clusters, score: Tensor) -> Tensor:
        """Return float32 [k, h] from features of the nodes, float32 [n, h], and the scores, float32 [2 e]."""
        group = torch.from_numpy(clusters.grouping.group.astype(np.int64))
        k = clusters.grouping.k
        pooled: Tensor = self.after(h.new_zeros(k, h.shape[1]).index_add(0, group, self.before(h)))
        inside = torch.from_numpy(np.flatnonzero(clusters.inside))
        home = group[torch.from_numpy(links.row)[inside]]
        total = score.new_zeros(k).index_add(0, home, score[inside])
        strength = torch.where(torch.bincount(home, minlength=k) > 0, total, 1.0)
        return pooled * strength[:, None]


class Parsing(nn.Module):
    """Rounds of graph parsing with the same parameters in each: score the edges, cluster, pool.

    Source: Song et al., "Graph parsing networks", ICLR 2024; Duan et al., NeurIPS 2024 (HSDAG).
    """

    def __init__(self, width: int, hidden: int, rounds: ParsingRounds) -> None:
        super().__init__()
        self.to_fixed_point = rounds.to_fixed_point
        self.to_scores = Convolutions(width, rounds.score_layers, rounds.dropout)
        self.to_pool = Convolutions(width, rounds.pool_layers, rounds.dropout)
        self.scorer = EdgeScorer(width, hidden, rounds.dropout, noisy=rounds.noisy_scores)
        self.pool = Pool(width)

    def forward(
        self, x: Tensor, links: Links, rounds: tuple[Clusters, ...] = ()
    ) -> tuple[tuple[Clusters, ...], Tensor]:
        """Return the clusters of every round and features of the last, float32 [k, h], from features float32 [n, h].

        rounds: the clusters, if they are known already; then only scores and features follow from the parameters.
        """
        made = list[Clusters]()
        while True:
            at = Entries.of(links)
            score = self.scorer(self.to_scores(x, at), links)
            parse = parse_symmetric if self.scorer.symmetric else parse_in_turn
            clusters = rounds[len(made)] if rounds else parse(links, score.detach().numpy())
            made.append(clusters)
            x = self.pool(self.to_pool(x, at), links, clusters, score)
            links = clusters.pooled(links)
            if not (self.to_fixed_point and links.e):
                return tuple(made), x
