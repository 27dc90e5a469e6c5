"""Kernels that join the operations of a graph to parts, and find the parts that wait for one another.

A graph of up to m edges is int32 [3, m] of rows SOURCE, TARGET and BOUNDARY, or more: parts are what edges hold
together which are no boundaries. One array of many rows is compiled far faster than a tuple of many arrays.
"""

from __future__ import annotations

import numpy as np

from pipeline.core.arrays import Int32
from pipeline.shared.compiled import inlined, inner

SOURCE, TARGET, BOUNDARY = range(3)
# Rows of a room, see `room_of`.
PART, GROUP, WAITING, ITSELF, CUT, ROOT, OPENED, CALLS, NUMBER, LOW, IS_OPEN, FOLLOWING, PTR, ENTERED = range(14)


def room_of(n: int, m: int) -> Int32:
    """Return where the parts of a graph of up to n nodes and m edges are worked out: int32, a row for each fact.

    Whatever is found stays until the next. PART [n]: of each node, by first appearance. GROUP: equal for parts that
    wait for one another. WAITING, ITSELF: 1 for the parts that wait for others, and for those entered by a boundary of
    their own. CUT [m]: the boundaries, one after the other. PTR [n + 2], ENTERED [m]: boundaries lead from part j to
    ENTERED[PTR[j]:PTR[j + 1]]. The other rows hold nothing between calls.
    """
    return np.zeros((ENTERED + 1, max(n + 2, m)), np.int32)


@inner
def joined(edges: Int32, m: int, n: int, room: Int32) -> tuple[int, int]:
    """Find the parts of n nodes that those of m edges hold together which are no boundaries.

    Where boundaries lie cannot be foreseen, and a branch not foreseen costs more than the work: there are few.

    Returns:
        How many parts there are, and how many boundaries.
    """
    source, target, boundary = edges[SOURCE], edges[TARGET], edges[BOUNDARY]
    root, part, cut = room[ROOT], room[PART], room[CUT]
    k = cuts = 0
    for i in range(n):
        root[i] = i
    for e in range(m):
        cut[cuts] = e
        cuts += boundary[e]
        a = source[e]
        b = a if boundary[e] else target[e]
        above_a, above_b = root[a], root[b]
        while root[above_a] != above_a:
            root[above_a] = root[root[above_a]]
            above_a = root[above_a]
        while root[above_b] != above_b:
            root[above_b] = root[root[above_b]]
            above_b = root[above_b]
        root[above_a] = root[above_b] = root[a] = root[b] = min(above_a, above_b)
    for i in range(n):  # a root is the least of its set, so it comes first
        part[i] = k if root[i] == i else part[root[i]]
        k += root[i] == i
    return k, cuts


@inner
def on_cycles(edges: Int32, cuts: int, k: int, room: Int32) -> bool:
    """Find which of k parts wait for one another, or for themselves, by so many boundaries; say if any does.

    Source: Tarjan, Depth-First Search and Linear Graph Algorithms (1972), without recursion.
    """
    any_cycle = _quotient(edges, cuts, k, room)
    ptr, entered, following, number, low = room[PTR], room[ENTERED], room[FOLLOWING], room[NUMBER], room[LOW]
    calls, opened, is_open = room[CALLS], room[OPENED], room[IS_OPEN]
    for j in range(k):
        following[j] = ptr[j]
        number[j] = is_open[j] = 0
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
                is_open[v] = 1
                height += 1
            while following[v] < ptr[v + 1] and number[entered[following[v]]]:
                if is_open[entered[following[v]]]:
                    low[v] = min(low[v], number[entered[following[v]]])
                following[v] += 1
            if following[v] < ptr[v + 1]:
                calls[depth] = entered[following[v]]  # looked at again, as numbered, when the call is over
                depth += 1
                continue
            depth -= 1
            if low[v] == number[v]:
                several = opened[height - 1] != v
                any_cycle |= several
                while is_open[v]:  # the component of v, which it closes
                    height -= 1
                    j = opened[height]
                    is_open[j], room[WAITING, j], room[GROUP, j] = 0, several, v
            else:
                low[calls[depth - 1]] = min(low[calls[depth - 1]], low[v])
    return any_cycle


@inlined
def _quotient(edges: Int32, cuts: int, k: int, room: Int32) -> bool:
    """List the parts that boundaries lead to from each part, and return whether one leads back into its own."""
    ptr, part, cut = room[PTR], room[PART], room[CUT]
    for j in range(k + 2):
        ptr[j] = 0
    for j in range(k):
        room[ITSELF, j] = 0
    back = False
    for x in range(cuts):
        a, b = part[edges[SOURCE, cut[x]]], part[edges[TARGET, cut[x]]]
        if a == b:
            back = True
            room[ITSELF, a] = 1
        else:
            ptr[a + 2] += 1
    for j in range(k):
        ptr[j + 2] += ptr[j + 1]
    for x in range(cuts):
        a, b = part[edges[SOURCE, cut[x]]], part[edges[TARGET, cut[x]]]
        if a != b:
            room[ENTERED, ptr[a + 1]] = b
            ptr[a + 1] += 1
    return back
