"""What the dataflow machine of `listsched` is made of: what stays, what changes, and its queues."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pipeline.compiled import compiled, inlined
from pipeline.core.arrays import Float64, Int32, Int64

T0, T1, T2 = 0, 1, 2


class Machine(NamedTuple):
    """What does not change from plan to plan: n operations, t tensors, m reads of tensors, p devices.

    op_s: float64 [n, p]. weight, own: float64 [n], bytes that stay, and bytes of the output while it is needed.
    tensor_ptr: int64 [n + 1], operation i makes the tensors tensor_ptr[i] .. tensor_ptr[i + 1].
    maker: int32 [t]. size: float64 [t], bytes. reader_ptr: int64 [t + 1]; reader: int32 [m], sorted by tensor.
    in_ptr: int64 [n + 1]; in_slot: int64 [m], where operation i stands in `reader`; slot_tensor: int32 [m].
    per_byte_s, latency_s: float64 [p, p]. capacity: float64 [p], bytes, inf for no limit.
    level: T0, T1 or T2. block_s, gap_s: see `Semantics`. blocks_always: whether operations of no time block as well.
    track: whether activations and copies are accounted for.
    """

    op_s: Float64
    weight: Float64
    own: Float64
    tensor_ptr: Int64
    maker: Int32
    size: Float64
    reader_ptr: Int64
    reader: Int32
    in_ptr: Int64
    in_slot: Int64
    slot_tensor: Int32
    per_byte_s: Float64
    latency_s: Float64
    capacity: Float64
    level: int
    block_s: float
    gap_s: float
    blocks_always: bool
    track: bool


class State(NamedTuple):
    """What changes while one plan runs; made once, and reset for every plan.

    waiting: int32 [n], reads an operation waits for. start_s, end_s: float64 [n].
    link: int32 [n], head, tail: int32 [p], first come, first served. heap: int32 [n], base: int64 [p + 1],
    ready: int64 [p], the ready operations of each device by priority.
    running: int32 [p], -1 for none. finish_s, free_s, out_s, in_s: float64 [p].
    sends: int32 [p], how many readers of a tensor each device holds. sent, target: int32 [m], sent_s, arrive_s:
    float64 [m], transfers. flight: int32 [m], transfers under way, a heap by arrival.
    needed: int32 [n], reads and sends for which an output is still held. copy: int32 [m], transfer each read waits
    for. unread: int32 [m], reads a received copy is still held for. held, peak, busy: float64 [p].
    moved: int64 [2], transfers begun, transfers under way. cut: float64 [1], bytes sent.
    """

    waiting: Int32
    start_s: Float64
    end_s: Float64
    link: Int32
    head: Int32
    tail: Int32
    heap: Int32
    base: Int64
    ready: Int64
    running: Int32
    finish_s: Float64
    free_s: Float64
    out_s: Float64
    in_s: Float64
    sends: Int32
    sent: Int32
    target: Int32
    sent_s: Float64
    arrive_s: Float64
    flight: Int32
    needed: Int32
    copy: Int32
    unread: Int32
    held: Float64
    peak: Float64
    busy: Float64
    moved: Int64
    cut: Float64


@compiled
def new_state(machine: Machine) -> State:
    """Return a state of the right size; it holds nothing yet."""
    n, p = machine.op_s.shape
    m = machine.reader.size
    return State(
        np.empty(n, np.int32),
        np.empty(n),
        np.empty(n),
        np.empty(n, np.int32),
        np.empty(p, np.int32),
        np.empty(p, np.int32),
        np.empty(n, np.int32),
        np.zeros(p + 1, np.int64),
        np.empty(p, np.int64),
        np.empty(p, np.int32),
        np.empty(p),
        np.empty(p),
        np.empty(p),
        np.empty(p),
        np.zeros(p, np.int32),
        np.empty(m, np.int32),
        np.empty(m, np.int32),
        np.empty(m),
        np.empty(m),
        np.empty(m, np.int32),
        np.empty(n, np.int32),
        np.empty(m, np.int32),
        np.empty(m, np.int32),
        np.empty(p),
        np.empty(p),
        np.empty(p),
        np.zeros(2, np.int64),
        np.zeros(1),
    )


@inlined
def reset(machine: Machine, state: State, device: Int32, ordered: bool) -> None:
    n = device.size
    for d in range(state.head.size):
        state.head[d] = state.tail[d] = state.running[d] = -1
        state.ready[d] = 0
        state.finish_s[d] = math.inf
        state.free_s[d] = state.out_s[d] = state.in_s[d] = state.held[d] = state.busy[d] = 0.0
    state.moved[0] = state.moved[1] = 0
    state.cut[0] = 0.0
    for i in range(n):
        state.waiting[i] = machine.in_ptr[i + 1] - machine.in_ptr[i]
        state.held[device[i]] += machine.weight[i]
    for d in range(state.head.size):
        state.peak[d] = state.held[d]
    if ordered:
        state.base[:] = 0
        for i in range(n):
            state.base[device[i] + 1] += 1
        for d in range(state.head.size):
            state.base[d + 1] += state.base[d]
    if machine.track:
        state.needed[:] = 0


@inlined
def enqueue(state: State, device: Int32, priority: Float64, ordered: bool, i: int) -> None:
    """Let an operation wait for its device."""
    d = device[i]
    if not ordered:
        state.link[i] = -1
        if state.head[d] < 0:
            state.head[d] = i
        else:
            state.link[state.tail[d]] = i
        state.tail[d] = i
        return
    base, at = state.base[d], state.ready[d]
    state.ready[d] += 1
    while at > 0:
        above = (at - 1) >> 1
        j = state.heap[base + above]
        if priority[j] < priority[i] or (priority[j] == priority[i] and j < i):
            break
        state.heap[base + at] = j
        at = above
    state.heap[base + at] = i
    state.head[d] = state.heap[base]


@inlined
def dequeue(state: State, priority: Float64, ordered: bool, d: int) -> int:
    """Return the operation that device d takes next, which leaves its queue."""
    first = state.head[d]
    if not ordered:
        state.head[d] = state.link[first]
        return int(first)
    state.ready[d] -= 1
    base, size = state.base[d], state.ready[d]
    if size == 0:
        state.head[d] = -1
        return int(first)
    last, at = state.heap[base + size], 0
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        j = state.heap[base + below]
        if below + 1 < size:
            k = state.heap[base + below + 1]
            if priority[k] < priority[j] or (priority[k] == priority[j] and k < j):
                below += 1
                j = k
        if priority[last] < priority[j] or (priority[last] == priority[j] and last < j):
            break
        state.heap[base + at] = j
        at = below
    state.heap[base + at] = last
    state.head[d] = state.heap[base]
    return int(first)


@inlined
def depart(state: State, tensor: int, target: int, sent_s: float, arrive_s: float) -> None:
    """Put a transfer under way."""
    x, at = state.moved[0], state.moved[1]
    state.moved[0] += 1
    state.moved[1] += 1
    state.sent[x], state.target[x], state.sent_s[x], state.arrive_s[x] = tensor, target, sent_s, arrive_s
    while at > 0:
        above = (at - 1) >> 1
        if state.arrive_s[state.flight[above]] <= arrive_s:
            break
        state.flight[at] = state.flight[above]
        at = above
    state.flight[at] = x


@inlined
def land(state: State) -> int:
    """Return the transfer that arrives next, which is then no longer under way."""
    first = state.flight[0]
    state.moved[1] -= 1
    size = state.moved[1]
    last, at = state.flight[size], 0
    last_s = state.arrive_s[last]
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        x = state.flight[below]
        if below + 1 < size:
            y = state.flight[below + 1]
            if state.arrive_s[y] < state.arrive_s[x] or (state.arrive_s[y] == state.arrive_s[x] and y < x):
                below += 1
                x = y
        if last_s < state.arrive_s[x] or (last_s == state.arrive_s[x] and last < x):
            break
        state.flight[at] = x
        at = below
    if size > 0:
        state.flight[at] = last
    return int(first)
