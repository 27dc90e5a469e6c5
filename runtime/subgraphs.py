"""How many sub-graphs HETERO makes of a placement."""

from __future__ import annotations

import numpy as np

from pipeline.core.arrays import Bool, Int32, Int64
from pipeline.core.graph import Graph, Grouping, components, topological_order


def split(graph: Graph, device: Int32) -> Grouping:
    """Return the sub-graphs that HETERO cuts n nodes into, for device int32 [n].

    Every edge between devices is a boundary; nodes joined by other edges form a sub-graph. Where a sub-graph would
    wait for its own result, its nodes are cut apart by which of those results they need, until none waits for itself.

    Source: the subgraph collector of OpenVINO's HETERO plug-in, rebuilt from its behaviour.
    """
    producer, consumer = graph.edges
    boundary = device[producer] != device[consumer]
    order = topological_order(graph).tolist()
    while True:
        parts = components(graph.n, producer[~boundary], consumer[~boundary])
        needs = _own_results_needed(graph, parts, boundary, order)
        further = ~boundary & np.array(
            [needs[a] != needs[b] for a, b in zip(producer.tolist(), consumer.tolist(), strict=True)], dtype=bool
        )
        if not further.any():
            return parts
        boundary |= further


def _own_results_needed(graph: Graph, parts: Grouping, boundary: Bool, order: list[int]) -> list[frozenset[int]]:
    """Return, per node, the boundary edges into its sub-graph that it needs and that depend on that sub-graph."""
    part = parts.group.tolist()
    producers: list[list[tuple[int, int]]] = [[] for _ in range(graph.n)]
    for e, (a, b) in enumerate(graph.edges.T.tolist()):
        producers[b].append((a, e))
    is_boundary = boundary.tolist()
    upstream: list[int] = [0] * graph.n  # bit set of the sub-graphs a node depends on
    needs: list[frozenset[int]] = [frozenset()] * graph.n
    for i in order:
        reached = 1 << part[i]
        needed: set[int] = set()
        for a, e in producers[i]:
            reached |= upstream[a]
            if not is_boundary[e]:
                needed |= needs[a]
            elif upstream[a] >> part[i] & 1:
                needed.add(e)
        upstream[i] = reached
        needs[i] = frozenset(needed)
    return needs


def count_by_device(graph: Graph, device: Int32, p: int) -> Int64:
    """Return int64 [p], how many sub-graphs each device runs."""
    if bool(np.all(device == device[0])):
        return np.bincount(device[:1], minlength=p)
    parts = split(graph, device)
    _, head = np.unique(parts.group, return_index=True)
    return np.bincount(device[head], minlength=p)
