"""Kernels that cut a placed model into sub-graphs and break the cycles among them; see `subgraphs`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.compiled import compiled
from pipeline.core.arrays import Bool, Int32, Int64
from runtime.simulators.parts import joined, on_cycles

LENGTH_BIT, FLAGS_BIT = 28, 56  # where a rank holds the number of inner producers, and what comes before it


class Model(NamedTuple):
    """What the kernels know of n operations and m edges.

    producer, consumer: int32 [m]. order: int32 [n], every producer before its consumers. into_ptr: int64 [n + 1],
    into: int32 [m]: the edges that end in operation i are into[into_ptr[i]:into_ptr[i + 1]].
    entry: bool [n], whether it is a Parameter or a Constant. computes: bool [n], whether it is no Constant.
    prepares: bool [n], whether it computes for one reader alone, from Parameters and Constants alone.
    to_result: bool [m], whether an edge ends in a Result. readers: int32 [n], how many operations but Results read
    each. out_degree: int32 [n].
    unit: int32 [n], operations of one unit are always in one sub-graph. unit_first: int32 [u], a member of each.
    unit_source, unit_target, unit_to_result: the edges between units.
    """

    producer: Int32
    consumer: Int32
    order: Int32
    into_ptr: Int64
    into: Int32
    entry: Bool
    computes: Bool
    prepares: Bool
    to_result: Bool
    readers: Int32
    out_degree: Int32
    unit: Int32
    unit_first: Int32
    unit_source: Int32
    unit_target: Int32
    unit_to_result: Bool


@compiled
def parts(model: Model, device: Int32, counts: Int64) -> Int32:
    """Return int32 [n], the part of each operation for device int32 [n], and count those that compute by device.

    Parts are numbered by first appearance. counts: int64 [p], written to; a placement on one device counts as one.
    """
    n, units, links = device.size, model.unit_first.size, model.unit_source.size
    boundary = np.empty(links, np.bool_)
    for e in range(links):
        a, b = model.unit_first[model.unit_source[e]], model.unit_first[model.unit_target[e]]
        boundary[e] = device[a] != device[b] and not model.unit_to_result[e]
    unit_part, k = joined(model.unit_source, model.unit_target, boundary, units)
    waiting, itself = on_cycles(model.unit_source, model.unit_target, boundary, unit_part, k)
    if waiting.any() or itself.any():
        boundary = np.empty(model.producer.size, np.bool_)
        for e in range(boundary.size):
            boundary[e] = device[model.producer[e]] != device[model.consumer[e]] and not model.to_result[e]
        while promote_meeting_edges(model, boundary):
            pass
        while isolate_one_operation(model, boundary):
            pass
        part, k = joined(model.producer, model.consumer, boundary, n)
    else:
        part = np.empty(n, np.int32)
        for i in range(n):
            part[i] = unit_part[model.unit[i]]
    _count(model, device, part, k, counts)
    return part


@compiled
def _count(model: Model, device: Int32, part: Int32, k: int, counts: Int64) -> None:
    """Write into int64 [p] how many parts compute on each device, each where its first such operation is."""
    counts.fill(0)
    seen = np.zeros(k, np.bool_)
    alone = True
    for i in range(device.size):
        alone &= device[i] == device[0]
        if model.computes[i] and not seen[part[i]]:
            seen[part[i]] = True
            counts[device[i]] += 1
    if alone and device.size:
        counts[device[0]] = 1


class Gates(NamedTuple):
    """The ways into parts on cycles, and what depends on which of them, as bit sets of w words.

    A gate is a boundary or, with producer -1, a Parameter or Constant that lies in the part. Those into part k have
    the numbers start[k] to start[k + 1].

    producer, consumer: int32 [g]. passed: uint64 [n, w], what each operation depends on. leaving: uint64 [k, w], the
    gates that are left through each part.
    """

    start: Int64
    producer: Int32
    consumer: Int32
    passed: np.ndarray[tuple[int, int], np.dtype[np.uint64]]
    leaving: np.ndarray[tuple[int, int], np.dtype[np.uint64]]


@compiled
def promote_meeting_edges(model: Model, boundary: Bool) -> bool:
    """Make boundaries of the edges at which a strand that came back meets one that never left; say if any."""
    part, k = joined(model.producer, model.consumer, boundary, model.order.size)
    waiting, itself = on_cycles(model.producer, model.consumer, boundary, part, k)
    cyclic = waiting
    for j in range(k):
        cyclic[j] |= itself[j]
    if not cyclic.any():
        return False
    gates = _gates_of(model, boundary, part, cyclic)
    found = np.zeros(boundary.size, np.bool_)
    words = gates.passed.shape[1]
    for i in range(part.size):
        if not cyclic[part[i]] or not _loops(gates, part, i, i):
            continue
        searched = False
        common = np.zeros(0, np.uint64)
        for x in range(model.into_ptr[i], model.into_ptr[i + 1]):
            e = model.into[x]
            a = int(np.int64(model.producer[e]))
            if boundary[e] or _loops(gates, part, i, a) or _serves_one_reader(model, gates, part, a):
                continue
            if not searched:
                common = _behind_loops(gates, part, i)
                searched = True
            for w in range(words):
                found[e] |= common[w] & gates.passed[a, w] != 0
    for e in range(boundary.size):
        boundary[e] |= found[e]
    return bool(found.any())


@compiled
def _gates_of(model: Model, boundary: Bool, part: Int32, cyclic: Bool) -> Gates:
    """Return the gates into the cyclic parts: only they can lie on the way from a part back to itself."""
    n, k = part.size, cyclic.size
    start = np.zeros(k + 2, np.int64)
    for i in range(n):
        start[part[i] + 2] += model.entry[i] and cyclic[part[i]]
    for e in range(boundary.size):
        start[part[model.consumer[e]] + 2] += boundary[e] and cyclic[part[model.consumer[e]]]
    for j in range(k):
        start[j + 2] += start[j + 1]
    producer, consumer = np.empty(start[-1], np.int32), np.empty(start[-1], np.int32)
    words = (start[-1] + 63) // 64
    passed, leaving = np.zeros((n, words), np.uint64), np.zeros((k, words), np.uint64)
    for place in range(n):
        i = int(np.int64(model.order[place]))
        for x in range(model.into_ptr[i], model.into_ptr[i + 1]):
            e = model.into[x]
            a = int(np.int64(model.producer[e]))
            for w in range(words):
                passed[i, w] |= passed[a, w]
            if boundary[e] and cyclic[part[i]]:
                g = _numbered(start, producer, consumer, part, a, i)
                passed[i, g // 64] |= np.uint64(1) << np.uint64(g % 64)
                leaving[part[a], g // 64] |= np.uint64(1) << np.uint64(g % 64)
        if model.entry[i] and cyclic[part[i]]:
            g = _numbered(start, producer, consumer, part, -1, i)
            passed[i, g // 64] |= np.uint64(1) << np.uint64(g % 64)
    return Gates(start[:-1], producer, consumer, passed, leaving)


@compiled
def _numbered(start: Int64, producer: Int32, consumer: Int32, part: Int32, a: int, i: int) -> int:
    """Return the number given to the gate from a into operation i."""
    g = int(start[part[i] + 1])
    start[part[i] + 1] += 1
    producer[g], consumer[g] = a, i
    return g


@compiled
def _loops(gates: Gates, part: Int32, i: int, a: int) -> bool:
    """Return whether operations i and a of one part depend on a common way out of it."""
    for w in range(gates.passed.shape[1]):
        if gates.passed[i, w] & gates.passed[a, w] & gates.leaving[part[i], w]:
            return True
    return False


@compiled
def _depends(gates: Gates, i: int, g: int) -> bool:
    """Return whether operation i depends on gate g."""
    return bool(gates.passed[i, g // 64] >> np.uint64(g % 64) & np.uint64(1))


@compiled
def _serves_one_reader(model: Model, gates: Gates, part: Int32, a: int) -> bool:
    """Return whether an operation only prepares a constant or an input for its one reader."""
    if model.entry[a] or model.out_degree[a] != 1 or _loops(gates, part, a, a):
        return False
    for g in range(gates.start[part[a]], gates.start[part[a] + 1]):
        if gates.producer[g] >= 0 and not model.entry[gates.producer[g]] and _depends(gates, a, g):
            return False
    return True


@compiled
def _behind_loops(gates: Gates, part: Int32, i: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Return the gates into i's part that lie behind those through which the part is left and entered again."""
    words, k = gates.passed.shape[1], part[i]
    found = np.zeros(words, np.uint64)
    for g in range(gates.producer.size):
        if gates.producer[g] >= 0 and part[gates.producer[g]] == k and _depends(gates, i, g):
            for w in range(words):
                found[w] |= gates.passed[gates.producer[g], w]
    own = np.zeros(words, np.uint64)
    for g in range(gates.start[k], gates.start[k + 1]):
        own[g // 64] |= np.uint64(1) << np.uint64(g % 64)
        if gates.producer[g] >= 0 and part[gates.producer[g]] != k and _depends(gates, i, g):
            for w in range(words):
                found[w] |= gates.passed[gates.consumer[g], w]
    for w in range(words):
        found[w] &= own[w]
    return found


@compiled
def isolate_one_operation(model: Model, boundary: Bool) -> bool:
    """Cut one operation of parts that wait for one another off its producers; say if there was need."""
    part, k = joined(model.producer, model.consumer, boundary, model.order.size)
    waiting, _ = on_cycles(model.producer, model.consumer, boundary, part, k)
    if not waiting.any():
        return False
    chosen, least = -1, np.iinfo(np.int64).max
    for i in range(part.size):
        if waiting[part[i]]:
            rank = _rank(model, boundary, part, waiting, i)
            if rank < least:
                chosen, least = i, rank
    if chosen < 0:
        return False
    for x in range(model.into_ptr[chosen], model.into_ptr[chosen + 1]):
        boundary[model.into[x]] = True
    return True


@compiled
def _rank(model: Model, boundary: Bool, part: Int32, waiting: Bool, i: int) -> int:
    """Return by what HETERO chooses the operation to isolate, the least first; the largest int64 if it cannot be."""
    inner = 0
    comes_back = shares = prepared = False
    for x in range(model.into_ptr[i], model.into_ptr[i + 1]):
        e = model.into[x]
        a = model.producer[e]
        if boundary[e]:
            comes_back |= part[a] != part[i] and waiting[part[a]]
        else:
            inner += 1
            shares |= model.readers[a] > 1
            prepared |= model.prepares[a]
    if inner == 0:
        return np.iinfo(np.int64).max
    linear = inner == 1 and model.readers[i] <= 1
    flags = 8 * (not comes_back) + 4 * (not shares) + 2 * prepared + linear
    return (flags << FLAGS_BIT) + (inner << LENGTH_BIT)  # of equal ones the first found, of least index, is chosen
