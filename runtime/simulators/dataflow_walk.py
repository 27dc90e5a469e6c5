"""Batches of plans, and walks from plan to plan, on the dataflow machine of `listsched`."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pipeline.compiled import compiled, inlined, kernel
from pipeline.core.arrays import Bool, Float64, Int32, Int64
from runtime.simulators.dataflow import run
from runtime.simulators.dataflow_marks import BEFORE_S, Marks, Part, new_marks
from runtime.simulators.dataflow_state import BEGUN, T1, Machine, Plan, State, new_state, taken_s
from runtime.simulators.walks import acceptable

MARKS = 16  # along a run at most
MARKS_BYTES = 2**26  # all marks together
ROUNDING = 2e-15  # what a sum of times loses per term, in shares of the sum; several times what is possible


class Figures(NamedTuple):
    """What b plans cost: seconds, excess and sent bytes, float64 [b]; busy seconds, peak bytes, float64 [b, p]."""

    value_s: Float64
    over: Float64
    cut: Float64
    busy_s: Float64
    peak: Float64


@compiled
def run_all(machine: Machine, device: Int32, priority: Float64, ordered: bool) -> Figures:
    """Return what b plans cost; device: int32 [b, n], priority: float64 [b, n], looked at only if `ordered`."""
    b, p = device.shape[0], machine.op_s.shape[1]
    figures = Figures(np.full(b, math.inf), np.zeros(b), np.zeros(b), np.zeros((b, p)), np.zeros((b, p)))
    state = new_state(machine)
    _run_rows(machine, state, new_marks(state, 1), Plan(device, priority, ordered), np.zeros(p), figures)
    return figures


@kernel
def _run_rows(machine: Machine, state: State, marks: Marks, plans: Plan, load_s: Float64, figures: Figures) -> None:
    """Note what every plan costs; the arrays of `plans` have a row for each."""
    for row in range(figures.value_s.size):
        plan = Plan(plans.device[row], plans.priority[row if plans.ordered else 0], plans.ordered)
        if not _loaded(machine, plan, load_s):
            continue
        figures.value_s[row] = run(machine, state, marks, plan, Part(BEFORE_S, math.inf, load_s))
        figures.over[row] = _over_bytes(machine, state, plan)
        figures.cut[row] = _cut_bytes(machine, state)
        for d in range(load_s.size):
            figures.busy_s[row, d], figures.peak[row, d] = state.busy[d], state.held[d]


@inlined
def _loaded(machine: Machine, plan: Plan, load_s: Float64) -> bool:
    """Add up for how long each device is taken; return whether it supports all its work."""
    total_s = 0.0
    for d in range(load_s.size):
        load_s[d] = 0.0
    for i in range(plan.device.size):
        d = plan.device[i]
        spent_s = taken_s(machine, i, d)
        load_s[d] += spent_s
        total_s += spent_s
    return total_s < math.inf


@inlined
def _over_bytes(machine: Machine, state: State, plan: Plan) -> float:
    """Return by how many bytes the plan that ran last exceeds the devices' memory; `held` tells the peak then."""
    if not machine.track:
        return 0.0
    for d in range(state.held.size):
        state.held[d] = state.peak[d]
    for i in range(plan.device.size):
        state.held[plan.device[i]] += machine.weight[i]
    total = 0.0
    for d in range(state.held.size):
        total += max(0.0, state.held[d] - machine.capacity[d])
    return total


@inlined
def _cut_bytes(machine: Machine, state: State) -> float:
    """Return the bytes that the plan that ran last sent; under T1 a tensor goes to all its readers at once."""
    total = 0.0
    for x in range(state.tally[BEGUN]):
        if machine.level != T1 or x == 0 or state.sent[x] != state.sent[x - 1]:
            total += machine.size[state.sent[x]]
    return total


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
def _apply(trials: Trials, i: int, plan: Plan, before: Int32, earlier: Float64) -> bool:
    """Make move i; return whether it changed anything.

    `before` receives the devices that the operations had, and `earlier` their priorities.
    """
    first, last = trials.ptr[i], trials.ptr[i + 1]
    target = trials.target[i]
    if trials.like[i] >= 0:
        target = plan.device[trials.like[i]]
    home = plan.device[trials.node[first]] if first < last else target
    if target >= 0:
        for at in range(first, last):
            if not trials.allowed[trials.node[at], target if at < trials.back[i] else home]:
                return False
    changed = plan.ordered and trials.shift[i] != 0.0
    for at in range(first, last):
        j = trials.node[at]
        before[at - first] = plan.device[j]
        goal = target if at < trials.back[i] else home
        if target >= 0 and plan.device[j] != goal:
            plan.device[j] = goal
            changed = True
    if plan.ordered:
        for at in range(first, last):
            earlier[at - first] = plan.priority[trials.node[at]]
            plan.priority[trials.node[at]] += trials.shift[i]
    return changed


@inlined
def _undo(trials: Trials, i: int, plan: Plan, before: Int32, earlier: Float64) -> None:
    """Take move i back."""
    first, last = trials.ptr[i], trials.ptr[i + 1]
    for at in range(first, last):
        plan.device[trials.node[at]] = before[at - first]
        if plan.ordered:
            plan.priority[trials.node[at]] = earlier[at - first]


