"""The kernels of the simulator `latency`; `runtime.simulators.calls.latency` says what they compute."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32, Int64
from pipeline.shared.compiled import allocating, compiled, inner
from runtime.simulators.shared.local_search import (
    Changes,
    SearchTrace,
    excess,
    initialise_trace,
    record_move,
    target_of,
)


class LatencyMachine(NamedTuple):
    """One subject: n operations in k nodes, t nets, p devices.

    op_s: float64 [n, p], seconds. node: int32 [n]. weight_bytes: int64 [k]. capacity_bytes: int64 [p]. cpu: bool [p].
    ptr: int64 [t + 1], member: int32: net i holds the operations member[ptr[i]:ptr[i + 1]]. size: int64 [t], bytes.
    pay_s: float64 [t, p], what a call pays that holds a net partly. out_ptr: int64 [n + 1], reader: int32: operation i
    is read by reader[out_ptr[i]:out_ptr[i + 1]]. calls: of each accelerator at most.
    """

    op_s: Float64
    node: Int32
    weight_bytes: Int64
    capacity_bytes: Int64
    cpu: Bool
    ptr: Int64
    member: Int32
    size: Int64
    pay_s: Float64
    out_ptr: Int64
    reader: Int32
    calls: int


class LatencyState(NamedTuple):
    """A placement, and what happens under it. A block is an operation on a CPU, or a call.

    device: int64 [k]; order: float64 [k], priorities. block: int64 [n], of each operation; of p devices, the calls
    have the numbers n + d * calls, and on. first: int64 [blocks], next: int64 [n], the operations of each block, -1
    behind the last. lasts_s, start_s, end_s: float64 [blocks]. waits: int64 [blocks], edges that are still to come.
    queue: int64 [blocks]. held_bytes: int64 [p].
    """

    device: Int64
    order: Float64
    block: Int64
    first: Int64
    next: Int64
    lasts_s: Float64
    start_s: Float64
    end_s: Float64
    waits: Int64
    queue: Int64
    held_bytes: Int64


class LatencyFigures(NamedTuple):
    """What b placements cost.

    value_s: float64 [b]. held_bytes: int64 [b, p]. busy_s: float64 [b, p]. sent_bytes: int64 [b].
    """

    value_s: Float64
    held_bytes: Int64
    busy_s: Float64
    sent_bytes: Int64


def blank(machine: LatencyMachine) -> LatencyState:
    """Return a state without a placement."""
    n, p = machine.op_s.shape
    k, blocks = machine.weight_bytes.size, n + p * machine.calls
    return LatencyState(
        device=np.zeros(k, np.int64),
        order=np.zeros(k),
        block=np.zeros(n, np.int64),
        first=np.zeros(blocks, np.int64),
        next=np.zeros(n, np.int64),
        lasts_s=np.zeros(blocks),
        start_s=np.zeros(blocks),
        end_s=np.zeros(blocks),
        waits=np.zeros(blocks, np.int64),
        queue=np.zeros(blocks, np.int64),
        held_bytes=np.zeros(p, np.int64),
    )


@inner
def _pay(machine: LatencyMachine, state: LatencyState) -> None:
    """Let calls pay for the nets of which they hold a part."""
    n = machine.node.size
    state.waits.fill(0)  # counts the members of a net here
    for i in range(machine.size.size):
        members = machine.ptr[i + 1] - machine.ptr[i]
        for x in range(machine.ptr[i], machine.ptr[i + 1]):
            state.waits[state.block[machine.member[x]]] += 1
        for x in range(machine.ptr[i], machine.ptr[i + 1]):
            block = state.block[machine.member[x]]
            if block >= n and 0 < state.waits[block] < members:
                state.lasts_s[block] += machine.pay_s[i, (block - n) // machine.calls]
            state.waits[block] = 0


@inner
def latency_s(machine: LatencyMachine, state: LatencyState) -> float:
    """Return when the last block ends under the state's placement; inf where blocks wait for one another."""
    n, q = machine.node.size, machine.calls
    # The block of every operation, and what blocks compute
    state.first.fill(-1)
    state.lasts_s.fill(0.0)
    for i in range(n - 1, -1, -1):
        node = machine.node[i]
        d = state.device[node]
        block = i
        if not machine.cpu[d]:
            turn = int(min(max(state.order[node], 0.0), machine.calls - 1.0))
            block = n + d * machine.calls + turn
        state.block[i] = block
        state.next[i] = state.first[block]
        state.first[block] = i
        state.lasts_s[block] += machine.op_s[i, d]
    _pay(machine, state)
    state.start_s.fill(0.0)
    for i in range(n):
        for x in range(machine.out_ptr[i], machine.out_ptr[i + 1]):
            reader = state.block[machine.reader[x]]
            state.waits[reader] += reader != state.block[i]
    end = 0
    for block in range(state.first.size):
        after_call = block >= n and (block - n) % q > 0
        state.waits[block] += after_call
        if state.waits[block] == 0 and (block >= n or state.block[block] == block):
            state.queue[end] = block
            end += 1
    at, total_s, left = 0, 0.0, n
    while at < end:
        block = state.queue[at]
        at += 1
        state.end_s[block] = end_s = state.start_s[block] + state.lasts_s[block]
        total_s = max(total_s, end_s)
        i = state.first[block]
        while i >= 0:
            left -= 1
            for x in range(machine.out_ptr[i], machine.out_ptr[i + 1]):
                end = _ended(state, block, state.block[machine.reader[x]], end)
            i = state.next[i]
        if block >= n and (block - n) % q < q - 1:
            end = _ended(state, block, block + 1, end)
    return total_s if left == 0 else np.inf


