"""`runtime.simulators.sequential.subgraphs` in plain Python: the reference for its kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from pipeline.core.arrays import Bool, Int32, Int64
from pipeline.core.graph import Graph, Grouping, topological_order

ENTRIES = frozenset({"Parameter", "Constant"})


def split(graph: Graph, device: Int32) -> Grouping:
    """Return the sub-graphs that HETERO cuts a model's n operations into, for device int32 [n].

    Every edge between devices is a boundary, but one to a Result, which runs where its producer does; operations
    joined by other edges form a sub-graph. Where a sub-graph waits for its own result, further edges become
    boundaries: first those at which two strands meet of which only one has been through another sub-graph, and as
    long as sub-graphs still wait for one another, all edges into one operation after the other.

    graph: of the model itself, not contracted. A Constant alone on its device is a part of its own here, but no
    sub-graph: HETERO copies it to where it is read.

    Raises:
        CyclicGraphError: the graph has a cycle.
    """
    return Cutter.of(graph).split(device)


@dataclass(frozen=True, slots=True, eq=False)
class Cutter:
    """Cuts one model under many placements: what depends on the model alone is prepared once.

    order: the operations, every producer before its consumers. edges: m pairs. into: per operation its (producer,
    edge) pairs. entry: per operation whether it is a Parameter or a Constant. computes: bool [n], whether it is no
    Constant. to_result: bool [m], whether an edge ends in a Result. readers: per operation how many operations but
    Results read it.
    """

    graph: Graph
    order: list[int]
    edges: list[list[int]]
    into: list[list[tuple[int, int]]]
    entry: list[bool]
    computes: Bool
    to_result: Bool
    readers: list[int]
    out_degree: list[int]

    @classmethod
    def of(cls, graph: Graph) -> Cutter:
        """Return the cutter of a model's operations.

        Raises:
            CyclicGraphError: the graph has a cycle.
        """
        producer, consumer = graph.edges
        to_result = _of_type(graph, frozenset({"Result"}))[consumer]
        into: list[list[tuple[int, int]]] = [[] for _ in range(graph.n)]
        edges = graph.edges.T.tolist()
        for e, (a, b) in enumerate(edges):
            into[b].append((a, e))
        readers = np.bincount(producer[~to_result], minlength=graph.n).tolist()
        computes = ~_of_type(graph, frozenset({"Constant"}))
        entry = _of_type(graph, ENTRIES).tolist()
        order, out_degree = topological_order(graph).tolist(), graph.out_degree.tolist()
        return cls(graph, order, edges, into, entry, computes, to_result, readers, out_degree)

    def split(self, device: Int32) -> Grouping:
        """Return the sub-graphs of one placement, device int32 [n]; see `split`."""
        producer, consumer = self.graph.edges
        boundary = (device[producer] != device[consumer]) & ~self.to_result
        parts = _joined(self.graph, boundary)
        if not _wait_for_one_another(parts.group[producer[boundary]], parts.group[consumer[boundary]], parts.k):
            return parts
        return self._break_cycles(_Cut(self, boundary.tolist()))

    def count_by_device(self, device: Int32, p: int) -> Int64:
        """Return int64 [p], how many sub-graphs each device runs; a placement on one device is not cut at all."""
        if bool(np.all(device == device[0])):
            return np.bincount(device[:1], minlength=p)
        _, head = np.unique(self.split(device).group[self.computes], return_index=True)
        return np.bincount(device[self.computes][head], minlength=p)

    def _break_cycles(self, cut: _Cut) -> Grouping:
        while cut.promote_meeting_edges():
            pass
        while cut.isolate_one_operation():
            pass
        return cut.parts()


def _joined(graph: Graph, boundary: Bool) -> Grouping:
    """Return the parts of the model that edges other than boundaries hold together."""
    producer, consumer = graph.edges[:, ~boundary]
    links = coo_array((np.ones(producer.size, dtype=bool), (producer, consumer)), shape=(graph.n, graph.n))
    return Grouping.of_labels(connected_components(links, directed=False)[1])


def _wait_for_one_another(source: Int32, target: Int32, k: int) -> bool:
    """Return whether the edges between k parts, source to target int32 [e], close a cycle."""
    links = coo_array((np.ones(source.size, dtype=bool), (source, target)), shape=(k, k))
    return bool(np.any(source == target)) or int(connected_components(links, connection="strong")[0]) < k


def count_by_device(graph: Graph, device: Int32, p: int) -> Int64:
    """Return int64 [p], how many sub-graphs each device runs; a placement on one device is not cut at all."""
    return Cutter.of(graph).count_by_device(device, p)


def _of_type(graph: Graph, types: frozenset[str]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.array([name in types for name in graph.type_names], dtype=bool)[graph.op_type]


@dataclass(slots=True)
class _Cut:
    """The boundaries found so far, one truth value per edge."""

    model: Cutter
    boundary: list[bool]

    def parts(self) -> Grouping:
        """Return the parts as the boundaries found so far make them."""
        return _joined(self.model.graph, np.array(self.boundary, dtype=bool))

    def promote_meeting_edges(self) -> bool:
        """Make boundaries of the edges at which a strand that came back meets one that never left; say if any."""
        part = self.parts().group.tolist()
        gates = _Gates.of(self, part)
        found: list[int] = []
        for i, loops in enumerate(gates.loops):
            if loops:
                common = gates.behind_loops(i, part)
                found += [
                    e
                    for a, e in self.model.into[i]
                    if not self.boundary[e]
                    and not loops & gates.loops[a]
                    and common & gates.own[a]
                    and not self._serves_one_reader(a, gates)
                ]
        for e in found:
            self.boundary[e] = True
        return bool(found)

    def _serves_one_reader(self, i: int, gates: _Gates) -> bool:
        """Return whether an operation only prepares a constant or an input for its one reader."""
        if self.model.entry[i] or gates.loops[i] or self.model.out_degree[i] != 1:
            return False
        return all(gate.producer < 0 or self.model.entry[gate.producer] for gate in gates.listed(gates.own[i]))

    def isolate_one_operation(self) -> bool:
        """Cut one operation of sub-graphs that wait for one another off its producers; say if there was need."""
        part = self.parts().group.tolist()
        waiting = _on_cycles(
            [(part[a], part[b]) for (a, b), cut in zip(self.model.edges, self.boundary, strict=True) if cut]
        )
        ranked = [
            rank for i in range(self.model.graph.n) if part[i] in waiting and (rank := self._rank(i, part, waiting))
        ]
        if not ranked:
            return False
        for _, e in self.model.into[min(ranked)[-1]]:
            self.boundary[e] = True
        return True

    def _rank(self, i: int, part: Sequence[int], waiting: set[int]) -> tuple[int, ...]:
        """Return by what HETERO chooses the operation to isolate, the least first and i last; () if it cannot be."""
        inner = [a for a, e in self.model.into[i] if not self.boundary[e]]
        if not inner:
            return ()
        comes_back = any(self.boundary[e] and part[a] != part[i] and part[a] in waiting for a, e in self.model.into[i])
        shares = any(self.model.readers[a] > 1 for a in inner)
        prepared = any(
            not self.model.entry[a]
            and self.model.readers[a] == 1
            and all(self.model.entry[b] for b, _ in self.model.into[a])
            for a in inner
        )
        linear = len(inner) == 1 and self.model.readers[i] <= 1
        return (not comes_back, not shares, prepared, linear, len(inner), i)


@dataclass(frozen=True, slots=True)
class _Gate:
    """A way into a sub-graph: a boundary edge, or with producer -1 a Parameter or Constant, its consumer."""

    producer: int
    consumer: int


@dataclass(slots=True)
class _Gates:
    """All gates, and bit sets over them per operation.

    own: gates into the operation's sub-graph that it depends on. loops: gates out of the operation's sub-graph that
    it depends on, so that it waits for a result of its own sub-graph.
    """

    gates: list[_Gate]
    own: list[int]
    loops: list[int]

    @classmethod
    def of(cls, cut: _Cut, part: Sequence[int]) -> _Gates:
        gates: list[_Gate] = []
        bit_of_entry, bit_of_edge = [0] * len(part), [0] * len(cut.model.edges)
        into, out_of = [0] * len(part), [0] * len(part)  # gates of each sub-graph
        for i in range(len(part)):
            if cut.model.entry[i]:
                bit_of_entry[i] = 1 << len(gates)
                into[part[i]] |= bit_of_entry[i]
                gates.append(_Gate(-1, i))
        for e, (a, b) in enumerate(cut.model.edges):
            if cut.boundary[e]:
                bit_of_edge[e] = 1 << len(gates)
                into[part[b]] |= bit_of_edge[e]
                out_of[part[a]] |= bit_of_edge[e]
                gates.append(_Gate(a, b))
        passed = bit_of_entry  # gates that each operation depends on
        for i in cut.model.order:
            for a, e in cut.model.into[i]:
                passed[i] |= passed[a] | bit_of_edge[e]
        own = [gone & into[k] for gone, k in zip(passed, part, strict=True)]
        return cls(gates, own, [gone & out_of[k] for gone, k in zip(passed, part, strict=True)])

    def listed(self, bits: int) -> Iterator[_Gate]:
        while bits:
            lowest = bits & -bits
            yield self.gates[lowest.bit_length() - 1]
            bits ^= lowest

    def behind_loops(self, i: int, part: Sequence[int]) -> int:
        """Return the gates that lie behind those through which i's sub-graph is left and entered again."""
        found = 0
        for gate in self.listed(self.loops[i]):
            found |= self.own[gate.producer]
        for gate in self.listed(self.own[i]):
            if gate.producer >= 0 and part[gate.producer] != part[i]:
                found |= self.own[gate.consumer]
        return found


def _on_cycles(edges: Sequence[tuple[int, int]]) -> set[int]:
    """Return the nodes of a directed graph that lie on a cycle of two or more nodes."""
    reach: dict[int, int] = {}
    for a, b in edges:
        if a != b:
            reach[a] = reach.get(a, 0) | 1 << b
    for middle in list(reach):
        for a in reach:
            if reach[a] >> middle & 1:
                reach[a] |= reach[middle]
    return {a for a in reach if reach[a] >> a & 1}
