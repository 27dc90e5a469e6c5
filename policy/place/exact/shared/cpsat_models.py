"""Division over devices as a constraint program: what its models share, and those in which order means nothing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32, Int64
from pipeline.core.problem import Problem
from policy.place.base.groups import UNLIMITED, Groups
from policy.place.exact.shared.nets import Cut

EXACT = 1e-12  # the share of itself by which a time may be off a whole number of ticks
Alike = list[list[int]]  # sets of two or more devices that can change places
FINEST = 2**30  # ticks of the whole placement at most


class ConstraintProgram(NamedTuple):
    """A division as a constraint program; times are whole ticks, rounded down.

    A schedule in seconds keeps all constraints when each time in it is rounded down to ticks: what the solver proves
    of ticks holds for seconds. model: the program. x: a literal per group and device. start: the start of each
    operation, or nothing. tick_s: the seconds of a tick. turn: the call that each operation is in, or nothing.
    """

    model: Any
    x: list[list[Any]]
    start: list[Any]
    tick_s: float
    turn: Sequence[Any] = ()


def tick_of(times_s: Float64, horizon_s: float, *, ticks: int) -> float:
    """Return the seconds of a tick: a power of ten if all times are whole numbers of it, else a share of the horizon.

    times_s: all durations that are rounded. ticks: how many make up the horizon where nothing is exact.
    """
    if horizon_s <= 0:
        return 1.0
    for digits in range(13):
        tick_s = 10.0**-digits
        if horizon_s / tick_s > FINEST:
            break
        number = times_s / tick_s
        if horizon_s / tick_s >= 1 and np.all(np.abs(number - np.round(number)) <= EXACT * number):
            return float(tick_s)
    return horizon_s / ticks


def in_ticks(times_s: Float64, tick_s: float) -> Int64:
    """Return times in ticks, rounded down; 0 where infinite."""
    finite = np.isfinite(times_s)
    return np.floor(np.where(finite, times_s, 0.0) / tick_s * (1 + EXACT)).astype(np.int64)


def alike_devices(problem: Problem, groups: Groups, times_s: Float64) -> Alike:
    """Return the devices that can change places without changing anything; times_s: float64 [..., p], of all work."""
    alike: Alike = []
    for d in range(problem.topology.p):
        for known in alike:
            if _swappable(problem, groups, times_s, known[0], d):
                known.append(d)
                break
        else:
            alike.append([d])
    return [known for known in alike if len(known) > 1]


def _swappable(problem: Problem, groups: Groups, times_s: Float64, a: int, b: int) -> bool:
    topology = problem.topology
    swap = np.arange(topology.p)
    swap[[a, b]] = b, a
    links = (topology.link_bytes_per_s, topology.link_latency_s)
    return (
        bool(np.array_equal(times_s[:, a], times_s[:, b]))
        and groups.room_bytes[a] == groups.room_bytes[b]
        and bool(np.array_equal(groups.allowed[:, a], groups.allowed[:, b]))
        and topology.devices[a].kind == topology.devices[b].kind
        and all(np.array_equal(link, link[np.ix_(swap, swap)]) for link in links)
    )


def in_order_of_use(device: Int32, alike: Alike, order: Int64) -> Int32:
    """Return an equal division int32 [k] in which, of devices alike, the first is used first in the order of groups."""
    name = np.arange(int(device.max(initial=0)) + 1 + sum(map(len, alike)))
    for known in alike:
        used = list(dict.fromkeys(d for d in device[order].tolist() if d in known))
        for new, old in zip(known, [*used, *(d for d in known if d not in used)], strict=True):
            name[old] = new
    return name[device].astype(np.int32)


class Division:
    """The part of a program that says which group goes to which device; a hint is given as variables are made.

    device: int32 [k], the division to start from, or None.
    """

    def __init__(self, groups: Groups, group_s: Float64, device: Int32 | None, order: Int64, alike: Alike) -> None:
        from ortools.sat.python import cp_model

        self.model: Any = cp_model.CpModel()
        self.group_s = group_s
        self.device = None if device is None else in_order_of_use(device, alike, order)
        k, p = group_s.shape
        self.x = [[self.literal(self._on(g, d)) for d in range(p)] for g in range(k)]
        for g in range(k):
            self.model.add_exactly_one(self.x[g])
            for d in np.flatnonzero(~np.isfinite(group_s[g])).tolist():
                self.model.add(self.x[g][d] == 0)
        for d in np.flatnonzero(groups.room_bytes < UNLIMITED).tolist():
            held = sum(int(b) * self.x[g][d] for g, b in enumerate(groups.held_bytes.tolist()) if b)
            self.model.add(held <= int(groups.room_bytes[d]))
        for known in alike:
            self._use_in_order(known, order.tolist())

    def literal(self, value: bool | None) -> Any:
        """Return a new literal, with the value it has in the hint."""
        variable = self.model.new_bool_var("")
        if value is not None:
            self.model.add_hint(variable, bool(value))
        return variable

    def number(self, low: int, high: int, value: int | None) -> Any:
        """Return a new whole number between low and high, with the value it has in the hint."""
        variable = self.model.new_int_var(low, high, "")
        if value is not None:
            self.model.add_hint(variable, int(value))
        return variable

    def work(self, tick_s: float, *, only: int | None = None) -> list[Any]:
        """Return the terms of what all groups take, or those on one device, in ticks."""
        ticks = in_ticks(self.group_s, tick_s).tolist()
        at = range(self.group_s.shape[1]) if only is None else (only,)
        return [row[d] * x[d] for row, x in zip(ticks, self.x, strict=True) for d in at if row[d]]

    def hint_sent(self, home: int, readers: list[int], source: int | None, target: int) -> bool | None:
        """Return whether the hint sends a tensor from a device, or from any other, to the device `target`."""
        if self.device is None:
            return None
        at = int(self.device[home])
        return (at == source if source is not None else at != target) and bool(np.any(self.device[readers] == target))

    def _on(self, g: int, d: int) -> bool | None:
        return None if self.device is None else bool(self.device[g] == d)

    def _use_in_order(self, known: list[int], order: list[int]) -> None:
        """Let a group use a device only if a group before it uses the device before it."""
        for before, d in pairwise(known):
            used: Any = None  # whether `before` is used so far
            hinted = False
            for g in order:
                if used is None:
                    self.model.add(self.x[g][d] == 0)
                else:
                    self.model.add_implication(self.x[g][d], used)
                hinted = hinted or bool(self._on(g, before))
                after = self.literal(None if self.device is None else hinted)
                self.model.add_bool_or([after.negated(), self.x[g][before], *([] if used is None else [used])])
                used = after


def in_turns(problem: Problem, groups: Groups, device: Int32 | None) -> ConstraintProgram:
    """Return the program of devices that run one after another: operations, and tensors once per device that reads
    them.
    """
    cut = Cut.of(problem, groups.grouping)
    nets, p = cut.nets, cut.group_s.shape[1]
    tick_s = fine_tick(cut.group_s)
    division = Division(groups, cut.group_s, device, np.arange(groups.k), alike_devices(problem, groups, cut.group_s))
    terms = division.work(tick_s)
    every = np.arange(nets.t)
    apart = [(s, d) for s in range(p) for d in range(p) if s != d]
    link_ticks = {
        (s, d): in_ticks(cut.link_s(every, np.full(nets.t, s, np.int32), d), tick_s).tolist() for s, d in apart
    }
    for t in range(nets.t):
        home, readers = int(nets.home[t]), nets.reader[nets.ptr[t] : nets.ptr[t + 1]].tolist()
        even = len({link_ticks[pair][t] for pair in apart}) == 1
        for s, d in [((d + 1) % p, d) for d in range(p)] if even else apart:
            # The literal that the tensor comes from s, or with equal links from anywhere else.
            away = division.x[home][d].negated() if even else division.x[home][s]
            sent = division.literal(division.hint_sent(home, readers, None if even else s, d))
            for r in readers:
                division.model.add_bool_or([division.x[r][d].negated(), away.negated(), sent])
            terms.append(link_ticks[s, d][t] * sent)
    division.model.minimize(sum(terms))
    return ConstraintProgram(division.model, division.x, [], tick_s)


def fine_tick(group_s: Float64) -> float:
    """Return the seconds of a tick so fine that rounding does not show; group_s: float64 [k, p]."""
    horizon_s = float(np.where(np.isfinite(group_s), group_s, 0.0).max(axis=1).sum())
    return horizon_s / FINEST if horizon_s > 0 else 1.0


def whole_nets(problem: Problem, groups: Groups, of: Bool | None = None) -> list[tuple[list[int], int]]:
    """Return, for every tensor read by other groups, (its maker's group and theirs, the most that is read of it).

    of: bool [n], whose tensors count; all if None.
    """
    members: dict[int, dict[int, None]] = {}
    largest: dict[int, int] = {}
    group = groups.grouping.group.tolist()
    graph = problem.graph
    for u, v, t, size in graph.read_rows():
        if of is not None and not of[u]:
            continue
        members.setdefault(t, {group[u]: None})[group[v]] = None
        largest[t] = max(largest.get(t, 0), size)
    return [(list(held), largest[t]) for t, held in members.items() if len(held) > 1]
