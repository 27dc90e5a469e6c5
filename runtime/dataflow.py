"""The compiled core of `listsched`: devices and links as queues, one event after another.

At one moment finished operations come first, by device; then tensors that arrive, in the order in which they were
sent; then devices that are free take what is ready.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pipeline.compiled import compiled, inlined, kernel
from pipeline.core.arrays import Bool, Float64, Int32, Int64

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
def _reset(machine: Machine, state: State, device: Int32, ordered: bool) -> None:
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
def _enqueue(state: State, device: Int32, priority: Float64, ordered: bool, i: int) -> None:
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
def _dequeue(state: State, priority: Float64, ordered: bool, d: int) -> int:
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
def _depart(state: State, tensor: int, target: int, sent_s: float, arrive_s: float) -> None:
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
def _land(state: State) -> int:
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


@inlined
def _hold(state: State, d: int, amount: float) -> None:
    state.held[d] += amount
    state.peak[d] = max(state.peak[d], state.held[d])


@inlined
def _let_go(machine: Machine, state: State, device: Int32, i: int) -> None:
    """Note that one of those for whom the output of i is held is done with it."""
    state.needed[i] -= 1
    if state.needed[i] == 0:
        state.held[device[i]] -= machine.own[i]


@inlined
def _send(machine: Machine, state: State, d: int, k: int, now_s: float) -> float:
    """Send tensor k from device d to every device that `sends` marks; return when its last transfer is over."""
    last_s, slowest = now_s, 0.0
    start_s = max(now_s, state.out_s[d])
    size = machine.size[k]
    if machine.level == T1:
        for e in range(state.sends.size):
            if state.sends[e] > 0:
                slowest = max(slowest, size * machine.per_byte_s[d, e])
        state.cut[0] += size
    for e in range(state.sends.size):
        if state.sends[e] == 0:
            continue
        if size == 0.0 or machine.level == T0:
            begin_s = now_s
            over_s = now_s + size * machine.per_byte_s[d, e]
        elif machine.level == T1:
            begin_s, over_s = start_s, start_s + slowest
            state.out_s[d] = over_s + machine.gap_s
            last_s = max(last_s, state.out_s[d])
        else:
            begin_s = max(max(now_s, state.out_s[d]), state.in_s[e])
            over_s = begin_s + size * machine.per_byte_s[d, e]
            state.out_s[d] = state.in_s[e] = over_s
        if machine.level != T1:
            state.cut[0] += size
        if machine.track:
            _hold(state, e, size)
            state.needed[machine.maker[k]] += 1
        _depart(state, k, e, begin_s, over_s + machine.latency_s[d, e])
    return last_s


@inlined
def _release(state: State, device: Int32, priority: Float64, ordered: bool, j: int) -> None:
    state.waiting[j] -= 1
    if state.waiting[j] == 0:
        _enqueue(state, device, priority, ordered, j)


@inlined
def _forget_inputs(machine: Machine, state: State, device: Int32, i: int) -> None:
    """Give back what operation i was the last to read."""
    for at in range(machine.in_ptr[i], machine.in_ptr[i + 1]):
        slot = machine.in_slot[at]
        k = machine.slot_tensor[slot]
        source = machine.maker[k]
        if device[source] == device[i]:
            _let_go(machine, state, device, source)
            continue
        x = state.copy[slot]
        state.unread[x] -= 1
        if state.unread[x] == 0:
            state.held[device[i]] -= machine.size[k]


@inlined
def _complete(machine: Machine, state: State, device: Int32, priority: Float64, ordered: bool, d: int) -> float:
    """End what device d runs: release readers here, send to readers elsewhere; return when the last send is over."""
    i = state.running[d]
    now_s = last_s = state.finish_s[d]
    state.running[d] = -1
    state.finish_s[d] = math.inf
    if machine.track:
        state.needed[i] += 1  # itself, until its readers are counted
    for k in range(machine.tensor_ptr[i], machine.tensor_ptr[i + 1]):
        away = False
        for slot in range(machine.reader_ptr[k], machine.reader_ptr[k + 1]):
            j = machine.reader[slot]
            e = device[j]
            if e == d:
                if machine.track:
                    state.needed[i] += 1
                _release(state, device, priority, ordered, j)
            else:
                state.sends[e] += 1
                away = True
        if away:
            last_s = max(last_s, _send(machine, state, d, k, now_s))
            state.sends[:] = 0
    if machine.track:
        _let_go(machine, state, device, i)
        _forget_inputs(machine, state, device, i)
    return float(last_s)


@inlined
def _arrive(machine: Machine, state: State, device: Int32, priority: Float64, ordered: bool) -> None:
    """Hand the transfer that arrives next to its readers."""
    x = _land(state)
    k, e = state.sent[x], state.target[x]
    if machine.track:
        state.unread[x] = 0
        _let_go(machine, state, device, machine.maker[k])
    for slot in range(machine.reader_ptr[k], machine.reader_ptr[k + 1]):
        j = machine.reader[slot]
        if device[j] == e:
            if machine.track:
                state.copy[slot] = x
                state.unread[x] += 1
            _release(state, device, priority, ordered, j)


@inlined
def _start(machine: Machine, state: State, priority: Float64, ordered: bool, d: int, now_s: float) -> float:
    """Let device d take its next operation; return until when that blocks it."""
    i = _dequeue(state, priority, ordered, d)
    cost_s = machine.op_s[i, d]
    end_s = now_s + cost_s
    state.running[d], state.start_s[i], state.end_s[i], state.finish_s[d] = i, now_s, end_s, end_s
    state.busy[d] += cost_s
    state.free_s[d] = end_s + machine.block_s if cost_s > 0.0 or machine.blocks_always else end_s
    if machine.track:
        _hold(state, d, machine.own[i])
    return float(state.free_s[d])


@inlined
def _supported(machine: Machine, device: Int32) -> bool:
    for i in range(device.size):  # noqa: SIM110  numba knows no generators
        if machine.op_s[i, device[i]] == math.inf:
            return False
    return True


@inlined
def _start_free_devices(machine: Machine, state: State, priority: Float64, ordered: bool, now_s: float) -> float:
    """Let every free device take what is ready; return until when that blocks one."""
    last_s = now_s
    for d in range(state.head.size):
        if state.running[d] < 0 and state.head[d] >= 0 and state.free_s[d] <= now_s:
            last_s = max(last_s, _start(machine, state, priority, ordered, d, now_s))
    return last_s


@inlined
def _next_event(state: State) -> float:
    """Return when something happens next; inf when all is done."""
    next_s = math.inf
    if state.moved[1] > 0:
        next_s = state.arrive_s[state.flight[0]]
    for d in range(state.head.size):
        if state.running[d] >= 0:
            next_s = min(next_s, state.finish_s[d])
        elif state.head[d] >= 0:
            next_s = min(next_s, state.free_s[d])
    return next_s


@kernel
def run(machine: Machine, state: State, device: Int32, priority: Float64, ordered: bool) -> float:
    """Return the seconds one plan takes, inf if a device does not support its operations; `state` tells the rest.

    device: int32 [n]. priority: float64 [n], looked at only if `ordered`.
    """
    if not _supported(machine, device):
        return math.inf
    _reset(machine, state, device, ordered)
    for i in range(device.size):
        if state.waiting[i] == 0:
            _enqueue(state, device, priority, ordered, i)
    now_s = last_s = 0.0
    while now_s < math.inf:
        last_s = max(last_s, _start_free_devices(machine, state, priority, ordered, now_s))
        now_s = _next_event(state)
        for d in range(state.head.size):
            if state.running[d] >= 0 and state.finish_s[d] == now_s:
                last_s = max(last_s, _complete(machine, state, device, priority, ordered, d))
        while state.moved[1] > 0 and state.arrive_s[state.flight[0]] <= now_s:
            _arrive(machine, state, device, priority, ordered)
    return last_s


@inlined
def over_bytes(machine: Machine, state: State) -> float:
    """Return by how many bytes the plan that ran last exceeds the devices' memory."""
    total = 0.0
    for d in range(state.peak.size):
        total += max(0.0, state.peak[d] - machine.capacity[d])
    return total


