"""Heavy-edge coarsening that keeps the graph acyclic and needs no further package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from pipeline.core.arrays import Float64, Int64
from pipeline.core.graph import Graph, Grouping, adjacency, contract, sum_per_group, topological_order
from pipeline.core.params import param
from pipeline.shared.graphs import edge_depths
from pipeline.shared.partition import check_node_cost, check_parts, node_costs

SEARCH = 200  # edges looked at before a merge counts as unsafe


@dataclass(frozen=True, slots=True)
class HeavyEdge:
    """Merges along the heaviest edges, round by round, until `parts` groups remain or no merge is allowed.

    A round takes the edges by falling bytes / (cost of producer + cost of consumer) and grows clusters: an operation
    alone may join another or a cluster, as long as the cluster costs at most balance times the mean of a part (or the
    heaviest operation, if that is more). The clusters are contracted, and the next round begins. When no edge can be
    contracted, operations whose heaviest edges lead to one neighbour are merged, and operations without edges.

    With `acyclic` a round looks at level(v), the longest path from an input to v; in every other round at minus the
    longest path from v to an output. It merges along edges u -> v with level(v) = level(u) + 1 into clusters on two
    levels, or operations of one level. Edges between clusters rise by at least one level and a cluster falls back by
    at most one, so a cycle of clusters consists of clusters on the same two levels, entered above and left below. A
    merge that could close such a cycle is found by a search among these clusters and left out.

    Source: Herrmann, Özkaya, Uçar, Kaya and Çatalyürek, Multilevel Algorithms for Acyclic Partitioning of Directed
    Acyclic Graphs, SIAM Journal on Scientific Computing 41(4), 2019 (clustering with cycle detection). Ours differs
    in the score, in the cap, in using both kinds of levels, in merging neighbours of a neighbour (as METIS does), and
    in stopping a search after a fixed number of edges.
    """

    version: ClassVar[int] = 1

    parts: int = param(32, "number of groups at which merging stops; more remain if no merge is allowed")
    balance: float = param(1.5, "most cost of a group, relative to the mean")
    acyclic: bool = param(True, "merge only what keeps the graph acyclic")
    weight: Literal["flops", "bytes", "count"] = param(
        "flops", "what is balanced: flops, bytes (weights and outputs) or count"
    )

    def __post_init__(self) -> None:
        check_parts(self.parts, self.balance)
        check_node_cost(self.weight)

    def coarsen(self, graph: Graph, *, seed: int) -> Grouping:
        """Return the clusters of the last round.

        Raises:
            CyclicGraphError: `acyclic` was asked of a graph that has a cycle.
        """
        rng = np.random.default_rng(seed)
        cost = node_costs(graph, self.weight)
        cap = self.balance * max(cost.sum() / self.parts, cost.max(initial=0.0))
        answer = Grouping.identity(graph.n)
        rounds = idle = 0
        while graph.n > self.parts and idle < 4:  # edges and siblings, each with both kinds of levels
            level = _path_levels(graph, to_outputs=rounds % 2 == 1) if self.acyclic else None
            if idle < 2:
                clusters = _merge_edges(graph, cost, level, cap=cap, parts=self.parts, rng=rng)
            else:
                clusters = _merge_siblings(graph, cost, level, cap=cap, parts=self.parts)
            idle = idle + 1 if clusters.k == graph.n else 0
            graph, cost, answer = contract(graph, clusters), sum_per_group(cost, clusters), answer.then(clusters)
            rounds += 1
        return answer


def _path_levels(graph: Graph, *, to_outputs: bool) -> Int64:
    """Return int64 [n], the longest path from an input, or minus the longest path to an output; edges rise by 1."""
    topological_order(graph)  # refuses cycles
    return edge_depths(graph, reverse=to_outputs).astype(np.int64) * (-1 if to_outputs else 1)


def _merge_siblings(graph: Graph, cost: Float64, level: Int64 | None, *, cap: float, parts: int) -> Grouping:
    """Return clusters of operations with one level and one neighbour of the heaviest edge; -1 stands for no edge.

    level: int64 [n], or None where cycles do not matter.
    """
    lightest_first = np.argsort(graph.edge_bytes, kind="stable")
    producer, consumer = graph.edges[:, lightest_first]
    neighbour = np.full(graph.n, -1, dtype=np.int64)
    for end, other in ((producer, consumer), (consumer, producer)):
        neighbour[end] = other  # of several the last, the heaviest, stays
    key = neighbour if level is None else neighbour + (graph.n + 1) * (level - level.min(initial=0))
    label = np.arange(graph.n)
    remaining, head, load = graph.n, -1, 0.0
    order = np.lexsort((cost, key))
    for i, k, c in zip(order.tolist(), key[order].tolist(), cost[order].tolist(), strict=True):
        if head < 0 or key[head] != k or load + c > cap or remaining <= parts:
            head, load = i, c
        else:
            label[i] = head
            load += c
            remaining -= 1
    return Grouping.of_labels(label)


def _merge_edges(
    graph: Graph, cost: Float64, level: Int64 | None, *, cap: float, parts: int, rng: np.random.Generator
) -> Grouping:
    """Return clusters grown along edges by falling score, colocation constraints in random order.

    level: int64 [n], or None where cycles do not matter.
    """
    producer, consumer = graph.edges
    score = graph.edge_bytes / (cost[producer] + cost[consumer])
    order = np.lexsort((rng.permutation(graph.m), -score))
    if level is not None:
        order = order[(level[consumer] == level[producer] + 1)[order]]
    clusters = _Clusters(graph, cost, level)
    remaining = graph.n
    for u, v in zip(producer[order].tolist(), consumer[order].tolist(), strict=True):
        if remaining <= parts:
            break
        if clusters.may_merge(u, v, cap):
            clusters.merge(u, v)
            remaining -= 1
    return Grouping.of_labels(np.array(clusters.cluster, dtype=np.int64))


class _Clusters:
    """The clusters of a round while they grow; a cluster is numbered by one of its members.

    level: int64 [n] or None; with levels, a cluster lies on the levels base and base + 1.
    """

    def __init__(self, graph: Graph, cost: Float64, level: Int64 | None) -> None:
        self.neighbours = [
            _adjacency_lists(graph, reverse=False),
            _adjacency_lists(graph, reverse=True),
        ]  # consumers, producers
        self.level: list[int] | None = None if level is None else level.tolist()
        self.base: list[int] = [] if level is None else level.tolist()
        self.cost: list[float] = cost.tolist()
        self.cluster = list(range(graph.n))
        self.size = [1] * graph.n
        self.sides = [[[i] for i in range(graph.n)], [[i] for i in range(graph.n)]]  # members below, members above

    def may_merge(self, u: int, v: int, cap: float) -> bool:
        """Return whether an edge u -> v may be contracted: one end alone, within the cap, no cycle."""
        a, b = self.cluster[u], self.cluster[v]
        if a == b or (self.size[a] > 1 and self.size[b] > 1) or self.cost[a] + self.cost[b] > cap:
            return False
        if self.level is None:
            return True
        low = self.level[u]
        if self.base[a] != low or (self.size[b] > 1 and self.base[b] != low):
            return False  # the cluster would lie on three levels
        # The end that is alone has few neighbours, whatever the size of the other's cluster.
        return not (self._may_reach(v, a, low, side=1) if self.size[b] == 1 else self._may_reach(u, b, low, side=0))

    def merge(self, u: int, v: int) -> None:
        """Contract the edge u -> v."""
        a, b = self.cluster[u], self.cluster[v]
        joins, stays, side = (a, b, 0) if self.size[b] > 1 else (b, a, 1)
        alone = (u, v)[side]
        self.cluster[alone] = stays
        if self.size[stays] == 1:
            self.sides[1 - side][stays] = [stays]
            self.sides[side][stays] = []
        self.sides[side][stays].append(alone)
        self.size[stays] += 1
        self.cost[stays] += self.cost[joins]

    def _may_reach(self, start: int, goal: int, low: int, *, side: int) -> bool:
        """Return whether `start`, alone, leads to the cluster `goal` through others on the levels low and low + 1.

        side 0 follows edges, 1 goes against them. A search that becomes too long counts as a yes.
        """
        ptr, neighbours = self.neighbours[side]
        seen = {self.cluster[start], goal}
        front = [start]
        looked = 0
        while front:
            x = front.pop()
            for y in neighbours[ptr[x] : ptr[x + 1]]:
                looked += 1
                c = self.cluster[y]
                if looked > SEARCH or (c == goal and x != start):
                    return True
                if c not in seen and self.size[c] > 1 and self.base[c] == low:
                    seen.add(c)
                    front.extend(self.sides[side][c])
        return False


def _adjacency_lists(graph: Graph, *, reverse: bool) -> tuple[list[int], list[int]]:
    """Return (ptr, neighbours) of `adjacency` as lists, which loops read faster."""
    ptr, neighbours = adjacency(graph, reverse=reverse)
    return ptr.tolist(), neighbours.tolist()
