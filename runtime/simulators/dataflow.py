"""The compiled core of `listsched`: devices and links as queues, one event after another.

At one moment finished operations come first, by device; then tensors that arrive, in the order in which they were
sent; then devices that are free take what is ready.

A run may begin in the middle of another: two plans run alike until the first moment at which something looks at what
tells them apart. So a run leaves marks as long as it is that of the plan before, and begins at the last such mark.
"""

from __future__ import annotations

import math

from pipeline.compiled import inlined, kernel
from runtime.simulators.dataflow_marks import BEFORE_S, Marks, Part, restore, save
from runtime.simulators.dataflow_state import (
    ENDED,
    T0,
    T1,
    UNDER_WAY,
    Machine,
    Plan,
    State,
    depart,
    dequeue,
    enqueue,
    land,
    taken_s,
)


@inlined
def _hold(state: State, d: int, amount: float) -> None:
    state.held[d] += amount
    state.peak[d] = max(state.peak[d], state.held[d])


@inlined
def _let_go(machine: Machine, state: State, plan: Plan, i: int) -> None:
    """Note that one of those for whom the output of i is held is done with it."""
    state.needed[i] -= 1
    if state.needed[i] == 0:
        state.held[plan.device[i]] -= machine.own[i]


@inlined
def _send(machine: Machine, state: State, d: int, k: int, now_s: float) -> None:
    """Send tensor k from device d to every device that `sends` marks, and clear the marks."""
    start_s, slowest = max(now_s, state.out_s[d]), 0.0
    size = machine.size[k]
    if machine.level == T1:
        for e in range(state.sends.size):
            if state.sends[e] > 0:
                slowest = max(slowest, size * machine.per_byte_s[d, e])
    for e in range(state.sends.size):
        if state.sends[e] == 0:
            continue
        state.sends[e] = 0
        if size == 0.0 or machine.level == T0:
            begin_s = now_s
            over_s = now_s + size * machine.per_byte_s[d, e]
        elif machine.level == T1:
            begin_s, over_s = start_s, start_s + slowest
            state.out_s[d] = over_s + machine.gap_s
        else:
            begin_s = max(max(now_s, state.out_s[d]), state.in_s[e])
            over_s = begin_s + size * machine.per_byte_s[d, e]
            state.out_s[d] = state.in_s[e] = over_s
        if machine.track:
            _hold(state, e, size)
            state.needed[machine.maker[k]] += 1
        depart(state, k, e, begin_s, over_s + machine.latency_s[d, e])


@inlined
def _release(state: State, plan: Plan, j: int) -> None:
    state.waiting[j] -= 1
    if state.waiting[j] == 0:
        enqueue(state, plan, j)


@inlined
def _forget_inputs(machine: Machine, state: State, plan: Plan, i: int) -> None:
    """Give back what operation i was the last to read."""
    for at in range(machine.in_ptr[i], machine.in_ptr[i + 1]):
        slot = machine.in_slot[at]
        k = machine.slot_tensor[slot]
        source = machine.maker[k]
        if plan.device[source] == plan.device[i]:
            _let_go(machine, state, plan, source)
            continue
        x = state.copy[slot]
        state.unread[x] -= 1
        if state.unread[x] == 0:
            state.held[plan.device[i]] -= machine.size[k]


@inlined
def _complete(machine: Machine, state: State, plan: Plan, d: int) -> None:
    """End what device d runs: release readers here, send to readers elsewhere."""
    i, now_s = state.running[d], state.due_s[d]
    state.running[d] = -1
    state.due_s[d] = state.free_s[d] if state.head[d] >= 0 else math.inf
    state.tally[ENDED] += 1
    if machine.track:
        state.needed[i] += 1  # itself, until its readers are counted
    for k in range(machine.tensor_ptr[i], machine.tensor_ptr[i + 1]):
        away = False
        for slot in range(machine.reader_ptr[k], machine.reader_ptr[k + 1]):
            j = machine.reader[slot]
            e = plan.device[j]
            if e == d:
                if machine.track:
                    state.needed[i] += 1
                _release(state, plan, j)
            else:
                state.sends[e] = 1
                away = True
        if away:
            _send(machine, state, d, k, now_s)
    if machine.track:
        _let_go(machine, state, plan, i)
        _forget_inputs(machine, state, plan, i)


