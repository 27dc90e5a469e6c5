"""What the dataflow machine of `listsched` is made of: what stays, what changes, and its queues."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pipeline.core.arrays import Float64, Int32, Int64
from pipeline.shared.compiled import inlined
from pipeline.shared.heaps import Heap, push

BEFORE_S = -1.0  # a moment before the first event


class Snapshots(NamedTuple):
    """States along the run of one placement, from which the runs of placements go on that are the same up to there.

    ints: int32 [s, ...], floats: float64 [s, ...], as in `DataflowState`.
    seen_s: float64 [s], up to when all has happened in it. kept: int64 [1], how many there are.
    """

    ints: Int32
    floats: Float64
    seen_s: Float64
    kept: Int64


class Part(NamedTuple):
    """Which part of a run is wanted.

    first_s: the moment up to which, itself excluded, all happens as in the run that left the snapshots.
    limit_s: the run may be given up when it is certain to take longer.
    """

    first_s: float
    limit_s: float


def new_snapshots(state: DataflowState, most: int) -> Snapshots:
    """Return room for at most `most` states."""
    ints, floats = np.empty((most, state.ints.size), np.int32), np.empty((most, state.floats.size))
    return Snapshots(ints, floats, np.empty(most), np.zeros(1, np.int64))


@inlined
def copied(source: Float64 | Int32, target: Float64 | Int32) -> None:
    """Copy an array; of slices numba would ask whether they overlap, and allocate."""
    for a in range(source.size):
        target[a] = source[a]


@inlined
def save(state: DataflowState, snapshots: Snapshots, now_s: float) -> None:
    """Keep the state as it is after all that happens up to now."""
    row = snapshots.kept[0]
    copied(state.ints, snapshots.ints[row])
    copied(state.floats, snapshots.floats[row])
    snapshots.seen_s[row] = now_s
    snapshots.kept[0] = row + 1


@inlined
def restore(machine: DataflowMachine, state: DataflowState, snapshots: Snapshots, first_s: float) -> float:
    """Go back to the last state kept that has not seen the moment first_s, or before all; return what it has seen."""
    row = snapshots.kept[0] - 1
    while row >= 0 and snapshots.seen_s[row] >= first_s:
        row -= 1
    if row < 0:
        reset(machine, state)
        return BEFORE_S
    copied(snapshots.ints[row], state.ints)
    copied(snapshots.floats[row], state.floats)
    return float(snapshots.seen_s[row])


@inlined
def next_snapshot(kept: int, most: int, n: int) -> int:
    """Return how many of n operations have to end before the next snapshot is left; more than there are if none is."""
    return int((kept + 1) * (n // (most + 1) + 1) if kept < most else n + 1)


BEGUN, UNDER_WAY, ENDED = 0, 1, 2  # places in State.tally


class DataflowMachine(NamedTuple):
    """What does not change from placement to placement: n operations, t tensors, m reads of tensors, p devices.

    op_s: float64 [n, p]. weight, own: float64 [n], bytes that stay, and bytes of the output while it is needed.
    tensor_ptr: int64 [n + 1], operation i makes the tensors tensor_ptr[i] .. tensor_ptr[i + 1].
    maker: int32 [t]. size: float64 [t], bytes. reader_ptr: int64 [t + 1]; reader: int32 [m], sorted by tensor.
    in_ptr: int64 [n + 1]; in_slot: int64 [m], where operation i stands in `reader`; slot_tensor: int32 [m].
    per_byte_s, latency_s: float64 [p, p]. capacity: float64 [p], bytes, inf for no limit.
    level: T0, T1 or T2. block_s, gap_s: see `ExecutionModel`. blocks_always: whether operations of no time block as
    well. track: whether activations and copies are accounted for.
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


class Dispatch(NamedTuple):
    """Who runs what. device: int32 [n]. priority: float64 [n], looked at only if `ordered`."""

    device: Int32
    priority: Float64
    ordered: bool


class DataflowState(NamedTuple):
    """What changes while one placement runs.

    ints: int32, floats: float64, two blocks that the arrays below are parts of.
    waiting: int32 [n], reads an operation waits for. end_s: float64 [n].
    head, tail: int32 [p], first and last of a device's queue, -1 for none; link: int32 [n], who comes next. By priority
    the queue is a skew heap instead: head is its root, link and right: int32 [n] are the heaps below each operation.
    running: int32 [p], -1 for none. due_s: float64 [p], when a device ends what it runs, or may take what waits for it,
    inf for neither. free_s, out_s, in_s: float64 [p], until when a device is blocked, sends, receives.
    sends: int32 [p], 1 for each device that the tensor in hand is sent to. sent, target: int32 [m], transfers.
    flight: int32 [m], transfers under way, a heap by arrival, flight_s: float64 [m], when they arrive.
    needed: int32 [n], reads and sends for which an output is still held. copy: int32 [m], transfer each read waits
    for. unread: int32 [m], reads a received copy is still held for. All three empty where nobody keeps track.
    held, peak: float64 [p], bytes; without weights, which the end of a run adds to the peak. busy, taken_s: float64
    [p], seconds of the work begun, without and with the moments for which it blocks the device.
    tally: int32 [3], transfers begun, transfers under way, operations that have ended.
    load_s: float64 [p], for how long the placement's work takes each device. start_s: float64 [n], sent_s, arrive_s:
    float64 [m], the log, which decides nothing. These four are no parts of the blocks.
    """

    ints: Int32
    floats: Float64
    waiting: Int32
    end_s: Float64
    head: Int32
    tail: Int32
    link: Int32
    right: Int32
    running: Int32
    due_s: Float64
    free_s: Float64
    out_s: Float64
    in_s: Float64
    sends: Int32
    sent: Int32
    target: Int32
    flight: Int32
    flight_s: Float64
    needed: Int32
    copy: Int32
    unread: Int32
    held: Float64
    peak: Float64
    busy: Float64
    taken_s: Float64
    tally: Int32
    load_s: Float64
    start_s: Float64
    sent_s: Float64
    arrive_s: Float64


