"""How many sub-graphs HETERO makes of a placement.

Source: the subgraph collector of OpenVINO's HETERO plug-in as of release 2026.4. Older releases cut some placements
into fewer sub-graphs, or fail on them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.core.arrays import Int32, Int64
from pipeline.core.graph import Graph, Grouping, components
from runtime.simulators.sequential import cuts
from runtime.simulators.sequential.breaking import TO_RESULT, component_graph_of
from runtime.simulators.sequential.merging import CONSTANT, RESULT, merged, of_type
from runtime.simulators.sequential.parts import room_of

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

    def split(self, device: Int32) -> Grouping:
        """Return the sub-graphs of one placement, device int32 [n]; see `split`."""
        every, p = merged(self.graph, self.unit, supplies=False), int(device.max(initial=0)) + 1
        counter = self.counter(p)  # a new one remembers no component, and so breaks them all
        boundary = counter.workspace.boundary
        producer, consumer = self.graph.edges
        boundary[:] = (device[producer] != device[consumer]) & (every.edges[TO_RESULT] == 0)
        counter = counter._replace(model=self.model._replace(few=every, each=every))
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
