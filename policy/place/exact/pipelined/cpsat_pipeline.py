"""A pipeline as a constraint program: the largest load of a device."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32, Int64
from pipeline.core.graph import Grouping, sum_per_group
from pipeline.core.problem import Problem
from pipeline.shared.contiguity import backward_operations, forward_edges
from policy.place.base.groups import Groups
from policy.place.exact.shared.cpsat_models import (
    Alike,
    ConstraintProgram,
    Division,
    alike_devices,
    in_ticks,
    whole_nets,
)
from policy.place.exact.shared.elements import Charges, charges_of, inseparable_grouping, kinds_of, merged

TICKS = 2**20  # of the largest load that is of interest; of many more the solver proves less
FINE_TICKS = 2**30
SMALL = 200  # variables that say where pieces are, up to which ticks are fine
CROWDED = 0.8  # share of the load that a pigeonhole must make up to be worth a name
MOST_COUNTED = 24  # pieces of a set that one device may hold
ROUNDING = 1e-9  # the share by which sums in another order may differ


class Pigeonhole(NamedTuple):
    """Pieces of which one of some devices that are alike holds so many: `device`, for their names mean nothing."""

    device: int
    members: list[int]
    least: int


class Pieces(NamedTuple):
    """What a program of loads places: groups, of which some are one.

    groups: the pieces. of_group: which piece each group before belongs to. charges: per kind; kind: int32 [p], of each
    device. device: int32 [k], the placement to start from, or None. pigeonhole: see there; None where it tells little.
    alike: devices that can change places still.
    """

    groups: Groups
    of_group: Grouping
    charges: Charges
    kind: Int32
    device: Int32 | None
    pigeonhole: Pigeonhole | None
    alike: Alike

    @classmethod
    def of(cls, problem: Problem, groups: Groups, device: Int32 | None, value_s: float) -> Pieces:
        """Return groups of which those are one that no placement parts that takes `value_s` or less."""
        kinds = kinds_of(problem, groups)
        charges, together = charges_of(problem, groups, kinds), Grouping.identity(groups.k)
        if device is not None and math.isfinite(value_s):
            counts = tuple(len(kind) for kind in kinds)
            together = inseparable_grouping(charges, counts, value_s * (1 + ROUNDING))
            charges = merged(charges, together)
        kind = np.empty(problem.topology.p, np.int32)
        for q, members in enumerate(kinds):
            kind[list(members)] = q
        whole = Groups.of_grouping(problem, groups.grouping.then(together))
        device = None if device is None else _of_pieces(device, together)
        alike = alike_devices(problem, whole, charges.work_s[:, kind])
        pigeonhole = _pigeonhole_of(charges.work_s[:, kind], alike, value_s)
        if pigeonhole is not None:
            alike = [known for known in ([d for d in one if d != pigeonhole.device] for one in alike) if len(known) > 1]
            device = (
                None if device is None else _with_pigeonhole_first(device, pigeonhole, kinds[kind[pigeonhole.device]])
            )
        return cls(whole, together, charges, kind, device, pigeonhole, alike)

    @property
    def members(self) -> list[list[int]]:
        """Return the pieces in each net."""
        owner = np.repeat(np.arange(self.groups.k), np.diff(self.charges.ptr))
        by_net = np.argsort(self.charges.net, kind="stable")
        return [part.tolist() for part in np.split(owner[by_net], np.cumsum(self.charges.size)[:-1])]

    @property
    def group_s(self) -> Float64:
        """Return float64 [k, p], what pieces take on every device."""
        return self.charges.work_s[:, self.kind]


def _pigeonhole_of(group_s: Float64, alike: Alike, value_s: float) -> Pigeonhole | None:
    """Return which pieces one of the devices alike has many of, if that is most of the load `value_s`.

    Of m n + 1 pieces that only m devices alike may have, one of these has n + 1; the smallest of these pieces bound the
    load.
    """
    best, pigeonhole = CROWDED * value_s, None
    for known in alike if math.isfinite(value_s) else []:
        others = np.setdiff1d(np.arange(group_s.shape[1]), known)
        work_s = group_s[:, known[0]]
        bound_to = np.flatnonzero((group_s[:, others] > value_s * (1 + ROUNDING)).all(axis=1) & np.isfinite(work_s))
        largest_first = bound_to[np.argsort(-work_s[bound_to], kind="stable")]
        for least in range(2, (largest_first.size - 1) // len(known) + 2):
            members = largest_first[: (least - 1) * len(known) + 1]
            load_s = float(work_s[members[-least:]].sum())
            if load_s > best:
                best, pigeonhole = load_s, Pigeonhole(known[0], members.tolist(), least)
    return pigeonhole


def _with_pigeonhole_first(device: Int32, pigeonhole: Pigeonhole, alike: tuple[int, ...]) -> Int32:
    """Return a placement int32 [k] with two devices alike swapped so that the one of the pigeonhole holds enough."""
    held = np.bincount(device[pigeonhole.members], minlength=max(alike) + 1)
    other = max(alike, key=lambda d: int(held[d]))
    name = np.arange(max(int(device.max()), max(alike)) + 1)
    name[[pigeonhole.device, other]] = other, pigeonhole.device
    return name[device].astype(np.int32)


def _of_pieces(device: Int32, together: Grouping) -> Int32:
    homes = np.zeros(together.k, np.int32)
    homes[together.group] = device
    return homes


class PassLoads(NamedTuple):
    """What pieces and nets cost in one pass: float64 [k, p], inf where not allowed, and float64 [t, p]."""

    group_s: Float64
    pay_s: Float64


def passes_of(problem: Problem, pieces: Pieces, *, apart: bool) -> list[PassLoads]:
    """Return what is loaded in each pass; one of all there is, unless they are apart."""
    pay_s = pieces.charges.pay_s[:, pieces.kind]
    backward = backward_operations(problem.graph)
    if not apart or not backward.any() or problem.costs is None:
        return [PassLoads(pieces.group_s, pay_s)]
    fore_s, back_s = (
        sum_per_group(np.where(mine[:, None], problem.costs.op_s, 0.0), pieces.groups.grouping)
        for mine in (~backward, backward)
    )
    back_pay_s = np.zeros(pay_s.shape)
    number = {tuple(sorted(members)): i for i, members in enumerate(pieces.members if len(pay_s) else [])}
    nets = whole_nets(problem, pieces.groups, backward)
    each_s = problem.topology.slowest_link_s(np.array([size for _, size in nets], np.int64))
    for (members, _), net_s in zip(nets, each_s, strict=True):
        if (i := number.get(tuple(sorted(members)))) is not None:
            back_pay_s[i] += net_s
    known = np.isfinite(pieces.group_s)
    return [
        PassLoads(np.where(known, fore_s, math.inf), np.maximum(pay_s - back_pay_s, 0.0)),
        PassLoads(np.where(known, back_s, math.inf), back_pay_s),
    ]


def pipelined(
    problem: Problem,
    groups: Groups,
    device: Int32 | None,
    value_s: float,
    bound_s: float,
    *,
    convex: bool,
    apart: bool = False,
) -> ConstraintProgram:
    """Return the program of a pipeline: the largest load, where a device pays for every net it holds a part of.

    device: the placement int32 [k] to start from, which takes `value_s`. bound_s: what is proven. convex: whether no
    path of the forward pass may leave a device and come back. apart: whether the largest loads of the two passes of
    training add up.

    Source: Tarnawski et al., NeurIPS 2020, sections 4.1 and 5.2, with one variable per net and device, and groups that
    are never apart as one.
    """
    pieces = Pieces.of(problem, groups, device, value_s)
    charges, group_s = pieces.charges, pieces.group_s
    k, p = group_s.shape
    known_s = np.where(np.isfinite(group_s), group_s, 0.0)
    longest_s = value_s if math.isfinite(value_s) else float(known_s.max(axis=1).sum())
    ticks = FINE_TICKS if k * p <= SMALL else TICKS
    tick_s = longest_s / ticks if longest_s > 0 else 1.0
    division = Division(pieces.groups, group_s, pieces.device, np.arange(k), pieces.alike)
    passes = passes_of(problem, pieces, apart=apart)
    load, hinted = _loads(division, pieces, passes, tick_s)
    least = max(0, math.floor(bound_s / tick_s * (1 - ROUNDING)) - len(passes) * (charges.size.size + k))
    most = _largest(division, load, hinted, least, ticks)
    for d in range(p if math.isfinite(value_s) else 0):
        for members, count in covers(group_s[:, d], value_s * (1 + ROUNDING)):
            division.model.add(sum(division.x[g][d] for g in members) <= count)
    if pieces.pigeonhole is not None:
        division.model.add(
            sum(division.x[g][pieces.pigeonhole.device] for g in pieces.pigeonhole.members) >= pieces.pigeonhole.least
        )
    if convex:
        _convex(problem, pieces, division)
    division.model.minimize(most)
    return ConstraintProgram(division.model, [division.x[g] for g in pieces.of_group.group.tolist()], [], tick_s)


def _loads(
    division: Division, pieces: Pieces, passes: list[PassLoads], tick_s: float
) -> tuple[list[list[list[Any]]], Int64]:
    """Return (the terms of the load of each device in each pass, int64 [passes, p], what they are in the hint)."""
    k, p = pieces.group_s.shape
    load: list[list[list[Any]]] = [[[] for _ in range(p)] for _ in passes]
    hinted = np.zeros((len(passes), p), np.int64)
    for number, part in enumerate(passes):
        ticks = in_ticks(part.group_s, tick_s)
        for g, d in np.argwhere(ticks).tolist():
            load[number][d].append(int(ticks[g, d]) * division.x[g][d])
        if division.device is not None:
            np.add.at(hinted[number], division.device, ticks[np.arange(k), division.device])
    pays = np.array([in_ticks(part.pay_s, tick_s) for part in passes])  # [passes, t, p]
    for i, members in enumerate(pieces.members if pays.shape[1] else []):
        for d in np.flatnonzero(pays[:, i].any(axis=0)).tolist():
            on: Bool | None = None if division.device is None else division.device[members] == d
            split = None if on is None else bool(on.any() and not on.all())
            literal = _split(division, members, d, split)
            for number in np.flatnonzero(pays[:, i, d]).tolist():
                load[number][d].append(int(pays[number, i, d]) * literal)
                hinted[number, d] += pays[number, i, d] if split else 0
    return load, hinted


def _split(division: Division, members: list[int], d: int, hinted: bool | None) -> Any:
    """Return the literal that a device holds a part of a net."""
    part = division.literal(hinted)
    first = members[0]
    for r in members[1:]:
        division.model.add_bool_or([division.x[r][d].negated(), division.x[first][d], part])
        division.model.add_bool_or([division.x[first][d].negated(), division.x[r][d], part])
    return part


def _largest(division: Division, load: list[list[list[Any]]], hinted: Int64, least: int, ticks: int) -> Any:
    """Return the largest loads of all passes, added up, which are `least` together or more."""
    missing = max(0, least - int(hinted.max(axis=1).sum()))  # of the bound, in the hint: the first pass makes it up
    most = []
    for number, of_devices in enumerate(load):
        low = least if len(load) == 1 else 0
        hint = None if division.device is None else int(hinted[number].max()) + (0 if number else missing)
        most.append(division.number(low, 2**50 if hint is None else ticks, hint))
        for terms in of_devices:
            division.model.add(most[-1] >= sum(terms))
    if len(most) > 1:
        division.model.add(sum(most) >= least)
    return sum(most)


def covers(work_s: Float64, limit_s: float) -> list[tuple[list[int], int]]:
    """Return sets of pieces, and how many of each one device holds at most if it has less than the limit to compute.

    work_s: float64 [k]. Of the pieces from a certain size on, so many more than the number are too many already.

    Source: extended cover inequalities; Balas, Mathematical Programming 8, 1975.
    """
    by_size = np.argsort(work_s, kind="stable")
    by_size = by_size[(work_s[by_size] > 0) & np.isfinite(work_s[by_size])]
    total = np.concatenate([[0.0], np.cumsum(work_s[by_size])])
    chosen: list[tuple[list[int], int]] = []
    first = by_size.size
    for count in range(min(by_size.size - 1, MOST_COUNTED) + 1):
        over = np.flatnonzero(total[count + 1 :] - total[: total.size - count - 1] > limit_s)
        if over.size and over[0] < first:  # else the set is one of those before, with a larger number
            first = int(over[0])
            chosen.append((by_size[first:].tolist(), count))
    return chosen


def _convex(problem: Problem, pieces: Pieces, division: Division) -> None:
    """Let no path of the forward pass leave a device and come back.

    A literal says that a device has an operation at or before this one; where it holds a reader of this one as well, it
    holds this one.
    """
    group = pieces.groups.grouping.group
    edges = forward_edges(problem.graph).T.tolist()
    inner = sorted({i for edge in edges for i in edge})
    for d in range(problem.topology.p):
        begun: dict[int, bool] | None = None
        if division.device is not None:
            begun = {i: bool(division.device[group[i]] == d) for i in inner}
            for u, v in edges:  # producers first
                begun[v] |= begun[u]
        before: dict[int, Any] = {i: division.literal(None if begun is None else begun[i]) for i in inner}
        for i in inner:
            division.model.add_implication(division.x[group[i]][d], before[i])
        for u, v in edges:
            division.model.add_implication(before[u], before[v])
            here, there = division.x[group[u]][d], division.x[group[v]][d]
            division.model.add_bool_or([before[u].negated(), there.negated(), here])
