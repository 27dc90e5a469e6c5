"""The graph as Placeto's network sees it: who hears whom, who is before and behind whom, what is known of each node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.sparse import block_diag, csr_array

from pipeline.core.arrays import Float32, Float64, Int32, Int64
from pipeline.core.graph import Graph, contract, row_ptr, sum_per_group
from pipeline.shared.graphs import breadth_first, visit_order
from policy.place.base.groups import Groups

Network = Literal["placeto", "gnn"]
Bits = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Hearing:
    """Who hears whom: `sums` [r, s] times s messages are what r nodes hear; `back` is its transpose."""

    sums: csr_array
    back: csr_array

    @classmethod
    def of(cls, sums: csr_array) -> Hearing:
        """Return a matrix and its transpose as rows."""
        return cls(sums.tocsr().astype(np.float32), sums.T.tocsr().astype(np.float32))


@dataclass(frozen=True, slots=True, eq=False)
class NodeGraph:
    """n nodes, sorted by depth and then by topological order.

    group: int64 [n], which group each node is. visit: int64 [n], the nodes in topological order. level_ptr: int64,
    where each depth begins. all: how the nodes of all directions hear one another, [directions n, directions n].
    levels: for each direction, how each depth hears those that came before it in a sweep. heard: float32
    [directions, n], 1 where a node hears anybody. before, behind: uint8 [n, bytes], a bit for every node from which a
    path leads here, and to which one leads. figures: float32 [n, 3], mean seconds, bytes of all tensors that leave the
    node, these and its weights; each as a share of the greatest.
    """

    group: Int64
    visit: Int64
    level_ptr: Int64
    all: Hearing
    levels: tuple[tuple[Hearing, ...], ...]
    heard: Float32
    before: Bits
    behind: Bits
    figures: Float32

    @property
    def n(self) -> int:
        """Return the number of nodes."""
        return int(self.group.size)

    @property
    def directions(self) -> int:
        """Return in how many directions messages pass."""
        return int(self.heard.shape[0])

    def pools(self, v: int) -> tuple[Int64, ...]:
        """Return the nodes before node v, those behind it, and those that are neither, v left out."""
        before, behind = (
            np.unpackbits(bits[v], count=self.n, bitorder="little") > 0 for bits in (self.before, self.behind)
        )
        parallel = ~(before | behind)
        parallel[v] = False
        return tuple(np.flatnonzero(nodes) for nodes in (before, behind, parallel))


def node_graph(groups: Groups, network: Network, *, sweep: bool) -> NodeGraph:
    """Return a problem's groups as a network sees them; sweep: whether messages pass from level to level.

    Where groups form cycles, edges against `visit_order` are left out.
    """
    graph = contract(groups.problem.graph, groups.grouping)
    n, rank = graph.n, _inverse(visit_order(graph).astype(np.int64))
    forward = graph.edges[:, rank[graph.edges[0]] < rank[graph.edges[1]]]
    depth = breadth_first(row_ptr(forward[0], n), forward[1][np.argsort(forward[0], kind="stable")])[1]
    group = np.lexsort((rank, depth))
    node = _inverse(group)
    source, target = node[forward]
    produced = csr_array((np.ones(source.size), (target, source)), shape=(n, n))
    matrices = [produced, produced.T.tocsr()] if network == "placeto" else [(produced + produced.T).tocsr()]
    level_ptr = row_ptr(depth, int(depth.max(initial=0)) + 1)
    memory = graph.weight_bytes + graph.out_bytes
    return NodeGraph(
        group=group,
        visit=node[np.argsort(rank)],
        level_ptr=level_ptr,
        all=Hearing.of(block_diag(matrices, format="csr")),
        levels=tuple(_levels(matrix, level_ptr, reverse=i > 0) for i, matrix in enumerate(matrices)) if sweep else (),
        heard=np.stack([np.diff(matrix.indptr) > 0 for matrix in matrices]).astype(np.float32),
        before=_reached(produced, range(n)),
        behind=_reached(produced.T.tocsr(), range(n - 1, -1, -1)),
        figures=np.stack([_share(x)[group] for x in (_mean_s(groups, graph), graph.out_bytes, memory)], axis=1),
    )


def _levels(matrix: csr_array, ptr: Int64, *, reverse: bool) -> tuple[Hearing, ...]:
    """Return how the nodes of each depth hear those of the depths before it, or behind it, in the order of a sweep."""
    spans = list(zip(ptr[:-1].tolist(), ptr[1:].tolist(), strict=True))
    if not reverse:
        return tuple(Hearing.of(matrix[lo:hi, :lo]) for lo, hi in spans)
    return tuple(Hearing.of(matrix[lo:hi, hi:]) for lo, hi in reversed(spans))


def _reached(produced: csr_array, order: range) -> Bits:
    """Return uint8 [n, bytes], the nodes from which paths lead to each; `order` has those it hears before a node."""
    n = produced.shape[0]
    found = np.zeros((n, -(-n // 8)), np.uint8)
    ptr, neighbour = produced.indptr.tolist(), produced.indices
    for v in order:
        near = neighbour[ptr[v] : ptr[v + 1]]
        if near.size:
            found[v] = np.bitwise_or.reduce(found[near], axis=0)
            np.bitwise_or.at(found[v], near // 8, np.left_shift(1, near % 8).astype(np.uint8))
    return found


def _mean_s(groups: Groups, graph: Graph) -> Float64:
    """Return float64 [k], mean seconds of each group over the devices that may run it; FLOPs without costs."""
    costs = groups.problem.costs
    if costs is None:
        return graph.flops
    op_s = sum_per_group(costs.op_s, groups.grouping)
    counted = groups.allowed & np.isfinite(op_s)
    mean: Float64 = np.where(counted, op_s, 0.0).sum(axis=1) / np.maximum(counted.sum(axis=1), 1)
    return mean


def _share(values: Float64 | Int64) -> Float32:
    most = max(float(values.max(initial=0)), float(np.finfo(np.float64).tiny))
    return (values / most).astype(np.float32)


def _inverse(order: Int64 | Int32) -> Int64:
    """Return int64 [n], where each node stands in an order of all."""
    rank = np.empty(order.size, np.int64)
    rank[order] = np.arange(order.size)
    return rank
