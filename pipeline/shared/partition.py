"""Partitions that several stages use: METIS, the repair of cyclic quotients, and the joining of groupings.

The one module that knows pymetis, which has no wheel for Windows.
"""

from __future__ import annotations

import heapq
import importlib.util
import logging
from functools import cache
from types import ModuleType
from typing import Literal, get_args

import numpy as np

from pipeline.core.arrays import Float64, Int32, Int64
from pipeline.core.errors import CyclicGraphError, MissingPackageError, UnknownNameError, UsageError
from pipeline.core.graph import Graph, Grouping, adjacency, components, group_edges
from pipeline.shared.cycles import strong_components

NodeCost = Literal["flops", "bytes", "count"]

HEAVY_EDGE = " Groups need it not: coarsen.metis and group.metis have others take its place."
logger = logging.getLogger(__name__)

FLOOR = 0.01  # share of the mean cost that every operation is given
WEIGHT_SUM = 2**28  # METIS may be built with 32-bit integers; its sums must stay below 2**31


def node_costs(graph: Graph, cost: NodeCost) -> Float64:
    """Return float64 [n], what each operation counts towards the balance of a partition; all are positive.

    cost: "flops", "bytes" (weights and outputs) or "count". Every operation is given 1 % of the mean on top, so that
    operations without cost of their own do not all end in one part.
    """
    if cost == "flops":
        value = graph.flops
    elif cost == "bytes":
        value = (graph.weight_bytes + graph.out_bytes).astype(np.float64)
    else:
        value = np.ones(graph.n)
    total = float(value.sum())
    return value + FLOOR * total / graph.n if total > 0 else np.ones(graph.n)


def check_node_cost(cost: str) -> None:
    """Refuse a word that is no NodeCost.

    Raises:
        UnknownNameError: there is no such cost.
    """
    if cost not in get_args(NodeCost):
        raise UnknownNameError("node weight", cost, get_args(NodeCost))


def check_parts(parts: int, balance: float) -> None:
    """Refuse fewer than one part and a balance below 1.

    Raises:
        UsageError: one of them is out of range.
    """
    if parts < 1:
        raise UsageError(f"A partition into {parts} parts was asked for.", "Set parts to 1 or more.")
    if not balance >= 1:
        raise UsageError(
            f"The balance is {balance}, the heaviest part over the mean.", "Set balance to 1 or more, for example 1.05."
        )


def metis_parts(
    graph: Graph,
    parts: int,
    *,
    node_weight: Float64,
    edge_weight: Float64 | Int64,
    balance: float,
    seed: int,
    second_weight: Float64 | None = None,
) -> Int32:
    """Return int32 [n] in [0, parts'), a METIS partition that cuts little edge weight; parts' <= parts.

    METIS sees the graph undirected and may leave parts empty; the others are renumbered by first appearance.

    node_weight: float64 [n], positive. A node heavier than a fair part counts as a fair part: no partition can
        balance it, and METIS, asked to, bisects empty graphs and says so on standard output.
    edge_weight: [m], not negative. balance: the heaviest part over the mean, 1.05 allows 5 % more.
    second_weight: float64 [n], positive, to be balanced as well. pymetis knows one constraint only, so a node counts
        with the greater of its two shares of the sums: no part holds more of either than of the combined weight.

    Raises:
        UsageError: parts or balance is out of range.
        MissingPackageError: pymetis is not installed; see `even_parts`.

    Source: Karypis and Kumar, A Fast and High Quality Multilevel Scheme for Partitioning Irregular Graphs, 1998.
    """
    check_parts(parts, balance)
    if parts >= graph.n:
        return np.arange(graph.n, dtype=np.int32)
    if parts == 1:
        return np.zeros(graph.n, dtype=np.int32)
    if second_weight is not None:
        node_weight = np.maximum(node_weight / node_weight.sum(), second_weight / second_weight.sum())
    pymetis = _import_pymetis()
    if pymetis is None:
        raise MissingPackageError("METIS partitions need", "pymetis", HEAVY_EDGE)
    ptr, neighbour, weight = _undirected_graph(graph, edge_weight)
    answer = pymetis.part_graph(
        parts,
        pymetis.CSRAdjacency(ptr, neighbour),
        vweights=_integer_weights(_clip_weights(node_weight, parts)),
        eweights=weight,
        options=pymetis.Options(seed=seed & 0x7FFFFFFF, ufactor=max(1, round(1000 * (balance - 1)))),
    )
    return Grouping.of_labels(np.asarray(answer.vertex_part, dtype=np.int64)).group


