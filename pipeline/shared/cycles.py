"""Which nodes of a directed graph lie on cycles with one another."""

from __future__ import annotations

import numpy as np

from pipeline.core.arrays import Int32, Int64


def strong_components(n: int, edges: Int32 | Int64) -> Int32:
    """Return int32 [n], the number of the strongly connected component of each of n nodes; edges: int [2, e]."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    links = coo_array((np.ones(edges.shape[1], bool), (edges[0], edges[1])), shape=(n, n))
    component: Int32 = connected_components(links, directed=True, connection="strong")[1]
    return component
