"""What people do by hand: layers in order, cut into one block per device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pipeline.core.arrays import Int32, Int64
from pipeline.core.graph import Grouping, sum_per_group
from pipeline.core.problem import Problem
from pipeline.shared.compiled import compiled
from policy.place.base.search import Method, Search
from policy.place.lists.submit import submit
from policy.place.lists.work import ScheduleInputs, by_position, shares, speeds, work_of


@dataclass(frozen=True, slots=True)
class Expert(Method):
    """Cuts the network into contiguous blocks, one per device.

    With layer tags, layer l of L goes to device floor(l p / L), or to device l if there are fewer layers than devices;
    an encoder's and a decoder's layer of one number go together. An operation without a layer belongs to the last
    layer it reads from; if it reads from none, to the first layer it feeds: embeddings come to lie with the first
    layer, softmax and attention with the last. A second placement cuts the layers where the devices' times balance.
    The last one, and the only one without tags, cuts the groups in topological order where the times balance.

    Source: Mirhoseini et al., ICML 2017, and Zhou et al., GDP, 2019, name such placements as those of human experts;
    the rule for operations without a layer is ours.
    """

    version: ClassVar[int] = 1

    def run(self, search: Search, *, seed: int) -> None:
        """Evaluate the placements; nothing is random."""
        if not search.done:
            work = work_of(search.problem)
            submit(search, work, blocks(search.problem, work))


def blocks(problem: Problem, work: ScheduleInputs) -> list[Int32]:
    """Return the devices of the groups, int32 [k], of every placement: what `Expert` evaluates where it fits."""
    homes, speed = [], speeds(work)
    if problem.tags is not None and np.any(problem.tags.layer >= 0):
        # int64 [n], the number of each operation's layer among the layers there are, given to all
        layer = problem.tags.layer
        known = np.unique(layer[layer >= 0])
        number = np.where(layer >= 0, np.searchsorted(known, layer), -1)
        backward = np.ascontiguousarray(work.order[::-1])
        _follow(work.order, work.in_ptr, work.in_node, number, True)
        _follow(backward, work.out_ptr, work.out_node, number, False)
        layer = np.maximum(number, 0).astype(np.int32)
        count, p = int(layer.max()) + 1, problem.topology.p
        equal = np.arange(count) * p // count if count >= p else np.arange(count)
        time_s = sum_per_group(work.mean_s, Grouping(layer))
        homes += [_majority(work, block[layer]) for block in (equal, shares(time_s, speed))]
    order = by_position(work)
    time_s = sum_per_group(work.mean_s, Grouping(work.group.astype(np.int32)))
    home = np.empty(order.size, np.int32)
    home[order] = shares(time_s[order], speed)
    return [*homes, home]


@compiled
def _follow(order: Int64, ptr: Int64, node: Int64, number: Int64, last: bool) -> None:
    """Give operations without a number the last or the first one among their neighbours."""
    for i in order:
        if number[i] >= 0:
            continue
        for e in range(ptr[i], ptr[i + 1]):
            other = number[node[e]]
            if other >= 0 and (number[i] < 0 or (other > number[i]) == last):
                number[i] = other


def _majority(work: ScheduleInputs, device: Int64 | Int32) -> Int32:
    """Return int32 [k], the device for which most of a group's time speaks; of equal ones the first."""
    p = work.room.size
    weight = work.mean_s + work.mean_s.sum() * 1e-12 + 1e-300
    votes = np.bincount(work.group * p + device, weights=weight, minlength=work.demand.size * p)
    home: Int32 = votes.reshape(-1, p).argmax(axis=1).astype(np.int32)
    return home
