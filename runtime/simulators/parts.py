"""Kernels that join the operations of a graph to parts, and find the parts that wait for one another."""

from __future__ import annotations

import numpy as np

from pipeline.compiled import compiled
from pipeline.core.arrays import Bool, Int32, Int64


@compiled
def joined(source: Int32, target: Int32, boundary: Bool, n: int) -> tuple[Int32, int]:
    """Return int32 [n], what edges other than boundaries hold together, by first appearance, and how many."""
    root = np.arange(n, dtype=np.int32)
    for e in range(source.size):
        if not boundary[e]:
            a, b = source[e], target[e]
            while root[a] != a:
                root[a] = root[root[a]]
                a = root[a]
            while root[b] != b:
                root[b] = root[root[b]]
                b = root[b]
            if a < b:
                root[b] = a
            else:
                root[a] = b
    part = np.empty(n, np.int32)
    k = 0
    for i in range(n):  # a root is the least of its set, so it comes first
        if root[i] == i:
            part[i] = k
            k += 1
        else:
            part[i] = part[root[i]]
            root[i] = root[root[i]]
    return part, k


@compiled
def on_cycles(source: Int32, target: Int32, boundary: Bool, part: Int32, k: int) -> tuple[Bool, Bool]:
    """Return bool [k] twice: which parts wait for one another, and which are entered by a boundary of their own.

    Source: Tarjan, Depth-First Search and Linear Graph Algorithms (1972), without recursion.
    """
    ptr, head, itself = _quotient(source, target, boundary, part, k)
    waiting, following = np.zeros(k, np.bool_), ptr[:-1].copy()
    number, low = np.zeros(k, np.int32), np.zeros(k, np.int32)
    calls, opened, is_open = np.empty(k, np.int32), np.empty(k, np.int32), np.zeros(k, np.bool_)
    numbered = depth = height = 0
    for first in range(k):
        if number[first] == 0:
            calls[0] = first
            depth = 1
        while depth:
            v = calls[depth - 1]
            if number[v] == 0:
                numbered += 1
                number[v] = low[v] = numbered
                opened[height] = v
                is_open[v] = True
                height += 1
            while following[v] < ptr[v + 1] and number[head[following[v]]]:
                if is_open[head[following[v]]]:
                    low[v] = min(low[v], number[head[following[v]]])
                following[v] += 1
            if following[v] < ptr[v + 1]:
                calls[depth] = head[following[v]]  # looked at again, as numbered, when the call is over
                depth += 1
                continue
            depth -= 1
            if low[v] == number[v]:
                height = _close(v, opened, height, is_open, waiting)
            else:
                low[calls[depth - 1]] = min(low[calls[depth - 1]], low[v])
    return waiting, itself


@compiled
def _close(v: int, opened: Int32, height: int, is_open: Bool, waiting: Bool) -> int:
    """Take the component of v off the stack, mark it if it has several members, and return the stack's height."""
    several = opened[height - 1] != v
    while True:
        height -= 1
        is_open[opened[height]] = False
        waiting[opened[height]] = several
        if opened[height] == v:
            return height


@compiled
def _quotient(source: Int32, target: Int32, boundary: Bool, part: Int32, k: int) -> tuple[Int64, Int32, Bool]:
    """Return the boundaries between parts as (ptr, part entered), and bool [k], which parts one leads back into."""
    ptr, itself = np.zeros(k + 2, np.int64), np.zeros(k, np.bool_)
    for e in range(source.size):
        if boundary[e]:
            if part[source[e]] == part[target[e]]:
                itself[part[source[e]]] = True
            else:
                ptr[part[source[e]] + 2] += 1
    for j in range(k):
        ptr[j + 2] += ptr[j + 1]
    head = np.empty(ptr[-1], np.int32)
    for e in range(source.size):
        if boundary[e] and part[source[e]] != part[target[e]]:
            head[ptr[part[source[e]] + 1]] = part[target[e]]
            ptr[part[source[e]] + 1] += 1
    return ptr[:-1], head, itself
