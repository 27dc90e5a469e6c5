"""The compiled core of coarse instances: cells and tensors in the order of events, and local searches."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32, Int64
from pipeline.shared.compiled import allocating, compiled
from pipeline.shared.heaps import new_heap, pop, push

ROUNDING = 1e-9  # of sums of seconds


class CoarseInstance(NamedTuple):
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


class CoarseTrials(NamedTuple):
    """Moves of cells as `pipeline.core.simulation.Moves` has them of nodes; allowed: bool [c, p]."""

    ptr: Int64
    cell: Int32
    device: Int32
    like: Int32
    threshold_s: Float64
    allowed: Bool


@allocating
def _send(
    coarse: CoarseInstance, device: Int32, t: int, here: int, now_s: float, links: Float64, arrived: Float64
) -> None:
    """Fill `arrived` [p] with when a tensor is on each device that reads it; links [2, p]: free for sending, taking."""
    arrived[:] = -1.0
    for e in range(coarse.reader_ptr[t], coarse.reader_ptr[t + 1]):
        arrived[device[coarse.reader[e]]] = now_s
    for d in range(arrived.size):
        if arrived[d] < 0 or d == here:
            continue
        if coarse.size[t] > 0:
            over = max(now_s, links[0, here], links[1, d]) + coarse.size[t] * coarse.per_byte_s[here, d]
            links[0, here] = links[1, d] = arrived[d] = over
        arrived[d] += coarse.latency_s[here, d]


@compiled
def estimate_s(coarse: CoarseInstance, device: Int32, limit_s: float) -> float:
    """Return the seconds of a placement, int32 [c]: cells in the order in which they become ready, tensors likewise.

    Of cells ready at one moment those that read nothing go first, the others in the order of the reads that they waited
    for last, as the simulator hands tensors to their readers.

    inf as soon as it is certain that it takes longer than limit_s: by a cell that is ready too late for what must
    follow it, or by a device with too much work left.
    """
    c, p = coarse.op_s.shape
    left_s = np.zeros(p)  # work not yet begun
    for i in range(c):
        left_s[device[i]] += coarse.op_s[i, device[i]]
    waiting, ready_s, last = coarse.awaits.copy(), np.zeros(c), np.zeros(c, np.int64)
    events = new_heap(c + 1)
    free, links, arrived = np.zeros(p), np.zeros((2, p)), np.empty(p)
    end_s = 0.0
    for i in range(c):
        if waiting[i] == 0:
            push(events, 0.0, i)
    while events.size[0] > 0:
        now_s, event = events.key[0], pop(events)
        if event >= 0:  # a cell is ready: itself if it reads nothing, else c and its last read; below 0 one has ended
            i = event if event < c else coarse.reader[event - c]
            d = device[i]
            start = max(free[d], now_s)
            if max(start + left_s[d], start + coarse.tail_s[i]) > limit_s:
                return np.inf
            left_s[d] -= coarse.op_s[i, d]
            free[d] = start + coarse.op_s[i, d]
            push(events, free[d], -i - 1)
            continue
        i = -event - 1
        end_s = now_s
        for t in range(coarse.tensor_ptr[i], coarse.tensor_ptr[i + 1]):
            _send(coarse, device, t, device[i], now_s, links, arrived)
            for e in range(coarse.reader_ptr[t], coarse.reader_ptr[t + 1]):
                j = coarse.reader[e]
                if arrived[device[j]] >= ready_s[j]:
                    ready_s[j], last[j] = arrived[device[j]], e
                waiting[j] -= 1
                if waiting[j] == 0:
                    push(events, ready_s[j], c + last[j])
    return end_s


@compiled
def local_search(coarse: CoarseInstance, trials: CoarseTrials, start: Int32) -> tuple[Int32, float, Int32, float]:
    """Return (end, its seconds, best, its seconds) of a local search from a placement; moves that exceed memory are not
    taken.
    """
    device, now_s = start.copy(), estimate_s(coarse, start, np.inf)
    best, best_s = start.copy(), now_s
    free = coarse.room.copy()
    for i in range(device.size):
        free[device[i]] -= coarse.held[i]
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
            more += coarse.held[i] if device[i] != goal else 0
        if not changes or not fits or (more > 0 and more > free[goal]):
            continue
        for e in range(begin, end):
            device[trials.cell[e]] = goal
        limit_s = now_s + trials.threshold_s[r]
        value_s = estimate_s(coarse, device, limit_s * (1 + ROUNDING))
        taken = value_s <= limit_s
        for e in range(begin, end):
            i, before = trials.cell[e], was[e - begin]
            if taken:
                free[before] += coarse.held[i]
                free[goal] -= coarse.held[i]
            else:
                device[i] = before
        now_s = value_s if taken else now_s
        if taken and value_s < best_s:
            best[:], best_s = device, value_s
    return device, now_s, best, best_s
