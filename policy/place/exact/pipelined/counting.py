"""How many pieces of work devices hold at most: the least largest load of few large pieces on few devices."""

from __future__ import annotations

import numpy as np

from pipeline.core.arrays import Float64

LARGEST = 24  # groups per device that are counted at most
MOST = 1000  # groups that are counted at most
HALVINGS = 40


def counting_bound(group_s: Float64, low_s: float) -> float:
    """Return seconds, at least `low_s`, below which no division of k groups over p devices keeps all loads.

    group_s: float64 [k, p], inf where not allowed. low_s: what is proven. Of the h largest groups a device that works
    at most T seconds holds no more than the number of the smallest ones that fit into T; where these numbers add up to
    less than h for some h, T is too little.

    Source: the bound of identical parallel machines in Dell'Amico, Martello, ORSA Journal on Computing 7, 1995, for
    devices that differ.
    """
    k, p = group_s.shape
    if k == 0 or p < 2:
        return low_s
    kinds, count = np.unique(group_s, axis=1, return_counts=True)
    largest_first = np.argsort(-group_s.min(axis=1), kind="stable")[: min(LARGEST * p, MOST)]
    prefix = [_smallest_sums(kinds[largest_first, q]) for q in range(kinds.shape[1])]

    def too_little(seconds: float) -> bool:
        held = sum(c * (sums <= seconds).sum(axis=1) for c, sums in zip(count, prefix, strict=True))
        return bool(np.any(held < np.arange(1, largest_first.size + 1)))

    if not too_little(low_s):
        return low_s
    high_s = 2 * low_s if low_s > 0 else float(group_s.min(axis=1).sum())
    if too_little(high_s):
        return high_s
    for _ in range(HALVINGS):
        middle_s = (low_s + high_s) / 2
        if too_little(middle_s):
            low_s = middle_s
        else:
            high_s = middle_s
    return low_s


def _smallest_sums(work_s: Float64) -> Float64:
    """Return float64 [h, h], for the first 1, 2, ... of h groups the sums of the 1, 2, ... smallest; inf if there are
    not so many.
    """
    h = work_s.size
    sums = np.full((h, h), np.inf)
    smallest = np.zeros(0)
    for i in range(h):
        smallest = np.insert(smallest, int(np.searchsorted(smallest, work_s[i])), work_s[i])
        sums[i, : smallest.size] = np.cumsum(smallest)
    return sums
