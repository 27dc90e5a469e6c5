"""CPOP: the critical path on one device, everything else where it ends first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int64
from pipeline.shared.compiled import compiled
from policy.place.base.search import Method, Search
from policy.place.lists.listing import list_schedule
from policy.place.lists.submit import submit
from policy.place.lists.work import downward, upward, work_of

NEAR = 1e-9  # relative difference of path lengths below which they count as equal


@dataclass(frozen=True, slots=True)
class Cpop(Method):
    """Schedules operations by the length of the longest path through them.

    The operations on one longest path go to the device that runs all of them fastest, the others where they end first,
    idle time between earlier operations included.

    Source: Topcuoglu, Hariri and Wu, IEEE TPDS 13, 2002, section 4.3.
    """

    version: ClassVar[int] = 1

    def run(self, search: Search, *, seed: int) -> None:
        """Evaluate the schedule's placement; nothing is random."""
        if search.done:
            return
        work = work_of(search.problem)
        length_s = upward(work) + downward(work)
        path = _critical_path(work.order, work.out_ptr, work.out_node, length_s, NEAR)
        lost_s = np.where(work.allowed[work.group[path]], work.op_s[path], work.op_s.sum()).sum(axis=0)  # [p]
        # More than any schedule takes: only what the best device has no room for goes to another.
        bias_s = np.zeros(work.op_s.shape)
        bias_s[path] = 2 * (work.mean_s.sum() + work.out_s.sum())
        bias_s[path, np.argmin(lost_s)] = 0.0
        submit(search, work, (), (list_schedule(work, -length_s, bias_s, True, search.look),))


@compiled
def _critical_path(order: Int64, ptr: Int64, node: Int64, length_s: Float64, near: float) -> Bool:
    """Return bool [n], the operations on one path all of whose members are of the greatest length."""
    on_path = np.zeros(order.size, np.bool_)
    if order.size == 0:
        return on_path
    least_s = length_s.max() * (1.0 - near)
    i = -1
    for first in order:
        if length_s[first] >= least_s:
            i = first
            break
    while i >= 0:
        on_path[i] = True
        following = -1
        for e in range(ptr[i], ptr[i + 1]):
            if length_s[node[e]] >= least_s:
                following = node[e]
                break
        i = following
    return on_path
