"""m-TOPO: groups in topological order, each device filled in turn to its share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pipeline.core.graph import Grouping, sum_per_group
from pipeline.core.params import param
from policy.place.base.search import Method, Search
from policy.place.lists.baechi import baechi_work
from policy.place.lists.submit import submit
from policy.place.lists.work import by_position, shares, speeds


@dataclass(frozen=True, slots=True)
class MTopo(Method):
    """Fills one device after another in topological order, each up to its share.

    One placement shares out the memory that groups need (weights and outputs), as Baechi does, in proportion to what
    devices hold; a second one memory and time, whichever of the two is the greater part of its sum.

    Source: Jeon et al., Baechi, SoCC 2020, section 3.2.
    """

    version: ClassVar[int] = 1

    fuse: bool = param(True, "join producers to their only consumer where sending costs more than computing")

    def run(self, search: Search, *, seed: int) -> None:
        """Evaluate the placements; nothing is random."""
        if search.done:
            return
        work = baechi_work(search.problem, fuse=self.fuse)
        order, speed = by_position(work), speeds(work)
        limited = bool(np.isfinite(work.room).all())
        hold = np.where(speed > 0, work.room if limited else 1.0, 0.0)
        memory = work.demand / max(float(work.demand.sum()), 1.0)
        time = sum_per_group(work.mean_s, Grouping(work.group.astype(np.int32)))
        both = np.maximum(memory, time / (float(time.sum()) or 1.0))
        homes = [np.empty(order.size, np.int32) for _ in range(2)]
        homes[0][order] = shares(memory[order], hold)
        homes[1][order] = shares(both[order], speed)
        submit(search, work, homes)