@inlined
def _first_look_s(machine: Machine, trials: Trials, i: int, plan: Plan, before: Int32, ended_s: Float64) -> float:
    """Return the first moment at which something looks at what move i changed, or an earlier one.

    That is when the first producer of a moved operation ends and sends; a priority matters when the operation is
    ready, not before its last producer ends. ended_s: float64 [n], when operations end in the plan that is changed.
    """
    first_s = math.inf
    shifted = plan.ordered and trials.shift[i] != 0.0
    for at in range(trials.ptr[i], trials.ptr[i + 1]):
        j = trials.node[at]
        moved = plan.device[j] != before[at - trials.ptr[i]]
        if not (moved or shifted):
            continue
        if machine.in_ptr[j] == machine.in_ptr[j + 1]:
            return BEFORE_S
        least_s, most_s = math.inf, 0.0
        for x in range(machine.in_ptr[j], machine.in_ptr[j + 1]):
            end_s = ended_s[machine.maker[machine.slot_tensor[machine.in_slot[x]]]]
            least_s, most_s = min(least_s, end_s), max(most_s, end_s)
        first_s = min(first_s, least_s if moved else most_s)
    return first_s


@inlined
def _forget_from(marks: Marks, first_s: float) -> None:
    """Forget the marks that have seen a moment."""
    while marks.kept[0] > 1 and marks.seen_s[marks.kept[0] - 1] >= first_s:
        marks.kept[0] -= 1


@inlined
def _marks_for(state: State, r: int) -> int:
    """Return how many marks serve a walk of r moves."""
    return max(1, min(MARKS, r, MARKS_BYTES // (4 * state.ints.size + 8 * state.floats.size)))


class Desk(NamedTuple):
    """What a walk works with.

    plan: the plan as it is. before: int32, earlier: float64, devices and priorities that the nodes of a move had.
    load_s: float64 [p], see `Part`. ended_s: float64 [n], when operations end in the plan without the move in hand.
    """

    plan: Plan
    state: State
    marks: Marks
    before: Int32
    earlier: Float64
    load_s: Float64
    ended_s: Float64


@compiled
def walk_all(machine: Machine, trials: Trials, start: Plan, limit: int, bounded: bool) -> Steps:
    """Return where the moves lead from a plan, whose arrays are left alone.

    bounded: whether a run may be given up once it is certain that its move is not taken.
    """
    r, widest = trials.target.size, max(1, trials.node.size)
    plan = Plan(start.device.copy(), start.priority.copy(), start.ordered)
    state = new_state(machine)
    marks = new_marks(state, _marks_for(state, r))
    load_s, ended_s = np.empty(machine.op_s.shape[1]), np.empty(plan.device.size)
    desk = Desk(plan, state, marks, np.empty(widest, np.int32), np.empty(widest), load_s, ended_s)
    steps = Steps(
        np.zeros(r, np.bool_),
        np.zeros(r, np.bool_),
        np.full(r, math.nan),
        plan.device,
        plan.priority,
        start.device.copy(),
        start.priority.copy(),
        np.empty(3),
    )
    _walk(machine, trials, desk, steps, limit, bounded)
    return steps


@inlined
def _evaluated(machine: Machine, desk: Desk, first_s: float, limit_s: float) -> tuple[float, float]:
    """Return the seconds and the excess bytes of the plan; both inf where a device does not support it."""
    if not _loaded(machine, desk.plan, desk.load_s):
        return math.inf, math.inf
    value_s = run(machine, desk.state, desk.marks, desk.plan, Part(first_s, limit_s, desk.load_s))
    return value_s, _over_bytes(machine, desk.state, desk.plan) if value_s < math.inf else math.inf


@kernel
def _walk(machine: Machine, trials: Trials, desk: Desk, steps: Steps, limit: int, bounded: bool) -> None:
    """Try the moves, at most `limit` of them, and note down what comes of them."""
    plan, n = desk.plan, desk.ended_s.size
    now_s, over = _evaluated(machine, desk, math.inf, math.inf)
    _copy(desk.state.end_s, desk.ended_s)
    best_s = now_s if over == 0.0 else math.inf
    left = limit
    for i in range(trials.target.size):
        if left == 0:
            break
        if not _apply(trials, i, plan, desk.before, desk.earlier):
            continue
        left -= 1
        allowed_s = now_s + trials.allowance_s[i]
        first_s = _first_look_s(machine, trials, i, plan, desk.before, desk.ended_s) if now_s < math.inf else BEFORE_S
        # Where memory is exceeded a move may be taken that is slower than allowed.
        limit_s = allowed_s + abs(allowed_s) * n * ROUNDING if bounded and over == 0.0 else math.inf
        new_s, new_over = _evaluated(machine, desk, first_s, limit_s)
        steps.tried[i] = True
        steps.value_s[i] = new_s if new_over == 0.0 else math.inf
        if not acceptable(now_s, over, new_s, new_over, trials.allowance_s[i], trials.price_s_per_byte):
            _undo(trials, i, plan, desk.before, desk.earlier)
            continue
        steps.taken[i] = True
        now_s, over = new_s, new_over
        _forget_from(desk.marks, first_s)
        _copy(desk.state.end_s, desk.ended_s)
        if over == 0.0 and now_s < best_s:
            best_s = now_s
            _copy(plan.device, steps.best_device)
            _copy(plan.priority, steps.best_priority)
    steps.summary[0], steps.summary[1], steps.summary[2] = now_s, best_s, over


@inlined
def _copy(source: Float64 | Int32, target: Float64 | Int32) -> None:
    for x in range(source.size):
        target[x] = source[x]
