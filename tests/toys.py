"""The small problems of `pipeline.testing` under the names that tests use, and their optimum by brute force."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import product

import numpy as np

from pipeline.core.graph import Graph
from pipeline.core.placement import Placement
from pipeline.core.problem import Problem
from pipeline.testing import problems
from pipeline.testing.graphs import graph_of
from pipeline.testing.problems import (
    CHAIN,
    CROWN,
    CUT_S,
    FAST_S,
    SLOW_S,
    branches_problem,
    chain_problem,
    chain_times,
    crown_problem,
    ignore_progress,
)

__all__ = [
    "CHAIN",
    "CROWN",
    "CUT_S",
    "FAST_S",
    "SLOW_S",
    "branches_problem",
    "chain_problem",
    "chain_times",
    "crown_problem",
    "ignore_progress",
]

ToyEvaluator, toy_problem, toy_topology = problems.SumEvaluator, problems.small_problem, problems.small_topology
CHAIN_OPTIMUM_S, BRANCHES_OPTIMUM_S, CROWN_OPTIMUM_S = (problems.OPTIMUM_S[toy] for toy in problems.PROBLEMS)
PROBLEMS = {toy: (make, problems.OPTIMUM_S[toy]) for toy, make in problems.PROBLEMS.items()}


def toy_graph(
    n: int,
    edges: Sequence[tuple[int, int]],
    *,
    flops: Sequence[float] | None = None,
    types: Sequence[str] = ("MatMul",),
    shapes: Sequence[tuple[int, ...]] | None = None,
    weight_bytes: Sequence[int] | None = None,
    colocate: Sequence[int] | None = None,
) -> Graph:
    """Return a graph of operations "0", "1", ... of 4 bytes; operation i has type types[i % len(types)]."""
    graph = graph_of(
        n,
        edges,
        types=[types[i % len(types)] for i in range(n)],
        flops=flops,
        weight_bytes=weight_bytes,
        out_bytes=[4] * n,
        colocate=colocate,
    )
    dims = [(1,)] * n if shapes is None else shapes
    return dataclasses.replace(
        graph,
        names=tuple(str(i) for i in range(n)),
        shape_ptr=np.cumsum([0, *(len(shape) for shape in dims)]),
        shape_dim=np.array([d for shape in dims for d in shape], dtype=np.int64),
    )


def optimum_s(problem: Problem) -> float:
    """Return the least time over all placements that fit, by trying every one."""
    evaluator = ToyEvaluator.of(problem)
    return min(
        evaluator.value_s(placement)
        for devices in product(range(problem.topology.p), repeat=problem.graph.n)
        if problem.fits(placement := Placement(np.array(devices), problem.topology.names))
    )
