"""Kernels that break the cycles among the parts of a placed model, as HETERO does; see `subgraphs`.

Parts that wait for one another make a knot. How its cycles are broken depends on nothing outside it, whose edges into
it are boundaries whatever happens, and so each knot is broken on its own.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.compiled import inlined, inner
from pipeline.core.arrays import Bool, Int32, Int64
from runtime.simulators.parts import Links, Room, joined, on_cycles, room_of

LENGTH_BIT, FLAGS_BIT = 28, 56  # where a rank holds the number of inner producers, and what comes before it
NEVER = np.iinfo(np.int64).max  # the rank of what cannot be isolated
NO, YES, UNKNOWN = 0, 1, 2
WORD = 64  # parts that are looked at together, one bit each
BEFORE, BEHIND, OWN = 1, 2, 4  # marks of nodes, see `_meet`


class Nodes(NamedTuple):
    """n operations and m edges, or fewer nodes that stand for operations merged: see `merging.merged`.

    The first operation of a node is its head, and nodes are numbered as their heads are; the others read nothing but
    one operation of the node, and supplies: Constants with one reader, and what is computed from such for one reader.

    producer, consumer: int32 [m]. order: int32 [n], every producer before its consumers. into_ptr: int64 [n + 1],
    into: int32 [m]: the edges that end in node i are into[into_ptr[i]:into_ptr[i + 1]].
    to_result: bool [m], whether an edge ends in a Result. from_entry, shares, prepared, only: bool [m], whether an
    edge's operation of origin is a Parameter or a Constant; has several readers, Results not counted; computes for one
    reader alone, from Parameters and Constants alone; is no Parameter or Constant and has one edge.
    unit: int32 [n]. first: int32 [n], the least number of an operation that computes, that of all where none does.
    entry: bool [n], whether the head is a Parameter or a Constant, or has supplies. single: bool [n], whether the head
    has one reader at most. constants, supplies: int32 [n], how many supplies the head reads that are Constants, and
    that are not. blurred: bool [n], whether operations behind the head have supplies that the head has not. rank: int64
    [n], the least rank of the operations behind the head.
    """

    producer: Int32
    consumer: Int32
    order: Int32
    into_ptr: Int64
    into: Int32
    to_result: Bool
    from_entry: Bool
    shares: Bool
    prepared: Bool
    only: Bool
    unit: Int32
    first: Int32
    entry: Bool
    single: Bool
    constants: Int32
    supplies: Int32
    blurred: Bool
    rank: Int64


class Piece(NamedTuple):
    """One knot: l nodes in an order in which producers come first, and whatever is outside as number l.

    member: int32 [l]. ptr: int64 [l + 1]: the edges ptr[x] to ptr[x + 1] end in node x. edge: int32 [e], their
    numbers. links: the edges between the l + 1 nodes. parted, isolated: bool [l], whether the head is cut off from the
    Constants among its supplies, and from all it reads. place: int32 [n], where each node is; l outside.
    left: uint64 [l + 1], bits of parts left on the way to a node. entered, computed: bool [l + 1], whether its part was
    entered on the way to it by any boundary, or by one from an operation that is no Parameter or Constant; of use
    where its part was not left. blurred: bool [l + 1], whether it depends on a blurred node. chosen: bool [e].
    mark: uint8 [l + 1]. room: for the parts.
    """

    member: Int32
    ptr: Int64
    edge: Int32
    links: Links
    parted: Bool
    isolated: Bool
    place: Int32
    left: np.ndarray[tuple[int], np.dtype[np.uint64]]
    entered: Bool
    computed: Bool
    blurred: Bool
    chosen: Bool
    mark: np.ndarray[tuple[int], np.dtype[np.uint8]]
    room: Room


def piece_of(n: int, m: int) -> Piece:
    """Return room for a knot of n nodes and m edges."""
    member, place = (np.zeros(n, np.int32) for _ in range(2))
    edge, source, target = (np.zeros(m, np.int32) for _ in range(3))
    parted, isolated, entered, computed, blurred = (np.zeros(n + 1, bool) for _ in range(5))
    boundary, chosen = (np.zeros(m, bool) for _ in range(2))
    links, left, mark = Links(source, target, boundary), np.zeros(n + 1, np.uint64), np.zeros(n + 1, np.uint8)
    ptr, room = np.zeros(n + 1, np.int64), room_of(n + 1, m)
    return Piece(
        member, ptr, edge, links, parted, isolated, place, left, entered, computed, blurred, chosen, mark, room
    )


@inner
def cut_out(nodes: Nodes, device: Int32, knot: Int32, c: int, piece: Piece) -> int:
    """Make the piece knot c, before its cycles are broken, and return its size; device, knot: int32 [u]."""
    size = edges = 0
    links = piece.links
    for o in range(nodes.unit.size):
        i = nodes.order[o]
        piece.place[i] = -1
        if knot[nodes.unit[i]] == c:
            piece.place[i] = size
            piece.member[size] = i
            piece.ptr[size] = edges
            piece.parted[size] = piece.isolated[size] = False
            for y in range(nodes.into_ptr[i], nodes.into_ptr[i + 1]):
                e = nodes.into[y]
                a = nodes.producer[e]
                piece.edge[edges] = e
                links.target[edges] = size
                links.source[edges] = piece.place[a]
                links.boundary[edges] = device[nodes.unit[a]] != device[nodes.unit[i]] and not nodes.to_result[e]
                edges += 1
            size += 1
    piece.ptr[size] = edges
    for y in range(edges):
        if links.source[y] < 0:
            links.source[y] = size
    return size


@inner
def promote_meeting_edges(nodes: Nodes, piece: Piece, size: int) -> int:
    """Make boundaries of the edges at which a strand that came back meets one that never left; say if any."""
    edges = piece.ptr[size]
    k = joined(piece.links, edges, size + 1, piece.room)
    _trace(nodes, piece, size)
    for y in range(edges):
        piece.chosen[y] = False
    found = NO
    for base in range(0, k, WORD):
        if not _left_behind(piece, size, base):
            continue
        for x in range(size):
            if 0 <= piece.room.part[x] - base < WORD and _left(piece, x, x, base):
                met = _meeting_at(nodes, piece, x, base)
                if met == UNKNOWN:
                    return UNKNOWN
                found = max(found, met)
    for y in range(edges):
        piece.links.boundary[y] |= piece.chosen[y]
    return found


@inlined
def _trace(nodes: Nodes, piece: Piece, size: int) -> None:
    """Find what does not depend on which parts are looked at: how the part of each node was entered."""
    links = piece.links
    piece.entered[size] = piece.computed[size] = piece.blurred[size] = False
    for x in range(size):
        entered = computed = False
        blurred = nodes.blurred[piece.member[x]]
        for y in range(piece.ptr[x], piece.ptr[x + 1]):
            a = links.source[y]
            blurred |= piece.blurred[a]
            entered |= links.boundary[y] or piece.entered[a]
            computed |= not nodes.from_entry[piece.edge[y]] if links.boundary[y] else piece.computed[a]
        piece.entered[x], piece.computed[x], piece.blurred[x] = entered, computed, blurred


@inlined
def _left_behind(piece: Piece, size: int, base: int) -> bool:
    """Find which of 64 parts were left on the way to each node; return whether any came back to its own."""
    links, part = piece.links, piece.room.part
    piece.left[size] = 0
    back = False
    for x in range(size):
        left = np.uint64(0)
        for y in range(piece.ptr[x], piece.ptr[x + 1]):
            a = links.source[y]
            left |= piece.left[a]
            if links.boundary[y] and 0 <= part[a] - base < WORD:
                left |= np.uint64(1) << np.uint64(part[a] - base)
        piece.left[x] = left
        back |= 0 <= part[x] - base < WORD and _left(piece, x, x, base)
    return back


@inlined
def _left(piece: Piece, a: int, x: int, base: int) -> bool:
    """Return whether the part of node x was left on the way to node a."""
    return bool(piece.left[a] >> np.uint64(piece.room.part[x] - base) & np.uint64(1))


@inlined
def _meeting_at(nodes: Nodes, piece: Piece, x: int, base: int) -> int:
    """Choose the edges into a node that came back by which it meets what never left; say if any, supplies included."""
    links, part = piece.links, piece.room.part
    searched = from_outside = False
    found = NO
    for y in range(piece.ptr[x], piece.ptr[x + 1]):
        a = links.source[y]
        if links.boundary[y]:
            from_outside |= part[a] != part[x]
            continue
        if _left(piece, a, x, base) or (nodes.only[piece.edge[y]] and not piece.computed[a]):
            continue
        if not piece.entered[a]:
            if not searched:
                _mark_behind(piece, x)
                searched = True
            if not _meet(nodes, piece, a):
                if piece.blurred[a]:
                    return UNKNOWN
                continue
        piece.chosen[y] = True
        found = YES
    if from_outside and nodes.constants[piece.member[x]] > 0 and not piece.parted[x]:
        piece.parted[x] = True
        found = YES
    return found


@inner
def _mark_behind(piece: Piece, x: int) -> None:
    """Mark as BEHIND what lies behind boundaries of node x's part on the way to x."""
    links, part = piece.links, piece.room.part
    for v in range(x + 1):
        piece.mark[v] = 0
    piece.mark[x] = BEFORE
    for v in range(x, -1, -1):
        for y in range(piece.ptr[v], piece.ptr[v + 1]):
            a = links.source[y]
            if piece.mark[v] & BEFORE and links.boundary[y]:
                if part[a] == part[x]:
                    piece.mark[a] |= BEHIND
                elif part[v] == part[x]:
                    piece.mark[v] |= BEHIND
        for y in range(piece.ptr[v], piece.ptr[v + 1]):
            piece.mark[links.source[y]] |= piece.mark[v]