@inner
def _ended(state: LatencyState, block: int, reader: int, end: int) -> int:
    """Let a block know that one that it waits for has ended; return the new end of the queue."""
    if reader != block:
        state.start_s[reader] = max(state.start_s[reader], state.end_s[block])
        state.waits[reader] -= 1
        if state.waits[reader] == 0:
            state.queue[end] = reader
            end += 1
    return end


@allocating
def placed(machine: LatencyMachine, state: LatencyState, device: Int32, order: Float64) -> None:
    """Make the state that of a placement: int32 [k], and its priorities, float64 [k]."""
    state.held_bytes.fill(0)
    for j in range(device.size):
        state.device[j] = device[j]
        state.order[j] = order[j]
        state.held_bytes[device[j]] += machine.weight_bytes[j]


@compiled
def run(machine: LatencyMachine, state: LatencyState, device: Int32, order: Float64) -> float:
    """Return what one placement costs, int32 [k], with priorities float64 [k]; the state says what happens under it."""
    placed(machine, state, device, order)
    return latency_s(machine, state)


@compiled
def simulate(
    machine: LatencyMachine, state: LatencyState, placements: Int32, orders: Float64, figures: LatencyFigures
) -> None:
    """Write down what b placements cost, int32 [b, k], with priorities float64 [b, k]."""
    p = machine.op_s.shape[1]
    for b in range(placements.shape[0]):
        placed(machine, state, placements[b], orders[b])
        figures.value_s[b] = latency_s(machine, state)
        for d in range(p):
            figures.held_bytes[b, d] = state.held_bytes[d]
            figures.busy_s[b, d] = 0.0
        for block in range(state.first.size):
            if state.first[block] >= 0:
                figures.busy_s[b, state.device[machine.node[state.first[block]]]] += state.lasts_s[block]
        figures.sent_bytes[b] = 0
        for i in range(machine.size.size):
            # blocks but one that hold members of the net; all CPUs together count as one
            n, accelerators, cpus = machine.node.size, 0, 0
            for x in range(machine.ptr[i], machine.ptr[i + 1]):
                block = state.block[machine.member[x]]
                if block < n:
                    cpus = 1
                    continue
                new = True
                for y in range(machine.ptr[i], x):
                    new = new and state.block[machine.member[y]] != block
                accelerators += new
            figures.sent_bytes[b] += machine.size[i] * (accelerators + cpus - 1)


@compiled
def local_search(
    machine: LatencyMachine,
    state: LatencyState,
    trace: SearchTrace,
    changes: Changes,
    allowed: Bool,
    limit: int,
    ordered: bool,
) -> None:
    """Note down a local search from the trace's best placement and the state's priorities; the state ends as that of
    the last placement.
    """
    placed(machine, state, trace.best, state.order.copy())
    value_s = latency_s(machine, state)
    initialise_trace(trace, value_s, excess(state.held_bytes, machine.capacity_bytes))
    before, earlier = np.empty(state.device.size, np.int64), np.empty(state.device.size)
    left = limit
    for i in range(changes.device.size):
        target = target_of(changes, i, state.device, allowed, ordered)
        if left <= 0 or target == -2:
            continue
        left -= 1
        first = changes.ptr[i]
        for x in range(first, changes.ptr[i + 1]):
            j = changes.node[x]
            before[x - first], earlier[x - first] = state.device[j], state.order[j]
            if target >= 0:
                _put(machine, state, j, target if x < changes.back[i] else before[0])
            if ordered:
                state.order[j] += changes.shift[i]
        over = excess(state.held_bytes, machine.capacity_bytes)
        value_s = latency_s(machine, state)
        if not record_move(trace, changes, i, value_s, over, state.device):
            for x in range(first, changes.ptr[i + 1]):
                _put(machine, state, changes.node[x], before[x - first])
                state.order[changes.node[x]] = earlier[x - first]


@inner
def _put(machine: LatencyMachine, state: LatencyState, j: int, device: int) -> None:
    state.held_bytes[state.device[j]] -= machine.weight_bytes[j]
    state.held_bytes[device] += machine.weight_bytes[j]
    state.device[j] = device
