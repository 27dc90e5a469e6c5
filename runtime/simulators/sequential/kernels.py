"""The kernels of the simulator `sequential`; `runtime.simulators.sequential.sequential` says what they compute."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32, Int64
from pipeline.shared.compiled import inlined, inner, kernel
from runtime.simulators.sequential.cuts import Bound, Counter, count, launched_s
from runtime.simulators.shared.local_search import (
    NOW,
    Changes,
    SearchTrace,
    cutoff_s,
    excess,
    initialise_trace,
    record_move,
    summed,
    target_of,
    tree_of,
    update_leaf,
)


class SequentialMachine(NamedTuple):
    """One subject: n operations in k nodes, t tensors, p devices.

    op_s: float64 [k, p], seconds. weight_bytes: int64 [k]. capacity_bytes: int64 [p]. launch_s: float64 [p].
    latency_s, bytes_per_s: float64 [p, p]. unit_node: int32 [u], the node on whose device each unit of the model runs.
    source, ptr, reader, size: the tensors, see `Tensors`. touch_ptr: int64 [k + 1], touch: int64: the tensors
    that node j makes or reads are touch[touch_ptr[j]:touch_ptr[j + 1]].
    """

    op_s: Float64
    weight_bytes: Int64
    capacity_bytes: Int64
    launch_s: Float64
    latency_s: Float64
    bytes_per_s: Float64
    unit_node: Int32
    source: Int32
    ptr: Int64
    reader: Int32
    size: Float64
    touch_ptr: Int64
    touch: Int64


class MachineWithCounter(NamedTuple):
    """A machine, and what counts sub-graphs on it; launching: whether a launch costs anything on any device."""

    machine: SequentialMachine
    counter: Counter
    launching: bool


class SequentialState(NamedTuple):
    """What is known of the placement at hand.

    device: int64 [k]. tree: float64, a sum of k + t terms, the seconds of each node and each tensor, see `summed`.
    held_bytes: int64 [p]. counts: int64 [1, p], sub-graphs. running: int32 [1, u], the device of each unit.
    widest: float64 [p], for `crossing`. before: int64 [k], where the nodes of a move were.
    stamp: int64 [t + 1], when each tensor was last looked at, and the time.
    """

    device: Int64
    tree: Float64
    held_bytes: Int64
    counts: Int64
    running: Int32
    widest: Float64
    before: Int64
    stamp: Int64


class SequentialFigures(NamedTuple):
    """What b placements cost.

    value_s: float64 [b]. held_bytes: int64 [b, p]. busy_s: float64 [b, p]. sent_bytes: int64 [b]. counts: int64
    [b, p], sub-graphs.
    """

    value_s: Float64
    held_bytes: Int64
    busy_s: Float64
    sent_bytes: Int64
    counts: Int64


def blank(machine: SequentialMachine) -> SequentialState:
    """Return a state without a placement."""
    k, p = machine.op_s.shape
    t = machine.source.size
    return SequentialState(
        np.zeros(k, np.int64),
        tree_of(k + t),
        np.zeros(p, np.int64),
        np.zeros((1, p), np.int64),
        np.zeros((1, machine.unit_node.size), np.int32),
        np.zeros(p),
        np.zeros(k, np.int64),
        np.zeros(t + 1, np.int64),
    )


@inlined
def crossing(machine: SequentialMachine, state: SequentialState, tensor: int) -> tuple[float, int]:
    """Return the seconds and the bytes that a tensor takes to all devices that read it."""
    p, home = state.widest.size, state.device[machine.source[tensor]]
    for d in range(p):
        state.widest[d] = -1.0
    for x in range(machine.ptr[tensor], machine.ptr[tensor + 1]):
        d = state.device[machine.reader[x]]
        state.widest[d] = max(state.widest[d], machine.size[x])
    seconds, sent = 0.0, 0
    for d in range(p):
        if d != home and state.widest[d] >= 0:
            seconds += machine.latency_s[home, d] + state.widest[d] / machine.bytes_per_s[home, d]
            sent += int(state.widest[d])
    return seconds, sent


@inner
def placed(machine: SequentialMachine, state: SequentialState, device: Int32) -> int:
    """Make the state that of a placement, int32 [k], and return the bytes sent between devices."""
    k, half = device.size, state.tree.size // 2
    state.held_bytes.fill(0)
    for j in range(k):
        state.device[j] = device[j]
        state.held_bytes[device[j]] += machine.weight_bytes[j]
        state.tree[half + j] = machine.op_s[j, device[j]]
    sent = 0
    for tensor in range(machine.source.size):
        seconds, size = crossing(machine, state, tensor)
        state.tree[half + k + tensor] = seconds
        sent += size
    summed(state.tree)
    return sent


@kernel
def simulate(machine: SequentialMachine, state: SequentialState, placements: Int32, figures: SequentialFigures) -> None:
    """Write down what b placements cost, int32 [b, k], whose sub-graphs are counted."""
    for b in range(placements.shape[0]):
        figures.sent_bytes[b] = placed(machine, state, placements[b])
        figures.value_s[b] = launched_s(Bound(machine.launch_s, state.tree[1], np.inf), figures.counts[b])
        for d in range(state.held_bytes.size):
            figures.held_bytes[b, d] = state.held_bytes[d]
            figures.busy_s[b, d] = figures.counts[b, d] * machine.launch_s[d]
        for j in range(placements.shape[1]):
            figures.busy_s[b, placements[b, j]] += machine.op_s[j, placements[b, j]]


@kernel
def local_search(
    whole: MachineWithCounter,
    state: SequentialState,
    trace: SearchTrace,
    changes: Changes,
    allowed: Bool,
    limit: int,
    ordered: bool,
) -> None:
    """Note down a local search from the trace's best placement, whose sub-graphs are counted; the state ends as that of
    the last.
    """
    machine = whole.machine
    placed(machine, state, trace.best)
    start_s = launched_s(Bound(machine.launch_s, state.tree[1], np.inf), state.counts[0])
    initialise_trace(trace, start_s, excess(state.held_bytes, machine.capacity_bytes))
    left = limit
    for i in range(changes.device.size):
        target = target_of(changes, i, state.device, allowed, ordered)
        if left <= 0 or target == -2 or whole.counter.workspace.stop[0]:
            continue
        left -= 1
        first = changes.ptr[i]
        value_s, over = trace.value_s[NOW], trace.over_bytes[0]
        if target >= 0:
            for x in range(first, changes.ptr[i + 1]):
                state.before[x - first] = state.device[changes.node[x]]
                put(machine, state, changes.node[x], target if x < changes.back[i] else state.before[0])
            renew_tensors(machine, state, changes, i)
            over = excess(state.held_bytes, machine.capacity_bytes)
            for u in range(machine.unit_node.size):
                state.running[0, u] = state.device[machine.unit_node[u]]
            bound = Bound(machine.launch_s, state.tree[1], cutoff_s(trace, changes, i, over))
            value_s = np.inf  # nobody asks for more of what exceeds the bound
            if not bound.other_s > bound.most_s and (
                not whole.launching or count(whole.counter, state.running, state.counts, bound)
            ):
                value_s = launched_s(bound, state.counts[0])
        if not record_move(trace, changes, i, value_s, over, state.device) and target >= 0:
            for x in range(first, changes.ptr[i + 1]):
                put(machine, state, changes.node[x], state.before[x - first])
            renew_tensors(machine, state, changes, i)


@inlined
def put(machine: SequentialMachine, state: SequentialState, j: int, device: int) -> None:
    """Put node j on a device; its tensors are to be update_leaf."""
    state.held_bytes[state.device[j]] -= machine.weight_bytes[j]
    state.held_bytes[device] += machine.weight_bytes[j]
    state.device[j] = device
    update_leaf(state.tree, j, machine.op_s[j, device])


@inner
def renew_tensors(machine: SequentialMachine, state: SequentialState, changes: Changes, i: int) -> None:
    """Count again every tensor that a node of move i makes or reads, once each."""
    k, t = state.device.size, machine.source.size
    state.stamp[t] += 1
    for x in range(changes.ptr[i], changes.ptr[i + 1]):
        j = changes.node[x]
        for y in range(machine.touch_ptr[j], machine.touch_ptr[j + 1]):
            tensor = machine.touch[y]
            if state.stamp[tensor] < state.stamp[t]:
                state.stamp[tensor] = state.stamp[t]
                update_leaf(state.tree, k + tensor, crossing(machine, state, tensor)[0])
