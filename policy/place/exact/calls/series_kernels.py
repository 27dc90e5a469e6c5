"""The kernel of the dynamic program over calls in series; `latency_dp` says what it computes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32, Int64
from pipeline.shared.compiled import compiled, inlined, inner
from policy.place.exact.shared.elements import Charges
from policy.place.exact.shared.stage_kernels import Lattice, StageChoices, Walk, added, entered, left, walk_of

SELDOM = 16  # pairs between two looks at which values are still of use


class Series(NamedTuple):
    """Calls one after another.

    charges, choices, lattice: as for stages, of which those on CPUs use no device up. cpu: int64 [K], 1 for kinds of
    CPUs, 0 for others. ptr: int64 [k + 1], after: int32: element e precedes after[ptr[e]:ptr[e + 1]]. share: float64
    [k], how much of a flow from sources to sinks goes through each element, and flow: float64, along each edge; where
    they are empty everything counts, and CPUs need as long as the longest path of a stage.
    """

    charges: Charges
    choices: StageChoices
    lattice: Lattice
    cpu: Int64
    ptr: Int64
    after: Int32
    share: Float64
    flow: Float64


class Weights(NamedTuple):
    """What is known of a stage so far besides its work.

    tail_s: float64 [k, K], of each element in it, the longest path that it begins. met: float64 [k + 1], on each level
    how much of the flow meets the stage. inside: bool [k], its elements.
    """

    tail_s: Float64
    met: Float64
    inside: Bool


@compiled
def series_of_ideals(series: Series, value_s: Float64, seen: Int32, span: Int64, goal: Int64) -> int:
    """Fill in the least sums of ideals span[0] to span[1], float64 [c, S]; return how many pairs were priced.

    Those of all smaller ideals are known. seen: int32 [c], below 0 at first. span: int64 [3]: after span[2] pairs it
    ends, and span[0] is where to go on. goal: int64 [4], an ideal and a state whose value is known, or -1 twice: what
    the value comes from is noted behind them, nothing filled in.
    """
    k, kinds = series.charges.work_s.shape
    walk = walk_of(series.charges, series.choices, seen)
    more = Weights(np.zeros((k, kinds)), np.ones(k + 1), np.zeros(k, np.bool_))
    if series.share.size > 0:
        more.met[0] = 0.0
    pairs = 0
    while span[0] < span[1] and pairs < span[2]:
        pairs += 1 + _walked(series, value_s, walk, more, span[0], goal)
        span[0] += 1
    return pairs


@inlined
def _follows(series: Series, walk: Walk, more: Weights, depth: int, e: int) -> None:
    """Let the stage have one more element, e, before all others: what CPUs need for it, and how much flow meets it."""
    weighted = series.share.size > 0
    more.inside[e] = True
    if weighted:
        more.met[depth + 1] = more.met[depth] + series.share[e]
        for x in range(series.ptr[e], series.ptr[e + 1]):
            if more.inside[series.after[x]]:
                more.met[depth + 1] -= series.flow[x]
    for q in range(series.cpu.size):
        if series.cpu[q] == 0:
            continue
        own_s = series.charges.work_s[e, q]
        if weighted:
            met_s = own_s if own_s == np.inf else series.share[e] * own_s
            walk.work_s[depth + 1, q] = walk.work_s[depth, q] + met_s
            continue
        longest_s = 0.0
        for x in range(series.ptr[e], series.ptr[e + 1]):
            longest_s = max(longest_s, more.tail_s[series.after[x], q])
        more.tail_s[e, q] = longest_s + own_s
        walk.work_s[depth + 1, q] = max(walk.work_s[depth, q], more.tail_s[e, q])


@inlined
def _load_s(series: Series, walk: Walk, more: Weights, depth: int, q: int) -> float:
    """Return what the stage takes on a kind of devices, as far as the flow meets it."""
    load_s = walk.work_s[depth, q] + walk.pay_s[depth, q]
    return float(load_s if series.cpu[q] == 1 or load_s == np.inf else load_s * more.met[depth])


@inlined
def _worth(series: Series, walk: Walk, more: Weights, depth: int, worst_s: float) -> bool:
    """Return whether a stage that takes at least this long could be of use."""
    charges, choices = series.charges, series.choices
    for o in range(choices.kind.size):
        q = choices.kind[o]
        share = 1.0 if series.cpu[q] == 1 else more.met[depth]
        if walk.held[depth] <= charges.room_bytes[q] and walk.work_s[depth, q] * share < worst_s:
            return True
    return False


@inlined
def _ends_with(series: Series, value_s: Float64, walk: Walk, more: Weights, depth: int, i: int, j: int) -> None:
    """Let ideal i end with the stage behind ideal j."""
    charges, choices = series.charges, series.choices
    for o in range(choices.kind.size):
        q, shift = choices.kind[o], choices.shift[o]
        if walk.held[depth] > charges.room_bytes[q]:
            continue
        load_s = _load_s(series, walk, more, depth, q)
        for s in range(shift, choices.price.size):
            value_s[i, s] = min(value_s[i, s], value_s[j, s - shift] + load_s)


@inlined
def _comes_from(series: Series, value_s: Float64, walk: Walk, more: Weights, depth: int, j: int, goal: Int64) -> bool:
    """Return whether the goal has its value from ending with the stage behind ideal j; if so, note (before, choice)."""
    charges, choices = series.charges, series.choices
    for o in range(choices.kind.size):
        q = choices.kind[o]
        before = goal[1] - choices.shift[o]
        if before < 0 or walk.held[depth] > charges.room_bytes[q]:
            continue
        load_s = _load_s(series, walk, more, depth, q)
        if value_s[j, before] + load_s <= value_s[goal[0], goal[1]]:
            goal[2], goal[3] = j, o
            return True
    return False


@inlined
def _worst(value_s: Float64, price: Float64) -> float:
    """Return the worst value, float64 [S], of the states that count."""
    worst_s = 0.0
    for s in range(price.size):
        if not np.isnan(price[s]):
            worst_s = max(worst_s, value_s[s])
    return worst_s


@inner
def _walked(series: Series, value_s: Float64, walk: Walk, more: Weights, i: int, goal: Int64) -> int:
    """Fill in the values of one ideal, or find the goal's last stage; return how many pairs were priced."""
    charges, lattice, price = series.charges, series.lattice, series.choices.price
    worst_s = series.choices.limit_s
    pairs = depth = 0
    walk.at[0], walk.follow[0] = i, lattice.ptr[i]
    while depth >= 0:
        x = walk.follow[depth]
        if x == lattice.ptr[walk.at[depth] + 1]:
            if depth > 0:
                more.tail_s[walk.gone[depth]] = 0.0
                more.inside[walk.gone[depth]] = False
            depth = left(charges, walk, depth)
            continue
        walk.follow[depth] = x + 1
        j, e = lattice.below[x], lattice.taken[x]
        if walk.seen[j] == i:
            continue
        walk.seen[j] = i
        added(charges, walk, depth, e)
        _follows(series, walk, more, depth, e)
        depth += 1
        walk.at[depth], walk.follow[depth], walk.gone[depth] = j, lattice.ptr[j], e
        entered(charges, walk.inside, walk.pay_s[depth], e)
        if not _worth(series, walk, more, depth, worst_s):
            walk.follow[depth] = lattice.ptr[j + 1]
            continue
        pairs += 1
        if goal[0] >= 0:
            if _comes_from(series, value_s, walk, more, depth, j, goal):
                return pairs
            continue
        _ends_with(series, value_s, walk, more, depth, i, j)
        if pairs % SELDOM == 0:
            worst_s = _worst(value_s[i], price)
    for s in range(price.size):
        if goal[0] < 0 and np.isnan(price[s]):
            value_s[i, s] = series.choices.limit_s
    return pairs
