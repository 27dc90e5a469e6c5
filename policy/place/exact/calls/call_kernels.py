"""Which operations belong to a call that meets a path between two of its operations, and which do not."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32, Int64
from pipeline.shared.compiled import compiled, inner


class CallSets(NamedTuple):
    """n operations in k parts that share a call, and the nets between the parts.

    leads: bool [n, n], whether a path leads from one to another, or they are one; led: its transpose. part: int32 [n];
    the operations of part g are member[ptr[g]:ptr[g + 1]]. work_s: float64 [n], inf where not allowed. held_bytes:
    int64 [n]. room_bytes: of the largest accelerator. net_ptr: int64 [t + 1], net_part: int64: net i holds the parts
    net_part[net_ptr[i]:net_ptr[i + 1]]. pay_s: float64 [t], what a call pays that holds some of them but not all.
    """

    leads: Bool
    led: Bool
    part: Int32
    ptr: Int64
    member: Int64
    work_s: Float64
    held_bytes: Int64
    room_bytes: int
    net_ptr: Int64
    net_part: Int64
    pay_s: Float64


class CallMembership(NamedTuple):
    """What is known of a call.

    inside, outside: bool [n], the operations that belong to it, and those that do not. before, behind: bool [n], what
    leads to, and what follows, those inside. waiting: int64 [n], scratch.
    """

    inside: Bool
    outside: Bool
    before: Bool
    behind: Bool
    waiting: Int64


@inner
def _with_part(sets: CallSets, chosen: Bool, waiting: Int64, count: int, i: int) -> int:
    """Choose an operation and all of its part; return how many wait to be looked at."""
    for x in range(sets.ptr[sets.part[i]], sets.ptr[sets.part[i] + 1]):
        j = sets.member[x]
        if not chosen[j]:
            chosen[j] = True
            waiting[count] = j
            count += 1
    return count


@inner
def _entered(sets: CallSets, path: Int64, i: int, j: int, decided: CallMembership) -> None:
    """Let a call that meets a path from i on meet it up to j as well.

    What lies on a path between two operations of a call belongs to it, and so does all of a part of which something
    does.
    """
    n = sets.part.size
    count = 0
    for end in (path[i], path[j]):
        if not decided.inside[end]:
            count = _with_part(sets, decided.inside, decided.waiting, count, end)
    while count > 0:
        count -= 1
        x = decided.waiting[count]
        for y in range(n):
            decided.before[y] |= sets.led[x, y]
        for y in range(n):
            decided.behind[y] |= sets.leads[x, y]
        if count == 0:
            for y in range(n):
                if decided.before[y] and decided.behind[y] and not decided.inside[y]:
                    count = _with_part(sets, decided.inside, decided.waiting, count, y)


@inner
def _left_out(sets: CallSets, path: Int64, i: int, j: int, decided: CallMembership) -> None:
    """Note what does not belong to a call that meets a path from i to j, whose inside is known.

    What leads to the operation ahead of i, or follows that behind j, and all of its part; what does not belong to the
    call, and leads to it, has nothing before it that does.
    """
    n = sets.part.size
    decided.outside.fill(False)
    if i > 0:
        for y in range(n):
            decided.outside[y] |= sets.led[path[i - 1], y]
    if j + 1 < path.size:
        for y in range(n):
            decided.outside[y] |= sets.leads[path[j + 1], y]
    count = 0
    for y in range(n):
        if decided.outside[y] and sets.ptr[sets.part[y] + 1] - sets.ptr[sets.part[y]] > 1:
            count = _with_part(sets, decided.outside, decided.waiting, count, y)
    while count > 0:
        count -= 1
        x = decided.waiting[count]
        for y in range(n if decided.before[x] or decided.behind[x] else 0):
            led = (decided.before[x] and sets.led[x, y]) or (decided.behind[x] and sets.leads[x, y])
            if led and not decided.outside[y]:
                count = _with_part(sets, decided.outside, decided.waiting, count, y)


@inner
def _blank(decided: CallMembership) -> None:
    decided.inside.fill(False)
    decided.before.fill(False)
    decided.behind.fill(False)


@compiled
def decide(sets: CallSets, path: Int64, i: int, j: int, decided: CallMembership) -> None:
    """Note which operations belong to a call that meets a path, int64 [l], from i to j, and which do not."""
    _blank(decided)
    _entered(sets, path, i, j, decided)
    _left_out(sets, path, i, j, decided)


@compiled
def surely_s(sets: CallSets, path: Int64, i: int, least_s: Float64, decided: CallMembership) -> None:
    """Fill in float64 [l], what surely belongs to a call that meets a path from i to each j; inf where none can.

    Operations, and nets of which something surely belongs to it and something does not. decided: scratch.
    """
    least_s.fill(np.inf)
    _blank(decided)
    for j in range(i, path.size):
        _entered(sets, path, i, j, decided)
        work_s, held = 0.0, 0
        for x in range(sets.part.size):
            if decided.inside[x]:
                work_s += sets.work_s[x]
                held += sets.held_bytes[x]
        if held > sets.room_bytes or work_s == np.inf:
            break  # longer ones hold all of this
        _left_out(sets, path, i, j, decided)
        # torn: something both belongs to the call and does not
        torn = False
        for x in range(decided.inside.size):
            torn = torn or (decided.inside[x] and decided.outside[x])
        if not torn:
            total_s = 0.0
            for net in range(sets.pay_s.size):
                inside = outside = False
                for x in range(sets.net_ptr[net], sets.net_ptr[net + 1]):
                    first = sets.member[sets.ptr[sets.net_part[x]]]
                    inside = inside or decided.inside[first]
                    outside = outside or decided.outside[first]
                if inside and outside:
                    total_s += sets.pay_s[net]
            least_s[j] = work_s + total_s
