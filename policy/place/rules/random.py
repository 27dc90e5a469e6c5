"""Placements drawn at random: what a method that learns must beat at equal budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pipeline.core.params import param
from pipeline.core.placement import Placement
from pipeline.shared.feasibility import feasible_grouping
from policy.place.base.search import Method, Search


@dataclass(frozen=True, slots=True)
class Random(Method):
    """Draws a device for each group, uniformly among those allowed."""

    version: ClassVar[int] = 1

    batch: int = param(16, "placements drawn at a time", within="[1, inf)")
    patience: int = param(20, "stop after so many batches without a placement that is new", within="[1, inf)")

    def run(self, search: Search, *, seed: int) -> None:
        """Return the best placements drawn."""
        problem = search.problem
        rng = np.random.default_rng(seed)
        grouping = feasible_grouping(problem)
        allowed = problem.group_allowed(grouping)
        idle = 0
        while not search.done and idle < self.patience:
            spent = search.spent
            draws = np.where(allowed, rng.random((self.batch, *allowed.shape)), -1.0).argmax(axis=2)  # [batch, k]
            search.evaluate([Placement(draw, problem.topology.names).lift(grouping) for draw in draws])
            idle = idle + 1 if search.spent == spent else 0
