"""m-SCT: m-ETF in which a device waits for the favourite child of what it ran last."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int64
from pipeline.core.params import param
from pipeline.shared.compiled import compiled
from policy.place.base.search import Method, Search
from policy.place.lists.baechi import baechi_work
from policy.place.lists.etf import earliest_first, static_level
from policy.place.lists.submit import submit
from policy.place.lists.work import ScheduleInputs

SOLVING = 0.3  # share of the time left that the linear program may take
TIMED_OUT = 1  # the status of a linear program that reached its limit


@dataclass(frozen=True, slots=True)
class MSct(Method):
    """Schedules like m-ETF, but a device waits for the favourite child of its last operation.

    Each operation has at most one favourite child and is the favourite of at most one producer. A linear program finds
    them, which minimises the makespan on endless devices, where x of an edge is the share of its transfer that is paid:
    favourites are the edges of small x. For more edges than `edges` between groups, whose program would take too long,
    edges become favourites by falling transfer time as long as both ends are free. The device waits no longer than the
    output would need to arrive elsewhere.

    Source: Jeon et al., Baechi, SoCC 2020, section 3.2, after Hanen and Munier, 1995; solved by HiGHS.
    """

    version: ClassVar[int] = 2

    threshold: float = param(
        0.1, "an edge whose x is at most this leads to a favourite child; below 0.5", within="[0, 0.5)"
    )
    edges: int = param(20_000, "edges between groups up to which the linear program is solved")
    fuse: bool = param(True, "join producers to their only consumer where sending costs more than computing")

    def run(self, search: Search, *, seed: int) -> None:
        """Evaluate the schedule's placement; nothing is random."""
        if search.done:
            return
        work = baechi_work(search.problem, fuse=self.fuse)
        favourite = self._favourites(work, SOLVING * search.left_s)
        submit(search, work, (), (earliest_first(work, static_level(work), favourite, search.look),))

    def _favourites(self, work: ScheduleInputs, seconds: float = math.inf) -> Int64:
        """Return int64 [n], the favourite child of each operation, -1 for none; seconds: for the linear program."""
        producer = np.repeat(np.arange(work.order.size), np.diff(work.out_ptr))
        apart = (work.group[producer] != work.group[work.out_node]) & work.counts[producer]
        paid = relaxed(work, producer, apart, seconds) if 0 < apart.sum() <= self.edges else None
        if paid is None:
            first = np.argsort(-work.out_s, kind="stable")
            return paired(work.order.size, producer, work.out_node, first, apart)
        return paired(work.order.size, producer, work.out_node, np.argsort(paid, kind="stable"), paid <= self.threshold)


def relaxed(work: ScheduleInputs, producer: Int64, apart: Bool, seconds: float = math.inf) -> Float64 | None:
    """Return float64 [m], x of each edge in [0, 1], 2 where it is not `apart`; None if the solver gives up in time.

    Minimises w where operations i of p_i seconds start at s_i: s_i + p_i + c_ij x_ij <= s_j along each edge,
    s_i + p_i <= w, and of the edges that leave an operation, and of those that enter one, at most one goes without
    transfer: their x sum to at least their number less one.

    Source: Hanen and Munier, An approximation algorithm for scheduling dependent tasks on m processors with small
    communication delays, 1995.
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_array, vstack

    n, crossing = work.order.size, np.flatnonzero(apart)
    m, x = work.out_node.size, n + np.arange(crossing.size)
    unit_s = float(work.mean_s.mean()) or 1.0
    width, one = n + crossing.size + 1, np.ones(m)
    row = np.concatenate([np.arange(m), np.arange(m), crossing])
    column = np.concatenate([producer, work.out_node, x])
    along = coo_array((np.concatenate([one, -one, work.out_s[crossing] / unit_s]), (row, column)), (m, width))
    row = np.repeat(np.arange(n), 2)
    column = np.stack([np.arange(n), np.full(n, width - 1)], axis=1).reshape(-1)
    within = coo_array((np.tile([1.0, -1.0], n), (row, column)), (n, width))
    blocks, limits = [along, within], [-work.mean_s[producer] / unit_s, -work.mean_s / unit_s]
    for end in (producer[crossing], work.out_node[crossing]):
        blocks.append(coo_array((-np.ones(crossing.size), (end, x)), (n, width)))
        limits.append(1.0 - np.bincount(end, minlength=n).astype(np.float64))
    upper = np.concatenate([np.full(n, np.inf), np.ones(crossing.size), [np.inf]])
    goal = np.zeros(width)
    goal[-1] = 1.0
    bounds = np.stack([np.zeros(width), upper], axis=1)
    answer = linprog(
        goal,
        A_ub=vstack(blocks, format="csr"),
        b_ub=np.concatenate(limits),
        bounds=bounds,
        method="highs",
        options={"time_limit": max(seconds, 0.0)} if math.isfinite(seconds) else {},
    )
    if answer.status == TIMED_OUT:
        return None
    if answer.x is None:
        return None
    paid = np.full(m, 2.0)
    paid[crossing] = answer.x[x]
    return paid


@compiled
def paired(n: int, producer: Int64, consumer: Int64, order: Int64, chosen: Bool) -> Int64:
    """Return int64 [n], the favourite child of each operation, -1 for none.

    The edges that are chosen, bool [m], are taken in `order`, int64 [m], if neither end is taken.
    """
    child, parent = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    for e in order:
        i, j = producer[e], consumer[e]
        if chosen[e] and child[i] < 0 and parent[j] < 0:
            child[i], parent[j] = j, i
    return child
