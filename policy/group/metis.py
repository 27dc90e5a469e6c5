"""Groups of equal work with few bytes between them, by METIS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.core.graph import Graph, Grouping
from pipeline.core.learning import GroupSample
from pipeline.core.params import param
from pipeline.shared.partition import check_parts, even_parts, node_costs
from policy.group.fixed_sample import certain_sample


class MetisModel(nn.Module):
    """Partitions a graph once and gives the same answer whenever it is asked again about that graph."""

    def __init__(self, parts: int, balance: float, seed: int) -> None:
        super().__init__()
        self.parts, self.balance, self.seed = parts, balance, seed
        self._last: tuple[Graph, Grouping] | None = None

    @property
    def module(self) -> nn.Module:
        """Return the model itself, which has no parameters."""
        return self

    def group(self, nodes: Tensor, graph: Graph, *, rng: np.random.Generator, greedy: bool) -> GroupSample:
        """Return the partition; the embeddings are not looked at."""
        if self._last is None or self._last[0] is not graph:
            self._last = (graph, self._partition(graph))
        return certain_sample(self._last[1])

    def draws(self, nodes: Tensor, graph: Graph, r: int, *, rng: np.random.Generator) -> list[GroupSample]:
        """Return the same grouping r times."""
        return [self.group(nodes, graph, rng=rng, greedy=True)] * r

    def log_prob(self, nodes: Tensor, graph: Graph, choice: Tensor) -> Tensor:
        """Return 0."""
        return torch.zeros(())

    def _partition(self, graph: Graph) -> Grouping:
        labels = even_parts(
            graph,
            self.parts,
            node_weight=node_costs(graph, "flops"),
            edge_weight=graph.edge_bytes,
            balance=self.balance,
            seed=self.seed,
        )
        return Grouping.of_labels(labels)


@dataclass(frozen=True, slots=True)
class Metis:
    """Cuts the graph into parts of equal FLOPs so that few bytes flow between parts.

    Where pymetis is not installed, as on Windows, an order of the operations is divided instead, and a warning says so.

    Source: Karypis and Kumar, "A fast and high quality multilevel scheme for partitioning irregular graphs", SIAM J.
    Scientific Computing 20, 1998.
    """

    version: ClassVar[int] = 1

    parts: int = param(16, "groups to make; a smaller graph is left as it is")
    balance: float = param(1.3, "how much heavier than the mean a part may be, as a factor")

    def __post_init__(self) -> None:
        check_parts(self.parts, self.balance)

    def build(self, width: int, *, seed: int) -> MetisModel:
        """Return the model; `seed` goes to METIS."""
        return MetisModel(self.parts, self.balance, seed)
