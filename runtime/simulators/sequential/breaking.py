"""Kernels that break the cycles among the parts of a placed model, as HETERO does; see `subgraphs`.

Parts that wait for one another make a strongly connected component. How its cycles are broken depends on nothing
outside it, whose edges into it are boundaries whatever happens, and so each component is broken on its own.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.core.arrays import Int32, Int64
from pipeline.shared.compiled import inlined, inner
from runtime.simulators.sequential.parts import (
    BOUNDARY,
    CUT,
    PART,
    SOURCE,
    TARGET,
    WAITING,
    on_cycles,
    room_of,
)

LENGTH_BIT, FLAGS_BIT = 28, 56  # where a rank holds the number of inner producers, and what comes before it
NEVER = np.iinfo(np.int64).max  # the rank of what cannot be isolated
NO, YES, UNKNOWN = 0, 1, 2
WORD = 64  # parts that are looked at together, one bit each
BEFORE, BEHIND, OWN = 1, 2, 4  # marks of nodes, see `_meet`
PRODUCER, INTO, TO_RESULT, FROM_ENTRY, SHARES, PREPARED, ONLY = range(7)  # rows of Nodes.edges
ORDER, INTO_PTR, UNIT, FIRST, ENTRY, SINGLE, CONSTANTS, SUPPLIES, BLURRED = range(9)  # rows of Nodes.facts
MEMBER, PLACE, START, PARTED, ISOLATED, CAME_IN, COMPUTED, UNSURE, RETURNS, MARK = range(
    10
)  # rows of ComponentGraph.facts
EDGE, CHOSEN = TARGET + 2, TARGET + 3  # further rows of ComponentGraph.edges


class MergedNodes(NamedTuple):
    """n operations and m edges, or fewer nodes that stand for operations merged: see `merging.merged`.

    The first operation of a node is its head, and nodes are numbered as their heads are; the others read nothing but
    one operation of the node, and supplies: Constants with one reader, and what is computed from such for one reader.

    edges: int32 [7, m], a row for each fact. PRODUCER: a node. INTO: the edges that end in node i are
    INTO[INTO_PTR[i]:INTO_PTR[i + 1]]. TO_RESULT: whether it ends in a Result. FROM_ENTRY, SHARES, PREPARED, ONLY:
    whether its operation of origin is a Parameter or a Constant; has several readers, Results not counted; computes for
    one reader alone, from Parameters and Constants alone; is no Parameter or Constant and has one edge.

    facts: int32 [9, n + 1], a row for each fact. ORDER: every producer before its consumers. UNIT. FIRST: the least
    number of an operation that computes, that of all where none does. ENTRY: whether the head is a Parameter or a
    Constant, or has supplies. SINGLE: whether the head has one reader at most. CONSTANTS, SUPPLIES: how many supplies
    the head reads that are Constants, and that are not. BLURRED: whether operations behind the head have supplies that
    the head has not.

    rank: int64 [n], the least rank of the operations behind the head.
    """

    edges: Int32
    facts: Int32
    rank: Int64


class ComponentGraph(NamedTuple):
    """One component: l nodes in an order in which producers come first, and whatever is outside as number l.

    edges: int32 [5, e], a graph of the l + 1 nodes as `parts` take it, and: EDGE, the number of each. CHOSEN.

    facts: int32, a row for each fact. MEMBER [l]: which nodes. START [l + 1]: the edges START[x] to START[x + 1] end in
    node x. PARTED, ISOLATED [l]: whether the head is cut off from the Constants among its supplies, and from all it
    reads. PLACE [n]: where each node is; l outside. CAME_IN, COMPUTED [l + 1]: whether its part was entered on the way
    to it by any boundary, or by one from an operation that is no Parameter or Constant; of use where its part was not
    left. UNSURE [l + 1]: whether it depends on a blurred node. RETURNS [l]: whether a boundary leads to it from another
    part of those that wait for one another. MARK [l + 1].

    left: uint64 [l + 1], bits of parts left on the way to a node. rank: int64 [l], by what HETERO chooses the operation
    to isolate if none returns, the least first; NEVER if it cannot be. room: for the parts.
    """

    edges: Int32
    facts: Int32
    left: np.ndarray[tuple[int], np.dtype[np.uint64]]
    rank: Int64
    room: Int32


def component_graph_of(n: int, m: int) -> ComponentGraph:
    """Return room for a component of n nodes and m edges."""
    edges, facts = np.zeros((CHOSEN + 1, m), np.int32), np.zeros((MARK + 1, n + 1), np.int32)
    return ComponentGraph(edges, facts, np.zeros(n + 1, np.uint64), np.zeros(n + 1, np.int64), room_of(n + 1, m))


@inner
def cut_out(nodes: MergedNodes, device: Int32, component: Int32, c: int, piece: ComponentGraph) -> int:
    """Make the piece component c, before its cycles are broken, and return its size; device, component: int32 [u]."""
    size = edges = 0
    facts, links, unit = piece.facts, piece.edges, nodes.facts[UNIT]
    for o in range(nodes.rank.size):
        i = nodes.facts[ORDER, o]
        facts[PLACE, i] = -1
        if component[unit[i]] == c:
            facts[PLACE, i], facts[MEMBER, size], facts[START, size] = size, i, edges
            facts[PARTED, size] = facts[ISOLATED, size] = 0
            for y in range(nodes.facts[INTO_PTR, i], nodes.facts[INTO_PTR, i + 1]):
                e = nodes.edges[INTO, y]
                a = nodes.edges[PRODUCER, e]
                links[EDGE, edges], links[SOURCE, edges], links[TARGET, edges] = e, facts[PLACE, a], size
                links[BOUNDARY, edges] = device[unit[a]] != device[unit[i]] and not nodes.edges[TO_RESULT, e]
                edges += 1
            size += 1
    facts[START, size] = edges
    for y in range(edges):
        if links[SOURCE, y] < 0:
            links[SOURCE, y] = size
    return size


@inner
def promote_meeting_edges(nodes: MergedNodes, piece: ComponentGraph, size: int, k: int) -> int:
    """Make boundaries of the edges at which a strand that came back meets one that never left; say if any.

    size, k: how many nodes and, outside included, parts the piece has.
    """
    edges, part = int(np.int64(piece.facts[START, size])), piece.room[PART]
    outcome, traced = NO, False
    for base in range(0, k, WORD):
        # Find which of 64 parts were left on the way to each node, and whether any came back to its own
        start = piece.facts[START]
        piece.left[size] = 0
        back = False
        for x in range(size):
            left = np.uint64(0)
            for y in range(start[x], start[x + 1]):
                a = piece.edges[SOURCE, y]
                cut = piece.edges[BOUNDARY, y] * (0 <= part[a] - base < WORD)
                left |= piece.left[a] | np.uint64(cut) << np.uint64((part[a] - base) % WORD)
            piece.left[x] = left
            back |= 0 <= part[x] - base < WORD and _left(piece, x, x, base)
        if not back:
            continue
        if not traced:
            _trace(nodes, piece, size)
            traced = True
        for x in range(size):
            if 0 <= part[x] - base < WORD and _left(piece, x, x, base):
                met = _meeting_at(nodes, piece, x, base)
                if met == UNKNOWN:
                    return UNKNOWN
                outcome = max(outcome, met)
    if outcome == YES:
        for y in range(edges):
            piece.edges[BOUNDARY, y] |= piece.edges[CHOSEN, y]
    return outcome


@inlined
def _trace(nodes: MergedNodes, piece: ComponentGraph, size: int) -> None:
    """Find what does not depend on which parts are looked at, how the part of each node was entered; choose no edge."""
    facts = piece.facts
    came_in, computed, unsure, start = facts[CAME_IN], facts[COMPUTED], facts[UNSURE], facts[START]
    came_in[size] = computed[size] = unsure[size] = 0
    for x in range(size):
        came_in[x] = computed[x] = 0
        unsure[x] = nodes.facts[BLURRED, piece.facts[MEMBER, x]]
        for y in range(start[x], start[x + 1]):
            a, cut = piece.edges[SOURCE, y], piece.edges[BOUNDARY, y]
            unsure[x] |= unsure[a]
            came_in[x] |= cut | came_in[a]
            computed[x] |= 1 - nodes.edges[FROM_ENTRY, piece.edges[EDGE, y]] if cut else computed[a]
            piece.edges[CHOSEN, y] = 0


@inlined
def _left(piece: ComponentGraph, a: int, x: int, base: int) -> bool:
    """Return whether the part of node x was left on the way to node a."""
    return bool(piece.left[a] >> np.uint64(piece.room[PART, x] - base) & np.uint64(1))


@inlined
def _meeting_at(nodes: MergedNodes, piece: ComponentGraph, x: int, base: int) -> int:
    """Choose the edges into a node that came back by which it meets what never left; say if any, supplies included."""
    facts, edges, part = piece.facts, piece.edges, piece.room[PART]
    searched = from_outside = False
    outcome = NO
    for y in range(facts[START, x], facts[START, x + 1]):
        a = int(np.int64(edges[SOURCE, y]))
        if edges[BOUNDARY, y]:
            from_outside |= part[a] != part[x]
            continue
        if _left(piece, a, x, base) or (nodes.edges[ONLY, edges[EDGE, y]] and not facts[COMPUTED, a]):
            continue
        if not facts[CAME_IN, a]:
            if not searched:
                _mark_behind(piece, x)
                searched = True
            if not _meet(nodes, piece, a):
                if facts[UNSURE, a]:
                    return UNKNOWN
                continue
        edges[CHOSEN, y] = 1
        outcome = YES
    if from_outside and nodes.facts[CONSTANTS, facts[MEMBER, x]] > 0 and not facts[PARTED, x]:
        facts[PARTED, x] = 1
        outcome = YES
    return outcome


@inner
def _mark_behind(piece: ComponentGraph, x: int) -> None:
    """Mark as BEHIND what lies behind boundaries of node x's part on the way to x."""
    edges, part, mark, start = piece.edges, piece.room[PART], piece.facts[MARK], piece.facts[START]
    for v in range(x + 1):
        mark[v] = 0
    mark[x] = BEFORE
    for v in range(x, -1, -1):
        for y in range(start[v], start[v + 1]):
            a = edges[SOURCE, y]
            if mark[v] & BEFORE and edges[BOUNDARY, y]:
                if part[a] == part[x]:
                    mark[a] |= BEHIND
                elif part[v] == part[x]:
                    mark[v] |= BEHIND
        for y in range(start[v], start[v + 1]):
            mark[edges[SOURCE, y]] |= mark[v]


