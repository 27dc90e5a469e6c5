"""Graph parsing: each node joins one neighbour, drawn by a learned score of the edge between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.utils import scatter

from pipeline.core.errors import UsageError
from pipeline.core.graph import Graph, Grouping, components, group_edges
from pipeline.core.params import param
from pipeline.core.stages import GroupSample
from pipeline.torch_tools import seeded

Draw = Callable[["Incidence", Tensor], Tensor]
"""Which edge each node takes, int64 [k] (-1: it has none), from log-probabilities float32 [2 e]."""


@dataclass(frozen=True, slots=True, eq=False)
class Incidence:
    """The 2 e pairs of e edges and the nodes at their ends.

    edges: int64 [2, e]. owner: int64 [2 e], a node. edge: int64 [2 e], an edge at that node: first every edge at its
    producer, then every edge at its consumer. k: the number of nodes.
    """

    edges: Tensor
    owner: Tensor
    edge: Tensor
    k: int

    @classmethod
    def of(cls, edges: Tensor, k: int) -> Incidence:
        """Return the incidence of edges int64 [2, e] on k nodes."""
        return cls(edges, edges.reshape(-1), torch.arange(edges.shape[1]).repeat(2), k)

    def log_softmax(self, score: Tensor) -> Tensor:
        """Return float32 [2 e], for each pair the log-probability that the node takes the edge.

        score: float32 [e].
        """
        logits = score[self.edge]
        highest = scatter(logits.detach(), self.owner, dim_size=self.k, reduce="max")
        logits = logits - highest[self.owner]
        total = scatter(logits.exp(), self.owner, dim_size=self.k, reduce="sum")
        log_p: Tensor = logits - torch.log(total)[self.owner]
        return log_p

    def position(self, choice: Tensor) -> Tensor:
        """Return the pairs taken, int64 [at most k], by the nodes with an edge.

        choice: int64 [k], an edge at each node; -1 at nodes without.

        Raises:
            ValueError: a node takes an edge that is not at it, or none though it could.
        """
        node = torch.arange(self.k)
        edge = choice.clamp(min=0)
        degree = torch.bincount(self.owner, minlength=self.k)
        if choice.shape != (self.k,) or bool(((choice < 0) != (degree == 0)).any()):
            raise ValueError("a choice must name one edge for every node that has edges")
        node, edge = node[degree > 0], edge[degree > 0]
        at_producer = self.edges[0, edge] == node
        if not bool((at_producer | (self.edges[1, edge] == node)).all()):
            raise ValueError("a choice must name edges at the node itself")
        return torch.where(at_producer, edge, edge + self.edges.shape[1])


class EdgeScoreModel(nn.Module):
    """Draws, or recounts, one edge per node and round.

        s_vu = phi(z_v * z_u),    P(v takes e) = softmax over the edges e at v of s_e / temperature

    The groups are the connected components of the edges taken. A further round does the same with the groups as
    nodes, their embeddings the means of their members'. Nodes without edges stay alone.

    Source: Song et al., "Graph parsing networks", ICLR 2024; Duan et al., NeurIPS 2024 (HSDAG). Deliberate differences:
    a fixed number of rounds; edges are drawn, not taken by the highest score, so that a grouping has a probability
    and its gradient; symmetric scores, no dropout; a pair joined in both directions counts as two edges.
    """

    def __init__(self, width: int, hidden: int, rounds: int, temperature: float) -> None:
        super().__init__()
        self.rounds, self.temperature = rounds, temperature
        self.phi = nn.Sequential(
            nn.Linear(width, hidden),
            nn.LayerNorm(hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1, bias=False),  # what is added to every score leaves the softmax
        )

    @property
    def module(self) -> nn.Module:
        """Return the model itself."""
        return self

    def group(self, nodes: Tensor, graph: Graph, *, rng: np.random.Generator, greedy: bool) -> GroupSample:
        """Return a draw for embeddings float32 [n, h]; greedily each node takes its most likely edge."""

        def draw(at: Incidence, log_p: Tensor) -> Tensor:
            value = log_p.detach().numpy().astype(np.float64)
            if not greedy:
                value = value + rng.gumbel(size=value.shape)  # the largest sum is a draw from the softmax
            return _highest(at, value)

        return self._parse(nodes, graph, draw)

    def log_prob(self, nodes: Tensor, graph: Graph, choice: Tensor) -> Tensor:
        """Return the log-probability of the choices of all rounds, int64 [n + k_1 + ...].

        Raises:
            ValueError: they are not choices for this graph.
        """
        rest = choice

        def replay(at: Incidence, log_p: Tensor) -> Tensor:
            nonlocal rest
            now, rest = rest[: at.k], rest[at.k :]
            return now

        return self._parse(nodes, graph, replay).log_prob

    def _parse(self, nodes: Tensor, graph: Graph, draw: Draw) -> GroupSample:
        grouping = Grouping.identity(graph.n)
        edges = torch.tensor(graph.edges, dtype=torch.int64)
        log_prob, entropy, choices = nodes.new_zeros(()), nodes.new_zeros(()), []
        for left in reversed(range(self.rounds)):
            at = Incidence.of(edges, nodes.shape[0])
            log_p = at.log_softmax(self._score(nodes, edges))
            choices.append(draw(at, log_p))
            log_prob = log_prob + log_p[at.position(choices[-1])].sum()
            entropy = entropy - (log_p.exp() * log_p).sum()
            taken = edges[:, choices[-1][choices[-1] >= 0]].numpy()
            joined = components(at.k, taken[0], taken[1])
            grouping = grouping.then(joined)
            if left:
                nodes = scatter(nodes, torch.tensor(joined.group, dtype=torch.int64), dim_size=joined.k, reduce="mean")
                edges = torch.tensor(group_edges(graph, grouping)[0], dtype=torch.int64)
        return GroupSample(grouping, torch.cat(choices), log_prob, entropy)

    def _score(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """Return float32 [e], the score of each edge divided by the temperature."""
        score: Tensor = self.phi(nodes[edges[0]] * nodes[edges[1]])
        return score.squeeze(1) / self.temperature


def _highest(at: Incidence, value: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Tensor:
    """Return int64 [k], the edge of the highest value at each node, among equals the lowest; -1 without edges."""
    owner, edge = at.owner.numpy(), at.edge.numpy()
    best_first = np.lexsort((edge, -value, owner))
    choice = np.full(at.k, -1, dtype=np.int64)
    owners, first = np.unique(owner[best_first], return_index=True)
    choice[owners] = edge[best_first][first]
    return torch.from_numpy(choice)


@dataclass(frozen=True, slots=True)
class EdgeScore:
    """Builds `EdgeScoreModel`s."""

    version: ClassVar[int] = 1

    rounds: int = param(1, "how often groups are merged; each round at least halves what is joined")
    hidden: int = param(64, "width of the network that scores an edge")
    temperature: float = param(1.0, "above 1 draws are closer to uniform, below 1 closer to the highest score")

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.hidden < 1 or not self.temperature > 0:
            raise UsageError(f"{self} scores no edges.", "Use at least 1 round, 1 unit and a temperature above 0.")

    def build(self, width: int, *, seed: int) -> EdgeScoreModel:
        """Return a fresh model for embeddings of `width` numbers, its parameters drawn from `seed`."""
        with seeded(seed):
            return EdgeScoreModel(width, self.hidden, self.rounds, self.temperature)
