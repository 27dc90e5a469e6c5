"""No coarsening."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pipeline.core.graph import Graph, Grouping


@dataclass(frozen=True, slots=True)
class Identity:
    """Leaves every operation alone."""

    version: ClassVar[int] = 1
    seeded: ClassVar[bool] = False
    acyclic: ClassVar[bool] = True

    def coarsen(self, graph: Graph, *, seed: int) -> Grouping:
        """Return every operation as its own group."""
        return Grouping.identity(graph.n)
