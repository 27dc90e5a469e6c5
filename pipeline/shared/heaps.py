"""A heap of nodes for compiled functions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.core.arrays import Float64, Int32, Int64
from pipeline.shared.compiled import allocating, inner


class Heap(NamedTuple):
    """A binary heap of nodes, least key first, among equals the least node.

    key: float64 [n]. node: int64 or int32 [n]. size: int64 or int32 [1], how many of both are in use.
    """

    key: Float64
    node: Int64 | Int32
    size: Int64 | Int32


@allocating
def new_heap(n: int) -> Heap:
    """Return an empty heap that can hold n nodes."""
    return Heap(np.empty(n), np.empty(n, np.int64), np.zeros(1, np.int64))


@inner
def push(heap: Heap, key: float, node: int) -> None:
    """Put a node into a heap."""
    at = heap.size[0]
    heap.size[0] += 1
    while at > 0:
        above = (at - 1) >> 1
        if heap.key[above] < key or (heap.key[above] == key and heap.node[above] < node):
            break
        heap.key[at], heap.node[at] = heap.key[above], heap.node[above]
        at = above
    heap.key[at], heap.node[at] = key, node


@inner
def pop(heap: Heap) -> int:
    """Take the first node out of a heap, which must hold one, and return it."""
    keys, nodes = heap.key, heap.node
    first = nodes[0]
    heap.size[0] -= 1
    size = heap.size[0]
    key, node, at = keys[size], nodes[size], 0
    while 2 * at + 1 < size:
        below = 2 * at + 1
        right = below + 1
        if right < size and (keys[right] < keys[below] or (keys[right] == keys[below] and nodes[right] < nodes[below])):
            below = right
        if key < keys[below] or (key == keys[below] and node < nodes[below]):
            break
        keys[at], nodes[at] = keys[below], nodes[below]
        at = below
    keys[at], nodes[at] = key, node
    return int(first)
