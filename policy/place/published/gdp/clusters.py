"""Clusters of operations that a single-shot policy places as one: by what they share, or by layers and time."""

from __future__ import annotations

from typing import Literal

import numpy as np

from pipeline.core.arrays import Int64
from pipeline.core.graph import Grouping
from pipeline.core.problem import Problem
from pipeline.shared.feasibility import made_feasible
from policy.place.base.contraction import contraction
from policy.place.base.hierarchy import hierarchy
from policy.place.multilevel.layers import Layers, layers_of

LONG = 256  # groups of a layer on average from which layers are long enough to be clusters
PAIR = 2.0  # chains of a layer per part: the way there and the way back run one after the other


ClusterBy = Literal["edges", "layers", "contraction"]


def clusters_of(problem: Problem, *, about: int, by: ClusterBy) -> Grouping:
    """Return clusters of a problem's operations; they may feed one another in cycles.

    "edges": about so many clusters, those merged that share most (`policy.place.base.hierarchy`). "layers": the
    layers of a network, guessed from the weights that its operations share, each with its weights. A layer that holds
    several chains of work is cut by time, into a part per two chains, but no part is made lighter than half a device's
    fair load: parts of a recurrent layer wait for one another, those of a softmax at every step do not. Where weights
    are not shared by many operations, the layers say nothing, and "edges" are taken. "contraction": about so many, by
    the learned score of edges (`policy.place.base.contraction`).
    """
    if by == "contraction":
        return contraction(problem, groups=about)
    if by == "layers":
        layers = layers_of(hierarchy(problem, least=problem.graph.n))
        if layers is not None and layers.finest.k >= LONG * layers.count:
            label = Grouping.of_labels(_cut(layers, problem.topology.p))
            return made_feasible(problem, layers.finest.groups.grouping.then(label))
    return hierarchy(problem, least=about)[-1].groups.grouping


def _cut(layers: Layers, devices: int) -> Int64:
    """Return int64 [k], the labels of groups: their layer, or the part of it that is theirs."""
    work_s = layers.work_s
    fair_s = max(float(work_s.sum()) / devices, 1e-30)
    most = np.minimum(layers.chains() / PAIR, work_s / (fair_s / 2))
    parts = np.clip(np.round(most), 1, devices).astype(np.int64)
    label = layers.layer.astype(np.int64) * devices
    for count in np.unique(parts[parts > 1]).tolist():
        mine = parts[layers.layer] == count
        label[mine] += np.maximum(layers.chunk(count)[mine], 0)  # what has no time, as weights, stays with the first
    return label
