"""What list schedulers work on: operations, edges and devices as arrays, heaps, and the ranks of operations."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32, Int64
from pipeline.core.graph import Grouping, row_ptr, sum_per_group
from pipeline.core.problem import Problem
from pipeline.core.simulation import T0, ExecutionModel
from pipeline.shared.feasibility import feasible_grouping
from pipeline.shared.graphs import least_index_first, longest_paths, visit_order

NOMINAL_FLOPS_PER_S = 1e12  # what every device is taken to do where no costs are known
ENDLESS_S = 1e15  # what an operation is taken to cost where it is not supported


class ScheduleInputs(NamedTuple):
    """What list schedulers schedule: n operations in k groups that read t tensors of one another, and p devices.

    A tensor that is read by several is read along an edge of its own to each; edges that close a cycle are left out.

    order: int64 [n], producers first, else by index. counts: bool [n], whether an operation is scheduled itself.
    out_ptr: int64 [n + 1], out_node: int64 [m], out_bytes: float64 [m], what each operation feeds; in_*: what it reads.
    in_tensor: int64 [m], which tensor that is.
    op_s: float64 [n, p], seconds. group_s: float64 [k, p], their sums. mean_s: float64 [n], over allowed devices.
    out_s, in_s: float64 [m], mean seconds of a transfer over all pairs of devices, by out_ptr and in_ptr.
    group: int64 [n]. allowed: bool [k, p]. demand: float64 [k], bytes a group takes of room: float64 [p], inf for any.
    latency_s, per_byte_s: float64 [p, p]. level: T0, T1 or T2. block_s, gap_s: see `ExecutionModel`.
    """

    order: Int64
    counts: Bool
    out_ptr: Int64
    out_node: Int64
    out_bytes: Float64
    in_ptr: Int64
    in_node: Int64
    in_bytes: Float64
    in_tensor: Int64
    op_s: Float64
    group_s: Float64
    mean_s: Float64
    out_s: Float64
    in_s: Float64
    group: Int64
    allowed: Bool
    demand: Float64
    room: Float64
    latency_s: Float64
    per_byte_s: Float64
    level: int
    block_s: float
    gap_s: float


def work_of(
    problem: Problem,
    grouping: Grouping | None = None,
    *,
    execution: ExecutionModel | None = None,
    demand: Float64 | None = None,
) -> ScheduleInputs:
    """Return the work of a problem, which nobody may change: of the problem's own grouping it is made once.

    grouping: what shares a device, the problem's unless given. execution: whose contention and pauses to schedule for;
    links without contention unless given. demand: float64 [n], bytes that each operation takes of a device's memory,
    its weights unless given.
    """
    plain = grouping is None and demand is None
    work = problem.derived(_uncontended) if plain else _uncontended(problem, grouping, demand)
    rules = None if execution is None else execution.queue_rules
    if rules is None:
        return work
    return work._replace(level=rules.contention, block_s=rules.block_s, gap_s=rules.gap_s)


def _uncontended(problem: Problem, grouping: Grouping | None = None, demand: Float64 | None = None) -> ScheduleInputs:
    graph, topology = problem.graph, problem.topology
    grouping = feasible_grouping(problem) if grouping is None else grouping
    # an order of the operations, the ends of all reads that lead forward in it, and which reads these are
    n, ends = graph.n, graph.edges[:, graph.reads.edge]
    order = least_index_first(row_ptr(graph.edges[0], n), graph.edges[1].astype(np.int64), graph.in_degree)
    if order.size < n:
        order = visit_order(graph).astype(np.int64)
    position = np.empty(n, np.int64)
    position[order] = np.arange(n)
    forward = np.flatnonzero(position[ends[0]] < position[ends[1]])
    edges, read = ends[:, forward], forward
    size, tensor = graph.reads.size[read], graph.reads.tensor[read]
    cost_s, mean_s = times_of(problem)
    by_consumer = np.argsort(edges[1], kind="stable")
    transfer_s = topology.mean_transfer_s(size)
    needed = graph.weight_bytes.astype(np.float64) if demand is None else demand
    sources = (np.bincount(edges[1], minlength=graph.n) == 0) & (np.where(problem.allowed, cost_s, 0).max(axis=1) == 0)
    return ScheduleInputs(
        order=order,
        counts=~sources,
        out_ptr=row_ptr(edges[0], graph.n),
        out_node=edges[1].astype(np.int64),
        out_bytes=size.astype(np.float64),
        in_ptr=row_ptr(edges[1], graph.n),
        in_node=edges[0][by_consumer].astype(np.int64),
        in_bytes=size[by_consumer].astype(np.float64),
        in_tensor=tensor[by_consumer],
        op_s=cost_s,
        group_s=cost_s if grouping.is_identity else sum_per_group(cost_s, grouping),
        mean_s=mean_s,
        out_s=transfer_s,
        in_s=transfer_s[by_consumer],
        group=grouping.group.astype(np.int64),
        allowed=problem.group_allowed(grouping),
        demand=sum_per_group(needed, grouping),
        room=np.array([d.memory_bytes or math.inf for d in topology.devices], np.float64),
        latency_s=topology.link_latency_s.copy(),
        per_byte_s=1.0 / topology.link_bytes_per_s,
        level=T0,
        block_s=0.0,
        gap_s=0.0,
    )


def times_of(problem: Problem) -> tuple[Float64, Float64]:
    """Return float64 [n, p], seconds of each operation on each device, and [n], their mean over allowed devices.

    Without known costs every device is taken to run NOMINAL_FLOPS_PER_S.
    """
    if problem.costs is None:
        cost_s = np.repeat(problem.graph.flops[:, None] / NOMINAL_FLOPS_PER_S, problem.topology.p, axis=1)
    else:
        cost_s = np.minimum(problem.costs.op_s, ENDLESS_S)
    allowed = problem.allowed
    return cost_s, np.where(allowed, cost_s, 0.0).sum(axis=1) / np.maximum(allowed.sum(axis=1), 1)


def upward(work: ScheduleInputs) -> Float64:
    """Return float64 [n], the longest way to an end in mean seconds of operations and transfers."""
    return longest_paths(work.order, work.out_ptr, work.out_node, work.out_s, work.mean_s)


def downward(work: ScheduleInputs) -> Float64:
    """Return float64 [n], the longest way from a beginning to each operation, without its own time."""
    backward = np.ascontiguousarray(work.order[::-1])
    ways: Float64 = longest_paths(backward, work.in_ptr, work.in_node, work.in_s, work.mean_s) - work.mean_s
    return ways


def b_level(work: ScheduleInputs, device: Int32) -> Float64:
    """Return float64 [n], the longest way to an end under a placement, transfers without contention."""
    source = np.repeat(device, np.diff(work.out_ptr))
    target = device[work.out_node]
    step_s = work.latency_s[source, target] + work.out_bytes * work.per_byte_s[source, target]
    return longest_paths(work.order, work.out_ptr, work.out_node, step_s, work.op_s[np.arange(device.size), device])


def contended(work: ScheduleInputs) -> tuple[ScheduleInputs, ...]:
    """Return the work, and if its links are contended, the same work with links that are not."""
    return (work,) if work.level == T0 else (work, work._replace(level=T0))


def by_position(work: ScheduleInputs) -> Int64:
    """Return int64 [k], the groups in topological order of their first member that is scheduled.

    A group of sources alone stands where its first reader stands.
    """
    n, k = work.order.size, work.demand.size
    position = np.empty(n, np.int64)
    position[work.order] = np.arange(n)
    first = np.full(n, n, np.int64)
    np.minimum.at(first, work.in_node, np.repeat(position, np.diff(work.in_ptr)))  # each operation's first reader
    own = np.full(k, 2 * n, np.int64)
    np.minimum.at(own, work.group, np.where(work.counts, position, 2 * n))
    read = np.full(k, 2 * n, np.int64)
    np.minimum.at(read, work.group, np.where(work.counts, 2 * n, first))
    order: Int64 = np.argsort(np.where(own < 2 * n, own, read), kind="stable")
    return order


def shares(amount: Float64, share: Float64) -> Int32:
    """Return int32 [len(amount)], which of the p blocks each entry of a list falls into, in order.

    A block ends where the sum of the amounts comes nearest to what `share`, float64 [p], gives it and those before.
    """
    total, whole = float(amount.sum()), float(share.sum())
    middle = np.cumsum(amount) - amount / 2 if total > 0 else np.arange(amount.size) + 0.5
    ends = np.cumsum(share / whole) * (total if total > 0 else amount.size)
    return np.minimum(np.searchsorted(ends, middle, side="right"), share.size - 1).astype(np.int32)


def speeds(work: ScheduleInputs) -> Float64:
    """Return float64 [p], how fast devices are at the operations they may run; 0 where they may run none."""
    allowed = work.allowed[work.group]
    own_s = np.where(allowed, work.op_s, 0.0).sum(axis=0)
    mean_s = np.where(allowed, work.mean_s[:, None], 0.0).sum(axis=0)
    speed: Float64 = np.where(
        allowed.any(axis=0), np.where(own_s > 0, mean_s / np.where(own_s > 0, own_s, 1.0), 1.0), 0.0
    )
    return speed
