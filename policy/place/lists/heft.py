"""HEFT: the operation with the longest way to the end first, where it ends first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pipeline.core.params import param
from policy.place.base.search import Method, Search
from policy.place.lists.listing import list_schedule
from policy.place.lists.submit import submit
from policy.place.lists.work import upward, work_of


@dataclass(frozen=True, slots=True)
class Heft(Method):
    """Schedules operations by falling upward rank, each on the device on which it ends first.

    The upward rank is the longest way to an end, with operation times averaged over the devices allowed and transfer
    times over all pairs of different devices. Links are taken to be free of contention.

    Source: Topcuoglu, Hariri and Wu, IEEE TPDS 13, 2002, section 4.1.
    """

    version: ClassVar[int] = 1

    insertion: bool = param(True, "use idle time between operations scheduled before")

    def run(self, search: Search, *, seed: int) -> None:
        """Evaluate the schedule's placement; nothing is random."""
        if search.done:
            return
        work = work_of(search.problem)
        schedule = list_schedule(work, -upward(work), np.zeros(work.op_s.shape), self.insertion, search.look)
        submit(search, work, (), (schedule,))
