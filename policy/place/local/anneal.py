"""Simulated annealing: one placement, changed a little at a time, worse placements taken less and less often."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pipeline.core.arrays import Float64
from pipeline.core.errors import UsageError
from pipeline.core.params import check_params, param
from pipeline.core.placement import Placement
from pipeline.core.simulation import LocalSearch
from policy.place.base.search import Method, Search
from policy.place.lists.work import b_level, upward, work_of
from policy.place.local.neighbourhood import MoveShares, Neighbourhood
from policy.place.local.room import Price, held_bytes, repair_memory, tight

WORK = 500_000  # operations simulated between two looks at the clock
CHUNK = 512  # moves drawn at a time at most: priorities they aim at are those before the first of them
SHORT = 64  # moves drawn at a time where memory is short, so that its price follows what fits
LOADS = 8  # times as many as CHUNK where a move changes loads alone, and drawing takes longer than trying
PRESSED = 0.5  # share of moves forbidden by memory from which a short budget pays for excess; a full one always does
FREE = 0.3  # share of the budget in which a start that need not fit is annealed as though memory were unlimited
KEPT = 0.85  # share of the budget from which a local search short of memory keeps to what fits
ALONE = 0.5  # share of the budget from which a local search goes on from what others find, if that is better
FAR = 0.05  # share of a time by which the incumbent of others must be less for a local search to begin again from it
PROBE = 32  # moves by which evaluations per second are measured
PATIENCE = 3  # chunks of moves in a row of which none is new before the search ends
ORDERS = 4  # evaluations that the orders tried for one placement take, the look at its timeline included


class OvertakenError(Exception):
    """Another search is far ahead of a local search."""


@dataclass(frozen=True, slots=True)
class Anneal(Method):
    """Anneals from the incumbent by moves of single groups and small clusters.

        accept with probability exp(-(t_new - t) / T),  T falls geometrically from `hot` to `cold`

    Temperatures are in mean times of an operation. What moves is one group, or a random walk of groups; it goes to any
    device, or where one of its neighbours is. A short budget starts colder: `hot` holds from `evaluations_per_group` on
    and falls with the square root of the budget below; under a time limit the budget is what a few moves, timed first,
    let expect.

    Where memory bars many moves, some swap two groups, and the local search may pass through placements that do not
    fit, for a price per byte that follows the share of placements that do; without a placement that fits, it makes room
    first. Elsewhere it goes as it would without limits of memory.

    Where placements may carry priorities, the local search begins in the best of several orders: that in which the
    placement runs first come, first served, and by the longest way to an end, with transfers under the placement or
    with mean ones. Moves then change the order as well, with or without the device: a group goes between two others of
    its device. In the end the best placement is tried in those orders again.

    Source: Kirkpatrick, Gelatt, Vecchi, Optimization by Simulated Annealing, Science 220, 1983.
    """

    version: ClassVar[int] = 6

    hot: float = param(1.0, "first temperature over the mean time of an operation", within="(0, inf)")
    cold: float = param(0.03, "last temperature over the mean time of an operation", within="(0, inf)")
    evaluations_per_group: float = param(
        200.0, "evaluations per group from which `hot` is taken in full", within="(0, inf)"
    )
    copies: float = param(0.7, "share of moves to the device of a neighbour", within="[0, 1]")
    clusters: float = param(0.7, "share of moves of several groups at once", within="[0, 1]")
    swaps: float = param(
        0.3, "share of the moves by which two groups swap devices, where memory is short", within="[0, 1]"
    )
    orders: float = param(
        0.2, "share of moves that change a priority alone, where there are priorities", within="[0, 1]"
    )
    shifts: float = param(
        0.1, "share of the other moves that change a priority as well, where there are priorities", within="[0, 1]"
    )

    def __post_init__(self) -> None:
        check_params(self)
        if self.cold > self.hot:
            raise UsageError(f"cold is {self.cold} and hot {self.hot}.", "cold must be at most hot.")

    def run(self, search: Search, *, seed: int) -> None:
        """Anneal from the incumbent until the budget ends or nothing new is met."""
        if search.done:
            return
        repair_memory(search, seed=seed)
        self._begin(search, None, seed)

    def improve(self, search: Search, *, seed: int) -> None:
        """Anneal from the incumbent where there is one, without asking about packings again."""
        if search.best is None:
            self.run(search, seed=seed)
        elif not search.done:
            self._begin(search, None, seed)

    def relax(self, search: Search, start: Placement, *, seed: int) -> None:
        """Anneal as though memory were unlimited at first, from a start that need not fit; then as where it is short.

        The first part is the same whatever the devices hold, so that more memory takes no way away.
        """
        if not search.done:
            self._begin(search, start, seed)

    def _begin(self, search: Search, start: Placement | None, seed: int) -> None:
        """Anneal from a start that need not fit, or from the incumbent if there is none, and try orders in the end."""
        rng, moves = np.random.default_rng(seed), search.problem.derived(Neighbourhood.of)
        kept = ORDERS if search.problem.ordered and search.left > 2 * ORDERS else 0
        while True:
            expected = self._expected(search, rng, moves)
            hot = self.hot * min(1.0, math.sqrt(expected / (self.evaluations_per_group * moves.k)))
            try:
                with search.limited(search.author, evaluations=search.left - kept):
                    self._cool(search, rng, moves, start, max(hot, self.cold))
                break
            except OvertakenError:
                start = None
        if kept and search.best is not None and not search.proven:
            best_order(search, search.best)

    def _expected(self, search: Search, rng: np.random.Generator, moves: Neighbourhood) -> float:
        """Return how many evaluations the budget allows; with a time limit, how many are left after some were timed."""
        if math.isinf(search.left_s):
            return search.left
        rate = 0.0
        for r in (1, PROBE):  # the first local search may compile
            if search.left_s <= 0:
                break
            spent, began_s = search.spent, time.monotonic()
            self._local_search(
                search, rng, moves, search.best or moves.anywhere(search.problem.topology.names), np.zeros(r)
            )
            rate = (search.spent - spent) / max(time.monotonic() - began_s, 1e-6)
        return max(1.0, min(search.left, rate * search.left_s))

    def _cool(
        self, search: Search, rng: np.random.Generator, moves: Neighbourhood, start: Placement | None, hot: float
    ) -> None:
        """Search from a start, or else the incumbent, while the temperature falls, until the budget ends."""
        placement = start or search.best or moves.anywhere(search.problem.topology.names)
        if search.problem.ordered:
            placement = best_order(search, placement)
        cooling = Cooling(BudgetClock.of(search), mean_time_s(search), hot, self.cold)
        many = LOADS if search.execution is not None and search.execution.cheap_moves else 1
        chunk = max(8, min(many * CHUNK, WORK // max(1, search.problem.graph.n)))
        short = tight(search)
        if start is not None or (short and hot >= self.hot):
            self._anneal_with_penalty(search, rng, moves, placement, cooling, free=0.0 if start is None else FREE)
            return
        idle = 0
        while not search.done and idle < PATIENCE:
            spent = search.spent
            local_search = self._local_search(search, rng, moves, placement, cooling.drawn_s(rng, chunk))
            forbidden = np.count_nonzero(np.isinf(local_search.value_s)) / max(local_search.evaluations, 1)
            if short and not search.done and forbidden > PRESSED:
                self._anneal_with_penalty(
                    search, rng, moves, with_rank_priorities(search.best or local_search.end), cooling
                )
                return
            placement = self._adopted(search, cooling) or with_rank_priorities(local_search.end)
            idle = 0 if search.spent > spent else idle + 1

    def _adopted(self, search: Search, cooling: Cooling) -> Placement | None:
        """Return what another search has found meanwhile, if that is better, in the colder half of the budget.

        Raises:
            OvertakenError: it is so much better that this one had better begin again from there.
        """
        before_s = search.best_s
        if cooling.clock.share() < ALONE:
            return None
        search.adopt()
        if search.best is None or not search.best_s < before_s:
            return None
        if search.best_s < before_s * (1 - FAR):
            raise OvertakenError
        return with_rank_priorities(with_order(search, search.best) if search.problem.ordered else search.best)

    def _anneal_with_penalty(
        self,
        search: Search,
        rng: np.random.Generator,
        moves: Neighbourhood,
        placement: Placement,
        cooling: Cooling,
        *,
        free: float = 0.0,
    ) -> None:
        """Go on as `_cool` does where memory bars the way: through placements that do not fit, for a price, and back.

        The first price of a group's mean bytes is the first temperature of a full budget; a short one, in which a local
        search would not come back, pays more, by the factor by which it is too short. Single groups swap devices, which
        keeps full devices full. The last part of the budget begins at the best placement and keeps to what fits.

        free: share of the budget in which excess costs nothing yet.
        """
        per_group = max(float(held_bytes(search).sum()) / moves.k, 1.0)
        price = Price(cooling.scale_s * self.hot * (self.hot / cooling.hot) ** 2 / per_group)
        idle = 0
        while not search.done and idle < PATIENCE * CHUNK // SHORT:
            spent, share = search.spent, cooling.clock.share()
            if share >= KEPT and not math.isinf(price.s_per_byte):
                price.s_per_byte, placement = math.inf, with_rank_priorities(search.best or placement)
            price_s = price.s_per_byte if share >= free else 0.0
            local_search = self._local_search(search, rng, moves, placement, cooling.drawn_s(rng, SHORT), price_s)
            if share >= free:
                price.learn(local_search)
            placement = self._adopted(search, cooling) or with_rank_priorities(local_search.end)
            idle = 0 if search.spent > spent else idle + 1

    def _local_search(
        self,
        search: Search,
        rng: np.random.Generator,
        moves: Neighbourhood,
        placement: Placement,
        threshold_s: Float64,
        price_s: float | None = None,
    ) -> LocalSearch:
        """Return where as many moves as there are acceptance thresholds lead.

        price_s: of a byte beyond the memory, and then some moves are swaps; None for no price.
        """
        shares = MoveShares(
            clusters=self.clusters,
            copies=self.copies,
            swaps=0.0 if price_s is None else self.swaps,
            orders=self.orders,
            shifts=self.shifts,
        )
        price_s_per_byte = math.inf if price_s is None else price_s
        bounded = price_s is not None or not tight(search)  # else moves that memory bars are counted by their values
        drawn = moves.drawn(rng, placement, shares, threshold_s, price_s_per_byte=price_s_per_byte, bounded=bounded)
        return search.local_search(placement, drawn)


@dataclass(frozen=True, slots=True)
class AnnealFurther(Method):
    """Anneals from the incumbent, once more."""

    def run(self, search: Search, *, seed: int) -> None:
        """Anneal until the budget ends."""
        Anneal().improve(search, seed=seed)


@dataclass(frozen=True, slots=True)
class AnnealRelaxed(Method):
    """Anneals from a start that need not fit."""

    start: Placement

    def run(self, search: Search, *, seed: int) -> None:
        """Anneal, first as though memory were unlimited."""
        Anneal().relax(search, self.start, seed=seed)


def best_order(search: Search, placement: Placement) -> Placement:
    """Return the placement in its own order, if it has one, or else in the fastest of several orders.

    Of equally fast ones it is the first: the order in which the placement runs first come, first served.
    """
    work = work_of(search.problem)
    keys = [-b_level(work, placement.device), -upward(work)]
    orders = [
        with_order(search, placement),
        *(Placement(placement.device, placement.devices, ranks(key)) for key in keys),
    ]
    values = search.evaluate(orders)
    return orders[int(np.argmin(np.where(np.isnan(values), math.inf, values)))]


def with_order(search: Search, placement: Placement) -> Placement:
    """Return the placement with priorities that keep its order of execution, as far as that can be known."""
    if placement.priority is not None:
        return placement
    timeline = None if math.isinf(search.best_s) else search.timeline(placement)
    if timeline is None:
        return Placement(placement.device, placement.devices, np.arange(placement.n, dtype=np.float64))
    # What takes no time ran before what started at the same moment on its device.
    return Placement(placement.device, placement.devices, ranks(timeline.start_s, timeline.end_s))


def with_rank_priorities(placement: Placement) -> Placement:
    """Return the placement with ranks for priorities, if any: shift upon shift would leave the range of floats."""
    return (
        placement
        if placement.priority is None
        else Placement(placement.device, placement.devices, ranks(placement.priority))
    )


def ranks(*keys: Float64) -> Float64:
    """Return float64 [n], the place of each entry in ascending order of the first key, then the next, then by index."""
    rank = np.empty(keys[0].size)
    rank[np.lexsort(keys[::-1])] = np.arange(rank.size)
    return rank


def mean_time_s(search: Search) -> float:
    """Return the mean time of the operations that take any, in seconds; where nothing is known, a share of the best."""
    costs = search.problem.costs
    least_s = np.zeros(0) if costs is None else costs.op_s.min(axis=1)  # [n]
    if np.any(least_s > 0):
        return float(least_s[least_s > 0].mean())
    return search.best_s / search.problem.graph.n if math.isfinite(search.best_s) else 0.0


@dataclass(frozen=True, slots=True)
class BudgetClock:
    """Which share of what a search has left is spent: of its evaluations, or of its time if that ends first."""

    search: Search
    began_s: float
    spent: int
    left: int
    left_s: float

    @classmethod
    def of(cls, search: Search) -> BudgetClock:
        """Return a clock that starts now."""
        return cls(search, time.monotonic(), search.spent, max(1, search.left), search.left_s)

    def share(self) -> float:
        """Return the share spent so far, in [0, 1]."""
        share = (self.search.spent - self.spent) / self.left
        if math.isfinite(self.left_s):
            share = max(share, (time.monotonic() - self.began_s) / max(self.left_s, 1e-9))
        return min(1.0, share)

    def state(self) -> dict[str, Any]:
        """Return what `resumed` goes on from, as JSON holds it."""
        left_s = self.left_s if math.isfinite(self.left_s) else None
        elapsed_s = time.monotonic() - self.began_s
        return {"elapsed_s": elapsed_s, "spent": self.spent, "left": self.left, "left_s": left_s}

    @classmethod
    def resumed(cls, search: Search, kept: Mapping[str, Any], budget: Mapping[str, Any]) -> BudgetClock:
        """Return the clock of a state; budget: the evaluations and seconds, or None, that the search had then.

        A larger budget may be given to go on.
        """
        left, new = kept["left"], search.budget
        if new.evaluations is not None and budget["evaluations"] is not None:
            left += new.evaluations - budget["evaluations"]
        left_s = math.inf if kept["left_s"] is None else kept["left_s"]
        if new.seconds is not None and budget["seconds"] is not None:
            left_s += new.seconds - budget["seconds"]
        return cls(search, time.monotonic() - kept["elapsed_s"], kept["spent"], max(1, left), left_s)

    def step(self) -> float:
        """Return the share that one more evaluation spends; with a time limit its part is left out."""
        return 1.0 / self.left


@dataclass(frozen=True, slots=True)
class Cooling:
    """How much slower a move may make a placement: ever less, from temperature `hot` to `cold`, as its clock runs.

    scale_s: the seconds that a temperature of 1 stands for.
    """

    clock: BudgetClock
    scale_s: float
    hot: float
    cold: float

    def drawn_s(self, rng: np.random.Generator, r: int) -> Float64:
        """Return float64 [r], what the next r moves are allowed: exponentially distributed."""
        share = np.minimum(1.0, self.clock.share() + np.arange(r) * self.clock.step())
        warmth_s: Float64 = self.scale_s * self.hot * (self.cold / self.hot) ** share
        return -warmth_s * np.log1p(-rng.random(r))
