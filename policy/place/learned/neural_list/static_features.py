"""What learned scores know of a problem before anything is placed, all of it relative."""

from __future__ import annotations

import numpy as np

from pipeline.core.arrays import Float64, Int64
from pipeline.shared.graphs import longest_paths
from policy.place.learned.neural_list.constructing import KEY_FIGURES, StaticFeatures
from policy.place.lists.work import ScheduleInputs, downward, upward

TIE = 1e-6  # what tells apart operations of equal key counts, beside figures of about 1
ROUNDS = 3  # of messages between neighbours that tell them apart

LEVEL = KEY_FIGURES.index("planned_level")

CONTEXT = (
    "always",  # 1
    "traffic",  # logarithm of the seconds of all transfers over those of all operations
    "width",  # logarithm of the operations that could run at once, on average, over the number of devices
    "unequal",  # how much the time of an operation differs between devices
)


def scene_of(work: ScheduleInputs) -> StaticFeatures:
    """Return what scores know of a problem's work."""
    counted = work.mean_s[work.counts]
    unit_s = _positive(float(counted[counted > 0].mean()) if np.any(counted > 0) else 0.0)
    up_s, down_s, level_s = upward(work), downward(work), _compute_level(work)
    share_s = _positive(float(work.mean_s.sum()) / work.room.size)
    bound_s = max(share_s, float(level_s.max(initial=0.0)))
    ones, none = np.ones(work.order.size), np.zeros(work.out_s.size)
    hops = longest_paths(work.order, work.out_ptr, work.out_node, none, ones)
    depth = longest_paths(np.ascontiguousarray(work.order[::-1]), work.in_ptr, work.in_node, none, ones)
    arriving_s, leaving_s = _sums(work.in_ptr, work.in_s), _sums(work.out_ptr, work.out_s)
    key = np.stack(
        [
            _over_greatest(up_s),
            _over_greatest(down_s),
            _over_greatest(level_s),
            _over_greatest(hops),
            _over_greatest(depth),
            np.arcsinh(work.mean_s / unit_s),
            np.arcsinh(arriving_s / unit_s),
            np.arcsinh(leaving_s / unit_s),
            np.log1p(np.diff(work.out_ptr)) / np.log1p(max(work.order.size, 1)),
        ],
        axis=1,
    )
    # float64 [n, p], mean seconds to send all outputs of each operation from each device to another
    p, others = work.room.size, max(work.room.size - 1, 1)
    tensors = np.diff(work.out_ptr).astype(np.float64)
    sent = np.bincount(np.repeat(np.arange(work.order.size), np.diff(work.out_ptr)), work.out_bytes, work.order.size)
    apart = ~np.eye(p, dtype=bool)
    latency_s = np.where(apart, work.latency_s, 0.0).sum(axis=1) / others
    per_byte_s = np.where(apart, work.per_byte_s, 0.0).sum(axis=1) / others
    away_s: Float64 = tensors[:, None] * latency_s + sent[:, None] * per_byte_s
    return StaticFeatures(
        urgency=_over_greatest(up_s),
        key=np.column_stack([key, np.zeros(work.order.size)]),
        away_s=away_s,
        unit_s=unit_s,
        bound_s=bound_s,
        share_s=share_s,
        tie=TIE * _tie_breakers(work, key),
        before=np.zeros(0, np.int64),
    )


def scene_after(work: ScheduleInputs, static: StaticFeatures, device: Int64) -> StaticFeatures:
    """Return what scores know when a schedule has put every operation on a device, int64 [n]."""
    source, target = np.repeat(device, np.diff(work.out_ptr)), device[work.out_node]
    sent_s = np.where(
        source == target, 0.0, work.latency_s[source, target] + work.out_bytes * work.per_byte_s[source, target]
    )
    level_s = longest_paths(work.order, work.out_ptr, work.out_node, sent_s, work.op_s[np.arange(device.size), device])
    key = static.key.copy()
    key[:, LEVEL] = _over_greatest(level_s)
    return static._replace(key=key, before=device)


def context_of(work: ScheduleInputs) -> Float64:
    """Return float64 [len(CONTEXT)], what is known of a problem as a whole, each within about [-1, 1]."""
    work_s = _positive(float(work.mean_s.sum()))
    path_s = _positive(float(_compute_level(work).max(initial=0.0)))
    sent_s = float(work.in_s.sum())
    allowed = work.allowed[work.group] & (work.mean_s > 0)[:, None]
    share = np.where(allowed, np.abs(work.op_s / np.where(work.mean_s > 0, work.mean_s, 1.0)[:, None] - 1.0), 0.0)
    return np.array(
        [
            1.0,
            np.clip(np.log(max(sent_s, 1e-6 * work_s) / work_s) / 4.0, -1.0, 1.0),
            np.clip(np.log(work_s / path_s / work.room.size) / 3.0, -1.0, 1.0),
            np.clip(share.sum() / max(int(allowed.sum()), 1), 0.0, 1.0),
        ]
    )


def _compute_level(work: ScheduleInputs) -> Float64:
    """Return float64 [n], the longest way to an end in mean seconds of operations alone."""
    return longest_paths(work.order, work.out_ptr, work.out_node, np.zeros(work.out_s.size), work.mean_s)


def _positive(seconds: float) -> float:
    """Return a divisor: the seconds, or 1 where nothing takes any."""
    return seconds if seconds > 0 else 1.0


def _over_greatest(values: Float64) -> Float64:
    shares: Float64 = values / _positive(float(values.max(initial=0.0)))
    return shares


def _sums(ptr: Int64, seconds: Float64) -> Float64:
    """Return float64 [n], the sums of what lies between the entries of ptr, int64 [n + 1]."""
    total = np.concatenate([[0.0], np.cumsum(seconds)])
    sums: Float64 = total[ptr[1:]] - total[ptr[:-1]]
    return sums


def _tie_breakers(work: ScheduleInputs, key: Float64) -> Float64:
    """Return float64 [n] in about [-1, 1], equal only where operations and their surroundings are much alike.

    It follows from figures alone, not from indices, so that operations may be numbered in any way.
    """
    n = work.order.size
    value = np.tanh(key @ np.sqrt(np.arange(2.0, 2.0 + key.shape[1])) - 3.0)
    consumer, producer = np.repeat(np.arange(n), np.diff(work.in_ptr)), work.in_node
    for _ in range(ROUNDS):
        above = np.bincount(consumer, value[producer] * np.sqrt(0.3), n)
        below = np.bincount(producer, value[consumer] * np.sqrt(0.7), n)
        value = np.tanh(value + np.sin(2.0 * above) + np.cos(3.0 * below) - 1.0)
    return value
