"""What the shape of a graph says about each node: levels, heaviest paths, fractal dimension."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeline.core.arrays import Float64, Int32, Int64
from pipeline.core.graph import Graph, adjacency


def heaviest_path(graph: Graph, order: Int32, weight: npt.NDArray[np.number], *, reverse: bool = False) -> Float64:
    """Return float64 [n], the weight of the heaviest path that ends before each operation, its own weight left out.

    order: int32 [n], a topological order of the graph. weight: [n], not negative.
    reverse: follow the edges against their direction: the heaviest path that starts after each operation.
    """
    from pipeline.shared.graphs import longest_paths  # compiled code

    ptr, before = adjacency(graph, reverse=not reverse)
    rank = (order if reverse else order[::-1]).astype(np.int64)  # what comes before an operation stands behind it
    own = weight.astype(np.float64)
    return longest_paths(rank, ptr, before.astype(np.int64), np.zeros(graph.m), own) - own


def mean_rank(values: npt.NDArray[np.number]) -> Float64:
    """Return float64 [n], the rank of each value from 0; equal values share the mean of their ranks.

    >>> mean_rank(np.array([5, 2, 5, 9])).tolist()
    [1.5, 0.0, 1.5, 3.0]
    """
    _, which, count = np.unique(values, return_inverse=True, return_counts=True)
    rank: Float64 = (np.cumsum(count) - (count + 1) / 2)[which]
    return rank


def fractal_dimension(n: int, edges: Int32, *, exact_up_to: int = 2000, radius: int = 8, ball: int = 256) -> Float64:
    """Return float64 [n], the node-based fractal dimension D(v) of each node of the undirected graph.

        D(v) = slope of the least-squares line through (log r, log N(v, r))

    over the distances r that occur from v, N(v, r) = number of other nodes within r hops. 0 where fewer than two
    distances occur.

    edges: int32 [2, m]; direction, repetition and order do not matter.
    exact_up_to: larger graphs are searched only in part, because the distances of all pairs grow with n squared:
    from each node up to `radius` hops, and no further once the nodes found might become more than `ball`.

    Source: Duan et al., "A structure-aware framework for learning device placements on computation graphs", NeurIPS
    2024. Deliberate difference: nodes that cannot be reached are left out, not infinitely far away.
    """
    if n <= exact_up_to:
        return _dimension_slopes(_neighbourhood_sizes_exact(n, edges))
    return _dimension_slopes(_neighbourhood_sizes_near(n, edges, radius, ball))


def _neighbourhood_sizes_exact(n: int, edges: Int32) -> Int64:
    """Return int64 [n, largest distance], how many nodes lie at distance 1, 2, ... of each node."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import shortest_path

    links = coo_array((np.ones(edges.shape[1]), (edges[0], edges[1])), shape=(n, n)).tocsr()
    distance = shortest_path(links, method="D", directed=False, unweighted=True)
    row, column = np.nonzero(np.isfinite(distance) & (distance > 0))
    hops = distance[row, column].astype(np.int64)
    width = int(hops.max(initial=0))
    return np.bincount(row * width + hops - 1, minlength=n * width).reshape(n, width)


def _neighbourhood_sizes_near(n: int, edges: Int32, radius: int, ball: int) -> Int64:
    """Return int64 [n, radius], like `_neighbourhood_sizes_exact`, 0 from where the search from a node was given up."""
    a, b = edges.astype(np.int64)
    both = _distinct_values(np.concatenate([a * n + b, b * n + a]))
    source, neighbour = np.divmod(both, n)
    degree = np.bincount(source, minlength=n)
    first = np.cumsum(degree) - degree
    shells = np.zeros((n, radius), np.int64)
    reached_count = np.ones(n, np.int64)
    shell, previous = np.arange(n, dtype=np.int64) * (n + 1), np.zeros(0, np.int64)  # entries: root * n + node
    for r in range(radius):
        root, node = np.divmod(shell, n)
        goes_on = reached_count + np.bincount(root, weights=degree[node], minlength=n) <= ball
        root, node = root[goes_on[root]], node[goes_on[root]]
        count = degree[node]
        within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        reached = _distinct_values(np.repeat(root, count) * n + neighbour[np.repeat(first[node], count) + within])
        # A neighbour of a node at distance r lies at distance r - 1, r or r + 1.
        fresh = np.setdiff1d(reached, np.concatenate([shell, previous]), assume_unique=True)
        shells[:, r] = np.bincount(fresh // n, minlength=n)
        reached_count += shells[:, r]
        shell, previous = fresh, shell
    return shells


def _distinct_values(values: Int64) -> Int64:
    """Return the distinct values in rising order; several times faster than the hashing np.unique of numpy 2.4."""
    rising = np.sort(values)
    distinct: Int64 = rising[np.diff(rising, prepend=-1) != 0]
    return distinct


def _dimension_slopes(shells: Int64) -> Float64:
    """Return float64 [n], the slope of log N(v, r) against log r over the distances r that occur."""
    occurs = shells > 0
    log_r = np.log(np.arange(1, shells.shape[1] + 1))
    log_n = np.log(np.maximum(np.cumsum(shells, axis=1), 1))
    points = np.maximum(occurs.sum(axis=1), 1)
    dr = np.where(occurs, log_r - ((occurs * log_r).sum(axis=1) / points)[:, None], 0.0)
    dn = np.where(occurs, log_n - ((occurs * log_n).sum(axis=1) / points)[:, None], 0.0)
    spread = (dr * dr).sum(axis=1)
    slope: Float64 = np.divide((dr * dn).sum(axis=1), spread, out=np.zeros(shells.shape[0]), where=spread > 1e-12)
    return slope
