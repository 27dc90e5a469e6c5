"""The ready operation with the longest way to the end first, with the links' queues taken into account."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from policy.place.base.search import Method, Search
from policy.place.lists.baechi import fused
from policy.place.lists.listing import list_schedule
from policy.place.lists.submit import submit
from policy.place.lists.work import contended, upward, work_of


@dataclass(frozen=True, slots=True)
class CriticalPath(Method):
    """Schedules ready operations by falling upward rank, each at the end of the queue of the device where it ends
    first.

    Where the evaluator has contention, one schedule has it too: a tensor leaves when its producer's device has sent
    all that was scheduled before, by the rules of the evaluator's level. A second schedule takes links to be free of
    it, and a third, without it, places neighbours as one whose tensors cost more than their producers (`fused`).
    """

    version: ClassVar[int] = 1

    def run(self, search: Search, *, seed: int) -> None:
        """Evaluate the schedules' placements; nothing is random."""
        if search.done:
            return
        whole = work_of(search.problem, execution=search.execution)
        joined = work_of(search.problem, search.problem.derived(fused), execution=search.execution)
        for work in (*contended(whole), joined):
            schedule = list_schedule(work, -upward(work), np.zeros(work.op_s.shape), False, search.look)
            submit(search, work, (), (schedule,))
