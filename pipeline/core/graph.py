"""The computation graph, groupings of its operations, and the smaller graph that a grouping makes."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from pipeline.core.arrays import Bool, Float64, Int32, Int64, frozen, frozen_indices
from pipeline.core.errors import CyclicGraphError
from pipeline.core.tensors import INFERRED, Reads, edges_of, inferred

Number = TypeVar("Number", bound=np.generic)

SOURCES = frozenset({"Parameter", "ReadValue", "RandomUniform", "Multinomial"})  # their values differ per inference


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A directed acyclic graph of n operations and m edges, along each of which one tensor flows, or several.

    names: n unique operation names, exactly as in the model: the only identity that leaves the process.
    op_type: int16 [n], index into type_names.
    edges: int32 [2, m], row 0 the producer, row 1 the consumer; sorted by (producer, consumer), unique, no loops.
    flops: float64 [n], floating point operations of one inference; a multiply-add counts 2.
    weight_bytes, out_bytes: int64 [n], bytes of constants held and of all tensors produced, each counted once.
    edge_bytes: int64 [m], bytes that flow along the edge in one inference; 0 behind constants.
    shape_ptr, shape_dim: int64 [n + 1] and int64 [...], shapes of the first outputs; -1 is a dynamic dimension.
    colocate: int32 [n], operations of equal number must run in one sub-model (state, quantisation); -1 is free.
    kernel: int32 [n], operations of equal number are run as one kernel by the CPU runtime; -1 is unknown.
    source: sha256 of the model the graph was read from.
    reads: which tensors flow along the edges; what is sent is counted by them, each tensor once per receiver.
    """

    names: tuple[str, ...]
    op_type: np.ndarray[tuple[int], np.dtype[np.int16]]
    type_names: tuple[str, ...]
    edges: Int32
    flops: Float64
    weight_bytes: Int64
    out_bytes: Int64
    edge_bytes: Int64
    shape_ptr: Int64
    shape_dim: Int64
    colocate: Int32
    kernel: Int32
    source: str = ""
    reads: Reads = INFERRED

    def __post_init__(self) -> None:
        n, m = len(self.names), np.shape(self.edges)[-1] if np.size(self.edges) else 0
        if len(set(self.names)) != n:
            raise ValueError("operation names must be unique")
        put = object.__setattr__
        put(self, "op_type", frozen(self.op_type, np.int16, (n,), "op_type"))
        if n and (self.op_type.min() < 0 or self.op_type.max() >= len(self.type_names)):
            raise ValueError("op_type must index type_names")
        put(self, "edges", frozen_indices(np.reshape(self.edges, (2, m)), (2, m), n, "edges"))
        for name, dtype, length in (
            ("flops", np.float64, n),
            ("weight_bytes", np.int64, n),
            ("out_bytes", np.int64, n),
            ("edge_bytes", np.int64, m),
            ("shape_ptr", np.int64, n + 1),
            ("shape_dim", np.int64, None),
        ):
            put(self, name, frozen(getattr(self, name), dtype, (length,), name))
        put(self, "colocate", frozen_indices(self.colocate, (n,), max(n, 1), "colocate", lower=-1))
        put(self, "kernel", frozen_indices(self.kernel, (n,), max(n, 1), "kernel", lower=-1))
        self._check_values()
        if self.reads is INFERRED:
            put(self, "reads", inferred(self.edges[0], self.edge_bytes, self.out_bytes))
        else:
            self.reads.check(self.edge_bytes)

    def _check_values(self) -> None:
        producer, consumer = self.edges
        if np.any(producer == consumer):
            raise ValueError("edges must not be loops")
        code = producer.astype(np.int64) * max(self.n, 1) + consumer
        if np.any(np.diff(code) <= 0):
            raise ValueError("edges must be unique and sorted by (producer, consumer)")
        for name in ("flops", "weight_bytes", "out_bytes", "edge_bytes"):
            value = getattr(self, name)
            if value.size and (not np.all(np.isfinite(value)) or value.min() < 0):
                raise ValueError(f"{name} must be finite and not negative")
        if self.shape_ptr[0] != 0 or np.any(np.diff(self.shape_ptr) < 0) or self.shape_ptr[-1] != self.shape_dim.size:
            raise ValueError("shape_ptr must rise from 0 to the length of shape_dim")

    @property
    def n(self) -> int:
        """Return the number of operations."""
        return len(self.names)

    @property
    def m(self) -> int:
        """Return the number of edges."""
        return int(self.edges.shape[1])

    def shape(self, operation: int) -> tuple[int, ...]:
        """Return the shape of the first output of one operation, -1 for a dynamic dimension."""
        return tuple(int(d) for d in self.shape_dim[self.shape_ptr[operation] : self.shape_ptr[operation + 1]])

    def read_rows(self) -> Iterator[tuple[int, int, int, int]]:
        """Return (producer, consumer, tensor, bytes) of every read, in their order."""
        ends = self.edges[:, self.reads.edge].tolist()
        return zip(*ends, self.reads.tensor.tolist(), self.reads.size.tolist(), strict=True)

    @property
    def in_degree(self) -> Int64:
        """Return int64 [n], the number of edges that end in each operation."""
        return np.bincount(self.edges[1], minlength=self.n)

    @property
    def out_degree(self) -> Int64:
        """Return int64 [n], the number of edges that start in each operation."""
        return np.bincount(self.edges[0], minlength=self.n)


