"""Searching where memory is short: a first placement that fits, and the price that a walk pays for what does not."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32, Int64
from pipeline.core.graph import sum_per_group
from pipeline.core.placement import Placement
from pipeline.core.simulation import Walk
from policy.place.neighbourhood import Choice, Neighbourhood
from policy.place.search import Search
from policy.place.units import UNLIMITED, Units, running_order

CHUNK = 64  # moves of a walk, between two looks at what fits
ROUND = 6  # walks in which excess is annealed from warm to cold
WARM = 0.5  # first temperature of a round, in bytes over the mean bytes of a unit
SHARE = 0.5  # share of the budget that may go into a first placement that fits
FITTING = 0.5  # share of the moves taken that should lead to plans that fit
STEP = 1.3  # factor by which the price rises or falls after a walk


def tight(search: Search) -> bool:
    """Return whether some device may be too small: a simulator that minds memory says what a plan needs."""
    semantics, problem = search.semantics, search.problem
    if semantics is None or not semantics.memory:
        return False
    limits = [d.memory_bytes for d in problem.topology.devices if d.memory_bytes]
    return bool(limits) and float(held_bytes(search).sum()) > min(limits)


def held_bytes(search: Search) -> Int64:
    """Return int64 [n], bytes an operation may hold: weights, and its output where the simulator counts activations."""
    graph, semantics = search.problem.graph, search.semantics
    counts = semantics is not None and semantics.kind == "listsched"
    held: Int64 = graph.weight_bytes + (graph.out_bytes if counts else 0)
    return held


def make_room(search: Search, *, seed: int) -> None:
    """Search for a placement that fits, if there is none yet, with a share of the budget.

    Packings of the groups come first. What the simulator says is over is then moved away: groups of devices that hold
    too much go elsewhere or swap with others, by a walk that anneals bytes instead of seconds, round after round, each
    from another start.
    """
    if search.best is not None or search.left <= 0 or not tight(search):
        return
    units = Units.of(search.problem)
    starts = np.stack([units.placement(device).device for device in packings(search, units)])
    found = search.simulate(starts)
    order = np.argsort(found.over_bytes, kind="stable")
    rng, moves = np.random.default_rng(seed), Neighbourhood.of(search.problem)
    with search.limited(search.author, evaluations=math.ceil(SHARE * search.left)):
        turn = 0
        while search.best is None and search.left > 0 and moves.free.size:
            begun = starts[order[turn % order.size]] if turn < 2 * order.size else units_at_random(units, rng)
            if not _shed(search, rng, moves, Placement(begun, search.problem.topology.names)):
                return
            turn += 1


def units_at_random(units: Units, rng: np.random.Generator) -> Int32:
    """Return int32 [n], a random allowed device for every unit, as devices of the operations."""
    wish = np.where(units.allowed, rng.random(units.allowed.shape), -1.0)
    return units.placement(wish.argmax(axis=1).astype(np.int32)).device


def packings(search: Search, units: Units) -> Iterator[Int32]:
    """Yield devices of the units, int32 [k], that share out bytes by what devices hold.

    Weights, and weights with outputs: the heaviest first to the device with the most room for its size; and in order
    of depth, each device filled in turn, which keeps neighbours together and so needs few copies.
    """
    weight = units.held_bytes.astype(np.float64)
    both = sum_per_group(held_bytes(search).astype(np.float64), units.grouping)
    depth = running_order(units)
    for amount in (weight, both):
        room = np.where(units.room_bytes < UNLIMITED, units.room_bytes, max(1.0, 2.0 * amount.sum())).astype(np.float64)
        yield _fullest_last(units.allowed, amount, room)
        for order in (np.argsort(depth, kind="stable"), np.argsort(-depth, kind="stable")):
            yield _in_turn(units.allowed, amount, room, order)


def _fullest_last(allowed: Bool, amount: Float64, room: Float64) -> Int32:
    device, left = np.zeros(amount.size, np.int32), room.copy()
    for i in np.argsort(-amount, kind="stable").tolist():
        free = np.where(allowed[i], (left - amount[i]) / room, -math.inf)
        device[i] = int(free.argmax())
        left[device[i]] -= amount[i]
    return device


def _in_turn(allowed: Bool, amount: Float64, room: Float64, order: Int64) -> Int32:
    ends = np.cumsum(room) * amount.sum() / room.sum()
    before = np.cumsum(amount[order]) - amount[order] / 2
    wish = np.minimum(np.searchsorted(ends, before), room.size - 1)
    device = np.empty(amount.size, np.int32)
    gap = np.abs(np.arange(room.size) - wish[:, None])
    device[order] = np.where(allowed[order], gap, room.size).argmin(axis=1)
    return device


def _shed(search: Search, rng: np.random.Generator, moves: Neighbourhood, plan: Placement) -> bool:
    """Anneal the excess of a plan for a round; return whether anything was new."""
    unit_bytes = float(held_bytes(search).sum()) / moves.k
    price = _outweighing(search)
    spent = search.spent
    for step in range(ROUND):
        if search.best is not None or search.left <= 0:
            break
        peak_bytes = search.simulate(plan.device[None]).peak_bytes
        if search.best is not None or not len(peak_bytes):
            break
        chosen = moves if step % 2 else replace(moves, free=_crowded(search, moves, plan, peak_bytes[0]))
        warm = WARM * unit_bytes * (1 - step / (ROUND - 1)) ** 2
        allowance_s = price * warm * rng.exponential(1.0, CHUNK)
        drawn = chosen.drawn(rng, plan, _choice(rng, CHUNK), allowance_s)
        plan = search.walk(plan, replace(drawn, price_s_per_byte=price)).end
    return search.spent > spent


def _outweighing(search: Search) -> float:
    """Return a price per byte at which one byte is dearer than any plan is long, about."""
    costs, graph = search.problem.costs, search.problem.graph
    work_s = 0.0 if costs is None else float(np.where(np.isfinite(costs.op_s), costs.op_s, 0.0).max(axis=1).sum())
    sent_s = float(search.problem.topology.mean_transfer_s(graph.edge_bytes).sum())
    return 10.0 * max(work_s + sent_s, 1e-9)


def _crowded(search: Search, moves: Neighbourhood, plan: Placement, peak_bytes: Int64) -> Int32:
    """Return the groups that have a choice and are on devices that hold too much; all with a choice if there are none.

    peak_bytes: int64 [p], the most each device holds under the plan.
    """
    room = np.array([d.memory_bytes or UNLIMITED for d in search.problem.topology.devices])
    home = plan.device[moves.member[moves.ptr[moves.free]]]
    found = moves.free[(peak_bytes > room)[home]]
    return found if found.size else moves.free


def _choice(rng: np.random.Generator, r: int) -> Choice:
    none = np.zeros(r, bool)
    return Choice(
        length=np.where(rng.random(r) < 0.2, rng.integers(2, 5, r), 1),
        copy=rng.random(r) < 0.3,
        stays=none,
        shifted=none,
        swaps=rng.random(r) < 0.5,
    )


@dataclass(slots=True)
class Price:
    """What a byte beyond the memory costs a walk: raised while too few plans fit, lowered while almost all do.

    Source: the penalties of Vidal et al., A hybrid genetic algorithm for multidepot and periodic vehicle routing
    problems, Operations Research 60(3), 2012, section 4.5; steps and target are ours.
    """

    s_per_byte: float

    def learn(self, walk: Walk) -> None:
        """Change the price after a walk, by the share of the plans it went through that fit."""
        taken = walk.value_s[walk.taken]
        if taken.size:
            self.s_per_byte *= STEP if np.isfinite(taken).mean() < FITTING else 1 / STEP
