"""Graph parsing: scores of edges to clusters of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt

from pipeline.core.arrays import Bool, Float32, Int64, distinct
from pipeline.core.graph import Grouping, components


@dataclass(frozen=True, slots=True, eq=False)
class Links:
    """The entries of a symmetric adjacency matrix of n nodes, row by row, without its diagonal.

    row, column: int64 [2 e]. pair: int64 [2 e], which of the e undirected edges an entry is one direction of.
    """

    n: int
    row: Int64
    column: Int64
    pair: Int64

    @classmethod
    def of(cls, n: int, a: npt.NDArray[np.integer], b: npt.NDArray[np.integer]) -> Links:
        """Return the entries of edges a[i] - b[i]; direction and repetition do not matter.

        >>> links = Links.of(3, np.array([2, 0, 1]), np.array([1, 1, 2]))
        >>> links.row.tolist(), links.column.tolist(), links.pair.tolist()
        ([0, 1, 1, 2], [1, 0, 2, 1], [0, 0, 1, 1])
        """
        low, high = np.minimum(a, b).astype(np.int64), np.maximum(a, b).astype(np.int64)
        u, v = np.divmod(distinct((low * n + high)[low != high]), n)
        entry = np.concatenate([u * n + v, v * n + u])
        order = np.argsort(entry, kind="stable")
        row, column = np.divmod(entry[order], n)
        return cls(n, row, column, np.tile(np.arange(u.size), 2)[order])

    @property
    def e(self) -> int:
        """Return the number of undirected edges."""
        return self.row.size // 2


@dataclass(frozen=True, slots=True, eq=False)
class Clusters:
    """What one round of parsing makes of n nodes.

    grouping: the nodes to k clusters. inside: bool [2 e], whether an entry of the links was merged away.
    """

    grouping: Grouping
    inside: Bool

    def pooled(self, links: Links) -> Links:
        """Return the entries between the clusters: those that are not inside, each pair of clusters once."""
        group, left = self.grouping.group, ~self.inside
        return Links.of(self.grouping.k, group[links.row[left]], group[links.column[left]])


def joined(rounds: Sequence[Clusters]) -> Grouping:
    """Return the nodes grouped as one or more rounds of parsing, each of the clusters before, leave them."""
    return reduce(lambda whole, clusters: whole.then(clusters.grouping), rounds[1:], rounds[0].grouping)


def dominant(links: Links, score: Float32) -> Int64:
    """Return int64 [n], the entry of the highest score in each row, the first among equals; -1 in an empty row.

    score: float32 [2 e].
    """
    best_first = np.lexsort((-score, links.row))  # a stable sort
    rows, first = np.unique(links.row[best_first], return_index=True)
    entry = np.full(links.n, -1, np.int64)
    entry[rows] = best_first[first]
    return entry


def parse_symmetric(links: Links, score: Float32) -> Clusters:
    """Return the clusters of scores that are equal in both directions.

    Each node keeps its edge of the highest score; the clusters are what these edges connect, one round of Boruvka's
    algorithm.

    Source: Duan et al., NeurIPS 2024 (HSDAG), section 3.
    """
    entry = dominant(links, score)
    kept = entry[entry >= 0]
    grouping = components(links.n, links.row[kept].astype(np.int32), links.column[kept].astype(np.int32))
    return Clusters(grouping, grouping.group[links.row] == grouping.group[links.column])


def parse_in_turn(links: Links, score: Float32) -> Clusters:
    """Return the clusters of scores that may differ between the two directions.

    DOM: each node i points at the column dom(i) of its highest entry. EXP: by falling score of these entries, a node
    that still points begins a cluster of i and dom(i). Every node that points into the cluster joins it and points no
    more, until none is left. All entries between nodes that were in a cluster together are inside. GEN: a node that
    came into two clusters, because it was pointed at by the first of one and began another, stays in the second.

    With scores equal in both directions, and no two edges of equal score, this is `parse_symmetric`. With others an
    entry may be inside although its ends are in different clusters in the end: that edge is lost.

    Source: Song et al., "Graph parsing networks", ICLR 2024.
    """
    entry = dominant(links, score)
    pointing = np.flatnonzero(entry >= 0)
    aim = np.full(links.n, -1, np.int64)
    aim[pointing] = links.column[entry[pointing]]
    falling = pointing[np.lexsort((entry[pointing], -score[entry[pointing]]))]
    group, second = _expand(aim, falling)
    # A cluster holds the nodes that joined it, and the node its first one pointed at, wherever that joined.
    a, b = group[links.row], group[links.column]
    inside = (a == b) | (second[a] == links.column) | (second[b] == links.row)
    alone = group < 0
    group[alone] = second.size + np.arange(np.count_nonzero(alone))
    return Clusters(Grouping(group.astype(np.int32)), inside)


def _expand(aim: Int64, falling: Int64) -> tuple[Int64, Int64]:
    """Return the cluster that each node joined, int64 [n] (-1: none), and the second node of each cluster.

    aim: int64 [n], where each node points. falling: the nodes that point, best first.
    """
    followers: list[list[int]] = [[] for _ in range(aim.size)]
    aims, order = aim.tolist(), falling.tolist()
    for i in order:
        followers[aims[i]].append(i)
    own, second = [-1] * aim.size, list[int]()
    for first in order:
        if own[first] >= 0:
            continue
        cluster = len(second)
        second.append(aims[first])
        own[first] = cluster
        front = [first, aims[first]]
        while front:
            for i in followers[front.pop()]:
                if own[i] < 0:
                    own[i] = cluster
                    front.append(i)
    return np.array(own, np.int64), np.array(second, np.int64)
