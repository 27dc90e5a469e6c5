"""How many sub-graphs HETERO makes of a placement.

Source: the subgraph collector of OpenVINO's HETERO plug-in as of release 2026.4. Older releases cut some placements
into fewer sub-graphs, or fail on them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.core.arrays import Bool, Int32, Int64
from pipeline.core.graph import Graph, Grouping, adjacency, components, topological_order
from runtime.simulators import cuts

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
    """Cuts one model under many placements: what depends on the model alone is prepared once."""

    model: cuts.Model

    @classmethod
    def of(cls, graph: Graph, node: Int32 | None = None) -> Cutter:
        """Return the cutter of a model's n operations.

        node: int32 [n], operations of equal number are never put on different devices; None promises nothing.

        Raises:
            CyclicGraphError: the graph has a cycle.
        """
        producer, consumer = graph.edges.copy()
        entry, to_result = _of_type(graph, ENTRIES), _of_type(graph, frozenset({"Result"}))[consumer]
        readers = np.bincount(producer[~to_result], minlength=graph.n).astype(np.int32)
        from_others = np.bincount(consumer[~entry[producer]], minlength=graph.n) > 0
        into_ptr, _ = adjacency(graph, reverse=True)
        together = np.zeros(graph.m, bool) if node is None else node[producer] == node[consumer]
        units = components(graph.n, producer[together], consumer[together])
        source, target, unit_to_result = _between(units, producer[~together], consumer[~together], to_result[~together])
        return cls(
            cuts.Model(
                producer=producer,
                consumer=consumer,
                order=topological_order(graph),
                into_ptr=into_ptr,
                into=np.argsort(consumer, kind="stable").astype(np.int32),
                entry=entry,
                computes=~_of_type(graph, frozenset({"Constant"})),
                prepares=~entry & (readers == 1) & ~from_others,
                to_result=to_result,
                readers=readers,
                out_degree=graph.out_degree.astype(np.int32),
                unit=units.group.copy(),
                unit_first=np.unique(units.group, return_index=True)[1].astype(np.int32),
                unit_source=source,
                unit_target=target,
                unit_to_result=unit_to_result,
            )
        )

    def split(self, device: Int32) -> Grouping:
        """Return the sub-graphs of one placement, device int32 [n]; see `split`."""
        counts = np.zeros(int(np.max(device, initial=0)) + 1, np.int64)
        return Grouping(cuts.parts(self.model, np.array(device, np.int32), counts))

    def count_by_device(self, device: Int32, p: int) -> Int64:
        """Return int64 [p], how many sub-graphs each device runs; a placement on one device is not cut at all."""
        counts = np.zeros(p, np.int64)
        cuts.parts(self.model, np.array(device, np.int32), counts)
        return counts


def count_by_device(graph: Graph, device: Int32, p: int) -> Int64:
    """Return int64 [p], how many sub-graphs each device runs; a placement on one device is not cut at all."""
    return Cutter.of(graph).count_by_device(device, p)


def _of_type(graph: Graph, types: frozenset[str]) -> Bool:
    found: Bool = np.array([name in types for name in graph.type_names], dtype=bool)[graph.op_type]
    return found


def _between(units: Grouping, producer: Int32, consumer: Int32, to_result: Bool) -> tuple[Int32, Int32, Bool]:
    """Return the different edges between units: int32 [e] source, int32 [e] target, bool [e] into a Result."""
    ends = np.stack([units.group[producer], units.group[consumer], to_result.astype(np.int32)])
    source, target, result = np.unique(ends, axis=1)
    return source.copy(), target.copy(), result.astype(bool)
