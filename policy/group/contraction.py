"""Groups merged along edges whose ends good placements keep together, by a score that was learned on other graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.core.arrays import Float64, Int64
from pipeline.core.errors import UsageError
from pipeline.core.graph import Graph, Grouping
from pipeline.core.learning import GroupSample
from pipeline.core.params import param
from pipeline.shared.contraction.edge_figures import EdgeFigures
from pipeline.shared.contraction.edge_network import edge_logits, shipped_weights
from pipeline.shared.contraction.merging import MergeLimits, MergeRound, merged, turns_open
from pipeline.shared.partition import check_parts, node_costs

Draw = Callable[[MergeRound, Tensor], Int64]
"""The edges to merge along, from a round and its log-odds, float64 [e]."""


class ContractionModel(nn.Module):
    """Merges the two groups joined by the greatest sum of log-odds again and again; a draw adds Gumbel noise to sums.

    By the noise, each merge is a draw from a softmax over the edges that may still be taken, and edges drawn earlier,
    or no longer allowed, change nothing about the others: the log-probability of a draw is exact. Sums are made anew
    when a quarter of the groups is gone.
    """

    def __init__(self, width: int, params: Contraction) -> None:
        super().__init__()
        self.params = params
        self.scale = nn.Parameter(torch.ones(()))
        self.phi = nn.Parameter(torch.zeros(width))  # what is learned of this graph, on top
        self._last: tuple[Graph, Tensor] | None = None

    @property
    def module(self) -> nn.Module:
        """Return the model itself."""
        return self

    def group(self, nodes: Tensor, graph: Graph, *, rng: np.random.Generator, greedy: bool) -> GroupSample:
        """Return a draw for embeddings float32 [n, h]; greedily the greatest sums are taken."""

        def draw(turn: MergeRound, sums: Tensor) -> Int64:
            value: Float64 = sums.detach().numpy()
            noisy = value if greedy else value + rng.gumbel(size=value.size)
            return merged(turn.ends, np.argsort(-noisy, kind="stable"), turn.limits)[1]

        return self._contract(nodes, graph, draw)

    def draws(self, nodes: Tensor, graph: Graph, r: int, *, rng: np.random.Generator) -> list[GroupSample]:
        """Return r independent draws for embeddings float32 [n, h]."""
        return [self.group(nodes, graph, rng=rng, greedy=False) for _ in range(r)]

    def log_prob(self, nodes: Tensor, graph: Graph, choice: Tensor) -> Tensor:
        """Return the log-probability of the merges of all rounds, int64: of each round how many, and their edges.

        Raises:
            ValueError: they are not choices for this graph.
        """
        rest: Int64 = choice.numpy()

        def replay(turn: MergeRound, _: Tensor) -> Int64:
            nonlocal rest
            count = int(rest[0]) if rest.size else 0
            taken, rest = rest[1 : 1 + count], rest[1 + count :]
            if taken.size and not 0 <= taken.min() <= taken.max() < turn.ends.shape[1]:
                raise ValueError("a choice must name edges between the groups of its round")
            if not np.array_equal(merged(turn.ends, taken, turn.limits)[1], taken):
                raise ValueError("a choice must name edges along which groups may merge")
            return taken

        return self._contract(nodes, graph, replay).log_prob

    def _contract(self, nodes: Tensor, graph: Graph, draw: Draw) -> GroupSample:
        edges = torch.tensor(graph.edges, dtype=torch.int64)
        learned = (nodes[edges[0]] * nodes[edges[1]]) @ self.phi
        score = (self.scale * self._shipped(graph) + learned).double() / self.params.temperature
        work = node_costs(graph, "flops")
        limits = MergeLimits.balanced(work, groups=self.params.groups, balance=self.params.balance)
        grouping, choices = Grouping.identity(graph.n), []
        log_prob, entropy = nodes.new_zeros(()), nodes.new_zeros(())
        while grouping.k > self.params.groups:
            turn = MergeRound.of(grouping, edges.numpy(), limits)
            apart = torch.from_numpy(turn.pair >= 0)
            sums = score.new_zeros(turn.ends.shape[1])
            sums = sums.index_add(0, torch.from_numpy(turn.pair)[apart], score[apart])
            taken = draw(turn, sums)
            if taken.size == 0:
                break
            choices.append(torch.from_numpy(np.concatenate([[taken.size], taken])))
            more, spread = _of_turns(sums, taken, turns_open(turn.ends, taken, turn.limits))
            log_prob, entropy = log_prob + more.float(), entropy + spread.float()
            grouping = turn.after(taken)
        choice = torch.cat(choices) if choices else torch.zeros(0, dtype=torch.int64)
        return GroupSample(grouping, choice, log_prob, entropy)

    def _shipped(self, graph: Graph) -> Tensor:
        if self._last is None or self._last[0] is not graph:
            figures = EdgeFigures.of_graph(graph, devices=self.params.devices)
            logits = torch.tensor(edge_logits(shipped_weights(), figures), dtype=torch.float32)
            self._last = (graph, logits)
        return self._last[1]


def _of_turns(sums: Tensor, taken: Int64, turns: Int64) -> tuple[Tensor, Tensor]:
    """Return the log-probability of merges along `taken`, one after the other, and the sum of their entropies.

    turns: int64 [e], at how many of the merges, from the first on, each edge might have been taken.
    """
    highest = sums.detach().max()
    weight, last = (sums - highest).exp(), torch.from_numpy(turns)

    def open_at(values: Tensor) -> Tensor:  # [turns], the sum over edges that might be taken then
        by_last = values.new_zeros(taken.size + 1).index_add(0, last, values)
        return by_last.flip(0).cumsum(0).flip(0)[1:]

    total = open_at(weight)
    log_total = total.log() + highest
    return (sums[torch.from_numpy(taken)] - log_total).sum(), (log_total - open_at(weight * sums) / total).sum()


@dataclass(frozen=True, slots=True)
class Contraction:
    """Builds `ContractionModel`s on the learned score of edges of `pipeline.shared.contraction`."""

    version: ClassVar[int] = 1
    seeded: ClassVar[bool] = False

    groups: int = param(32, "groups at which merging stops")
    balance: float = param(2.0, "most work of a group, relative to the mean")
    devices: int = param(4, "devices that the score is asked for", within="[1, inf)")
    temperature: float = param(1.0, "above 1 draws are closer to uniform, below 1 closer to the highest score")

    def __post_init__(self) -> None:
        check_parts(self.groups, self.balance)
        if self.devices < 1 or not self.temperature > 0:
            raise UsageError(f"{self} has a parameter out of range.", "Use at least 1 device, a temperature above 0.")

    def build(self, width: int, *, seed: int) -> ContractionModel:
        """Return a model for embeddings of `width` numbers that begins with the learned score alone."""
        return ContractionModel(width, self)
