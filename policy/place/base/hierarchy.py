"""Coarser and coarser clusters of a graph, in linear time: what a multilevel search moves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeline.core.arrays import Float64, Int32, Int64
from pipeline.core.graph import Grouping, row_ptr, sum_per_group
from pipeline.core.problem import Problem, allowed_for_all
from pipeline.shared.graphs import edge_depths
from policy.place.base.groups import UNLIMITED, Groups
from policy.place.base.matching import MatchingWeights, Neighbours, clusters, quotient

GROWTH = 4.0  # work of a cluster over the mean work of what it is made of, at most
COUNTS = 0.1  # share of a cluster's heaviest member from which a member's depth counts
STALLED = 0.97  # clusters of a level over those of the level below from which coarsening has come to its end


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """k clusters of a problem's operations, and the tensors between them, without direction.

    groups: the clusters, with where they may go and what they hold. work_s: float64 [k], mean seconds over devices;
    shares of the FLOPs where nothing is known. first: int32 [k], least depth of a member that counts.
    layer: int32 [k], the layer of the member with most work; -1 for none.
    tensors: what clusters share, a tensor's seconds divided among its readers.
    """

    groups: Groups
    work_s: Float64
    first: Int32
    layer: Int32
    tensors: Neighbours

    @property
    def k(self) -> int:
        """Return the number of clusters."""
        return self.groups.k


def work_of(problem: Problem) -> Float64:
    """Return float64 [n], mean seconds of each operation over the devices that support it.

    Without costs they are shares of the FLOPs, or equal where no FLOPs are known either: they sum to one second.
    """
    graph = problem.graph
    if problem.costs is None:
        total = float(graph.flops.sum())
        return graph.flops / total if total > 0 else np.full(graph.n, 1.0 / max(graph.n, 1))
    supported = problem.costs.supported
    count = np.maximum(supported.sum(axis=1), 1)
    mean: Float64 = np.where(supported, problem.costs.op_s, 0.0).sum(axis=1) / count
    return mean


def hierarchy(problem: Problem, *, least: int, held: Int64 | None = None) -> tuple[Level, ...]:
    """Return levels of clusters, finest first: the problem's groups, then ever fewer, down to about `least`.

    Each level is the one before with clusters merged that share the most expensive tensors for their work, light ones
    first. A cluster never mixes operations that have no device in common, never holds more than a fourth of the least
    memory unless one group does, and grows by a limited factor per level. Quotients may have cycles: what is stored for
    the backward pass colocation constraints an operation to its gradient, and both belong on one device.
    held: int64 [n], bytes of a device's memory that an operation takes, its weights unless given.
    """
    # the level of the groups themselves
    graph, groups = problem.graph, problem.derived(Groups.of)
    if held is not None:
        groups = replace(groups, held_bytes=sum_per_group(held, groups.grouping))
    (producer, consumer), tensor = graph.edges[:, graph.reads.edge], graph.reads.tensor
    seconds = problem.topology.mean_transfer_s(graph.reads.size) / np.bincount(tensor)[tensor]
    ends = np.concatenate([producer, consumer])
    by_end = np.argsort(ends, kind="stable")
    other = np.concatenate([consumer, producer])[by_end]
    group = groups.grouping.group
    tensors = quotient(
        Neighbours(row_ptr(ends, graph.n), other, np.concatenate([seconds, seconds])[by_end]), group, groups.k
    )
    work = work_of(problem)
    layer = np.full(graph.n, -1, np.int32) if problem.tags is None else problem.tags.layer
    first = cluster_depths(edge_depths(graph), work, group, groups.k)
    total = np.bincount(group, weights=work, minlength=groups.k).astype(np.float64)
    levels = [Level(groups, total, first, _heaviest(work, group, layer, groups.k), tensors)]
    while levels[-1].k > least:
        level = levels[-1]
        # int32 [k], the cluster of the next level that each cluster becomes part of
        cap_s = GROWTH * float(level.work_s.sum()) / level.k
        room = int(level.groups.room_bytes.min())
        cap_bytes = room if room >= UNLIMITED else room // 4
        lightest_first = np.argsort(level.work_s, kind="stable")
        groups = level.groups
        weights = MatchingWeights(level.work_s, groups.held_bytes, groups.allowed, level.layer)
        label = clusters(level.tensors, weights, lightest_first, cap_s, cap_bytes, least)
        k = int(label.max()) + 1
        if k > STALLED * level.k:
            break
        levels.append(contracted(level, label, k))
    return tuple(levels)


def nearest(levels: Sequence[Level], goal: int) -> Level:
    """Return the level whose number of clusters comes nearest to a goal, as a ratio."""
    return min(levels, key=lambda level: abs(math.log(level.k / goal)))


def cluster_depths(depth: Int32, work: Float64, label: Int32, k: int) -> Int32:
    """Return int32 [k], the least depth of each cluster's members that have a tenth of its heaviest member's work.

    Constants and the like have depth 0 wherever they belong.
    """
    heaviest = np.zeros(k)
    np.maximum.at(heaviest, label, work)
    first = np.full(k, np.iinfo(np.int32).max, np.int32)
    counts = work >= COUNTS * heaviest[label]
    np.minimum.at(first, label[counts], depth[counts])
    return first


def _heaviest(work: Float64, label: Int32, layer: Int32, k: int) -> Int32:
    """Return int32 [k], the layer of the member with most work."""
    heaviest = np.full(k, -1, np.int32)
    lightest_first = np.argsort(work, kind="stable")
    heaviest[label[lightest_first]] = layer[lightest_first]  # of several the last stays
    return heaviest


def contracted(level: Level, label: Int32, k: int) -> Level:
    """Return the level whose k clusters are the clusters of equal label of another, int32 [level.k]."""
    groups = level.groups
    coarser = Grouping(label)
    grouping, allowed = groups.grouping.then(coarser), allowed_for_all(groups.allowed, coarser)
    held = np.zeros(k, np.int64)
    np.add.at(held, label, groups.held_bytes)
    return Level(
        Groups(groups.problem, grouping, allowed, held, groups.room_bytes),
        np.bincount(label, weights=level.work_s, minlength=k).astype(np.float64),
        cluster_depths(level.first, level.work_s, label, k),
        _heaviest(level.work_s, label, level.layer, k),
        quotient(level.tensors, label, k),
    )
