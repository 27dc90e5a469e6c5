"""The least largest load of unequal devices, if operations could be divided: a bound on any division of work."""

from __future__ import annotations

import math
import time

import numpy as np

from pipeline.core.arrays import Float64, Int64

ROUNDS = 100
CLOSE = 1e-7  # the share of the bound within which no further round is made


def load_bound(group_s: Float64, group_bytes: Int64, room_bytes: Int64, *, seconds: float) -> tuple[float, Float64]:
    """Return (T, price): no division of k groups over p devices keeps all loads below T seconds.

    group_s: float64 [k, p], inf where not allowed. group_bytes: int64 [k], room_bytes: int64 [p], weights and memory.
    price: float64 [p], at least 0, of sum 1, of each device's time.

    For prices v of time and u of memory, T >= sum_i min_d (v_d t_id + u_d b_i) - sum_d u_d M_d. The best prices are
    found by cutting planes: each try adds the plane of its loads, and a small linear program says what to try next.
    Source: Kelley, J. SIAM 8, 1960; Lenstra, Shmoys, Tardos, Mathematical Programming 46, 1990, for the relaxation.
    """
    p = group_s.shape[1]
    even = np.full(p, 1.0 / p)
    if np.isinf(group_s).all(axis=1).any():  # a group that no device may have
        return math.inf, even
    if np.all(group_s == group_s[:, :1]):
        return float(group_s[:, 0].sum()) / p, even
    tight = int(group_bytes.sum()) > room_bytes  # [p], devices that cannot hold everything
    share = np.where(tight, group_bytes[:, None] / np.maximum(room_bytes, 1), 0.0)  # [k, p]
    best, best_price = -math.inf, even
    until = time.monotonic() + seconds
    planes: list[Float64] = []  # each [2 p], loads, and memory beyond what there is, in shares of it
    point = np.concatenate([even, np.zeros(p)])
    for _ in range(ROUNDS):
        plane = _plane(group_s, share, tight, point)
        planes.append(plane)
        value = float(plane @ point)
        if value > best:
            best, best_price = value, point[:p].copy()
        if time.monotonic() >= until:
            break
        reached, point = _next_point(np.array(planes), tight)
        if reached <= best * (1 + CLOSE):
            break
    return max(best, 0.0), best_price


def _plane(group_s: Float64, share: Float64, tight: np.ndarray, point: Float64) -> Float64:
    """Return float64 [2 p]: loads and excess shares of memory if every group takes its cheapest device."""
    k, p = group_s.shape
    price, memory_price = point[:p], point[p:]
    finite = np.isfinite(group_s)
    cost = np.where(finite, price * np.where(finite, group_s, 0.0) + memory_price * share, math.inf)
    chosen = cost.argmin(axis=1)
    row = np.arange(k)
    load = np.bincount(chosen, weights=group_s[row, chosen], minlength=p)
    held = np.bincount(chosen, weights=share[row, chosen], minlength=p)
    return np.concatenate([load, np.where(tight, held - 1.0, 0.0)])


def _next_point(planes: Float64, tight: np.ndarray) -> tuple[float, Float64]:
    """Return (what the planes allow at most, the prices float64 [2 p] where they do)."""
    from scipy.optimize import linprog

    count, size = planes.shape
    p = size // 2
    scale = max(float(np.abs(planes[:, :p]).max()), 1e-300)
    most_expensive = 100.0  # any limit is valid; the program needs one
    scaled = planes.copy()
    scaled[:, :p] /= scale
    solved = linprog(
        np.r_[np.zeros(size), -1.0],
        A_ub=np.hstack([-scaled, np.ones((count, 1))]),
        b_ub=np.zeros(count),
        A_eq=np.r_[np.ones(p), np.zeros(p + 1)][None],
        b_eq=[1.0],
        bounds=[(0, 1)] * p + [(0, most_expensive if d else 0) for d in tight] + [(None, None)],
        method="highs",
    )
    if solved.status != 0:
        return -math.inf, np.concatenate([np.full(p, 1.0 / p), np.zeros(p)])
    point = np.maximum(solved.x[:size], 0.0)
    point[:p] /= point[:p].sum()
    point[p:] *= scale
    return float(-solved.fun) * scale, point
