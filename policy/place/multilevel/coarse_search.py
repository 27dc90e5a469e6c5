"""Local search in a coarse instance of a search's problem: placements of cells, and of the operations behind them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32, Int64, distinct
from pipeline.core.graph import Graph, Grouping, row_ptr, sum_per_group
from pipeline.core.placement import Placement
from pipeline.core.problem import Problem
from pipeline.shared.compiled import compiled
from pipeline.shared.graphs import breadth_first, longest_paths
from policy.place.base.groups import UNLIMITED
from policy.place.base.hierarchy import Level
from policy.place.base.search import Search
from policy.place.multilevel.estimate import CoarseInstance, CoarseTrials, estimate_s, local_search
from policy.place.multilevel.moves import LevelClusters

ROUNDS = 6  # of shrinking at most
STALLED = 0.95  # cells after a round over those before from which shrinking has come to its end


def coarse_instance_of(
    problem: Problem, op_s: Float64, label: Int32, *, held: Int64 | None = None
) -> tuple[CoarseInstance, Grouping]:
    """Return the coarse of a problem, and the cell of every operation; no cell mixes operations of different labels.

    op_s: float64 [n, p], seconds. label: int32 [n]. held: int64 [n], bytes of memory that an operation takes, its
    weights unless given.
    """
    graph, topology = problem.graph, problem.topology
    cells = cells_of(graph, label)
    cell = cells.group
    producer, consumer = graph.edges[:, graph.reads.edge]
    cut = cell[producer] != cell[consumer]
    tensor, size = graph.reads.tensor[cut], graph.reads.size[cut].astype(np.float64)
    by_cell = np.lexsort((consumer[cut], tensor, size, producer[cut], cell[producer[cut]]))
    source, reader, tensor = producer[cut][by_cell], cell[consumer[cut]][by_cell], tensor[by_cell]
    size = size[by_cell]
    pair = np.concatenate([[True], (np.diff(tensor) != 0) | (np.diff(size) != 0)]) if source.size else cut[:0]
    begins = np.flatnonzero(pair)
    tensor_ptr = np.searchsorted(cell[source[begins]], np.arange(cells.k + 1))
    seconds = sum_per_group(op_s, cells)
    held_bytes = sum_per_group(graph.weight_bytes if held is None else held, cells)
    room = np.array([d.memory_bytes or UNLIMITED for d in topology.devices], dtype=np.int64)
    coarse = CoarseInstance(
        tensor_ptr=tensor_ptr.astype(np.int64),
        size=size[begins],
        reader_ptr=np.append(begins, source.size).astype(np.int64),
        reader=reader.astype(np.int32),
        awaits=np.bincount(reader, minlength=cells.k).astype(np.int32),
        op_s=seconds,
        tail_s=np.zeros(cells.k),
        held=held_bytes,
        room=room,
        latency_s=np.array(topology.link_latency_s),
        per_byte_s=1.0 / topology.link_bytes_per_s,
    )
    # float64 [c], the longest path from each cell's begin to the end, on the fastest devices, without links
    ptr = coarse.reader_ptr[coarse.tensor_ptr]
    order, _ = breadth_first(ptr, coarse.reader)
    fastest = np.zeros(coarse.op_s.shape[0])
    fastest[order] = coarse.op_s[order].min(axis=1)
    no_links = np.zeros(coarse.reader.size)
    return coarse._replace(
        tail_s=longest_paths(order.astype(np.int64), ptr, coarse.reader.astype(np.int64), no_links, fastest)
    ), cells


def cells_of(graph: Graph, label: Int32) -> Grouping:
    """Return groups of operations of one label each, whose quotient is acyclic if the graph is.

    In turn, what reads only one cell joins it (cells that read nothing do not count: no cycle leads through them),
    what is read by only one cell joins that, and what has the same label and depth becomes one cell.
    """
    cells = Grouping.identity(graph.n)
    edges, label = np.asarray(graph.edges), np.asarray(label)
    for round_ in range(ROUNDS):
        before = cells.k
        for way in ("before", "behind", "beside") if round_ % 2 else ("before", "behind"):
            k = label.size
            producer, consumer = edges if way != "behind" else edges[::-1]
            ptr, reader = _rows(producer, consumer, k)
            # (order, depth), int32 [k]; nodes on or behind cycles come last, at depths of their own
            order, depth = breadth_first(ptr, reader)
            last = np.setdiff1d(np.arange(depth.size, dtype=np.int32), order)
            depth[last] = np.arange(order.size, depth.size)
            order = np.append(order, last)
            if way == "beside":
                # int32 [k], the first index at which each value stands
                _, first, which = np.unique(
                    label.astype(np.int64) * (k + 1) + depth, return_index=True, return_inverse=True
                )
                head = first[which].astype(np.int32)
            else:
                read_ptr, read = _rows(consumer, producer, k)
                head = _joined(order, read_ptr, read, label)
            merged = Grouping.of_labels(head)
            first = np.unique(merged.group, return_index=True)[1]
            cells, label = cells.then(merged), label[first]
            edges = merged.group[edges]
            edges = edges[:, edges[0] != edges[1]]
            code = distinct(edges[0].astype(np.int64) * merged.k + edges[1])
            edges = np.stack([code // merged.k, code % merged.k]).astype(np.int32)
        if cells.k > STALLED * before:
            break
    return cells


def _rows(source: Int32, target: Int32, k: int) -> tuple[Int64, Int32]:
    """Return (ptr, target): the targets of source i are target[ptr[i]:ptr[i + 1]]."""
    by_source = np.argsort(source, kind="stable")
    return row_ptr(source, k), np.ascontiguousarray(target[by_source], dtype=np.int32)


@compiled
def _joined(order: Int32, ptr: Int64, read: Int32, label: Int32) -> Int32:
    """Return int32 [k], the first node of each node's cell, after every node joined the one cell it reads, if one."""
    head = np.arange(order.size).astype(np.int32)
    for v in order:
        only, apart = -1, False
        for e in range(ptr[v], ptr[v + 1]):
            u = read[e]
            if ptr[u] == ptr[u + 1] and label[u] != label[v]:
                apart = True
                continue  # reads nothing itself
            if only >= 0 and head[u] != only:
                only = -2
                break
            only = head[u]
        # What reads nothing must have a cell that reads nothing, or cycles would lead through those left out.
        if only >= 0 and label[only] == label[v] and not (apart and ptr[only] == ptr[only + 1]):
            head[v] = only
    return head


