"""m-ETF: ETF within memory, after fusion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pipeline.core.params import param
from policy.place.base.search import Method, Search
from policy.place.lists.baechi import baechi_work
from policy.place.lists.etf import earliest_first, no_favourites, static_level
from policy.place.lists.submit import submit
from policy.place.lists.work import contended


@dataclass(frozen=True, slots=True)
class MEtf(Method):
    """Schedules the operation and device that can start first; a device without room for a group is no candidate for
    it.

    Where the evaluator uses contention, one schedule does too, and a second does not, see `critical_path`.

    Source: Jeon et al., Baechi, SoCC 2020, section 3.2, where links are free of contention.
    """

    version: ClassVar[int] = 2

    fuse: bool = param(True, "join producers to their only consumer where sending costs more than computing")

    def run(self, search: Search, *, seed: int) -> None:
        """Evaluate the schedules' placements; nothing is random."""
        if search.done:
            return
        works = contended(baechi_work(search.problem, fuse=self.fuse, execution=search.execution))
        for work in works:
            schedule = earliest_first(work, static_level(work), no_favourites(work), search.look)
            submit(search, works[0], (), (schedule,))
