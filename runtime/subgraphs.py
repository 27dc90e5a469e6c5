"""How many sub-graphs HETERO makes of a placement.

Source: the subgraph collector of OpenVINO's HETERO plug-in as of release 2026.4. Older releases cut some placements
into fewer sub-graphs, or fail on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.core.arrays import Int32, Int64
from pipeline.core.graph import Graph, Grouping, components, topological_order

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
    cut = _Cut.start(graph, device)
    while cut.promote_meeting_edges():
        pass
    while cut.isolate_one_operation():
        pass
    return cut.parts()


def count_by_device(graph: Graph, device: Int32, p: int) -> Int64:
    """Return int64 [p], how many sub-graphs each device runs; a placement on one device is not cut at all."""
    if bool(np.all(device == device[0])):
        return np.bincount(device[:1], minlength=p)
    computes = ~_of_type(graph, frozenset({"Constant"}))
    _, head = np.unique(split(graph, device).group[computes], return_index=True)
    return np.bincount(device[computes][head], minlength=p)


def _of_type(graph: Graph, types: frozenset[str]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.array([name in types for name in graph.type_names], dtype=bool)[graph.op_type]


@dataclass(slots=True)
class _Cut:
    """The boundaries found so far.

    order: the operations, every producer before its consumers. edges: m pairs. into: per operation its (producer,
    edge) pairs. entry: per operation whether it is a Parameter or a Constant. readers: per operation how many
    operations but Results read it. boundary: per edge.
    """

    graph: Graph
    order: list[int]
    edges: list[list[int]]
    into: list[list[tuple[int, int]]]
    entry: list[bool]
    readers: list[int]
    boundary: list[bool]

    @classmethod
    def start(cls, graph: Graph, device: Int32) -> _Cut:
        producer, consumer = graph.edges
        to_result = _of_type(graph, frozenset({"Result"}))[consumer]
        into: list[list[tuple[int, int]]] = [[] for _ in range(graph.n)]
        edges = graph.edges.T.tolist()
        for e, (a, b) in enumerate(edges):
            into[b].append((a, e))
        boundary = (device[producer] != device[consumer]) & ~to_result
        readers = np.bincount(producer[~to_result], minlength=graph.n)
        order = topological_order(graph).tolist()
        return cls(graph, order, edges, into, _of_type(graph, ENTRIES).tolist(), readers.tolist(), boundary.tolist())

    def parts(self) -> Grouping:
        inner = ~np.array(self.boundary, dtype=bool)
        return components(self.graph.n, self.graph.edges[0][inner], self.graph.edges[1][inner])

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
                    for a, e in self.into[i]
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
        if self.entry[i] or gates.loops[i] or int(self.graph.out_degree[i]) != 1:
            return False
        return all(gate.producer < 0 or self.entry[gate.producer] for gate in gates.listed(gates.own[i]))

    def isolate_one_operation(self) -> bool:
        """Cut one operation of sub-graphs that wait for one another off its producers; say if there was need."""
        part = self.parts().group.tolist()
        waiting = _on_cycles([(part[a], part[b]) for (a, b), cut in zip(self.edges, self.boundary, strict=True) if cut])
        ranked = [rank for i in range(self.graph.n) if part[i] in waiting and (rank := self._rank(i, part, waiting))]
        if not ranked:
            return False
        for _, e in self.into[min(ranked)[-1]]:
            self.boundary[e] = True
        return True

    def _rank(self, i: int, part: Sequence[int], waiting: set[int]) -> tuple[int, ...]:
        """Return by what HETERO chooses the operation to isolate, the least first and i last; () if it cannot be."""
        inner = [a for a, e in self.into[i] if not self.boundary[e]]
        if not inner:
            return ()
        comes_back = any(self.boundary[e] and part[a] != part[i] and part[a] in waiting for a, e in self.into[i])
        shares = any(self.readers[a] > 1 for a in inner)
        prepared = any(
            not self.entry[a] and self.readers[a] == 1 and all(self.entry[b] for b, _ in self.into[a]) for a in inner
        )
        linear = len(inner) == 1 and self.readers[i] <= 1
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
        bit_of_entry, bit_of_edge = [0] * len(part), [0] * len(cut.edges)
        into, out_of = [0] * len(part), [0] * len(part)  # gates of each sub-graph
        for i in range(len(part)):
            if cut.entry[i]:
                bit_of_entry[i] = 1 << len(gates)
                into[part[i]] |= bit_of_entry[i]
                gates.append(_Gate(-1, i))
        for e, (a, b) in enumerate(cut.edges):
            if cut.boundary[e]:
                bit_of_edge[e] = 1 << len(gates)
                into[part[b]] |= bit_of_edge[e]
                out_of[part[a]] |= bit_of_edge[e]
                gates.append(_Gate(a, b))
        passed = bit_of_entry  # gates that each operation depends on
        for i in cut.order:
            for a, e in cut.into[i]:
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
