"""The compiled parts of the lower bounds: longest paths, intervals, packings."""

from __future__ import annotations

import math

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32, Int64
from pipeline.shared.compiled import compiled

Neighbours = tuple[Int64, Int32, Float64]  # ptr [n + 1], neighbour [m], bytes [m]


@compiled
def path_starts(
    order: Int32,
    into: Neighbours,
    op_s: Float64,
    unit: Int32,
    per_byte_s: Float64,
    latency_s: Float64,
) -> Float64:
    """Return float64 [n, p], before when no operation can start on each device; inf where it is not supported.

    order: int32 [n], producers first. Operations of equal `unit` share a device.
    """
    ptr, producers, size = into
    n, p = op_s.shape
    start_s = np.zeros((n, p))
    for v in order:
        for d in range(p):
            if op_s[v, d] == math.inf:
                start_s[v, d] = math.inf
                continue
            latest = 0.0
            for e in range(ptr[v], ptr[v + 1]):
                u = producers[e]
                earliest = math.inf
                for s in range(p):
                    end_s = start_s[u, s] + op_s[u, s]
                    if s == d:
                        earliest = min(earliest, end_s)
                    elif unit[u] != unit[v]:
                        earliest = min(earliest, end_s + latency_s[s, d] + size[e] * per_byte_s[s, d])
                latest = max(latest, earliest)
            start_s[v, d] = latest
    return start_s


@compiled
def interval_bound(head_s: Float64, tail_s: Float64, work_s: Float64) -> float:
    """Return the greatest a + (work of {head >= a, tail >= b}) + b over all a and b; all three float64 [n].

    Operations enter by falling head. Over the tails stands a tree of maxima of b + (work entered of tail >= b).
    """
    n = head_s.size
    by_tail = np.argsort(tail_s)
    place = np.empty(n, np.int64)
    place[by_tail] = np.arange(n)
    width = 1
    while width < n:
        width *= 2
    total = np.zeros(2 * width)
    best = np.full(2 * width, -math.inf)
    found = 0.0
    for i in np.argsort(-head_s):
        at = width + place[i]
        total[at] = work_s[i]
        best[at] = tail_s[i] + work_s[i]
        at //= 2
        while at >= 1:
            left, right = 2 * at, 2 * at + 1
            total[at] = total[left] + total[right]
            best[at] = max(best[right], best[left] + total[right])
            at //= 2
        found = max(found, head_s[i] + best[1])
    return found


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
    found = np.full(size.size, math.inf)
    for e in range(size.size):
        u, v = edges[0, e], edges[1, e]
        for s in range(p):
            for d in range(p):
                if s != d:
                    link_s = latency_s[s, d] + size[e] * per_byte_s[s, d]
                    value = start_s[u, s] + op_s[u, s] + link_s + op_s[v, d] + tail_s[v, d]
                    found[e] = min(found[e], value)
    return found


@compiled
def first_fit(order: Int64, held: Int64, room: Int64, allowed: Bool) -> Int32:
    """Return int32 [k], the first device with room for each unit in the order, -1 where none has; uses `room`."""
    device = np.full(held.size, -1, np.int32)
    for i in order:
        for d in range(room.size):
            if allowed[i, d] and room[d] >= held[i]:
                room[d] -= held[i]
                device[i] = d
                break
    return device