def new_state(machine: DataflowMachine) -> DataflowState:
    """Return a state of the right size; it holds nothing yet."""
    n, p = machine.op_s.shape
    m = machine.reader.size
    n_tracked, m_tracked = (n, m) if machine.track else (0, 0)
    ints = np.empty(3 * n + 4 * p + 3 * m + n_tracked + 2 * m_tracked + 3, np.int32)
    floats = np.empty(n + m + 8 * p)
    at = np.cumsum(np.array([0, n, p, p, n, n, p, p, m, m, m, n_tracked, m_tracked, m_tracked, 3]))
    put = np.cumsum(np.array([0, n, p, p, p, p, m, p, p, p, p]))
    return DataflowState(
        ints=ints,
        floats=floats,
        waiting=ints[at[0] : at[1]],
        head=ints[at[1] : at[2]],
        tail=ints[at[2] : at[3]],
        link=ints[at[3] : at[4]],
        right=ints[at[4] : at[5]],
        running=ints[at[5] : at[6]],
        sends=ints[at[6] : at[7]],
        sent=ints[at[7] : at[8]],
        target=ints[at[8] : at[9]],
        flight=ints[at[9] : at[10]],
        needed=ints[at[10] : at[11]],
        copy=ints[at[11] : at[12]],
        unread=ints[at[12] : at[13]],
        tally=ints[at[13] : at[14]],
        end_s=floats[put[0] : put[1]],
        due_s=floats[put[1] : put[2]],
        free_s=floats[put[2] : put[3]],
        out_s=floats[put[3] : put[4]],
        in_s=floats[put[4] : put[5]],
        flight_s=floats[put[5] : put[6]],
        held=floats[put[6] : put[7]],
        peak=floats[put[7] : put[8]],
        busy=floats[put[8] : put[9]],
        taken_s=floats[put[9] : put[10]],
        load_s=np.empty(p),
        start_s=np.empty(n),
        sent_s=np.empty(m),
        arrive_s=np.empty(m),
    )


@inlined
def reset(machine: DataflowMachine, state: DataflowState) -> None:
    """Make it the state before any placement begins."""
    for d in range(state.head.size):
        state.head[d] = state.running[d] = -1
        state.sends[d] = 0
        state.due_s[d] = math.inf
        state.free_s[d] = state.out_s[d] = state.in_s[d] = 0.0
        state.held[d] = state.peak[d] = state.busy[d] = state.taken_s[d] = 0.0
    for x in range(state.tally.size):
        state.tally[x] = 0
    for i in range(state.waiting.size):
        state.waiting[i] = machine.in_ptr[i + 1] - machine.in_ptr[i]
    for i in range(state.needed.size):
        state.needed[i] = 0


@inlined
def _precedes(priority: Float64, i: int, j: int) -> bool:
    return bool(priority[i] < priority[j] or (priority[i] == priority[j] and i < j))


@inlined
def _merged(state: DataflowState, priority: Float64, a: int, b: int) -> int:
    """Return the root of two skew heaps joined, of which b is not empty."""
    if a < 0:
        return b
    if _precedes(priority, b, a):
        a, b = b, a
    root = a
    while True:
        below = state.right[a]
        state.right[a] = state.link[a]
        if below < 0:
            state.link[a] = b
            return root
        if _precedes(priority, b, below):
            b, below = below, b
        state.link[a] = below
        a = below


@inlined
def enqueue(state: DataflowState, placement: Dispatch, i: int) -> None:
    """Let an operation wait for its device."""
    d = placement.device[i]
    state.link[i] = -1
    if placement.ordered:
        state.right[i] = -1
        state.head[d] = _merged(state, placement.priority, state.head[d], i)
    else:
        if state.head[d] < 0:
            state.head[d] = i
        else:
            state.link[state.tail[d]] = i
        state.tail[d] = i
    if state.running[d] < 0:
        state.due_s[d] = state.free_s[d]


@inlined
def dequeue(state: DataflowState, placement: Dispatch, d: int) -> int:
    """Return the operation that device d takes next, which leaves its queue."""
    first = state.head[d]
    rest = state.link[first]
    if placement.ordered and state.right[first] >= 0:
        rest = _merged(state, placement.priority, rest, state.right[first])
    state.head[d] = rest
    return int(first)


@inlined
def under_way(state: DataflowState) -> Heap:
    """Return the transfers under way; of those that arrive at one moment, the one sent first comes first."""
    return Heap(state.flight_s, state.flight, state.tally[UNDER_WAY : UNDER_WAY + 1])


@inlined
def depart(state: DataflowState, tensor: int, target: int, sent_s: float, arrive_s: float) -> None:
    """Put a transfer under way."""
    x = state.tally[BEGUN]
    state.tally[BEGUN] += 1
    state.sent[x], state.target[x], state.sent_s[x], state.arrive_s[x] = tensor, target, sent_s, arrive_s
    push(under_way(state), arrive_s, x)
