"""What list schedulers share: a schedule in the making, and the classic loop over ready operations.

List schedulers schedule operations, producers first. The first operation of a group that is scheduled fixes the device
of the whole group: quotients of groups may be cyclic, the operations are not. Operations that read nothing and cost
nothing (constants, parameters) are not scheduled themselves: they are there from the beginning, on the device of their
group's first scheduled member or of their first scheduled reader.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32, Int64
from pipeline.core.simulation import T0, T1, T2
from pipeline.shared.compiled import inlined, inner, kernel
from pipeline.shared.heaps import Heap, pop, push
from policy.place.base.search import Look, unhurried
from policy.place.lists.work import ScheduleInputs

GAPS = 256  # idle gaps remembered per device for insertion
CELLS = 8_000  # operations times devices that are scheduled between two looks at the clock
NEAR = 1e-12  # relative difference below which two finishing times count as equal


class Assignment(NamedTuple):
    """Which groups are where.

    device: int32 [k], each group's device, -1 while open. room: float64 [p], bytes left on each device.
    allowed: bool [k, p]. demand: float64 [k], bytes each group takes.
    """

    device: Int32
    room: Float64
    allowed: Bool
    demand: Float64


class DeviceTimelines(NamedTuple):
    """When devices are busy.

    free_s: float64 [p], when each device has nothing more to do. gap_s: float64 [p, g, 2], the last idle times before
    that, start and end, in order; g is 0 where they are not to be used. gaps: int64 [p], how many.
    """

    free_s: Float64
    gap_s: Float64
    gaps: Int64


class LookBuffers(NamedTuple):
    """What is written anew for every operation that is looked at.

    edge: int64 [r], the edges that end in it, in the order in which they are read; r is the most that any has. heap: of
    r nodes. queue_s: float64 [2, p], the links' queues if it went to a device.
    """

    edge: Int64
    heap: Heap
    queue_s: Float64


class PartialSchedule(NamedTuple):
    """A schedule in the making.

    start_s, finish_s: float64 [n], 0 while not scheduled. waiting: int64 [n], producers each operation waits for.
    queue_s: float64 [2, p], when each device may send and receive again. sent_s: float64 [t, p], when a tensor
    has left for a device, -1 while it has not; [1, p] at T0.
    """

    homes: Assignment
    lanes: DeviceTimelines
    start_s: Float64
    finish_s: Float64
    waiting: Int64
    queue_s: Float64
    sent_s: Float64
    scratch: LookBuffers


def new_schedule(work: ScheduleInputs, gaps: int = 0) -> PartialSchedule:
    """Return an empty schedule; gaps: how many idle times of each device it remembers, to use them."""
    (n, p), most = work.op_s.shape, int(np.diff(work.in_ptr).max(initial=0))
    consumer = np.repeat(np.arange(n), np.diff(work.in_ptr))
    return PartialSchedule(
        Assignment(np.full(work.demand.size, -1, np.int32), work.room.copy(), work.allowed, work.demand),
        DeviceTimelines(np.zeros(p), np.zeros((p, gaps, 2)), np.zeros(p, np.int64)),
        np.zeros(n),
        np.zeros(n),
        np.bincount(consumer[work.counts[work.in_node]], minlength=n),
        np.zeros((2, p)),
        np.full((1 if work.level == T0 else int(work.in_tensor.max(initial=-1)) + 1, p), -1.0),
        LookBuffers(
            np.empty(most, np.int64),
            Heap(np.empty(most), np.empty(most, np.int64), np.zeros(1, np.int64)),
            np.empty((2, p)),
        ),
    )


@inlined
def usable(homes: Assignment, g: int, d: int) -> bool:
    """Return whether group g may go to device d: there already, or allowed and not too large while others have room."""
    if homes.device[g] >= 0:
        return bool(homes.device[g] == d)
    if not homes.allowed[g, d] or homes.room[d] >= homes.demand[g]:
        return bool(homes.allowed[g, d])
    others_have_room = False
    for other in range(homes.room.size):
        others_have_room |= homes.allowed[g, other] and homes.room[other] >= homes.demand[g]
    return not others_have_room


@inner
def settle(homes: Assignment, g: int, d: int) -> None:
    """Fix the device of a group: d, or the first usable one if d is not."""
    if homes.device[g] >= 0:
        return
    if not usable(homes, g, d):
        for other in range(homes.room.size):
            if usable(homes, g, other):
                d = other
                break
    homes.device[g] = d
    homes.room[d] -= homes.demand[g]


@inner
def settle_rest(homes: Assignment) -> None:
    """Fix the devices of groups that hold nothing but sources that nobody reads."""
    for g in range(homes.device.size):
        settle(homes, g, int(np.argmax(homes.room)))


@inner
def reads(work: ScheduleInputs, schedule: PartialSchedule, i: int) -> int:
    """Write down the edges that end in operation i, under contention in the order in which their tensors are ready.

    Return how many there are; they lie in `schedule.scratch`.
    """
    first, count = work.in_ptr[i], work.in_ptr[i + 1] - work.in_ptr[i]
    edge, heap = schedule.scratch.edge, schedule.scratch.heap
    for at in range(count):
        edge[at] = first + at
    if work.level == T0 or count < 2:
        return int(count)
    for at in range(count):
        push(heap, schedule.finish_s[work.in_node[first + at]], at)
    for at in range(count):
        edge[at] = first + pop(heap)
    return int(count)


@inlined
def arrival(work: ScheduleInputs, schedule: PartialSchedule, count: int, d: int, sends: bool) -> float:
    """Return when all is on device d that the first `count` edges carry which `reads` has written down.

    sends: whether it is sent, so that the schedule's queues and tensors take note.
    """
    latest_s, queue_s, sent_s = 0.0, schedule.queue_s, schedule.sent_s
    if not sends:
        queue_s = schedule.scratch.queue_s
        for at in range(work.room.size):
            queue_s[0, at], queue_s[1, at] = schedule.queue_s[0, at], schedule.queue_s[1, at]
    for at in range(count):
        e = schedule.scratch.edge[at]
        i, t = work.in_node[e], work.in_tensor[e]
        source, now_s = schedule.homes.device[work.group[i]], schedule.finish_s[i]
        if source >= 0 and source != d:
            carry_s = work.in_bytes[e] * work.per_byte_s[source, d]
            if work.level == T0 or carry_s == 0.0:
                now_s += carry_s
            elif sent_s[t, d] >= 0.0:
                now_s = sent_s[t, d]
            else:
                now_s = max(now_s, queue_s[0, source])
                if work.level == T2:
                    now_s = max(now_s, queue_s[1, d])
                now_s += carry_s
                queue_s[0, source] = now_s + (work.gap_s if work.level == T1 else 0.0)
                queue_s[1, d] = now_s
                for target in range(sent_s.shape[1] if sends else 0):
                    if target == d or work.level == T1:
                        sent_s[t, target] = now_s
            now_s += work.latency_s[source, d]
        latest_s = max(latest_s, now_s)
    return latest_s


@inlined
def span(work: ScheduleInputs, i: int, d: int) -> float:
    """Return the seconds for which operation i keeps device d."""
    cost_s = work.op_s[i, d]
    return float(cost_s + (work.block_s if cost_s > 0.0 else 0.0))


@inlined
def begin(lanes: DeviceTimelines, d: int, ready_s: float, span_s: float) -> float:
    """Return the earliest start on device d of something that is ready at ready_s and lasts span_s."""
    for q in range(lanes.gaps[d]):
        start_s = max(lanes.gap_s[d, q, 0], ready_s)
        if start_s + span_s <= lanes.gap_s[d, q, 1]:
            return float(start_s)
    return max(ready_s, float(lanes.free_s[d]))


@inner
def _drop_gap(lanes: DeviceTimelines, d: int, q: int) -> None:
    """Forget the q-th idle time of device d."""
    lanes.gaps[d] -= 1
    for at in range(q, lanes.gaps[d]):
        lanes.gap_s[d, at, 0], lanes.gap_s[d, at, 1] = lanes.gap_s[d, at + 1, 0], lanes.gap_s[d, at + 1, 1]


@inner
def _add_gap(lanes: DeviceTimelines, d: int, q: int, start_s: float, end_s: float) -> None:
    """Make an idle time the q-th of device d; if there are too many, the first is forgotten."""
    most = lanes.gap_s.shape[1]
    if end_s <= start_s or most == 0:
        return
    if lanes.gaps[d] == most:
        _drop_gap(lanes, d, lanes.gaps[d] - most)  # the first
        q = max(q - 1, 0)
    for at in range(lanes.gaps[d], q, -1):
        lanes.gap_s[d, at, 0], lanes.gap_s[d, at, 1] = lanes.gap_s[d, at - 1, 0], lanes.gap_s[d, at - 1, 1]
    lanes.gap_s[d, q, 0], lanes.gap_s[d, q, 1] = start_s, end_s
    lanes.gaps[d] += 1


@inner
def put(work: ScheduleInputs, schedule: PartialSchedule, i: int, d: int) -> None:
    """Schedule operation i on device d, and with it the sources it reads that have no device yet."""
    settle(schedule.homes, work.group[i], d)
    count = reads(work, schedule, i)
    for at in range(count):
        settle(schedule.homes, work.group[work.in_node[schedule.scratch.edge[at]]], d)
    ready_s = arrival(work, schedule, count, d, True)
    start_s = begin(schedule.lanes, d, ready_s, span(work, i, d))
    schedule.start_s[i], schedule.finish_s[i] = start_s, start_s + work.op_s[i, d]
    # Take device d for a while that `begin` found free
    lanes = schedule.lanes
    end_s = start_s + span(work, i, d)
    if start_s >= lanes.free_s[d]:
        _add_gap(lanes, d, lanes.gaps[d], lanes.free_s[d], start_s)
        lanes.free_s[d] = end_s
        return
    q = 0
    while lanes.gap_s[d, q, 1] < end_s:
        q += 1
    before_s, after_s = lanes.gap_s[d, q, 0], lanes.gap_s[d, q, 1]
    _drop_gap(lanes, d, q)
    _add_gap(lanes, d, q, end_s, after_s)
    _add_gap(lanes, d, q, before_s, start_s)


@inner
def _best_device(work: ScheduleInputs, schedule: PartialSchedule, i: int, bias_s: Float64) -> int:
    """Return the device on which operation i ends first, `bias_s` added; of equal ones the one free first.

    An operation whose group has no device yet counts with the time of the whole group.
    """
    g, chosen, least_s, least_free_s = work.group[i], -1, math.inf, math.inf
    count = reads(work, schedule, i)
    for d in range(schedule.lanes.free_s.size):
        if not usable(schedule.homes, g, d):
            continue
        ready_s = arrival(work, schedule, count, d, False)
        cost_s = work.op_s[i, d] if schedule.homes.device[g] >= 0 else work.group_s[g, d]
        end_s = begin(schedule.lanes, d, ready_s, span(work, i, d)) + cost_s + bias_s[i, d]
        slack_s = NEAR * end_s
        if end_s < least_s - slack_s or (end_s <= least_s + slack_s and schedule.lanes.free_s[d] < least_free_s):
            chosen, least_s, least_free_s = d, end_s, schedule.lanes.free_s[d]
    return chosen


def steps_between_checks(work: ScheduleInputs) -> int:
    """Return how many operations are scheduled between two looks at the clock, in about 20 ms."""
    return max(1, CELLS // work.room.size)


def ready_first(work: ScheduleInputs, schedule: PartialSchedule) -> Int64:
    """Return int64, the operations that wait for nothing, in an empty schedule."""
    return np.flatnonzero(work.counts & (schedule.waiting == 0))


def list_schedule(
    work: ScheduleInputs, key: Float64, bias_s: Float64, insertion: bool, look: Look = unhurried
) -> PartialSchedule:
    """Return the schedule that takes, of the ready operations, the one of least key, and puts it where it ends first.

    key: float64 [n]. bias_s: float64 [n, p], added to an operation's end when devices are compared.
    insertion: use idle time between operations scheduled before; the last GAPS idle times of a device are known.
    look: called now and then.
    """
    schedule = new_schedule(work, GAPS if insertion else 0)
    first = ready_first(work, schedule)
    first = first[np.lexsort((first, key[first]))]  # sorted, and so a heap
    heap = Heap(np.empty(key.size), np.empty(key.size, np.int64), np.array([first.size]))
    heap.key[: first.size], heap.node[: first.size] = key[first], first
    while not _schedule(work, schedule, key, bias_s, heap, steps_between_checks(work)):
        look()
    return schedule


@kernel
def _schedule(
    work: ScheduleInputs, schedule: PartialSchedule, key: Float64, bias_s: Float64, heap: Heap, steps: int
) -> bool:
    """Schedule so many operations more as `list_schedule` says; return whether these were all. heap: what is ready."""
    while heap.size[0] > 0:
        if steps == 0:
            return False
        steps -= 1
        i = pop(heap)
        put(work, schedule, i, _best_device(work, schedule, i, bias_s))
        for e in range(work.out_ptr[i], work.out_ptr[i + 1]):
            j = work.out_node[e]
            schedule.waiting[j] -= 1
            if schedule.waiting[j] == 0:
                push(heap, key[j], j)
    settle_rest(schedule.homes)
    return True
