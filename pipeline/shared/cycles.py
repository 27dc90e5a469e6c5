"""Which nodes of a directed graph lie on cycles with one another."""

from __future__ import annotations

import numpy as np

from pipeline.core.arrays import Int32, Int64


def strong_components(n: int, edges: Int32) -> Int64:
    """Return int64 [n], the number of the strongly connected component of each of n nodes.

    edges: int32 [2, e], sorted by their first row.

    Source: Tarjan, Depth-First Search and Linear Graph Algorithms, 1972; with a path in place of the recursion.
    """
    bounds: list[int] = np.searchsorted(edges[0], np.arange(n + 1)).tolist()
    target: list[int] = edges[1].tolist()
    coming = bounds[:-1]  # the next edge to follow from each node
    found, low, component = [0] * n, [0] * n, [-1] * n
    unassigned: list[int] = []
    clock = count = 0
    for root in range(n):
        path = [] if found[root] else [root]
        while path:
            v = path[-1]
            if not found[v]:
                clock += 1
                found[v] = low[v] = clock
                unassigned.append(v)
            if coming[v] < bounds[v + 1]:
                w = target[coming[v]]
                coming[v] += 1
                if not found[w]:
                    path.append(w)
                elif component[w] < 0:
                    low[v] = min(low[v], found[w])
                continue
            path.pop()
            if path:
                low[path[-1]] = min(low[path[-1]], low[v])
            if low[v] == found[v]:
                while component[v] < 0:
                    component[unassigned.pop()] = count
                count += 1
    return np.array(component, dtype=np.int64)
