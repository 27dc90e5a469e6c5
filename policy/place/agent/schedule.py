"""What the timeline of a placement says: when each node runs, how late it could, and when devices are busy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pipeline.core.arrays import Float64, Int64
from pipeline.core.graph import Graph, adjacency, topological_order
from pipeline.core.simulation import Timeline
from policy.place.agent.world import World

SLOTS = 256  # parts of the makespan in which a device's busy time is told apart


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """One placement as it runs, in units of the world.

    start, finish: float32 [n]. latest: float32 [n], how late each node could begin without lengthening the whole,
    every device keeping its order. busy: float32 [p, SLOTS + 1], time each device has computed until a share of the
    makespan. makespan: units.
    """

    start: Tensor
    finish: Tensor
    latest: Tensor
    busy: Tensor
    makespan: float

    @classmethod
    def of(cls, timeline: Timeline, graph: Graph, world: World) -> Schedule:
        """Return the schedule of a timeline of the graph's own nodes.

        Raises:
            CyclicGraphError: the graph has a cycle.
        """
        start, end = timeline.start_s / world.unit_s, timeline.end_s / world.unit_s
        makespan = timeline.value_s / world.unit_s
        device = timeline.device.astype(np.int64)
        transfer = world.transfer(torch.tensor(device)[world.source], torch.tensor(device)[world.target])
        latest = _latest(graph, device, start, end, transfer.double().numpy(), makespan)
        grid = np.linspace(0.0, makespan, SLOTS + 1)
        busy = np.stack([_busy(start[device == d], end[device == d], grid) for d in range(world.p)])
        put = [torch.tensor(values, dtype=torch.float32) for values in (start, end, latest, busy)]
        return cls(put[0], put[1], put[2], put[3], makespan)


def _latest(graph: Graph, device: Int64, start: Float64, end: Float64, transfer: Float64, makespan: float) -> Float64:
    """Return float64 [n], the latest begin of each node; transfer: float64 [m], units of each edge."""
    ptr, consumers = adjacency(graph)
    place = np.empty(graph.n)
    place[topological_order(graph)] = np.arange(graph.n)
    # What begins at one moment runs in topological order, what takes no time first.
    order = np.lexsort((place, end - start, start))[::-1]
    bounds, after, cost = ptr.tolist(), consumers.tolist(), transfer.tolist()
    duration, where = (end - start).tolist(), device.tolist()
    latest = [makespan] * graph.n
    ahead = [makespan] * (int(device.max(initial=0)) + 1)  # the latest begin of what runs next on each device
    for i in order.tolist():
        until = ahead[where[i]]
        for at in range(bounds[i], bounds[i + 1]):
            until = min(until, latest[after[at]] - cost[at])
        latest[i] = until - duration[i]
        ahead[where[i]] = latest[i]
    return np.array(latest)


def _busy(start: Float64, end: Float64, grid: Float64) -> Float64:
    """Return float64 [g], how much of the intervals lies before each point of a rising grid float64 [g]."""
    return _passed(np.sort(start), grid) - _passed(np.sort(end), grid)


def _passed(moments: Float64, grid: Float64) -> Float64:
    """Return float64 [g], the sum over moments of the time since each, at every point of a grid."""
    total = np.concatenate([[0.0], np.cumsum(moments)])
    count = np.searchsorted(moments, grid, side="right")
    passed: Float64 = count * grid - total[count]
    return passed
