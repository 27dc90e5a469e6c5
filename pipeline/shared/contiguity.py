"""In what order a pipeline runs through its stages: which edges say so, and whether a placement keeps to them.

Three notions, from the strictest to the loosest (docs/methods/exact.md has a picture of each):

    ordered   the devices can be put in an order in which every edge leads onwards
    convex    no path leaves a device and comes back to it; taken by itself, for each device
    free      no demand

Only the forward pass counts: operations of type `Backward` follow those they are colocated with.

Source: Tarnawski et al., NeurIPS 2020, sections 3 and 5; `ordered` is what its dynamic program finds, `convex` what its
integer program demands.
"""

from __future__ import annotations

from typing import NamedTuple, get_args

import numpy as np

from pipeline.core.arrays import Bool, Int32, Int64
from pipeline.core.graph import Graph, Grouping, topological_order
from pipeline.core.simulation import Contiguity
from pipeline.shared.compiled import allocating, inner

FREE, CONVEX, ORDERED = range(3)  # as numbers, for kernels
BACKWARD = "Backward"


class StageEdges(NamedTuple):
    """The edges that a contiguous placement of n operations heeds.

    kind: FREE, CONVEX or ORDERED. edges: int32 [2, e], of operations, by the topological order of their producers.
    node: int32 [n], the node that each operation belongs to.
    """

    kind: int
    edges: Int32
    node: Int32


def backward_operations(graph: Graph) -> Bool:
    """Return bool [n], which operations belong to the backward pass."""
    return np.array([name == BACKWARD for name in graph.type_names], bool)[graph.op_type]


def forward_edges(graph: Graph) -> Int32:
    """Return int32 [2, e], the edges between operations of the forward pass, by the topological order of producers."""
    backward = backward_operations(graph)
    inside = graph.edges[:, ~backward[graph.edges].any(axis=0)]
    place = np.empty(graph.n, np.int64)
    place[topological_order(graph)] = np.arange(graph.n)
    return np.ascontiguousarray(inside[:, np.argsort(place[inside[0]], kind="stable")])


def substitute_edges(graph: Graph, grouping: Grouping) -> Int32:
    """Return int32 [2, e], the reversed edges between backward operations of which one's group has no forward one.

    Such a group has a place among the stages, too: where its backward edges, turned round, put it.
    """
    backward = backward_operations(graph)
    orphan = np.ones(grouping.k, bool)
    orphan[grouping.group[~backward]] = False
    touched = backward[graph.edges].all(axis=0) & orphan[grouping.group[graph.edges]].any(axis=0)
    return np.ascontiguousarray(graph.edges[::-1, touched])


def stage_edges(graph: Graph, node: Grouping, grouping: Grouping, contiguity: Contiguity) -> StageEdges:
    """Return what contiguity demands of placements of nodes; grouping: which operations share a device anyway."""
    kind = get_args(Contiguity).index(contiguity)
    none = np.zeros((2, 0), np.int32)
    if kind == FREE:
        return StageEdges(kind, none, node.group.copy())
    further = substitute_edges(graph, grouping) if kind == ORDERED else none
    return StageEdges(kind, np.concatenate([forward_edges(graph), further], axis=1), node.group.copy())


@allocating
def stages_are_contiguous(stages: StageEdges, device: Int64, p: int) -> bool:
    """Return whether a placement of nodes, int64 [k], on p devices is as contiguous as demanded."""
    if stages.kind == ORDERED:
        return _in_order(stages, device, p)
    if stages.kind == CONVEX:
        for d in range(p):
            if not _is_convex(stages, device, d):
                return False
    return True


@allocating
def _in_order(stages: StageEdges, device: Int64, p: int) -> bool:
    """Return whether no cycle leads through the devices."""
    leads = np.zeros((p, p), np.bool_)
    for e in range(stages.edges.shape[1]):
        a, b = device[stages.node[stages.edges[0, e]]], device[stages.node[stages.edges[1, e]]]
        leads[a, b] = a != b
    done = np.zeros(p, np.bool_)
    for _ in range(p):
        ready = -1
        for d in range(p):
            if not done[d] and not _waits_for_device(leads, done, d):
                ready = d
        if ready < 0:
            return False
        done[ready] = True
    return True


@inner
def _waits_for_device(leads: Bool, done: Bool, d: int) -> bool:
    waits = False
    for other in range(done.size):
        waits = waits or (leads[other, d] and not done[other])
    return waits


@allocating
def _is_convex(stages: StageEdges, device: Int64, d: int) -> bool:
    """Return whether no path leaves a device and comes back."""
    left = np.zeros(stages.node.size, np.bool_)
    for e in range(stages.edges.shape[1]):
        a, b = stages.edges[0, e], stages.edges[1, e]
        inside = device[stages.node[b]] == d
        if device[stages.node[a]] == d:
            left[b] |= not inside
        elif left[a]:
            if inside:
                return False
            left[b] = True
    return True