@compiled
def run_all(machine: Machine, device: Int32, priority: Float64, ordered: bool) -> tuple[Float64, ...]:
    """Return seconds [b], excess bytes [b], busy seconds [b, p], peak bytes [b, p] and sent bytes [b] of b plans.

    device: int32 [b, n]. priority: float64 [b, n], looked at only if `ordered`.
    """
    b, p = device.shape[0], machine.op_s.shape[1]
    value_s, over, cut = np.empty(b), np.zeros(b), np.zeros(b)
    busy_s, peak = np.zeros((b, p)), np.zeros((b, p))
    state = new_state(machine)
    for row in range(b):
        value_s[row] = run(machine, state, device[row], priority[row if ordered else 0], ordered)
        if value_s[row] < math.inf:
            over[row] = over_bytes(machine, state)
            busy_s[row], peak[row], cut[row] = state.busy, state.peak, state.cut[0]
    return value_s, over, busy_s, peak, cut


class Trials(NamedTuple):
    """Moves over n operations, as `Moves` has them, and where operations may go, bool [n, p]."""

    ptr: Int64
    node: Int32
    target: Int32
    like: Int32
    shift: Float64
    allowance_s: Float64
    allowed: Bool


class Steps(NamedTuple):
    """What a walk left behind: tried, taken: bool [r]; value_s: float64 [r]; plans int32 [n] and float64 [n]; last and
    best seconds, and the excess bytes of the last: float64 [3].
    """

    tried: Bool
    taken: Bool
    value_s: Float64
    device: Int32
    priority: Float64
    best_device: Int32
    best_priority: Float64
    summary: Float64


