"""The compiled list scheduler whose choices are scored: a ready operation by its key, then a device, or pairs of both.

Every figure a score looks at is relative: times over the mean time of an operation or over a bound of the whole,
bytes as shares, and differences to the best device. So nothing changes if all times, or all bytes and link speeds, are
multiplied by a number, and devices and operations have no numbers of their own. What is equal in all figures is taken
by index.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pipeline.core.arrays import Float64, Int64
from pipeline.shared.compiled import inlined, inner, kernel
from pipeline.shared.heaps import Heap, pop, push
from policy.place.base.search import Look, unhurried
from policy.place.lists.listing import (
    PartialSchedule,
    arrival,
    begin,
    new_schedule,
    put,
    reads,
    settle_rest,
    span,
    steps_between_checks,
    usable,
)
from policy.place.lists.work import ScheduleInputs

# What is known of a device for an operation, in the order of the columns; the weights in a file have these names.
DEVICE_FIGURES = (
    "finish",  # end above the earliest end of all devices
    "finish_urgent",  # times the operation's b-level over the greatest
    "finish_share",  # over the bound of the whole
    "arrival",  # when all inputs are there, above the least
    "free",  # when the device has nothing more to do, above the least
    "start",  # start above the earliest start of all pairs compared
    "cost",  # time of the operation, of its group if that is open, above the least
    "received",  # seconds of transfers that it needs, above the least
    "received_urgent",
    "local",  # share of its input bytes that is on the device
    "load",  # load above the mean load
    "load_share",  # over the mean load of all devices in the end
    "load_urgent",
    "latest",  # whether the input that is ready last was made there
    "partners",  # share of the bytes on that device, of what else its readers read and has been placed
    "readers",  # share of its output bytes that go to readers whose group is there
    "siblings",  # share there of the other readers of its inputs
    "idle",  # idle time it makes
    "follows",  # whether it begins as soon as its latest input, made there, has ended
    "fill",  # share of the device's memory taken then, above the mean
    "away",  # seconds to send its outputs from there to any other device, above the least
    "unused",  # whether the device has no work yet
    "finish_crowded",  # finish, times the share of ready operations among these and the devices
    "received_crowded",
    "planned",  # whether the operation was there in the schedule before
    "planned_readers",  # share of its output bytes whose readers, not placed yet, were there in the schedule before
    "planned_urgent",  # whether the reader of the greatest b-level among them was
)
# What is known of an operation when it becomes ready.
KEY_FIGURES = (
    "b_level",
    "t_level",
    "compute_level",  # b-level without transfers
    "hops",  # operations on the longest way to an end
    "depth",
    "time",
    "arriving",  # seconds of its inputs
    "leaving",  # seconds of its outputs
    "fan_out",
    "planned_level",  # b-level with the times and transfers of the schedule before, 0 without one
    "recent",  # how many operations were placed before
    "parents_end",  # when the last of what it reads was made
)
PLANNED = "planned"  # how names of figures begin that come from the schedule before
STATIC = KEY_FIGURES.index("recent")  # how many of them are known before
FIGURES = len(DEVICE_FIGURES)
READY, START, FINISH, COST, RECEIVED, LOCAL, USABLE = range(7)  # columns of what is computed of a device first


class StaticFeatures(NamedTuple):
    """What scores know before anything is placed.

    urgency: float64 [n], b-level over the greatest. key: float64 [n, STATIC], figures of operations. away_s: float64
    [n, p], mean seconds to send all outputs elsewhere. unit_s: mean time of an operation. bound_s: of the whole.
    share_s: mean load of a device in the end. tie: float64 [n], tells apart operations of equal key, tiny. before:
    int64 [n], devices in the schedule before, -1 for none; [0] without one.
    """

    urgency: Float64
    key: Float64
    away_s: Float64
    unit_s: float
    bound_s: float
    share_s: float
    tie: Float64
    before: Int64


class Scores(NamedTuple):
    """What figures count.

    device: float64 [FIGURES]; key: float64 [len(KEY_FIGURES)]; the greatest sum is chosen. noise: float64 [n, p] or
    [0, 0], added to the scores of operations on devices. turn: float64 [n] or [0], added to keys; with Gumbel noise in
    it, the next of the ready operations is a draw of softmax(keys).
    """

    device: Float64
    key: Float64
    noise: Float64
    turn: Float64 = np.zeros(0)


class Decisions(NamedTuple):
    """Decisions given beforehand, and what is written down of all decisions.

    device: int64 [n], where an operation must go; -1, or [0], leaves it open. figure: float64 [n, p, FIGURES] or
    [0, p, FIGURES], what every device looked like when the operation was placed; nan where it was not usable.
    order: int64 [n], the operations in the order in which they were placed; -1 behind the last.
    """

    device: Int64
    figure: Float64
    order: Int64


class State(NamedTuple):
    """What figures need of the schedule in the making.

    load_s: float64 [p]. last: int64 [p], the operation placed last on each device, -1 for none. partner: float64
    [n, p], bytes that each operation reads of what is placed, by device. child: float64 [n, p], readers of each
    operation that are placed, by device. raw: float64 [p, 7], what is computed of the devices first. latest: int64
    [1], the input that is ready last, -1 for none. heap: what is ready, by minus its key. placed: int64 [2], how many
    operations are placed, and how many are to be. figure: float64 [width, p, FIGURES], node: int64 [width], key:
    float64 [width], of the operations that are compared.
    """

    load_s: Float64
    last: Int64
    partner: Float64
    child: Float64
    raw: Float64
    latest: Int64
    heap: Heap
    placed: Int64
    figure: Float64
    node: Int64
    key: Float64


@inlined
def _scaled(seconds: float, unit_s: float) -> float:
    """Return arcsinh(seconds / unit_s), four times as fast as `math.asinh`."""
    x = abs(seconds) / unit_s
    return math.copysign(math.log(x + math.sqrt(x * x + 1.0)), seconds)


@inner
def _look(work: ScheduleInputs, schedule: PartialSchedule, state: State, i: int) -> None:
    """Compute of all devices when operation i could run there, and what it would have to be sent."""
    count, edge, p = reads(work, schedule, i), schedule.scratch.edge, state.load_s.size
    g, raw, all_bytes, latest_s = work.group[i], state.raw, 0.0, -1.0
    state.latest[0] = -1
    for e in edge[:count]:
        all_bytes += work.in_bytes[e]
        made_s = schedule.finish_s[work.in_node[e]]
        if schedule.homes.device[work.group[work.in_node[e]]] >= 0 and made_s > latest_s:
            latest_s, state.latest[0] = made_s, work.in_node[e]
    for d in range(p):
        raw[d, USABLE] = 1.0 if usable(schedule.homes, g, d) else 0.0
        if raw[d, USABLE] == 0.0:
            continue
        raw[d, READY] = arrival(work, schedule, count, d, False)
        raw[d, START] = begin(schedule.lanes, d, raw[d, READY], span(work, i, d))
        raw[d, FINISH] = raw[d, START] + work.op_s[i, d]
        raw[d, COST] = work.op_s[i, d] if schedule.homes.device[g] >= 0 else work.group_s[g, d]
        raw[d, RECEIVED], raw[d, LOCAL] = 0.0, 1.0
        here = 0.0
        for e in edge[:count]:
            source = schedule.homes.device[work.group[work.in_node[e]]]
            if source < 0 or source == d:
                here += work.in_bytes[e]
            elif work.level == 0 or schedule.sent_s[work.in_tensor[e], d] < 0.0:
                raw[d, RECEIVED] += work.latency_s[source, d] + work.in_bytes[e] * work.per_byte_s[source, d]
        if all_bytes > 0.0:
            raw[d, LOCAL] = here / all_bytes


@inlined
def _least(raw: Float64, column: int) -> float:
    least = math.inf
    for d in range(raw.shape[0]):
        if raw[d, USABLE] > 0.0:
            least = min(least, raw[d, column])
    return least


@inlined
def _describe_times(
    work: ScheduleInputs,
    schedule: PartialSchedule,
    static: StaticFeatures,
    state: State,
    i: int,
    crowd: float,
    figure: Float64,
) -> None:
    """Write the figures of operation i on all usable devices that come from times, [p, FIGURES].

    crowd: the share of ready operations among these and the devices.
    """
    raw, unit_s, urgent, p = state.raw, static.unit_s, static.urgency[i], state.load_s.size
    finish_s, ready_s, cost_s = _least(raw, FINISH), _least(raw, READY), _least(raw, COST)
    received_s, free_s, away_s, load_s = _least(raw, RECEIVED), math.inf, math.inf, 0.0
    for d in range(p):
        load_s += state.load_s[d] / p
        if raw[d, USABLE] > 0.0:
            free_s = min(free_s, schedule.lanes.free_s[d])
            away_s = min(away_s, static.away_s[i, d])
    for d in range(p):
        if raw[d, USABLE] == 0.0:
            continue
        row = figure[d]
        row[0] = _scaled(raw[d, FINISH] - finish_s, unit_s)
        row[1] = row[0] * urgent
        row[2] = (raw[d, FINISH] - finish_s) / static.bound_s
        row[3] = _scaled(raw[d, READY] - ready_s, unit_s)
        row[4] = _scaled(schedule.lanes.free_s[d] - free_s, unit_s)
        row[5] = raw[d, START]  # becomes relative when all pairs are known
        row[6] = _scaled(raw[d, COST] - cost_s, unit_s)
        row[7] = _scaled(raw[d, RECEIVED] - received_s, unit_s)
        row[8] = row[7] * urgent
        row[10] = _scaled(state.load_s[d] - load_s, unit_s)
        row[11] = (state.load_s[d] - load_s) / static.share_s
        row[12] = row[11] * urgent
        row[17] = _scaled(max(0.0, raw[d, START] - schedule.lanes.free_s[d]), unit_s)
        row[20] = _scaled(static.away_s[i, d] - away_s, unit_s)
        row[21] = 1.0 if state.last[d] < 0 else 0.0
        row[22], row[23] = row[0] * crowd, row[7] * crowd


@inlined
def _describe_company(work: ScheduleInputs, schedule: PartialSchedule, state: State, i: int, figure: Float64) -> None:
    """Write the figures that come from where producers, readers and siblings are, and from memory."""
    p, latest, homes = state.load_s.size, state.latest[0], schedule.homes
    for d in range(p):
        figure[d, 9], figure[d, 13], figure[d, 14], figure[d, 15], figure[d, 16] = (
            state.raw[d, LOCAL],
            0.0,
            0.0,
            0.0,
            0.0,
        )
        figure[d, 18], figure[d, 19] = 0.0, 0.0
    if latest >= 0:
        d = homes.device[work.group[latest]]
        figure[d, 13] = 1.0
        figure[d, 18] = 1.0 if state.last[d] == latest and state.raw[d, READY] <= schedule.lanes.free_s[d] else 0.0
    partners, siblings, outputs = 0.0, 0.0, 0.0
    for e in range(work.out_ptr[i], work.out_ptr[i + 1]):
        j = work.out_node[e]
        outputs += work.out_bytes[e]
        at = homes.device[work.group[j]]
        if at >= 0:
            figure[at, 15] += work.out_bytes[e]
        for d in range(p):
            figure[d, 14] += state.partner[j, d]
            partners += state.partner[j, d]
    for e in range(work.in_ptr[i], work.in_ptr[i + 1]):
        for d in range(p):
            figure[d, 16] += state.child[work.in_node[e], d]
            siblings += state.child[work.in_node[e], d]
    # The mean share of memory taken, over devices whose memory is known
    taken, count = 0.0, 0
    for d in range(work.room.size):
        if work.room[d] < math.inf:
            taken += 1.0 - schedule.homes.room[d] / work.room[d]
            count += 1
    fill, g = taken / max(count, 1), work.group[i]
    for d in range(p):
        figure[d, 14] /= max(partners, 1e-300)
        figure[d, 15] /= max(outputs, 1e-300)
        figure[d, 16] /= max(siblings, 1e-300)
        if work.room[d] < math.inf:
            more = work.demand[g] if homes.device[g] < 0 else 0.0
            figure[d, 19] = 1.0 - (homes.room[d] - more) / work.room[d] - fill


@inlined
def _describe_plan(
    work: ScheduleInputs, schedule: PartialSchedule, static: StaticFeatures, state: State, i: int, figure: Float64
) -> None:
    """Write the figures that come from the schedule before, zeros without one."""
    homes, urgent, outputs = schedule.homes, -1, 0.0
    for d in range(state.load_s.size):
        figure[d, 24], figure[d, 25], figure[d, 26] = 0.0, 0.0, 0.0
    if static.before.size == 0:
        return
    if static.before[i] >= 0:
        figure[static.before[i], 24] = 1.0
    for e in range(work.out_ptr[i], work.out_ptr[i + 1]):
        j = work.out_node[e]
        outputs += work.out_bytes[e]
        if homes.device[work.group[j]] < 0 and static.before[j] >= 0:
            figure[static.before[j], 25] += work.out_bytes[e]
            if urgent < 0 or static.urgency[j] > static.urgency[urgent]:
                urgent = j
    for d in range(state.load_s.size):
        figure[d, 25] /= max(outputs, 1e-300)
    if urgent >= 0:
        figure[static.before[urgent], 26] = 1.0


@inlined
def _key(
    work: ScheduleInputs,
    schedule: PartialSchedule,
    static: StaticFeatures,
    scores: Scores,
    i: int,
    before: int,
    latest: float,
) -> float:
    """Return the key of an operation that has become ready, after `before` others were placed.

    latest: the key of the operation placed last, inf for none. Gumbel noise that came late is drawn as if it had been
    there and had not been the greatest yet (truncated): else what is ready early would be chosen too rarely.
    """
    key = static.tie[i]
    for f in range(static.key.shape[1]):
        key += scores.key[f] * static.key[i, f]
    made_s = 0.0
    for e in range(work.in_ptr[i], work.in_ptr[i + 1]):
        made_s = max(made_s, schedule.finish_s[work.in_node[e]])
    at = static.key.shape[1]
    key += scores.key[at] * before / work.order.size + scores.key[at + 1] * made_s / static.bound_s
    if scores.turn.size:
        key += scores.turn[i]
        if latest < math.inf:
            key = min(key, latest) - math.log1p(math.exp(-abs(key - latest)))
    return float(key)


@inlined
def _relative_starts(figure: Float64, count: int, unit_s: float) -> None:
    """Make the starts of `count` operations relative to the earliest; figure: float64 [width, p, FIGURES]."""
    least_s = math.inf
    for c in range(count):
        for d in range(figure.shape[1]):
            if not math.isnan(figure[c, d, 0]):
                least_s = min(least_s, figure[c, d, 5])
    for c in range(count):
        for d in range(figure.shape[1]):
            if not math.isnan(figure[c, d, 0]):
                figure[c, d, 5] = _scaled(figure[c, d, 5] - least_s, unit_s)


@inlined
def _choose(
    scores: Scores, decisions: Decisions, figure: Float64, node: Int64, key: Float64, count: int
) -> tuple[int, int]:
    """Return which of `count` operations goes to which device: the greatest sum of key and score."""
    chosen, device, most = 0, -1, -math.inf
    for c in range(count):
        i = node[c]
        given = decisions.device[i] if decisions.device.size else -1
        for d in range(figure.shape[1]):
            if math.isnan(figure[c, d, 0]):
                continue
            # the score of one device
            row = figure[c, d]
            total = 0.0
            for f in range(row.size):
                total += scores.device[f] * row[f]
            score = total + (key[c] if count > 1 else 0.0)
            if scores.noise.size:
                score += scores.noise[i, d]
            if given >= 0:
                score = math.inf if d == given else -1e300
            if device < 0 or score > most + 1e-9:
                chosen, device, most = c, d, score
    return chosen, device


@inlined
def _note(work: ScheduleInputs, state: State, i: int, d: int) -> None:
    """Take note of operation i on device d."""
    state.load_s[d] += work.op_s[i, d]
    state.last[d] = i
    for e in range(work.out_ptr[i], work.out_ptr[i + 1]):
        state.partner[work.out_node[e], d] += work.out_bytes[e]
    for e in range(work.in_ptr[i], work.in_ptr[i + 1]):
        state.child[work.in_node[e], d] += 1.0


def constructed(
    work: ScheduleInputs,
    static: StaticFeatures,
    scores: Scores,
    decisions: Decisions,
    *,
    width: int = 1,
    look: Look = unhurried,
) -> PartialSchedule:
    """Return the schedule that takes the ready operation of greatest key and puts it on the device of greatest score.

    width: so many ready operations of the greatest keys are compared as pairs with all devices, by key plus score.
    look: called now and then.
    """
    schedule, (n, p) = new_schedule(work), work.op_s.shape
    state = State(
        np.zeros(p),
        np.full(p, -1, np.int64),
        np.zeros((n, p)),
        np.zeros((n, p)),
        np.zeros((p, 7)),
        np.zeros(1, np.int64),
        Heap(np.empty(n), np.empty(n, np.int64), np.zeros(1, np.int64)),
        np.zeros(2, np.int64),
        np.empty((width, p, FIGURES)),
        np.empty(width, np.int64),
        np.empty(width),
    )
    while True:
        state.placed[1] += steps_between_checks(work)
        if _construct(work, schedule, static, scores, decisions, state, width):
            return schedule
        look()


@kernel
def _construct(
    work: ScheduleInputs,
    schedule: PartialSchedule,
    static: StaticFeatures,
    scores: Scores,
    decisions: Decisions,
    state: State,
    width: int,
) -> bool:
    """Schedule operations as `constructed` says until so many are placed; return whether these are all."""
    (n, p), heap, placed = work.op_s.shape, state.heap, state.placed[0]
    figure, node, key = state.figure, state.node, state.key
    given = width == 1 and decisions.device.size > 0 and decisions.figure.shape[0] == 0  # nobody looks at figures
    for i in range(n if placed == 0 else 0):
        if work.counts[i] and schedule.waiting[i] == 0:
            push(heap, -_key(work, schedule, static, scores, i, placed, math.inf), i)
    while heap.size[0] > 0:
        if placed == state.placed[1]:
            state.placed[0] = placed
            return False
        count, crowd = min(width, heap.size[0]), heap.size[0] / (heap.size[0] + p)
        for c in range(count):
            key[c] = -heap.key[0]
            node[c] = pop(heap)
            figure[c] = math.nan
            if given and decisions.device[node[c]] >= 0:
                continue
            _look(work, schedule, state, node[c])
            _describe_company(work, schedule, state, node[c], figure[c])
            _describe_plan(work, schedule, static, state, node[c], figure[c])
            _describe_times(work, schedule, static, state, node[c], crowd, figure[c])
        c, d = 0, decisions.device[node[0]] if given else -1
        if d < 0:
            _relative_starts(figure, count, static.unit_s)
            c, d = _choose(scores, decisions, figure, node, key, count)
        i = node[c]
        _write_down(decisions, figure, c, i, placed)
        put(work, schedule, i, d)
        _note(work, state, i, d)
        _keep_others(heap, node, key, count, c)
        placed += 1
        for e in range(work.out_ptr[i], work.out_ptr[i + 1]):
            j = work.out_node[e]
            schedule.waiting[j] -= 1
            if schedule.waiting[j] == 0:
                push(heap, -_key(work, schedule, static, scores, j, placed, key[c]), j)
    settle_rest(schedule.homes)
    return True


@inlined
def _write_down(decisions: Decisions, figure: Float64, c: int, i: int, placed: int) -> None:
    """Write down that operation i, of the row c of what was compared, is the next that is placed."""
    decisions.order[placed] = i
    if decisions.figure.shape[0]:
        for d in range(figure.shape[1]):
            for f in range(FIGURES):
                decisions.figure[i, d, f] = figure[c, d, f]


@inlined
def _keep_others(heap: Heap, node: Int64, key: Float64, count: int, chosen: int) -> None:
    """Put back the operations that were looked at and not chosen."""
    for c in range(count):
        if c != chosen:
            push(heap, -key[c], node[c])
