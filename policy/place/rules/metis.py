"""METIS partitions of the groups, one part per device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pipeline.core.arrays import Float64, Int32
from pipeline.core.graph import Grouping, contract, sum_per_group
from pipeline.core.params import param
from pipeline.shared.partition import metis_parts
from policy.place.base.search import Method, Search
from policy.place.lists.submit import submit
from policy.place.lists.work import ScheduleInputs, work_of


@dataclass(frozen=True, slots=True)
class Metis(Method):
    """Cuts the groups into as many parts as devices so that few bytes cross, blind to directions and to waiting.

    One placement balances the time of operations alone, as papers that compare with METIS do; a second balances time
    and memory (weights and outputs) together. Heavy parts choose their devices first, each the one still free on which
    it takes least time. Without pymetis, which has no wheel for Windows, this ends in an error when it is asked for by
    its name, so that no comparison holds another method under it; the portfolio leaves it out.

    Source: Karypis and Kumar, A Fast and High Quality Multilevel Scheme for Partitioning Irregular Graphs, 1998.
    """

    version: ClassVar[int] = 1

    balance: float = param(1.05, "heaviest part over the mean", within="[1, inf)")

    def run(self, search: Search, *, seed: int) -> None:
        """Evaluate both placements."""
        if search.done:
            return
        problem, work = search.problem, work_of(search.problem)
        grouping = Grouping(work.group.astype(np.int32))
        graph = contract(problem.graph, grouping)
        time_s = _positive(sum_per_group(work.mean_s, grouping))
        memory = _positive(graph.weight_bytes + graph.out_bytes)
        homes = []
        for second in (None, memory):
            part = metis_parts(
                graph,
                problem.topology.p,
                node_weight=time_s,
                second_weight=second,
                edge_weight=graph.edge_bytes,
                balance=self.balance,
                seed=seed,
            )
            homes.append(_devices_of_parts(work, part)[part])
        submit(search, work, homes)


def _positive(amount: Float64 | np.ndarray) -> Float64:
    """Return the amounts with 1 % of their mean added, so that groups without any are not all put together."""
    total = float(amount.sum())
    return amount + 0.01 * total / amount.size if total > 0 else np.ones(amount.shape)


def _devices_of_parts(work: ScheduleInputs, part: Int32) -> Int32:
    """Return int32 [parts], a device of its own for each part; part: int32 [k]."""
    parts, p = int(part.max()) + 1, work.room.size
    time_s = np.zeros((parts, p))
    # A group that is not allowed on a device counts so much there that as few as possible are sent there.
    np.add.at(time_s, part, np.where(work.allowed, work.group_s, work.group_s.sum() + 1.0))
    device, free = np.full(parts, -1, np.int32), np.ones(p, bool)
    for i in np.argsort(-time_s.min(axis=1), kind="stable"):
        device[i] = np.where(free, time_s[i], np.inf).argmin()
        free[device[i]] = False
    return device
