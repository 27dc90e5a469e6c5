"""Groups of nodes merged along edges by falling score, round by round, within limits of work and memory.

Source: Keuper et al., Efficient decomposition of image and mesh graphs by lifted multicuts, ICCV 2015 (greedy additive
edge contraction): log-odds of parallel edges add up. Ours merges many edges before it adds up again, and has limits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int64
from pipeline.core.graph import Grouping, sum_per_group
from pipeline.core.problem import allowed_for_all
from pipeline.shared.compiled import compiled, inlined

LIGHT = 0.02  # share of a group's most work below which it may join any other: reshapes, leaves
KEPT = 0.75  # share of the groups that is left by a round


class MergeLimits(NamedTuple):
    """What groups of n nodes may be.

    work, held: float64 [n], and the most of a group; allowed: bool [n, p], of which a group needs a device in common.
    groups: at how many merging stops. light: work up to which a group may join any other, whatever their work.
    """

    work: Float64
    work_cap: float
    held: Float64
    held_cap: float
    allowed: Bool
    groups: int
    light: float

    @classmethod
    def balanced(cls, work: Float64, *, groups: int, balance: float) -> MergeLimits:
        """Return limits of work alone: a group's over the mean, at most."""
        n, cap = work.size, balance * float(work.sum()) / max(groups, 1)
        return cls(work, cap, np.zeros(n), np.inf, np.ones((n, 1), bool), groups, LIGHT * cap)


@dataclass(frozen=True, slots=True, eq=False)
class MergeRound:
    """The groups before a round, and the edges between them.

    ends: int64 [2, e], edges between groups, all of different pairs. pair: int64 [m], which of them each edge of a node
    belongs to; -1 within a group. limits: of these groups, down to as many as the round leaves.
    """

    grouping: Grouping
    ends: Int64
    pair: Int64
    limits: MergeLimits

    @classmethod
    def of(cls, grouping: Grouping, ends: Int64, limits: MergeLimits) -> MergeRound:
        """Return the round that comes after some groups of nodes; ends: int64 [2, m]; limits: of the nodes."""
        k, at = grouping.k, grouping.group[ends].astype(np.int64)
        code = at.min(axis=0) * k + at.max(axis=0)
        apart = at[0] != at[1]
        codes, which = np.unique(code[apart], return_inverse=True)
        pair = np.full(at.shape[1], -1, np.int64)
        pair[apart] = which
        own = MergeLimits(
            sum_per_group(limits.work, grouping),
            limits.work_cap,
            sum_per_group(limits.held, grouping),
            limits.held_cap,
            allowed_for_all(limits.allowed, grouping),
            max(limits.groups, int(KEPT * k)),
            limits.light,
        )
        return cls(grouping, np.stack([codes // k, codes % k]), pair, own)

    def sums(self, score: Float64) -> Float64:
        """Return float64 [e], the scores of nodes' edges, float64 [m], added up."""
        apart = self.pair >= 0
        return np.bincount(self.pair[apart], weights=score[apart], minlength=self.ends.shape[1]).astype(np.float64)

    def after(self, taken: Int64) -> Grouping:
        """Return the groups of nodes after merging along edges between groups, int64."""
        return self.grouping.then(Grouping.of_labels(merged(self.ends, taken, self.limits)[0]))


def contracted(ends: Int64, score: Float64, limits: MergeLimits, begin: Grouping | None = None) -> Grouping:
    """Return the groups that merging by the greatest sums of scores leaves; ends: int64 [2, m], score: float64 [m].

    begin: the groups that it begins with, each node alone unless given.
    """
    grouping = begin or Grouping.identity(limits.work.size)
    while grouping.k > limits.groups:
        turn = MergeRound.of(grouping, ends, limits)
        further = turn.after(np.argsort(-turn.sums(score), kind="stable"))
        if further.k == grouping.k:
            break
        grouping = further
    return grouping


@inlined
def _find(head: Int64, i: int) -> int:
    while head[i] != i:
        head[i] = head[head[i]]
        i = head[i]
    return i


@inlined
def _may_merge(work: Float64, held: Float64, allowed: Bool, limits: MergeLimits, a: int, b: int) -> bool:
    """Return whether two groups may merge; once they may not, they never may again, for groups only grow."""
    if a == b or held[a] + held[b] > limits.held_cap:
        return False
    if work[a] + work[b] > limits.work_cap and min(work[a], work[b]) > limits.light:
        return False
    common = False
    for d in range(allowed.shape[1]):
        common = common or (allowed[a, d] and allowed[b, d])
    return common


@inlined
def _merge(head: Int64, work: Float64, held: Float64, allowed: Bool, a: int, b: int) -> None:
    head[b] = a
    work[a] += work[b]
    held[a] += held[b]
    for d in range(allowed.shape[1]):
        allowed[a, d] = allowed[a, d] and allowed[b, d]


@compiled
def merged(ends: Int64, order: Int64, limits: MergeLimits) -> tuple[Int64, Int64]:
    """Return a label per node, int64 [n], and the edges merged along, int64: those of `order`, first to last, that may.

    Two groups may merge with a device in common and within the limits; what is light may join any group.
    """
    n = limits.work.size
    head, left = np.arange(n), n
    work, held, allowed = limits.work.copy(), limits.held.copy(), limits.allowed.copy()
    taken, count = np.empty(n, np.int64), 0
    for e in order:
        if left <= limits.groups:
            break
        a, b = _find(head, ends[0, e]), _find(head, ends[1, e])
        if _may_merge(work, held, allowed, limits, a, b):
            _merge(head, work, held, allowed, a, b)
            taken[count] = e
            count += 1
            left -= 1
    for i in range(n):
        head[i] = _find(head, i)
    return head, taken[:count]


@compiled
def turns_open(ends: Int64, taken: Int64, limits: MergeLimits) -> Int64:
    """Return int64 [e], at how many of the merges along `taken`, from the first on, each edge might have been taken."""
    head = np.arange(limits.work.size)
    work, held, allowed = limits.work.copy(), limits.held.copy(), limits.allowed.copy()
    turns, still = np.zeros(ends.shape[1], np.int64), np.ones(ends.shape[1], np.bool_)
    for t in range(taken.size):
        for e in range(ends.shape[1]):
            if still[e]:
                a, b = _find(head, ends[0, e]), _find(head, ends[1, e])
                still[e] = _may_merge(work, held, allowed, limits, a, b)
                turns[e] += still[e]
        _merge(head, work, held, allowed, _find(head, ends[0, taken[t]]), _find(head, ends[1, taken[t]]))
    return turns
