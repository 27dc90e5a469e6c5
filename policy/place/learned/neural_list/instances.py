"""Problems as the constructor of `neural_list` sees them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from pipeline.core.arrays import Float64, Int64
from pipeline.core.graph import Grouping
from policy.place.base.search import Look, Search, unhurried
from policy.place.learned.neural_list.constructing import (
    FIGURES,
    KEY_FIGURES,
    Decisions,
    Scores,
    StaticFeatures,
    constructed,
)
from policy.place.learned.neural_list.static_features import context_of, scene_after, scene_of
from policy.place.lists.baechi import fused, memory_demand
from policy.place.lists.listing import PartialSchedule
from policy.place.lists.work import ScheduleInputs, work_of
from policy.place.local.room import tight

# Operations in the order in which they become ready; of two at one moment that of the greater b-level.
READY_FIRST = Scores(
    np.zeros(FIGURES),
    np.array([{"parents_end": -1e3, "b_level": 1e-3}.get(name, 0.0) for name in KEY_FIGURES]),
    np.zeros((0, 0)),
)


@dataclass(frozen=True, slots=True, eq=False)
class ListInstance:
    """A problem as the constructor sees it: its work, and what scores know of it.

    look: called while it schedules. count: called for every schedule.
    """

    work: ScheduleInputs
    static: StaticFeatures
    context: Float64
    look: Look = unhurried
    count: Callable[[], None] = unhurried

    @classmethod
    def of(cls, work: ScheduleInputs) -> ListInstance:
        """Return the instance of a problem's work."""
        return cls(work, scene_of(work), context_of(work))

    def on(self, search: Search, grouping: Grouping) -> ListInstance:
        """Return the instance of the same problem with other groups; what scores know of operations stays."""
        return replace(self, work=work_on(search, grouping))

    def schedule(self, scores: Scores, *, width: int = 1, before: Int64 | None = None) -> PartialSchedule:
        """Return the schedule that scores lead to; before: int64 [n], devices of a schedule before, which they see."""
        n, p = self.work.op_s.shape
        static = self.static if before is None else scene_after(self.work, self.static, before)
        decisions = Decisions(np.zeros(0, np.int64), np.zeros((0, p, FIGURES)), np.full(n, -1, np.int64))
        self.count()
        return constructed(self.work, static, scores, decisions, width=width, look=self.look)

    def recorded(
        self, scores: Scores, *, width: int = 1, device: Int64 | None = None
    ) -> tuple[PartialSchedule, Decisions]:
        """Return the schedule that scores lead to, and its decisions; device: int64 [n], where operations must go."""
        n, p = self.work.op_s.shape
        given = np.zeros(0, np.int64) if device is None else device
        decisions = Decisions(given, np.full((n, p, FIGURES), np.nan), np.full(n, -1, np.int64))
        self.count()
        return constructed(self.work, self.static, scores, decisions, width=width, look=self.look), decisions

    def replayed_s(self, device: Int64) -> float:
        """Return when all ends if operations, on devices int64 [n], run in the order in which they become ready."""
        n, p = self.work.op_s.shape
        decisions = Decisions(device, np.zeros((0, p, FIGURES)), np.full(n, -1, np.int64))
        self.count()
        schedule = constructed(self.work, self.static, READY_FIRST, decisions, look=self.look)
        return float(schedule.finish_s.max(initial=0.0))


def list_instances(search: Search) -> list[ListInstance]:
    """Return the problem as it is, and with neighbours joined if any are."""
    whole, joined = work_on(search), search.problem.derived(fused)

    counting = threading.Lock()  # schedules may be made on several threads

    def count() -> None:
        with counting:
            search.planned += 1

    works = [whole, *([work_on(search, joined)] if joined.k < whole.demand.size else [])]
    return [replace(ListInstance.of(work), look=search.look, count=count) for work in works]


def work_on(search: Search, grouping: Grouping | None = None) -> ScheduleInputs:
    """Return the work of a search's problem; where memory is short, outputs take some.

    grouping: what shares a device, the problem's unless given.
    """
    demand = search.problem.derived(memory_demand) if tight(search) else None
    return work_of(search.problem, grouping, execution=search.execution, demand=demand)
