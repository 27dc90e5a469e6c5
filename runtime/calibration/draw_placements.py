"""Placements that a search might well come up with, without a search."""

from __future__ import annotations

import numpy as np

from pipeline.core.arrays import Bool, Int64
from pipeline.core.graph import sum_per_group, topological_order
from pipeline.core.placement import Placement
from pipeline.core.stages import Subject
from runtime.simulators.shared.simulated import known_costs

SCATTERED = 0.25  # of the placements put single nodes elsewhere on top
SCATTER = 0.1  # of the nodes, at most


def plausible_placements(subject: Subject, count: int, *, seed: int) -> list[Placement]:
    """Return up to `count` different placements of a subject's nodes, those on a single device first.

    The others cut the nodes, in topological order, into stretches at random places and put neighbouring stretches on
    different devices: few stretches as often as many, from 2 to all nodes alternating. A share of them has single
    nodes elsewhere on top. A node goes only where it is supported.

    Raises:
        UsageError: the subject has no cost table.
    """
    costs = known_costs(subject, "sequential")
    grouping, names = subject.grouping, subject.topology.names
    allowed = np.isfinite(sum_per_group(costs.op_s, grouping))
    place = np.empty(subject.graph.n)
    place[topological_order(subject.graph)] = np.arange(subject.graph.n)
    order = np.argsort(sum_per_group(place, grouping) / np.bincount(grouping.group, minlength=grouping.k))
    rng = np.random.default_rng(seed)
    placements: dict[bytes, Placement] = {}
    for device in range(len(names)):
        _keep_placement(placements, np.full(grouping.k, device), allowed, names)
    for _ in range(8 * count):  # small subjects have fewer placements than were asked for
        if len(placements) >= count:
            break
        _keep_placement(placements, _draw_stretches(order, len(names), rng), allowed, names)
    return list(placements.values())[:count]


def _draw_stretches(order: Int64, p: int, rng: np.random.Generator) -> Int64:
    """Return float64 [k], the device of each node, for nodes in topological order."""
    k = order.size
    parts = int(np.clip(round(float(np.exp(rng.uniform(np.log(2), np.log(max(k, 2)))))), 1, k))
    cuts = np.sort(rng.choice(np.arange(1, k), parts - 1, replace=False)) if parts > 1 else np.zeros(0, np.int64)
    stretch = np.searchsorted(cuts, np.arange(k), side="right")
    # A step of 1 to p - 1 from one stretch to the next never stays on the device.
    steps = np.r_[rng.integers(p), rng.integers(1, max(p, 2), parts - 1)]
    device = np.empty(k, np.int64)
    device[order] = (np.cumsum(steps) % p)[stretch]
    if rng.random() < SCATTERED:
        moved = rng.random(k) < rng.uniform(0, SCATTER)
        device[moved] = rng.integers(p, size=int(moved.sum()))
    return device


def _keep_placement(
    placements: dict[bytes, Placement],
    device: Int64,
    allowed: Bool,
    names: tuple[str, ...],
) -> None:
    """Add a placement to those found; nodes that its devices do not support go where they are."""
    lost = np.flatnonzero(~allowed[np.arange(device.size), device])
    device[lost] = np.argmax(allowed[lost], axis=1)
    placement = Placement(device.astype(np.int32), names)
    placements.setdefault(placement.key(), placement)
