"""Contiguous stages of a pipeline: the least largest load, over all ideals or over intervals of an order.

    f[I][s] = min over ideals J inside I and ways w to run a stage: max(f[J][s without w], load of I without J under w)

An ideal holds, with an element, all that come before it; differences of ideals are the stages. States s say how many
devices of each kind may be in use.

Source: Tarnawski et al., NeurIPS 2020, section 5; here for several kinds of devices, without storing pairs of ideals,
and bounded by what is known already. Replication: there, appendix, with the time to exchange weights of Piper, NeurIPS
2021.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from pipeline.core.arrays import Float64, Int32, Int64
from pipeline.core.graph import Grouping, is_acyclic, row_ptr
from pipeline.core.placement import Placement
from pipeline.core.problem import Problem
from policy.place.exact.shared.elements import Elements, merged
from policy.place.exact.shared.ideal_kernels import Listing, by_above, listed
from policy.place.exact.shared.relaxation import load_bound
from policy.place.exact.shared.stage_kernels import (
    Lattice,
    LeastLoads,
    StageChoices,
    best_of_ideals,
    best_of_prefixes,
    depth_first,
)

ALONE = 64  # ideals of one size up to which one thread is as fast as two
NO_LIMIT_S = 1e100
STATES = 10_000  # states above which no program over stages is begun
PRICING_S = 1.0  # seconds for the prices of unequal devices at most
NOWHERE = np.full(4, -1, np.int64)  # no goal: all values are asked for
BYTES_PER_COVER = 48  # of an ideal without one of its elements, while these are found and sorted
PAIRS = 1_000_000  # of ideals, or of elements of an order, between two looks at the clock
WORDS = 500_000  # that are looked at between two looks at the clock, while ideals are listed
LONG, PIECES = 2000, 1000  # elements of an order from which on it is divided by pieces first, and their number
LOOSE = 1e-9  # share by which sums in another order may differ
ORDER_PAIRS = 2e8  # of elements, in all orders together, where time is not limited


class Stage(NamedTuple):
    """One stage: its elements, int64, the kind of device, how many replicas, and the load of each of these."""

    elements: Int64
    kind: int
    replicas: int
    load_s: float


class Replication(NamedTuple):
    """How stages may be replicated.

    most: replicas of one stage, on devices that are no CPU. sync_s_per_byte: what exchanging a byte of weights takes
    over a link, by the microbatches of a batch.
    """

    most: int = 1
    sync_s_per_byte: float = 0.0


class Ideals(NamedTuple):
    """All ideals of elements, with words int64 [c, w], their elements as bits."""

    lattice: Lattice
    words: Int64

    @property
    def size(self) -> int:
        """Return the number of ideals."""
        return len(self.words)


@dataclass(frozen=True, slots=True, eq=False)
class StageProgram:
    """The dynamic program of one problem.

    replicas: int64 [c], of each way to run a stage. priced_s: float64 [k], the priced work of each element.
    """

    elements: Elements
    choices: StageChoices
    replicas: Int64
    priced_s: Float64

    @classmethod
    def of(cls, elements: Elements, replication: Replication, *, priced: bool = True) -> StageProgram | None:
        """Return the program of elements; None where it has more than STATES states.

        priced: whether prices are worked out, by which states are told that cannot be of use for the largest load.
        """
        counts = np.array(elements.counts, np.int64)
        ways = [(q, r) for q in range(counts.size) for r in range(1, _most_replicas(elements, q, replication) + 1)]
        kind, replicas = np.array(ways, np.int64).T
        # Between two numbers of devices of one kind lie states that no stage may lead to, so that none is passed by.
        width = counts + 1 + int(replicas.max())
        if math.prod(width.tolist()) > STATES:
            return None
        stride = np.concatenate([[1], np.cumprod(width)])
        used = np.arange(stride[-1])[:, None] // stride[:-1] % width  # [S, K]
        price, priced_s = _prices(elements) if priced else (np.ones(counts.size), np.zeros(elements.k))
        worth = np.where((used <= counts).all(axis=1), used @ price, math.nan)
        sync_s = 4.0 * (replicas - 1) / replicas * replication.sync_s_per_byte
        shift, full = replicas * stride[kind], int(counts @ stride[:-1])
        worth, shift = worth[: full + 1], shift.copy()
        choices = StageChoices(kind.copy(), 1.0 / replicas, sync_s, shift, worth, full, NO_LIMIT_S)
        return cls(elements, choices, replicas.copy(), priced_s)

    def below(self, limit_s: float) -> StageProgram:
        """Return the program that asks for loads below a limit."""
        return replace(self, choices=self.choices._replace(limit_s=limit_s))

    def bytes_of(self, ideals_count: int, covers: int) -> int:
        """Return the memory that so many ideals take, and so many ways to take one element away."""
        words = -(-self.elements.k // 64)
        return ideals_count * (24 * words + 48 + 8 * self.choices.price.size) + BYTES_PER_COVER * covers

    def of_order(self, order: Int64, goes_on: Callable[[], bool]) -> list[Stage]:
        """Return the best stages that are intervals of an order, first to last; none if none is below the limit.

        Of long orders short pieces are taken as one at first: what stages of these take is a limit for all others, and
        they are the answer where there is no time for more. goes_on: asked now and then whether there is.
        """
        if order.size <= LONG:
            return self._divided(order, goes_on)
        piece = np.empty(order.size, np.int32)
        piece[order] = np.arange(order.size) * PIECES // order.size
        charges = merged(self.elements.charges, Grouping(piece))
        priced_s: Float64 = np.bincount(piece, weights=self.priced_s).astype(np.float64)
        coarse = replace(self, elements=replace(self.elements, charges=charges), priced_s=priced_s)
        first = coarse._divided(np.arange(PIECES), lambda: True)
        limit_s = min(self.choices.limit_s, value_s(first) * (1 + LOOSE))
        known = [stage._replace(elements=order[np.isin(piece[order], stage.elements)]) for stage in first]
        return self.below(limit_s)._divided(order, goes_on) or known

    def _divided(self, order: Int64, goes_on: Callable[[], bool]) -> list[Stage]:
        """Return the best stages that are intervals of an order; none if there are none, or no time for them."""
        best = self._blank(order.size + 1)
        priced_s = np.concatenate([[0.0], np.cumsum(self.priced_s[order])])

        def fill(span: Int64, goal: Int64) -> None:
            best_of_prefixes(self.elements.charges, self.choices, order, priced_s, best, span, goal)

        def last(goal: Int64) -> Int64:
            fill(np.array([goal[0], goal[0] + 1, 1], np.int64), goal)
            return order[goal[2] : goal[0]]

        span = np.array([1, order.size + 1, PAIRS], np.int64)
        while span[0] < span[1]:
            fill(span, NOWHERE.copy())
            if span[0] < span[1] and not goes_on():
                return []
        return self._stages(best, last)

    def of_ideals(self, ideals: Ideals, goes_on: Callable[[], bool], *, workers: int) -> list[Stage] | None:
        """Return the best stages of all, first to last, none if none is below the limit.

        goes_on: asked now and then, on any thread; without it the answer is None.
        """
        lattice = ideals.lattice
        best = self._blank(ideals.size)
        seen = [np.full(ideals.size, -1, np.int32) for _ in range(workers)]

        def fill(thread: int, first: int, end: int, step: int) -> bool:
            span = np.array([first, end, step, PAIRS], np.int64)
            while span[0] < end and goes_on():
                best_of_ideals(self.elements.charges, self.choices, lattice, best, seen[thread], span, NOWHERE.copy())
            return bool(span[0] >= end)

        def last(goal: Int64) -> Int64:
            span, unseen = np.array([goal[0], goal[0] + 1, 1, 1], np.int64), np.full(ideals.size, -1, np.int32)
            best_of_ideals(self.elements.charges, self.choices, lattice, best, unseen, span, goal)
            return difference(ideals, int(goal[2]), int(goal[0]))

        with ThreadPoolExecutor(workers) as pool:
            for size in range(1, self.elements.k + 1):
                first, end = lattice.first[size : size + 2].tolist()
                threads = 1 if end - first < ALONE else workers
                running = [pool.submit(fill, t, first + t, end, threads) for t in range(1, threads)]
                if not all([fill(0, first, end, threads), *(part.result() for part in running)]):
                    return None
        return self._stages(best, last)

    def _blank(self, rows: int) -> LeastLoads:
        """Return values at the limit, but for the empty ideal, on which no device works."""
        value_s = np.full((rows, self.choices.price.size), self.choices.limit_s)
        value_s[0, ~np.isnan(self.choices.price)] = 0.0
        return LeastLoads(value_s, value_s.min(axis=1))

    def _stages(self, best: LeastLoads, last: Callable[[Int64], Int64]) -> list[Stage]:
        """Return the stages of the best value; last: completes a goal and returns the last stage's elements."""
        at, state = len(best.value_s) - 1, self.choices.full
        if best.value_s[at, state] >= self.choices.limit_s:
            return []
        stages: list[Stage] = []
        while at > 0:
            goal = np.array([at, state, -1, -1], np.int64)
            elements = last(goal)
            at, way = goal[2:].tolist()
            state -= int(self.choices.shift[way])
            load_s = self.load_s(elements, way)
            stages.append(Stage(elements, int(self.choices.kind[way]), int(self.replicas[way]), load_s))
        return stages[::-1]

    def load_s(self, elements: Int64, way: int) -> float:
        """Return the load of every replica of a stage that is run in one way."""
        charges, q = self.elements.charges, int(self.choices.kind[way])
        spans = [charges.net[charges.ptr[e] : charges.ptr[e + 1]] for e in elements.tolist()]
        held = np.bincount(np.concatenate([np.zeros(0, np.int64), *spans]), minlength=charges.size.size)
        partly = (held > 0) & (held < charges.size)
        own_s = float(charges.work_s[elements, q].sum() + charges.pay_s[partly, q].sum())
        weights = int(charges.held_bytes[elements].sum())
        return own_s * float(self.choices.share[way]) + float(self.choices.sync_s[way]) * weights