@inlined
def _arrive(machine: Machine, state: State, plan: Plan) -> None:
    """Hand the transfer that arrives next to its readers."""
    x = land(state)
    k, e = state.sent[x], state.target[x]
    if machine.track:
        state.unread[x] = 0
        _let_go(machine, state, plan, machine.maker[k])
    for slot in range(machine.reader_ptr[k], machine.reader_ptr[k + 1]):
        j = machine.reader[slot]
        if plan.device[j] == e:
            if machine.track:
                state.copy[slot] = x
                state.unread[x] += 1
            _release(state, plan, j)


@inlined
def _start(machine: Machine, state: State, plan: Plan, d: int, now_s: float) -> None:
    """Let device d take its next operation."""
    i = dequeue(state, plan, d)
    cost_s, end_s = machine.op_s[i, d], now_s + machine.op_s[i, d]
    state.running[d], state.start_s[i], state.end_s[i], state.due_s[d] = i, now_s, end_s, end_s
    state.busy[d] += cost_s
    state.taken_s[d] += taken_s(machine, i, d)
    state.free_s[d] = end_s + machine.block_s if cost_s > 0.0 or machine.blocks_always else end_s
    if machine.track:
        _hold(state, d, machine.own[i])


@inlined
def _next_event(state: State) -> float:
    """Return when something happens next; inf when all is done."""
    next_s = state.flight_s[0] if state.tally[UNDER_WAY] > 0 else math.inf
    for d in range(state.due_s.size):
        next_s = min(next_s, state.due_s[d])
    return next_s


@inlined
def _last_release(state: State, now_s: float) -> float:
    """Return when the last device and the last link are free, at the earliest now."""
    for d in range(state.free_s.size):
        now_s = max(now_s, max(state.free_s[d], state.out_s[d]))
    return now_s


@inlined
def _ending(state: State, now_s: float, d: int) -> int:
    """Return the first device from d on that ends what it runs now."""
    while d < state.due_s.size and not (state.due_s[d] == now_s and state.running[d] >= 0):
        d += 1
    return d


@inlined
def _waking(state: State, now_s: float, d: int) -> int:
    """Return the first device from d on that is free for what waits; those that run end later."""
    while d < state.due_s.size and state.due_s[d] > now_s:
        d += 1
    return d


@inlined
def _start_free_devices(machine: Machine, state: State, plan: Plan, part: Part, now_s: float) -> bool:
    """Let every free device take what is ready; return False if one cannot end its work within the limit.

    A device ends no sooner than if it never waited again.
    """
    d = _waking(state, now_s, 0)
    while d < state.due_s.size:
        if now_s + (part.load_s[d] - state.taken_s[d]) > part.limit_s:
            return False
        _start(machine, state, plan, d, now_s)
        d = _waking(state, now_s, d + 1)
    return True


@inlined
def _begin(state: State, marks: Marks, plan: Plan, first_s: float) -> float:
    """Go back to the last mark before a moment; return up to when everything has happened."""
    seen_s = restore(state, marks, first_s)
    if seen_s == BEFORE_S:
        for i in range(plan.device.size):
            if state.waiting[i] == 0:
                enqueue(state, plan, i)
    return seen_s


@inlined
def _next_mark(state: State, marks: Marks) -> int:
    """Return how many operations have to end before the next mark is left; more than there are if none is."""
    n, most = state.waiting.size, marks.seen_s.size
    kept = marks.kept[0]
    return int(kept * (n // most + 1) if kept < most else n + 1)


@kernel
def run(machine: Machine, state: State, marks: Marks, plan: Plan, part: Part) -> float:
    """Return the seconds of a plan that the devices support, inf if it was given up; `state` tells the rest."""
    now_s = last_s = _begin(state, marks, plan, part.first_s)
    mark = _next_mark(state, marks)
    while True:
        if state.tally[ENDED] >= mark:
            alike = now_s < part.first_s
            if alike:
                save(state, marks, now_s)
            mark = _next_mark(state, marks) if alike else state.waiting.size + 1
        now_s = _next_event(state)
        if now_s == math.inf:
            return _last_release(state, max(0.0, last_s))
        last_s = now_s
        d = _ending(state, now_s, 0)
        while d < state.due_s.size:
            _complete(machine, state, plan, d)
            d = _ending(state, now_s, d + 1)
        while state.tally[UNDER_WAY] > 0 and state.flight_s[0] <= now_s:
            _arrive(machine, state, plan)
        if not _start_free_devices(machine, state, plan, part, now_s):
            return math.inf
