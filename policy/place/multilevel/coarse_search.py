"""Local search in a coarse instance of a search's problem: placements of cells, and of the operations behind them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32, Int64
from pipeline.core.graph import Grouping
from pipeline.core.placement import Placement
from policy.place.base.hierarchy import Level
from policy.place.base.search import Search
from policy.place.multilevel.coarse_instance import coarse_instance_of
from policy.place.multilevel.estimate import CoarseInstance, CoarseTrials, estimate_s, local_search
from policy.place.multilevel.moves import LevelClusters

Drawn = tuple[Int64, Int32, Int32, Int32]  # ptr, cell, device and like of `CoarseTrials`


@dataclass(frozen=True, slots=True, eq=False)
class CoarseSearch:
    """A coarse instance of a search's problem, with what leads from operations to cells and back.

    cells: operations to cells. operation: int32 [c], one of each cell. levels: their clusters, of cells.
    """

    search: Search
    instance: CoarseInstance
    cells: Grouping
    operation: Int32
    allowed: Bool
    levels: list[LevelClusters]

    @classmethod
    def of(cls, search: Search, chosen: list[Level], held: Int64 | None = None) -> CoarseSearch | None:
        """Return the coarse instance where the evaluator is a simulator of devices that work at once, else None.

        held: see `coarse_instance_of`.
        """
        problem = search.problem
        if search.execution is None or not search.execution.concurrent or problem.costs is None:
            return None
        label = np.zeros(problem.graph.n, np.int32)
        for level in chosen:  # nested levels leave their finest, others the intersection
            label = Grouping.of_labels(label.astype(np.int64) * level.k + level.groups.grouping.group).group
        instance, cells = coarse_instance_of(problem, problem.costs.op_s, label, held=held)
        operation = np.unique(cells.group, return_index=True)[1].astype(np.int32)
        levels = [LevelClusters.of(level, operation) for level in chosen]
        return cls(search, instance, cells, operation, problem.group_allowed(cells), levels)

    def devices_of(self, placement: Placement) -> Int32:
        """Return int32 [c], the device of every cell."""
        return np.ascontiguousarray(placement.device[self.operation])

    def placement(self, device: Int32) -> Placement:
        """Return the placement of the operations."""
        return Placement(device, self.search.problem.topology.names).lift(self.cells)

    def estimate_s(self, placement: Placement) -> float:
        """Return the estimated seconds of a placement."""
        return estimate_s(self.instance, self.devices_of(placement), np.inf)

    def local_search(self, start: Int32, moves: Drawn, threshold_s: Float64) -> tuple[Int32, float, Int32, float]:
        """Return (end, its seconds, best, its seconds) of moves of cells, int32 [c] each; see `estimate`."""
        return local_search(self.instance, CoarseTrials(*moves, threshold_s, self.allowed), start)
