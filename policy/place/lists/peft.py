"""PEFT: HEFT that looks ahead, by a table of what remains to be done behind each operation on each device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pipeline.core.arrays import Float64
from pipeline.shared.compiled import compiled
from policy.place.base.search import Method, Search
from policy.place.lists.listing import list_schedule
from policy.place.lists.submit import submit
from policy.place.lists.work import ScheduleInputs, work_of


@dataclass(frozen=True, slots=True)
class Peft(Method):
    """Schedules ready operations by what remains behind them, each where its end and what remains come out least.

    Source: Arabnejad and Barbosa, IEEE TPDS 25, 2014, section 4; means are over the devices allowed.
    """

    version: ClassVar[int] = 1

    def run(self, search: Search, *, seed: int) -> None:
        """Evaluate the schedule's placement; nothing is random."""
        if search.done:
            return
        work = work_of(search.problem)
        remains_s = optimistic(work)
        allowed = work.allowed[work.group]  # [n, p]
        mean_s = np.where(allowed, remains_s, 0.0).sum(axis=1) / np.maximum(allowed.sum(axis=1), 1)
        submit(search, work, (), (list_schedule(work, -mean_s, remains_s, True, search.look),))


@compiled
def optimistic(work: ScheduleInputs) -> Float64:
    """Return float64 [n, p], the optimistic cost table: the least time from an operation's end on a device to the end.

    Every later operation on the longest way is taken to run on the device that is best for it and what follows.

    Source: Arabnejad and Barbosa, equation 7.
    """
    n, p = work.op_s.shape
    remains_s = np.zeros((n, p))
    for at in range(n - 1, -1, -1):
        i = work.order[at]
        for e in range(work.out_ptr[i], work.out_ptr[i + 1]):
            j = work.out_node[e]
            anywhere_s = math.inf
            for d in range(p):
                if work.allowed[work.group[j], d]:
                    anywhere_s = min(anywhere_s, remains_s[j, d] + work.op_s[j, d] + work.out_s[e])
            for d in range(p):
                way_s = anywhere_s
                if work.allowed[work.group[j], d]:
                    way_s = min(way_s, remains_s[j, d] + work.op_s[j, d])
                remains_s[i, d] = max(remains_s[i, d], way_s)
    return remains_s
