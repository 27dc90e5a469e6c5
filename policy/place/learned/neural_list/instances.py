"""Problems as the constructor of `neural_list` sees them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from pipeline.core.arrays import Float64, Int64
from pipeline.core.devices import contract_costs
from pipeline.core.graph import Grouping, contract, is_acyclic, sum_per_group
from pipeline.core.problem import Instance, Problem
from pipeline.shared.feasibility import feasible_grouping
from pipeline.shared.partition import join_groupings, make_acyclic
from policy.place.base.contraction import contraction
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

JOINED = (8, 16)  # groups of the learned contraction, operations of which are scheduled one by one and share a device
NODES = (32, 128, 512, 2048)  # and groups that are scheduled as one operation each, before cycles among them are cut

# Operations in the order in which they become ready; of two at one moment that of the greater b-level.
READY_FIRST = Scores(
    np.zeros(FIGURES),
    np.array([{"parents_end": -1e3, "b_level": 1e-3}.get(name, 0.0) for name in KEY_FIGURES]),
    np.zeros((0, 0)),
)


@dataclass(frozen=True, slots=True, eq=False)
class ListInstance:
    """A problem as the constructor sees it: its work, and what scores know of it.

    handed: the work of the operations, by which schedules are handed in; the same unless what is scheduled are nodes
    of several operations. nodes: then which of them an operation is part of.
    look: called while it schedules. count: called for every schedule.
    """

    work: ScheduleInputs
    handed: ScheduleInputs
    static: StaticFeatures
    context: Float64
    nodes: Grouping | None = None
    look: Look = unhurried
    count: Callable[[], None] = unhurried

    @classmethod
    def of(cls, work: ScheduleInputs) -> ListInstance:
        """Return the instance of a problem's work."""
        return cls(work, work, scene_of(work), context_of(work))

    def on(self, search: Search, grouping: Grouping) -> ListInstance:
        """Return the instance of the same problem with other groups; what scores know of operations stays."""
        work = work_on(search, grouping)
        return replace(self, work=work, handed=work)

    def on_nodes(self, search: Search, nodes: Grouping, problem: Problem) -> ListInstance:
        """Return the instance in which nodes of several operations are scheduled; problem: that of placing these."""
        demand = _demand(search)
        of_node = None if demand is None else sum_per_group(demand, nodes)
        work = work_of(problem, execution=search.execution, demand=of_node)
        handed = work_on(search, nodes.then(feasible_grouping(problem)))
        return replace(self, work=work, handed=handed, static=scene_of(work), context=context_of(work), nodes=nodes)

    def of_operations(self, schedule: PartialSchedule) -> PartialSchedule:
        """Return a schedule as one of the operations, which begin and end with their nodes."""
        if self.nodes is None:
            return schedule
        node = self.nodes.group
        return schedule._replace(start_s=schedule.start_s[node], finish_s=schedule.finish_s[node])

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


def contracted_instances(search: Search, whole: ListInstance) -> Iterator[ListInstance]:
    """Yield a problem with groups of the learned contraction, few to many: their operations one by one, then nodes.

    whole: the problem as it is. Groups of which there are not fewer than operations are left out.
    """
    problem, known = search.problem, {whole.work.demand.size}
    for groups in JOINED:
        joined = problem.derived(contraction, groups=groups)
        if joined.k not in known:
            known.add(joined.k)
            yield whole.on(search, joined)
    for groups in NODES:
        found = problem.derived(_contracted_nodes, groups=groups)
        if found is not None and found[0].k not in known:
            known.add(found[0].k)
            yield whole.on_nodes(search, *found)


def _contracted_nodes(problem: Problem, *, groups: int) -> tuple[Grouping, Problem] | None:
    """Return nodes whose quotient is acyclic, about so many groups of the learned contraction cut where they close a
    cycle, and the problem of placing them; None if all are cut, or operations could not share devices as they must.
    """
    if not is_acyclic(problem.graph):
        return None
    nodes, must = make_acyclic(problem.graph, problem.derived(contraction, groups=groups)), feasible_grouping(problem)
    joined = join_groupings(nodes, must)
    if nodes.k == nodes.n or not problem.group_allowed(joined).any(axis=1).all():
        return None
    shared = Grouping.of_labels(joined.group[np.unique(nodes.group, return_index=True)[1]])
    coarse = contract(problem.graph, nodes)
    costs = None if problem.costs is None else contract_costs(problem.costs, coarse, nodes)
    return nodes, Problem(Instance(coarse, problem.topology, shared, costs, problem.group_allowed(nodes)))


def _demand(search: Search) -> Float64 | None:
    """Return float64 [n], bytes that operations take where memory is short, outputs too; None where it is not."""
    return search.problem.derived(memory_demand) if tight(search) else None


def work_on(search: Search, grouping: Grouping | None = None) -> ScheduleInputs:
    """Return the work of a search's problem; where memory is short, outputs take some.

    grouping: what shares a device, the problem's unless given.
    """
    return work_of(search.problem, grouping, execution=search.execution, demand=_demand(search))
