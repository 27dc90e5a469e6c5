"""Placements near an earlier one: an edited model is placed again, and few of its operations move."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from typing_extensions import TypedDict

from pipeline.core.arrays import Bool, Float64, Int32, Int64, frozen
from pipeline.core.errors import DeviceError, UsageError, list_some
from pipeline.core.figures import finite_or_none
from pipeline.core.graph import Grouping
from pipeline.core.measurement import Prediction
from pipeline.core.placement import Placement
from pipeline.core.problem import Budget, Problem
from pipeline.core.simulation import Moves
from pipeline.core.stages import Answer, Candidate, Simulator
from pipeline.placing.single_moves import move_values
from pipeline.shared.feasibility import finest_grouping

EARLIER = "earlier placement"  # who has found what moves nothing that need not
Place = Callable[[Problem, Budget, int], tuple[Answer, int]]  # what a placer answers with a seed, and evaluations spent

ENUMERATED = 20_000  # placements near the earlier one up to which all are simulated
WORK = 2_000_000  # operations simulated at most for that
ROUNDS = 8  # among which the budget is shared
IDLE = 24  # rounds in turn that improve nothing, after which there is an end
MOVES_SHOWN = 10  # that are told to people; the answer as JSON has all
DROPPED = 0.5  # share of the moved groups that a round sends back to have others move


class MovedRecord(TypedDict):
    """An operation that is on another device than before."""

    operation: str
    before: str
    now: str


class NearRecord(TypedDict):
    """How a placement differs from the earlier one; docs/search.md says what the keys mean."""

    limit: int | None
    price_s: float
    moved: list[MovedRecord]
    added: list[str]
    removed: list[str]
    device_gone: list[str]
    before_s: float | None
    optimal: bool


def moved_lines(near: NearRecord) -> list[str]:
    """Return in words what moved since an earlier placement, and what is new or gone."""
    before = "infeasible by now" if near["before_s"] is None else f"{1e3 * near['before_s']:.4g} ms without moving"
    lines = [f"{len(near['moved'])} operations move; {before}{'; optimal within the limit' if near['optimal'] else ''}"]
    lines += [f"moves: {row['operation']}, {row['before']} to {row['now']}" for row in near["moved"][:MOVES_SHOWN]]
    told = (("new", near["added"]), ("gone", near["removed"]), ("with no device any more", near["device_gone"]))
    return [*lines, *(f"{len(names)} {what}: {list_some(names)}" for what, names in told if names)]


@dataclass(frozen=True, slots=True, eq=False)
class Near:
    """An earlier placement, joined by name, and what moving costs.

    home: int32 [n], where each operation was; -1 for new ones, and for those whose device is gone. added, removed:
    operations that are new, and that are gone. device_gone: those whose device is. limit: most operations that move,
    None for any. price_s: what one must gain.
    """

    home: Int32
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    device_gone: tuple[str, ...] = ()
    limit: int | None = None
    price_s: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "home", frozen(self.home, np.int32, (None,), "home"))

    @classmethod
    def of(
        cls, document: Mapping[str, str], problem: Problem, *, limit: int | None = None, price_s: float = 0.0
    ) -> Near:
        """Return what {operation: device} says of a problem's operations.

        Raises:
            UsageError: it names none of them, or none on a device of today.
        """
        names, index = problem.graph.names, {name: d for d, name in enumerate(problem.topology.names)}
        home = np.array([index.get(document.get(name, ""), -1) for name in names], np.int32)
        there = set(names)
        if not there & document.keys():
            raise UsageError(
                "The earlier placement names no operation of this graph.", "Give one of an earlier version of it."
            )
        if not (home >= 0).any():
            gone_to = ", ".join(sorted({document[name] for name in names if name in document}))
            raise UsageError(
                f"The earlier placement is on {gone_to}, and here are {', '.join(problem.topology.names)}.",
                "Name the devices as they were named then.",
            )
        added = tuple(name for name in names if name not in document)
        removed = tuple(name for name in document if name not in there)
        gone = tuple(name for name in names if name in document and document[name] not in index)
        return cls(home, added, removed, gone, limit, price_s)

    def without(self, left_out: Bool, names: Sequence[str]) -> Near:
        """Return it without some of the operations, bool [n]: wherever they go, they do not count as moved."""
        out = {names[i] for i in np.flatnonzero(left_out).tolist()}
        return replace(
            self,
            home=np.where(left_out, -1, self.home),
            added=tuple(name for name in self.added if name not in out),
        )

    def moves(self, problem: Problem, grouping: Grouping) -> Int64:
        """Return int64 [k, p], how many operations of each group move if it goes to a device."""
        moves = np.zeros((grouping.k, problem.topology.p), np.int64)
        known = np.flatnonzero(self.home >= 0)
        moves += np.bincount(grouping.group[known], minlength=grouping.k)[:, None]
        np.add.at(moves, (grouping.group[known], self.home[known]), -1)
        return moves

    def moved(self, placement: Placement) -> Int64:
        """Return the operations that are not where they were."""
        return np.flatnonzero((self.home >= 0) & (self.home != placement.device))

    def record(self, problem: Problem, placement: Placement, before_s: float, *, optimal: bool) -> NearRecord:
        """Return how a placement differs from the earlier one."""
        names, devices = problem.graph.names, problem.topology.names
        return {
            "limit": self.limit,
            "price_s": self.price_s,
            "moved": [
                {"operation": names[i], "before": devices[self.home[i]], "now": devices[placement.device[i]]}
                for i in self.moved(placement).tolist()
            ],
            "added": list(self.added),
            "removed": list(self.removed),
            "device_gone": list(self.device_gone),
            "before_s": finite_or_none(before_s),
            "optimal": optimal,
        }


def devices_of(document: Mapping[str, Any], what: str) -> Mapping[str, str]:
    """Return {operation: device} of a document that is that, or has it as `placement`; what: it, in messages.

    Raises:
        UsageError: it is none.
    """
    devices = document["placement"] if isinstance(document.get("placement"), Mapping) else document
    if not all(isinstance(device, str) for device in devices.values()):
        raise UsageError(f"{what} does not name one device per operation.", "Write JSON {operation: device}.")
    return cast(Mapping[str, str], devices)


def place_near(
    problem: Problem,
    near: Near,
    simulator: Simulator,
    place: Place,
    budget: Budget,
    *,
    seed: int,
    grouping: Grouping | None = None,
) -> tuple[Answer, int, NearRecord]:
    """Return the best placement found near an earlier one, the evaluations spent, and how it differs.

    Behind the best comes, if it is another, the one in which nothing moves that need not.

    What counts is seconds and the price of what moves, together. At first nothing moves that need not. If the
    placements within the limit are few, all are simulated. Else the placer is asked again and again which of some
    groups should move, never more than the limit allows, and what does not pay goes back. It sees the usual problem
    with fewer devices to choose from, so any placer will do; its bounds hold for that alone and are left out.

    place: asks it, with a budget and a seed. simulator: of the operations. grouping: of those that stay together, with
    a device for every group; None for the finest there is.

    Raises:
        UsageError: more operations must move than may.
        DeviceError: no placement fits.
    """
    nearby = _Nearby.of(problem, near, finest_grouping(problem) if grouping is None else grouping)
    if nearby.slack < 0:
        raise UsageError(
            f"At least {nearby.least} operation(s) must move, and {near.limit} may.",
            f"Raise --moves to {nearby.least}, or allow the devices where they were.",
        )
    search = _NearSearch(nearby, simulator, place, budget, seed)
    search.ask(nearby.staying)
    stayed, before_s = search.best, search.seconds
    optimal = search.enumerate()
    if not optimal:
        search.go_on()
    if search.best is None:
        raise DeviceError(
            "No placement near the earlier one keeps within memory.", "Raise --moves, or give devices with more memory."
        )
    record = near.record(problem, search.best.placement, before_s, optimal=optimal)
    others = () if stayed is None or stayed is search.best else (replace(stayed, found_by=EARLIER),)
    return Answer((search.best, *others), evaluations=search.spent), search.spent, record


@dataclass(frozen=True, slots=True, eq=False)
class _Nearby:
    """A problem and what moves in it. moves: int64 [k, p]; allowed: bool [k, p]; staying: bool [k, p], where a group
    may be if as little of it moves as can be; least: operations that must move; slack: how many more may.
    """

    problem: Problem
    near: Near
    grouping: Grouping
    moves: Int64
    allowed: Bool
    staying: Bool
    least: int
    slack: float

    @classmethod
    def of(cls, problem: Problem, near: Near, grouping: Grouping) -> _Nearby:
        allowed, moves = problem.group_allowed(grouping), near.moves(problem, grouping)
        fewest = np.where(allowed, moves, np.iinfo(np.int64).max).min(axis=1)
        least = int(fewest.sum())
        slack = math.inf if near.limit is None else near.limit - least
        return cls(problem, near, grouping, moves, allowed, allowed & (moves == fewest[:, None]), least, slack)

    @property
    def extra(self) -> Int64:
        """Return int64 [k], how many more operations move at most if a group is free."""
        most, fewest = (np.where(where, self.moves, 0).max(axis=1) for where in (self.allowed, self.staying))
        extra: Int64 = most - fewest
        return extra

    def devices_of(self, placement: Placement) -> Int32:
        """Return int32 [k], where each group is."""
        device = np.zeros(self.grouping.k, np.int32)
        device[self.grouping.group] = placement.device
        return device

    def all_placements(self) -> Int32 | None:
        """Return int32 [c, k], every placement within the limit; None if they are too many."""
        most = min(ENUMERATED, WORK // max(1, self.problem.graph.n))
        rows, moved = np.zeros((1, 0), np.int32), np.zeros(1, np.int64)
        limit = math.inf if self.near.limit is None else self.near.limit
        needed = (
            np.where(self.staying, self.moves, 0).max(axis=1)[::-1].cumsum()[::-1]
        )  # by this group and those behind
        for g in range(self.grouping.k):
            homes = np.flatnonzero(self.allowed[g]).astype(np.int32)
            wide = (moved[:, None] + self.moves[g, homes]).ravel()
            rows = np.c_[np.repeat(rows, homes.size, axis=0), np.tile(homes, len(rows))]
            kept = wide + (needed[g + 1] if g + 1 < needed.size else 0) <= limit
            rows, moved = rows[kept], wide[kept]
            if len(rows) > most:
                return None
        return rows


class _NearSearch:
    """The rounds of a search. best: the best so far, by seconds and price; seconds: its own, inf without one."""

    def __init__(self, nearby: _Nearby, simulator: Simulator, place: Place, budget: Budget, seed: int) -> None:
        self._nearby, self._simulator, self._place, self._budget = nearby, simulator, place, budget
        self._rng, self._began_s = np.random.default_rng(seed), time.monotonic()
        self._spent = 0
        self.best: Candidate | None = None
        self.seconds = math.inf

    @property
    def spent(self) -> int:
        return self._spent + self._simulator.evaluations

    def go_on(self) -> None:
        """Let groups move, others in every round, until the budget ends or nothing improves any more."""
        nearby, idle = self._nearby, 0
        if nearby.slack == 0:
            return
        self._descend()
        whole = bool(nearby.extra.sum() <= nearby.slack)  # all may move: half of the budget, and then parts again
        while idle < IDLE:
            before_s = self._objective()
            free = np.ones(nearby.grouping.k, bool) if whole else self._chosen()
            if not self.ask(np.where(free[:, None], nearby.allowed, nearby.staying), rounds=2 if whole else ROUNDS):
                break
            idle, whole = 0 if self._objective() < before_s else idle + 1, False
        self._descend()

    def ask(self, allowed: Bool, *, rounds: int = ROUNDS) -> bool:
        """Let the placer choose among devices bool [k, p], from the best so far; return whether there was time."""
        problem, budget = self._nearby.problem, self._left(rounds)
        if budget is None:
            return False
        problem = problem.on(allowed=problem.allowed & allowed[self._nearby.grouping.group])
        if self.best is not None:
            problem = replace(problem, start=self._within(self.best.placement, allowed), start_by=self.best.found_by)
        else:
            problem = replace(problem, start=None)
        try:
            answer, spent = self._place(problem, budget, int(self._rng.integers(2**31)))
        except DeviceError:  # what may move now makes no room
            return True
        self._spent += spent
        if math.isfinite(answer.value_s):
            self._keep(self._returned(answer.best.placement), answer.best.found_by)
        return True

    def enumerate(self) -> bool:
        """Simulate all placements within the limit, if they are few; return whether it did."""
        nearby, problem = self._nearby, self._nearby.problem
        rows = None if problem.ordered else nearby.all_placements()
        left = None if self._budget.evaluations is None else self._budget.evaluations - self.spent
        if rows is None or (left is not None and len(rows) > left):
            return False
        simulated = self._simulator.simulate(np.ascontiguousarray(rows[:, nearby.grouping.group]))
        moved = nearby.moves[np.arange(nearby.grouping.k), rows].sum(axis=1)
        value_s = np.where(simulated.over_bytes == 0, simulated.value_s, math.inf) + nearby.near.price_s * moved
        best = int(value_s.argmin())
        placement = Placement(rows[best], problem.topology.names).lift(nearby.grouping)
        self._keep((placement, float(simulated.value_s[best])), "enumeration", value_s=float(value_s[best]))
        return True

    def _objective(self) -> float:
        if self.best is None:
            return math.inf
        return self.seconds + self._nearby.near.price_s * self._nearby.near.moved(self.best.placement).size

    def _keep(self, found: tuple[Placement, float], by: str, *, value_s: float | None = None) -> None:
        placement, seconds = found
        near = self._nearby.near
        value_s = seconds + near.price_s * near.moved(placement).size if value_s is None else value_s
        if value_s < self._objective():
            self.best, self.seconds = Candidate(placement, Prediction(seconds), by), seconds

    def _descend(self) -> None:
        """Take the single move that gains most, price and limit minded, again and again while there is one."""
        nearby, near = self._nearby, self._nearby.near
        groups = np.arange(nearby.grouping.k)
        while self.best is not None and self._left(1) is not None:
            placement, by = self.best.placement, self.best.found_by
            now = nearby.devices_of(placement)
            asked = self._sample(np.flatnonzero(nearby.allowed.sum(axis=1) > 1))
            if not asked.size:
                return
            more = (nearby.moves - nearby.moves[groups, now][:, None])[asked]
            moved_s = move_values(nearby.problem, self._simulator, placement, nearby.grouping, asked)
            may = near.moved(placement).size + more <= (math.inf if near.limit is None else near.limit)
            i, d = np.unravel_index(int(np.where(may, moved_s + near.price_s * more, math.inf).argmin()), more.shape)
            if not may[i, d] or not moved_s[i, d] + near.price_s * more[i, d] < self.seconds:
                return
            now[asked[i]] = d
            self._keep((replace(placement, device=now[nearby.grouping.group]), float(moved_s[i, d])), by)

    def _sample(self, groups: Int64) -> Int64:
        """Return some of the groups, at random, whose single moves the budget and a small part of a second allow."""
        problem, p = self._nearby.problem, self._nearby.problem.topology.p
        most = max(1, WORK // (10 * problem.graph.n * p))
        if self._budget.evaluations is not None:
            most = min(most, max(0, self._budget.evaluations - self.spent) // p)
        some: Int64 = self._rng.permutation(groups)[:most]
        return some

    def _left(self, rounds: int) -> Budget | None:
        """Return what a round may spend, one of so many; None if nothing is left."""
        evaluations, seconds = self._budget.evaluations, self._budget.seconds
        if evaluations is not None:
            left = evaluations - self.spent
            evaluations = min(left, max(1, evaluations // rounds))
        if seconds is not None:
            left_s = seconds - (time.monotonic() - self._began_s)
            seconds = min(left_s, seconds / rounds)
        if (evaluations is not None and evaluations < 1) or (seconds is not None and seconds <= 0):
            return None
        return Budget(evaluations, seconds, self._budget.gap)

    def _chosen(self) -> Bool:
        """Return bool [k], groups that may move now: those that have, but for some, and others while the limit lasts.

        Others come by what they would gain alone, or at random with their neighbours.
        """
        nearby, k = self._nearby, self._nearby.grouping.k
        moved = np.zeros(k, bool)
        gain_s: Float64 = self._rng.random(k)
        if self.best is not None:
            moved = ~nearby.staying[np.arange(k), nearby.devices_of(self.best.placement)]
            if self._rng.random() < DROPPED:
                moved &= self._rng.random(k) >= DROPPED
            if self._rng.random() < DROPPED:
                gain_s = self._gains(self.best.placement)
        free, slack = np.zeros(k, bool), min(nearby.slack, max(1, math.ceil(DROPPED * nearby.extra.sum())))
        for g in [*np.flatnonzero(moved), *self._spread(gain_s)]:
            if not free[g] and nearby.extra[g] <= slack:
                free[g] = True
                slack -= nearby.extra[g]
        return free

    def _gains(self, placement: Placement) -> Float64:
        """Return float64 [k], what each group gains alone, disturbed so that rounds differ."""
        nearby = self._nearby
        asked = self._sample(np.flatnonzero(nearby.extra > 0))
        found_s = move_values(nearby.problem, self._simulator, placement, nearby.grouping, asked).min(axis=1)
        gain_s = np.full(nearby.grouping.k, -math.inf)
        scale_s = self.seconds - found_s
        finite_s = np.abs(scale_s[np.isfinite(scale_s)])
        gain_s[asked] = scale_s + self._rng.exponential(finite_s.mean() if finite_s.any() else 1.0, asked.size)
        return gain_s

    def _spread(self, gain_s: Float64) -> list[int]:
        """Return the groups by what they gain, each before its neighbours."""
        nearby = self._nearby
        group = nearby.grouping.group[nearby.problem.graph.edges]  # [2, m]
        beside: dict[int, list[int]] = {}
        for a, b in group.T.tolist():
            beside.setdefault(a, []).append(b)
            beside.setdefault(b, []).append(a)
        order: list[int] = []
        for g in np.argsort(-gain_s, kind="stable").tolist():
            order += [g, *beside.get(g, ())]
        return order

    def _within(self, placement: Placement, allowed: Bool) -> Placement:
        """Return the best placement with every group that may not be where it is where it stays."""
        nearby = self._nearby
        device = nearby.devices_of(placement)
        barred = ~allowed[np.arange(device.size), device]
        device[barred] = allowed[barred].argmax(axis=1)
        return replace(placement, device=device[nearby.grouping.group])

    def _returned(self, placement: Placement) -> tuple[Placement, float]:
        """Return the placement with every group back that does not pay, and its seconds."""
        nearby = self._nearby
        now_s = math.inf
        while True:
            device = nearby.devices_of(placement)
            away = np.flatnonzero(~nearby.staying[np.arange(device.size), device])
            members = [np.flatnonzero(nearby.grouping.group == g) for g in away]
            stay = nearby.staying[away].argmax(axis=1)
            saved = nearby.moves[away, device[away]] - nearby.moves[away, stay]
            moves = Moves(
                np.r_[0, np.cumsum([m.size for m in members], dtype=np.int64)],
                np.concatenate(members) if members else np.zeros(0, np.int32),
                stay,
                np.full(away.size, -1),
                np.zeros(away.size),
                nearby.near.price_s * saved,
            )
            tried = self._simulator.local_search(
                placement, moves, allowed=nearby.problem.allowed, limit=max(1, away.size)
            )
            now_s = tried.end_s
            if not tried.taken.any():
                return placement, now_s
            placement = tried.end
