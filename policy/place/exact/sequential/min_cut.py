"""The division that costs least where nothing overlaps: a minimum cut."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from pipeline.core.arrays import Float64, Int32, Int64
from pipeline.core.graph import row_ptr
from pipeline.core.params import param
from pipeline.core.simulation import Moves
from pipeline.shared.feasibility import finest_grouping
from policy.place.base.groups import Groups, mostly_on
from policy.place.base.parallel import run_apart
from policy.place.base.search import SLOW, Method, Search
from policy.place.exact.shared.bounds import SAFETY
from policy.place.exact.shared.nets import Cut
from policy.place.exact.shared.proofs import one_to_one, prove_bound

SURCHARGES = (0.5, 1.0, 2.0, 0.25)  # of a launch, on every transfer


@dataclass(frozen=True, slots=True)
class MinCut(Method):
    """Divides the groups by minimum cuts.

    On two devices that run one after another, as HETERO's do, the cheapest division is a minimum cut: a group's side is
    its device, and a tensor that several groups read on the other side is charged once. Without launch times and with
    enough memory this is the optimum; otherwise the cut is a bound, and a start from which single moves lead on. With
    more devices every group may stay or go to one device at a time, again by a cut, until no device attracts any group
    (Boykov, Veksler, Zabih, IEEE TPAMI 23, 2001). Where memory binds, weights are priced until they fit.

    Devices that work at the same time are not what a cut models: it then gives placements of few transfers.
    """

    version: ClassVar[int] = 2

    passes: int = param(10, "rounds of single moves, and of offers of every device, at most")
    prices: int = param(16, "prices of memory to try where the weights do not fit")

    def run(self, search: Search, *, seed: int) -> None:
        """Ask about the cuts, then about single moves from the best placement; `seed` orders the moves."""
        run_apart(search, partial(self._cut, seed=seed), above=SLOW)

    def _cut(self, search: Search, *, seed: int) -> None:
        """Do so; a cut of a large graph takes long."""
        problem = search.problem
        if search.left <= 0 or problem.costs is None or problem.topology.p == 1:
            return
        groups = problem.derived(Groups.of)
        additive = search.execution is None or search.execution.additive
        cut = Cut.of(problem, groups.grouping, normalised=additive)
        self._divide(search, groups, cut, 0.0, proves=additive and problem.topology.p == 2)
        if problem.topology.p > 2:
            prove_bound(search)
        launch_s = float(problem.costs.launch_s.mean()) if additive else 0.0
        for share in SURCHARGES if launch_s > 0 else ():
            self._divide(search, groups, cut, share * launch_s, proves=False)
        # Move groups at the border of the best placement one by one, as long as that helps
        rng = np.random.default_rng(seed)
        for _ in range(self.passes):
            if search.done or search.best is None:
                return
            before_s = search.best_s
            moves = border_moves(groups, cut, groups.devices_of(search.best), rng)
            if moves.r == 0:
                return
            search.local_search(search.best, moves)
            if search.best_s >= before_s:
                return

    def _divide(self, search: Search, groups: Groups, cut: Cut, surcharge_s: float, *, proves: bool) -> None:
        """Ask about the divisions found from all starts, and about those with memory priced until weights fit."""
        bound_s = 0.0
        for start in _starts(search, groups, cut):
            price = MemoryPrice.of(groups, cut)
            device = start
            for _ in range(1 + self.prices):
                if search.done:
                    return
                device, value_s = self._cheapest(search, cut, device, price.extra_s(groups), surcharge_s)
                bound_s = max(bound_s, value_s - price.paid_s(groups))
                search.evaluate([groups.placement(device), groups.placement(groups.repaired(device))])
                # int64 [p], the bytes that each device holds
                held = np.zeros(groups.room_bytes.size, np.int64)
                np.add.at(held, device, groups.held_bytes)
                if not price.move(held):
                    break
        if proves and _agrees(search, groups, cut) and search.problem.costs is not None:
            search.prove((bound_s + float(search.problem.costs.launch_s.min())) * (1 - SAFETY), "minimum cut")

    def _cheapest(
        self, search: Search, cut: Cut, device: Int32, extra_s: Float64, surcharge_s: float
    ) -> tuple[Int32, float]:
        """Return (the division int32 [k] that cuts lead to, what it costs); with two devices what any costs."""
        p = cut.group_s.shape[1]
        if p == 2:
            return cut.two_devices(extra_s, surcharge_s)
        value_s = cut.value_s(device, extra_s, surcharge_s)
        for _ in range(self.passes):
            before_s = value_s
            for target in range(p):
                if search.left_s <= 0:
                    return device, value_s
                offered, _ = cut.expanded(device, target, extra_s, surcharge_s)
                offered_s = cut.value_s(offered, extra_s, surcharge_s)
                if offered_s < value_s:
                    device, value_s = offered, offered_s
            if value_s >= before_s * (1 - SAFETY):
                break
        return device, value_s


def _starts(search: Search, groups: Groups, cut: Cut) -> Iterator[Int32]:
    """Yield divisions to change, int32 [k]; with two devices a cut does not depend on where it starts."""
    yield cut.group_s.argmin(axis=1).astype(np.int32)
    if groups.room_bytes.size > 2:
        for d in range(groups.room_bytes.size):
            yield groups.devices_of(mostly_on(search.problem, d))
        if search.best is not None:
            yield groups.devices_of(search.best)


def _agrees(search: Search, groups: Groups, cut: Cut) -> bool:
    """Return whether the cut's sum is a bound of what the evaluator says.

    So it is if the groups are no coarser than they must be, the evaluator's operations are the problem's nodes, and
    the sum is not above what the evaluator says of the best placement.
    """
    problem = search.problem
    if search.best is None or groups.k != finest_grouping(problem).k:
        return False
    sum_s = cut.value_s(groups.devices_of(search.best))
    return sum_s <= search.best_s * (1 + SAFETY) and one_to_one(search)


def border_moves(groups: Groups, cut: Cut, device: Int32, rng: np.random.Generator) -> Moves:
    """Return moves, in random order, of each group that sends or receives to each device it may go to.

    device: int32 [k], where the groups are.
    """
    nets = cut.nets
    crossing = device[nets.home[nets.owner]] != device[nets.reader]
    border = np.unique(np.concatenate([nets.home[nets.owner][crossing], nets.reader[crossing]]))
    group, target = np.nonzero(groups.allowed[border])
    group = border[group]
    elsewhere = np.flatnonzero(device[group] != target)
    rng.shuffle(elsewhere)
    group, target = group[elsewhere], target[elsewhere]
    members = np.argsort(groups.grouping.group, kind="stable")
    ptr = row_ptr(groups.grouping.group, groups.k)
    nodes = [members[ptr[u] : ptr[u + 1]] for u in group.tolist()]
    lengths = np.array([part.size for part in nodes], np.int64)
    none = np.full(group.size, -1, np.int32)
    zero = np.zeros(group.size)
    node = np.concatenate([np.zeros(0, np.int32), *nodes]).astype(np.int32)
    return Moves(np.r_[0, np.cumsum(lengths)], node, target.astype(np.int32), none, zero, zero, bounded=True)


@dataclass(slots=True, eq=False)
class MemoryPrice:
    """What a byte costs on each device: raised where weights do not fit, lowered where they do.

    per_byte_s: float64 [p]. too_low_s, enough_s: float64 [p], prices at which they did not fit, and at which they did.
    """

    per_byte_s: Float64
    too_low_s: Float64
    enough_s: Float64
    room_bytes: Int64
    first_s: float

    @classmethod
    def of(cls, groups: Groups, cut: Cut) -> MemoryPrice:
        """Return prices of 0."""
        p = groups.room_bytes.size
        work_s = np.where(np.isfinite(cut.group_s), cut.group_s, 0.0).max(axis=1).sum()
        first_s = float(work_s) / max(int(groups.held_bytes.sum()), 1) / 64
        return cls(np.zeros(p), np.zeros(p), np.full(p, math.inf), groups.room_bytes, first_s)

    def extra_s(self, groups: Groups) -> Float64:
        """Return float64 [k, p], the price of each group on each device."""
        price_s: Float64 = groups.held_bytes[:, None] * self.per_byte_s
        return price_s

    def paid_s(self, groups: Groups) -> float:
        """Return what all the room costs: at most that is paid by a division that fits."""
        return float(np.where(self.per_byte_s > 0, self.per_byte_s * groups.room_bytes, 0.0).sum())

    def move(self, held_bytes: Int64) -> bool:
        """Change the prices after a division by which the devices hold int64 [p] bytes; say if there is need."""
        over = held_bytes > self.room_bytes
        self.too_low_s = np.where(over, self.per_byte_s, self.too_low_s)
        self.enough_s = np.where(over | (self.per_byte_s == 0), self.enough_s, self.per_byte_s)
        if not over.any() and not (self.per_byte_s > 0).any():
            return False
        between = (self.too_low_s + np.where(np.isfinite(self.enough_s), self.enough_s, 0.0)) / 2
        costlier = np.maximum(2 * self.per_byte_s, self.first_s)
        self.per_byte_s = np.where(over & np.isinf(self.enough_s), costlier, between)
        return True
