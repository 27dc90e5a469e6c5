"""Kernels that join the operations of a graph to parts, and find the parts that wait for one another."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.compiled import inlined, inner
from pipeline.core.arrays import Bool, Int32, Int64


class Room(NamedTuple):
    """Where the parts of a graph of up to n nodes and m edges are worked out; whatever is found stays until the next.

    part: int32 [n], of each node, by first appearance. group: int32 [n], equal for parts that wait for one another.
    waiting, itself: bool [n], the parts that wait for others, and those entered by a boundary of their own. root,
    opened, calls, number, low: int32 [n], is_open: bool [n], following: int64 [n]: scratch. ptr: int64 [n + 2],
    entered: int32 [m]: boundaries lead from part j to entered[ptr[j]:ptr[j + 1]].
    """

    part: Int32
    group: Int32
    waiting: Bool
    itself: Bool
    root: Int32
    opened: Int32
    calls: Int32
    number: Int32
    low: Int32
    is_open: Bool
    following: Int64
    ptr: Int64
    entered: Int32


class Links(NamedTuple):
    """The edges of a graph; arrays may be longer than there are edges. source, target: int32. boundary: bool."""

    source: Int32
    target: Int32
    boundary: Bool


def room_of(n: int, m: int) -> Room:
    """Return room for n nodes and m edges."""
    part, group, root, opened, calls, number, low = (np.zeros(n, np.int32) for _ in range(7))
    waiting, itself, is_open = (np.zeros(n, bool) for _ in range(3))
    following, ptr = np.zeros(n, np.int64), np.zeros(n + 2, np.int64)
    entered = np.zeros(m, np.int32)
    return Room(part, group, waiting, itself, root, opened, calls, number, low, is_open, following, ptr, entered)


@inner
def joined(links: Links, m: int, n: int, room: Room) -> int:
    """Find the parts of n nodes that those of m edges hold together which are no boundaries; return how many."""
    root, part = room.root, room.part
    for i in range(n):
        root[i] = i
    for e in range(m):
        if not links.boundary[e]:
            a, b = links.source[e], links.target[e]
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
    k = 0
    for i in range(n):  # a root is the least of its set, so it comes first
        if root[i] == i:
            part[i] = k
            k += 1
        else:
            part[i] = part[root[i]]
            root[i] = root[root[i]]
    return k


@inner
def on_cycles(links: Links, m: int, k: int, room: Room) -> bool:
    """Find which of k parts wait for one another, or for themselves; say if any does.

    Source: Tarjan, Depth-First Search and Linear Graph Algorithms (1972), without recursion.
    """
    any_cycle = _quotient(links, m, k, room)
    ptr, entered, following, number, low = room.ptr, room.entered, room.following, room.number, room.low
    for j in range(k):
        following[j] = ptr[j]
        number[j] = 0
        room.is_open[j] = False
    numbered = depth = height = 0
    for first in range(k):
        if number[first] == 0:
            room.calls[0] = first
            depth = 1
        while depth:
            v = room.calls[depth - 1]
            if number[v] == 0:
                numbered += 1
                number[v] = low[v] = numbered
                room.opened[height] = v
                room.is_open[v] = True
                height += 1
            while following[v] < ptr[v + 1] and number[entered[following[v]]]:
                if room.is_open[entered[following[v]]]:
                    low[v] = min(low[v], number[entered[following[v]]])
                following[v] += 1
            if following[v] < ptr[v + 1]:
                room.calls[depth] = entered[following[v]]  # looked at again, as numbered, when the call is over
                depth += 1
                continue
            depth -= 1
            if low[v] == number[v]:
                several = room.opened[height - 1] != v
                any_cycle |= several
                while room.is_open[v]:  # the component of v, which it closes
                    height -= 1
                    j = room.opened[height]
                    room.is_open[j], room.waiting[j], room.group[j] = False, several, v
            else:
                low[room.calls[depth - 1]] = min(low[room.calls[depth - 1]], low[v])
    return any_cycle


@inlined
def _quotient(links: Links, m: int, k: int, room: Room) -> bool:
    """List the parts that boundaries lead to from each part, and return whether one leads back into its own."""
    ptr, part = room.ptr, room.part
    for j in range(k + 2):
        ptr[j] = 0
    for j in range(k):
        room.itself[j] = False
    back = False
    for e in range(m):
        if links.boundary[e]:
            a, b = part[links.source[e]], part[links.target[e]]
            if a == b:
                back = room.itself[a] = True
            else:
                ptr[a + 2] += 1
    for j in range(k):
        ptr[j + 2] += ptr[j + 1]
    for e in range(m):
        if links.boundary[e]:
            a, b = part[links.source[e]], part[links.target[e]]
            if a != b:
                room.entered[ptr[a + 1]] = b
                ptr[a + 1] += 1
    return back
