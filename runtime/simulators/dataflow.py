"""The compiled core of `listsched`: devices and links as queues, one event after another.

At one moment finished operations come first, by device; then tensors that arrive, in the order in which they were
sent; then devices that are free take what is ready.
"""

from __future__ import annotations

import math

from pipeline.compiled import inlined, kernel
from pipeline.core.arrays import Float64, Int32
from runtime.simulators.dataflow_state import T0, T1, Machine, State, depart, dequeue, enqueue, land, reset


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
        depart(state, k, e, begin_s, over_s + machine.latency_s[d, e])
    return last_s


@inlined
def _release(state: State, device: Int32, priority: Float64, ordered: bool, j: int) -> None:
    state.waiting[j] -= 1
    if state.waiting[j] == 0:
        enqueue(state, device, priority, ordered, j)


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
    x = land(state)
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
    i = dequeue(state, priority, ordered, d)
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
    reset(machine, state, device, ordered)
    for i in range(device.size):
        if state.waiting[i] == 0:
            enqueue(state, device, priority, ordered, i)
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