Drawn = tuple[Int64, Int32, Int32, Int32]  # ptr, cell, device and like of `CoarseTrials`


@dataclass(frozen=True, slots=True, eq=False)
class CoarseSearch:
    """A coarse instance of a search's problem, with what leads from operations to cells and back.

    cells: operations to cells. operation: int32 [c], one of each cell. levels: their clusters, of cells.
    """

    search: Search
    instance: CoarseInstance
    cells: Grouping
    operation: Int32
    allowed: Bool
    levels: list[LevelClusters]

    @classmethod
    def of(cls, search: Search, chosen: list[Level], held: Int64 | None = None) -> CoarseSearch | None:
        """Return the coarse instance where the evaluator is a simulator of devices that work at once, else None.

        held: see `coarse_instance_of`.
        """
        problem = search.problem
        if search.execution is None or not search.execution.concurrent or problem.costs is None:
            return None
        label = np.zeros(problem.graph.n, np.int32)
        for level in chosen:  # nested levels leave their finest, others the intersection
            label = Grouping.of_labels(label.astype(np.int64) * level.k + level.groups.grouping.group).group
        instance, cells = coarse_instance_of(problem, problem.costs.op_s, label, held=held)
        operation = np.unique(cells.group, return_index=True)[1].astype(np.int32)
        levels = [LevelClusters.of(level, operation) for level in chosen]
        return cls(search, instance, cells, operation, problem.group_allowed(cells), levels)

    def devices_of(self, placement: Placement) -> Int32:
        """Return int32 [c], the device of every cell."""
        return np.ascontiguousarray(placement.device[self.operation])

    def placement(self, device: Int32) -> Placement:
        """Return the placement of the operations."""
        return Placement(device, self.search.problem.topology.names).lift(self.cells)

    def estimate_s(self, placement: Placement) -> float:
        """Return the estimated seconds of a placement."""
        return estimate_s(self.instance, self.devices_of(placement), np.inf)

    def local_search(self, start: Int32, moves: Drawn, threshold_s: Float64) -> tuple[Int32, float, Int32, float]:
        """Return (end, its seconds, best, its seconds) of moves of cells, int32 [c] each; see `estimate`."""
        return local_search(self.instance, CoarseTrials(*moves, threshold_s, self.allowed), start)
