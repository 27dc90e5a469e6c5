"""Groups placed one after another by their costs, then moved one by one as long as that helps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32
from pipeline.core.devices import CostTable, contract_costs
from pipeline.core.graph import Graph, Grouping, adjacency, contract
from pipeline.core.params import param
from pipeline.core.placement import Placement
from pipeline.core.problem import Problem
from pipeline.shared.feasibility import feasible_grouping
from pipeline.shared.graphs import visit_order
from policy.place.base.groups import mostly_on
from policy.place.base.search import Method, Search


@dataclass(frozen=True, slots=True)
class Greedy(Method):
    """Builds two placements from the costs and climbs from the best one seen.

    Both builders take the groups in topological order. One gives each group the device that adds least to the sum of
    operation and transfer times, which is what a runtime costs that runs sub-models one after another; the other the
    device that finishes it first when devices run side by side (Topcuoglu et al., HEFT, IEEE TPDS 13, 2002, section
    4.2, with topological instead of upward rank). Without costs there is nothing to build from.

    Climbing tries, group by group, the heaviest first, every other device for the group, and keeps the best if it is
    better. It ends when a whole pass changed nothing.
    """

    version: ClassVar[int] = 1

    passes: int = param(100, "passes over all groups at most; 0 only builds")

    def run(self, search: Search, *, seed: int) -> None:
        """Return the best placements seen; nothing is random."""
        problem = search.problem
        groups = GroupedProblem.of(problem)
        names = problem.topology.names
        built = [mostly_on(problem, device) for device in range(problem.topology.p)]
        if groups.costs is not None:
            built += [
                Placement(build(groups, groups.costs, side_by_side=on), names).lift(groups.grouping)
                for on in (False, True)
            ]
        search.evaluate(built)
        # The start of a problem may split groups; moves of whole groups lead on from there all the same.
        heaviest_first = np.argsort(-groups.weight, kind="stable").tolist()
        for _ in range(self.passes):
            before_s = search.best_s
            for g in heaviest_first:
                if search.done or search.best is None:
                    return
                device = search.best.device
                members = groups.grouping.group == g
                moves = [
                    Placement(np.where(members, d, device), search.best.devices)
                    for d in np.flatnonzero(groups.allowed[g]).tolist()
                    if np.any(device[members] != d)
                ]
                search.evaluate(moves)  # remembers the best by itself
            if search.best_s >= before_s:
                return


@dataclass(frozen=True, slots=True, eq=False)
class GroupedProblem:
    """A problem seen by groups.

    grouping: the problem's, with groups taken apart that have no device in common. graph: its quotient, k nodes.
    costs: seconds per group and device, or None. allowed: bool [k, p]. weight: float64 [k], mean seconds, else FLOPs.
    """

    problem: Problem
    grouping: Grouping
    graph: Graph
    costs: CostTable | None
    allowed: Bool
    weight: Float64

    @classmethod
    def of(cls, problem: Problem) -> GroupedProblem:
        """Return the groups of a problem."""
        grouping = feasible_grouping(problem)
        graph = contract(problem.graph, grouping)
        allowed = problem.group_allowed(grouping)
        if problem.costs is None:
            return cls(problem, grouping, graph, None, allowed, graph.flops)
        costs = contract_costs(problem.costs, graph, grouping)
        weight = np.where(costs.supported, costs.op_s, 0.0).sum(axis=1) / np.maximum(costs.supported.sum(axis=1), 1)
        return cls(problem, grouping, graph, costs, allowed, weight)


def build(groups: GroupedProblem, costs: CostTable, *, side_by_side: bool) -> Int32:
    """Return int32 [k], each group's device, chosen in topological order.

    side_by_side: choose the earliest finish on devices that run at once, instead of the least time added.
    A device that is full is taken only if every allowed one is.
    """
    graph, topology = groups.graph, groups.problem.topology
    # (ptr, producers, bytes): what arrives at group g lies between ptr[g] and ptr[g + 1]
    ptr, producers = adjacency(graph, reverse=True)
    by_consumer = np.argsort(graph.edges[1], kind="stable")  # the order in which adjacency lists producers
    tensor_bytes = graph.edge_bytes[by_consumer].astype(np.float64)
    room = np.array([d.memory_bytes or math.inf for d in topology.devices])
    device = np.full(graph.n, -1, np.int32)
    finish_s, free_s = np.zeros(graph.n), np.zeros(topology.p)
    for g in visit_order(graph).tolist():
        arriving = slice(ptr[g], ptr[g + 1])
        before, size = producers[arriving], tensor_bytes[arriving]
        placed = device[before] >= 0  # on a cycle a producer may come later
        before, size = before[placed], size[placed]
        source = device[before]
        transfer_s = topology.link_latency_s[source] + size[:, None] / topology.link_bytes_per_s[source]  # [e, p]
        if side_by_side:
            ready_s = (finish_s[before][:, None] + transfer_s).max(axis=0, initial=0.0)
            price_s = np.maximum(ready_s, free_s) + costs.op_s[g]
        else:
            price_s = transfer_s.sum(axis=0) + costs.op_s[g]
        fits = groups.allowed[g] & (room >= graph.weight_bytes[g])
        usable = fits if fits.any() else groups.allowed[g]
        chosen = int(np.where(usable, np.minimum(price_s, np.finfo(np.float64).max), np.inf).argmin())
        device[g] = chosen
        finish_s[g] = free_s[chosen] = price_s[chosen]
        room[chosen] -= graph.weight_bytes[g]
    return device
