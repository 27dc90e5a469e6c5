"""m-ETF: ETF within memory, after fusion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pipeline.core.params import param
from policy.place.baechi import baechi_work
from policy.place.etf import earliest_first, no_favourites, static_level
from policy.place.search import Method, Search
from policy.place.submit import submit


@dataclass(frozen=True, slots=True)
class MEtf(Method):
    """Plans the operation and device that can start first; a device without room for a group is no candidate for it.

    Source: Jeon et al., Baechi, SoCC 2020, section 3.2; links are free of contention there too.
    """

    version: ClassVar[int] = 1

    fuse: bool = param(True, "join producers to their only consumer where sending costs more than computing")

    def run(self, search: Search, *, seed: int) -> None:
        """Evaluate the plan's placement; nothing is random."""
        if search.done:
            return
        work = baechi_work(search.problem, fuse=self.fuse)
        submit(search, work, (), (earliest_first(work, static_level(work), no_favourites(work)),))
