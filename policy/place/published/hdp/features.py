"""What HDP's two networks are told: of operations, and of the groups that the first of them makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.core.arrays import Float32, Int64
from pipeline.core.graph import adjacency, contract
from pipeline.shared.graphs import visit_order
from policy.place.base.groups import Groups

OUTPUTS, AXES = 5, 5
PAIRS = 10  # neighbours of an operation that are told, two numbers each
OPERATION = 1 + OUTPUTS * AXES + 2 * PAIRS
LOG_SCALE = 10.0
ABSENT = -1.0


@dataclass(frozen=True, slots=True, eq=False)
class OperationFigures:
    """n groups in topological order.

    group: int64 [n], which group each one is. features: float32 [n, 46]. edges: int64 [2, m], between them. type_of:
    int64 [n], in [0, types], where the last stands for every type that was not there when the policy was made.
    types: names of the others.
    """

    group: Int64
    features: Float32
    edges: Int64
    type_of: Int64
    types: tuple[str, ...]


def types_of(groups: Groups) -> tuple[str, ...]:
    """Return the names of the types of operations that occur, sorted."""
    graph = groups.problem.graph
    return tuple(sorted({graph.type_names[i] for i in graph.op_type.tolist()}))


def operations(groups: Groups, types: Sequence[str], *, raw: bool) -> OperationFigures:
    """Return what is known of a problem's groups; types: that a policy tells apart.

    An operation's 46 numbers: its type's index; five outputs' five dimensions, -1 where there is none; ten neighbours,
    first those it feeds, as pairs of index and 1, then those it reads, as pairs of index and -1. Indices count from 1
    in topological order, so that 0 stands for no neighbour. raw: as they are; otherwise indices are shares of their
    number, and dimensions logarithms.

    Source: the hierarchical controller of TensorFlow's grappler (Mirhoseini et al., ICLR 2018). Deliberate difference:
    all in-edges are told, where the original forgets most of them. Graphs know the shape of the first output alone.
    """
    graph = contract(groups.problem.graph, groups.grouping)
    group = visit_order(graph).astype(np.int64)
    rank = np.empty(graph.n, np.int64)
    rank[group] = np.arange(graph.n)
    index = {name: i for i, name in enumerate(types)}
    type_of = np.array([index.get(graph.type_names[t], len(index)) for t in graph.op_type[group].tolist()], np.int64)
    found = np.zeros((graph.n, OPERATION))
    found[:, 0] = type_of
    found[:, 1 : 1 + OUTPUTS * AXES] = ABSENT
    for i, u in enumerate(group.tolist()):
        shape = graph.shape(u)[:AXES]
        found[i, 1 : 1 + len(shape)] = shape
    # float64 [n, PAIRS, 2], (index from 1, direction) of each operation's neighbours, in topological order
    pairs = np.zeros((graph.n, PAIRS, 2))
    sides = [(*adjacency(graph), 1.0), (*adjacency(graph, reverse=True), -1.0)]
    for i, u in enumerate(group.tolist()):
        told = [(rank[w] + 1.0, sign) for ptr, node, sign in sides for w in node[ptr[u] : ptr[u + 1]].tolist()][:PAIRS]
        if told:
            pairs[i, : len(told)] = told
    found[:, 1 + OUTPUTS * AXES :] = pairs.reshape(graph.n, 2 * PAIRS)
    if not raw:
        found[:, 0] /= max(len(types), 1)
        dims = found[:, 1 : 1 + OUTPUTS * AXES]
        dims[dims > 0] = np.log1p(dims[dims > 0]) / LOG_SCALE
        found[:, 1 + OUTPUTS * AXES :: 2] /= max(graph.n, 1)
    return OperationFigures(group, found.astype(np.float32), rank[graph.edges], type_of, tuple(types))


def group_features(known: OperationFigures, group: Int64, g: int) -> Float32:
    """Return float32 [g, 2 g + types + 1]: edges to and from each group, and how many operations of each type it holds.

    group: int64 [n], in [0, g). Rows are divided by their greatest number plus 1.

    Source: as `operations`. Deliberate difference: the original adds dimensions of outputs to its first counts.
    """
    links = np.zeros((g, g))
    np.add.at(links, (group[known.edges[0]], group[known.edges[1]]), 1.0)
    counts = np.zeros((g, len(known.types) + 1))
    np.add.at(counts, (group, known.type_of), 1.0)
    rows = np.concatenate([links, links.T, counts], axis=1)
    shares: Float32 = (rows / (rows.max(axis=1, keepdims=True) + 1.0)).astype(np.float32)
    return shares
