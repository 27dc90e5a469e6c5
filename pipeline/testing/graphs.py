"""Graphs to try implementations on: by hand, and drawn from a seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from pipeline.core.graph import Graph
from pipeline.core.tensors import edges_of

INNER_TYPES = ("MatMul", "Add", "Relu", "Convert", "Split")
SPREAD = 2**20  # FLOPs and bytes of operations drawn at random lie below


def graph_of(
    n: int,
    edges: Iterable[tuple[int, int]],
    *,
    types: Sequence[str] | None = None,
    flops: Sequence[float] | None = None,
    weight_bytes: Sequence[int] | None = None,
    out_bytes: Sequence[int] | None = None,
    edge_bytes: Mapping[tuple[int, int], int] | None = None,
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
        weight_bytes=np.zeros(n, np.int64) if weight_bytes is None else np.array(weight_bytes, np.int64),
        out_bytes=np.array(out, np.int64),
        edge_bytes=np.array([(edge_bytes or {}).get((a, b), out[a]) for a, b in pairs], np.int64),
        shape_ptr=np.zeros(n + 1, np.int64),
        shape_dim=np.zeros(0, np.int64),
        colocate=np.full(n, -1, np.int32) if colocate is None else np.array(colocate, np.int32),
        kernel=np.full(n, -1, np.int32) if kernel is None else np.array(kernel, np.int32),
    )


def with_amounts(
    n: int,
    edges: Sequence[tuple[int, int]],
    types: Sequence[str],
    *,
    rng: np.random.Generator,
    flops_below: int = SPREAD,
    colocate: Sequence[int] | None = None,
    kernel: Sequence[int] | None = None,
) -> Graph:
    """Return a graph whose FLOPs, bytes and shapes are drawn; FLOPs are whole numbers, so that sums are exact.

    An edge carries its producer's output or, behind a Split, some of its three outputs, or parts of them. Constants
    hold weights.
    """
    out = rng.integers(0, SPREAD, n).tolist()
    graph = graph_of(
        n,
        edges,
        types=types,
        flops=rng.integers(0, flops_below, n).tolist(),
        out_bytes=out,
        colocate=colocate,
        kernel=kernel,
    )
    dimensions = rng.integers(0, 4, n)
    reads = [
        (a, b, port, size)
        for a, b in edges
        for port, size in (_split_output(out[a], rng) if types[a] == "Split" else [(0, out[a])])
    ]
    pairs, edge_bytes, read = edges_of(*np.array(reads, np.int64).reshape(-1, 4).T)
    return dataclasses.replace(
        graph,
        edges=pairs,
        edge_bytes=edge_bytes,
        reads=read,
        weight_bytes=np.where(np.array(types) == "Constant", graph.out_bytes, 0),
        shape_ptr=np.concatenate([[0], np.cumsum(dimensions)]),
        shape_dim=rng.integers(-1, 10, dimensions.sum()),
        source="0" * 64,
    )


def _split_output(out_bytes: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Return what one reads of three equal outputs: (port, bytes) of one or more, now and then a part."""
    ports = np.flatnonzero(rng.random(3) < 0.4)
    if not ports.size:
        ports = rng.integers(0, 3, 1)
    part = np.where(rng.random(ports.size) < 0.3, rng.integers(0, out_bytes // 3 + 1, ports.size), out_bytes // 3)
    return list(zip(ports.tolist(), part.tolist(), strict=True))


def random_graph(n: int, *, seed: int) -> Graph:
    """Return a graph whose numbers are no topological order; at least one operation is in a known kernel."""
    rng = np.random.default_rng(seed)
    number = rng.permutation(n).tolist()
    producers = [rng.choice(j, size=rng.integers(0, min(j, 3) + 1), replace=False).tolist() for j in range(n)]
    edges = [(number[i], number[j]) for j in range(n) for i in producers[j]]
    heads, tails = {b for _, b in edges}, {a for a, _ in edges}

    def kind(i: int) -> str:
        if i not in heads:
            return str(rng.choice(("Parameter", "Constant")))
        return str(rng.choice(INNER_TYPES if i in tails else ("Result", *INNER_TYPES)))

    colocate, kernel = (np.maximum(rng.integers(-3, max(n, 1), n), -1).tolist() for _ in range(2))
    if n:
        kernel[0] = max(kernel[0], 0)
    return with_amounts(n, edges, [kind(i) for i in range(n)], rng=rng, colocate=colocate, kernel=kernel)


def random_graphs() -> tuple[Graph, ...]:
    """Return two dozen graphs of 1 to 12 operations, always the same."""
    return tuple(random_graph(1 + seed % 12, seed=seed) for seed in range(24))
