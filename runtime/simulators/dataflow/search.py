"""Batches of placements, and local searches, on the dataflow machine of `listsched`."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32
from pipeline.core.simulation import T1
from pipeline.shared.compiled import inlined, kernel
from runtime.simulators.dataflow.events import run
from runtime.simulators.dataflow.state import (
    BEFORE_S,
    BEGUN,
    DataflowMachine,
    DataflowState,
    Dispatch,
    Part,
    Snapshots,
    copied,
    new_snapshots,
    new_state,
)
from runtime.simulators.shared.local_search import Changes, acceptable

MARKS = 16  # along a run at most
SNAPSHOTS_BYTES = 2**22  # all snapshots together: what leaves the processor's cache takes longer than it saves
ROUNDING = 2e-15  # what a sum of times loses per term, in shares of the sum; several times what is possible


class DataflowFigures(NamedTuple):
    """What b placements cost: seconds, excess and sent bytes, float64 [b]; busy seconds, peak bytes, float64 [b, p].

    start_s: float64 [b, n], when operations start; [b, 0] where nobody asks.
    """

    value_s: Float64
    over: Float64
    cut: Float64
    busy_s: Float64
    peak: Float64
    start_s: Float64


def run_all(machine: DataflowMachine, placements: Dispatch, *, starts: bool = False) -> DataflowFigures:
    """Return what b placements cost; the arrays of `placements` have a row for each. starts: whether to tell those."""
    (b, n), p = placements.device.shape, machine.op_s.shape[1]
    noted = np.zeros((b, n if starts else 0))
    figures = DataflowFigures(np.full(b, math.inf), np.zeros(b), np.zeros(b), np.zeros((b, p)), np.zeros((b, p)), noted)
    state = new_state(machine)
    _run_rows(machine, state, new_snapshots(state, 0), placements, figures)
    return figures


@kernel
def _run_rows(
    machine: DataflowMachine, state: DataflowState, snapshots: Snapshots, placements: Dispatch, figures: DataflowFigures
) -> None:
    """Note what every placement costs; the arrays of `placements` have a row for each."""
    for row in range(figures.value_s.size):
        placement = Dispatch(
            placements.device[row], placements.priority[row if placements.ordered else 0], placements.ordered
        )
        figures.value_s[row] = run(machine, state, snapshots, placement, Part(BEFORE_S, math.inf))
        if figures.value_s[row] == math.inf:
            continue
        figures.over[row] = _excess(state.peak, machine.capacity)
        # Under T1 a tensor goes to all its readers at once
        sent = state.sent[: state.tally[BEGUN]]
        total = 0.0
        for x in range(sent.size):
            if machine.level != T1 or x == 0 or sent[x] != sent[x - 1]:
                total += machine.size[sent[x]]
        figures.cut[row] = total
        copied(state.busy, figures.busy_s[row])
        copied(state.peak, figures.peak[row])
        if figures.start_s.shape[1] > 0:
            copied(state.start_s, figures.start_s[row])


@inlined
def _excess(held: Float64, capacity: Float64) -> float:
    """Return by how many bytes devices hold more than they can."""
    total = 0.0
    for d in range(held.size):
        total += max(0.0, held[d] - capacity[d])
    return total


class MoveTrials(NamedTuple):
    """Moves over n operations, where operations may go, bool [n, p], and how many moves are tried."""

    moves: Changes
    allowed: Bool
    limit: int


class Steps(NamedTuple):
    """What a local search leaves behind, and what it works with.

    tried, taken: bool [r]; value_s: float64 [r]. best_device: int32 [n], best_priority: float64 [n].
    summary: float64 [3], last and best seconds, and the excess bytes of the last.
    before: int32, earlier: float64, devices and priorities that the nodes of a move had. ended_s: float64 [n], when
    operations end in the placement without the move in hand.
    """

    tried: Bool
    taken: Bool
    value_s: Float64
    best_device: Int32
    best_priority: Float64
    summary: Float64
    before: Int32
    earlier: Float64
    ended_s: Float64


@inlined
def _apply(trials: MoveTrials, i: int, placement: Dispatch, before: Int32, earlier: Float64) -> bool:
    """Make move i; return whether it changed anything.

    `before` receives the devices that the operations had, and `earlier` their priorities.
    """
    first, last = trials.moves.ptr[i], trials.moves.ptr[i + 1]
    target = trials.moves.device[i]
    if trials.moves.like[i] >= 0:
        target = placement.device[trials.moves.like[i]]
    home = placement.device[trials.moves.node[first]] if first < last else target
    if target >= 0:
        for at in range(first, last):
            if not trials.allowed[trials.moves.node[at], target if at < trials.moves.back[i] else home]:
                return False
    changed = placement.ordered and trials.moves.shift[i] != 0.0
    for at in range(first, last):
        j = trials.moves.node[at]
        before[at - first] = placement.device[j]
        goal = target if at < trials.moves.back[i] else home
        if target >= 0 and placement.device[j] != goal:
            placement.device[j] = goal
            changed = True
    if placement.ordered:
        for at in range(first, last):
            earlier[at - first] = placement.priority[trials.moves.node[at]]
            placement.priority[trials.moves.node[at]] += trials.moves.shift[i]
    return changed


@inlined
def _first_look_s(
    machine: DataflowMachine, trials: MoveTrials, i: int, placement: Dispatch, before: Int32, ended_s: Float64
) -> float:
    """Return the first moment at which something looks at what move i changed, or an earlier one.

    That is when the first producer of a moved operation ends and sends; a priority matters when the operation is
    ready, not before its last producer ends. ended_s: float64 [n], when operations end in the placement that is
    changed.
    """
    first_s = math.inf
    shifted = placement.ordered and trials.moves.shift[i] != 0.0
    for at in range(trials.moves.ptr[i], trials.moves.ptr[i + 1]):
        j = trials.moves.node[at]
        moved = placement.device[j] != before[at - trials.moves.ptr[i]]
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


def search_all(machine: DataflowMachine, trials: MoveTrials, placement: Dispatch) -> Steps:
    """Return where the moves lead from a placement; its arrays become those of the last placement."""
    r, widest = trials.moves.device.size, max(1, trials.moves.node.size)
    state = new_state(machine)
    steps = Steps(
        np.zeros(r, np.bool_),
        np.zeros(r, np.bool_),
        np.full(r, math.nan),
        placement.device.copy(),
        placement.priority.copy(),
        np.empty(3),
        np.empty(widest, np.int32),
        np.empty(widest),
        np.empty(placement.device.size),
    )
    most = min(MARKS, r, SNAPSHOTS_BYTES // (state.ints.nbytes + state.floats.nbytes))
    _search(machine, trials, placement, state, new_snapshots(state, most), steps)
    return steps


@kernel
def _search(
    machine: DataflowMachine,
    trials: MoveTrials,
    placement: Dispatch,
    state: DataflowState,
    snapshots: Snapshots,
    steps: Steps,
) -> None:
    """Try the moves, and note down what comes of them."""
    n = placement.device.size
    now_s = run(machine, state, snapshots, placement, Part(math.inf, math.inf))
    over = _over(machine, state.peak, now_s)
    copied(state.end_s, steps.ended_s)
    best_s = now_s if over == 0.0 else math.inf
    left = trials.limit
    for i in range(trials.moves.device.size):
        if left == 0:
            break
        if not _apply(trials, i, placement, steps.before, steps.earlier):
            continue
        left -= 1
        first_s = (
            _first_look_s(machine, trials, i, placement, steps.before, steps.ended_s) if now_s < math.inf else BEFORE_S
        )
        limit_s = math.inf
        if trials.moves.bounded and over == 0.0:  # elsewhere a move may be taken that is slower than allowed
            limit_s = max(now_s + trials.moves.threshold_s[i], best_s)
            limit_s += abs(limit_s) * n * ROUNDING
        new_s = run(machine, state, snapshots, placement, Part(first_s, limit_s))
        new_over = _over(machine, state.peak, new_s)
        steps.tried[i] = True
        steps.value_s[i] = new_s if new_over == 0.0 else math.inf
        if steps.value_s[i] < best_s:
            best_s = new_s
            copied(placement.device, steps.best_device)
            copied(placement.priority, steps.best_priority)
        if not acceptable(now_s, over, new_s, new_over, trials.moves.threshold_s[i], trials.moves.price_s_per_byte):
            # Take move i back
            first, last = trials.moves.ptr[i], trials.moves.ptr[i + 1]
            for at in range(first, last):
                placement.device[trials.moves.node[at]] = steps.before[at - first]
                if placement.ordered:
                    placement.priority[trials.moves.node[at]] = steps.earlier[at - first]
            continue
        steps.taken[i] = True
        now_s, over = new_s, new_over
        # Forget the snapshots that have seen the moment of the change
        while snapshots.kept[0] > 0 and snapshots.seen_s[snapshots.kept[0] - 1] >= first_s:
            snapshots.kept[0] -= 1
        copied(state.end_s, steps.ended_s)
    steps.summary[0], steps.summary[1], steps.summary[2] = now_s, best_s, over


@inlined
def _over(machine: DataflowMachine, peak: Float64, value_s: float) -> float:
    """Return the excess bytes after a run of so many seconds; inf after one that did not end."""
    if value_s == math.inf:
        return math.inf
    return _excess(peak, machine.capacity) if machine.track else 0.0