@dataclass(frozen=True, slots=True, eq=False)
class Grouping:
    """Which of k groups each of n operations belongs to.

    group: int32 [n] in [0, k); no group is empty.
    """

    group: Int32
    k: int = field(init=False)

    def __post_init__(self) -> None:
        group = np.asarray(self.group)
        k = int(group.max()) + 1 if group.size else 0
        object.__setattr__(self, "group", frozen_indices(group, (None,), k, "group"))
        if np.any(np.bincount(group, minlength=k) == 0):
            raise ValueError("a grouping must not have empty groups")
        object.__setattr__(self, "k", k)

    @classmethod
    def of_labels(cls, labels: np.ndarray[tuple[int], np.dtype[np.integer]]) -> Grouping:
        """Return the grouping in which operations of equal label share a group, numbered by first appearance.

        >>> Grouping.of_labels(np.array([7, 3, 7])).group.tolist()
        [0, 1, 0]
        """
        _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
        rank = np.empty(first.size, dtype=np.int32)
        rank[np.argsort(first, kind="stable")] = np.arange(first.size, dtype=np.int32)
        return cls(rank[inverse])

    @classmethod
    def identity(cls, n: int) -> Grouping:
        """Return the grouping that leaves every operation alone."""
        return cls(np.arange(n, dtype=np.int32))

    @property
    def is_identity(self) -> bool:
        """Return whether every operation is alone in the group of its own number."""
        return self.k == self.n and bool(np.array_equal(self.group, np.arange(self.n)))

    @property
    def n(self) -> int:
        """Return the number of operations grouped."""
        return int(self.group.size)

    def then(self, coarser: Grouping) -> Grouping:
        """Return this grouping followed by `coarser`, a grouping of this one's k groups."""
        if coarser.n != self.k:
            raise ValueError(f"a grouping of {coarser.n} groups cannot follow one into {self.k}")
        return Grouping(coarser.group[self.group])


def components(n: int, a: Int32, b: Int32) -> Grouping:
    """Return the connected components of n nodes joined by the undirected pairs (a[i], b[i])."""
    label = np.arange(n)
    while True:
        low, high = np.minimum(label[a], label[b]), np.maximum(label[a], label[b])
        if np.array_equal(low, high):
            return Grouping.of_labels(label)
        np.minimum.at(label, high, low)  # the greater label of a pair follows the smaller one
        while np.any(label != (further := label[label])):
            label = further


def makers(graph: Graph) -> Int32:
    """Return int32 [t], the operation that makes each of the tensors that are read."""
    maker = np.empty(graph.reads.t, np.int32)
    maker[graph.reads.tensor] = graph.edges[0, graph.reads.edge]
    return maker


def row_ptr(row: Int32 | Int64, k: int) -> Int64:
    """Return int64 [k + 1], where the entries of each of k rows begin once they are sorted by row.

    >>> row_ptr(np.array([0, 2, 2]), 3).tolist()
    [0, 1, 1, 3]
    """
    ptr = np.zeros(k + 1, dtype=np.int64)
    np.cumsum(np.bincount(row, minlength=k), out=ptr[1:])
    return ptr


