"""Legal values for tests: hypothesis strategies for random graphs and groupings."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from pipeline.core.graph import Graph, Grouping
from pipeline.testing.graphs import INNER_TYPES, SPREAD, with_amounts
from pipeline.testing.graphs import graph_of as graph_of


def connected(graph: Graph) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """Return bool [n, n], whether a path of at least one edge leads from row to column; by brute force."""
    path = np.zeros((graph.n, graph.n), dtype=bool)
    path[graph.edges[0], graph.edges[1]] = True
    for middle in range(graph.n):
        path |= path[:, [middle]] & path[[middle], :]
    return path


@st.composite
def graphs(draw: st.DrawFn, min_n: int = 0, max_n: int = 12) -> Graph:
    """Draw an acyclic graph whose operation numbers are no topological order.

    Inputs are Parameters and Constants, some ends are Results; FLOPs are whole numbers, so that sums are exact. An
    edge carries its producer's output or, behind a Split, part of it.
    """
    n = draw(st.integers(min_n, max_n))
    number = draw(st.permutations(range(n)))
    producers = [draw(st.lists(st.integers(0, j - 1), max_size=3, unique=True)) if j else [] for j in range(n)]
    edges = [(number[i], number[j]) for j in range(n) for i in producers[j]]
    types = _types(draw, n, edges)
    # Amounts and shapes from a generator: drawn one by one they would take most of the time of every test.
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    flops_below = draw(st.sampled_from((2, SPREAD)))
    marks = st.lists(st.integers(-3, n - 1), min_size=n, max_size=n).map(lambda drawn: [max(-1, d) for d in drawn])
    return with_amounts(n, edges, types, rng=rng, flops_below=flops_below, colocate=draw(marks), kernel=draw(marks))


def _types(draw: st.DrawFn, n: int, edges: list[tuple[int, int]]) -> list[str]:
    """Draw operation types that fit the numbers of inputs and outputs."""
    has_input, has_output = {b for _, b in edges}, {a for a, _ in edges}
    types = []
    for i in range(n):
        if i not in has_input:
            types.append(draw(st.sampled_from(("Parameter", "Constant"))))
        elif i not in has_output:
            types.append(draw(st.sampled_from(("Result", *INNER_TYPES))))
        else:
            types.append(draw(st.sampled_from(INNER_TYPES)))
    return types


@st.composite
def groupings(draw: st.DrawFn, graph: Graph) -> Grouping:
    """Draw any grouping of a graph's operations; its quotient may be cyclic."""
    labels = draw(st.lists(st.integers(0, max(graph.n - 1, 0)), min_size=graph.n, max_size=graph.n))
    return Grouping.of_labels(np.array(labels, dtype=np.int64))


@st.composite
def grouped_graphs(draw: st.DrawFn, min_n: int = 0, max_n: int = 12) -> tuple[Graph, Grouping]:
    """Draw a graph and a grouping of it."""
    graph = draw(graphs(min_n=min_n, max_n=max_n))
    return graph, draw(groupings(graph))