@inner
def _meet(nodes: MergedNodes, piece: ComponentGraph, a: int) -> bool:
    """Return whether node a depends on a Parameter or Constant that something marked BEHIND depends on."""
    mark, start = piece.facts[MARK], piece.facts[START]
    for v in range(a + 1):
        mark[v] &= BEFORE | BEHIND
    mark[a] |= OWN
    for v in range(a, -1, -1):
        if mark[v] & OWN:
            if mark[v] & BEHIND and nodes.facts[ENTRY, piece.facts[MEMBER, v]]:
                return True
            for y in range(start[v], start[v + 1]):
                mark[piece.edges[SOURCE, y]] |= OWN
    return False


@inlined
def rank_operations(nodes: MergedNodes, piece: ComponentGraph, size: int) -> None:
    """Find by what HETERO chooses the operation to isolate; isolating one changes no other's rank."""
    edges, start = piece.edges, piece.facts[START]
    for x in range(size):
        i = piece.facts[MEMBER, x]
        constants = 0 if piece.facts[PARTED, x] else int(nodes.facts[CONSTANTS, i])
        inner, shares, prepared = int(nodes.facts[SUPPLIES, i]) + constants, 0, int(nodes.facts[SUPPLIES, i] > 0)
        for y in range(start[x], start[x + 1]):
            kept, e = 1 - edges[BOUNDARY, y], edges[EDGE, y]
            inner += kept
            shares |= kept & nodes.edges[SHARES, e]
            prepared |= kept & nodes.edges[PREPARED, e]
        linear = inner == 1 and nodes.facts[SINGLE, i] > 0
        flags = 8 + 4 * (1 - shares) + 2 * prepared + linear
        piece.rank[x] = (flags << FLAGS_BIT) + (inner << LENGTH_BIT) if inner > 0 else NEVER


