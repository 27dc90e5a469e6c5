"""Kernels that cut a placed model into sub-graphs and break the cycles among them; see `subgraphs`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32, Int64
from pipeline.shared.compiled import inlined, inner, kernel
from runtime.simulators.sequential.breaking import (
    EDGE,
    FIRST,
    ISOLATED,
    MEMBER,
    NO,
    START,
    SUPPLIES,
    UNIT,
    UNKNOWN,
    YES,
    ComponentGraph,
    MergedNodes,
    cut_out,
    isolate_one_operation,
    promote_meeting_edges,
    rank_operations,
)
from runtime.simulators.sequential.parts import (
    BOUNDARY,
    GROUP,
    ITSELF,
    PART,
    SOURCE,
    TARGET,
    WAITING,
    joined,
    on_cycles,
)

UInt64 = np.ndarray[tuple[int, ...], np.dtype[np.uint64]]
INTO_RESULT = BOUNDARY + 1  # the last row of Model.links
COMPONENT, TAG, LEAST, AT = range(4)  # rows of Workspace.facts
FIRST_PARTS, PARTS = range(2)  # rows of Workspace.parts


class CutModel(NamedTuple):
    """What the kernels know of a model's n operations, which lie in u units.

    Operations of one unit are always on one device and in one sub-graph, unless a cycle is broken there.
    links: int32 [4, e], the different edges between units as `parts` take them, and INTO_RESULT: whether they end in a
    Result. first: int32 [u], the least number of an operation that computes, n where none does. few, each: the
    operations, merged as far as can be, and their supplies alone.
    """

    links: Int32
    first: Int32
    few: MergedNodes
    each: MergedNodes


class Memo(NamedTuple):
    """What breaking the cycles of components adds to counts, each at the place that its key's last bits name.

    code: uint64 [u, p], a random number per unit and device. key: uint64 [s], the codes of the units and their devices,
    added; 0 for none. more: int64 [s, p], parts.
    """

    code: UInt64
    key: UInt64
    more: Int64


class Workspace(NamedTuple):
    """Where one count works.

    A component is a largest set of parts that wait for one another, or a part that waits for itself: what becomes of it
    depends on nothing else.

    facts: int32 [4, n + 1]. COMPONENT [u]: that of each unit, -1 for none. TAG [u]: that of each set of
    parts. LEAST, AT: the least number of an operation that computes in each part, and its device.

    parts: int64 [2, p], those that compute of one component: FIRST_PARTS before its cycles are broken, PARTS by now.

    keys: uint64 [u], of the components. room: for the units. piece: for one component. boundary: bool [m], of each edge
    between nodes, where one of the components that were broken last has it; others are left as they were. stop: int64
    [1], set by another thread to a number other than 0 while cycles are broken, which ends that; see `count`.
    """

    facts: Int32
    parts: Int64
    keys: UInt64
    room: Int32
    piece: ComponentGraph
    boundary: Bool
    stop: Int64


class Counter(NamedTuple):
    """A model and where its sub-graphs are counted; the boundaries in its links, workspace and memo change."""

    model: CutModel
    workspace: Workspace
    memo: Memo


class Bound(NamedTuple):
    """When counting may stop: as soon as the launches of what is counted, and other_s seconds, take more than most_s.

    launch_s: float64 [p], seconds per sub-graph.
    """

    launch_s: Float64
    other_s: float
    most_s: float


def unbounded(p: int) -> Bound:
    """Return the bound of p devices that nothing exceeds."""
    return Bound(np.zeros(p), 0.0, np.inf)


@kernel
def count(counter: Counter, device: Int32, counts: Int64, bound: Bound) -> bool:
    """Count by device, into int64 [b, p], the parts that compute, each where its first such operation is.

    device: int32 [b, u], of b placements. One on one device counts as one.

    Returns:
        Whether all was counted; otherwise one of them takes longer than the bound allows, or it was stopped. Where it
        was stopped, the first count of that placement and of those behind it is -1.
    """
    model, workspace, memo = counter.model, counter.workspace, counter.memo
    for b in range(device.shape[0]):
        if _counted_alone(device[b], counts[b]):
            continue
        k, cuts = _parted(model, workspace, device[b])
        _count_parts(model, workspace, device[b], counts[b])
        if launched_s(bound, counts[b]) > bound.most_s:  # breaking cycles adds parts, and takes none away
            return False
        for c in range(_tied(model, workspace, memo.code, device[b], k, cuts)):
            place = int(np.int64(workspace.keys[c] & np.uint64(memo.key.size - 1)))
            if memo.key[place] != workspace.keys[c]:
                outcome = _broken(model.few, workspace, device[b], c, counts[b], bound)
                if outcome == UNKNOWN:
                    outcome = _broken(model.each, workspace, device[b], c, counts[b], bound)
                if outcome == NO:
                    for z in range(b, counts.shape[0] if workspace.stop[0] else b):
                        counts[z, 0] = -1
                    return False
                memo.key[place] = workspace.keys[c]
                for d in range(counts.shape[1]):
                    memo.more[place, d] = workspace.parts[PARTS, d] - workspace.parts[FIRST_PARTS, d]
            for d in range(counts.shape[1]):
                counts[b, d] += memo.more[place, d]
    return True


@kernel
def count_least(counter: Counter, device: Int32, counts: Int64) -> None:
    """Count as `count` does, but with no cycle broken, which adds parts on devices that have some: there are no fewer.

    It takes as long as a look at every edge, where breaking cycles among tens of thousands of operations takes seconds.
    """
    for b in range(device.shape[0]):
        if not _counted_alone(device[b], counts[b]):
            _parted(counter.model, counter.workspace, device[b])
            _count_parts(counter.model, counter.workspace, device[b], counts[b])


@inlined
def launched_s(bound: Bound, counts: Int64) -> float:
    """Return the seconds of a placement whose sub-graphs are counted: int64 [p]."""
    launches_s = 0.0
    for d in range(counts.size):
        launches_s += counts[d] * bound.launch_s[d]
    return bound.other_s + launches_s


@inlined
def _counted_alone(device: Int32, counts: Int64) -> bool:
    """Return whether all units are on one device, and then count one part there."""
    alone = device.size > 0
    for u in range(device.size):
        alone &= device[u] == device[0]
    for d in range(counts.size if alone else 0):
        counts[d] = d == device[0]
    return alone


@inlined
def _parted(model: CutModel, workspace: Workspace, device: Int32) -> tuple[int, int]:
    """Find the parts of units on devices int32 [u]; return how many there are, and how many boundaries."""
    links = model.links
    for e in range(links.shape[1]):
        links[BOUNDARY, e] = (device[links[SOURCE, e]] != device[links[TARGET, e]]) & (links[INTO_RESULT, e] == 0)
    return joined(links, links.shape[1], device.size, workspace.room)


@inlined
def _count_parts(model: CutModel, workspace: Workspace, device: Int32, counts: Int64) -> None:
    """Count by device the parts of units that compute."""
    none, part, least, at = workspace.facts.shape[1], workspace.room[PART], workspace.facts[LEAST], workspace.facts[AT]
    for d in range(counts.size):
        counts[d] = 0
    for u in range(device.size):
        least[u] = none
    for u in range(device.size):
        if model.first[u] < least[part[u]]:
            least[part[u]], at[part[u]] = model.first[u], device[u]
    for j in range(device.size):
        if least[j] < none - 1:
            counts[at[j]] += 1


@inlined
def _tied(model: CutModel, workspace: Workspace, code: UInt64, device: Int32, k: int, cuts: int) -> int:
    """Find the components of k parts and their keys, and return how many there are."""
    room, component, tag = workspace.room, workspace.facts[COMPONENT], workspace.facts[TAG]
    components = 0
    if not on_cycles(model.links, cuts, k, room):
        return components
    for j in range(k):
        tag[j] = -1
    for u in range(device.size):
        j = room[PART, u]
        component[u] = -1
        if room[WAITING, j] or room[ITSELF, j]:
            group = room[GROUP, j]
            if tag[group] < 0:
                tag[group] = components
                workspace.keys[components] = 0
                components += 1
            component[u] = tag[group]
            workspace.keys[component[u]] += code[u, device[u]]
    return components


@inner
def _broken(nodes: MergedNodes, workspace: Workspace, device: Int32, c: int, counts: Int64, bound: Bound) -> int:
    """Break the cycles of one component, and count its parts before and after.

    counts: int64 [p], the parts of the placement with those of the component before its cycles are broken.

    Returns:
        YES; or NO if that makes the placement exceed the bound, or it was stopped, UNKNOWN if it needs nodes that are
        merged less.
    """
    piece = workspace.piece
    size = cut_out(nodes, device, workspace.facts[COMPONENT], c, piece)
    edges = int(np.int64(piece.facts[START, size]))
    k, cuts = joined(piece.edges, edges, size + 1, piece.room)
    _count_pieces(nodes, workspace, device, size, workspace.parts[FIRST_PARTS])
    promoting = True
    while workspace.stop[0] == 0:
        if promoting:
            outcome = promote_meeting_edges(nodes, piece, size, k)
        else:
            outcome = isolate_one_operation(nodes, piece, size, k, cuts)
        if outcome == UNKNOWN:
            return UNKNOWN
        if outcome == YES:
            before = k
            k, cuts = joined(piece.edges, edges, size + 1, piece.room)
            if k > before and bound.most_s < np.inf and _exceeds(nodes, workspace, device, size, counts, bound):
                return NO
        elif promoting:
            rank_operations(nodes, piece, size)
            promoting = False
        else:
            break
    if workspace.stop[0]:
        return NO
    for y in range(edges):
        workspace.boundary[piece.edges[EDGE, y]] = piece.edges[BOUNDARY, y]
    _count_pieces(nodes, workspace, device, size, workspace.parts[PARTS])
    return YES


@inlined
def _exceeds(nodes: MergedNodes, workspace: Workspace, device: Int32, size: int, counts: Int64, bound: Bound) -> bool:
    """Return whether the parts that a component has by now make the placement exceed the bound."""
    first, parts = workspace.parts[FIRST_PARTS], workspace.parts[PARTS]
    _count_pieces(nodes, workspace, device, size, parts)
    for d in range(counts.size):
        parts[d] += counts[d] - first[d]
    return launched_s(bound, parts) > bound.most_s


@inner
def _count_pieces(nodes: MergedNodes, workspace: Workspace, device: Int32, size: int, counts: Int64) -> None:
    """Count by device the parts that compute of the component at hand, as its boundaries are."""
    piece, none, part = workspace.piece, workspace.facts.shape[1], workspace.piece.room[PART]
    unit, least, at = nodes.facts[UNIT], workspace.facts[LEAST], workspace.facts[AT]
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