@inner
def _meet(nodes: Nodes, piece: Piece, a: int) -> bool:
    """Return whether node a depends on a Parameter or Constant that something marked BEHIND depends on."""
    for v in range(a + 1):
        piece.mark[v] &= BEFORE | BEHIND
    piece.mark[a] |= OWN
    for v in range(a, -1, -1):
        if piece.mark[v] & OWN:
            if piece.mark[v] & BEHIND and nodes.entry[piece.member[v]]:
                return True
            for y in range(piece.ptr[v], piece.ptr[v + 1]):
                piece.mark[piece.links.source[y]] |= OWN
    return False


@inner
def isolate_one_operation(nodes: Nodes, piece: Piece, size: int) -> int:
    """Cut one operation of parts that wait for one another off its producers; say if there was need."""
    edges = piece.ptr[size]
    k = joined(piece.links, edges, size + 1, piece.room)
    if not on_cycles(piece.links, edges, k, piece.room):
        return NO
    chosen, least, inside = -1, NEVER, NEVER
    for x in range(size):
        if piece.room.waiting[piece.room.part[x]]:
            inside = min(inside, nodes.rank[piece.member[x]])
            rank = _rank(nodes, piece, x)
            # Of equal ones that of least number is chosen.
            if rank < least or (rank == least and chosen >= 0 and piece.member[x] < piece.member[chosen]):
                chosen, least = x, rank
    if inside <= least and inside < NEVER:
        return UNKNOWN
    if chosen < 0:
        return NO
    piece.isolated[chosen] = True
    for y in range(piece.ptr[chosen], piece.ptr[chosen + 1]):
        piece.links.boundary[y] = True
    return YES


@inlined
def _rank(nodes: Nodes, piece: Piece, x: int) -> int:
    """Return by what HETERO chooses the operation to isolate, the least first; the largest int64 if it cannot be."""
    i, links, part = piece.member[x], piece.links, piece.room.part
    comes_back = shares = prepared = False
    inner = 0
    if not piece.isolated[x]:
        inner = int(nodes.supplies[i]) + (0 if piece.parted[x] else int(nodes.constants[i]))
        prepared = nodes.supplies[i] > 0
    for y in range(piece.ptr[x], piece.ptr[x + 1]):
        e, a = piece.edge[y], links.source[y]
        if links.boundary[y]:
            comes_back |= part[a] != part[x] and piece.room.waiting[part[a]]
        else:
            inner += 1
            shares |= nodes.shares[e]
            prepared |= nodes.prepared[e]
    if inner == 0:
        return NEVER
    linear = inner == 1 and nodes.single[i]
    flags = 8 * (not comes_back) + 4 * (not shares) + 2 * prepared + linear
    return (flags << FLAGS_BIT) + (inner << LENGTH_BIT)
