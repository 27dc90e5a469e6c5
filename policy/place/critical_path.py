"""The ready operation with the longest way to the end first, with the links' queues taken into account."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from policy.place.listing import list_schedule
from policy.place.search import Method, Search
from policy.place.submit import submit
from policy.place.work import contended, upward, work_of


@dataclass(frozen=True, slots=True)
class CriticalPath(Method):
    """Plans ready operations by falling upward rank, each at the end of the queue of the device where it ends first.

    Where the evaluator reckons with contention, one plan does too: a tensor leaves when its producer's device has sent
    all that was planned before, by the rules of the evaluator's level. A second plan takes links to be free of it.
    """

    version: ClassVar[int] = 1

    def run(self, search: Search, *, seed: int) -> None:
        """Evaluate the plans' placements; nothing is random."""
        if search.done:
            return
        works = contended(work_of(search.problem, semantics=search.semantics))
        key = -upward(works[0])
        plans = [list_schedule(work, key, np.zeros(work.op_s.shape), False) for work in works]
        submit(search, works[0], (), plans)
