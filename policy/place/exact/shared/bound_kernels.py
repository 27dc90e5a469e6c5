"""The compiled parts of the lower bounds: longest paths, intervals, packings."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32, Int64
from pipeline.shared.compiled import allocating, compiled, inner
from pipeline.shared.heaps import Heap, new_heap, pop, push

ROOM = 16  # operations that wait to be looked at, for each that is looked at


class Scratch(NamedTuple):
    """What is looked at for one operation v; scratch.

    heap: operations that wait to be looked at. met: int64 [2, n]: v where an operation waits, and where it was looked
    at. way_s: float64 [3, n], of those: when v could start if they were elsewhere, what is between, what sending takes.
    held: float64 [2, .], starts and times of those that are on the device of v.
    """

    heap: Heap
    met: Int64
    way_s: Float64
    held: Float64


@compiled
def joint_starts(order: Int32, into: Neighbours, least_s: Float64, floor_s: Float64, most: int) -> Float64:
    """Return float64 [n], before when no operation can start, on any device.

    For any set of operations that lead to v: either all of them are on the device of v, which does one after the other
    before v; or one is elsewhere, and something on each way from it to v is sent. Of the sets those are tried that an
    operation after the other makes, the one first that would come latest if it were elsewhere; of `most` operations.

    order: int32 [n], producers first. into: what each operation reads, float64 [m], seconds of sending it, at least;
    inf if it is never sent. least_s: float64 [n], seconds of each operation, at least. floor_s: float64 [n], what is
    known of the starts.

    Source: Papadimitriou, Yannakakis, Towards an Architecture-Independent Analysis of Parallel Algorithms, SIAM J.
    Comput. 19, 1990; here for unequal delays, and with what is known of starts before.
    """
    n = least_s.size
    start_s = floor_s.copy()
    ptr, producer, _ = into
    scratch = Scratch(
        new_heap(ROOM * most + 1), np.full((2, n), -1, np.int64), np.zeros((3, n)), np.empty((2, most + 1))
    )
    for v in order:
        for e in range(ptr[v], ptr[v + 1]):
            start_s[v] = max(start_s[v], start_s[producer[e]] + least_s[producer[e]])
        if most > 0 and ptr[v + 1] > ptr[v]:
            start_s[v] = _joint_start(v, into, least_s, start_s, scratch)
    return start_s


@allocating
def _joint_start(v: int, into: Neighbours, least_s: Float64, start_s: Float64, scratch: Scratch) -> float:
    """Return before when operation v cannot start, at least what is known."""
    ptr, producer, sent_s = into
    heap, met, way_s, held = scratch
    heap.size[0] = 0
    best_s, count, u, between_s, least_sent_s = start_s[v], 0, v, 0.0, math.inf
    while True:
        for e in range(ptr[u], ptr[u + 1]):
            w = producer[e]
            cut_s = min(least_sent_s, sent_s[e])
            away_s = start_s[w] + least_s[w] + between_s + cut_s
            known = met[0, w] == v and way_s[0, w] >= away_s
            if away_s > best_s and met[1, w] != v and not known and heap.size[0] < heap.key.size:
                met[0, w] = v
                way_s[0, w], way_s[1, w], way_s[2, w] = away_s, between_s, cut_s
                push(heap, -away_s, w)
        while heap.size[0] > 0 and met[1, heap.node[0]] == v:
            pop(heap)
        if heap.size[0] == 0 or count == held.shape[1] - 1:
            return float(best_s)
        u = pop(heap)
        met[1, u] = v
        away_s = way_s[0, u]
        alone_s = _one_after_another(held, count, start_s[u], least_s[u])
        count += 1
        best_s = max(best_s, min(alone_s, away_s))
        if alone_s >= away_s:
            return float(best_s)
        between_s, least_sent_s = way_s[1, u] + least_s[u], way_s[2, u]


@allocating
def _one_after_another(held: Float64, count: int, start_s: float, least_s: float) -> float:
    """Return when one device has done `count` operations, their starts and times in `held`, and one more."""
    at = count
    while at > 0 and held[0, at - 1] > start_s:
        held[0, at], held[1, at] = held[0, at - 1], held[1, at - 1]
        at -= 1
    held[0, at], held[1, at] = start_s, least_s
    end_s = 0.0
    for x in range(count + 1):
        end_s = max(end_s, held[0, x]) + held[1, x]
    return end_s


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