def value_s(stages: list[Stage]) -> float:
    """Return the largest load of stages; inf without any."""
    return max((stage.load_s for stage in stages), default=math.inf)


def all_ideals(program: StageProgram, memory_bytes: int, goes_on: Callable[[], bool]) -> Ideals | None:
    """Return all ideals of a program's elements; None where they, and the program over them, need more memory.

    goes_on: asked now and then; without it the answer is None.
    """
    elements = program.elements
    k = elements.k
    words = max(1, -(-k // 64))
    need = np.zeros((k, words), np.int64)
    one = np.int64(1)
    for a, b in elements.edges.T.tolist():
        need[b, a >> 6] |= one << np.int64(a & 63)
    key = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, k)  # how they are hashed, nothing else
    listing, many = Listing.empty(k), WORDS // max(1, k * words) + 1
    while not listing.complete:
        if not goes_on():
            return None
        listing = listed(need, key, program.priced_s, listing, many)
        if program.bytes_of(int(listing.counts[1]), int(listing.counts[2])) > memory_bytes:
            return None
    size = int(listing.counts[1])
    lattice = Lattice(listing.first, *by_above(listing), listing.priced_s[:size].copy())
    return Ideals(lattice, listing.words[:size].copy())


def prefixes_of(program: StageProgram, order: Int64) -> Ideals:
    """Return the ideals of elements that are prefixes of a topological order, int64 [k], of a program's elements."""
    k = order.size
    words = np.zeros((k + 1, max(1, -(-k // 64))), np.int64)
    words[np.arange(1, k + 1), order >> 6] = np.int64(1) << (order & 63)
    step = np.arange(k + 1)
    lattice = Lattice(
        np.append(step, k + 1),
        np.concatenate([[0], step]),
        step[:-1].astype(np.int32),
        order.astype(np.int32),
        np.concatenate([[0.0], np.cumsum(program.priced_s[order])]),
    )
    return Ideals(lattice, np.bitwise_or.accumulate(words, axis=0))


def difference(ideals: Ideals, inner: int, outer: int) -> Int64:
    """Return int64, the elements of one ideal that another, inside it, does not hold."""
    return _bits(ideals.words[outer] & ~ideals.words[inner])


def _bits(words: Int64) -> Int64:
    """Return int64, which bits of int64 [w] are set.

    >>> _bits(np.array([5, 1])).tolist()
    [0, 2, 64]
    """
    numbers = np.flatnonzero(np.unpackbits(words.astype("<i8").view(np.uint8), bitorder="little"))
    return numbers.astype(np.int64)


def _most_replicas(elements: Elements, kind: int, replication: Replication) -> int:
    """Return how many replicas a stage may have on a kind of devices."""
    device = elements.groups.problem.topology.devices[elements.kinds[kind][0]]
    return 1 if device.kind == "cpu" else max(1, min(replication.most, elements.counts[kind]))


def _prices(elements: Elements) -> tuple[Float64, Float64]:
    """Return (the price of the time of one device of each kind, float64 [K]; the work of elements by it, [k]).

    Whatever the prices, an element costs its least priced time at least, and devices in use pay for T seconds each.
    """
    charges, counts = elements.charges, np.array(elements.counts)
    device_s = np.repeat(charges.work_s, counts, axis=1)
    room = np.repeat(charges.room_bytes, counts)
    _, price = load_bound(device_s, charges.held_bytes, room, seconds=PRICING_S)
    of_kind = np.array([part.mean() for part in np.split(price, np.cumsum(counts)[:-1])])
    known = np.isfinite(charges.work_s)
    priced_s = np.where(known, of_kind * np.where(known, charges.work_s, 0.0), math.inf).min(axis=1)
    safe = 1 - 1e-9  # sums in another order may be off in the last bits
    return of_kind, priced_s * safe


def order_of(elements: Elements, rank: Float64) -> Int64:
    """Return int64 [k], a depth-first topological order; rank: float64 [k], the greater the sooner, where possible."""
    ptr = row_ptr(elements.edges[0], elements.k)
    waiting = np.bincount(elements.edges[1], minlength=elements.k).astype(np.int32)
    return depth_first(ptr, elements.edges[1].copy(), waiting, rank)


def placement_of(elements: Elements, stages: list[Stage]) -> Placement:
    """Return the placement of stages; of replicas the first device counts."""
    device: Int32 = np.zeros(elements.k, np.int32)
    for stage, names in zip(stages, devices_of(elements, stages), strict=True):
        device[stage.elements] = names[0]
    return elements.groups.placement(device)


def devices_of(elements: Elements, stages: list[Stage]) -> list[tuple[int, ...]]:
    """Return the devices of each stage: those of its kind in turn."""
    free = [list(kind) for kind in elements.kinds]
    devices = []
    for stage in stages:
        devices.append(tuple(free[stage.kind][: stage.replicas]))
        del free[stage.kind][: stage.replicas]
    return devices


def best_of_orders(
    program: StageProgram, rng: np.random.Generator, orders: int, goes_on: Callable[[], bool]
) -> list[Stage]:
    """Return the best stages over depth-first orders; the first is that of the numbers, and tried in any case."""
    k = program.elements.k
    rank, best = -np.arange(float(k)), list[Stage]()
    for number in range(orders):
        if number and not goes_on():
            break
        better = program.below(min(value_s(best), NO_LIMIT_S)).of_order(order_of(program.elements, rank), goes_on)
        best, rank = better or best, rng.random(k)
    return best


def orders_worth(k: int, orders: int) -> int:
    """Return how many of the orders are tried where time is not limited."""
    return int(np.clip(ORDER_PAIRS / max(k, 1) ** 2, 1, orders))


def stage_program(problem: Problem, replication: Replication, *, priced: bool = True) -> StageProgram | None:
    """Return the program of a problem; None without costs, on a cyclic graph, or with too many states."""
    if problem.costs is None or not is_acyclic(problem.graph):
        return None
    return StageProgram.of(problem.derived(Elements.of), replication, priced=priced)