@inlined
def _apply(trials: Trials, i: int, device: Int32, priority: Float64, ordered: bool, before: Int32) -> bool:
    """Make move i; return whether it changed anything. `before` receives the devices the operations had."""
    first, last = trials.ptr[i], trials.ptr[i + 1]
    target = trials.target[i]
    if trials.like[i] >= 0:
        target = device[trials.like[i]]
    if target >= 0:
        for at in range(first, last):
            if not trials.allowed[trials.node[at], target]:
                return False
    changed = ordered and trials.shift[i] != 0.0
    for at in range(first, last):
        j = trials.node[at]
        before[at - first] = device[j]
        if target >= 0 and device[j] != target:
            device[j] = target
            changed = True
    if ordered:
        for at in range(first, last):
            priority[trials.node[at]] += trials.shift[i]
    return changed


@compiled
def walk_all(machine: Machine, trials: Trials, device: Int32, priority: Float64, ordered: bool, limit: int) -> Steps:
    """Return where the moves lead from a plan; `device` int32 [n] and `priority` float64 [n] are left alone."""
    r = trials.target.size
    state = new_state(machine)
    here, order = device.copy(), priority.copy()
    before = np.empty(max(1, trials.node.size), np.int32)
    now_s = run(machine, state, here, order, ordered)
    over = over_bytes(machine, state) if now_s < math.inf else math.inf
    best_s = now_s if over == 0.0 else math.inf
    steps = Steps(
        np.zeros(r, np.bool_),
        np.zeros(r, np.bool_),
        np.full(r, math.nan),
        here,
        order,
        here.copy(),
        order.copy(),
        np.empty(3),
    )
    left = limit
    for i in range(r):
        if left == 0:
            break
        if not _apply(trials, i, here, order, ordered, before):
            continue
        left -= 1
        new_s = run(machine, state, here, order, ordered)
        new_over = over_bytes(machine, state) if new_s < math.inf else math.inf
        steps.tried[i] = True
        steps.value_s[i] = new_s if new_over == 0.0 else math.inf
        if new_over < over or (new_over == over and new_s <= now_s + trials.allowance_s[i]):
            steps.taken[i] = True
            now_s, over = new_s, new_over
            if over == 0.0 and now_s < best_s:
                best_s = now_s
                steps.best_device[:] = here
                steps.best_priority[:] = order
            continue
        for at in range(trials.ptr[i], trials.ptr[i + 1]):
            here[trials.node[at]] = before[at - trials.ptr[i]]
            if ordered:
                order[trials.node[at]] -= trials.shift[i]
    steps.summary[0], steps.summary[1], steps.summary[2] = now_s, best_s, over
    return steps
