"""A quick estimate of what plans cost: the graph shrunk to cells, run on devices and links that all work at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.compiled import compiled
from pipeline.core.arrays import Bool, Float64, Int32, Int64
from pipeline.core.graph import Graph, Grouping
from pipeline.core.problem import Problem
from policy.place.units import UNLIMITED

ROUNDS = 6  # of shrinking at most
ROUNDING = 1e-9  # of sums of seconds
STALLED = 0.95  # cells after a round over those before from which shrinking has come to its end


class Sketch(NamedTuple):
    """c cells, the tensors they make, and the devices.

    tensor_ptr: int64 [c + 1]: cell i makes the tensors tensor_ptr[i]:tensor_ptr[i + 1]; size: float64 [t], bytes, of
    which reader[reader_ptr[t]:reader_ptr[t + 1]] are the cells that read tensor t. awaits: int32 [c], how many reads
    a cell waits for. op_s: float64 [c, p]. tail_s: float64 [c], the least time from a cell's begin to the end.
    held: int64 [c] and room: int64 [p], bytes. latency_s, per_byte_s: float64 [p, p].
    """

    tensor_ptr: Int64
    size: Float64
    reader_ptr: Int64
    reader: Int32
    awaits: Int32
    op_s: Float64
    tail_s: Float64
    held: Int64
    room: Int64
    latency_s: Float64
    per_byte_s: Float64


class Trials(NamedTuple):
    """Moves of cells as `pipeline.core.simulation.Moves` has them of nodes; allowed: bool [c, p]."""

    ptr: Int64
    cell: Int32
    device: Int32
    like: Int32
    allowance_s: Float64
    allowed: Bool


def sketch_of(problem: Problem, op_s: Float64, label: Int32) -> tuple[Sketch, Grouping]:
    """Return the sketch of a problem, and the cell of every operation; no cell mixes operations of different labels.

    op_s: float64 [n, p], seconds. label: int32 [n].
    """
    graph, topology = problem.graph, problem.topology
    cells = cells_of(graph, label)
    cell = cells.group
    producer, consumer = graph.edges
    cut = cell[producer] != cell[consumer]
    by_cell = np.lexsort((consumer[cut], graph.edge_bytes[cut], producer[cut], cell[producer[cut]]))
    source, reader = producer[cut][by_cell], cell[consumer[cut]][by_cell]
    size = graph.edge_bytes[cut][by_cell].astype(np.float64)
    pair = np.concatenate([[True], (np.diff(source) != 0) | (np.diff(size) != 0)]) if source.size else cut[:0]
    begins = np.flatnonzero(pair)
    tensor_ptr = np.searchsorted(cell[source[begins]], np.arange(cells.k + 1))
    seconds = np.zeros((cells.k, topology.p))
    np.add.at(seconds, cell, op_s)
    held = np.bincount(cell, weights=graph.weight_bytes, minlength=cells.k).astype(np.int64)
    room = np.array([d.memory_bytes or UNLIMITED for d in topology.devices], dtype=np.int64)
    sketch = Sketch(
        tensor_ptr=tensor_ptr.astype(np.int64),
        size=size[begins],
        reader_ptr=np.append(begins, source.size).astype(np.int64),
        reader=reader.astype(np.int32),
        awaits=np.bincount(reader, minlength=cells.k).astype(np.int32),
        op_s=seconds,
        tail_s=np.zeros(cells.k),
        held=held,
        room=room,
        latency_s=np.array(topology.link_latency_s),
        per_byte_s=1.0 / topology.link_bytes_per_s,
    )
    return sketch._replace(tail_s=_tails(sketch)), cells


def cells_of(graph: Graph, label: Int32) -> Grouping:
    """Return groups of operations of one label each, whose quotient is acyclic if the graph is.

    In turn, what reads only one cell joins it (cells that read nothing do not count: no cycle leads through them),
    what is read by only one cell joins that, and what has the same label and depth becomes one cell.
    """
    cells = Grouping.identity(graph.n)
    edges, label = np.asarray(graph.edges), np.asarray(label)
    for round_ in range(ROUNDS):
        before = cells.k
        for way in ("before", "behind", "beside") if round_ % 2 else ("before", "behind"):
            k = label.size
            producer, consumer = edges if way != "behind" else edges[::-1]
            ptr, reader = _rows(producer, consumer, k)
            order, depth = _order(ptr, reader)
            if way == "beside":
                head = _first_equal(label.astype(np.int64) * (k + 1) + depth)
            else:
                read_ptr, read = _rows(consumer, producer, k)
                head = _joined(order, read_ptr, read, label)
            merged = Grouping.of_labels(head)
            first = np.unique(merged.group, return_index=True)[1]
            cells, label = cells.then(merged), label[first]
            edges = merged.group[edges]
            edges = edges[:, edges[0] != edges[1]]
            code = np.unique(edges[0].astype(np.int64) * merged.k + edges[1])
            edges = np.stack([code // merged.k, code % merged.k]).astype(np.int32)
        if cells.k > STALLED * before:
            break
    return cells


def _rows(source: Int32, target: Int32, k: int) -> tuple[Int64, Int32]:
    """Return (ptr, target): the targets of source i are target[ptr[i]:ptr[i + 1]]."""
    by_source = np.argsort(source, kind="stable")
    ptr = np.zeros(k + 1, np.int64)
    np.cumsum(np.bincount(source, minlength=k), out=ptr[1:])
    return ptr, np.ascontiguousarray(target[by_source], dtype=np.int32)


def _first_equal(key: Int64) -> Int32:
    """Return int32 [k], the first index at which each value stands."""
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    return first[which].astype(np.int32)


@compiled
def _order(ptr: Int64, reader: Int32) -> tuple[Int32, Int32]:
    """Return (order, depth), int32 [k]; nodes on cycles come last, at depths of their own."""
    k = ptr.size - 1
    waiting = np.zeros(k, np.int32)
    for j in reader:
        waiting[j] += 1
    order, depth = np.empty(k, np.int32), np.zeros(k, np.int32)
    tail = 0
    for i in range(k):
        if waiting[i] == 0:
            order[tail] = i
            tail += 1
    head = 0
    while head < tail:
        i = order[head]
        head += 1
        for e in range(ptr[i], ptr[i + 1]):
            j = reader[e]
            depth[j] = max(depth[j], depth[i] + 1)
            waiting[j] -= 1
            if waiting[j] == 0:
                order[tail] = j
                tail += 1
    for i in range(k):
        if waiting[i] > 0:
            order[tail] = i
            depth[i] = tail
            tail += 1
    return order, depth


@compiled
def _joined(order: Int32, ptr: Int64, read: Int32, label: Int32) -> Int32:
    """Return int32 [k], the first node of each node's cell, after every node joined the one cell it reads, if one."""
    head = np.arange(order.size).astype(np.int32)
    for v in order:
        only = -1
        for e in range(ptr[v], ptr[v + 1]):
            u = read[e]
            if ptr[u] == ptr[u + 1] and label[u] != label[v]:
                continue  # reads nothing itself
            if only >= 0 and head[u] != only:
                only = -2
                break
            only = head[u]
        if only >= 0 and label[only] == label[v]:
            head[v] = only
    return head


