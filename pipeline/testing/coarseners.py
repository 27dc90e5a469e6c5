"""What every coarsener promises."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np

from pipeline.core.graph import Graph, contract, is_acyclic
from pipeline.core.stages import Coarsener
from pipeline.testing.graphs import graph_of, random_graphs
from pipeline.testing.promises import (
    check_declaration,
    global_state_unchanged,
    is_seeded,
    promise_that_ends,
    require_promise,
)

SMALLEST = {
    "1 node": graph_of(1, [], kernel=[0]),
    "2 nodes": graph_of(2, [], kernel=[0, 1]),
    "1 edge": graph_of(2, [(0, 1)], kernel=[0, 0]),
    "no cost": graph_of(2, [(1, 0)], kernel=[0, -1], types=["MatMul", "Constant"], flops=[0, 0], out_bytes=[0, 0]),
    "no edges": graph_of(9, [], kernel=[0] * 9),
    "constants": graph_of(9, [], kernel=[0] * 9, types=["Constant"] * 9),
    "star": graph_of(40, [(0, i) for i in range(1, 40)], kernel=[0] * 40),
    "empty": graph_of(0, []),
}


@promise_that_ends
def check_coarsener(coarsener: Coarsener) -> None:
    """Hold a coarsener to all promises of its Protocol.

    Raises:
        AssertionError: it breaks one of them; the message says which.
    """
    check_declaration(coarsener)
    check_acyclic_is_stated(coarsener)
    check_global_state(coarsener)
    for graph in SMALLEST.values():
        check_grouping(coarsener, graph, seed=0)
    for seed, graph in enumerate(random_graphs()):
        check_grouping(coarsener, graph, seed=seed % 4)
        check_indifference(coarsener, graph, seed=seed % 4)


def check_acyclic_is_stated(coarsener: Coarsener) -> None:
    """Require that it says whether its quotients are acyclic."""
    require_promise(
        isinstance(coarsener.acyclic, bool), coarsener, f"says acyclic is {coarsener.acyclic!r}, not True or False"
    )


def check_grouping(coarsener: Coarsener, graph: Graph, *, seed: int) -> None:
    """Require that it groups every operation, conserves sums, is acyclic if promised, and follows from the seed."""
    grouping = coarsener.coarsen(graph, seed=seed)
    require_promise(grouping.n == graph.n, coarsener, f"groups {grouping.n} of {graph.n} operations")
    small = contract(graph, grouping)
    require_promise(small.n == grouping.k, coarsener, f"makes {grouping.k} groups and a graph of {small.n}")
    require_promise(small.flops.sum() == graph.flops.sum(), coarsener, "does not conserve FLOPs")
    require_promise(
        small.weight_bytes.sum() == graph.weight_bytes.sum(), coarsener, "does not conserve bytes of weights"
    )
    require_promise(
        not coarsener.acyclic or is_acyclic(small), coarsener, "promises acyclic quotients and makes a cyclic one"
    )
    again = copy.copy(coarsener).coarsen(graph, seed=seed)
    require_promise(
        np.array_equal(again.group, grouping.group), coarsener, "groups an equal graph differently for equal seeds"
    )
    if not is_seeded(coarsener):
        other = coarsener.coarsen(graph, seed=seed + 1)
        same = np.array_equal(other.group, grouping.group)
        require_promise(
            same, coarsener, "says that it is not seeded, and groups an equal graph differently for other seeds"
        )


def check_indifference(coarsener: Coarsener, graph: Graph, *, seed: int) -> None:
    """Require that a grouping depends on neither the names of operations nor the units of FLOPs and bytes."""
    other = dataclasses.replace(
        graph,
        names=tuple(reversed(graph.names)),
        flops=graph.flops * 1024,  # powers of two leave every quotient of floats as it was
        weight_bytes=graph.weight_bytes * 1024,
        out_bytes=graph.out_bytes * 1024,
        edge_bytes=graph.edge_bytes * 1024,
        reads=dataclasses.replace(graph.reads, size=graph.reads.size * 1024),
    )
    before, after = (coarsener.coarsen(g, seed=seed) for g in (graph, other))
    same = np.array_equal(before.group, after.group)
    require_promise(same, coarsener, "depends on names of operations, or on the units of FLOPs and bytes")


def check_global_state(coarsener: Coarsener) -> None:
    """Require that it leaves generators and threads of the process alone."""
    graph = graph_of(40, [(i, i + 1) for i in range(39)], kernel=[i // 2 for i in range(40)])
    with global_state_unchanged(coarsener):
        coarsener.coarsen(graph, seed=5)
