"""Random graph families: acyclic, connected, of the size and ratio asked for, equal for equal seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.errors import UsageError
from pipeline.core.graph import components, is_acyclic
from pipeline.core.workload import Workload
from runtime.zoo.workloads import random_graphs
from tests.strategies import connected

Family = Callable[..., Workload]

FAMILIES: dict[str, Family] = {
    "layered": random_graphs.layered,
    "erdos-renyi": random_graphs.erdos_renyi,
    "stochastic-block": random_graphs.stochastic_block,
    "watts-strogatz": random_graphs.watts_strogatz,
    "barabasi-albert": random_graphs.barabasi_albert,
    "series-parallel": random_graphs.series_parallel,
}
families = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
with_degree = pytest.mark.parametrize(
    "family", [f for name, f in FAMILIES.items() if name != "series-parallel"], ids=lambda f: f.__name__
)


def amounts(workload: Workload) -> tuple[Any, ...]:
    """Return everything random about a workload, comparable."""
    graph = workload.graph
    arrays = (graph.edges, graph.op_type, graph.flops, graph.out_bytes, graph.weight_bytes, workload.times["*"])
    return tuple(array.tolist() for array in arrays)


@families
@given(n=st.integers(10, 80), seed=st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_a_random_graph_is_acyclic_and_connected_and_has_n_operations(family: Family, n: int, seed: int) -> None:
    workload = family(seed=seed, n=n)
    graph = workload.graph
    assert graph.n == n
    assert is_acyclic(graph)
    assert components(n, *graph.edges).k == 1
    assert np.all(workload.times["*"] > 0)
    assert workload.tags.layer.size == n


@families
@pytest.mark.parametrize("ccr", [0.1, 1.0, 10.0])
def test_the_mean_transfer_takes_ccr_times_the_mean_operation(family: Family, ccr: float) -> None:
    workload = family(seed=3, n=200, ccr=ccr)
    transfer_s = workload.graph.edge_bytes / workload.link_bytes_per_s
    # Sizes are whole multiples of four bytes, of about a megabyte.
    assert transfer_s.mean() / workload.times["*"].mean() == pytest.approx(ccr, rel=1e-3)


@families
def test_without_communication_no_edge_carries_bytes(family: Family) -> None:
    assert not family(seed=3, n=50, ccr=0).graph.edge_bytes.any()


@families
def test_equal_seeds_give_equal_graphs_and_others_do_not(family: Family) -> None:
    first = amounts(family(seed=5, n=40))
    assert amounts(family(seed=5, n=40)) == first
    assert amounts(family(seed=6, n=40)) != first


@with_degree
@pytest.mark.parametrize("degree", [2, 5])
def test_degree_is_the_mean_number_of_inputs(family: Family, degree: int) -> None:
    # 600 draws of binomial edges deviate by 3 %; merged parallel edges and repairs add as much.
    graph = family(seed=1, n=600, degree=degree).graph
    assert graph.m / graph.n == pytest.approx(degree, rel=0.15)


@families
def test_20000_operations_are_made_at_once(family: Family) -> None:
    graph = family(seed=1, n=20_000).graph
    assert graph.n == 20_000
    assert graph.m < 4 * graph.n
    assert is_acyclic(graph)
    assert components(graph.n, *graph.edges).k == 1


@given(n=st.integers(4, 60), seed=st.integers(0, 2**32), fatness=st.floats(0.2, 3), degree=st.floats(1, 4))
@settings(max_examples=50, deadline=None)
def test_layers_are_what_paths_are_long(n: int, seed: int, fatness: float, degree: float) -> None:
    workload = random_graphs.layered(seed=seed, n=n, fatness=fatness, degree=degree)
    graph, layer = workload.graph, workload.tags.layer
    producer, consumer = graph.edges
    assert np.all(layer[producer] < layer[consumer])
    assert np.flatnonzero(graph.in_degree == 0).tolist() == [0]
    assert np.flatnonzero(graph.out_degree == 0).tolist() == [n - 1]
    near = layer[consumer] - layer[producer] == 1
    assert np.unique(consumer[near]).size == n - 1
    assert np.unique(layer).tolist() == list(range(layer[-1] + 1))


def test_a_fat_graph_has_fewer_layers_than_a_thin_one() -> None:
    depth = [random_graphs.layered(seed=0, n=400, fatness=f).tags.layer.max() for f in (0.1, 0.5, 1.0, 2.0)]
    assert depth == sorted(depth, reverse=True)
    assert depth[2] == pytest.approx(20, rel=0.4)  # 400 operations in layers of sqrt(400)


def reduces_to_one_edge(n: int, edges: list[tuple[int, int]]) -> bool:
    """Return whether series and parallel reductions leave the one edge from 0 to 1."""
    left = set(edges)
    for _ in range(n):
        for v in range(2, n):
            into, out = [a for a, b in left if b == v], [b for a, b in left if a == v]
            if len(into) == len(out) == 1:
                left -= {(into[0], v), (v, out[0])}
                left.add((into[0], out[0]))
    return left == {(0, 1)}


@given(n=st.integers(2, 25), seed=st.integers(0, 2**32), series=st.floats(0, 1))
@settings(max_examples=50, deadline=None)
def test_a_series_parallel_graph_reduces_to_one_edge(n: int, seed: int, series: float) -> None:
    graph = random_graphs.series_parallel(seed=seed, n=n, series=series).graph
    path = connected(graph)
    assert path[0, 1:].all()
    assert path[[0, *range(2, n)], 1].all()
    assert reduces_to_one_edge(n, list(zip(*graph.edges.tolist(), strict=True)))


def test_blocks_hold_the_expected_share_of_edges() -> None:
    graph = random_graphs.stochastic_block(seed=2, n=1000, degree=4, blocks=4, inside=0.9, order="natural").graph
    block = np.arange(1000) // 250
    inside = block[graph.edges[0]] == block[graph.edges[1]]
    assert inside.mean() == pytest.approx(0.9, abs=0.03)


@given(sizes=st.lists(st.integers(1, 5), min_size=2, max_size=5), seed=st.integers(0, 2**16))
@settings(max_examples=30, deadline=None)
def test_every_pair_between_blocks_can_be_drawn_and_no_other(sizes: list[int], seed: int) -> None:
    start = np.concatenate([[0], np.cumsum(sizes)])
    pairs = random_graphs._pairs_between(start, 1e9, np.random.default_rng(seed))
    block = np.repeat(np.arange(len(sizes)), sizes)
    n = int(start[-1])
    expected = {(i, j) for i in range(n) for j in range(i + 1, n) if block[i] != block[j]}
    assert set(zip(*pairs.tolist(), strict=True)) == expected


@given(n=st.integers(1, 12), seed=st.integers(0, 2**16))
@settings(max_examples=30, deadline=None)
def test_every_pair_can_be_drawn(n: int, seed: int) -> None:
    pairs = random_graphs._pairs_below(n, 1e9, np.random.default_rng(seed))
    assert set(zip(*pairs.tolist(), strict=True)) == {(i, j) for j in range(n) for i in range(j)}


def test_the_pair_at_a_place_is_exact_where_square_roots_are_not() -> None:
    j = np.array([2, 3, 100_000, 94_906_267, 2**30, 3 * 2**29 + 1], np.int64)
    first = j * (j - 1) // 2  # the places of (0, j)
    assert random_graphs._pair_of(first).tolist() == [[0] * j.size, j.tolist()]
    assert random_graphs._pair_of(first - 1).tolist() == [(j - 2).tolist(), (j - 1).tolist()]


def test_without_rewiring_the_ring_is_regular() -> None:
    graph = random_graphs.watts_strogatz(seed=0, n=12, degree=2, rewire=0.0, order="natural").graph
    expected = sorted({tuple(sorted((i, (i + k) % 12))) for i in range(12) for k in (1, 2)})
    assert list(zip(*graph.edges.tolist(), strict=True)) == expected


def test_the_early_operations_of_a_grown_graph_are_hubs() -> None:
    graph = random_graphs.barabasi_albert(seed=0, n=2000, degree=2).graph
    degree = graph.in_degree + graph.out_degree
    # By preferential attachment the oldest have about sqrt(n / age) times the degree of the youngest.
    assert degree[:20].mean() > 5 * degree[-1000:].mean()
    assert np.all(graph.in_degree[1:] <= 2)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        (random_graphs.layered, {"n": 1}),
        (random_graphs.layered, {"degree": 0.5}),
        (random_graphs.layered, {"fatness": 0}),
        (random_graphs.erdos_renyi, {"ccr": -1}),
        (random_graphs.erdos_renyi, {"ccr": float("nan")}),
        (random_graphs.stochastic_block, {"blocks": 80}),
        (random_graphs.watts_strogatz, {"degree": 50}),
        (random_graphs.barabasi_albert, {"degree": 0}),
        (random_graphs.series_parallel, {"series": 2}),
    ],
)
def test_options_out_of_range_are_usage_errors(family: Family, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        family(seed=0, **options)