def even_parts(
    graph: Graph, parts: int, *, node_weight: Float64, edge_weight: Float64 | Int64, balance: float, seed: int
) -> Int32:
    """Return a METIS partition, see `metis_parts`; without pymetis parts of nodes that follow one another in an order.

    Such parts weigh about the same, and cut more.

    Raises:
        UsageError: parts or balance is out of range.

    Source of the order: Cuthill and McKee, Reducing the Bandwidth of Sparse Symmetric Matrices, 1969, reversed.
    """
    if has_metis() or parts == 1 or parts >= graph.n:
        return metis_parts(graph, parts, node_weight=node_weight, edge_weight=edge_weight, balance=balance, seed=seed)
    check_parts(parts, balance)
    tell_once(
        "pymetis is not installed: nodes are divided along an order of them instead of by METIS, which cuts more."
    )
    # The nodes in an order in which neighbours are close to one another
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    ptr, neighbour, weight = _undirected_graph(graph, np.ones(graph.m))
    matrix = csr_array((weight, neighbour.astype(np.int32), ptr.astype(np.int32)), (graph.n, graph.n))
    order: Int32 = reverse_cuthill_mckee(matrix, symmetric_mode=True)
    before = np.cumsum(node_weight[order]) - node_weight[order] / 2
    part = np.empty(graph.n, np.int64)
    part[order] = np.minimum(before * parts / node_weight.sum(), parts - 1)
    return Grouping.of_labels(part).group


def has_metis() -> bool:
    """Return whether pymetis is installed; it is not imported."""
    try:
        return importlib.util.find_spec("pymetis") is not None
    except (ModuleNotFoundError, ValueError):  # sys.modules holds None, or a module without a spec, in its place
        return False


def _import_pymetis() -> ModuleType | None:
    try:
        import pymetis
    except ModuleNotFoundError:
        return None
    module: ModuleType = pymetis
    return module


@cache
def tell_once(words: str) -> None:
    """Warn of something that holds for as long as the process lives, once."""
    logger.warning("%s", words)


