"""Kernels that cut a placed model into sub-graphs and break the cycles among them; see `subgraphs`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.compiled import inlined, inner, kernel
from pipeline.core.arrays import Bool, Int32, Int64
from runtime.simulators.breaking import (
    EDGE,
    FIRST,
    ISOLATED,
    MEMBER,
    NO,
    START,
    SUPPLIES,
    UNIT,
    YES,
    Nodes,
    Piece,
    cut_out,
    isolate_one_operation,
    promote_meeting_edges,
)
from runtime.simulators.parts import BOUNDARY, GROUP, ITSELF, PART, SOURCE, TARGET, WAITING, joined, on_cycles

UInt64 = np.ndarray[tuple[int, ...], np.dtype[np.uint64]]
INTO_RESULT = BOUNDARY + 1  # the last row of Model.links
KNOT, TAG, LEAST, AT = range(4)  # rows of Desk.facts


class Model(NamedTuple):
    """What the kernels know of a model's n operations, which lie in u units.

    Operations of one unit are always on one device and in one sub-graph, unless a cycle is broken there.
    links: int32 [4, e], the different edges between units as `parts` take them, and INTO_RESULT: whether they end in a
    Result. first: int32 [u], the least number of an operation that computes, n where none does. few, each: the
    operations, merged as far as can be, and their supplies alone.
    """

    links: Int32
    first: Int32
    few: Nodes
    each: Nodes


class Memo(NamedTuple):
    """Counts of knots, see `Desk`, once their cycles are broken, each at the place that its key's last bits name.

    code: uint64 [u, p], a random number per unit and device. key: uint64 [s], the codes of the units and their devices,
    added; 0 for none. counts: int64 [s, p].
    """

    code: UInt64
    key: UInt64
    counts: Int64


class Desk(NamedTuple):
    """Where one count works.

    A knot is a largest set of parts that wait for one another, or a part that waits for itself: what becomes of it
    depends on nothing else.

    facts: int32 [4, n + 1]. KNOT [u]: that of each unit, -1 for none. TAG [u]: of each set of parts, its knot. LEAST,
    AT: the least number of an operation that computes in each part, and its device.

    keys: uint64 [u], of the knots. room: for the units. piece: for one knot. boundary: bool [m], of each edge between
    nodes, where one of the knots that were broken last has it; others are left as they were.
    """

    facts: Int32
    keys: UInt64
    room: Int32
    piece: Piece
    boundary: Bool


class Counter(NamedTuple):
    """A model and where its sub-graphs are counted; desk and memo change."""

    model: Model
    desk: Desk
    memo: Memo


@kernel
def count(counter: Counter, device: Int32, counts: Int64) -> None:
    """Count by device, into int64 [b, p], the parts that compute, each where its first such operation is.

    device: int32 [b, u], of b placements. One on one device counts as one.
    """
    model, desk, memo = counter.model, counter.desk, counter.memo
    for b in range(device.shape[0]):
        if _alone(device[b]):
            for d in range(counts.shape[1]):
                counts[b, d] = d == device[b, 0]
            continue
        knots = _tied(model, desk, device[b])
        _count_free(model, desk, device[b], memo.code, counts[b])
        for c in range(knots):
            place = int(np.int64(desk.keys[c] & np.uint64(memo.key.size - 1)))
            if memo.key[place] != desk.keys[c]:
                memo.key[place] = desk.keys[c]
                if not _count_knot(model.few, desk, device[b], c, memo.counts[place]):
                    _count_knot(model.each, desk, device[b], c, memo.counts[place])
            for d in range(counts.shape[1]):
                counts[b, d] += memo.counts[place, d]


@inlined
def _alone(device: Int32) -> bool:
    """Return whether all units are on one device."""
    alone = device.size > 0
    for u in range(device.size):
        alone &= device[u] == device[0]
    return alone


@inlined
def _count_free(model: Model, desk: Desk, device: Int32, code: UInt64, counts: Int64) -> None:
    """Count by device the parts that compute and lie in no knot, and add up the keys of the knots."""
    units, none, part = device.size, desk.facts.shape[1], desk.room[PART]
    knot, least, at = desk.facts[KNOT], desk.facts[LEAST], desk.facts[AT]
    for d in range(counts.size):
        counts[d] = 0
    for u in range(units):
        least[u] = none
        desk.keys[u] = 0
    for u in range(units):
        j = part[u]
        if knot[u] >= 0:
            desk.keys[knot[u]] += code[u, device[u]]
        elif model.first[u] < least[j]:
            least[j], at[j] = model.first[u], device[u]
    for j in range(units):
        if least[j] < none - 1:
            counts[at[j]] += 1


@inner
def _count_knot(nodes: Nodes, desk: Desk, device: Int32, c: int, counts: Int64) -> bool:
    """Count by device the parts that breaking the cycles of one knot leaves; return whether they could be told."""
    piece = desk.piece
    size = cut_out(nodes, device, desk.facts[KNOT], c, piece)
    found = YES
    while found == YES:
        found = promote_meeting_edges(nodes, piece, size)
    if found == NO:
        found = YES
    while found == YES:
        found = isolate_one_operation(nodes, piece, size)
    if found != NO:
        return False
    for y in range(piece.facts[START, size]):
        desk.boundary[piece.edges[EDGE, y]] = piece.edges[BOUNDARY, y]
    _count_pieces(nodes, desk, device, size, counts)
    return True


@inlined
def _count_pieces(nodes: Nodes, desk: Desk, device: Int32, size: int, counts: Int64) -> None:
    """Count by device the parts that compute of a knot whose cycles are broken."""
    piece, none, part = desk.piece, desk.facts.shape[1], desk.piece.room[PART]
    unit, least, at = nodes.facts[UNIT], desk.facts[LEAST], desk.facts[AT]
    for d in range(counts.size):
        counts[d] = 0
    for j in range(size + 1):
        least[j] = none
    for x in range(size):
        i, j = piece.facts[MEMBER, x], part[x]
        if piece.facts[ISOLATED, x]:
            counts[device[unit[i]]] += nodes.facts[SUPPLIES, i]
        if nodes.facts[FIRST, i] < least[j]:
            least[j], at[j] = nodes.facts[FIRST, i], device[unit[i]]
    for j in range(size + 1):
        if least[j] < none - 1:
            counts[at[j]] += 1


@inner
def _tied(model: Model, desk: Desk, device: Int32) -> int:
    """Find the parts and knots of units on devices int32 [u], and return how many knots there are."""
    links, room, part, group = model.links, desk.room, desk.room[PART], desk.room[GROUP]
    knot, tag = desk.facts[KNOT], desk.facts[TAG]
    for e in range(links.shape[1]):
        links[BOUNDARY, e] = device[links[SOURCE, e]] != device[links[TARGET, e]] and not links[INTO_RESULT, e]
    k = joined(links, links.shape[1], device.size, room)
    knots = 0
    for u in range(device.size):
        knot[u] = -1
    if not on_cycles(links, links.shape[1], k, room):
        return knots
    for j in range(k):
        tag[j] = -1
    for u in range(device.size):
        j = part[u]
        if room[WAITING, j] or room[ITSELF, j]:
            if tag[group[j]] < 0:
                tag[group[j]] = knots
                knots += 1
            knot[u] = tag[group[j]]
    return knots
