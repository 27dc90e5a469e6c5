"""What the runtime runs as one kernel stays together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pipeline.core.errors import UsageError
from pipeline.core.graph import Graph, Grouping
from pipeline.shared.partition import make_acyclic


@dataclass(frozen=True, slots=True)
class Fuse:
    """Groups the operations that the CPU runtime compiled into one kernel.

    A cut through a kernel costs its fusion. An operation whose kernel is not known stays alone: constants, which the
    runtime folds away, and in most models Parameters. A kernel that leaves the graph and comes back, which would make
    the quotient cyclic, is cut.
    """

    version: ClassVar[int] = 1
    seeded: ClassVar[bool] = False
    acyclic: ClassVar[bool] = True

    def coarsen(self, graph: Graph, *, seed: int) -> Grouping:
        """Return one group per kernel.

        Raises:
            UsageError: no operation has a kernel.
        """
        known = graph.kernel >= 0
        if graph.n and not known.any():
            raise UsageError(
                "coarsen.fuse needs the kernels of a compiled model; this graph has none.",
                "Use fuse on a model that a device can compile, or remove fuse from coarsen.use.",
            )
        return make_acyclic(graph, Grouping.of_labels(np.where(known, graph.kernel, graph.n + np.arange(graph.n))))
