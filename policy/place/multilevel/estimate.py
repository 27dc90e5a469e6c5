"""The compiled core of `sketch`: cells and tensors in the order of events, and local searches."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32, Int64
from pipeline.shared.compiled import allocating, compiled, inner

ROUNDING = 1e-9  # of sums of seconds


class Sketch(NamedTuple):
    """c cells, the tensors they make, and the devices.

    tensor_ptr: int64 [c + 1]: cell i makes the tensors tensor_ptr[i]:tensor_ptr[i + 1]; size: float64 [t], bytes, of
    which reader[reader_ptr[t]:reader_ptr[t + 1]] are the cells that read tensor t. awaits: int32 [c], how many reads
    a cell waits for. op_s: float64 [c, p]. tail_s: float64 [c], the least time from a cell's begin to the end.
    held: int64 [c] and room: int64 [p], bytes. latency_s, per_byte_s: float64 [p, p].
    """

    tensor_ptr: Int64
    size: Float64
    reader_ptr: Int64
    reader: Int32
    awaits: Int32
    op_s: Float64
    tail_s: Float64
    held: Int64
    room: Int64
    latency_s: Float64
    per_byte_s: Float64


class SketchTrials(NamedTuple):
    """Moves of cells as `pipeline.core.simulation.Moves` has them of nodes; allowed: bool [c, p]."""

    ptr: Int64
    cell: Int32
    device: Int32
    like: Int32
    threshold_s: Float64
    allowed: Bool


@inner
def _push(at_s: Float64, what: Int32, size: int, key: float, item: int) -> int:
    """Put an event into a heap of `size`, the earliest first, of equal ones the least; return the new size."""
    i = size
    while i > 0:
        above = (i - 1) // 2
        if at_s[above] < key or (at_s[above] == key and what[above] < item):
            break
        at_s[i], what[i] = at_s[above], what[above]
        i = above
    at_s[i], what[i] = key, item
    return size + 1


@inner
def _drop(at_s: Float64, what: Int32, size: int) -> int:
    """Take the first event out of a heap of `size`; return the new size."""
    size -= 1
    key, item = at_s[size], what[size]
    i = 0
    while True:
        below = 2 * i + 1
        if below >= size:
            break
        other = below + 1
        if other < size and (at_s[other] < at_s[below] or (at_s[other] == at_s[below] and what[other] < what[below])):
            below = other
        if at_s[below] > key or (at_s[below] == key and what[below] > item):
            break
        at_s[i], what[i] = at_s[below], what[below]
        i = below
    at_s[i], what[i] = key, item
    return size


@allocating
def _send(sketch: Sketch, device: Int32, t: int, here: int, now_s: float, links: Float64, arrived: Float64) -> None:
    """Fill `arrived` [p] with when a tensor is on each device that reads it; links [2, p]: free for sending, taking."""
    arrived[:] = -1.0
    for e in range(sketch.reader_ptr[t], sketch.reader_ptr[t + 1]):
        arrived[device[sketch.reader[e]]] = now_s
    for d in range(arrived.size):
        if arrived[d] < 0 or d == here:
            continue
        if sketch.size[t] > 0:
            over = max(now_s, links[0, here], links[1, d]) + sketch.size[t] * sketch.per_byte_s[here, d]
            links[0, here] = links[1, d] = arrived[d] = over
        arrived[d] += sketch.latency_s[here, d]


@compiled
def estimate_s(sketch: Sketch, device: Int32, limit_s: float) -> float:
    """Return the seconds of a placement, int32 [c]: cells in the order in which they become ready, tensors likewise.

    Of cells ready at one moment those that read nothing go first, the others in the order of the reads that they waited
    for last, as the simulator hands tensors to their readers.

    inf as soon as it is certain that it takes longer than limit_s: by a cell that is ready too late for what must
    follow it, or by a device with too much work left.
    """
    c, p = sketch.op_s.shape
    left_s = np.zeros(p)  # work not yet begun
    for i in range(c):
        left_s[device[i]] += sketch.op_s[i, device[i]]
    waiting, ready_s, last = sketch.awaits.copy(), np.zeros(c), np.zeros(c, np.int64)
    at_s, what = np.empty(c + 1), np.empty(c + 1, np.int32)
    free, links, arrived = np.zeros(p), np.zeros((2, p)), np.empty(p)
    events, end_s = 0, 0.0
    for i in range(c):
        if waiting[i] == 0:
            events = _push(at_s, what, events, 0.0, i)
    while events > 0:
        now_s, event = at_s[0], what[0]
        events = _drop(at_s, what, events)
        if event >= 0:  # a cell is ready: itself if it reads nothing, else c and its last read; below 0 one has ended
            i = event if event < c else sketch.reader[event - c]
            d = device[i]
            start = max(free[d], now_s)
            if max(start + left_s[d], start + sketch.tail_s[i]) > limit_s:
                return np.inf
            left_s[d] -= sketch.op_s[i, d]
            free[d] = start + sketch.op_s[i, d]
            events = _push(at_s, what, events, free[d], -i - 1)
            continue
        i = -event - 1
        end_s = now_s
        for t in range(sketch.tensor_ptr[i], sketch.tensor_ptr[i + 1]):
            _send(sketch, device, t, device[i], now_s, links, arrived)
            for e in range(sketch.reader_ptr[t], sketch.reader_ptr[t + 1]):
                j = sketch.reader[e]
                if arrived[device[j]] >= ready_s[j]:
                    ready_s[j], last[j] = arrived[device[j]], e
                waiting[j] -= 1
                if waiting[j] == 0:
                    events = _push(at_s, what, events, ready_s[j], c + last[j])
    return end_s


@compiled
def local_search(sketch: Sketch, trials: SketchTrials, start: Int32) -> tuple[Int32, float, Int32, float]:
    """Return (end, its seconds, best, its seconds) of a local search from a placement; moves that exceed memory are not
    taken.
    """
    device, now_s = start.copy(), estimate_s(sketch, start, np.inf)
    best, best_s = start.copy(), now_s
    free = sketch.room.copy()
    for i in range(device.size):
        free[device[i]] -= sketch.held[i]
    was = np.empty(device.size, np.int32)
    for r in range(trials.device.size):
        goal = device[trials.like[r]] if trials.like[r] >= 0 else trials.device[r]
        begin, end = trials.ptr[r], trials.ptr[r + 1]
        changes, fits, more = False, True, 0
        for e in range(begin, end):
            i = trials.cell[e]
            was[e - begin] = device[i]
            changes = changes or device[i] != goal
            fits = fits and trials.allowed[i, goal]
            more += sketch.held[i] if device[i] != goal else 0
        if not changes or not fits or (more > 0 and more > free[goal]):
            continue
        for e in range(begin, end):
            device[trials.cell[e]] = goal
        limit_s = now_s + trials.threshold_s[r]
        value_s = estimate_s(sketch, device, limit_s * (1 + ROUNDING))
        taken = value_s <= limit_s
        for e in range(begin, end):
            i, before = trials.cell[e], was[e - begin]
            if taken:
                free[before] += sketch.held[i]
                free[goal] -= sketch.held[i]
            else:
                device[i] = before
        now_s = value_s if taken else now_s
        if taken and value_s < best_s:
            best[:], best_s = device, value_s
    return device, now_s, best, best_s
