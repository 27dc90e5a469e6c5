"""The placements that an agent changes, and what it knows about each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipeline.core.arrays import Float64
from pipeline.core.errors import CyclicGraphError
from pipeline.core.placement import Placement
from policy.place.agent.rollout import Base
from policy.place.agent.schedule import Schedule
from policy.place.agent.world import World
from policy.place.lists.work import upward, work_of
from policy.place.local.anneal import ranks
from policy.place.search import Search

KEPT = 64  # placements whose timelines are remembered


class Bases:
    """Bases of one search. The timeline of a placement is asked for once, and counts as an evaluation."""

    def __init__(self, search: Search, world: World) -> None:
        self.search, self.world = search, world
        self.known: dict[bytes, tuple[float, Base]] = {}
        work = work_of(search.problem)
        self._longest_first: Float64 | None = ranks(-upward(work)) if search.problem.ordered else None

    def from_scratch(self) -> Base:
        """Return the base of placements that are made from nothing."""
        best_s = self.search.best_s if np.isfinite(self.search.best_s) else self.world.n * self.world.unit_s
        return Base(None, best_s / self.world.unit_s, order=self._longest_first)

    def drawn(self, r: int, *, elites: int, fresh: float, rng: np.random.Generator) -> list[Base]:
        """Return r bases: nothing with probability `fresh`, else one of the best, the better the likelier."""
        from_scratch = rng.random(r) < fresh
        rank = rng.geometric(0.5, r) - 1
        leaders = self.search.leaders(elites)
        return [
            self.from_scratch() if not leaders or new else self.of(*leaders[place % len(leaders)])
            for new, place in zip(from_scratch.tolist(), rank.tolist(), strict=True)
        ]

    def of(self, value_s: float, placement: Placement) -> Base:
        """Return a placement as something to change."""
        key = placement.digest()
        if key not in self.known:
            if len(self.known) >= KEPT:
                del self.known[next(iter(self.known))]
            self.known[key] = (value_s, self.made(value_s, placement, counted=True))
        return self.known[key][1]

    def made(self, value_s: float, placement: Placement, *, counted: bool) -> Base:
        """Return a new base; its timeline counts as an evaluation, or was counted before."""
        order = self._longest_first if placement.priority is None else ranks(placement.priority)
        base = Base(placement, value_s / self.world.unit_s, order=order)
        simulator = self.search.simulator
        if simulator is None or not simulator.execution.concurrent:
            return base
        timeline = self.search.timeline(placement) if counted else simulator.timeline(placement)
        if timeline is None or timeline.names != self.search.problem.graph.names:
            return base
        if placement.priority is None and order is not None:
            base = replace(base, order=ranks(timeline.start_s, timeline.end_s))
        try:
            return replace(base, schedule=Schedule.of(timeline, self.search.problem.graph, self.world))
        except CyclicGraphError:
            return base
