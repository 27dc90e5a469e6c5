"""The nodes of a problem in topological order, as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pipeline.core.arrays import Float32, Int64
from pipeline.core.graph import Graph, Grouping, contract, sum_per_group
from pipeline.core.placement import Placement
from pipeline.core.problem import Problem
from pipeline.shared.feasibility import finest_grouping
from pipeline.shared.graphs import forward_depths
from policy.place.base.groups import Groups
from policy.place.published.gdp.clusters import ClusterBy, clusters_of


@dataclass(frozen=True, slots=True, eq=False)
class NodeSequence:
    """k nodes that are placed one by one, numbered in topological order.

    groups: the problem's operations as these nodes, with where they may go. features: float32 [k, f]. edges: int64
    [2, e]. allowed: bool [k, p]. coarse: whether nodes are clusters of operations that need not share a device.
    """

    groups: Groups
    features: Tensor
    edges: Tensor
    allowed: Tensor
    coarse: bool

    @classmethod
    def of(
        cls,
        problem: Problem,
        features: Float32,
        *,
        most: int,
        clusters: int,
        by: ClusterBy = "edges",
    ) -> NodeSequence:
        """Return the nodes of a problem; features: float32 [n, f], of its operations.

        Operations that must share a device are one node. Of more than `most` nodes clusters are made, as
        `policy.place.published.gdp.clusters` does. A node's features are the mean of its members'.
        """
        grouping = finest_grouping(problem)
        coarse = grouping.k > most
        if coarse:
            grouping = clusters_of(problem, about=clusters, by=by)
        size = np.bincount(grouping.group, minlength=grouping.k)[:, None]
        mean = (sum_per_group(features.astype(np.float64), grouping) / size).astype(np.float32)
        graph = contract(problem.graph, grouping)
        order = _order(graph, mean)
        rank = np.empty(graph.n, np.int64)
        rank[order] = np.arange(graph.n)
        groups = Groups.of_grouping(problem, Grouping(rank[grouping.group].astype(np.int32)))
        edges = torch.from_numpy(rank[graph.edges])
        return cls(groups, torch.from_numpy(mean[order]), edges, torch.tensor(groups.allowed), coarse)

    @property
    def k(self) -> int:
        """Return the number of nodes."""
        return self.groups.k

    @property
    def p(self) -> int:
        """Return the number of devices."""
        return self.allowed.shape[1]

    @property
    def free(self) -> bool:
        """Return whether there is anything to choose."""
        return bool((self.groups.allowed.sum(axis=1) > 1).any())

    def placement(self, device: Tensor) -> Placement:
        """Return the placement of the problem's operations from the nodes' devices, int64 [k]."""
        return self.groups.placement(device.numpy().astype(np.int32))

    def repaired(self, device: Tensor) -> Placement:
        """Return the placement with nodes moved away from devices whose memory their weights exceed."""
        return self.groups.placement(self.groups.repaired(device.numpy().astype(np.int32)))


@dataclass(frozen=True, slots=True, eq=False)
class SequenceBatch:
    """Several graphs below one another. features: float32 [n, f]. edges: int64 [2, m], none between graphs."""

    sequences: tuple[NodeSequence, ...]
    features: Tensor
    edges: Tensor

    @classmethod
    def of(cls, sequences: Sequence[NodeSequence]) -> SequenceBatch:
        """Return the batch of some graphs, at least one."""
        first = np.cumsum([0, *(sequence.k for sequence in sequences)]).tolist()
        edges = [sequence.edges + begin for sequence, begin in zip(sequences, first[:-1], strict=True)]
        return cls(tuple(sequences), torch.cat([s.features for s in sequences]), torch.cat(edges, dim=1))


def _order(graph: Graph, features: Float32) -> Int64:
    """Return int64 [n], the nodes by depth, those of equal depth by their features, so that no numbering counts.

    Depth is the most hops from a source, as a breadth-first topological sort orders operations. Merging colocated
    operations makes cycles: their back edges, such as those to what updates a variable, are left out.
    """
    keys = (np.arange(graph.n), *features.T[::-1], forward_depths(graph))
    order: Int64 = np.lexsort(keys)  # the last key counts first
    return order