def adjacency(graph: Graph, *, reverse: bool = False) -> tuple[Int64, Int32]:
    """Return (ptr, neighbour): the consumers of operation i are neighbour[ptr[i]:ptr[i + 1]]; producers if `reverse`.

    ptr: int64 [n + 1]; neighbour: int32 [m].
    """
    source, target = (graph.edges[1], graph.edges[0]) if reverse else (graph.edges[0], graph.edges[1])
    return row_ptr(source, graph.n), target[np.argsort(source, kind="stable")]


def topological_order(graph: Graph) -> Int32:
    """Return int32 [n], the operations in an order in which every producer precedes its consumers.

    Among ready operations the one with the smallest index comes first.

    Raises:
        CyclicGraphError: the graph has a cycle; the message names operations on it.
    """
    ptr, consumers = adjacency(graph)
    bounds, consumer_list = ptr.tolist(), consumers.tolist()
    waiting = graph.in_degree.tolist()
    ready = [i for i, count in enumerate(waiting) if count == 0]
    order: list[int] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for j in consumer_list[bounds[i] : bounds[i + 1]]:
            waiting[j] -= 1
            if waiting[j] == 0:
                heapq.heappush(ready, j)
    if len(order) < graph.n:
        stuck = [graph.names[i] for i, count in enumerate(waiting) if count > 0]
        raise CyclicGraphError(
            f"The graph has a cycle through or before {', '.join(stuck[:5])}{' ...' if len(stuck) > 5 else ''}.",
            "Use a grouping that keeps the graph acyclic, for example coarsen.metis.acyclic=true.",
        )
    return np.array(order, dtype=np.int32)


def is_acyclic(graph: Graph) -> bool:
    """Return whether the graph has a topological order."""
    try:
        topological_order(graph)
    except CyclicGraphError:
        return False
    return True


def weight_side(graph: Graph) -> Bool:
    """Return bool [n], whether each operation is computed from constants alone."""
    types = np.array(graph.type_names)[graph.op_type]
    reached = np.isin(types, list(SOURCES)) | ((graph.in_degree == 0) & (types != "Constant"))
    ptr, consumers = adjacency(graph)
    bounds, consumer_list = ptr.tolist(), consumers.tolist()
    front = np.flatnonzero(reached).tolist()
    while front:
        i = front.pop()
        for j in consumer_list[bounds[i] : bounds[i + 1]]:
            if not reached[j]:
                reached[j] = True
                front.append(j)
    side: Bool = ~reached
    return side


def leaders(graph: Graph) -> Int32:
    """Return int32 [n], the operation on whose device each operation runs: itself, or the one that it follows.

    Inputs, and what is computed from constants alone, follow their first reader; a Result follows its producer. Where
    groups close a cycle of such operations, the last of them before it closes is its leader.
    """
    kind = np.array(graph.type_names)[graph.op_type]
    leader = np.arange(graph.n, dtype=np.int32)
    moves = weight_side(graph) | (kind == "Parameter")
    if moves.any():
        ptr, consumers = adjacency(graph)
        first = {
            i: int(consumers[ptr[i] : ptr[i + 1]].min()) for i in np.flatnonzero(moves).tolist() if ptr[i] < ptr[i + 1]
        }
        known: dict[int, int] = {}
        for i in first:
            followed = dict.fromkeys((i,))  # in the order in which they follow one another
            last = i
            while last in first and last not in known and first[last] not in followed:
                last = first[last]
                followed[last] = None
            known |= dict.fromkeys(followed.keys() & first.keys(), known.get(last, last))
        leader[list(known)] = list(known.values())
    ptr, producers = adjacency(graph, reverse=True)
    for i in np.flatnonzero((kind == "Result") & (graph.in_degree > 0)).tolist():
        leader[i] = leader[producers[ptr[i]]]
    return leader


def group_edges(graph: Graph, grouping: Grouping) -> tuple[Int32, Int64, Reads]:
    """Return the edges between different groups, int32 [2, e] sorted and unique, their bytes, int64 [e], and reads.

    A tensor that several operations of one group read is read once, as much of it as the one that reads most.
    """
    source, target = grouping.group[graph.edges[:, graph.reads.edge]].astype(np.int64)
    cut = source != target
    source, tensor = source[cut], graph.reads.tensor[cut]
    sent, which = np.unique(source * max(graph.reads.t, 1) + tensor, return_inverse=True)
    home = sent // max(graph.reads.t, 1)
    port = np.arange(sent.size) - row_ptr(home, grouping.k)[home]  # the tensors that leave a group, in order
    return edges_of(source, target[cut], port[which], graph.reads.size[cut])


