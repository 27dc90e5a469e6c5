"""Coarsen, place, refine while un-coarsening: for graphs of which only few placements can be tried."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, ClassVar

import numpy as np

from pipeline.core.params import param
from pipeline.core.placement import Placement
from pipeline.core.simulation import Moves
from policy.place.base.contraction import contraction_levels
from policy.place.base.hierarchy import Level, hierarchy, nearest
from policy.place.base.parallel import run_parallel
from policy.place.base.search import MANY, Method, Search
from policy.place.local.anneal import best_order
from policy.place.local.room import EVALUATED_PER_S, STRETCH_S, repair_memory, tight
from policy.place.local.spilling import held_at_peaks, spill_blocks
from policy.place.multilevel.coarse_search import CoarseSearch
from policy.place.multilevel.layers import layers_of
from policy.place.multilevel.moves import LevelClusters, draw
from policy.place.multilevel.starts import starts
from policy.place.rules.catalogue import LINEAR_RULES

RULING = 0.5  # share of the time left that one of them may be expected to take
BUILT_PER_S = 3e5  # operations of which clusters of all levels are made in a second, roughly
CONTRACTED_PER_S = 5e3  # operations for each second left up to which groups of the learned contraction are made
COARSENED_PER_S = 2e5  # operations of which a coarse instance is made in a second, roughly
FORGETTING = 20_000  # operations from which what only rules of thumb asked for is not kept
TRYING = 0.25  # share of the time left that goes to starts
COMPARING = 0.6  # share of that in which starts are compared by their estimates
LOOK = 4.0  # seconds in the coarse instance per second in which the evaluator judges what came out
SLICE_S = 0.05  # seconds between two looks at the time in the coarse instance
LEAST = 4  # moves of a local search at least while there is time: it begins with an evaluation of its own
COARSE = 256  # clusters of the level that starts are made from, about
CONTRACTED = (16, 32, 64, 128, 256, 512)  # groups of the learned contraction that are moved, about
TRIED = 24  # starts that are evaluated, where an estimate tells the promising ones
MOVES = 256  # moves of one local search at most
SLOW = 3_000_000  # operations that the moves of one local search may be tried on, so that it ends soon
UNORDERED = 0.4  # share of that time which is left to the coarse instance where there are orders, for it knows none
ORDERS = (0.3, 0.5, 1.0)  # shares of what is left then after which orders are tried again
CHEAP = 8  # estimated placements per evaluation left, without a time limit
MOST = 100_000  # estimated placements without a time limit


@dataclass(frozen=True, slots=True)
class Multilevel(Method):
    """Builds levels of clusters, tries starting placements, and refines the best one from coarse clusters to fine.

    The layer-wise split (`expert`) is tried first, whatever the budget, then other rules of thumb in linear time. Where
    that split does not fit, it is brought within memory (see `spilling`), and what counts as held by a cluster from
    then on are its weights and the outputs that were there when a device of the incumbent held most.

    Clusters come from three sources: expensive tensors (see `hierarchy`), and, where layers are known or can be told by
    the weights that operations share, layers cut by time into 1, 2, 4, ... parts; a third, where devices work at the
    same time and the time suffices, is the learned contraction. Starting placements are whole (see `starts`). A move
    sends a cluster to the device of a cluster it shares tensors with, or to any device; the clusters become smaller,
    and what a move may cost less, as time goes by.

    Where the evaluator is a simulator of devices that work at once, placements are first refined in a coarse instance,
    which is evaluated several times quicker (see `coarse_instance`), and the evaluator judges what comes out; then, and
    everywhere else, moves are judged by the evaluator itself on the whole graph. Where placements may carry priorities,
    it begins in the best of several orders (see `anneal`), and so again when some of the time is spent.

    With a time limit, `workers` local searches, of different seeds, refine at the same time; all go on from the best.

    Source: the scheme is that of Karypis and Kumar, A Fast and High Quality Multilevel Scheme for Partitioning
    Irregular Graphs, SIAM Journal on Scientific Computing 20(1), 1998, with predicted time in place of the cut.
    """

    version: ClassVar[int] = 8
    placers: ClassVar[tuple[str, ...]] = tuple(LINEAR_RULES)
    controls: ClassVar[Mapping[str, Mapping[str, Any]]] = {"nothing learned": {"contracted": False}}

    finest: int = param(2048, "clusters of the finest level that is moved; 0: the problem's groups")
    heat: float = param(0.01, "share of the best time by which a move may be slower in the beginning, on average")
    near: float = param(0.75, "share of moves to the device of a neighbour", within="[0, 1]")
    sketched: float = param(0.7, "share of the time that is spent on the coarse instance; 0 for none", within="[0, 1]")
    contracted: bool = param(True, "move groups of the learned contraction as well")
    patience: int = param(20, "stop after so many local searches without a move that was new", within="[1, inf)")
    workers: int = param(1, "with a time limit, local searches at the same time, each on a thread", within="[1, inf)")

    def run(self, search: Search, *, seed: int) -> None:
        """Try the starts, then search until the budget ends or nothing new is met."""
        if search.done:
            return
        try_rules(search, seed=seed)
        rng = np.random.default_rng(seed)
        begun = self._begin(search)
        if search.best is None and not search.done:
            repair_memory(search, seed=seed)
        if begun is None or search.done:
            return
        skip = 0
        if begun.rough is not None and search.best is not None:
            self._at_once(search, partial(self._refine_coarse, begun=search.best, rough=begun.rough), rng)
            skip = len(begun.chosen) // 2
        clusters = [LevelClusters.of(c, np.arange(search.problem.graph.n, dtype=np.int32)) for c in begun.chosen]
        first = begun.first
        del begun  # the coarse instance and the levels, of which nothing is asked any more
        for share in ORDERS if search.problem.ordered else (1.0,):
            placement = search.best or first
            seconds = share * search.left_s if np.isfinite(search.left_s) else None
            with search.limited(search.author, evaluations=math.ceil(share * search.left), seconds=seconds):
                if search.problem.ordered and not search.done:
                    placement = best_order(search, placement)
                self._at_once(search, partial(self._refine, placement=placement, levels=clusters, skip=skip), rng)

    def _begin(self, search: Search) -> SearchStart | None:
        """Build the levels, try what they offer to start from, and return what is refined; None without the time."""
        problem = search.problem
        short = tight(search)
        if short:
            spill_blocks(search)
        if search.done or not in_time(search, BUILT_PER_S):
            return None
        if problem.graph.n > FORGETTING:  # what rules and bounds asked for, and nobody else will
            problem.forget()
        timeline = search.timeline(search.best) if short and search.best is not None else None
        held = None if timeline is None else held_at_peaks(problem, timeline)
        levels = hierarchy(problem, least=problem.topology.p, held=held)
        near_goal = [nearest(levels, goal) for goal in (COARSE, 4 * COARSE)]
        layers = layers_of(levels)
        # The levels whose clusters are moved, coarse to fine
        finest = self.finest or levels[0].k
        chosen = [level for level in levels if level.k <= finest] or [levels[-1]]
        parts = 1
        while layers is not None and layers.count * parts <= finest:
            chosen.append(layers.level(parts))
            parts *= 2
        concurrent = search.execution is not None and search.execution.concurrent  # as where the weights have learned
        if self.contracted and concurrent and in_time(search, CONTRACTED_PER_S):
            chosen += contraction_levels(levels[0], [groups for groups in CONTRACTED if groups <= finest])
        chosen = sorted(chosen, key=lambda level: level.k)
        rough = CoarseSearch.of(search, chosen, held) if self.sketched and in_time(search, COARSENED_PER_S) else None
        first = _try(search, starts(list(dict.fromkeys(near_goal)), layers), rough)
        return None if first is None else SearchStart(chosen, rough, first)

    def _at_once(self, search: Search, part: Callable[..., None], rng: np.random.Generator) -> None:
        """Call part(search, rng=...) as often as there are workers, at the same time; once without a time limit.

        Once, too, where the evaluator is no simulator.
        """
        if self.workers == 1 or search.simulator is None or not np.isfinite(search.left_s) or search.done:
            part(search, rng=rng)
        else:
            seeded = [partial(part, rng=child) for child in rng.spawn(self.workers)]
            run_parallel(search, seeded, workers=self.workers)

    def _refine_coarse(
        self, search: Search, *, begun: Placement, rough: CoarseSearch, rng: np.random.Generator
    ) -> None:
        """Anneal in the coarse instance, and have the evaluator judge the best placement of each local search."""
        share = self.sketched * (UNORDERED if search.problem.ordered else 1.0)
        clock = PartClock.of(search, share, min(CHEAP * search.left, MOST))
        placement, best_s, recorded_s = rough.devices_of(begun), np.inf, np.inf
        best, looked_s = placement, 0.0  # seconds in the coarse instance since the evaluator was asked
        cost_s = _seconds_of_a_look(search)
        while (done := clock.done()) < 1 and not search.done and not search.stopped():
            count = clock.sketched()
            moves = draw(_upto(rough.levels, done), count, search.problem.topology.p, self.near, rng)
            threshold_s = self.heat * (1 - done) ** 2 * search.best_s * rng.exponential(1.0, count)
            began_s = time.monotonic()
            placement, end_s, met, met_s = rough.local_search(placement, moves, threshold_s)
            search.planned += count
            clock.tick(count, time.monotonic() - began_s)
            looked_s += time.monotonic() - began_s
            if met_s < best_s:
                best, best_s = met, met_s
            elif end_s > best_s * (1 + 3 * self.heat * (1 - done)):
                placement = best
            if best_s < recorded_s and looked_s >= LOOK * cost_s:
                search.evaluate([rough.placement(best)])
                recorded_s, looked_s = best_s, 0.0
        if best_s < recorded_s:
            search.evaluate([rough.placement(best)])

    def _refine(
        self, search: Search, *, placement: Placement, levels: list[LevelClusters], skip: int, rng: np.random.Generator
    ) -> None:
        """Anneal with the evaluator; skip: how many of the levels are left behind from the beginning.

        A local search without a move that was new is taken for a sign that the next level's turn has come.
        """
        clock = PartClock.of(search, 1.0, search.left)
        idle = 0
        while not search.done and not search.stopped() and idle < self.patience:
            done = max(clock.done(), (skip + 0.5) / len(levels))
            count = clock.moves(search.problem.graph.n)
            if not count:
                return
            moves = draw(_upto(levels, done), count, search.problem.topology.p, self.near, rng)
            scale = self.heat * (1 - done) ** 2 * (search.best_s if search.best is not None else 0.0)
            threshold_s = scale * rng.exponential(1.0, count)
            spent, began_s = search.spent, time.monotonic()
            local_search = search.local_search(placement, Moves(*moves, np.zeros(count), threshold_s, bounded=True))
            clock.tick(search.spent - spent, time.monotonic() - began_s)
            placement = local_search.end
            if search.spent == spent:
                idle += skip == len(levels) - 1
                skip = min(skip + 1, len(levels) - 1)
            else:
                idle = 0
            if local_search.end_s > search.best_s * (1 + 3 * self.heat * (1 - done)):
                placement = search.best or placement


def try_rules(search: Search, *, seed: int) -> None:
    """Try the placements of rules of thumb that take linear time; see `affordable_rules`."""
    for name in affordable_rules(search):
        if search.done:
            return
        if name not in search.authors:
            with search.limited(name):
                LINEAR_RULES[name][0].run(search, seed=seed)


def affordable_rules(search: Search) -> Iterator[str]:
    """Yield rules of thumb that take linear time: the layer-wise split, the others where they leave most of the budget.

    What is left is looked at before each of them.
    """
    for name, (_, per_second) in LINEAR_RULES.items():
        if name == "expert" or (search.left > 2 * TRIED and in_time(search, RULING * per_second)):
            yield name


def in_time(search: Search, per_second: float) -> bool:
    """Return whether something that handles so many operations in a second ends before the search does, roughly."""
    return search.problem.graph.n <= per_second * search.left_s


def _try(search: Search, begun: Iterator[Placement], rough: CoarseSearch | None) -> Placement | None:
    """Have starts evaluated, those of least estimate, or else as many as a fourth of the budget; return the first.

    Not all are held at once: of a million operations, hundreds would fill the memory. With a time limit, those are
    compared and tried that a share of it suffices for; None if it suffices for none.
    """
    clock = PartClock.of(search, TRYING, MANY)
    if rough is None:
        tried = list(islice(begun, max(search.left // 4, 8)))
    else:
        least: list[tuple[float, int, Placement]] = []
        for i, placement in enumerate(begun):
            least = sorted([*least, (rough.estimate_s(placement), i, placement)], key=lambda entry: entry[:2])[:TRIED]
            search.planned += 1
            if clock.done() > COMPARING or search.stopped():
                break
        tried = [placement for _, _, placement in least]
    for placement in tried:
        if not search.done and clock.done() < 1:
            search.evaluate([placement])
    return tried[0] if tried else None


def _seconds_of_a_look(search: Search) -> float:
    """Return how long the evaluator takes for a placement, roughly; 0 without a time limit, where nobody looks."""
    if np.isinf(search.left_s):
        return 0.0
    return search.problem.graph.n / EVALUATED_PER_S


def _upto(levels: list[LevelClusters], done: float) -> list[LevelClusters]:
    """Return the levels that are in use when a share of the budget is spent: ever more, coarse to fine."""
    return levels[: min(int(done * len(levels)), len(levels) - 1) + 1]


@dataclass(frozen=True, slots=True, eq=False)
class SearchStart:
    """What a search goes on with once it has begun: levels to move, their coarse instance if any, the first start."""

    chosen: list[Level]
    rough: CoarseSearch | None
    first: Placement


class PartClock:
    """How far a part of a search has come: by its time where the search's is limited, else by steps."""

    def __init__(self, left_s: float, steps: int) -> None:
        self._began_s, self._left_s, self._steps = time.monotonic(), left_s, max(steps, 1)
        self._taken, self._busy_s = 0, 0.0

    @classmethod
    def of(cls, search: Search, share: float, steps: int) -> PartClock:
        """Return a clock that starts now and runs for a share of the time that is left, and for so many steps."""
        return cls(share * search.left_s, steps)

    def tick(self, steps: int, seconds: float) -> None:
        """Count steps, and the seconds they took."""
        self._taken += steps
        self._busy_s += seconds

    def done(self) -> float:
        """Return the share spent, at most 1."""
        by_time = (time.monotonic() - self._began_s) / max(self._left_s, 1e-9)
        by_steps = self._taken / self._steps if np.isinf(self._left_s) else 0.0
        return min(max(by_time, by_steps), 1.0)

    def sketched(self) -> int:
        """Return how many moves a local search in a coarse instance should have; with a time limit, fewer if slow."""
        if np.isinf(self._left_s):
            return MOVES // 4
        return int(np.clip(SLICE_S * self._taken / max(self._busy_s, 1e-9), 1, MOVES // 4))

    def moves(self, n: int) -> int:
        """Return how many moves of a graph of n operations a local search should have; with a time limit, fewer if
        slow, and 0 if there is no time for one.
        """
        most = int(np.clip(min(SLOW // max(n, 1), self._steps // 16), 8, MOVES))
        if np.isinf(self._left_s):
            return most
        left_s = self._left_s - (time.monotonic() - self._began_s)
        rate = self._taken / max(self._busy_s, 1e-9) if self._taken else EVALUATED_PER_S / max(n, 1) / 2
        if left_s * rate < 1:
            return 0
        return int(np.clip(min(STRETCH_S * rate, left_s * rate - 1), 1 if left_s * rate < 2 * LEAST else LEAST, most))
