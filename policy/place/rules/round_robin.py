"""The next group to the next device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from policy.place.base.search import Method, Search
from policy.place.lists.submit import submit
from policy.place.lists.work import by_position, work_of


@dataclass(frozen=True, slots=True)
class RoundRobin(Method):
    """Deals groups out to the devices in turn, in topological order; a group skips devices that must not run it."""

    version: ClassVar[int] = 1

    def run(self, search: Search, *, seed: int) -> None:
        """Evaluate the one placement; nothing is random."""
        if search.done:
            return
        work = work_of(search.problem)
        p = search.problem.topology.p
        home = np.empty(work.demand.size, np.int32)
        home[by_position(work)] = np.arange(home.size) % p
        turn = (home[:, None] + np.arange(p)) % p  # [k, p], the devices from each group's own on
        allowed = np.take_along_axis(work.allowed, turn, axis=1)
        home = turn[np.arange(home.size), allowed.argmax(axis=1)].astype(np.int32)
        submit(search, work, (home,))
