"""Whole placements to begin a search from: contiguous splits, earliest finish, small cuts, layers cut by time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32, Int64
from pipeline.core.placement import Placement
from pipeline.core.problem import Problem
from pipeline.shared.compiled import compiled
from policy.place.base.hierarchy import Level
from policy.place.base.matching import Neighbours
from policy.place.multilevel.layers import Layers

HEAVY = 0.5  # share of a device's fair load from which a layer may be cut by time
CUT = 2  # layers that are cut by time at most, one at a time
PHASES = 5  # phases into which layers are told apart at most
SLACK = 1.1  # load of a device over its fair one that small cuts may use


def speeds(problem: Problem) -> Float64:
    """Return float64 [p] that sum to 1, the share of the work that each device should get."""
    if problem.costs is None:
        return np.full(problem.topology.p, 1.0 / problem.topology.p)
    both = problem.costs.supported.all(axis=1)
    seconds = problem.costs.op_s[both].sum(axis=0)
    if not both.any() or np.any(seconds <= 0):
        return np.full(problem.topology.p, 1.0 / problem.topology.p)
    share: Float64 = (1 / seconds) / (1 / seconds).sum()
    return share


def allowed_or_nearest(device: Int32, allowed: Bool) -> Int32:
    """Return int32 [k], the devices, with each that is not allowed replaced by the nearest number that is."""
    wrong = np.flatnonzero(~allowed[np.arange(device.size), device])
    gap = np.abs(np.arange(allowed.shape[1]) - device[wrong, None])
    nearest = device.copy()
    nearest[wrong] = np.where(allowed[wrong], gap, allowed.shape[1]).argmin(axis=1)
    return nearest


def contiguous(work: Float64, share: Float64) -> Int32:
    """Return int32 [k], devices of work in this order, each device in turn taking its share of the whole.

    >>> contiguous(np.array([1.0, 1.0, 2.0]), np.array([0.5, 0.5])).tolist()
    [0, 0, 1]
    """
    middle = np.cumsum(work) - work / 2
    ends = np.cumsum(share)[:-1] * work.sum()
    return np.searchsorted(ends, middle, side="right").astype(np.int32)


def split(level: Level, share: Float64) -> Int32:
    """Return int32 [k], the clusters of a level split in order of their first operations."""
    order = np.argsort(level.first, kind="stable")
    device = np.empty(level.k, np.int32)
    device[order] = contiguous(level.work_s[order], share)
    return device


def starts(levels: list[Level], layers: Layers | None) -> Iterator[Placement]:
    """Yield placements made from levels of clusters and, if known, layers; all keep to devices and memory.

    What exceeds a device's memory is moved elsewhere, as far as there is room.
    """
    share = levels[0].groups.problem.derived(speeds)
    p = share.size
    for level in levels:
        for used in sorted({p, (p + 1) // 2}):
            device = split(level, np.where(np.arange(p) < used, share, 0) / share[:used].sum())
            yield _placed(level, device)
            yield _placed(level, small_cut(level, device, share))
        yield _placed(level, earliest(level))
    if layers is not None:
        for device in layer_splits(layers, share):
            yield _placed(layers.finest, device)


def _placed(level: Level, device: Int32) -> Placement:
    groups = level.groups
    return groups.placement(groups.repaired(allowed_or_nearest(device, groups.allowed)))


def layer_devices(layers: Layers, work: Float64, share: Float64) -> Iterator[Int32]:
    """Yield devices of the layers, int32 [count]: contiguous, over all layers or over each of several phases.

    A phase is what lies between two of the widest gaps in the depths at which layers begin. An encoder and a decoder
    that waits for all of it do not work at once, and each of them needs all devices.
    """
    gaps = np.argsort(-np.diff(layers.begin.astype(np.int64)), kind="stable") + 1
    for phases in range(1, min(PHASES, layers.count) + 1):
        parts = np.split(work, np.sort(gaps[: phases - 1]))
        yield np.concatenate([contiguous(part, share) for part in parts])


def layer_splits(layers: Layers, share: Float64) -> Iterator[Int32]:
    """Yield devices of the groups, int32 [k]: layers contiguous, and heavy layers cut by time over several devices.

    A layer that many steps share is too heavy for one device of many and cannot be moved in one piece. Its steps run
    while the wave of other layers passes, so that its early part fits where the wave ends, its later parts where the
    wave has gone by: chunks are dealt out from the last device to the first, and the other way round.
    """
    work, p = layers.work_s, share.size
    for home in layer_devices(layers, work, share):
        yield home[layers.layer]
    counts = [parts for parts in sorted({2, 3, 4, (p + 1) // 2, p}) if parts <= p]
    heavy = [h for h in np.argsort(-work, kind="stable").tolist() if work[h] > HEAVY * work.sum() / p][:CUT]
    chunks = [layers.chunk(parts) for parts in counts] if heavy else []
    for h in heavy:
        rest = np.where(np.arange(work.size) == h, 0.0, work)
        for weights in (work, rest):
            for home in layer_devices(layers, weights, share):
                for part, parts in zip(chunks, counts, strict=True):
                    yield from _cut_by_time(layers, home, h, (part, parts), p)


def _cut_by_time(layers: Layers, home: Int32, h: int, cut_into: tuple[Int32, int], p: int) -> Iterator[Int32]:
    """Yield devices of the groups with layer h cut; home: int32 [layers], where the layers are.

    cut_into: `Layers.chunk`, and into how many parts.
    """
    part, parts = cut_into
    here = int(home[h])
    spread = np.linspace(here, 0 if here >= p / 2 else p - 1, parts).round().astype(np.int32)
    near = (here - np.arange(parts)) % p
    cut = layers.layer == h
    for chain in (spread, near, spread[::-1], near[::-1]):
        yield np.where(cut & (part >= 0), chain[np.maximum(part, 0)], home[layers.layer]).astype(np.int32)


def earliest(level: Level) -> Int32:
    """Return int32 [k], clusters in order of their first operations, each where it would finish first.

    A cluster waits for those before it that it shares tensors with. Topcuoglu et al., HEFT, 2002, on clusters, whose
    quotient may have cycles: tensors that flow back count as if they flowed on.
    """
    problem = level.groups.problem
    order = np.argsort(level.first, kind="stable")
    share = problem.derived(speeds)
    return _earliest(level.tensors, level.work_s, order, share * share.size, level.groups.allowed)


@compiled
def _earliest(tensors: Neighbours, work: Float64, order: Int64, speed: Float64, allowed: Bool) -> Int32:
    p = speed.size
    device = np.full(work.size, -1, np.int32)
    end, free = np.zeros(work.size), np.zeros(p)
    for i in order:
        best, best_end = -1, np.inf
        for d in range(p):
            if not allowed[i, d]:
                continue
            ready = free[d]
            for e in range(tensors.ptr[i], tensors.ptr[i + 1]):
                j = tensors.neighbour[e]
                if device[j] >= 0:
                    ready = max(ready, end[j] + (0.0 if device[j] == d else tensors.transfer_s[e]))
            finish = ready + work[i] / speed[d]
            if finish < best_end:
                best, best_end = d, finish
        device[i] = best
        end[i] = free[best] = best_end
    return device


def small_cut(level: Level, device: Int32, share: Float64) -> Int32:
    """Return int32 [k], devices changed cluster by cluster as long as that makes the cut smaller and stays balanced."""
    room = SLACK * share * level.work_s.sum() + level.work_s.max(initial=0.0)
    return _small_cut(level.tensors, level.work_s, device.copy(), room, level.groups.allowed)


@compiled
def _small_cut(tensors: Neighbours, work: Float64, device: Int32, room: Float64, allowed: Bool) -> Int32:
    p = room.size
    load = np.zeros(p)
    for i in range(work.size):
        load[device[i]] += work[i]
    pull = np.zeros(p)
    for _ in range(20):
        moved = 0
        for i in range(work.size):
            pull[:] = 0.0
            for e in range(tensors.ptr[i], tensors.ptr[i + 1]):
                pull[device[tensors.neighbour[e]]] += tensors.transfer_s[e]
            here = device[i]
            best = here
            for d in range(p):
                if allowed[i, d] and pull[d] > pull[best] and load[d] + work[i] <= room[d]:
                    best = d
            if best != here:
                load[here] -= work[i]
                load[best] += work[i]
                device[i] = best
                moved += 1
        if moved == 0:
            break
    return device
