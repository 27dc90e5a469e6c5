"""One inference in which accelerators are called, as a constraint program."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from pipeline.core.arrays import Float64, Int32, Int64
from pipeline.core.graph import Grouping, adjacency, topological_order
from pipeline.core.problem import Problem
from policy.place.base.groups import UNLIMITED, Groups
from policy.place.exact.shared.cpsat_models import (
    ConstraintProgram,
    Division,
    alike_devices,
    in_ticks,
    tick_of,
    whole_nets,
)

TICKS = 2**22  # of the whole, where durations are no whole numbers of a power of ten
Call = tuple[int, int]  # accelerator, number of the call


class CallTimes(NamedTuple):
    """A problem in ticks, rounded down.

    groups: what shares a device. part: which operations share a call, if they share a device; of_part: int64 [k], the
    group of each part. op_ticks: int64 [n, p]. nets: the parts that make and read each tensor; pay_ticks: int64 [t, p].
    reads: int64 [2, m], who reads what. order: int64 [n], producers first. calls: all there are. cpus: the devices.
    """

    groups: Groups
    part: Grouping
    of_part: Int64
    op_ticks: Int64
    nets: list[list[int]]
    pay_ticks: Int64
    reads: list[list[int]]
    order: list[int]
    calls: list[Call]
    cpus: list[int]
    tick_s: float

    @classmethod
    def of(cls, problem: Problem, groups: Groups, calls: int, horizon_s: float) -> CallTimes:
        """Return the times of a problem; calls: of each accelerator; horizon_s: what a placement takes, or inf."""
        if problem.costs is None:
            raise ValueError("a problem without costs")
        graph, devices = problem.graph, problem.topology.devices
        part = groups.grouping if calls == 1 else Grouping.identity(graph.n)
        of_part = np.zeros(part.k, np.int64)
        of_part[part.group] = groups.grouping.group
        op_s = np.where(groups.allowed[groups.grouping.group], problem.costs.op_s, 0.0)
        if not math.isfinite(horizon_s):
            horizon_s = float(op_s.max(axis=1).sum())
        nets = whole_nets(problem, Groups.of_grouping(problem, part)) if len(devices) > 1 else []
        pay_s = problem.topology.slowest_link_s(np.array([size for _, size in nets], np.int64))
        tick_s = tick_of(np.concatenate([op_s.ravel(), pay_s.ravel()]), horizon_s, ticks=TICKS)
        ptr, reader = adjacency(graph)
        cpus = [d for d, device in enumerate(devices) if device.kind == "cpu"]
        return cls(
            groups,
            part,
            of_part,
            in_ticks(op_s, tick_s),
            [members for members, _ in nets],
            in_ticks(pay_s, tick_s),
            [reader[a:b].tolist() for a, b in pairwise(ptr.tolist())],
            topological_order(graph).tolist(),
            [(d, turn) for d in range(len(devices)) if d not in cpus for turn in range(calls)],
            cpus,
            tick_s,
        )

    def representative_devices(self) -> list[int]:
        """Return the device that stands for each: the first of those CPUs that run everything alike."""
        room, allowed = self.groups.room_bytes, self.groups.allowed
        stand_in = list(range(room.size))
        for at, d in enumerate(self.cpus):
            for e in self.cpus[:at]:
                same = np.array_equal(self.op_ticks[:, d], self.op_ticks[:, e]) and room[e] >= UNLIMITED
                if stand_in[d] == d and same and np.array_equal(allowed[:, d], allowed[:, e]):
                    stand_in[d] = e
        return stand_in

    def group_s(self) -> Float64:
        """Return float64 [k, p], what groups take on every device; inf where they may not go, or need not."""
        ticks = np.zeros(self.groups.allowed.shape, np.int64)
        np.add.at(ticks, self.groups.grouping.group, self.op_ticks)
        representative_devices = np.array(self.representative_devices())
        needed = np.arange(representative_devices.size) == representative_devices
        return np.where(self.groups.allowed & needed, ticks * self.tick_s, math.inf)


class CallDraft(NamedTuple):
    """What happens under one placement, in ticks.

    ready: per operation. start, end: per call. split: (net, call) whose call holds a part of the net. length: of all.
    """

    ready: list[int]
    start: dict[Call, int]
    end: dict[Call, int]
    split: set[tuple[int, Call]]
    length: int

    @classmethod
    def of(cls, times: CallTimes, device: Int32, turn: Int64) -> CallDraft | None:
        """Return the draft of groups on devices int32 [k], parts in calls int64 [parts]; None if calls wait for
        one another.
        """
        group, n = times.part.group.tolist(), times.part.n
        call_of = [(int(device[times.of_part[g]]), int(turn[g])) for g in range(times.part.k)]
        called = set(times.calls)
        # split: (net, call) where a call holds a part of the net
        split: set[tuple[int, Call]] = set()
        for x, members in enumerate(times.nets):
            held = [call_of[g] for g in members]
            split |= {(x, call) for call in set(held) & set(times.calls) if held.count(call) < len(held)}
        lasts = dict.fromkeys(times.calls, 0)
        for i, g in enumerate(group):
            if call_of[g] in called:
                lasts[call_of[g]] += int(times.op_ticks[i, call_of[g][0]])
        for x, call in split:
            lasts[call] += int(times.pay_ticks[x, call[0]])
        ready, start = [0] * n, dict.fromkeys(times.calls, 0)
        for _ in range(n + len(times.calls) + 1):  # as often as a path has steps at most
            before = ready.copy(), start.copy()
            end = {call: start[call] + lasts[call] for call in times.calls}
            for d, number in times.calls:
                if (d, number + 1) in called:
                    start[d, number + 1] = max(start[d, number + 1], end[d, number])
            waits = [0] * n
            for i in times.order:
                call = call_of[group[i]]
                ready[i] = end[call] if call in called else waits[i] + int(times.op_ticks[i, call[0]])
                for j in times.reads[i]:
                    waits[j] = max(waits[j], ready[i])
                    other = call_of[group[j]]
                    if other in called and other != call:
                        start[other] = max(start[other], ready[i])
            if (ready, start) == before:
                return cls(ready, start, end, split, max([*ready, *end.values()], default=0))
        return None


class CallProgram:
    """The program of a problem; see `SingleInference` among the simulators for the rules."""

    def __init__(self, times: CallTimes, problem: Problem, device: Int32 | None, priority: Float64 | None) -> None:
        group_s = times.group_s()
        groups, calls = times.groups, len({turn for _, turn in times.calls})
        alike = [known for known in alike_devices(problem, groups, group_s) if known[0] not in times.cpus]
        group = groups.grouping.group
        order = np.array(list(dict.fromkeys(group[times.order].tolist())), np.int64)
        self.times, self.draft = times, None
        turn = np.zeros(times.part.k, np.int64)
        if device is not None and priority is not None:
            turn[times.part.group] = np.clip(priority, 0, calls - 1).astype(np.int64)
        if device is not None:
            device = np.array(times.representative_devices(), np.int32)[device]
        self.division = Division(groups, group_s, device, order, alike)
        self.model = self.division.model
        if self.division.device is not None:
            self.draft = CallDraft.of(times, self.division.device, turn)
        if self.draft is None and device is not None:
            self.division = Division(groups, group_s, None, order, alike)
            self.model = self.division.model
        self.x = self.division.x
        longest = int(times.op_ticks.max(axis=1).sum() + 2 * times.pay_ticks.max(axis=1, initial=0).sum())
        self.horizon = longest * 2 if self.draft is None else self.draft.length
        self.y = [self._calls_of(g, turn) for g in range(times.part.k)]
        draft = self.draft
        self.length = self._number(None if draft is None else draft.length)
        self.ready = [self._number(None if draft is None else draft.ready[i]) for i in range(times.part.n)]

    def program(self, least_ticks: int) -> ConstraintProgram:
        """Return the program; least_ticks: what the whole is known to take at least."""
        times, model = self.times, self.model
        end: dict[Call, Any] = {}
        for call in times.calls:
            start, end[call] = self._call(call)
            if (before := (call[0], call[1] - 1)) in end:
                model.add(start >= end[before])
            self._waits(call, start)
        for i, group in enumerate(times.part.group.tolist()):
            for call, inside in self.y[group].items():
                model.add(self.ready[i] >= end[call]).only_enforce_if(inside)
            model.add(self.length >= self.ready[i])
        for call in times.calls:
            model.add(self.length >= end[call])
        self._run_on_cpus()
        model.add(self.length >= min(least_ticks, self.horizon))
        model.minimize(self.length)
        turn: list[Any] = []
        if len({number for _, number in times.calls}) > 1:
            turn = [sum(c[1] * on for c, on in self.y[g].items()) for g in times.part.group.tolist()]
        return ConstraintProgram(model, self.x, [], times.tick_s, turn)

    def _number(self, value: int | None) -> Any:
        return self.division.number(0, self.horizon, value)

    def _calls_of(self, g: int, turn: Int64) -> dict[Call, Any]:
        """Return the literals that a part is in calls."""
        times, group = self.times, int(self.times.of_part[g])
        allowed = times.groups.allowed[group]
        if len({number for _, number in times.calls}) == 1:
            return {(d, 0): self.x[group][d] for d, _ in times.calls if allowed[d]}
        calls: dict[Call, Any] = {}
        for d, number in times.calls:
            if allowed[d]:
                at = None if self.draft is None else int(self.division.device[group])  # type: ignore[index]
                calls[d, number] = self.division.literal(None if at is None else (at, turn[g]) == (d, number))
        for d in {d for d, _ in calls}:
            self.model.add(sum(on for (e, _), on in calls.items() if e == d) == self.x[group][d])
        return calls

    def _call(self, call: Call) -> tuple[Any, Any]:
        """Return (start, end) of a call, which lasts as long as its operations and transfers."""
        times, draft, model = self.times, self.draft, self.model
        start = self._number(None if draft is None else draft.start[call])
        end = self._number(None if draft is None else draft.end[call])
        ticks = np.zeros(times.part.k, np.int64)
        np.add.at(ticks, times.part.group, times.op_ticks[:, call[0]])
        terms = [int(ticks[g]) * self.y[g][call] for g in np.flatnonzero(ticks).tolist() if call in self.y[g]]
        for x, members in enumerate(times.nets):
            pay = int(times.pay_ticks[x, call[0]])
            inside = [self.y[g].get(call) for g in members]
            if pay == 0 or all(on is None for on in inside):
                continue
            part = self.division.literal(None if draft is None else (x, call) in draft.split)
            terms.append(pay * part)
            first = inside[0]
            for other in inside[1:]:  # a net is held whole, or not at all, or it is split
                for on, off in ((first, other), (other, first)):
                    if on is not None:
                        model.add_bool_or([on.negated(), part, *([] if off is None else [off])])
        model.add(end >= start + sum(terms))
        return start, end

    def _waits(self, call: Call, start: Any) -> None:
        """Let a call start when all that it reads from elsewhere is there."""
        group = self.times.part.group.tolist()
        for i, readers in enumerate(self.times.reads):
            own = self.y[group[i]].get(call)
            for g in dict.fromkeys(group[j] for j in readers):
                inside = self.y[g].get(call)
                if g != group[i] and inside is not None:
                    when = [inside] if own is None else [inside, own.negated()]
                    self.model.add(start >= self.ready[i]).only_enforce_if(*when)

    def _run_on_cpus(self) -> None:
        """Let operations on CPUs follow what they read."""
        times, group = self.times, self.times.groups.grouping.group.tolist()
        for i, readers in enumerate(times.reads):
            for j in readers:
                self.model.add(self.ready[j] >= self.ready[i])
        begins = set(range(times.part.n)) - {j for readers in times.reads for j in readers}
        for d in times.cpus:
            for j in begins:
                self.model.add(self.ready[j] >= int(times.op_ticks[j, d])).only_enforce_if(self.x[group[j]][d])
            for i, readers in enumerate(times.reads):
                for j in readers:
                    if ticks := int(times.op_ticks[j, d]):
                        after = self.ready[j] >= self.ready[i] + ticks
                        self.model.add(after).only_enforce_if(self.x[group[j]][d])


def calls_program(
    problem: Problem,
    times: CallTimes,
    device: Int32 | None,
    priority: Float64 | None,
    least_s: float,
) -> ConstraintProgram:
    """Return the program of one inference on accelerators that are called.

    device: the placement int32 [k] of groups to start from, or None; priority: float64 [n], the calls of operations.
    least_s: what is proven.

    Source: Tarnawski et al., NeurIPS 2020, section 4.2; literals in place of large constants, and nets in place of
    edges.
    """
    return CallProgram(times, problem, device, priority).program(math.floor(least_s / times.tick_s))
