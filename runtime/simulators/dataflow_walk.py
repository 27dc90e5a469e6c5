"""Batches of plans, and walks from plan to plan, on the dataflow machine of `listsched`."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pipeline.compiled import compiled, inlined
from pipeline.core.arrays import Bool, Float64, Int32, Int64
from runtime.simulators.dataflow import over_bytes, run
from runtime.simulators.dataflow_state import Machine, new_state
from runtime.simulators.walks import acceptable


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
    back: Int64
    price_s_per_byte: float
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
def _apply(
    trials: Trials, i: int, device: Int32, priority: Float64, ordered: bool, before: Int32, earlier: Float64
) -> bool:
    """Make move i; return whether it changed anything.

    `before` receives the devices that the operations had, and `earlier` their priorities.
    """
    first, last = trials.ptr[i], trials.ptr[i + 1]
    target = trials.target[i]
    if trials.like[i] >= 0:
        target = device[trials.like[i]]
    home = device[trials.node[first]] if first < last else target
    if target >= 0:
        for at in range(first, last):
            if not trials.allowed[trials.node[at], target if at < trials.back[i] else home]:
                return False
    changed = ordered and trials.shift[i] != 0.0
    for at in range(first, last):
        j = trials.node[at]
        before[at - first] = device[j]
        goal = target if at < trials.back[i] else home
        if target >= 0 and device[j] != goal:
            device[j] = goal
            changed = True
    if ordered:
        for at in range(first, last):
            earlier[at - first] = priority[trials.node[at]]
            priority[trials.node[at]] += trials.shift[i]
    return changed


@compiled
def walk_all(machine: Machine, trials: Trials, device: Int32, priority: Float64, ordered: bool, limit: int) -> Steps:
    """Return where the moves lead from a plan; `device` int32 [n] and `priority` float64 [n] are left alone."""
    r = trials.target.size
    state = new_state(machine)
    here, order = device.copy(), priority.copy()
    before, earlier = np.empty(max(1, trials.node.size), np.int32), np.empty(max(1, trials.node.size))
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
        if not _apply(trials, i, here, order, ordered, before, earlier):
            continue
        left -= 1
        new_s = run(machine, state, here, order, ordered)
        new_over = over_bytes(machine, state) if new_s < math.inf else math.inf
        steps.tried[i] = True
        steps.value_s[i] = new_s if new_over == 0.0 else math.inf
        if acceptable(now_s, over, new_s, new_over, trials.allowance_s[i], trials.price_s_per_byte):
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
                order[trials.node[at]] = earlier[at - trials.ptr[i]]
    steps.summary[0], steps.summary[1], steps.summary[2] = now_s, best_s, over
    return steps
