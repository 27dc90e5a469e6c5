"""Weights join the operations that read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pipeline.core.graph import Graph, Grouping, adjacency, topological_order, weight_side


@dataclass(frozen=True, slots=True)
class Fold:
    """Lets everything that is computed from constants alone join the operation that reads it.

    The weight side is every operation that no source reaches; a source is a Parameter, a ReadValue, a random
    generator, or anything without inputs that is not a Constant. A weight-side operation with several consumers
    joins the one whose group comes first in topological order; one without consumers stays alone.

    The quotient is acyclic: call an operation of the data side, or one without consumers, the root of its group, and
    let pos(w) = min over consumers c of pos(c) on the weight side, pos(root) = the root's place in the order. Every
    edge a -> b has pos(a) <= pos(b), with equality only inside a group. Joining simply the consumer that comes first
    would not do: w -> f -> z and w -> c -> y -> z, with f first, gives the edges z's group -> y's group -> z's group.

    Run it before other coarseners: what a group of several operations stands for is not seen from its type.
    """

    version: ClassVar[int] = 1
    seeded: ClassVar[bool] = False
    acyclic: ClassVar[bool] = True

    def coarsen(self, graph: Graph, *, seed: int) -> Grouping:
        """Return the data side with its weights: equal groups are equal roots."""
        order = topological_order(graph)
        place = np.empty(graph.n, dtype=np.int64)
        place[order] = np.arange(graph.n)
        ptr, consumers = adjacency(graph)
        bounds, consumer_list, pos = ptr.tolist(), consumers.tolist(), place.tolist()
        folds = weight_side(graph) & (graph.out_degree > 0)
        for i in order[folds[order]][::-1].tolist():
            pos[i] = min(pos[j] for j in consumer_list[bounds[i] : bounds[i + 1]])
        return Grouping.of_labels(np.array(pos, dtype=np.int64))
