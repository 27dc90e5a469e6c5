"""The compiled core of `listsched`: devices and links as queues, one event after another.

At one moment finished operations come first, by device; then tensors that arrive, in the order in which they were
sent; then devices that are free take what is ready.

A run may begin in the middle of another: two placements run alike until the first moment at which something looks at
what tells them apart. So a run leaves snapshots as long as it is that of the placement before, and begins at the last
such snapshot.
"""

from __future__ import annotations

import math

from pipeline.core.arrays import Float64, Int32
from pipeline.core.simulation import T0, T1
from pipeline.shared.compiled import inlined, kernel
from pipeline.shared.heaps import pop
from runtime.simulators.dataflow.state import (
    BEFORE_S,
    ENDED,
    UNDER_WAY,
    DataflowMachine,
    DataflowState,
    Dispatch,
    Part,
    Snapshots,
    depart,
    dequeue,
    enqueue,
    next_snapshot,
    restore,
    save,
    under_way,
)


@inlined
def _hold(state: DataflowState, d: int, amount: float) -> None:
    state.held[d] += amount
    state.peak[d] = max(state.peak[d], state.held[d])


@inlined
def _let_go(machine: DataflowMachine, state: DataflowState, placement: Dispatch, i: int) -> None:
    """Note that one of those for whom the output of i is held is done with it."""
    state.needed[i] -= 1
    if state.needed[i] == 0:
        state.held[placement.device[i]] -= machine.own[i]


@inlined
def _send(machine: DataflowMachine, state: DataflowState, d: int, k: int, now_s: float) -> None:
    """Send tensor k from device d to every device that `sends` snapshots, and clear the snapshots."""
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
def _release(state: DataflowState, placement: Dispatch, j: int) -> None:
    state.waiting[j] -= 1
    if state.waiting[j] == 0:
        enqueue(state, placement, j)


@inlined
def _complete(machine: DataflowMachine, state: DataflowState, placement: Dispatch, d: int) -> None:
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
            e = placement.device[j]
            if e == d:
                if machine.track:
                    state.needed[i] += 1
                _release(state, placement, j)
            else:
                state.sends[e] = 1
                away = True
        if away:
            _send(machine, state, d, k, now_s)
    if machine.track:
        _let_go(machine, state, placement, i)
        # Give back what operation i was the last to read
        for at in range(machine.in_ptr[i], machine.in_ptr[i + 1]):
            slot = machine.in_slot[at]
            k = machine.slot_tensor[slot]
            source = machine.maker[k]
            if placement.device[source] == placement.device[i]:
                _let_go(machine, state, placement, source)
                continue
            x = state.copy[slot]
            state.unread[x] -= 1
            if state.unread[x] == 0:
                state.held[placement.device[i]] -= machine.size[k]


@inlined
def _arrive(machine: DataflowMachine, state: DataflowState, placement: Dispatch) -> None:
    """Hand the transfer that arrives next to its readers."""
    x = pop(under_way(state))
    k, e = state.sent[x], state.target[x]
    if machine.track:
        state.unread[x] = 0
        _let_go(machine, state, placement, machine.maker[k])
    for slot in range(machine.reader_ptr[k], machine.reader_ptr[k + 1]):
        j = machine.reader[slot]
        if placement.device[j] == e:
            if machine.track:
                state.copy[slot] = x
                state.unread[x] += 1
            _release(state, placement, j)


@inlined
def _blocked_s(block_s: float, always: bool, cost_s: float) -> float:
    """Return for how long a device stays blocked after an operation that takes cost_s."""
    return block_s if cost_s > 0.0 or always else 0.0


@inlined
def _most(times_s: Float64, most_s: float) -> float:
    for d in range(times_s.size):
        most_s = max(most_s, times_s[d])
    return most_s


@inlined
def _ending(due_s: Float64, running: Int32, now_s: float, d: int) -> int:
    """Return the first device from d on that ends what it runs now."""
    while d < due_s.size and not (due_s[d] == now_s and running[d] >= 0):
        d += 1
    return d


