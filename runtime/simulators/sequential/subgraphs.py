"""How many sub-graphs HETERO makes of a placement.

Source: the subgraph collector of OpenVINO's HETERO plug-in as of release 2026.4. Older releases cut some placements
into fewer sub-graphs, or fail on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.core.arrays import Bool, Int32, Int64
from pipeline.core.graph import Graph, Grouping, Number, components, row_ptr, topological_order
from runtime.simulators.sequential import cuts
from runtime.simulators.sequential.breaking import (
    BLURRED,
    CONSTANTS,
    ENTRY,
    FIRST,
    FLAGS_BIT,
    FROM_ENTRY,
    INTO,
    INTO_PTR,
    LENGTH_BIT,
    NEVER,
    ONLY,
    ORDER,
    PREPARED,
    PRODUCER,
    SHARES,
    SINGLE,
    SUPPLIES,
    TO_RESULT,
    UNIT,
    MergedNodes,
    component_graph_of,
)
from runtime.simulators.sequential.parts import room_of

CONSTANT, RESULT = frozenset({"Constant"}), frozenset({"Result"})
ENTRIES = CONSTANT | {"Parameter"}


def merged(graph: Graph, unit: Int32, *, chains: bool = False, supplies: bool = True) -> MergedNodes:
    """Return the nodes of a model whose operations, unit int32 [n], share a sub-graph with those of equal number.

    supplies: whether those are no nodes: a Constant with one reader is a supply of it, and so is what computes for one
    reader from such Constants alone. No cycle leads through them, and isolating them changes no count.
    chains: whether an operation that reads one other, supplies aside, joins that one's node: a cycle that comes back to
    the one comes back to the other. Only isolating it would part them, whence the rank of the node.

    Raises:
        CyclicGraphError: the graph has a cycle.
    """
    producer, consumer = graph.edges
    constant, entry = of_type(graph, CONSTANT), of_type(graph, ENTRIES)
    to_result = of_type(graph, RESULT)[consumer]
    readers = np.bincount(producer[~to_result], minlength=graph.n)
    from_others = np.bincount(consumer[~entry[producer]], minlength=graph.n) > 0
    facts = _Facts(constant, entry, to_result, readers, ~entry & (readers == 1) & ~from_others)
    close = unit[producer] == unit[consumer]
    # A Result elsewhere than its producer would have to be told from supplies where the first of a part is looked for.
    close &= bool(np.all(close[facts.to_result]))
    supply = _supplies(graph, facts, close & supplies)
    parent = _parents(graph, close & chains, supply)
    head = parent == np.arange(graph.n)
    node = (np.cumsum(head) - 1)[parent].astype(np.int32)
    ends = np.flatnonzero(head[consumer] & ~supply[producer])
    k = int(head.sum())
    constants, others = (
        np.bincount(consumer[which[producer]], minlength=graph.n)
        for which in (supply & facts.constant, supply & ~facts.constant)
    )
    supplied = constants + others > 0
    behind = ~head & ~supply
    blurred, rank, first = np.zeros(k, bool), np.full(k, NEVER), np.full(k, graph.n, np.int32)
    blurred[node[behind & supplied]] = True
    np.minimum.at(rank, node[behind], _rank_inside(graph, facts)[behind])
    np.minimum.at(first, node, np.where(facts.constant, graph.n, np.arange(graph.n)).astype(np.int32))
    order = topological_order(graph)
    entry = facts.entry | supplied
    from_entry = facts.entry[producer[ends]]
    of_edges = {
        PRODUCER: node[producer[ends]],
        INTO: np.argsort(node[consumer[ends]], kind="stable"),
        TO_RESULT: facts.to_result[ends],
        FROM_ENTRY: from_entry,
        SHARES: facts.readers[producer[ends]] > 1,
        PREPARED: facts.prepares[producer[ends]],
        ONLY: ~from_entry & (graph.out_degree[producer[ends]] == 1),
    }
    of_nodes = {
        ORDER: node[order[head[order]]],
        INTO_PTR: row_ptr(node[consumer[ends]], k),
        UNIT: unit[head],
        FIRST: first,
        ENTRY: entry[head],
        SINGLE: facts.readers[head] <= 1,
        CONSTANTS: constants[head],
        SUPPLIES: others[head],
        BLURRED: blurred & ~entry[head],
    }
    return MergedNodes(_rows(of_edges, ends.size), _rows(of_nodes, k + 1), rank)


def _rows(values: Mapping[int, npt.NDArray[Number]], width: int) -> Int32:
    """Return int32 [r, width], each row with the values of its number, which may be fewer."""
    rows = np.zeros((len(values), width), np.int32)
    for row, of_row in values.items():
        rows[row, : of_row.size] = of_row
    return rows


class _Facts(NamedTuple):
    """What is known of n operations and m edges: the types, how many operations but Results read each, and so on."""

    constant: Bool
    entry: Bool
    to_result: Bool
    readers: Int64
    prepares: Bool


def of_type(graph: Graph, types: frozenset[str]) -> Bool:
    """Return bool [n], whether each operation is of one of some types."""
    flags: Bool = np.array([name in types for name in graph.type_names], dtype=bool)[graph.op_type]
    return flags


def _supplies(graph: Graph, facts: _Facts, close: Bool) -> Bool:
    """Return bool [n], which operations are supplies; close: bool [m], edges that may be merged."""
    producer, consumer = graph.edges
    one = np.zeros(graph.n, bool)
    one[producer[close & ~facts.to_result]] = True
    one &= graph.out_degree == 1
    others = np.bincount(consumer[~(facts.constant & one)[producer]], minlength=graph.n)
    supplies: Bool = one & (facts.constant | (facts.prepares & (others == 0)))
    return supplies


def _parents(graph: Graph, close: Bool, supply: Bool) -> Int64:
    """Return int64 [n], the head of the node that each operation belongs to, of lower number unless of a supply."""
    producer, consumer = graph.edges
    parent = np.arange(graph.n)
    parent[producer[supply[producer]]] = consumer[supply[producer]]
    producer, consumer = graph.edges[:, ~supply[producer]]
    joins = (np.bincount(consumer, minlength=graph.n)[consumer] == 1) & close[~supply[graph.edges[0]]]
    joins &= producer < consumer
    parent[consumer[joins]] = producer[joins]
    while np.any(parent[parent] != parent):
        parent = parent[parent]
    return parent


def _rank_inside(graph: Graph, facts: _Facts) -> Int64:
    """Return int64 [n], the rank of each operation while no boundary leads to it; see `breaking.rank_operations`."""
    producer, consumer = graph.edges
    inner = np.bincount(consumer, minlength=graph.n)
    shares = np.bincount(consumer[facts.readers[producer] > 1], minlength=graph.n) > 0
    prepared = np.bincount(consumer[facts.prepares[producer]], minlength=graph.n) > 0
    linear = (inner == 1) & (facts.readers <= 1)
    flags = 8 + 4 * ~shares + 2 * prepared + linear
    rank: Int64 = np.where(inner > 0, (flags.astype(np.int64) << FLAGS_BIT) + (inner << LENGTH_BIT), NEVER)
    return rank


REMEMBERED = 16384  # sets of sub-graphs on cycles whose counts are kept, a power of two


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

    graph: the model. model: its n operations in u units. unit: int32 [n]. member: int64 [u], an operation of each unit.
    """

    graph: Graph
    model: cuts.CutModel
    unit: Int32
    member: Int64

    @classmethod
    def of(cls, graph: Graph, node: Int32 | None = None) -> Cutter:
        """Return the cutter of a model's n operations.

        node: int32 [n], operations of equal number are never put on different devices; None promises nothing.

        Raises:
            CyclicGraphError: the graph has a cycle.
        """
        producer, consumer = graph.edges
        to_result = of_type(graph, RESULT)[consumer]
        together = np.zeros(graph.m, bool) if node is None else node[producer] == node[consumer]
        units = components(graph.n, producer[together], consumer[together])
        # the different edges between units; boundaries are found for each placement
        ends = np.stack(
            [units.group[producer[~together]], units.group[consumer[~together]], to_result[~together].astype(np.int32)]
        )
        source, target, result = np.unique(ends, axis=1)
        links = np.stack([source, target, np.zeros_like(source), result])  # boundaries are found for each placement
        few, each = merged(graph, units.group, chains=True), merged(graph, units.group)
        first = np.full(units.k, graph.n, np.int32)
        computing = np.where(of_type(graph, CONSTANT), graph.n, np.arange(graph.n)).astype(np.int32)
        np.minimum.at(first, units.group, computing)
        _, member = np.unique(units.group, return_index=True)
        return cls(graph, cuts.CutModel(links, first, few, each), units.group.copy(), member)

    def counter(self, p: int) -> cuts.Counter:
        """Return what counts the sub-graphs of the model on p devices."""
        code = np.random.default_rng(0).integers(1, 2**64, (self.member.size, p), np.uint64)
        memo = cuts.Memo(code, np.zeros(REMEMBERED, np.uint64), np.zeros((REMEMBERED, p), np.int64))
        units = self.member.size
        workspace = cuts.Workspace(
            facts=np.zeros((cuts.AT + 1, self.graph.n + 1), np.int32),
            parts=np.zeros((cuts.PARTS + 1, p), np.int64),
            keys=np.zeros(units, np.uint64),
            room=room_of(units, self.model.links.shape[1]),
            piece=component_graph_of(self.graph.n, self.graph.m),
            boundary=np.zeros(self.graph.m, bool),
            stop=np.zeros(1, np.int64),
        )
        return cuts.Counter(self.model, workspace, memo)

    def split(self, device: Int32, stop: Int64 | None = None) -> Grouping:
        """Return the sub-graphs of one placement, device int32 [n]; see `split`.

        stop: int64 [1], which another thread sets to a number other than 0 to end it; what is returned then is of no
        use.
        """
        every, p = merged(self.graph, self.unit, supplies=False), int(device.max(initial=0)) + 1
        counter = self.counter(p)  # a new one remembers no component, and so breaks them all
        boundary = counter.workspace.boundary
        producer, consumer = self.graph.edges
        boundary[:] = (device[producer] != device[consumer]) & (every.edges[TO_RESULT] == 0)
        workspace = counter.workspace if stop is None else counter.workspace._replace(stop=stop)
        counter = counter._replace(model=self.model._replace(few=every, each=every), workspace=workspace)
        cuts.count(
            counter, np.array(device[self.member], np.int32)[None], np.zeros((1, p), np.int64), cuts.unbounded(p)
        )
        inner = self.graph.edges[:, ~boundary]
        return components(self.graph.n, inner[0], inner[1])

    def count_by_device(self, device: Int32, p: int) -> Int64:
        """Return int64 [p], how many sub-graphs each device runs; a placement on one device is not cut at all."""
        counts = np.zeros(p, np.int64)
        cuts.count(self.counter(p), np.array(device[self.member], np.int32)[None], counts[None], cuts.unbounded(p))
        return counts


def count_by_device(graph: Graph, device: Int32, p: int) -> Int64:
    """Return int64 [p], how many sub-graphs each device runs; a placement on one device is not cut at all."""
    return Cutter.of(graph).count_by_device(device, p)
