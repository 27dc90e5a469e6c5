"""The kernels of the simulator `pipelined`; `runtime.simulators.pipelined.pipelined` says what they compute."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32, Int64
from pipeline.shared.compiled import allocating, compiled, inner
from pipeline.shared.contiguity import FREE, StageEdges, stages_are_contiguous
from runtime.simulators.shared.local_search import (
    NOW,
    Changes,
    SearchTrace,
    excess,
    initialise_trace,
    record_move,
    summed,
    target_of,
    tree_of,
    update_leaf,
)


class PipelinedMachine(NamedTuple):
    """One subject: k nodes, t nets, p devices.

    op_s: float64 [k, p], seconds. back_s: float64 [k, p], seconds of the backward pass where it is counted apart, so
    that op_s has the forward pass alone; else [0, p]. back: int64 [t], 1 for nets of that pass, else 0.
    weight_bytes: int64 [k]. capacity_bytes: int64 [p].
    ptr: int64 [t + 1], member: int32: net i holds the different nodes member[ptr[i]:ptr[i + 1]].
    size: int64 [t], bytes. pay_s: float64 [t, p], what a device pays that holds a net partly. in_ptr: int64 [k + 1],
    net: int64: node j is in the nets net[in_ptr[j]:in_ptr[j + 1]]. stages: what contiguity demands.
    """

    op_s: Float64
    back_s: Float64
    back: Int64
    weight_bytes: Int64
    capacity_bytes: Int64
    ptr: Int64
    member: Int32
    size: Int64
    pay_s: Float64
    in_ptr: Int64
    net: Int64
    stages: StageEdges


class PipelinedState(NamedTuple):
    """What is known of the placement at hand.

    device: int64 [k]. tree: float64 [p, ...], per device a sum of k + t terms: what each node and each net costs
    there, see `summed`; [2 p, ...] where the backward pass is apart, which is behind the forward pass. held_bytes:
    int64 [p]. holds: int32 [t, p], how many members of each net a device has.
    """

    device: Int64
    tree: Float64
    held_bytes: Int64
    holds: Int32


class PipelinedFigures(NamedTuple):
    """What b placements cost.

    value_s: float64 [b]. held_bytes: int64 [b, p]. busy_s: float64 [b, p]. sent_bytes: int64 [b].
    """

    value_s: Float64
    held_bytes: Int64
    busy_s: Float64
    sent_bytes: Int64


def blank(machine: PipelinedMachine) -> PipelinedState:
    """Return a state without a placement."""
    k, p = machine.op_s.shape
    t = machine.size.size
    return PipelinedState(
        np.zeros(k, np.int64),
        np.tile(tree_of(k + t), (2 * p if machine.back_s.shape[0] > 0 else p, 1)),
        np.zeros(p, np.int64),
        np.zeros((t, p), np.int32),
    )


@allocating
def placed(machine: PipelinedMachine, state: PipelinedState, device: Int32) -> None:
    """Make the state that of a placement, int32 [k]."""
    k, p = machine.op_s.shape
    half, apart = state.tree.shape[1] // 2, machine.back_s.shape[0] > 0
    state.tree.fill(0.0)
    state.held_bytes.fill(0)
    state.holds.fill(0)
    for j in range(k):
        state.device[j] = device[j]
        state.held_bytes[device[j]] += machine.weight_bytes[j]
        state.tree[device[j], half + j] = machine.op_s[j, device[j]]
        if apart:
            state.tree[p + device[j], half + j] = machine.back_s[j, device[j]]
    for i in range(machine.size.size):
        for x in range(machine.ptr[i], machine.ptr[i + 1]):
            state.holds[i, device[machine.member[x]]] += 1
        for d in range(p):
            state.tree[machine.back[i] * p + d, half + k + i] = due_s(machine, state, i, d)
    for row in range(state.tree.shape[0]):
        summed(state.tree[row])


@inner
def due_s(machine: PipelinedMachine, state: PipelinedState, net: int, device: int) -> float:
    """Return the seconds that a net costs a device: nothing if the device holds all of it, or none."""
    held = state.holds[net, device]
    return float(machine.pay_s[net, device]) if 0 < held < machine.ptr[net + 1] - machine.ptr[net] else 0.0


@allocating
def put(machine: PipelinedMachine, state: PipelinedState, j: int, device: int) -> None:
    """Put node j on a device and renew what this changes: the loads of two devices."""
    k, before = state.device.size, int(state.device[j])
    if before == device:
        return
    state.held_bytes[before] -= machine.weight_bytes[j]
    state.held_bytes[device] += machine.weight_bytes[j]
    state.device[j] = device
    update_leaf(state.tree[before], j, 0.0)
    update_leaf(state.tree[device], j, machine.op_s[j, device])
    p = state.held_bytes.size
    if machine.back_s.shape[0] > 0:
        update_leaf(state.tree[p + before], j, 0.0)
        update_leaf(state.tree[p + device], j, machine.back_s[j, device])
    for x in range(machine.in_ptr[j], machine.in_ptr[j + 1]):
        net = machine.net[x]
        state.holds[net, before] -= 1
        state.holds[net, device] += 1
        first = machine.back[net] * p
        update_leaf(state.tree[first + before], k + net, due_s(machine, state, net, before))
        update_leaf(state.tree[first + device], k + net, due_s(machine, state, net, device))


@inner
def greatest_s(state: PipelinedState) -> float:
    """Return the greatest load of a device; of both passes, added up, if they are apart."""
    p, forward_s, back = state.held_bytes.size, 0.0, 0.0
    for d in range(p):
        forward_s = max(forward_s, state.tree[d, 1])
    for row in range(p, state.tree.shape[0]):
        back = max(back, state.tree[row, 1])
    return forward_s + back


@compiled
def is_contiguous(machine: PipelinedMachine, device: Int64, p: int) -> bool:
    """Return whether a placement, int64 [k], on p devices is as contiguous as demanded."""
    return stages_are_contiguous(machine.stages, device, p)


@compiled
def simulate(
    machine: PipelinedMachine,
    state: PipelinedState,
    placements: Int32,
    figures: PipelinedFigures,
) -> None:
    """Write down what b placements cost, int32 [b, k]; inf where they are not as contiguous as demanded."""
    p = state.held_bytes.size
    for b in range(placements.shape[0]):
        placed(machine, state, placements[b])
        figures.value_s[b] = greatest_s(state) if stages_are_contiguous(machine.stages, state.device, p) else np.inf
        for d in range(p):
            figures.held_bytes[b, d] = state.held_bytes[d]
            figures.busy_s[b, d] = state.tree[d, 1] + (state.tree[p + d, 1] if state.tree.shape[0] > p else 0.0)
        figures.sent_bytes[b] = 0
        for i in range(machine.size.size):
            readers = -1  # the source's own device
            for d in range(p):
                readers += state.holds[i, d] > 0
            figures.sent_bytes[b] += readers * machine.size[i]


@compiled
def local_search(
    machine: PipelinedMachine,
    state: PipelinedState,
    trace: SearchTrace,
    changes: Changes,
    allowed: Bool,
    limit: int,
    ordered: bool,
) -> None:
    """Note down a local search from the trace's best placement; the state ends as that of the last."""
    placed(machine, state, trace.best)
    over = excess(state.held_bytes, machine.capacity_bytes)
    p = state.held_bytes.size
    initialise_trace(
        trace, greatest_s(state) if stages_are_contiguous(machine.stages, state.device, p) else np.inf, over
    )
    before = np.empty(state.device.size, np.int64)
    left = limit
    for i in range(changes.device.size):
        target = target_of(changes, i, state.device, allowed, ordered)
        if left <= 0 or target == -2:
            continue
        left -= 1
        first = changes.ptr[i]
        value_s = trace.value_s[NOW]
        if target >= 0:
            for x in range(first, changes.ptr[i + 1]):
                before[x - first] = state.device[changes.node[x]]
                put(machine, state, changes.node[x], target if x < changes.back[i] else before[0])
            value_s = greatest_s(state)
        over = excess(state.held_bytes, machine.capacity_bytes)
        if target >= 0 and machine.stages.kind != FREE and not stages_are_contiguous(machine.stages, state.device, p):
            trace.tried[i], trace.move_s[i], taken = True, np.inf, False
        else:
            taken = record_move(trace, changes, i, value_s, over, state.device)
        if not taken and target >= 0:
            for x in range(first, changes.ptr[i + 1]):
                put(machine, state, changes.node[x], before[x - first])