@inlined
def _waking(due_s: Float64, now_s: float, d: int) -> int:
    """Return the first device from d on that is free for what waits; those that run end later."""
    while d < due_s.size and due_s[d] > now_s:
        d += 1
    return d


@inlined
def _load(machine: DataflowMachine, state: DataflowState, placement: Dispatch) -> bool:
    """Add up for how long its work takes each device; return whether all of it is supported."""
    total_s = 0.0
    for d in range(state.load_s.size):
        state.load_s[d] = 0.0
    for i in range(placement.device.size):
        d = placement.device[i]
        cost_s = machine.op_s[i, d]
        state.load_s[d] += cost_s + _blocked_s(machine.block_s, machine.blocks_always, cost_s)
        total_s += cost_s
    return total_s < math.inf


@inlined
def _start_free_devices(
    machine: DataflowMachine, state: DataflowState, placement: Dispatch, limit_s: float, now_s: float
) -> bool:
    """Let every free device take what is ready; return False if one cannot end its work within the limit.

    A device ends no sooner than if it never waited again.
    """
    d = _waking(state.due_s, now_s, 0)
    while d < state.due_s.size:
        if now_s + (state.load_s[d] - state.taken_s[d]) > limit_s:
            return False
        # Let device d take its next operation
        i = dequeue(state, placement, d)
        cost_s = machine.op_s[i, d]
        end_s = now_s + cost_s
        state.running[d], state.start_s[i], state.end_s[i], state.due_s[d] = i, now_s, end_s, end_s
        state.busy[d] += cost_s
        state.taken_s[d] += cost_s + _blocked_s(machine.block_s, machine.blocks_always, cost_s)
        state.free_s[d] = end_s + _blocked_s(machine.block_s, machine.blocks_always, cost_s)
        if machine.track:
            _hold(state, d, machine.own[i])
        d = _waking(state.due_s, now_s, d + 1)
    return True


@inlined
def _begin(
    machine: DataflowMachine, state: DataflowState, snapshots: Snapshots, placement: Dispatch, first_s: float
) -> float:
    """Go back to the last snapshot before a moment; return up to when everything has happened."""
    seen_s = restore(machine, state, snapshots, first_s)
    if seen_s == BEFORE_S:
        for i in range(placement.device.size):
            if state.waiting[i] == 0:
                enqueue(state, placement, i)
    return seen_s


@kernel
def run(machine: DataflowMachine, state: DataflowState, snapshots: Snapshots, placement: Dispatch, part: Part) -> float:
    """Return the seconds of a placement; inf if a device does not support its work, or the run was given up.

    `state` tells the rest.
    """
    if not _load(machine, state, placement):
        return math.inf
    now_s = last_s = _begin(machine, state, snapshots, placement, part.first_s)
    n, most = state.waiting.size, snapshots.seen_s.size
    snapshot = next_snapshot(snapshots.kept[0], most, n)
    while True:
        if state.tally[ENDED] >= snapshot:
            snapshot = n + 1
            if now_s < part.first_s:
                save(state, snapshots, now_s)
                snapshot = next_snapshot(snapshots.kept[0], most, n)
        now_s = state.flight_s[0] if state.tally[UNDER_WAY] > 0 else math.inf
        for d in range(state.due_s.size):
            now_s = min(now_s, state.due_s[d])
        if now_s == math.inf:
            break
        last_s = now_s
        d = _ending(state.due_s, state.running, now_s, 0)
        while d < state.due_s.size:
            _complete(machine, state, placement, d)
            d = _ending(state.due_s, state.running, now_s, d + 1)
        while state.tally[UNDER_WAY] > 0 and state.flight_s[0] <= now_s:
            _arrive(machine, state, placement)
        if not _start_free_devices(machine, state, placement, part.limit_s, now_s):
            return math.inf
    if machine.track:
        # Add what stays to what was held at most
        for i in range(placement.device.size):
            state.peak[placement.device[i]] += machine.weight[i]
    return _most(state.free_s, _most(state.out_s, max(0.0, last_s)))
