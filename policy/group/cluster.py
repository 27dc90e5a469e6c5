"""Groups of neighbours with similar embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from scipy.sparse import coo_array
from sklearn.cluster import AgglomerativeClustering
from torch import Tensor, nn

from pipeline.core.arrays import Int64
from pipeline.core.errors import UsageError
from pipeline.core.graph import Graph, Grouping, components
from pipeline.core.learning import GroupSample
from pipeline.core.params import param
from policy.group.fixed_sample import certain_sample


class ClusterModel(nn.Module):
    """Merges, again and again, the two joined clusters whose merging raises the variance within clusters least."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    @property
    def module(self) -> nn.Module:
        """Return the model itself, which has no parameters."""
        return self

    def group(self, nodes: Tensor, graph: Graph, *, rng: np.random.Generator, greedy: bool) -> GroupSample:
        """Return the clusters of embeddings float32 [n, h]; nothing is random."""
        if graph.n <= self.groups:
            return certain_sample(Grouping.identity(graph.n))
        a, b = _linked_edges(graph)
        both = coo_array((np.ones(2 * a.size), (np.concatenate([a, b]), np.concatenate([b, a]))), (graph.n, graph.n))
        clusters = AgglomerativeClustering(n_clusters=self.groups, connectivity=both.tocsr(), linkage="ward")
        return certain_sample(Grouping.of_labels(clusters.fit_predict(nodes.detach().numpy().astype(np.float64))))

    def draws(self, nodes: Tensor, graph: Graph, r: int, *, rng: np.random.Generator) -> list[GroupSample]:
        """Return the same grouping r times."""
        return [self.group(nodes, graph, rng=rng, greedy=True)] * r

    def log_prob(self, nodes: Tensor, graph: Graph, choice: Tensor) -> Tensor:
        """Return 0."""
        return torch.zeros(())


def _linked_edges(graph: Graph) -> tuple[Int64, Int64]:
    """Return the edges, and one more from the first node of each component to that of the next.

    Without them clusters of different components could never merge, and scikit-learn would add edges of its own.
    """
    component = components(graph.n, graph.edges[0], graph.edges[1]).group
    first = np.unique(component, return_index=True)[1]
    return (
        np.concatenate([graph.edges[0], first[:-1]]).astype(np.int64),
        np.concatenate([graph.edges[1], first[1:]]).astype(np.int64),
    )


@dataclass(frozen=True, slots=True)
class Cluster:
    """Clusters the embeddings by Ward's criterion; only what an edge joins may merge.

    Components of the graph count as joined at their first nodes, so that any number of groups can be reached.

    Source: Ward, "Hierarchical grouping to optimize an objective function", J. American Statistical Association 58,
    1963.
    """

    version: ClassVar[int] = 1
    seeded: ClassVar[bool] = False

    groups: int = param(16, "groups to make; a smaller graph is left as it is")

    def __post_init__(self) -> None:
        if self.groups < 1:
            raise UsageError(f"{self} has a parameter out of range.", "Use at least 1 group.")

    def build(self, width: int, *, seed: int) -> ClusterModel:
        """Return the model; nothing is drawn."""
        return ClusterModel(self.groups)
