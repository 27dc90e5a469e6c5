"""The compiled parts of the lower bounds: longest paths, intervals, packings."""

from __future__ import annotations

import math

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32, Int64
from pipeline.shared.compiled import allocating, compiled, inner

Neighbours = tuple[Int64, Int32, Float64]  # ptr [n + 1], neighbour [m], bytes [m]


@compiled
def path_starts(
    order: Int32,
    into: Neighbours,
    op_s: Float64,
    group: Int32,
    per_byte_s: Float64,
    latency_s: Float64,
    floor_s: Float64,
) -> Float64:
    """Return float64 [n, p], before when no operation can start on each device; inf where it is not supported.

    order: int32 [n], producers first. Operations of equal `group` share a device. floor_s: float64 [n], what is known.
    """
    ptr, producers, size = into
    n, p = op_s.shape
    start_s = np.zeros((n, p))
    for v in order:
        for d in range(p):
            if op_s[v, d] == math.inf:
                start_s[v, d] = math.inf
                continue
            latest = floor_s[v]
            for e in range(ptr[v], ptr[v + 1]):
                u = producers[e]
                earliest = math.inf
                for s in range(p):
                    end_s = start_s[u, s] + op_s[u, s]
                    if s == d:
                        earliest = min(earliest, end_s)
                    elif group[u] != group[v]:
                        earliest = min(earliest, end_s + latency_s[s, d] + size[e] * per_byte_s[s, d])
                latest = max(latest, earliest)
            start_s[v, d] = latest
    return start_s


@inner
def _enter(total: Float64, best: Float64, at: int, key_s: float, work_s: float) -> None:
    """Let an operation enter a tree at a leaf; best: the greatest a + (work of those with keys of at least a).

    Leaves are sorted by their keys.
    """
    total[at], best[at] = work_s, key_s + work_s
    at //= 2
    while at >= 1:
        left, right = 2 * at, 2 * at + 1
        total[at] = total[left] + total[right]
        best[at] = max(best[right], best[left] + total[right])
        at //= 2


@allocating
def _tree(key_s: Float64) -> tuple[Int64, Float64, Float64]:
    """Return (the leaf of each operation, int64 [n]; total, best) of a tree into which none has entered."""
    n = key_s.size
    width = 1
    while width < n:
        width *= 2
    leaf = np.empty(n, np.int64)
    leaf[np.argsort(key_s)] = width + np.arange(n)
    return leaf, np.zeros(2 * width), np.full(2 * width, -math.inf)


@compiled
def interval_bound(head_s: Float64, tail_s: Float64, work_s: Float64) -> float:
    """Return the greatest a + (work of {head >= a, tail >= b}) + b over all a and b; all three float64 [n].

    Operations enter by falling head.
    """
    leaf, total, best = _tree(tail_s)
    bound_s = 0.0
    for i in np.argsort(-head_s):
        _enter(total, best, leaf[i], tail_s[i], work_s[i])
        bound_s = max(bound_s, head_s[i] + best[1])
    return bound_s


@compiled
def busy_until(key_s: Float64, work_s: Float64, turn: Int32, count: int) -> Float64:
    """Return float64 [count], the greatest a + (work of {key >= a}) of all operations whose turn has come; 0 for none.

    key_s, work_s: float64 [n]. turn: int32 [n], from when on each operation counts.
    """
    leaf, total, best = _tree(key_s)
    order = np.argsort(turn)
    until_s, x = np.zeros(count), 0
    for j in range(count):
        while x < order.size and turn[order[x]] <= j:
            i = order[x]
            _enter(total, best, leaf[i], key_s[i], work_s[i])
            x += 1
        until_s[j] = max(0.0, best[1])
    return until_s


@compiled
def greatest_before(order: Int32, into: Neighbours, number: Int32) -> Int32:
    """Return int32 [n], the greatest number of an operation and all that lead to it; order: as in `path_starts`."""
    ptr, producers, _ = into
    greatest = number.copy()
    for v in order:
        for e in range(ptr[v], ptr[v + 1]):
            greatest[v] = max(greatest[v], greatest[producers[e]])
    return greatest


@compiled
def through_cut(
    edges: Int32,
    size: Float64,
    start_s: Float64,
    op_s: Float64,
    tail_s: Float64,
    per_byte_s: Float64,
    latency_s: Float64,
) -> Float64:
    """Return float64 [m], the shortest time of everything if each edge, int32 [2, m], leads between two devices."""
    p = op_s.shape[1]
    least_s = np.full(size.size, math.inf)
    for e in range(size.size):
        u, v = edges[0, e], edges[1, e]
        for s in range(p):
            for d in range(p):
                if s != d:
                    link_s = latency_s[s, d] + size[e] * per_byte_s[s, d]
                    value = start_s[u, s] + op_s[u, s] + link_s + op_s[v, d] + tail_s[v, d]
                    least_s[e] = min(least_s[e], value)
    return least_s


@compiled
def first_fit(order: Int64, held: Int64, room: Int64, allowed: Bool) -> Int32:
    """Return int32 [k], the first device with room for each group in the order, -1 where none has; uses `room`."""
    device = np.full(held.size, -1, np.int32)
    for i in order:
        for d in range(room.size):
            if allowed[i, d] and room[d] >= held[i]:
                room[d] -= held[i]
                device[i] = d
                break
    return device
