"""What Baechi's placers share: operations put together before placing, and the memory they are taken to need."""

from __future__ import annotations

import numpy as np

from pipeline.core.arrays import Float64
from pipeline.core.graph import Grouping, components, sum_per_group
from pipeline.core.problem import Problem
from pipeline.core.simulation import ExecutionModel
from pipeline.shared.feasibility import feasible_grouping
from pipeline.shared.partition import join_groupings
from policy.place.lists.work import ScheduleInputs, times_of, work_of

FULL = 0.95  # share of all memory that the demand estimated beforehand may take


def fused(problem: Problem) -> Grouping:
    """Return the problem's groups, in which operations share a device that must, with costly neighbours joined.

    A producer with a single consumer joins it if sending its output takes longer, on average, than making it. An edge
    that is its producer's only one closes no cycle when it is contracted. Groups that the devices could not hold, or
    not run, are left as they were.

    Source: Jeon et al., Baechi, SoCC 2020, section 3.1: co-placement and operator fusion. Which operations of the
    forward and the backward pass belong together is taken from colocation constraints and groups.
    """
    graph = problem.graph
    if problem.topology.p == 1:
        return feasible_grouping(problem)
    producer, consumer = graph.edges
    sent_s = problem.topology.mean_transfer_s(graph.edge_bytes)
    costly = (graph.out_degree[producer] == 1) & (sent_s > times_of(problem)[1][producer])
    return holdable(problem, components(graph.n, producer[costly], consumer[costly]))


def holdable(problem: Problem, joined: Grouping) -> Grouping:
    """Return the problem's groups joined as in another grouping; what no device could hold or run stays as it was."""
    grouping = feasible_grouping(problem)
    joined = join_groupings(grouping, joined)
    largest = max(d.memory_bytes or np.inf for d in problem.topology.devices)
    kept = problem.group_allowed(joined).any(axis=1) & (sum_per_group(problem.graph.weight_bytes, joined) <= largest)
    return Grouping.of_labels(np.where(kept[joined.group], joined.group, joined.k + grouping.group))


def memory_demand(problem: Problem) -> Float64:
    """Return float64 [n], bytes each operation is taken to need to the end: its weights and its output.

    If all devices together cannot hold that, outputs count with the share that fits: some are given up on the way.
    """
    weight, out = problem.graph.weight_bytes, problem.graph.out_bytes
    memory = sum(d.memory_bytes or np.inf for d in problem.topology.devices)
    share = (FULL * memory - weight.sum()) / max(float(out.sum()), 1.0)
    demand: Float64 = weight + min(max(share, 0.0), 1.0) * out
    return demand


def baechi_work(problem: Problem, *, fuse: bool, execution: ExecutionModel | None = None) -> ScheduleInputs:
    """Return the work of a problem as Baechi's placers see it: fused, and with outputs held in memory.

    execution: whose contention and pauses to schedule for; links without contention unless given.
    """
    return work_of(
        problem, problem.derived(fused) if fuse else None, execution=execution, demand=memory_demand(problem)
    )
