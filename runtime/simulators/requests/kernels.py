"""The compiled core of `simulate_requests`: queues that slow one another down, one event after another.

All busy requests of a model go at one speed, which changes only when a request of a model that slows it begins or ends.
So a model has a clock of its own that goes at this speed, a request ends when that clock has gone on by the request's
work, and the order in which the requests of a model end never changes: each model keeps them in a heap by what its
clock will then show, and the next event of all is the least of one moment per model. At one moment ends come first,
those of earlier models ahead.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pipeline.core.arrays import Float64, Int32, Int64
from pipeline.shared.compiled import inlined, kernel

ARRIVED, BEGUN = 0, 1  # places in QueueState.tally
LEAST_BESIDE = 0.1  # times its work that a request takes at least, whatever else is in flight
GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # of splitmix64


class QueueNetwork(NamedTuple):
    """What does not change: n models, c of them caused by another.

    service_s: float64, seconds of requests alone, those of model i rising from service_ptr[i] to service_ptr[i + 1].
    servers: int64 [n], requests in flight. effect: float64 [n, n], by which share one busy request of the first model
    slows those of the second. idle_s: float64 [k], rising from 0, and after_idle: float64 [n, k], times its work that a
    request takes which begins when its model has had none in flight for so long, linear in between and constant beyond.
    beside: float64 [n, n, q], times its work that a request of the first model takes which begins beside some of the
    second, one of q at random; of several models what each adds counts. patience_s: float64 [n], for how long a request
    waits before it is dropped, inf for ever. loops: int64 [n], 1 for closed loops. next_ptr: int64 [n + 1], next_model:
    int64 [c], which models the results of a model cause; calls: float64 [c], how often. stream: int64 [n + c + n], what
    draws work, numbers of calls, and places of `beside`. until_s: when closed loops end. most: how many requests one
    event may begin.
    """

    service_ptr: Int64
    service_s: Float64
    servers: Int64
    effect: Float64
    idle_s: Float64
    after_idle: Float64
    beside: Float64
    patience_s: Float64
    loops: Int64
    next_ptr: Int64
    next_model: Int64
    calls: Float64
    stream: Int64
    until_s: float
    most: int


class QueueState(NamedTuple):
    """What changes, by model, [n] without another shape.

    busy, served, entered: int64, requests in flight, drawn and put in flight so far. clock_s: float64, what the model's
    clock shows, and at_s: float64, when. stretch: float64, how many seconds the clock takes for one. end_s: float64,
    when the next request ends, inf for none. rested_s: float64, when the last of those in flight ended, -inf before the
    first. root, head, tail: int32, of the heap of requests in flight and of the queue, -1 for none. decided: int64 [c],
    results for which it was drawn how often they call. tally: int64 [2], arrivals taken, requests begun.
    """

    busy: Int64
    served: Int64
    clock_s: Float64
    at_s: Float64
    stretch: Float64
    end_s: Float64
    rested_s: Float64
    entered: Int64
    root: Int32
    head: Int32
    tail: Int32
    decided: Int64
    tally: Int64


class RequestTable(NamedTuple):
    """Requests in the order in which they were due, [r].

    model, first: int32, whose it is, and the first request of its chain. due_s, end_s: float64, nan for dropped.
    shown_s: float64, its work, and once it is in flight what the clock of its model shows at its end. left: int32, who
    comes next in the queue, and then with right: int32 the heaps below it. unended: int32, of the first of a chain, how
    many of the chain have not ended.
    """

    model: Int32
    first: Int32
    due_s: Float64
    end_s: Float64
    shown_s: Float64
    left: Int32
    right: Int32
    unended: Int32


@inlined
def _drawn(stream: int, number: int) -> float:
    """Return a number in [0, 1) that depends on nothing but the arguments.

    Source: Steele, Lea and Flood, Fast splittable pseudorandom number generators, OOPSLA 2014, as splitmix64.
    """
    bits = np.uint64(stream) + np.uint64(number + 1) * np.uint64(GOLDEN)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(FIRST)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(SECOND)
    return float((bits ^ (bits >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53


@inlined
def _merged(table: RequestTable, a: int, b: int) -> int:
    """Return the root of two skew heaps as one; -1 is the empty heap.

    Source: Sleator and Tarjan, Self-adjusting heaps, SIAM J. Comput. 15, 1986.
    """
    if a < 0 or b < 0:
        return max(a, b)
    shown_s, left, right = table.shown_s, table.left, table.right
    if shown_s[b] < shown_s[a] or (shown_s[b] == shown_s[a] and b < a):
        a, b = b, a
    root = a
    while True:
        c = right[a]
        right[a] = left[a]
        if c < 0:
            left[a] = b
            return root
        if shown_s[b] < shown_s[c] or (shown_s[b] == shown_s[c] and b < c):
            b, c = c, b
        left[a] = c
        a = c


@inlined
def _tick(state: QueueState, i: int, now_s: float) -> None:
    """Let the clock of a model go on to now."""
    if state.busy[i] > 0:
        state.clock_s[i] += (now_s - state.at_s[i]) / state.stretch[i]
    state.at_s[i] = now_s


@inlined
def _foresee(state: QueueState, table: RequestTable, i: int) -> None:
    """Note when the next request of a model ends, if nothing else happens."""
    state.end_s[i] = math.inf
    if state.root[i] >= 0:
        rest_s = max(0.0, table.shown_s[state.root[i]] - state.clock_s[i])
        state.end_s[i] = state.at_s[i] + rest_s * state.stretch[i]


@inlined
def _count_in_flight(
    net: QueueNetwork, state: QueueState, table: RequestTable, i: int, more: int, now_s: float
) -> None:
    """Count one request of model i in flight more or less, and slow all others accordingly."""
    for j in range(state.busy.size):
        if j != i and net.effect[i, j] != 0.0:
            _tick(state, j, now_s)
            state.stretch[j] += more * net.effect[i, j]
            _foresee(state, table, j)
    state.stretch[i] += more * net.effect[i, i]
    state.busy[i] += more
    if state.busy[i] == 0:
        state.clock_s[i] = 0.0  # as exact after hours as at first


@inlined
def _beside_factor(net: QueueNetwork, state: QueueState, i: int) -> float:
    """Return times its work that a request of model i takes, at random, as it begins beside what is in flight."""
    n, places = state.busy.size, net.beside.shape[2]
    place = int(_drawn(net.stream[net.stream.size - n + i], state.entered[i]) * places)
    state.entered[i] += 1
    factor = 1.0
    for j in range(n):
        if state.busy[j] > (1 if j == i else 0):
            factor += net.beside[i, j, place] - 1.0
    return max(factor, LEAST_BESIDE)


@inlined
def _enter(net: QueueNetwork, state: QueueState, table: RequestTable, i: int, r: int) -> None:
    """Put a request in flight; its model's clock shows now."""
    table.shown_s[r] = table.shown_s[r] * _beside_factor(net, state, i) + state.clock_s[i]
    table.left[r] = table.right[r] = -1
    state.root[i] = _merged(table, state.root[i], r)


