"""Moves of clusters of several sizes, drawn at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipeline.core.arrays import Int32, Int64
from pipeline.core.graph import row_ptr
from policy.place.base.hierarchy import Level
from policy.place.base.matching import Neighbours

BACK = 0.5  # probability that a move is of the finest level in use; else of the next coarser one with it, and so on


class Drawn(NamedTuple):
    """r moves: items item[ptr[i]:ptr[i + 1]] go to device[i], or, if that is -1, to where item like[i] is."""

    ptr: Int64
    item: Int32
    device: Int32
    like: Int32


@dataclass(frozen=True, slots=True, eq=False)
class LevelClusters:
    """k clusters of items, which are operations or cells of them.

    ptr: int64 [k + 1]: cluster i consists of member[ptr[i]:ptr[i + 1]]. tensors: which clusters are neighbours.
    """

    ptr: Int64
    member: Int32
    tensors: Neighbours

    @classmethod
    def of(cls, level: Level, operation: Int32) -> LevelClusters:
        """Return the clusters of a level; operation: int32 [items], one operation of every item.

        All operations of an item are in one cluster.
        """
        cluster = level.groups.grouping.group[operation]
        return cls(row_ptr(cluster, level.k), np.argsort(cluster, kind="stable").astype(np.int32), level.tensors)

    @property
    def k(self) -> int:
        """Return the number of clusters."""
        return self.ptr.size - 1

    def neighbours(self, cluster: Int64, rng: np.random.Generator) -> Int64:
        """Return int64 [r], a random neighbour of each cluster; -1 where there is none."""
        begin = self.tensors.ptr[cluster]
        count = self.tensors.ptr[cluster + 1] - begin
        which = begin + (rng.random(cluster.size) * count).astype(np.int64)
        if self.tensors.neighbour.size == 0:
            return np.full(cluster.size, -1)
        return np.where(count > 0, self.tensors.neighbour[np.minimum(which, self.tensors.neighbour.size - 1)], -1)


def draw(levels: list[LevelClusters], count: int, devices: int, near: float, rng: np.random.Generator) -> Drawn:
    """Return moves of clusters, most of them of the last level.

    near: share of moves to the device of a neighbour; the others go to any device.
    """
    back = np.minimum(rng.geometric(BACK, count) - 1, len(levels) - 1)
    cluster, other = np.zeros(count, np.int64), np.full(count, -1, np.int64)
    like = np.full(count, -1, np.int32)
    for b in np.unique(back).tolist():
        level, mine = levels[-1 - b], np.flatnonzero(back == b)
        cluster[mine] = rng.integers(0, level.k, mine.size)
        other[mine] = level.neighbours(cluster[mine], rng)
        near_ones = mine[(other[mine] >= 0) & (rng.random(mine.size) < near)]
        like[near_ones] = level.member[level.ptr[other[near_ones]]]
    device = np.where(like < 0, rng.integers(0, devices, count), -1).astype(np.int32)
    items = [
        levels[-1 - b].member[levels[-1 - b].ptr[c] : levels[-1 - b].ptr[c + 1]]
        for b, c in zip(back.tolist(), cluster.tolist(), strict=True)
    ]
    ptr = np.cumsum([0] + [part.size for part in items])
    return Drawn(ptr, np.concatenate(items), device, like)
