"""Searching where memory is short: a first placement that fits, and the price that a local search pays for what does
not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from pipeline.core.arrays import Int32, Int64
from pipeline.core.measurement import Evaluation, MeasurementFailed, Prediction
from pipeline.core.placement import Placement
from pipeline.core.problem import Budget, Problem
from pipeline.core.simulation import LocalSearch
from policy.place.base.groups import Groups
from policy.place.base.search import Search
from policy.place.local.neighbourhood import MoveShares, Neighbourhood
from policy.place.local.packings import LARGE, packings
from policy.place.local.spilling import spill_blocks

MOVES = MoveShares(clusters=0.2, longest=4, copies=0.3, swaps=0.5)
OVER_S = 1e-3  # seconds of a search whose time is over before it begins
CHUNK = 64  # moves of a local search, between two looks at what fits
FIRST = (
    6  # local searches in which excess is annealed from warm to cold at first; every further round takes twice as many
)
WARM = 0.2  # first temperature of a round, in bytes over the mean bytes of a group
PACKING, PACKED = 0.3, 0.1  # share of the time for packings; where one of them fits
STRETCH_S = 0.25  # seconds that a local search may take, so that a time limit is kept
EVALUATED_PER_S = 3e6  # operations that a simulator runs in a second, roughly
SHARE = 0.9  # share of the budget that may go into a first placement that fits
FITTING = 0.5  # share of the moves taken that should lead to placements that fit
STEP = 1.3  # factor by which the price rises or falls after a local search


def tight(search: Search) -> bool:
    """Return whether some device may be too small: a simulator that minds memory says what a placement needs."""
    execution, problem = search.execution, search.problem
    if execution is None or not execution.memory:
        return False
    limits = [d.memory_bytes for d in problem.topology.devices if d.memory_bytes]
    return bool(limits) and problem.derived(_total_bytes, execution.activations) > min(limits)


def held_bytes(search: Search) -> Int64:
    """Return int64 [n], bytes an operation may hold: weights, and its output where the simulator counts activations."""
    execution = search.execution
    return _held_bytes(search.problem, execution is not None and execution.activations)


def _held_bytes(problem: Problem, activations: bool) -> Int64:
    held: Int64 = problem.graph.weight_bytes + (problem.graph.out_bytes if activations else 0)
    return held


def _total_bytes(problem: Problem, activations: bool) -> float:
    return float(_held_bytes(problem, activations).sum())


def repair_memory(search: Search, *, seed: int) -> None:
    """Ask about packings of the groups; if nothing fits yet, search for what does, with a share of the budget.

    Packings are the same for any size of equal devices, so that more memory takes no start away. Without a placement
    that fits, what the simulator says is over is moved away: groups of devices that hold too much go elsewhere or swap
    with others, by local searches that anneal bytes instead of seconds, in ever longer rounds from the placement that
    is least over, or from any of those tried where the last round led no further. Of large graphs the layer-wise split
    is brought within memory first; no packing is tried where something fits then.
    """
    if search.done or not tight(search):
        return
    if search.problem.graph.n > LARGE:
        spill_blocks(search)
        if search.best is not None or search.done:
            return
    pool, left_s = list[tuple[int, Int32]](), search.left_s
    for start in packings(search):
        over = search.simulate(start[None]).over_bytes.tolist()
        pool.extend((bytes_over, start) for bytes_over in over)  # none at the end of the budget
        spent_s = left_s - search.left_s
        if not over or (math.isfinite(left_s) and spent_s > left_s * (PACKING if search.best is None else PACKED)):
            break
    rng, moves = np.random.default_rng(seed), search.problem.derived(Neighbourhood.of)
    with search.limited(search.author, evaluations=math.ceil(SHARE * search.left), seconds=SHARE * search.left_s):
        steps, stalled = FIRST, False
        while search.best is None and search.left > 0 and moves.free.size and pool:
            search.adopt()
            least, nearest = min(pool, key=lambda entry: entry[0])
            begun = pool[rng.integers(len(pool))][1] if stalled else nearest
            spent = search.spent
            end = _anneal_excess(search, rng, moves, Placement(begun, search.problem.topology.names), steps).device
            over = search.simulate(end[None]).over_bytes.tolist()
            if search.spent - spent < FIRST or not over:
                return
            stalled = over[0] >= least
            pool.append((over[0], end))
            steps *= 2


def unlimited(search: Search, *, seconds: float) -> Search:
    """Return a search for the same problem on devices that hold everything, for so many seconds at most.

    Where the time is over already, as on a busy machine, it ends at once.
    What it asks is asked by `search`, which pays for it and keeps what happens to fit. No placement has an order.
    """
    problem = search.problem
    devices = tuple(replace(d, memory_bytes=0) for d in problem.topology.devices)
    relaxed = replace(problem, start=None, ordered=False).on(topology=replace(problem.topology, devices=devices))
    budget = Budget(max(1, search.left), max(seconds, OVER_S) if math.isfinite(seconds) else None)
    return Search(relaxed, _WithoutMemory(search), budget, lambda _: None, author=search.author)


class _WithoutMemory:
    """A search's simulator as an evaluator whose devices hold everything."""

    version: ClassVar[int] = 1

    def __init__(self, search: Search) -> None:
        self._search = search
        self.evaluations = 0

    @property
    def fingerprint(self) -> str:
        return "unlimited memory"

    def evaluate(self, placements: Sequence[Placement]) -> list[Evaluation]:
        device = np.array([placement.device for placement in placements], np.int32)
        value_s = self._search.simulate(device).value_s.tolist()
        self.evaluations += len(value_s)
        unasked = MeasurementFailed("timeout", "The budget has ended.")
        refused = MeasurementFailed("refused", "The simulator refuses the placement.")
        answers = [Prediction(seconds) if math.isfinite(seconds) else refused for seconds in value_s]
        return [*answers, *[unasked] * (len(placements) - len(value_s))]