@inlined
def _idle_factor(net: QueueNetwork, i: int, idle_s: float) -> float:
    """Return times its work that a request of model i takes after it has been idle for so long."""
    last = net.idle_s.size - 1
    for k in range(last):
        low_s, high_s = net.idle_s[k], net.idle_s[k + 1]
        if idle_s < high_s:
            part = (idle_s - low_s) / (high_s - low_s)
            return float(net.after_idle[i, k] + part * (net.after_idle[i, k + 1] - net.after_idle[i, k]))
    return float(net.after_idle[i, last])


@inlined
def _begin(net: QueueNetwork, state: QueueState, table: RequestTable, i: int, first: int, now_s: float) -> None:
    """Let a request of model i be due; first: that of its chain, -1 for itself."""
    r = state.tally[BEGUN]
    state.tally[BEGUN] += 1
    first = r if first < 0 else first
    choices = net.service_ptr[i + 1] - net.service_ptr[i]
    place = int(_drawn(net.stream[i], state.served[i]) * choices)
    state.served[i] += 1
    table.model[r], table.first[r], table.due_s[r], table.end_s[r] = i, first, now_s, math.nan
    table.shown_s[r], table.left[r], table.unended[r] = net.service_s[net.service_ptr[i] + place], -1, 0
    table.unended[first] += 1
    if state.busy[i] < net.servers[i]:
        _tick(state, i, now_s)
        if state.busy[i] == 0:
            table.shown_s[r] *= _idle_factor(net, i, now_s - state.rested_s[i])
        _count_in_flight(net, state, table, i, 1, now_s)
        _enter(net, state, table, i, r)
        _foresee(state, table, i)
    elif state.head[i] < 0:
        state.head[i] = state.tail[i] = r
    else:
        table.left[state.tail[i]] = r
        state.tail[i] = r


@inlined
def _leave(net: QueueNetwork, state: QueueState, table: RequestTable, r: int, now_s: float) -> None:
    """End a request, served or dropped; a closed loop goes on when all of its chain has ended."""
    first = table.first[r]
    table.unended[first] -= 1
    i = table.model[first]
    if table.unended[first] == 0 and net.loops[i] > 0 and now_s < net.until_s:
        _begin(net, state, table, i, -1, now_s)


@inlined
def _end(net: QueueNetwork, state: QueueState, table: RequestTable, i: int, now_s: float) -> None:
    """End the request of model i that is due to, begin the next of its queue, and those that the result causes."""
    _tick(state, i, now_s)
    r = state.root[i]
    state.root[i] = _merged(table, table.left[r], table.right[r])
    table.end_s[r] = now_s
    taken = -1
    while taken < 0 and state.head[i] >= 0:
        taken = state.head[i]
        state.head[i] = table.left[taken]
        if now_s - table.due_s[table.first[taken]] > net.patience_s[i]:
            _leave(net, state, table, taken, now_s)
            taken = -1
    if taken >= 0:
        _enter(net, state, table, i, taken)
    else:
        _count_in_flight(net, state, table, i, -1, now_s)
        state.rested_s[i] = now_s
    _foresee(state, table, i)
    for c in range(net.next_ptr[i], net.next_ptr[i + 1]):
        count = int(net.calls[c])
        if _drawn(net.stream[net.servers.size + c], state.decided[c]) < net.calls[c] - count:
            count += 1
        state.decided[c] += 1
        for _ in range(count):
            _begin(net, state, table, net.next_model[c], table.first[r], now_s)
    _leave(net, state, table, r, now_s)


@kernel
def serve(net: QueueNetwork, state: QueueState, table: RequestTable, due_s: Float64, model: Int32) -> bool:
    """Serve requests until none is left; return False where the table is full before: it may go on in a larger one.

    due_s: float64, rising, when the first request of a chain is due; model: int32, whose it is.
    """
    while state.tally[BEGUN] + net.most <= table.model.size:
        now_s, i = math.inf, -1
        for j in range(state.end_s.size):
            if state.end_s[j] < now_s:
                now_s, i = state.end_s[j], j
        a = state.tally[ARRIVED]
        if a < due_s.size and due_s[a] < now_s:
            state.tally[ARRIVED] += 1
            _begin(net, state, table, model[a], -1, due_s[a])
        elif i < 0:
            return True
        else:
            _end(net, state, table, i, now_s)
    return False
