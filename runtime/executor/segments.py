"""Which operations of a placed graph run as one segment.

A segment is a sub-model that one device runs at a stretch. Segments wait for one another as a whole, so that they must
not wait in a circle, and what others wait for must not stand behind what they do not. They are formed in three steps:

1. Operations that must not be parted become one: colocation constraints, a Result and its producer, kernels of the
   runtime as far as their operations share a device, and whatever lies on a path between two of these.
2. Along every path the level rises where the device changes, and behind whatever another device waits for. What
   is connected and has one device and one level is a segment: edges between segments lead to higher levels only. Where
   it is much work, what other devices wait for is parted from what they do not need, and what waits for other devices
   from what does not need them, or not all of them, if that shortens the whole.
3. Two segments of a device become one where nobody waits longer for that, or not much.

Inputs, and what is computed from constants alone, belong to no segment: every segment has a copy of what it reads.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32, Int64
from pipeline.core.errors import UsageError, list_some
from pipeline.core.graph import (
    Graph,
    Grouping,
    adjacency,
    components,
    contract,
    leaders,
    topological_order,
    weight_side,
)
from pipeline.core.placement import Placement
from pipeline.shared.cycles import strong_components
from runtime.executor.merging import SEGMENT_FLOPS, SegmentParts, merge_segments

Set = tuple[float, int]  # nodes of one level: the level, and a bit for each
NEEDED_BY_NOBODY: Set = (math.inf, 0)
WAITS_FOR_NOBODY: Set = (-math.inf, 0)


@dataclass(frozen=True, slots=True)
class SegmentSpec:
    """One segment: the names of its operations, sorted, the device that runs it, and when it should (smaller first)."""

    operations: tuple[str, ...]
    device: str
    priority: float


@dataclass(frozen=True, slots=True)
class Segmentation:
    """The segments of a placed graph, in an order in which one thread can run them.

    moved: names of operations that run elsewhere than placed, because they lie between two that must not be parted.
    """

    segments: tuple[SegmentSpec, ...]
    moved: tuple[str, ...] = ()


def segment_graph(graph: Graph, placement: Placement) -> Segmentation:
    """Return the segments of a placement of the graph's operations.

    A placement that states no priorities gives first what the longest chain of FLOPs waits for.

    Raises:
        UsageError: the placement parts operations that must run in one sub-model; they are named.
    """
    free = _free_operations(graph)
    device = placement.device[leaders(graph)]
    _check_constraints(graph, placement.devices, device, free)
    joined = _close_groups(graph, free, _joined_pairs(graph, free, graph.colocate))
    moved = _settle_devices(graph, joined, free, device)
    joined = _with_kernels(graph, free, device, joined)
    group = _stage_labels(graph, joined, free, device)
    labels = np.where(free, -1, group)
    named = tuple(graph.names[i] for i in moved.tolist())
    return Segmentation(_ordered_segments(graph, labels, device, placement), named)


def _free_operations(graph: Graph) -> Bool:
    """Return bool [n], whether an operation belongs to no segment."""
    kind = _operation_kinds(graph)
    free: Bool = (weight_side(graph) & (kind != "Assign")) | (kind == "Parameter")
    producer, consumer = graph.edges
    # A Result of an input or of constants runs where any other operation does.
    fed = np.zeros(graph.n, bool)
    fed[consumer[~free[producer]]] = True
    free |= (kind == "Result") & ~fed
    return free


def _operation_kinds(graph: Graph) -> np.ndarray[tuple[int], np.dtype[np.str_]]:
    return np.array(graph.type_names)[graph.op_type]


def _check_constraints(graph: Graph, devices: Sequence[str], device: Int32, free: Bool) -> None:
    for label in np.unique(graph.colocate[(graph.colocate >= 0) & ~free]).tolist():
        members = np.flatnonzero((graph.colocate == label) & ~free)
        first, away = members[0], members[device[members] != device[members[0]]]
        if away.size:
            raise UsageError(
                f"The placement parts {graph.names[first]} on {devices[device[first]]} from "
                f"{list_some([graph.names[i] for i in away.tolist()])}, which must run in one sub-model with it.",
                "Place them on one device.",
            )


def _joined_pairs(graph: Graph, free: Bool, label: Int32 | Int64) -> Int32:
    """Return int32 [2, ...], pairs that join operations of equal label, -1 for none, and Results with producers."""
    held = np.flatnonzero((label >= 0) & ~free)
    _, first, inverse = np.unique(label[held], return_index=True, return_inverse=True)
    to_result = (_operation_kinds(graph)[graph.edges[1]] == "Result") & ~free[graph.edges[0]]
    return np.concatenate([np.stack([held[first[inverse]], held]), graph.edges[:, to_result]], axis=1).astype(np.int32)


def _close_groups(graph: Graph, free: Bool, pairs: Int32) -> Grouping:
    """Return the operations joined by pairs, with what lies on a path from one of a group to another of it."""
    joined = components(graph.n, pairs[0], pairs[1])
    inner = graph.edges[:, ~free[graph.edges[0]]]
    ends = np.unique(joined.group[inner], axis=1)
    circle = strong_components(joined.k, ends[:, ends[0] != ends[1]])
    return joined.then(Grouping.of_labels(circle))


def _settle_devices(graph: Graph, joined: Grouping, free: Bool, device: Int32) -> Int64:
    """Give the operations of each group one device, in place, and return which ones that moved, int64.

    The device is the one on which the constrained operations of the group have the most FLOPs.
    """
    tied = (graph.colocate >= 0) & ~free
    before = device.copy()
    for group in np.flatnonzero(_mixed_groups(joined, device, free)).tolist():
        members = np.flatnonzero((joined.group == group) & ~free)
        weight = np.bincount(device[members], np.where(tied[members], 1.0 + graph.flops[members], 0.0))
        device[members] = np.argmax(weight)
    return np.flatnonzero(before != device)


def _mixed_groups(joined: Grouping, device: Int32, free: Bool) -> Bool:
    """Return bool [k], whether the operations of a group have several devices."""
    low = np.full(joined.k, np.iinfo(np.int32).max, np.int32)
    high = np.full(joined.k, -1, np.int32)
    np.minimum.at(low, joined.group[~free], device[~free])
    np.maximum.at(high, joined.group[~free], device[~free])
    mixed: Bool = low < high
    return mixed


def _with_kernels(graph: Graph, free: Bool, device: Int32, joined: Grouping) -> Grouping:
    """Return the groups, joined where the runtime runs operations of one device as one kernel.

    A kernel between whose operations one on another device lies is given up.
    """
    count = int(device.max(initial=0)) + 1
    kernel = np.where(graph.kernel >= 0, graph.kernel.astype(np.int64) * count + device, -1)
    first = np.unique(joined.group, return_index=True)[1][joined.group]
    base = np.stack([np.arange(graph.n), first])
    while True:
        closed = _close_groups(
            graph, free, np.concatenate([base, _joined_pairs(graph, free, kernel)], axis=1).astype(np.int32)
        )
        torn = _mixed_groups(closed, device, free)[closed.group] & (kernel >= 0)
        if not torn.any():
            return closed
        kernel[np.isin(kernel, kernel[torn])] = -1


@dataclass(frozen=True, slots=True, eq=False)
class PlacedNodes:
    """A graph of k nodes that must not be parted further, on int32 [k] devices.

    outside: bool [k], those that belong to no segment. work: float64 [k], FLOPs.
    """

    graph: Graph
    on: Int32
    outside: Bool
    work: Float64


def _stage_labels(graph: Graph, joined: Grouping, free: Bool, device: Int32) -> Int32:
    """Return int32 [n], equal for operations of one segment; what is free has labels of its own."""
    small = contract(graph, joined)
    first = np.unique(joined.group, return_index=True)[1]
    nodes = PlacedNodes(small, device[first], free[first], _label_sums(joined.group, graph.flops + 1.0))
    producer, consumer = small.edges
    sends = np.zeros(small.n, bool)
    sends[producer[nodes.on[producer] != nodes.on[consumer]]] = True
    # int32 [k]: along every path the level rises where the device changes, and behind what sends to others
    ptr, producers = adjacency(small, reverse=True)
    level = np.zeros(small.n, np.int32)
    for i in topological_order(small).tolist():
        before = producers[ptr[i] : ptr[i + 1]]
        before = before[~nodes.outside[before]]
        level[i] = (level[before] + ((nodes.on[before] != nodes.on[i]) | sends[before])).max(initial=0)
    within = (level[producer] == level[consumer]) & (nodes.on[producer] == nodes.on[consumer])
    within &= ~nodes.outside[producer]
    stage = components(small.n, producer[within], consumer[within]).group
    # the set of each node that sends, alone; those of one level have a bit each
    count: Counter[int] = Counter()
    marks: dict[int, Set] = {}
    for i in np.flatnonzero(sends & ~nodes.outside).tolist():
        at = int(level[i])
        marks[i] = at, 1 << count[at]
        count[at] += 1
    keys = zip(_needed_sets(small, marks), _awaited_sets(small, nodes.on, marks), strict=True)
    part = _stage_parts(stage, _label_sums(stage, nodes.work), keys)
    trials = [_few_segments(nodes, cut, stage) for cut in (within, within & (part[producer] == part[consumer]))]
    label: Int32 = min(trials, key=partial(_flops_makespan, nodes))[joined.group].astype(np.int32)
    return label


def _few_segments(nodes: PlacedNodes, within: Bool, stage: Int32) -> Int32:
    """Return int32 [k], equal for nodes of one segment, if edges run within segments or not; stage: see
    `merge_segments`.
    """
    producer, consumer = nodes.graph.edges
    fine = components(nodes.graph.n, producer[within], consumer[within]).group
    start = np.unique(fine, return_index=True)[1]
    crossing = np.unique(fine[nodes.graph.edges[:, ~within & ~nodes.outside[producer]]], axis=1)
    parts = SegmentParts(nodes.on[start], ~nodes.outside[start], stage[start], _label_sums(fine, nodes.work))
    return merge_segments(crossing, parts)[fine]


def _flops_makespan(nodes: PlacedNodes, label: Int32) -> float:
    """Return the FLOPs until all segments have run, those first that the longest chain waits for.

    label: int32 [k], the segment of each node. Every segment takes SEGMENT_FLOPS beside its work.
    """
    producer = nodes.graph.edges[0]
    after: list[set[int]] = [set() for _ in range(int(label.max()) + 1)]
    for a, b in np.unique(label[nodes.graph.edges[:, ~nodes.outside[producer]]], axis=1).T.tolist():
        if a != b:
            after[a].add(b)
    start = np.unique(label, return_index=True)[1]
    work = np.where(nodes.outside[start], 0.0, _label_sums(label, nodes.work) + SEGMENT_FLOPS).tolist()
    device = nodes.on[start].tolist()
    ready, busy = [0.0] * len(after), dict.fromkeys(device, 0.0)
    for s in _segment_order(after, _segment_priorities(after, work)):
        busy[device[s]] = end = max(ready[s], busy[device[s]]) + work[s]
        for t in after[s]:
            ready[t] = max(ready[t], end)
    return max(busy.values())


def _label_sums(label: Int32, values: Float64) -> Float64:
    """Return float64 [k], the sum of the values of each label."""
    return np.bincount(label, weights=values).astype(np.float64)


def _needed_sets(small: Graph, marks: Mapping[int, Set]) -> list[Set]:
    """Return what each node is needed for: of all behind it that send to other devices those of the lowest level.

    marks: of nodes that send, the set of this one alone. Along an edge the level does not fall, and where it stays, the
    set does not grow. All of a set are on the node's device.
    """
    ptr, consumers = adjacency(small)
    needed = [NEEDED_BY_NOBODY] * small.n
    for i in reversed(topological_order(small).tolist()):
        behind = [needed[j] for j in consumers[ptr[i] : ptr[i + 1]].tolist()]
        needed[i] = _unite_sets([marks.get(i, NEEDED_BY_NOBODY), *behind], min)
    return needed


def _awaited_sets(small: Graph, on: Int32, marks: Mapping[int, Set]) -> list[Set]:
    """Return what each node waits for: of all before it that other devices send those of the highest level.

    marks: see `_needed_sets`. Along an edge the level does not fall, and where it stays, the set does not shrink.
    """
    ptr, producers = adjacency(small, reverse=True)
    awaited = [WAITS_FOR_NOBODY] * small.n
    for i in topological_order(small).tolist():
        before = producers[ptr[i] : ptr[i + 1]].tolist()
        arrive = [marks[j] for j in before if on[j] != on[i] and j in marks]
        awaited[i] = _unite_sets([WAITS_FOR_NOBODY, *arrive, *(awaited[j] for j in before)], max)
    return awaited


def _unite_sets(sets: Sequence[Set], extreme: Callable[[Iterable[float]], float]) -> Set:
    """Return the union of the sets whose level is the lowest or the highest of all."""
    chosen = extreme(level for level, _ in sets)
    members = 0
    for level, bits in sets:
        members |= bits if level == chosen else 0
    return chosen, members


def _stage_parts(stage: Int32, work: Float64, keys: Iterable[tuple[Set, Set]]) -> Int32:
    """Return int32 [k], equal for nodes of one stage that have the same key, and for all of a stage of little work.

    stage: int32 [k]. work: float64 [stages], FLOPs. keys: of each node, what it is needed for and waits for.
    """
    number: dict[tuple[int, tuple[Set, Set] | None], int] = {}
    parted = (work > 2 * SEGMENT_FLOPS)[stage].tolist()
    parts = [(s, key if apart else None) for s, key, apart in zip(stage.tolist(), keys, parted, strict=True)]
    return np.array([number.setdefault(key, len(number)) for key in parts], np.int32)


def _ordered_segments(graph: Graph, label: Int32, device: Int32, placement: Placement) -> tuple[SegmentSpec, ...]:
    """Return the segments of int32 [n] labels, -1 for none, producers first and among ready ones by priority."""
    labels, segment = np.unique(label, return_inverse=True)
    segment = segment - int(labels[0] < 0)
    k = int(segment.max(initial=-1)) + 1
    if k == 0:  # every output is an input or a constant
        return (SegmentSpec((), placement.devices[device[0]], 0.0),)
    ends = segment[graph.edges]
    after: list[set[int]] = [set() for _ in range(k)]
    for a, b in ends[:, (ends[0] >= 0) & (ends[1] >= 0) & (ends[0] != ends[1])].T.tolist():
        after[a].add(b)
    members = [np.flatnonzero(segment == s) for s in range(k)]
    priority = _segment_priorities(after, [float(graph.flops[m].sum()) + m.size for m in members])
    if placement.priority is not None:
        priority = np.array([placement.priority[m].min() for m in members])
    return tuple(
        SegmentSpec(
            tuple(sorted(graph.names[i] for i in members[s].tolist())),
            placement.devices[device[members[s][0]]],
            float(priority[s]),
        )
        for s in _segment_order(after, priority)
    )


def _segment_priorities(after: Sequence[set[int]], work: Sequence[float]) -> Float64:
    """Return float64 [k], minus the most work on a path from the start of each segment to an end."""
    longest = [0.0] * len(after)
    for s in reversed(_segment_order(after, np.zeros(len(after)))):
        longest[s] = work[s] + max((longest[t] for t in after[s]), default=0.0)
    return -np.array(longest)


def _segment_order(after: Sequence[set[int]], priority: Float64) -> list[int]:
    """Return the segments, producers before consumers and among ready ones the smaller priority first."""
    waiting = [0] * len(after)
    for t in (t for consumers in after for t in consumers):
        waiting[t] += 1
    ready = [(priority[s], s) for s, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, s = heapq.heappop(ready)
        order.append(s)
        for t in after[s]:
            waiting[t] -= 1
            if waiting[t] == 0:
                heapq.heappush(ready, (priority[t], t))
    return order
