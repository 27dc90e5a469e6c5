"""The constraint program of devices and links that all work at once: who runs what, and when."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pipeline.core.arrays import Float64, Int32
from pipeline.core.problem import Problem
from policy.place.base.groups import Groups
from policy.place.exact.dataflow.cpsat_times import Draft, Tensor, Times
from policy.place.exact.shared.cpsat_models import Alike, ConstraintProgram, Division, alike_devices, in_order_of_use

Schedule = tuple[Int32, Float64, Float64]  # devices int32 [k] of groups, start and end float64 [n] of operations


class ScheduleProgram:
    """The program of a problem under the rules of `listsched`."""

    def __init__(self, groups: Groups, times: Times, draft: Draft | None, alike: Alike) -> None:
        group_ticks = np.zeros(groups.allowed.shape, np.int64)
        np.add.at(group_ticks, groups.grouping.group, times.op_ticks)
        group_s = np.where(groups.allowed, group_ticks * times.tick_s, math.inf)
        self.times, self.draft = times, draft
        device = None if draft is None else draft.device
        self.division = Division(groups, group_s, device, times.group_order(), alike)
        self.model, self.x = self.division.model, self.division.x
        self.p = groups.allowed.shape[1]
        self.horizon = serial_ticks(times) if draft is None else draft.length
        self.length = self.division.number(0, self.horizon, self.horizon if draft is not None else None)
        self.start = [self._start(i) for i in range(len(times.group))]
        self.on_device: list[list[Any]] = [[] for _ in range(self.p)]
        self.out: list[list[Any]] = [[] for _ in range(self.p)]
        self.into: list[list[Any]] = [[] for _ in range(self.p)]

    def program(self, least_ticks: int) -> ConstraintProgram:
        """Return the program; least_ticks: what the whole is known to take at least."""
        times, model = self.times, self.model
        read = {v for t in times.tensors for v in t.readers} | {v for _, v in times.inner}
        for i in range(len(times.group)):
            # Let an operation occupy its device; one without inputs that takes no time can always go first
            waits = i in read
            self.model.add(self.length >= self.end(i) + int(times.tail_ticks[i]))
            for d in np.flatnonzero(times.allowed[i]).tolist():
                ticks = int(times.block_ticks[i, d])
                if ticks > 0 or waits:
                    self.on_device[d].append(self._interval(self.start[i], ticks, self.on(i, d)))
                if ticks > times.op_ticks[i, d]:
                    self.model.add(self.length >= self.start[i] + ticks).only_enforce_if(self.on(i, d))
        for u, v in times.inner:
            model.add(self.start[v] >= self.end(u))
        for k, tensor in enumerate(times.tensors):
            if times.execution.level == "T0" or not tensor.queues:
                self._drop_in(tensor)
            elif times.execution.level == "T1":
                self._send_once(k, tensor)
            else:
                self._send_each(k, tensor)
        for intervals in (*self.on_device, *self.out, *self.into):
            if len(intervals) > 1:
                model.add_no_overlap(intervals)
        for d in range(self.p):
            model.add(self.length >= sum(self.division.work(times.tick_s, only=d)))
        self._count_devices()
        model.add(self.length >= min(least_ticks, self.horizon))
        model.minimize(self.length)
        return ConstraintProgram(model, self.x, self.start, times.tick_s)

    def on(self, i: int, d: int) -> Any:
        """Return the literal that operation i runs on device d."""
        return self.x[self.times.group[i]][d]

    def at(self, i: int) -> int | None:
        """Return the device of operation i in the draft, if there is one."""
        return None if self.draft is None else int(self.draft.device[self.times.group[i]])

    def end(self, i: int) -> Any:
        """Return the expression of the end of operation i."""
        ticks = self.times.op_ticks[i][self.times.allowed[i]]
        if np.all(ticks == ticks[0]):
            return self.start[i] + int(ticks[0])
        return self.start[i] + sum(
            int(self.times.op_ticks[i, d]) * self.on(i, d) for d in np.flatnonzero(self.times.allowed[i]).tolist()
        )

    def _start(self, i: int) -> Any:
        value = None if self.draft is None else int(self.draft.start[i])
        return self.division.number(int(self.times.head_ticks[i]), self.horizon, value)

    def _interval(self, start: Any, ticks: int, literal: Any) -> Any:
        return self.model.new_optional_fixed_size_interval_var(start, ticks, literal, "")

    def _count_devices(self) -> None:
        """Let no more operations run at a time than there are devices, wherever they run; a redundant constraint."""
        block = np.where(self.times.allowed, self.times.block_ticks, np.iinfo(np.int64).max).min(axis=1)
        timed = np.flatnonzero(block).tolist()
        running = [self.model.new_fixed_size_interval_var(self.start[i], int(block[i]), "") for i in timed]
        if len(running) > self.p:
            self.model.add_cumulative(running, [1] * len(running), self.p)

    def _differ_in_device(self, i: int, j: int) -> Any:
        """Return the literal that is true if operations i and j are on different devices."""
        here, there = self.at(i), self.at(j)
        apart = self.division.literal(None if here is None else here != there)
        for d in range(self.p):
            self.model.add_bool_or([self.on(i, d).negated(), self.on(j, d), apart])
        return apart

    def _routes(self) -> list[tuple[int, int]]:
        return [(s, d) for s in range(self.p) for d in range(self.p) if s != d]

    def _drop_in(self, tensor: Tensor) -> None:
        """Let a tensor arrive at its readers after its time, whatever else is sent."""
        u, model = tensor.maker, self.model
        delay = tensor.own_ticks + tensor.late_ticks
        for r in tensor.readers:
            least = min((int(delay[route]) for route in self._routes()), default=0)
            model.add(self.start[r] >= self.end(u) + least * self._differ_in_device(u, r))
            for s, d in self._routes() if not tensor.even else ():
                model.add(self.start[r] >= self.end(u) + int(delay[s, d])).only_enforce_if(self.on(u, s), self.on(r, d))

    def _send_once(self, k: int, tensor: Tensor) -> None:
        """Send a tensor once to all that read it elsewhere, as long as the slowest link takes; one at a time."""
        u, model, gap, draft = tensor.maker, self.model, self.times.gap_ticks, self.draft
        targets = set() if draft is None else {self.at(r) for r in tensor.readers} - {self.at(u)}
        sent = self.division.literal(None if draft is None else bool(targets))
        begin = self._begin(u, None if draft is None else draft.sent.get((k, -1)))
        slowest = max(int(tensor.own_ticks[route]) for route in self._routes())
        takes: Any = slowest
        free: Any = begin + (slowest + gap)
        if not tensor.even:
            drafted = max((int(tensor.own_ticks[self.at(u), e]) for e in targets), default=0)
            takes = self.division.number(0, slowest, None if draft is None else drafted)
            begun = None if draft is None else draft.sent.get((k, -1), self._drafted_end(u))
            free = self.division.number(
                0, self.horizon + slowest + gap, None if begun is None else begun + drafted + gap
            )
            model.add(free == begin + takes + gap)
        for s in range(self.p):
            busy = self.division.literal(None if draft is None else bool(targets) and self.at(u) == s)
            model.add_bool_or([self.on(u, s).negated(), sent.negated(), busy])
            self.out[s].append(model.new_optional_interval_var(begin, takes + gap, free, busy, ""))
        model.add(self.length >= free).only_enforce_if(sent)
        for r in tensor.readers:
            apart = self._differ_in_device(u, r)
            model.add_implication(apart, sent)
            model.add(self.start[r] >= self.end(u) + tensor.least_ticks * apart)
            model.add(self.start[r] >= begin + takes + tensor.least_late).only_enforce_if(apart)
            for s, d in self._routes() if not tensor.even else ():
                both = (self.on(u, s), self.on(r, d))
                model.add(takes >= int(tensor.own_ticks[s, d])).only_enforce_if(*both)
                model.add(self.start[r] >= begin + takes + int(tensor.late_ticks[s, d])).only_enforce_if(*both)

    def _send_each(self, k: int, tensor: Tensor) -> None:
        """Send a tensor to each device that reads it; devices send, and receive, one at a time."""
        u, model = tensor.maker, self.model
        for r in tensor.readers:
            model.add(self.start[r] >= self.end(u) + tensor.least_ticks * self._differ_in_device(u, r))
        for d in range(self.p):
            begun = None if self.draft is None else self.draft.sent.get((k, d), -1)
            comes = self.division.literal(None if begun is None else begun >= 0)
            begin = self._begin(u, begun)
            for r in tensor.readers:
                model.add_bool_or([self.on(r, d).negated(), self.on(u, d), comes])
            for s in range(self.p):
                ticks = int(tensor.own_ticks[s, d])
                if s == d:
                    continue
                busy = self.division.literal(None if begun is None else begun >= 0 and self.at(u) == s)
                model.add_bool_or([self.on(u, s).negated(), comes.negated(), busy])
                interval = self._interval(begin, ticks, busy)
                self.out[s].append(interval)
                self.into[d].append(interval)
                for r in tensor.readers:
                    arrives = begin + ticks + int(tensor.late_ticks[s, d])
                    model.add(self.start[r] >= arrives).only_enforce_if(busy, self.on(r, d))

    def _begin(self, u: int, begun: int | None) -> Any:
        """Return the start of a transfer of u's output, which may not happen; begun: when it does in the draft."""
        drafted = self._drafted_end(u) if begun is None or begun < 0 else begun
        begin = self.division.number(0, self.horizon, drafted)
        self.model.add(begin >= self.end(u))
        return begin

    def _drafted_end(self, i: int) -> int | None:
        """Return the end of operation i in the draft, if there is one."""
        here = self.at(i)
        if here is None or self.draft is None:
            return None
        return int(self.draft.start[i] + self.times.op_ticks[i, here])


def serial_ticks(times: Times) -> int:
    """Return the ticks within which everything is over if one thing happens after the other, on any devices."""
    away = int(times.op_ticks.shape[1]) - 1
    sends = sum(int((t.own_ticks + t.late_ticks).max(initial=0)) + times.gap_ticks for t in times.tensors)
    work = int(np.maximum(times.op_ticks, times.block_ticks).max(axis=1).sum())
    return work + int(times.head_ticks.max(initial=0)) + away * sends


def listsched(
    problem: Problem, groups: Groups, times: Times, schedule: Schedule | None, least_s: float
) -> ConstraintProgram:
    """Return the program of a problem whose graph is acyclic.

    schedule: what to start from, or None. least_s: seconds that no placement falls below.
    """
    if problem.costs is None:
        raise ValueError("a problem without costs")
    alike = alike_devices(problem, groups, problem.costs.op_s)
    draft = None
    if schedule is not None:
        device, start_s, end_s = schedule
        draft = Draft.of(times, in_order_of_use(device, alike, times.group_order()), start_s, end_s)
    return ScheduleProgram(groups, times, draft, alike).program(math.floor(least_s / times.tick_s))
