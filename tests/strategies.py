"""Legal values for tests: graphs written by hand, and hypothesis strategies for random ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
from hypothesis import strategies as st

from pipeline.core.graph import Graph, Grouping

COMPUTE_TYPES = ("MatMul", "Add", "Relu", "Convert", "Split")


def graph_of(
    n: int,
    edges: Iterable[tuple[int, int]],
    *,
    types: Sequence[str] | None = None,
    flops: Sequence[float] | None = None,
    out_bytes: Sequence[int] | None = None,
    edge_bytes: dict[tuple[int, int], int] | None = None,
    colocate: Sequence[int] | None = None,
    kernel: Sequence[int] | None = None,
) -> Graph:
    """Return a graph of operations op0, op1, ...; without further arguments MatMuls of one FLOP and one byte.

    An edge without an entry in edge_bytes carries all of its producer's out_bytes.
    """
    pairs = sorted(edges)
    out = [1] * n if out_bytes is None else list(out_bytes)
    names = ["MatMul"] * n if types is None else list(types)
    vocabulary = tuple(dict.fromkeys(names))
    return Graph(
        names=tuple(f"op{i}" for i in range(n)),
        op_type=np.array([vocabulary.index(t) for t in names], np.int16),
        type_names=vocabulary,
        edges=np.array(pairs, np.int32).reshape(-1, 2).T,
        flops=np.ones(n) if flops is None else np.array(flops, np.float64),
        weight_bytes=np.zeros(n, np.int64),
        out_bytes=np.array(out, np.int64),
        edge_bytes=np.array([(edge_bytes or {}).get((a, b), out[a]) for a, b in pairs], np.int64),
        shape_ptr=np.zeros(n + 1, np.int64),
        shape_dim=np.zeros(0, np.int64),
        colocate=np.full(n, -1, np.int32) if colocate is None else np.array(colocate, np.int32),
        kernel=np.full(n, -1, np.int32) if kernel is None else np.array(kernel, np.int32),
    )


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
    out = rng.integers(0, 2**20, n).tolist()
    marks = st.lists(st.integers(-3, n - 1), min_size=n, max_size=n).map(lambda drawn: [max(-1, d) for d in drawn])
    graph = graph_of(
        n,
        edges,
        types=types,
        flops=rng.integers(0, draw(st.sampled_from((2, 2**20))), n).tolist(),
        out_bytes=out,
        edge_bytes={(a, b): int(rng.integers(0, out[a] + 1)) for a, b in edges if types[a] == "Split"},
        colocate=draw(marks),
        kernel=draw(marks),
    )
    dimensions = rng.integers(0, 4, n)
    return dataclasses.replace(
        graph,
        weight_bytes=np.where(np.array(types) == "Constant", graph.out_bytes, 0),
        shape_ptr=np.concatenate([[0], np.cumsum(dimensions)]),
        shape_dim=rng.integers(-1, 10, dimensions.sum()),
        source="0" * 64,
    )


def _types(draw: st.DrawFn, n: int, edges: list[tuple[int, int]]) -> list[str]:
    """Draw operation types that fit the numbers of inputs and outputs."""
    has_input, has_output = {b for _, b in edges}, {a for a, _ in edges}
    types = []
    for i in range(n):
        if i not in has_input:
            types.append(draw(st.sampled_from(("Parameter", "Constant"))))
        elif i not in has_output:
            types.append(draw(st.sampled_from(("Result", *COMPUTE_TYPES))))
        else:
            types.append(draw(st.sampled_from(COMPUTE_TYPES)))
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
