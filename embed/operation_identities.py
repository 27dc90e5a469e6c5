"""What GDP knows of a node: what it is called, where it stands, and where its neighbours do.

Source: Zhou et al., "GDP: Generalized device placement for dataflow graphs", 2019, section 3.1: type, output shape and
ids of adjacent nodes. Deliberate differences: a type has one of TYPES columns by a hash of its name, so that a column
means the same for every framework's types, forward and backward; an id is a place in a topological order, in [0, 1],
so that it means about the same in graphs of different sizes, and at most NEAR of them are told each way.
"""

from __future__ import annotations

import zlib

import numpy as np

from embed.published_features import Block
from pipeline.core.arrays import Float64, Int32
from pipeline.core.graph import Graph, Grouping, row_ptr

TYPES = 64
NEAR = 5  # neighbours each way, those nearest in the order of execution
NOBODY = -1.0  # in the place of a neighbour that is not there


def hashed_types(graph: Graph, grouping: Grouping) -> Block:
    """Return the share of each group's members whose type's name has a hash."""
    column = np.array([zlib.crc32(name.encode()) % TYPES for name in graph.type_names], dtype=np.int64)
    cell = grouping.group.astype(np.int64) * TYPES + column[graph.op_type]
    count = np.bincount(cell, minlength=grouping.k * TYPES).reshape(grouping.k, TYPES)
    return tuple(f"hash:{i}" for i in range(TYPES)), count / np.maximum(count.sum(axis=1, keepdims=True), 1)


def neighbour_places(quotient: Graph, place: Float64) -> Block:
    """Return where each node stands, and where its last NEAR producers and its first NEAR consumers do.

    place: float64 [k], in a topological order, from 0; it alone tells nodes apart that are alike in all else, such as
    the layers of a recurrent network, and it goes by the numbering.
    """
    place = place / max(quotient.n - 1, 1)
    before = _nearest_values(quotient.edges[1], -place[quotient.edges[0]], quotient.n)
    after = _nearest_values(quotient.edges[0], place[quotient.edges[1]], quotient.n)
    placed = [np.where(np.isnan(known), NOBODY, np.abs(known)) for known in (before, after)]
    names = ("place", *(f"{side}:{i}" for side in ("before", "after") for i in range(NEAR)))
    return names, np.column_stack([place, *placed])


def _nearest_values(owner: Int32, value: Float64, n: int) -> Float64:
    """Return float64 [n, NEAR], the least values of each owner in rising order; nan where it has fewer."""
    order = np.lexsort((value, owner))
    rank = np.arange(order.size) - row_ptr(owner, n)[owner[order]]
    near = rank < NEAR
    nearest = np.full((n, NEAR), np.nan)
    nearest[owner[order][near], rank[near]] = value[order][near]
    return nearest
