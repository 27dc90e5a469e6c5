"""Fewer segments: two of a device become one where nobody waits longer for that, or not much."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32
from pipeline.core.graph import components

SEGMENT_FLOPS = 4e6  # about what a thread of a CPU does in the time that a segment more takes


@dataclass(frozen=True, slots=True, eq=False)
class SegmentParts:
    """k segments that may become fewer.

    device: int32 [k]. taken: bool [k], those that are looked at. stage: int32 [k], equal for what was parted only
    that somebody waits less. work: float64 [k], FLOPs.
    """

    device: Int32
    taken: Bool
    stage: Int32
    work: Float64

    def then(self, step: Int32) -> SegmentParts:
        """Return the pieces that become of these; step: int32 [k], the number of each in the order of their first."""
        start = np.unique(step, return_index=True)[1]
        work = np.bincount(step, weights=self.work).astype(np.float64)
        return SegmentParts(self.device[start], self.taken[start], self.stage[start], work)


def merge_segments(edges: Int32, pieces: SegmentParts) -> Int32:
    """Return int32 [k], equal numbers for segments that become one.

    Two that follow one another do, if all others that take from the first wait for the second anyway, and the first
    waits for all others that the second takes from. So do two that wait for the same and that the same wait for. Then
    every segment still waits for those alone that it waited for before.

    Of one stage, two that follow one another do as well if one of them is less work than a segment more: the second
    while others take from the first, or the first while the second waits for others.

    edges: int32 [2, e], unique, acyclic.
    """
    label = np.arange(pieces.device.size, dtype=np.int32)
    while True:
        pairs = _mergeable_pairs(edges, pieces)
        if not pairs:
            return label
        step = components(pieces.device.size, *np.array(pairs, np.int32).T).group
        label = step[label]
        pieces = pieces.then(step)
        edges = np.unique(step[edges], axis=1)
        edges = edges[:, edges[0] != edges[1]]


def _mergeable_pairs(edges: Int32, pieces: SegmentParts) -> list[tuple[int, int]]:
    """Return pairs that may become one, no segment in two of them; sets of segments are bits of a number."""
    device, taken = pieces.device, pieces.taken
    k = device.size
    before, after = [0] * k, [0] * k
    for a, b in edges.T.tolist():
        before[b] |= 1 << a
        after[a] |= 1 << b
    above, below = _reachable_segments(before, after)
    little = pieces.work <= SEGMENT_FLOPS
    used = 0
    pairs: list[tuple[int, int]] = []
    for a, b in edges.T.tolist():
        if device[a] != device[b] or (used >> a | used >> b) & 1:
            continue
        others, sources = after[a] & ~(1 << b), before[b] & ~(1 << a)
        others_wait, first_waits = not others & ~below[b], not sources & ~above[a]
        parted = pieces.stage[a] == pieces.stage[b]
        spares_others, spares_first = others_wait or (parted and little[b]), first_waits or (parted and little[a])
        if (others_wait or first_waits) and spares_others and spares_first:  # were it neither, it might be a circle
            used |= 1 << a | 1 << b
            pairs.append((a, b))
    alike: dict[tuple[int, int, int], int] = {}
    for s in np.flatnonzero(taken).tolist():
        if used >> s & 1:
            continue
        key = int(device[s]), above[s], below[s]
        other = alike.pop(key, None)
        if other is None:
            alike[key] = s
        else:
            pairs.append((other, s))
    return pairs


def _reachable_segments(before: list[int], after: list[int]) -> tuple[list[int], list[int]]:
    """Return the segments on a path to each, and those on a path from each."""
    order, waiting = [s for s, sources in enumerate(before) if not sources], [b.bit_count() for b in before]
    for s in order:
        for t in _bit_members(after[s]):
            waiting[t] -= 1
            if waiting[t] == 0:
                order.append(t)
    above, below = [0] * len(before), [0] * len(before)
    for s in order:
        for t in _bit_members(before[s]):
            above[s] |= above[t] | 1 << t
    for s in reversed(order):
        for t in _bit_members(after[s]):
            below[s] |= below[t] | 1 << t
    return above, below


def _bit_members(bits: int) -> list[int]:
    members = []
    while bits:
        lowest = bits & -bits
        members.append(lowest.bit_length() - 1)
        bits ^= lowest
    return members
