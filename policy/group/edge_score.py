"""Graph parsing: each node joins one neighbour, drawn by a learned score of the edge between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.utils import scatter

from pipeline.core.arrays import Float64
from pipeline.core.errors import UnknownNameError, UsageError
from pipeline.core.graph import Graph, Grouping, components
from pipeline.core.learning import GroupSample
from pipeline.core.params import param
from pipeline.shared.torch_tools import torch_seeded

STOPS = ("learned", "fixed")
ONE_ROUND = 1.0  # logit by which one round is likelier than any other number at first

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


@dataclass(frozen=True, slots=True, eq=False)
class Union:
    """Draws that go on, side by side as s parts of one graph of K nodes and E edges.

    sample: int64 [s], which draws these are. label: int64 [s, n], in which of the K nodes each node lies by now.
    owner: int64 [K], edge_owner: int64 [E], in [0, s), rising: the part that a node or an edge belongs to.
    edges: int64 [2, E]. z: float32 [K, h].
    """

    sample: Tensor
    label: Tensor
    owner: Tensor
    edge_owner: Tensor
    edges: Tensor
    z: Tensor

    @classmethod
    def of(cls, nodes: Tensor, edges: Tensor, r: int) -> Union:
        """Return r copies of a graph: nodes float32 [n, h], edges int64 [2, m]."""
        n, part = nodes.shape[0], torch.arange(r)
        return cls(
            part,
            torch.arange(r * n).reshape(r, n),
            part.repeat_interleave(n),
            part.repeat_interleave(edges.shape[1]),
            (edges[:, None, :] + n * part[:, None]).reshape(2, -1),
            nodes.repeat(r, 1),
        )

    def only(self, stays: Tensor) -> Union:
        """Return the parts for which bool [s] says so."""
        if bool(stays.all()):
            return self
        node, edge, part = stays[self.owner], stays[self.edge_owner], torch.cumsum(stays, 0) - 1
        place = torch.cumsum(node, 0) - 1
        return Union(
            self.sample[stays],
            place[self.label[stays]],
            part[self.owner[node]],
            part[self.edge_owner[edge]],
            place[self.edges[:, edge]],
            self.z[node],
        )

    def merged(self, taken: Tensor) -> Union:
        """Return the union in which the ends of the edges taken, int64, are one node; embeddings are means."""
        pairs = self.edges[:, taken].numpy()
        joined = components(self.owner.numel(), pairs[0], pairs[1])
        group = torch.tensor(joined.group, dtype=torch.int64)
        owner = torch.zeros(joined.k, dtype=torch.int64).index_copy(0, group, self.owner)
        keys = torch.unique(group[self.edges[0]] * joined.k + group[self.edges[1]])
        edges = torch.stack([keys // joined.k, keys % joined.k])
        edges = edges[:, edges[0] != edges[1]]
        z = scatter(self.z, group, dim_size=joined.k, reduce="mean")
        return Union(self.sample, group[self.label], owner, owner[edges[0]], edges, z)


class EdgeScoreModel(nn.Module):
    """Draws, or recounts, one edge per node and round.

        s_vu = phi(z_v * z_u),    P(v takes e) = softmax over the edges e at v of s_e / temperature

    The groups are the connected components of the edges taken. A further round does the same with the groups as
    nodes, their embeddings the means of their members'. Nodes without edges stay alone. How many rounds there are is
    drawn as well, P(t rounds) = softmax(b)_t for t from 0 on, or fixed; none begins with `groups` groups or fewer.

    Source: Song et al., "Graph parsing networks", ICLR 2024; Duan et al., NeurIPS 2024 (HSDAG). Deliberate differences:
    edges are drawn, not taken by the highest score, so that a grouping has a probability and its gradient; rounds end
    by a draw, not when nothing is left to merge; symmetric scores, no dropout; a pair joined in both directions counts
    as two edges.
    """

    def __init__(self, width: int, params: EdgeScore) -> None:
        super().__init__()
        self.rounds, self.temperature, self.groups = params.rounds, params.temperature, params.groups
        self.phi = nn.Sequential(
            nn.Linear(width, params.hidden),
            nn.LayerNorm(params.hidden),
            nn.ReLU(),
            nn.Linear(params.hidden, 1, bias=False),  # what is added to every score leaves the softmax
        )
        begin = torch.zeros(params.rounds + 1)
        begin[1] = ONE_ROUND
        self.b = nn.Parameter(begin) if params.stop == "learned" else None

    @property
    def module(self) -> nn.Module:
        """Return the model itself."""
        return self

    def group(self, nodes: Tensor, graph: Graph, *, rng: np.random.Generator, greedy: bool) -> GroupSample:
        """Return a draw for embeddings float32 [n, h]; greedily each choice is the likeliest."""
        return self._drawn(nodes, graph, 1, None if greedy else rng)[0]

    def draws(self, nodes: Tensor, graph: Graph, r: int, *, rng: np.random.Generator) -> list[GroupSample]:
        """Return r independent draws for embeddings float32 [n, h]."""
        return self._drawn(nodes, graph, r, rng)

    def log_prob(self, nodes: Tensor, graph: Graph, choice: Tensor) -> Tensor:
        """Return the log-probability of the number of rounds and of all choices, int64 [1 + n + k_1 + ...].

        Raises:
            ValueError: they are not choices for this graph.
        """
        rounds, rest = choice[:1], choice[1:]
        if not (rounds.numel() and 0 <= int(rounds) <= self.rounds):
            raise ValueError(f"a choice must begin with a number of rounds from 0 to {self.rounds}")

        def replay(at: Incidence, log_p: Tensor) -> Tensor:
            nonlocal rest
            now, rest = rest[: at.k], rest[at.k :]
            return now

        return self._parse(nodes, graph, rounds, replay)[0].log_prob

    def _drawn(self, nodes: Tensor, graph: Graph, r: int, rng: np.random.Generator | None) -> list[GroupSample]:
        """Return r draws; the likeliest one r times without a generator."""

        def perturbed(log_p: Tensor) -> Float64:
            value: Float64 = log_p.detach().numpy().astype(np.float64)
            return value if rng is None else value + rng.gumbel(size=value.shape)  # the largest: a softmax's draw

        def draw(at: Incidence, log_p: Tensor) -> Tensor:
            return _highest_edges(at, perturbed(log_p))

        rounds = torch.full((r,), self.rounds)
        if self.b is not None:
            rounds = torch.from_numpy(perturbed(self.b.log_softmax(0).expand(r, -1)).argmax(axis=1))
        return self._parse(nodes, graph, rounds, draw)

    def _parse(self, nodes: Tensor, graph: Graph, rounds: Tensor, draw: Draw) -> list[GroupSample]:
        """Return one sample for each number of rounds, int64 [r]."""
        r = rounds.numel()
        edges = torch.tensor(graph.edges, dtype=torch.int64)
        union = Union.of(nodes, edges, r)
        log_prob, entropy = self._of_rounds(rounds, nodes)
        labels = list(union.label)
        choices = [[rounds[i : i + 1]] for i in range(r)]
        for t in range(int(rounds.max())):
            sizes = torch.bincount(union.owner, minlength=union.sample.numel())
            union = union.only((rounds[union.sample] > t) & (sizes > self.groups))
            if union.sample.numel() == 0:
                break
            at = Incidence.of(union.edges, union.owner.numel())
            # In the first round all parts have the same nodes and edges.
            score = self._score(union.z, union.edges) if t else self._score(nodes, edges).repeat(union.sample.numel())
            log_p = at.log_softmax(score)
            choice = draw(at, log_p)
            pair = at.position(choice)
            log_prob = log_prob.index_add(0, union.sample[union.owner[at.owner[pair]]], log_p[pair])
            entropy = entropy.index_add(0, union.sample[union.owner[at.owner]], -log_p.exp() * log_p)
            for i, part in zip(union.sample.tolist(), _choice_parts(union, choice), strict=True):
                choices[i].append(part)
            union = union.merged(choice[choice >= 0])
            for i, label in zip(union.sample.tolist(), union.label, strict=True):
                labels[i] = label
        groupings = [Grouping.of_labels(label.numpy()) for label in labels]
        return [GroupSample(groupings[i], torch.cat(choices[i]), log_prob[i], entropy[i]) for i in range(r)]

    def _of_rounds(self, rounds: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probability and entropy, float32 [r], of the numbers of rounds int64 [r]."""
        if self.b is None:
            return like.new_zeros(rounds.numel()), like.new_zeros(rounds.numel())
        log_p = self.b.log_softmax(0)
        return log_p[rounds], -(log_p.exp() * log_p).sum().expand(rounds.numel())

    def _score(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """Return float32 [e], the score of each edge divided by the temperature."""
        score: Tensor = self.phi(nodes[edges[0]] * nodes[edges[1]])
        return score.squeeze(1) / self.temperature


def _choice_parts(union: Union, choice: Tensor) -> list[Tensor]:
    """Return for each part the edges that its nodes take, int64 [k], counted within the part; -1 stays."""
    parts = union.sample.numel()
    edge_count, node_count = (torch.bincount(o, minlength=parts) for o in (union.edge_owner, union.owner))
    first = torch.cumsum(edge_count, 0) - edge_count
    within = torch.where(choice >= 0, choice - first[union.owner], choice)
    return list(torch.split(within, node_count.tolist()))


def _highest_edges(at: Incidence, value: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Tensor:
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

    version: ClassVar[int] = 2

    rounds: int = param(3, "how often groups are merged at most; each round at least halves what is joined")
    stop: Literal["learned", "fixed"] = param("learned", "learned: how many rounds there are is drawn; fixed: all")
    groups: int = param(0, "no further round with so many groups or fewer")
    hidden: int = param(64, "width of the network that scores an edge")
    temperature: float = param(1.0, "above 1 draws are closer to uniform, below 1 closer to the highest score")

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.hidden < 1 or not self.temperature > 0:
            raise UsageError(
                f"{self} has a parameter out of range.", "Use at least 1 round, 1 unit and a temperature above 0."
            )
        if self.stop not in STOPS:
            raise UnknownNameError("way to stop", self.stop, STOPS)

    def build(self, width: int, *, seed: int) -> EdgeScoreModel:
        """Return a fresh model for embeddings of `width` numbers, its parameters drawn from `seed`."""
        with torch_seeded(seed):
            return EdgeScoreModel(width, self)
