"""The kernels of the dynamic programs over stages; `policy.place.exact.shared.stages` says what they compute."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.core.arrays import Float64, Int32, Int64
from pipeline.shared.compiled import allocating, compiled, inlined, inner
from policy.place.exact.shared.elements import Charges

SELDOM = 16  # pairs between two looks at which values are still of use


class StageChoices(NamedTuple):
    """The c ways to run one stage, and S states: how many devices of each kind may be in use.

    kind: int64 [c]. share: float64 [c], of the stage's load that every replica has. sync_s: float64 [c], seconds per
    byte of weights that replicas spend on exchanging them. shift: int64 [c], how many states further a stage leads.
    price: float64 [S], what the devices in use are worth in the time of all, see `load_bound`; nan for states between
    the others, which more devices than there are would lead to. full: the state with all devices. limit_s: what loads
    must stay below.
    """

    kind: Int64
    share: Float64
    sync_s: Float64
    shift: Int64
    price: Float64
    full: int
    limit_s: float


class Lattice(NamedTuple):
    """The c ideals of a graph, by size: sets of elements that contain all elements before theirs.

    first: int64 [k + 2], where those of each size begin. ptr: int64 [c + 1]: ideal i without the element taken[x] is
    the ideal below[x], for x in ptr[i]:ptr[i + 1]. priced_s: float64 [c], their priced work.
    """

    first: Int64
    ptr: Int64
    below: Int32
    taken: Int32
    priced_s: Float64


class LeastLoads(NamedTuple):
    """The least largest load of every ideal, or prefix, and state: float64 [c, S], and least_s: float64 [c], of all."""

    value_s: Float64
    least_s: Float64


@inlined
def entered(charges: Charges, count: Int64, pay_s: Float64, e: int) -> None:
    """Let an element enter the stage whose members of each net are counted; pay_s: float64 [K], what it pays."""
    for x in range(charges.ptr[e], charges.ptr[e + 1]):
        net = charges.net[x]
        count[net] += 1
        if count[net] == 1:
            for q in range(pay_s.size):
                pay_s[q] += charges.pay_s[net, q]
        if count[net] == charges.size[net]:
            for q in range(pay_s.size):
                pay_s[q] -= charges.pay_s[net, q]


@inlined
def _open(charges: Charges, choices: StageChoices, work_s: Float64, held: int, worst_s: float) -> bool:
    """Return whether a stage that has at least this work, float64 [K], could still be of use."""
    for o in range(choices.kind.size):
        q = choices.kind[o]
        if held <= charges.room_bytes[q] and work_s[q] * choices.share[o] < worst_s:
            return True
    return False


@inlined
def _live(choices: StageChoices, priced_s: float, total_s: float, live: Int64) -> int:
    """Write down the states in which so much priced work can be done, and the rest behind it; return how many."""
    count = 0
    for s in range(choices.price.size):
        here = priced_s <= choices.limit_s * choices.price[s]
        if here and total_s - priced_s <= choices.limit_s * (choices.price[choices.full] - choices.price[s]):
            live[count] = s
            count += 1
    return count


@inlined
def _improved(
    charges: Charges,
    choices: StageChoices,
    best: LeastLoads,
    at: int,
    stage: tuple[int, Float64, Float64, int],
    worst_s: float,
) -> None:
    """Let ideal `at` end with a stage: the ideal before it, its work, its pay, its bytes.

    worst_s: the worst value that matters: what takes as long is of no use.
    """
    before, work_s, pay_s, held = stage
    if best.least_s[before] >= worst_s:
        return
    for o in range(choices.kind.size):
        q = choices.kind[o]
        load_s = (work_s[q] + pay_s[q]) * choices.share[o] + choices.sync_s[o] * held
        if not load_s < worst_s or held > charges.room_bytes[q]:
            continue
        shift = choices.shift[o]
        for s in range(shift, choices.price.size):
            value_s = best.value_s[before, s - shift]
            value_s = value_s if value_s > load_s else load_s
            old_s = best.value_s[at, s]
            best.value_s[at, s] = value_s if value_s < old_s else old_s


@inlined
def _worst(best: LeastLoads, at: int, live: Int64) -> float:
    """Return the worst value of the states that matter."""
    worst_s = 0.0
    for s in live:
        worst_s = max(worst_s, best.value_s[at, s])
    return worst_s


@inlined
def _settled(choices: StageChoices, best: LeastLoads, at: int) -> None:
    """Take the values of states that are none back, and note the least of the others."""
    best.least_s[at] = choices.limit_s
    for s in range(choices.price.size):
        if np.isnan(choices.price[s]):
            best.value_s[at, s] = choices.limit_s
        best.least_s[at] = min(best.least_s[at], best.value_s[at, s])


@inlined
def _leads_there(
    charges: Charges, choices: StageChoices, best: LeastLoads, goal: Int64, stage: tuple[int, Float64, Float64, int]
) -> bool:
    """Return whether the goal (ideal, state) has its value from ending with a stage; if so, note (before, choice)."""
    before, work_s, pay_s, held = stage
    for o in range(choices.kind.size):
        q = choices.kind[o]
        load_s = (work_s[q] + pay_s[q]) * choices.share[o] + choices.sync_s[o] * held
        from_state = goal[1] - choices.shift[o]
        if from_state < 0 or held > charges.room_bytes[q]:
            continue
        if max(best.value_s[before, from_state], load_s) <= best.value_s[goal[0], goal[1]]:
            goal[2], goal[3] = before, o
            return True
    return False


class Walk(NamedTuple):
    """Where a search among the ideals inside one is: a stack of at most k + 1 levels.

    work_s, pay_s: float64 [k + 1, K], of the stage so far. held: int64 [k + 1], its bytes. at: the ideal that is left;
    follow: which element to take next; gone: the one that was taken last; all int64 [k + 1]. inside: int64 [t], members
    of each net in the stage. states: int64 [S], scratch. seen: int32 [c], the ideal from which each was met last.
    """

    work_s: Float64
    pay_s: Float64
    held: Int64
    at: Int64
    follow: Int64
    gone: Int64
    inside: Int64
    states: Int64
    seen: Int32


@allocating
def walk_of(charges: Charges, choices: StageChoices, seen: Int32) -> Walk:
    """Return a search that has not begun; seen: int32 [c], kept from one to the next."""
    k, kinds = charges.work_s.shape
    return Walk(
        np.zeros((k + 1, kinds)),
        np.zeros((k + 1, kinds)),
        np.zeros(k + 1, np.int64),
        np.empty(k + 1, np.int64),
        np.empty(k + 1, np.int64),
        np.empty(k + 1, np.int64),
        np.zeros(charges.size.size, np.int64),
        np.empty(choices.price.size, np.int64),
        seen,
    )


@compiled
def best_of_ideals(
    charges: Charges, choices: StageChoices, lattice: Lattice, best: LeastLoads, seen: Int32, span: Int64, goal: Int64
) -> int:
    """Fill in the values of ideals span[0], span[0] + span[2], ... below span[1]; return how many pairs were priced.

    Those of all smaller ideals are known. seen: int32 [c], of this thread, below 0 at first. span: int64 [4]: after
    span[3] pairs it ends, and span[0] is where to go on. goal: int64 [4], an ideal and a state whose value is known, or
    -1 twice: what the value comes from is noted behind them, nothing filled in.
    """
    walk = walk_of(charges, choices, seen)
    pairs = 0
    while span[0] < span[1] and pairs < span[3]:
        pairs += 1 + _walked(charges, choices, lattice, best, walk, span[0], goal)
        span[0] += span[2]
    return pairs


@inlined
def added(charges: Charges, walk: Walk, depth: int, e: int) -> None:
    """Add an element to the stage so far, on the next level."""
    for q in range(walk.work_s.shape[1]):
        walk.work_s[depth + 1, q] = walk.work_s[depth, q] + charges.work_s[e, q]
        walk.pay_s[depth + 1, q] = walk.pay_s[depth, q]
    walk.held[depth + 1] = walk.held[depth] + charges.held_bytes[e]


@inlined
def left(charges: Charges, walk: Walk, depth: int) -> int:
    """Leave a level, and return the one above."""
    if depth > 0:
        e = walk.gone[depth]
        for y in range(charges.ptr[e], charges.ptr[e + 1]):
            walk.inside[charges.net[y]] -= 1
    return depth - 1


@inner
def _walked(
    charges: Charges, choices: StageChoices, lattice: Lattice, best: LeastLoads, walk: Walk, i: int, goal: Int64
) -> int:
    """Fill in the values of one ideal, or find the goal's last stage; return how many pairs were priced.

    One maximal element after another is taken away, depth first, so that every ideal inside is met once.
    """
    total_s = lattice.priced_s[lattice.priced_s.size - 1]
    live = walk.states[: _live(choices, lattice.priced_s[i], total_s, walk.states)]
    if live.size == 0:
        return 0
    worst_s = choices.limit_s
    pairs = depth = 0
    walk.at[0], walk.follow[0] = i, lattice.ptr[i]
    while depth >= 0:
        x = walk.follow[depth]
        if x == lattice.ptr[walk.at[depth] + 1]:
            depth = left(charges, walk, depth)
            continue
        walk.follow[depth] = x + 1
        j, e = lattice.below[x], lattice.taken[x]
        if walk.seen[j] == i:
            continue
        walk.seen[j] = i
        added(charges, walk, depth, e)
        if not _open(charges, choices, walk.work_s[depth + 1], walk.held[depth + 1], worst_s):
            continue
        depth += 1
        walk.at[depth], walk.follow[depth], walk.gone[depth] = j, lattice.ptr[j], e
        entered(charges, walk.inside, walk.pay_s[depth], e)
        pairs += 1
        stage = (j, walk.work_s[depth], walk.pay_s[depth], walk.held[depth])
        if goal[0] >= 0:
            if _leads_there(charges, choices, best, goal, stage):
                return pairs
        else:
            _improved(charges, choices, best, i, stage, worst_s)
            if pairs % SELDOM == 0:
                worst_s = _worst(best, i, live)
    if goal[0] < 0:
        _settled(choices, best, i)
    return pairs


@compiled
def best_of_prefixes(
    charges: Charges, choices: StageChoices, order: Int64, priced_s: Float64, best: LeastLoads, span: Int64, goal: Int64
) -> int:
    """Fill in the values of prefixes span[0] to span[1] of an order of the elements, int64 [k]; return how many pairs
    were priced.

    Those of all shorter ones are known. priced_s: float64 [k + 1], the priced work of the prefixes. span: int64 [3]:
    after span[2] pairs it ends, and span[0] is where to go on. goal: as for `best_of_ideals`.
    """
    work_s, pay_s = np.zeros(charges.work_s.shape[1]), np.zeros(charges.work_s.shape[1])  # of the stage so far
    inside, states = np.zeros(charges.size.size, np.int64), np.empty(choices.price.size, np.int64)
    pairs = 0
    while span[0] < span[1] and pairs < span[2]:
        # Fill in the values of one prefix, or find the goal's last stage
        i = span[0]
        live = states[: _live(choices, priced_s[i], priced_s[order.size], states)]
        worst_s = choices.limit_s if live.size else 0.0
        for q in range(work_s.size):
            work_s[q] = 0.0
            pay_s[q] = 0.0
        held, j = 0, i
        while j > 0:
            e = order[j - 1]
            for q in range(work_s.size):
                work_s[q] += charges.work_s[e, q]
            held += charges.held_bytes[e]
            if not _open(charges, choices, work_s, held, worst_s):
                break
            j -= 1
            entered(charges, inside, pay_s, e)
            stage = (j, work_s, pay_s, held)
            if goal[0] >= 0:
                if _leads_there(charges, choices, best, goal, stage):
                    break
            else:
                _improved(charges, choices, best, i, stage, worst_s)
                if (i - j) % SELDOM == 0:
                    worst_s = _worst(best, i, live)
        for x in range(j, i):
            for y in range(charges.ptr[order[x]], charges.ptr[order[x] + 1]):
                inside[charges.net[y]] -= 1
        if goal[0] < 0:
            _settled(choices, best, i)
        pairs += 1 + i - j
        span[0] += 1
    return pairs


@compiled
def depth_first(ptr: Int64, after: Int32, waiting: Int32, rank: Float64) -> Int64:
    """Return int64 [k], a topological order that follows a path as far as it goes; uses `waiting` up.

    after: int32: element e precedes after[ptr[e]:ptr[e + 1]]. rank: float64 [k]: of what becomes ready at once, that
    of the greatest rank comes next.

    Source: the linearisation in the code published with Tarnawski et al., NeurIPS 2020.
    """
    k = ptr.size - 1
    order, stack = np.empty(k, np.int64), np.empty(k, np.int64)
    top = done = 0
    for e in np.argsort(rank):
        if waiting[e] == 0:
            stack[top] = e
            top += 1
    while top > 0:
        top -= 1
        e = stack[top]
        order[done] = e
        done += 1
        begin = top
        for x in range(ptr[e], ptr[e + 1]):
            b = after[x]
            waiting[b] -= 1
            if waiting[b] == 0:
                y = top
                while y > begin and rank[stack[y - 1]] > rank[b]:
                    stack[y] = stack[y - 1]
                    y -= 1
                stack[y] = b
                top += 1
    return order[:done]