@compiled
def _tails(sketch: Sketch) -> Float64:
    """Return float64 [c], the longest way from each cell's begin to the end, on the fastest devices, without links."""
    c, p = sketch.op_s.shape
    waiting, order, tail = sketch.awaits.copy(), np.empty(c, np.int32), 0
    for i in range(c):
        if waiting[i] == 0:
            order[tail] = i
            tail += 1
    head = 0
    while head < tail:
        i = order[head]
        head += 1
        for e in range(sketch.reader_ptr[sketch.tensor_ptr[i]], sketch.reader_ptr[sketch.tensor_ptr[i + 1]]):
            j = sketch.reader[e]
            waiting[j] -= 1
            if waiting[j] == 0:
                order[tail] = j
                tail += 1
    tails = np.zeros(c)
    for h in range(tail - 1, -1, -1):
        i = order[h]
        for e in range(sketch.reader_ptr[sketch.tensor_ptr[i]], sketch.reader_ptr[sketch.tensor_ptr[i + 1]]):
            tails[i] = max(tails[i], tails[sketch.reader[e]])
        fastest = sketch.op_s[i, 0]
        for d in range(1, p):
            fastest = min(fastest, sketch.op_s[i, d])
        tails[i] += fastest
    return tails


@compiled
def _push(at_s: Float64, what: Int32, size: int, key: float, item: int) -> int:
    """Put an event into a heap of `size`, the earliest first, of equal ones the least; return the new size."""
    i = size
    while i > 0:
        above = (i - 1) // 2
        if at_s[above] < key or (at_s[above] == key and what[above] < item):
            break
        at_s[i], what[i] = at_s[above], what[above]
        i = above
    at_s[i], what[i] = key, item
    return size + 1


@compiled
def _drop(at_s: Float64, what: Int32, size: int) -> int:
    """Take the first event out of a heap of `size`; return the new size."""
    size -= 1
    key, item = at_s[size], what[size]
    i = 0
    while True:
        below = 2 * i + 1
        if below >= size:
            break
        other = below + 1
        if other < size and (at_s[other] < at_s[below] or (at_s[other] == at_s[below] and what[other] < what[below])):
            below = other
        if at_s[below] > key or (at_s[below] == key and what[below] > item):
            break
        at_s[i], what[i] = at_s[below], what[below]
        i = below
    at_s[i], what[i] = key, item
    return size


