"""Layers of a network and the order of time in each: from tags, or guessed from the weights that operations share."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pipeline.core.arrays import Float64, Int32
from pipeline.core.graph import Grouping, contract, row_ptr, sum_per_group
from pipeline.shared.compiled import compiled
from pipeline.shared.feasibility import made_feasible
from pipeline.shared.graphs import forward_depths, longest_paths, visit_order
from policy.place.base.hierarchy import Level, cluster_depths, contracted, work_of
from policy.place.base.matching import Neighbours

SHARE = 0.01  # of the most bytes that a group holds, from which what a group holds makes a layer
FEW = 32  # groups of a layer on average, or the guess says nothing
TRAINED = 0.5  # share of weights that are written in the second half of a graph that trains them


@dataclass(frozen=True, slots=True, eq=False)
class Layers:
    """The layers of k groups.

    layer: int32 [k], from 0, in the order in which layers come up; every group has one. when: float64 [k], rises with
    the time step at which a group is first needed; -1 for what belongs to all steps, as weights do.
    begin: int32 [count], the least depth of a layer's work.
    """

    finest: Level
    layer: Int32
    when: Float64
    begin: Int32

    @property
    def count(self) -> int:
        """Return the number of layers."""
        return int(self.layer.max(initial=-1)) + 1

    @property
    def work_s(self) -> Float64:
        """Return float64 [count], the work of each layer."""
        return np.bincount(self.layer, weights=self.finest.work_s, minlength=self.count).astype(np.float64)

    def chains(self) -> Float64:
        """Return float64 [count], the work of each layer over the most of it that lies on one path, weights left out.

        It is 1 where one group waits for the other, be it by way of other layers, and the number of equal groups where
        none does. Edges that close cycles of groups do not count.
        """
        groups = self.finest.groups
        graph = contract(groups.problem.graph, groups.grouping)
        order = visit_order(graph).astype(np.int64)
        place = np.empty(graph.n, np.int64)
        place[order] = np.arange(graph.n)
        source, target = graph.edges[:, place[graph.edges[0]] < place[graph.edges[1]]]
        ptr, reader = row_ptr(source, graph.n), target[np.argsort(source, kind="stable")].astype(np.int64)
        own_s = np.where(self.when < 0, 0.0, self.finest.work_s)
        chains = np.ones(self.count)
        for layer in range(self.count):
            mine_s = np.where(self.layer == layer, own_s, 0.0)
            longest_s = float(longest_paths(order, ptr, reader, np.zeros(reader.size), mine_s).max(initial=0.0))
            if longest_s > 0:
                chains[layer] = mine_s.sum() / longest_s
        return chains

    def chunk(self, parts: int) -> Int32:
        """Return int32 [k] in [0, parts): layers cut into parts of equal work, in order of time, -1 for no time.

        Groups of one layer and time are in one part.
        """
        by_time = np.lexsort((self.when, self.layer))
        layer, when, work = self.layer[by_time], self.when[by_time], self.finest.work_s[by_time]
        work = np.where(when < 0, 0.0, work)
        done = np.cumsum(work)
        begins = np.searchsorted(layer, np.arange(self.count))
        before = np.concatenate([[0.0], done])[begins]  # [count], work of the layers before
        total = np.maximum(np.concatenate([before[1:], done[-1:]]) - before, 1e-30)
        fresh = np.concatenate([[True], (np.diff(when) != 0) | (np.diff(layer) != 0)])
        first = np.maximum.accumulate(np.where(fresh, np.arange(layer.size), 0))  # the first group of each moment
        share = (done - work)[first] - before[layer]
        part = np.minimum((parts * share / total[layer] + 1e-9).astype(np.int32), parts - 1)
        answer = np.empty(layer.size, np.int32)
        answer[by_time] = np.where(when < 0, -1, part)
        return answer

    def level(self, parts: int) -> Level:
        """Return the clusters that the layers make when each is cut into `parts` by time."""
        label = Grouping.of_labels(self.layer.astype(np.int64) * (parts + 1) + self.chunk(parts))
        problem = self.finest.groups.problem
        whole = made_feasible(problem, self.finest.groups.grouping.then(label))
        of_unit = np.zeros(self.finest.k, np.int32)
        of_unit[self.finest.groups.grouping.group] = whole.group
        return contracted(self.finest, of_unit, whole.k)


def layers_of(levels: tuple[Level, ...]) -> Layers | None:
    """Return the layers of the groups of levels[0]: from the problem's tags, else guessed; None without either."""
    # single groups, with depths that tell steps apart behind cycles of operations as well
    level = levels[0]
    groups = level.groups
    depth = forward_depths(groups.problem.graph)
    finest = replace(level, first=cluster_depths(depth, work_of(groups.problem), groups.grouping.group, groups.k))
    tags = finest.groups.problem.tags
    if tags is not None and np.any(tags.layer >= 0):
        layer = spread(finest.tensors, finest.layer.copy(), finest.k)
        step = np.full(finest.k, -1, np.int64)
        np.maximum.at(step, finest.groups.grouping.group, tags.step)
        return _numbered(finest, layer, step.astype(np.float64))
    return _guessed(finest)


