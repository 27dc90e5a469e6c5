"""What compiled local searches share: sums that do not depend on how a placement came about, and rules for trying
moves.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32, Int64
from pipeline.core.placement import Placement
from pipeline.core.simulation import LocalSearch, Moves
from pipeline.shared.compiled import inlined, inner, kernel
from runtime.simulators.shared.simulated import owned

NOW, BEST = 0, 1  # places in SearchTrace.value_s


class Changes(NamedTuple):
    """`Moves` for kernels."""

    ptr: Int64
    node: Int32
    device: Int32
    like: Int32
    shift: Float64
    threshold_s: Float64
    back: Int64
    price_s_per_byte: float
    bounded: bool


class SearchTrace(NamedTuple):
    """What a local search notes down.

    tried, taken: bool [r]. move_s: float64 [r], nan where not tried. value_s: float64 [2], seconds of the placement as
    it is, memory left aside, and of the best placement that fits. over_bytes: int64 [1], of the placement as it is.
    best: int32 [k], devices. best_move: int64 [1], the move that made the best placement; -1 for none.
    """

    tried: Bool
    taken: Bool
    move_s: Float64
    value_s: Float64
    over_bytes: Int64
    best: Int32
    best_move: Int64


def changes_of(moves: Moves) -> Changes:
    """Return moves as a kernel takes them."""
    return Changes(
        owned(moves.ptr),
        owned(moves.node),
        owned(moves.device),
        owned(moves.like),
        owned(moves.shift),
        owned(moves.threshold_s),
        owned(moves.back),
        float(moves.price_s_per_byte),
        bool(moves.bounded),
    )


def local_search_of(start: Placement, moves: Moves, trace: SearchTrace, end: Int64) -> LocalSearch:
    """Return the local search that a kernel noted down, which ended with the devices int64 [k]; priorities are added
    here.
    """
    return LocalSearch(
        trace.tried,
        trace.move_s,
        trace.taken,
        Placement.made(end.astype(np.int32), start.devices, shifted(start.priority, moves, trace.taken)),
        float(trace.value_s[NOW]) if trace.over_bytes[0] == 0 else math.inf,
        Placement.made(trace.best, start.devices, shifted(start.priority, moves, _before_best(trace))),
        float(trace.value_s[BEST]),
    )


def _before_best(trace: SearchTrace) -> Bool:
    """Return bool [r], the moves that led to the best placement."""
    moves, best_move = trace.taken.copy(), int(trace.best_move[0])
    moves[best_move + 1 :] = False
    if best_move >= 0:
        moves[best_move] = True
    return moves


def shifted(priority: Float64 | None, moves: Moves, done: Bool) -> Float64 | None:
    """Return the priorities, float64 [k], after those moves that were done, bool [r]; None without priorities."""
    if priority is None:
        return None
    moved = priority.copy()
    each = np.repeat(np.arange(moves.r), np.diff(moves.ptr))  # the move that each entry of moves.node belongs to
    kept = done[each]
    np.add.at(moved, moves.node[kept], moves.shift[each[kept]])  # one after another, as the moves were
    return moved


def new_trace(moves: Moves, start: Placement) -> SearchTrace:
    """Return an empty trace; the kernel begins it with `initialise_trace`."""
    r = moves.r
    return SearchTrace(
        np.zeros(r, bool),
        np.zeros(r, bool),
        np.full(r, np.nan),
        np.zeros(2),
        np.zeros(1, np.int64),
        owned(start.device),
        np.full(1, -1, np.int64),
    )


def tree_of(n: int) -> Float64:
    """Return float64 [2 h], the tree of n terms, all 0; term i is entry h + i, see `summed`."""
    return np.zeros(2 << max(n - 1, 0).bit_length())


@inner
def initialise_trace(trace: SearchTrace, value_s: float, over_bytes: int) -> None:
    """Note what the start costs."""
    trace.value_s[NOW] = value_s
    trace.value_s[BEST] = value_s if over_bytes == 0 else np.inf
    trace.over_bytes[0] = over_bytes


@inner
def target_of(changes: Changes, i: int, device: Int64, allowed: Bool, ordered: bool) -> int:
    """Return the device that move i puts its nodes on, -1 for where they are, or -2 if it is to be skipped.

    ordered: whether the placement has priorities, so that a shift alone changes it.
    """
    target = int(device[changes.like[i]]) if changes.like[i] >= 0 else int(changes.device[i])
    differs = ordered and changes.shift[i] != 0 and changes.ptr[i] < changes.ptr[i + 1]
    for x in range(changes.ptr[i], changes.ptr[i + 1]):
        j = changes.node[x]
        d = device[j]
        if target >= 0:
            d = target if x < changes.back[i] else device[changes.node[changes.ptr[i]]]
        if not allowed[j, d]:
            return -2
        differs |= d != device[j]
    return target if differs else -2


@inlined
def acceptable(
    now_s: float, now_over: float, new_s: float, new_over: float, threshold_s: float, price_s_per_byte: float
) -> bool:
    """Return whether a placement may take the place of another, by seconds and bytes beyond the memory; see
    `LocalSearch`.
    """
    if new_over == now_over:
        return new_s <= now_s + threshold_s
    if price_s_per_byte == math.inf or now_over == math.inf or new_over == math.inf:
        return new_over < now_over
    return new_s + price_s_per_byte * (new_over - now_over) <= now_s + threshold_s


@inner
def cutoff_s(trace: SearchTrace, changes: Changes, i: int, over_bytes: int) -> float:
    """Return the seconds beyond which nobody asks what move i costs: it is not taken and makes no best placement.

    They are inf where that cannot be told, and -inf where no time would do; over_bytes: after the move.
    """
    if not changes.bounded:
        return np.inf
    if over_bytes != trace.over_bytes[0]:
        hopeless = changes.price_s_per_byte == np.inf and over_bytes > trace.over_bytes[0]
        return -np.inf if hopeless else np.inf
    least_s = float(trace.value_s[NOW] + changes.threshold_s[i])
    return least_s if over_bytes > 0 else max(least_s, float(trace.value_s[BEST]))


@inner
def record_move(trace: SearchTrace, changes: Changes, i: int, value_s: float, over_bytes: int, device: Int64) -> bool:
    """Note what move i would cost, remember the placement if it is the best, and return whether the move is taken."""
    trace.tried[i] = True
    trace.move_s[i] = value_s if over_bytes == 0 else np.inf
    if trace.move_s[i] < trace.value_s[BEST]:
        trace.value_s[BEST] = value_s
        trace.best_move[0] = i
        for j in range(device.size):
            trace.best[j] = device[j]
    threshold_s, price_s = changes.threshold_s[i], changes.price_s_per_byte
    if acceptable(trace.value_s[NOW], float(trace.over_bytes[0]), value_s, float(over_bytes), threshold_s, price_s):
        trace.taken[i] = True
        trace.value_s[NOW] = value_s
        trace.over_bytes[0] = over_bytes
        return True
    return False


@kernel
def summed(tree: Float64) -> None:
    """Add up a tree's second half, its leaves, so that tree[1] is the sum.

    Whoever changes one leaf renews its ancestors alone, and finds, bit for bit, the sum that the tree would have if it
    were added up again: the order of the additions depends on the places of the terms only.
    """
    for x in range(tree.size // 2 - 1, 0, -1):
        tree[x] = tree[2 * x] + tree[2 * x + 1]


@kernel
def update_leaf(tree: Float64, i: int, term: float) -> None:
    """Set leaf i and add up what lies above it."""
    x = tree.size // 2 + i
    if tree[x] == term:
        return
    tree[x] = term
    x //= 2
    while x:
        tree[x] = tree[2 * x] + tree[2 * x + 1]
        x //= 2


@inner
def excess(held_bytes: Int64, capacity_bytes: Int64) -> int:
    """Return by how many bytes devices hold more than they can."""
    total = 0
    for d in range(held_bytes.size):
        total += max(held_bytes[d] - capacity_bytes[d], 0)
    return total
