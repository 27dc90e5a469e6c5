"""A graph folded into boxes within boxes, so that a person sees a few dozen at a time, whatever its size.

Every box lies in rows from inputs to outputs. Constants are part of the operation that reads them first. What is folded
together never makes the boxes wait for one another in a circle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pipeline.core.arrays import Bool, Int32, Int64
from pipeline.core.graph import Graph, components, topological_order, weight_side

LEAF = 32  # operations that a box shows at once
MOST = 32  # boxes in a box
CHUNKS = 16  # at most, into which operations are cut by their level where nothing else parts them
LEAST = 8  # operations of a box on average, below which connected ones are not parted from others
MAIN = 0.75  # share of the operations beyond which a part is no part but the whole
SWEEPS = 2
NO_LABEL = ""


@dataclass(slots=True)
class Box:
    """A group of operations.

    parent: the number of the box it lies in, -1 for the outermost. low, high: its operations are those from low to high
    in `Hierarchy.order`. rows: from inputs to outputs; operations by their place in that order, boxes as -1 - their
    number.
    """

    parent: int
    low: int = 0
    high: int = 0
    label: str = NO_LABEL
    rows: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class Hierarchy:
    """Boxes within boxes.

    order: int32 [q], the operations that have a place, those of one box side by side. boxes: the outermost first.
    home: int32 [n], the operation in whose place each operation is shown: itself, but for constants.
    """

    order: Int32
    boxes: list[Box]
    home: Int32


def fold_graph(graph: Graph, device: Int32) -> Hierarchy:
    """Return the boxes of a graph placed so: int32 [n]."""
    side = weight_side(graph)
    if side.all():
        side = np.zeros(graph.n, np.bool_)
    home = _owner_operations(graph, side)
    shown = np.flatnonzero(~side).astype(np.int32)
    edges = graph.edges[:, ~side[graph.edges[0]] & ~side[graph.edges[1]]]
    position = np.empty(graph.n, np.int64)
    position[topological_order(graph)] = np.arange(graph.n)
    return _Folding(graph, device, edges, position).fold(shown, home)


def _owner_operations(graph: Graph, side: Bool) -> Int32:
    """Return int32 [n], for each operation itself, for one that follows from constants the first that reads it."""
    home = np.arange(graph.n, dtype=np.int32)
    order = topological_order(graph)
    producer, consumer = graph.edges
    first = np.full(graph.n, -1, np.int64)
    by_consumer = np.argsort(-_positions_in_order(order)[consumer], kind="stable")
    first[producer[by_consumer]] = consumer[by_consumer]  # the earliest consumer is written last
    for i in order[::-1].tolist():
        if side[i] and first[i] >= 0:
            home[i] = home[first[i]]
    lost = side[home]  # read by nobody but constants
    if lost.any():
        home[lost] = np.flatnonzero(~side)[0]
    return home


def _positions_in_order(order: Int32) -> Int64:
    position = np.empty(order.size, np.int64)
    position[order] = np.arange(order.size)
    return position


class _Folding:
    """One fold: what is known of every operation, and the boxes so far."""

    def __init__(self, graph: Graph, device: Int32, edges: Int32, position: Int64) -> None:
        self.graph, self.device, self.position = graph, device, position
        self.edges = edges[:, np.argsort(position[edges[0]], kind="stable")]
        apart = (device[self.edges[0]] != device[self.edges[1]]).astype(np.int64)
        self.level = self._longest(np.ones_like(apart))
        self.stage = self._longest(apart)
        self.part = np.zeros(graph.n, np.int64)  # of the members of the box at hand, between which its edges lead
        self.boxes: list[Box] = []
        self.order: list[int] = []

    def _longest(self, weight: Int64) -> Int64:
        """Return int64 [n], the heaviest way from an input to each operation; weight: of each edge."""
        longest = [0] * self.graph.n
        by_producer = zip(*self.edges.tolist(), weight.tolist(), strict=True)
        for u, v, w in by_producer:  # sorted by the producer's position, which is settled when it comes
            if longest[u] + w > longest[v]:
                longest[v] = longest[u] + w
        return np.array(longest, np.int64)

    def fold(self, shown: Int32, home: Int32) -> Hierarchy:
        """Return the boxes of the operations that are shown."""
        self._box(-1, shown[np.argsort(self.position[shown])], self.edges)
        return Hierarchy(np.array(self.order, np.int32), self.boxes, home)

    def _box(self, parent: int, members: Int32, edges: Int32) -> int:
        """Add the box of some operations, sorted by position, and all within it; return its number."""
        number, box = len(self.boxes), Box(parent, low=len(self.order))
        self.boxes.append(box)
        label = np.arange(members.size) if members.size <= LEAF else self._parts(members, edges)
        count = int(label.max(initial=-1)) + 1
        self.part[members] = label
        ends = self.part[edges]
        rows = order_layers(count, ends[:, ends[0] != ends[1]])
        code = [0] * count
        by_part = np.argsort(label, kind="stable")
        bounds = np.searchsorted(label[by_part], np.arange(count + 1))
        inner = edges[:, ends[0] == ends[1]]
        within = ends[0][ends[0] == ends[1]]
        for part in (p for row in rows for p in row):
            mine = members[by_part[bounds[part] : bounds[part + 1]]]
            if mine.size == 1:
                code[part] = len(self.order)
                self.order.append(int(mine[0]))
            else:
                code[part] = -1 - self._box(number, mine, inner[:, within == part])
        box.high = len(self.order)
        box.rows = [[code[part] for part in row] for row in rows]
        box.label = self._label(members)
        return number

    def _parts(self, members: Int32, edges: Int32) -> Int64:
        """Return int64 [members], numbers from 0: devices and what waits for them, else pieces of equal level."""
        by_device = self._connected(
            members, edges, self.stage[members] * (self.device.max() + 1) + self.device[members]
        )
        if _is_balanced(by_device):
            return by_device
        chunk = _level_chunks(self.level[members])
        connected = self._connected(members, edges, chunk)
        return connected if _is_balanced(connected) else chunk

    def _connected(self, members: Int32, edges: Int32, label: Int64) -> Int64:
        """Return int64 [members], the connected parts of what has equal labels."""
        self.part[members] = np.arange(members.size)
        a, b = self.part[edges]
        same = label[a] == label[b]
        return components(members.size, a[same].astype(np.int32), b[same].astype(np.int32)).group.astype(np.int64)

    def _label(self, members: Int32) -> str:
        """Return what a box is called: what all its names begin with, or the types that it mostly holds."""
        names = [self.graph.names[i] for i in (members[0], members[-1], *members[:: max(1, members.size // 64)])]
        common = _common_scope(names)
        if common:
            return common
        counts = Counter(self.graph.op_type[members].tolist())
        types = [self.graph.type_names[t] for t, _ in counts.most_common(2)]
        return ", ".join(types)


def _common_scope(names: Sequence[str]) -> str:
    """Return the longest scope that all names begin with, "" if there is none.

    >>> _common_scope(["net/layer1/conv", "net/layer1/relu"])
    'net/layer1'
    """
    low, high = min(names), max(names)
    length = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))
    prefix = low[:length]
    if length < max(len(low), len(high)):  # a name ends at a mark, not within a word
        prefix = prefix[: max(prefix.rfind(mark) for mark in "/.:")] if set("/.:") & set(prefix) else ""
    return prefix if len(prefix) > 2 else ""


def _is_balanced(label: Int64) -> bool:
    """Return whether parts are few enough to be seen at once, none of them is nearly all, and most are not tiny."""
    size = np.bincount(label)
    return 2 <= size.size <= min(MOST, label.size / LEAST) and size.max() <= MAIN * label.size


def _level_chunks(level: Int64) -> Int64:
    """Return int64 [members], numbers from 0 that rise with the level, or the position; of about equal counts."""
    count = min(max(level.size // (LEAF // 2), 2), CHUNKS)
    if level.min() == level.max():
        return np.arange(level.size, dtype=np.int64) * count // level.size
    ordered = np.sort(level)
    bounds = np.unique(ordered[np.arange(1, count) * level.size // count])
    chunk = np.searchsorted(bounds, level, side="right")
    if chunk.min() == chunk.max():  # all but the first levels are few
        chunk = (level > level.min()).astype(np.int64)
    return np.unique(chunk, return_inverse=True)[1].astype(np.int64)


def order_layers(count: int, edges: Int64) -> list[list[int]]:
    """Return nodes 0..count-1 in rows from inputs to outputs, neighbours near one another; edges: int64 [2, m].

    Nodes on a circle, and behind one, come last.

    Source: Sugiyama et al. 1981: longest-path layers, then sweeps by the mean of the neighbours' places.
    """
    pairs = np.unique(edges, axis=1).T.tolist()
    ahead: list[list[int]] = [[] for _ in range(count)]
    behind: list[list[int]] = [[] for _ in range(count)]
    for u, v in pairs:
        ahead[u].append(v)
        behind[v].append(u)
    row, waiting = [0] * count, [len(b) for b in behind]
    ready = [i for i in range(count) if not waiting[i]]
    head = 0
    while head < len(ready):
        u = ready[head]
        head += 1
        for v in ahead[u]:
            row[v] = max(row[v], row[u] + 1)
            waiting[v] -= 1
            if not waiting[v]:
                ready.append(v)
    last = max((row[u] for u in ready), default=-1) + 1
    for u in set(range(count)) - set(ready):
        row[u] = last
    for u in reversed(ready):  # what waits for nothing stands right before what reads it
        if not behind[u] and ahead[u]:
            row[u] = max(0, min(row[v] for v in ahead[u]) - 1)
    rows: list[list[int]] = [[] for _ in range(max(row, default=-1) + 1)]
    for u in [*ready, *sorted(set(range(count)) - set(ready))]:
        rows[row[u]].append(u)
    rows = [r for r in rows if r]
    for sweep in range(SWEEPS):
        _sort_rows(rows if sweep % 2 == 0 else rows[::-1], behind if sweep % 2 == 0 else ahead)
    return rows


def _sort_rows(rows: Sequence[list[int]], neighbours: Sequence[Sequence[int]]) -> None:
    """Sort each row by the mean place of the neighbours in rows before it."""
    place: dict[int, float] = {}
    for row in rows:
        wanted = {}
        for i, u in enumerate(row):
            near = [place[v] for v in neighbours[u] if v in place]
            wanted[u] = sum(near) / len(near) if near else (i + 0.5) / len(row)
        row.sort(key=lambda u: wanted[u])
        place |= {u: (i + 0.5) / len(row) for i, u in enumerate(row)}