@inner
def isolate_one_operation(nodes: MergedNodes, piece: ComponentGraph, size: int, k: int, cuts: int) -> int:
    """Cut one operation of parts that wait for one another off its producers; say if there was need.

    size, k, cuts: how many nodes and, outside included, parts and boundaries the piece has.
    """
    facts, waiting, part = piece.facts, piece.room[WAITING], piece.room[PART]
    if not on_cycles(piece.edges, cuts, k, piece.room):
        return NO
    # Find which nodes boundaries lead to from other parts of those that wait for one another
    returns, cut = piece.facts[RETURNS], piece.room[CUT]
    for x in range(size):
        returns[x] = 0
    for z in range(cuts):
        a, x = piece.edges[SOURCE, cut[z]], piece.edges[TARGET, cut[z]]
        returns[x] |= (part[a] != part[x]) & piece.room[WAITING, part[a]]
    chosen, least, inside = -1, NEVER, NEVER
    for x in range(size):
        if waiting[part[x]]:
            inside = min(inside, nodes.rank[facts[MEMBER, x]])
            rank = piece.rank[x]
            if facts[RETURNS, x] and rank < NEVER:
                rank -= 8 << FLAGS_BIT
            # Of equal ones that of least number is chosen.
            if rank < least or (rank == least and chosen >= 0 and facts[MEMBER, x] < facts[MEMBER, chosen]):
                chosen, least = x, rank
    if inside <= least and inside < NEVER:
        return UNKNOWN
    if chosen < 0:
        return NO
    facts[ISOLATED, chosen], piece.rank[chosen] = 1, NEVER
    for y in range(facts[START, chosen], facts[START, chosen + 1]):
        piece.edges[BOUNDARY, y] = 1
    return YES
