"""Grouping as a stage of its own: build a grouper, take its most likely grouping, keep its parameters."""

from __future__ import annotations

import numpy as np
import torch

from pipeline.core.arrays import Float32
from pipeline.core.graph import Graph, Grouping
from pipeline.core.learning import Grouper
from pipeline.shared.torch_tools import weights_of


def group_once(grouper: Grouper, nodes: Float32, graph: Graph, *, seed: int) -> tuple[Grouping, dict[str, Float32]]:
    """Return the most likely grouping of embeddings float32 [n, h], and the grouper's parameters by name."""
    model = grouper.build(nodes.shape[1], seed=seed)
    with torch.no_grad():
        sample = model.group(torch.tensor(nodes), graph, rng=np.random.default_rng(seed), greedy=True)
    return sample.grouping, weights_of(model.module)
