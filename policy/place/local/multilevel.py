"""Coarsen, place, refine while un-coarsening: for graphs of which only few placements can be tried."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import ClassVar

import numpy as np

from pipeline.core.arrays import Int32
from pipeline.core.errors import UsageError
from pipeline.core.graph import Grouping
from pipeline.core.params import param
from pipeline.core.placement import Placement
from pipeline.core.simulation import Moves
from policy.place.levels.estimate import Sketch, SketchTrials, estimate_s, local_search
from policy.place.levels.hierarchy import Level, hierarchy
from policy.place.levels.layers import Layers, layers_of
from policy.place.levels.moves import LevelClusters, draw
from policy.place.levels.sketch import sketch_of
from policy.place.levels.starts import starts
from policy.place.local.anneal import best_order
from policy.place.local.room import make_room
from policy.place.search import Method, Search
from policy.place.together import together

COARSE = 256  # clusters of the level that starts are made from, about
TRIED = 24  # starts that are evaluated, where an estimate tells the promising ones
MOVES = 256  # moves of one local search at most
SLOW = 3_000_000  # operations that the moves of one local search may be tried on, so that it ends soon
STRETCH_S = 1.0  # seconds that one local search may take, so that a time limit is kept
UNORDERED = 0.4  # share of that time which is left to the sketch where there are orders, for it knows none
ORDERS = (0.3, 0.5, 1.0)  # shares of what is left then after which orders are tried again
CHEAP = 8  # estimated placements per evaluation left, without a time limit
MOST = 100_000  # estimated placements without a time limit


@dataclass(frozen=True, slots=True)
class Multilevel(Method):
    """Builds levels of clusters, tries starting placements, and refines the best one from coarse clusters to fine.

    Clusters come from two sources: expensive tensors (see `hierarchy`), and, where layers are known or can be told by
    the weights that operations share, layers cut by time into 1, 2, 4, ... parts. Starting placements are whole (see
    `starts`). A move sends a cluster to the device of a cluster it shares tensors with, or to any device; the clusters
    become smaller, and what a move may cost less, as time goes by.

    Where the evaluator is a simulator of devices that work at once, placements are first refined in a sketch, which is
    coarser and several times quicker (see `sketch`), and the evaluator judges what comes out; then, and everywhere
    else, moves are judged by the evaluator itself on the whole graph. Where placements may carry priorities, it begins
    in the best of several orders (see `anneal`), and so again when some of the time is spent.

    With a time limit, `workers` local searches, of different seeds, refine at the same time; all go on from the best.

    Source: the scheme is that of Karypis and Kumar, A Fast and High Quality Multilevel Scheme for Partitioning
    Irregular Graphs, SIAM Journal on Scientific Computing 20(1), 1998, with predicted time in place of the cut.
    """

    version: ClassVar[int] = 6

    finest: int = param(2048, "clusters of the finest level that is moved; 0: the problem's groups")
    heat: float = param(0.01, "share of the best time by which a move may be slower in the beginning, on average")
    near: float = param(0.75, "share of moves to the device of a neighbour")
    sketched: float = param(0.7, "share of the time that is spent on the sketch; 0 for none")
    patience: int = param(20, "stop after so many local searches without a move that was new")
    workers: int = param(1, "with a time limit, local searches at the same time, each on a thread")

    def __post_init__(self) -> None:
        shares = 0 <= self.near <= 1 and 0 <= self.sketched <= 1
        if self.finest < 0 or self.heat < 0 or not shares or min(self.patience, self.workers) < 1:
            raise UsageError(
                f"{self} has a negative level or heat, a share outside [0, 1], no patience or no worker.",
                "Use a level and a heat of at least 0, shares from 0 to 1, a patience and workers of at least 1.",
            )

    def run(self, search: Search, *, seed: int) -> None:
        """Try the starts, then search until the budget ends or nothing new is met."""
        if search.done:
            return
        problem, rng = search.problem, np.random.default_rng(seed)
        levels = hierarchy(problem, least=problem.topology.p)
        layers = layers_of(levels)
        chosen = self._chosen(levels, layers)
        rough = Rough.of(search, chosen) if self.sketched else None
        near_goal = [min(levels, key=lambda level: abs(np.log(level.k / goal))) for goal in (COARSE, 4 * COARSE)]
        first = _try(search, starts(list(dict.fromkeys(near_goal)), layers), rough)
        if search.best is None:
            make_room(search, seed=seed)
        skip = 0
        if rough is not None and search.best is not None:
            self._at_once(search, partial(self._sketch, begun=search.best, rough=rough), rng)
            skip = len(chosen) // 2
        for share in ORDERS if problem.ordered else (1.0,):
            placement = search.best or first
            seconds = share * search.left_s if np.isfinite(search.left_s) else None
            with search.limited(search.author, evaluations=math.ceil(share * search.left), seconds=seconds):
                if problem.ordered and not search.done:
                    placement = best_order(search, placement)
                self._at_once(search, partial(self._refine, placement=placement, chosen=chosen, skip=skip), rng)

    def _at_once(self, search: Search, part: Callable[..., None], rng: np.random.Generator) -> None:
        """Call part(search, rng=...) as often as there are workers, at the same time; once without a time limit.

        Once, too, where the evaluator is no simulator.
        """
        if self.workers == 1 or search.simulator is None or not np.isfinite(search.left_s) or search.done:
            part(search, rng=rng)
        else:
            seeded = [partial(part, rng=child) for child in rng.spawn(self.workers)]
            together(search, seeded, workers=self.workers)

    def _chosen(self, levels: tuple[Level, ...], layers: Layers | None) -> list[Level]:
        """Return the levels whose clusters are moved, coarse to fine."""
        finest = self.finest or levels[0].k
        chosen = [level for level in levels if level.k <= finest] or [levels[-1]]
        parts = 1
        while layers is not None and layers.count * parts <= finest:
            chosen.append(layers.level(parts))
            parts *= 2
        return sorted(chosen, key=lambda level: level.k)

    def _sketch(self, search: Search, *, begun: Placement, rough: Rough, rng: np.random.Generator) -> None:
        """Anneal in the sketch, and have the evaluator judge the best placement of each local search."""
        share = self.sketched * (UNORDERED if search.problem.ordered else 1.0)
        clock = PartClock.of(search, share, min(CHEAP * search.left, MOST))
        placement, best_s, count = rough.devices_of(begun), np.inf, MOVES // 4
        while (done := clock.done()) < 1 and not search.done:
            moves = draw(_upto(rough.levels, done), count, search.problem.topology.p, self.near, rng)
            threshold_s = self.heat * (1 - done) ** 2 * search.best_s * rng.exponential(1.0, count)
            trials = SketchTrials(*moves, threshold_s, rough.allowed)
            began_s = time.monotonic()
            placement, end_s, met, met_s = local_search(rough.sketch, trials, placement)
            clock.tick(count, time.monotonic() - began_s)
            if met_s < best_s:
                best, best_s = met, met_s
                search.evaluate([rough.placement(met)])
            elif end_s > best_s * (1 + 3 * self.heat * (1 - done)):
                placement = best

    def _refine(
        self, search: Search, *, placement: Placement, chosen: list[Level], skip: int, rng: np.random.Generator
    ) -> None:
        """Anneal with the evaluator; skip: how many of the levels are left behind from the beginning.

        A local search without a move that was new is taken for a sign that the next level's turn has come.
        """
        levels = [LevelClusters.of(level, np.arange(search.problem.graph.n, dtype=np.int32)) for level in chosen]
        clock = PartClock.of(search, 1.0, search.left)
        idle = 0
        while not search.done and idle < self.patience:
            done = max(clock.done(), (skip + 0.5) / len(levels))
            count = clock.moves(search.problem.graph.n)
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
            if local_search.end_s > search.best_s * (1 + 3 * self.heat * (1 - done)):
                placement = search.best or placement


def _try(search: Search, begun: Iterator[Placement], rough: Rough | None) -> Placement:
    """Have starts evaluated, those of least estimate, or else as many as a fourth of the budget; return the first.

    Not all are held at once: of a million operations, hundreds would fill the memory.
    """
    if rough is None:
        tried = list(islice(begun, max(search.left // 4, 8)))
    else:
        least: list[tuple[float, int, Placement]] = []
        for i, placement in enumerate(begun):
            least = sorted([*least, (rough.estimate_s(placement), i, placement)], key=lambda entry: entry[:2])[:TRIED]
        tried = [placement for _, _, placement in least]
    for placement in tried:
        if not search.done:
            search.evaluate([placement])
    return tried[0]


def _upto(levels: list[LevelClusters], done: float) -> list[LevelClusters]:
    """Return the levels that are in use when a share of the budget is spent: ever more, coarse to fine."""
    return levels[: min(int(done * len(levels)), len(levels) - 1) + 1]


@dataclass(frozen=True, slots=True, eq=False)
class Rough:
    """A sketch of a search's problem, with what leads from operations to cells and back.

    cells: operations to cells. operation: int32 [c], one of each cell. levels: their clusters, of cells.
    """

    search: Search
    sketch: Sketch
    cells: Grouping
    operation: Int32
    allowed: np.ndarray[tuple[int, int], np.dtype[np.bool_]]
    levels: list[LevelClusters]

    @classmethod
    def of(cls, search: Search, chosen: list[Level]) -> Rough | None:
        """Return the sketch of a search whose evaluator is a simulator of devices that work at once, else None."""
        problem = search.problem
        if search.execution is None or not search.execution.concurrent or problem.costs is None:
            return None
        label = np.zeros(problem.graph.n, np.int32)
        for level in chosen:  # nested levels leave their finest, others the intersection
            label = Grouping.of_labels(label.astype(np.int64) * level.k + level.units.grouping.group).group
        sketch, cells = sketch_of(problem, problem.costs.op_s, label)
        operation = np.unique(cells.group, return_index=True)[1].astype(np.int32)
        levels = [LevelClusters.of(level, operation) for level in chosen]
        return cls(search, sketch, cells, operation, problem.group_allowed(cells), levels)

    def devices_of(self, placement: Placement) -> Int32:
        """Return int32 [c], the device of every cell."""
        return np.ascontiguousarray(placement.device[self.operation])

    def placement(self, device: Int32) -> Placement:
        """Return the placement of the operations."""
        return Placement(device, self.search.problem.topology.names).lift(self.cells)

    def estimate_s(self, placement: Placement) -> float:
        """Return the estimated seconds of a placement."""
        return estimate_s(self.sketch, self.devices_of(placement), np.inf)


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

    def moves(self, n: int) -> int:
        """Return how many moves of a graph of n operations a local search should have; with a time limit, fewer if
        slow.
        """
        most = int(np.clip(min(SLOW // max(n, 1), self._steps // 16), 8, MOVES))
        if np.isinf(self._left_s):
            return most
        if self._taken == 0:
            return 8
        left_s = self._left_s - (time.monotonic() - self._began_s)
        return int(np.clip(min(STRETCH_S, left_s) * self._taken / max(self._busy_s, 1e-9), 4, most))
