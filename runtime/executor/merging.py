"""Fewer segments: two of a device become one where nobody waits longer for that."""

from __future__ import annotations

import numpy as np

from pipeline.core.arrays import Bool, Int32
from pipeline.core.graph import components


def merged(edges: Int32, device: Int32, taken: Bool) -> Int32:
    """Return int32 [k], equal numbers for segments that become one.

    Two that follow one another do, if all others that take from the first wait for the second anyway, and the first
    waits for all others that the second takes from. So do two that wait for the same and that the same wait for. Then
    every segment still waits for those alone that it waited for before.

    edges: int32 [2, e], unique, acyclic. device: int32 [k]. taken: bool [k], the segments that are looked at.
    """
    label = np.arange(device.size, dtype=np.int32)
    while True:
        pairs = _pairs(edges, device, taken)
        if not pairs:
            return label
        step = components(device.size, *np.array(pairs, np.int32).T).group
        label = step[label]
        start = np.unique(step, return_index=True)[1]
        device, taken = device[start], taken[start]
        edges = np.unique(step[edges], axis=1)
        edges = edges[:, edges[0] != edges[1]]


def _pairs(edges: Int32, device: Int32, taken: Bool) -> list[tuple[int, int]]:
    """Return pairs that may become one, no segment in two of them; sets of segments are bits of a number."""
    k = device.size
    before, after = [0] * k, [0] * k
    for a, b in edges.T.tolist():
        before[b] |= 1 << a
        after[a] |= 1 << b
    above, below = _reached(before, after)
    used = 0
    pairs: list[tuple[int, int]] = []
    for a, b in edges.T.tolist():
        free = not (used >> a | used >> b) & 1
        others, sources = after[a] & ~(1 << b), before[b] & ~(1 << a)
        if free and device[a] == device[b] and not others & ~below[b] and not sources & ~above[a]:
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


def _reached(before: list[int], after: list[int]) -> tuple[list[int], list[int]]:
    """Return the segments on a path to each, and those on a path from each."""
    order, waiting = [s for s, sources in enumerate(before) if not sources], [b.bit_count() for b in before]
    for s in order:
        for t in _members(after[s]):
            waiting[t] -= 1
            if waiting[t] == 0:
                order.append(t)
    above, below = [0] * len(before), [0] * len(before)
    for s in order:
        for t in _members(before[s]):
            above[s] |= above[t] | 1 << t
    for s in reversed(order):
        for t in _members(after[s]):
            below[s] |= below[t] | 1 << t
    return above, below


def _members(bits: int) -> list[int]:
    found = []
    while bits:
        lowest = bits & -bits
        found.append(lowest.bit_length() - 1)
        bits ^= lowest
    return found
