"""What a score of edges looks at: relative figures of operations and edges, free of units, names and device numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from pipeline.core.arrays import Float64, Int64
from pipeline.core.graph import Graph, row_ptr
from pipeline.core.problem import Problem
from pipeline.shared.graphs import breadth_first, longest_paths, visit_order
from pipeline.shared.partition import node_costs

NODE_FIGURES = (
    *("work", "work_share", "before", "after", "slack", "readers", "producers", "source", "sink"),
    *("received", "sent", "weights", "weights_share"),
    *("devices", "parallelism", "transfers", "memory"),  # of the whole
)
EDGE_FIGURES = (
    *("seconds", "over_producer", "over_consumer", "over_share", "share_received", "share_sent", "slack", "depth_gap"),
    *("time_gap", "readers", "only_reader", "only_input", "tied", "same_type"),
)
LEAST = 1e-4  # of a mean, what counts as nothing
FARTHEST = 4.0  # logarithm beyond which ratios are alike


@dataclass(frozen=True, slots=True, eq=False)
class EdgeFigures:
    """A graph as scores of its edges see it.

    node: float64 [n, NODE_FIGURES]. edge: float64 [m, EDGE_FIGURES]. along, against: sparse [n, n], means over what a
    node reads, and over what reads it. ends: int64 [2, m].
    """

    node: Float64
    edge: Float64
    along: Any
    against: Any
    ends: Int64

    @classmethod
    def of_problem(cls, problem: Problem, work_s: Float64) -> EdgeFigures:
        """Return the figures of a problem; work_s: float64 [n], seconds of its operations."""
        topology, size = problem.topology, problem.graph.reads.size
        room = sum(d.memory_bytes for d in topology.devices) if all(d.memory_bytes for d in topology.devices) else 0
        return cls.of(problem.graph, work_s, topology.mean_transfer_s(size), devices=topology.p, room_bytes=room)

    @classmethod
    def of_graph(cls, graph: Graph, *, devices: int) -> EdgeFigures:
        """Return the figures of a graph of which no times are known: transfers take as long as the work, all in all."""
        work, size = node_costs(graph, "flops"), graph.reads.size.astype(np.float64)
        scale = work.sum() / size.sum() if size.sum() > 0 else 0.0
        return cls.of(graph, work, size * scale, devices=devices, room_bytes=0)

    @classmethod
    def of(cls, graph: Graph, work_s: Float64, read_s: Float64, *, devices: int, room_bytes: int) -> EdgeFigures:
        """Return the figures of a graph whose reads take float64 [f] seconds; room_bytes: of all devices, 0: any."""
        n, m, (producer, consumer) = graph.n, graph.m, graph.edges.astype(np.int64)
        edge_s = np.bincount(graph.reads.edge, weights=read_s, minlength=m).astype(np.float64)
        received_s = np.bincount(consumer, weights=edge_s, minlength=n).astype(np.float64)
        sent_s = np.bincount(producer, weights=edge_s, minlength=n).astype(np.float64)
        total_s = max(float(work_s.sum()), 1e-30)
        mean_s, share_s = total_s / max(n, 1), total_s / devices
        before_s, after_s, depth = _paths(graph, work_s)
        longest_s = max(float(after_s.max(initial=0.0)), 1e-30)
        held = graph.weight_bytes / max(float(graph.weight_bytes.sum()), 1.0)
        whole = np.array(
            [
                np.log(devices) / 2,
                np.log(share_s / longest_s) / 2,
                _ratio(np.array(edge_s.sum()), np.array(total_s), total_s),
                graph.weight_bytes.sum() / room_bytes if room_bytes else 0.0,
            ]
        )
        in_degree, out_degree = graph.in_degree, graph.out_degree
        node = np.column_stack([
            _ratio(work_s, mean_s, mean_s),
            _ratio(work_s, share_s, mean_s),
            (before_s - work_s) / longest_s,
            after_s / longest_s,
            1 - (before_s + after_s - work_s) / longest_s,
            np.log1p(out_degree) / 2,
            np.log1p(in_degree) / 2,
            in_degree == 0,
            out_degree == 0,
            _ratio(received_s, work_s, mean_s),
            _ratio(sent_s, work_s, mean_s),
            np.sqrt(held),
            np.minimum(held * devices, 2.0),
            np.broadcast_to(whole, (n, whole.size)),
        ])  # fmt: skip
        readers = np.bincount(graph.reads.tensor, minlength=graph.reads.t)
        most = np.zeros(m)
        np.maximum.at(most, graph.reads.edge, readers[graph.reads.tensor])
        tie = graph.colocate
        edge = np.column_stack([
            _ratio(edge_s, mean_s, mean_s),
            _ratio(edge_s, work_s[producer], mean_s),
            _ratio(edge_s, work_s[consumer], mean_s),
            _ratio(edge_s, share_s, mean_s),
            edge_s / np.maximum(received_s[consumer], 1e-30),
            edge_s / np.maximum(sent_s[producer], 1e-30),
            1 - (before_s[producer] + after_s[consumer]) / longest_s,
            np.arcsinh(depth[consumer] - depth[producer] - 1) / 2,
            (before_s[consumer] - work_s[consumer] - before_s[producer]) / longest_s,
            np.log(np.maximum(most, 1)) / 2,
            out_degree[producer] == 1,
            in_degree[consumer] == 1,
            (tie[producer] >= 0) & (tie[producer] == tie[consumer]),
            graph.op_type[producer] == graph.op_type[consumer],
        ])  # fmt: skip
        ends = np.stack([producer, consumer])
        mean = np.ones(m) / np.maximum(in_degree, 1)[consumer], np.ones(m) / np.maximum(out_degree, 1)[producer]
        along = csr_array((mean[0], (consumer, producer)), (n, n))
        against = csr_array((mean[1], (producer, consumer)), (n, n))
        return cls(node.astype(np.float64), edge.astype(np.float64), along, against, ends)


def _ratio(value: Float64, over: Float64 | float, mean: float) -> Float64:
    """Return half the logarithm of a ratio, within limits; mean: of which a small share counts as nothing."""
    log = np.log(np.maximum(value, LEAST * mean)) - np.log(np.maximum(over, LEAST * mean))
    ratio: Float64 = np.clip(log, -2 * FARTHEST, 2 * FARTHEST) / 2
    return ratio


def _paths(graph: Graph, work_s: Float64) -> tuple[Float64, Float64, Int64]:
    """Return the longest paths that end with and begin at each operation, float64 [n], and depths, int64 [n].

    Transfers take no time; edges that close cycles are left out.
    """
    n, order = graph.n, visit_order(graph).astype(np.int64)
    place = np.empty(n, np.int64)
    place[order] = np.arange(n)
    source, target = graph.edges[:, place[graph.edges[0]] < place[graph.edges[1]]].astype(np.int64)
    by_target = np.argsort(target, kind="stable")
    free, ptr = np.zeros(source.size), row_ptr(source, n)
    after_s = longest_paths(order, ptr, target, free, work_s)
    before_s = longest_paths(order[::-1].copy(), row_ptr(target, n), source[by_target], free, work_s)
    return before_s, after_s, breadth_first(ptr, target.astype(np.int32))[1].astype(np.int64)