def _undirected_graph(graph: Graph, edge_weight: Float64 | Int64) -> tuple[Int64, Int64, Int64]:
    """Return (ptr [n + 1], neighbour [2e], weight [2e]) of the graph without directions; a->b and b->a merge.

    METIS wants both directions of an edge, and positive integer weights.
    """
    low, high = np.sort(graph.edges, axis=0).astype(np.int64)
    code, which = np.unique(low * graph.n + high, return_inverse=True)
    merged: Float64 = np.bincount(which, weights=edge_weight, minlength=code.size).astype(np.float64)
    weight = _integer_weights(merged)
    source = np.concatenate([code // graph.n, code % graph.n])
    target = np.concatenate([code % graph.n, code // graph.n])
    by_source = np.argsort(source, kind="stable")
    ptr = np.zeros(graph.n + 1, dtype=np.int64)
    np.cumsum(np.bincount(source, minlength=graph.n), out=ptr[1:])
    return ptr, target[by_source], np.concatenate([weight, weight])[by_source]


def _integer_weights(weight: Float64) -> Int64:
    """Return positive int64 weights in proportion to `weight`, their sum at most WEIGHT_SUM plus their number."""
    total = float(weight.sum())
    share = weight / total if total > 0 else np.zeros_like(weight)
    return 1 + np.floor(share * WEIGHT_SUM).astype(np.int64)


def _clip_weights(weight: Float64, parts: int) -> Float64:
    """Return the weights clipped to c, the largest c that is at most a fair part of the clipped weights."""
    heaviest_first = np.sort(weight)[::-1]
    lighter: Float64 = np.cumsum(heaviest_first[::-1])[::-1]  # [n], the sum from each weight on
    # With the i heaviest clipped to c: c = (i c + lighter[i]) / parts, so c = lighter[i] / (parts - i).
    fair = lighter[:parts] / (parts - np.arange(parts))
    clip = fair[np.argmax(heaviest_first[:parts] <= fair)]  # the first i whose own weight needs no clipping
    clipped: Float64 = np.minimum(weight, clip)
    return clipped


def colocation_grouping(graph: Graph) -> Grouping:
    """Return the grouping of operations that carry equal colocation constraints; an operation without one stays
    alone.
    """
    return Grouping.of_labels(np.where(graph.colocate >= 0, graph.colocate, graph.n + np.arange(graph.n)))


def join_groupings(a: Grouping, b: Grouping) -> Grouping:
    """Return the finest grouping coarser than both: operations together in either one are together.

    >>> join_groupings(Grouping(np.array([0, 0, 1, 2])), Grouping(np.array([0, 1, 1, 2]))).group.tolist()
    [0, 0, 0, 1]
    """
    if a.n != b.n:
        raise ValueError(f"a grouping of {a.n} operations cannot be joined with one of {b.n}")
    return Grouping.of_labels(components(a.k + b.k, a.group, a.k + b.group).group[a.group])


def make_acyclic(graph: Graph, grouping: Grouping) -> Grouping:
    """Return a refinement of `grouping` whose quotient is acyclic, with few extra groups.

    Only groups on a cycle of the quotient are cut. Within a strongly connected component of the quotient the groups
    take turns: the group in turn runs every member whose producers in the component have run or run now; these
    members are one piece. The next turn goes to the group that can run the largest share of what it has left, so a
    group that can be finished is not cut further. Edges lead from earlier pieces to later ones or stay inside one,
    so the new quotient is acyclic. O((n + m) log n).

    Raises:
        CyclicGraphError: the graph itself has a cycle.
    """
    edges = group_edges(graph, grouping)[0]
    component = strong_components(grouping.k, edges)
    cyclic = np.bincount(component, minlength=grouping.k)[component] > 1  # [k]
    if not cyclic.any():
        return grouping
    zone = np.where(cyclic[grouping.group], component[grouping.group], -1)  # [n]
    label = _Turns(graph, grouping, zone).pieces()
    if np.any(label[zone >= 0] < grouping.k):
        raise CyclicGraphError(
            "The graph has a cycle, so cutting groups cannot make its quotient acyclic.",
            "Use coarseners and groupers that keep the graph acyclic, for example coarsen.metis.acyclic=true.",
        )
    return Grouping.of_labels(label)


class _Turns:
    """The state of `make_acyclic` while groups run in turns.

    zone: int64 [n], the strong component of each operation's group; -1 where the group is on no cycle.
    """

    def __init__(self, graph: Graph, grouping: Grouping, zone: Int64) -> None:
        producer, consumer = graph.edges
        inside = (zone[producer] == zone[consumer]) & (zone[producer] >= 0)
        ptr, consumers = adjacency(graph)
        self.bounds: list[int] = ptr.tolist()
        self.consumers: list[int] = consumers.tolist()
        self.zone: list[int] = zone.tolist()
        self.group: list[int] = grouping.group.tolist()
        self.waiting: list[int] = np.bincount(consumer[inside], minlength=graph.n).tolist()
        self.left: list[int] = np.bincount(grouping.group, minlength=grouping.k).tolist()
        self.runnable: list[list[int]] = [[] for _ in range(grouping.k)]
        self.queue: list[tuple[float, int, int]] = []  # (minus the share, group, number of runnable members)

    def pieces(self) -> Int64:
        """Return int64 [n], a label for every piece; below k for operations that never ran."""
        label = np.array(self.group, dtype=np.int64)
        piece = len(self.left)
        self._release([i for i, count in enumerate(self.waiting) if count == 0 and self.zone[i] >= 0])
        while self.queue:
            _, g, count = heapq.heappop(self.queue)
            if count != len(self.runnable[g]):
                continue  # the entry is stale: more members became runnable, or the group has had its turn
            label[self.runnable[g]] = piece
            piece += 1
            # Run its runnable members
            members, self.runnable[g] = self.runnable[g], []
            self.left[g] -= len(members)
            ready = []
            for i in members:
                for j in self.consumers[self.bounds[i] : self.bounds[i + 1]]:
                    if self.group[j] != g and self.zone[j] == self.zone[i]:
                        self.waiting[j] -= 1
                        if self.waiting[j] == 0:
                            ready.append(j)
            self._release(ready)
        return label

    def _release(self, ready: list[int]) -> None:
        """Make operations runnable that wait for no other group, and what waits only for them in their groups."""
        touched = sorted({self.group[i] for i in ready})
        while ready:
            i = ready.pop()
            self.runnable[self.group[i]].append(i)
            for j in self.consumers[self.bounds[i] : self.bounds[i + 1]]:
                if self.group[j] == self.group[i]:
                    self.waiting[j] -= 1
                    if self.waiting[j] == 0:
                        ready.append(j)
        for g in touched:
            count = len(self.runnable[g])
            heapq.heappush(self.queue, (-count / self.left[g], g, count))