@compiled
def _send(sketch: Sketch, device: Int32, t: int, here: int, now_s: float, links: Float64, arrived: Float64) -> None:
    """Fill `arrived` [p] with when a tensor is on each device that reads it; links [2, p]: free for sending, taking."""
    arrived[:] = -1.0
    for e in range(sketch.reader_ptr[t], sketch.reader_ptr[t + 1]):
        arrived[device[sketch.reader[e]]] = now_s
    for d in range(arrived.size):
        if arrived[d] < 0 or d == here:
            continue
        if sketch.size[t] > 0:
            over = max(now_s, links[0, here], links[1, d]) + sketch.size[t] * sketch.per_byte_s[here, d]
            links[0, here] = links[1, d] = arrived[d] = over
        arrived[d] += sketch.latency_s[here, d]


@compiled
def estimate_s(sketch: Sketch, device: Int32, limit_s: float) -> float:
    """Return the seconds of a plan, int32 [c]: cells in the order in which they become ready, tensors likewise.

    inf as soon as it is certain that it takes longer than limit_s: by a cell that is ready too late for what must
    follow it, or by a device with too much work left.
    """
    c, p = sketch.op_s.shape
    left_s = np.zeros(p)  # work not yet begun
    for i in range(c):
        left_s[device[i]] += sketch.op_s[i, device[i]]
    waiting, ready_s = sketch.awaits.copy(), np.zeros(c)
    at_s, what = np.empty(c + 1), np.empty(c + 1, np.int32)
    free, links, arrived = np.zeros(p), np.zeros((2, p)), np.empty(p)
    events, end_s = 0, 0.0
    for i in range(c):
        if waiting[i] == 0:
            events = _push(at_s, what, events, 0.0, i)
    while events > 0:
        now_s, event = at_s[0], what[0]
        events = _drop(at_s, what, events)
        if event >= 0:  # a cell is ready; below 0 it has ended
            d = device[event]
            start = max(free[d], now_s)
            if max(start + left_s[d], start + sketch.tail_s[event]) > limit_s:
                return np.inf
            left_s[d] -= sketch.op_s[event, d]
            free[d] = start + sketch.op_s[event, d]
            events = _push(at_s, what, events, free[d], -event - 1)
            continue
        i = -event - 1
        end_s = now_s
        for t in range(sketch.tensor_ptr[i], sketch.tensor_ptr[i + 1]):
            _send(sketch, device, t, device[i], now_s, links, arrived)
            for e in range(sketch.reader_ptr[t], sketch.reader_ptr[t + 1]):
                j = sketch.reader[e]
                ready_s[j] = max(ready_s[j], arrived[device[j]])
                waiting[j] -= 1
                if waiting[j] == 0:
                    events = _push(at_s, what, events, ready_s[j], j)
    return end_s


@compiled
def walk(sketch: Sketch, trials: Trials, start: Int32) -> tuple[Int32, float, Int32, float]:
    """Return (end, its seconds, best, its seconds) of a walk from a plan; moves that exceed memory are not taken."""
    device, now_s = start.copy(), estimate_s(sketch, start, np.inf)
    best, best_s = start.copy(), now_s
    free = sketch.room.copy()
    for i in range(device.size):
        free[device[i]] -= sketch.held[i]
    was = np.empty(device.size, np.int32)
    for r in range(trials.device.size):
        goal = device[trials.like[r]] if trials.like[r] >= 0 else trials.device[r]
        begin, end = trials.ptr[r], trials.ptr[r + 1]
        changes, fits, more = False, True, 0
        for e in range(begin, end):
            i = trials.cell[e]
            was[e - begin] = device[i]
            changes = changes or device[i] != goal
            fits = fits and trials.allowed[i, goal]
            more += sketch.held[i] if device[i] != goal else 0
        if not changes or not fits or (more > 0 and more > free[goal]):
            continue
        for e in range(begin, end):
            device[trials.cell[e]] = goal
        limit_s = now_s + trials.allowance_s[r]
        value_s = estimate_s(sketch, device, limit_s * (1 + ROUNDING))
        taken = value_s <= limit_s
        for e in range(begin, end):
            i, before = trials.cell[e], was[e - begin]
            if taken:
                free[before] += sketch.held[i]
                free[goal] -= sketch.held[i]
            else:
                device[i] = before
        now_s = value_s if taken else now_s
        if taken and value_s < best_s:
            best[:], best_s = device, value_s
    return device, now_s, best, best_s
