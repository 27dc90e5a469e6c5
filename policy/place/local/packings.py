"""Placements that share out bytes by what devices hold: where a search short of memory begins."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterator

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32
from pipeline.core.graph import contract, sum_per_group
from pipeline.core.problem import Problem
from pipeline.shared.partition import even_parts
from policy.place.base.groups import UNLIMITED, Groups
from policy.place.base.hierarchy import Level, hierarchy
from policy.place.base.search import Search

BALANCES = (1.01, 1.03, 1.1)  # heaviest part over the mean: nearly even ones, and one that cuts less
PIECES = (1, 3)  # parts per device
SHARES = (1.0, 0.5)  # of the outputs that count, over the share that one device alone holds at its fullest
CUT_PER_S = 100_000  # groups that METIS divides in a second, roughly
CUTTING_S = 0.2  # seconds for all partitions, roughly; one of each balance and size there is in any case
LARGE = 20_000  # groups above which clusters of them are packed
DRAWS = 8  # partitions of each balance and size at most


def packings(search: Search) -> Iterator[Int32]:
    """Yield int32 [n], distinct devices of the operations that share out bytes by what devices hold.

    They are made when they are asked for, once per problem. Bytes are weights and, where the simulator counts
    activations, the part of the outputs by which a device alone holds more than the weights. What is packed are
    clusters of every size: the heaviest first to the device with the most room for its size, and in the order of their
    first operations, each device filled in turn. Coarse clusters keep neighbours together, and so need few copies.
    Partitions of METIS, even in bytes, need the fewest copies (without pymetis: parts of an order of the groups).
    """
    graph = search.problem.graph
    alone = search.simulate(np.zeros((1, graph.n), np.int32)).peak_bytes.sum()
    share = max(0.0, float(alone) - float(graph.weight_bytes.sum())) / max(float(graph.out_bytes.sum()), 1.0)
    return iter(search.problem.derived(_Packings, share))


class _Packings:
    """The packings of a problem's weights and a share of its outputs, as far as anybody has asked for them."""

    def __init__(self, problem: Problem, share: float) -> None:
        self._made: list[Int32] = []
        self._known: set[bytes] = set()
        levels = hierarchy(problem, least=2 * problem.topology.p)
        few = [level for level in levels if level.k <= LARGE] or [levels[-1]]
        self._more = itertools.chain(_clustered(problem, few, share), _partitioned(problem, few[0].groups, share))
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[Int32]:
        """Yield those that were made, and then others as they are made."""
        for i in itertools.count():
            if i == len(self._made) and not self._another(i):
                return
            yield self._made[i]

    def _another(self, count: int) -> bool:
        """Make one more than so many, unless another thread has; return whether there is one."""
        with self._lock:
            while len(self._made) == count:
                device = next(self._more, None)
                if device is None:
                    return False
                if (key := device.tobytes()) not in self._known:
                    self._known.add(key)
                    self._made.append(device)
        return True


def _clustered(problem: Problem, levels: list[Level], share: float) -> Iterator[Int32]:
    """Yield int32 [n], two packings of each level of clusters."""
    for level in levels:
        amount = _held(problem, level.groups, share)
        room = _room(level.groups, amount)
        order = np.argsort(level.first, kind="stable")
        yield level.groups.placement(_fullest_last(level.groups.allowed, amount, room)).device
        ends = np.cumsum(room) * amount.sum() / room.sum()
        before = np.cumsum(amount[order]) - amount[order] / 2
        wish = np.minimum(np.searchsorted(ends, before), room.size - 1)
        device = np.empty(amount.size, np.int32)
        gap = np.abs(np.arange(room.size) - wish[:, None])
        device[order] = np.where(level.groups.allowed[order], gap, room.size).argmin(axis=1)
        yield level.groups.placement(device).device


def _partitioned(problem: Problem, groups: Groups, share: float) -> Iterator[Int32]:
    """Yield int32 [n], partitions of the groups that are even in bytes and cut few, part by part on a device.

    A tensor's bytes are divided among its readers.
    """
    graph = contract(problem.graph, groups.grouping)
    readers = np.bincount(graph.edges[0], minlength=graph.n)
    edge_weight = graph.edge_bytes / readers[graph.edges[0]]
    kinds = list(itertools.product(SHARES, PIECES, BALANCES))
    draws = int(np.clip(CUTTING_S * CUT_PER_S / (groups.k * len(kinds)), 1, DRAWS))
    for (part_of_share, pieces, balance), seed in itertools.product(kinds, range(draws)):
        amount = _held(problem, groups, part_of_share * share)
        part = even_parts(
            graph,
            pieces * problem.topology.p,
            node_weight=amount + 0.01 * max(float(amount.mean()), 1.0),
            edge_weight=edge_weight,
            balance=balance,
            seed=seed,
        )
        heavy: Float64 = np.bincount(part, weights=amount).astype(np.float64)
        room = _room(groups, amount)
        home = _fullest_last(np.ones((heavy.size, room.size), bool), heavy, room)[part]
        forbidden = ~groups.allowed[np.arange(groups.k), home]
        yield groups.placement(np.where(forbidden, groups.allowed.argmax(axis=1), home).astype(np.int32)).device


def _held(problem: Problem, groups: Groups, share: float) -> Float64:
    """Return float64 [k], the bytes of the groups' weights and a share of their outputs."""
    return sum_per_group(problem.graph.weight_bytes + share * problem.graph.out_bytes, groups.grouping)


def _room(groups: Groups, amount: Float64) -> Float64:
    """Return float64 [p], the bytes devices hold; ample for all where nothing is known."""
    ample = max(1.0, 2.0 * float(amount.sum()))
    return np.where(groups.room_bytes < UNLIMITED, groups.room_bytes, ample).astype(np.float64)


def _fullest_last(allowed: Bool, amount: Float64, room: Float64) -> Int32:
    device, left = np.zeros(amount.size, np.int32), room.copy()
    for i in np.argsort(-amount, kind="stable").tolist():
        free = np.where(allowed[i], (left - amount[i]) / room, -math.inf)
        device[i] = int(free.argmax())
        left[device[i]] -= amount[i]
    return device