def _anneal_excess(
    search: Search, rng: np.random.Generator, moves: Neighbourhood, placement: Placement, steps: int
) -> Placement:
    """Anneal the excess of a placement in so many local searches, or what the budget allows; return the last."""
    chunk = CHUNK
    if math.isfinite(search.left_s):  # of large graphs fewer moves, so that the time is looked at
        chunk = int(np.clip(STRETCH_S * EVALUATED_PER_S / search.problem.graph.n, 4, CHUNK))
    steps = max(2, min(steps, search.left // chunk))
    unit_bytes = float(held_bytes(search).sum()) / moves.k
    # a price at which one byte is more expensive than any placement is long, about
    costs, graph = search.problem.costs, search.problem.graph
    work_s = 0.0 if costs is None else float(np.where(np.isfinite(costs.op_s), costs.op_s, 0.0).max(axis=1).sum())
    sent_s = float(search.problem.topology.mean_transfer_s(graph.edge_bytes).sum())
    price = 10.0 * max(work_s + sent_s, 1e-9)
    for step in range(steps):
        if search.best is not None or search.left <= 0:
            break
        peak_bytes = search.simulate(placement.device[None]).peak_bytes
        if search.best is not None or not len(peak_bytes):
            break
        chosen = moves if step % 2 else moves._replace(free=_crowded(search, moves, placement, peak_bytes[0]))
        warm = WARM * unit_bytes * (1 - step / (steps - 1)) ** 2
        threshold_s = price * warm * rng.exponential(1.0, chunk)
        drawn = chosen.drawn(rng, placement, MOVES, threshold_s, price_s_per_byte=price)
        placement = search.local_search(placement, drawn).end
    return placement


def _crowded(search: Search, moves: Neighbourhood, placement: Placement, peak_bytes: Int64) -> Int32:
    """Return the groups that have a choice and are on devices that hold too much; all with a choice if there are none.

    peak_bytes: int64 [p], the most each device holds under the placement.
    """
    room = search.problem.derived(Groups.of).room_bytes
    home = placement.device[moves.member[moves.ptr[moves.free]]]
    crowded = moves.free[(peak_bytes > room)[home]]
    return crowded if crowded.size else moves.free


@dataclass(slots=True)
class Price:
    """What a byte beyond the memory costs a local search: raised while too few placements fit, lowered while almost all
    do.

    Source: the penalties of Vidal et al., A hybrid genetic algorithm for multidepot and periodic vehicle routing
    problems, Operations Research 60(3), 2012, section 4.5; steps and target are ours.
    """

    s_per_byte: float

    def learn(self, local_search: LocalSearch) -> None:
        """Change the price after a local search, by the share of the placements it went through that fit."""
        taken = local_search.value_s[local_search.taken]
        if taken.size:
            self.s_per_byte *= STEP if np.count_nonzero(np.isfinite(taken)) < FITTING * taken.size else 1 / STEP