def sum_per_group(values: npt.NDArray[Number], grouping: Grouping) -> npt.NDArray[Number]:
    """Return values [n, ...] added up over each group, [k, ...]."""
    total = np.zeros((grouping.k, *values.shape[1:]), dtype=values.dtype)
    np.add.at(total, grouping.group, values)
    return total


def contract(graph: Graph, grouping: Grouping) -> Graph:
    """Return the quotient graph: one operation per group, FLOPs and bytes added up.

    A group takes name, type and shape of its head: of its members off the weight side, if it has any, and that are
    neither Constant nor Result, if it has any, the one with the most FLOPs; then one whose output leaves the group, the
    one with the most output bytes, the smallest index. Edges inside a group vanish, parallel edges merge, their tensors
    stay apart, and a tensor sent twice to one group counts once. Groups that share a colocation constraint through
    their members carry one; a group's kernel is that of its first member, in the order above, that has one. An
    arbitrary grouping can make the quotient cyclic: this function allows it, `topological_order` does not.
    """
    if grouping.n != graph.n:
        raise ValueError(f"a grouping of {grouping.n} operations does not fit a graph of {graph.n}")
    by_rank = _members_by_rank(graph, grouping)
    head = by_rank[np.searchsorted(grouping.group[by_rank], np.arange(grouping.k))]
    edges, edge_bytes, reads = group_edges(graph, grouping)
    lengths = np.diff(graph.shape_ptr)[head]
    ptr = np.concatenate([[0], np.cumsum(lengths)])
    within = np.arange(ptr[-1]) - np.repeat(ptr[:-1], lengths)
    return Graph(
        names=tuple(graph.names[i] for i in head),
        op_type=graph.op_type[head],
        type_names=graph.type_names,
        edges=edges,
        flops=sum_per_group(graph.flops, grouping),
        weight_bytes=sum_per_group(graph.weight_bytes, grouping),
        out_bytes=sum_per_group(np.where(_leaves(graph, grouping), graph.out_bytes, 0), grouping),
        edge_bytes=edge_bytes,
        shape_ptr=ptr,
        shape_dim=graph.shape_dim[np.repeat(graph.shape_ptr[head], lengths) + within],
        colocate=_group_constraints(graph, grouping),
        kernel=_group_kernels(graph, grouping, by_rank),
        source=graph.source,
        reads=reads,
    )


def _members_by_rank(graph: Graph, grouping: Grouping) -> Int64:
    """Return int64 [n], the operations sorted by group and, in each group, from its head to its least member."""
    idle = np.isin(np.array(graph.type_names)[graph.op_type], ("Constant", "Result"))
    stays = ~_leaves(graph, grouping)
    index = np.arange(graph.n)
    keys = (index, -graph.out_bytes, stays, -graph.flops, idle, weight_side(graph), grouping.group)
    order: Int64 = np.lexsort(keys)  # the last key counts first
    return order


def _group_constraints(graph: Graph, grouping: Grouping) -> Int32:
    """Return int32 [k], equal for groups whose members are colocated, directly or through other groups; -1 is free."""
    held = np.flatnonzero(graph.colocate >= 0)
    group = grouping.group[held]
    joined = components(grouping.k + graph.n, group, grouping.k + graph.colocate[held]).group
    colocate = np.full(grouping.k, -1, np.int32)
    colocated = np.unique(group)
    colocate[colocated] = np.unique(joined[colocated], return_inverse=True)[1]
    return colocate


def _group_kernels(graph: Graph, grouping: Grouping, by_rank: Int64) -> Int32:
    """Return int32 [k], the kernel of each group's first member that has one; by_rank sorts the members by group."""
    known = by_rank[graph.kernel[by_rank] >= 0]
    group, first = np.unique(grouping.group[known], return_index=True)
    kernel = np.full(grouping.k, -1, np.int32)
    kernel[group] = np.unique(graph.kernel[known[first]], return_inverse=True)[1]
    return kernel


def _leaves(graph: Graph, grouping: Grouping) -> Bool:
    """Return bool [n], whether each operation's output leaves its group; one without consumers counts."""
    producer, consumer = graph.edges
    leaves: Bool = graph.out_degree == 0
    leaves[producer[grouping.group[producer] != grouping.group[consumer]]] = True
    return leaves
