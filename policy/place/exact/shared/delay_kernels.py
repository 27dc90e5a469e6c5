"""How long operations wait for what leads to them, together on one device or sent from others."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pipeline.core.arrays import Float64, Int32, Int64
from pipeline.shared.compiled import allocating, compiled
from pipeline.shared.heaps import Heap, new_heap, pop, push
from policy.place.exact.shared.bound_kernels import Neighbours

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