def _guessed(finest: Level) -> Layers | None:
    """Return layers grown from the groups that hold most weights, or None where too few groups share weights.

    Weights that are used at many time steps have many readers; every other group takes the layer of the group it shares
    the most expensive tensor with. The time of a group is the depth at which it begins. Where weights are trained, what
    they hold is written at the end of the graph and read at its begin, and the way back passes the steps in reverse
    order: depth is counted from the nearer end there.
    """
    held = sum_per_group(finest.groups.problem.graph.weight_bytes, finest.groups.grouping)
    holders = np.flatnonzero(held > SHARE * held.max(initial=0))  # biases go with the weights of their layers
    if not 0 < holders.size * FEW <= finest.k:
        return None
    seeds = np.full(finest.k, -1, np.int32)
    seeds[holders] = np.arange(holders.size)
    depth = forward_depths(finest.groups.problem.graph)
    when = finest.first.astype(np.float64)
    last = np.zeros(finest.k, np.int32)
    np.maximum.at(last, finest.groups.grouping.group, depth)
    if np.mean(last[holders] > depth.max() / 2) > TRAINED:
        when = np.minimum(when, depth.max() - when)
    when[holders] = -1
    return _numbered(finest, spread(finest.tensors, seeds, finest.k), when)


def _numbered(finest: Level, layer: Int32, when: Float64) -> Layers:
    """Return the layers numbered by the depth at which their work begins."""
    label, inverse = np.unique(layer, return_inverse=True)
    dense: Int32 = inverse.astype(np.int32)
    begin = cluster_depths(finest.first, np.where(when < 0, 0.0, finest.work_s), dense, label.size)
    order = np.argsort(begin, kind="stable")
    rank = np.empty(label.size, np.int32)
    rank[order] = np.arange(label.size, dtype=np.int32)
    return Layers(finest, rank[dense], when, begin[order])


@compiled
def spread(tensors: Neighbours, layer: Int32, rounds: int) -> Int32:
    """Give nodes without a layer, -1, that of the neighbour with the most expensive shared tensor, round by round."""
    waiting = np.flatnonzero(layer < 0)
    for _ in range(rounds):
        given = np.full(waiting.size, -1, np.int32)
        for w in range(waiting.size):
            i = waiting[w]
            most_expensive = -1.0
            for e in range(tensors.ptr[i], tensors.ptr[i + 1]):
                j = tensors.neighbour[e]
                if layer[j] >= 0 and tensors.transfer_s[e] > most_expensive:
                    given[w], most_expensive = layer[j], tensors.transfer_s[e]
        changed = False
        for w in range(waiting.size):
            if given[w] >= 0:
                layer[waiting[w]] = given[w]
                changed = True
        if not changed:
            break
        waiting = waiting[given < 0]
    return layer
