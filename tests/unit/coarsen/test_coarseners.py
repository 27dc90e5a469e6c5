"""Each coarsener on graphs small enough to do by hand."""

from __future__ import annotations

import dataclasses
import importlib.util
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarsen.colocate import Colocate
from coarsen.fold import Fold, weight_side
from coarsen.fuse import Fuse
from coarsen.heavy_edge import HeavyEdge
from coarsen.identity import Identity
from coarsen.metis import Metis
from pipeline.core.errors import CyclicGraphError, UnknownNameError, UsageError
from pipeline.core.graph import Graph, contract, is_acyclic, sum_per_group
from pipeline.shared.partition import node_costs
from tests.strategies import connected, graph_of, graphs

needs_metis = pytest.mark.skipif(
    importlib.util.find_spec("pymetis") is None, reason="pymetis is not installed: coarsen.metis cannot run"
)


def groups(coarsener: Any, graph: Graph, seed: int = 0) -> list[int]:
    found: list[int] = coarsener.coarsen(graph, seed=seed).group.tolist()
    return found


def test_identity_leaves_every_operation_alone() -> None:
    assert groups(Identity(), graph_of(3, [(0, 1), (1, 2)])) == [0, 1, 2]


def convolution() -> Graph:
    """Return Parameter 0 -> Convolution 3 -> Add 6 -> Result 7 with weights 1 -> 2 -> 3 and 4 -> 5 -> 6."""
    return graph_of(
        8,
        [(0, 3), (1, 2), (2, 3), (3, 6), (4, 5), (5, 6), (6, 7)],
        types=["Parameter", "Constant", "Convert", "Convolution", "Constant", "Convert", "Add", "Result"],
    )


def test_fold_joins_weight_chains_to_their_consumers() -> None:
    assert groups(Fold(), convolution()) == [0, 1, 1, 1, 2, 2, 2, 3]


def test_fold_joins_a_shared_constant_to_its_first_consumer() -> None:
    graph = graph_of(4, [(0, 1), (1, 2), (3, 1), (3, 2)], types=["Parameter", "Add", "Mul", "Constant"])
    assert groups(Fold(), graph) == [0, 1, 2, 1]


def test_fold_keeps_the_quotient_acyclic_where_a_weight_chain_is_shared() -> None:
    # Constant 0 feeds Convert 1, which comes before Convert 2 but reads into Add 5, which follows Mul 4.
    graph = graph_of(
        6,
        [(0, 1), (0, 2), (1, 5), (2, 4), (3, 4), (4, 5)],
        types=["Constant", "Convert", "Convert", "Parameter", "Mul", "Add"],
    )
    assert groups(Fold(), graph) == [0, 1, 0, 2, 0, 1]


def test_fold_leaves_a_constant_result_with_its_constant() -> None:
    graph = graph_of(4, [(0, 1), (2, 3)], types=["Constant", "Result", "Parameter", "Result"])
    assert groups(Fold(), graph) == [0, 0, 1, 2]


@pytest.mark.parametrize("source", ["Parameter", "ReadValue", "RandomUniform", "Multinomial"])
def test_fold_takes_no_source_for_a_weight_even_with_constant_inputs(source: str) -> None:
    graph = graph_of(3, [(0, 1), (1, 2)], types=["Constant", source, "Add"])
    assert weight_side(graph).tolist() == [True, False, False]
    assert groups(Fold(), graph) == [0, 0, 1]


def test_fold_takes_an_input_of_unknown_type_for_a_source() -> None:
    assert weight_side(graph_of(2, [(0, 1)], types=["Input", "Add"])).tolist() == [False, False]


@given(graphs())
def test_fold_leaves_one_group_per_data_operation_or_constant_end_and_no_cycle(graph: Graph) -> None:
    types = [graph.type_names[t] for t in graph.op_type]
    sources = [i for i in range(graph.n) if graph.in_degree[i] == 0 and types[i] != "Constant"]
    sources += [i for i in range(graph.n) if types[i] == "Parameter"]
    data = np.zeros(graph.n, dtype=bool)
    data[sources] = True
    data |= connected(graph)[sources].any(axis=0)
    roots = data | (graph.out_degree == 0)
    grouping = Fold().coarsen(graph, seed=0)
    assert np.array_equal(weight_side(graph), ~data)
    assert grouping.k == roots.sum()
    assert len({*grouping.group[roots].tolist()}) == grouping.k
    assert is_acyclic(contract(graph, grouping))


def test_colocate_paper_merges_only_children_with_only_parents() -> None:
    # 0 -> 1 -> 2 -> {3, 4} -> 5 -> 6
    graph = graph_of(7, [(0, 1), (1, 2), (2, 3), (2, 4), (3, 5), (4, 5), (5, 6)])
    assert groups(Colocate(), graph) == [0, 0, 0, 1, 2, 3, 3]


def test_colocate_released_joins_every_node_with_one_parent_to_it() -> None:
    graph = graph_of(7, [(0, 1), (1, 2), (2, 3), (2, 4), (3, 5), (4, 5), (5, 6)])
    assert groups(Colocate(rule="released"), graph) == [0, 0, 0, 0, 0, 1, 1]


def test_colocate_leaves_a_convolutions_weights_apart() -> None:
    assert groups(Colocate(), convolution()) == [0, 1, 1, 2, 3, 3, 4, 4]
    assert groups(Colocate(rule="released"), convolution()) == [0, 1, 1, 2, 3, 3, 4, 4]


def test_colocate_after_fold_makes_a_chain_one_group() -> None:
    graph = convolution()
    small = contract(graph, Fold().coarsen(graph, seed=0))
    assert groups(Colocate(), small) == [0, 0, 0, 0]


def test_colocate_refuses_a_rule_it_does_not_know() -> None:
    with pytest.raises(UnknownNameError, match="paper"):
        Colocate(rule="papers")  # type: ignore[arg-type]


@given(graphs(), st.randoms(use_true_random=False))
def test_colocate_does_not_depend_on_the_order_of_operations(graph: Graph, rng: Any) -> None:
    number = list(range(graph.n))
    rng.shuffle(number)
    renumbered = graph_of(graph.n, [(number[a], number[b]) for a, b in graph.edges.T.tolist()])
    for coarsener in (Colocate(), Colocate(rule="released")):
        before, after = coarsener.coarsen(graph, seed=0).group, coarsener.coarsen(renumbered, seed=0).group[number]
        assert np.array_equal(before[:, None] == before, after[:, None] == after)


def test_fuse_keeps_kernels_together_and_unknown_operations_alone() -> None:
    graph = graph_of(5, [(0, 1), (1, 2), (2, 3), (3, 4)], kernel=[-1, 2, 2, 0, -1])
    assert groups(Fuse(), graph) == [0, 1, 1, 2, 3]


def test_fuse_cuts_a_kernel_that_leaves_and_comes_back() -> None:
    graph = graph_of(3, [(0, 1), (0, 2), (1, 2)], kernel=[0, 1, 0])
    assert groups(Fuse(), graph) == [0, 1, 2]


def test_fuse_without_kernels_tells_who_fills_them_in() -> None:
    with pytest.raises(UsageError, match="kernels of a compiled model"):
        Fuse().coarsen(graph_of(2, [(0, 1)]), seed=0)
    assert Fuse().coarsen(graph_of(0, []), seed=0).k == 0


def test_fuse_works_after_fold() -> None:
    graph = dataclasses.replace(convolution(), kernel=np.array([0, -1, -1, 4, -1, -1, 4, 5], np.int32))
    small = contract(graph, Fold().coarsen(graph, seed=0))
    assert groups(Fuse(), small) == [0, 1, 1, 2]


@pytest.mark.parametrize("implementation", [Metis, HeavyEdge])
@pytest.mark.parametrize("values", [{"parts": 0}, {"parts": -1}, {"balance": 0.5}, {"weight": "flop"}])
def test_partitions_refuse_wrong_parameters(implementation: Any, values: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        implementation(**values)


def two_chains() -> Graph:
    """Return 0 -> 1 -> 2 -> 3 and 4 -> 5 -> 6 -> 7 that exchange light tensors: 0 -> 5, 5 -> 2, 2 -> 7."""
    return graph_of(
        8,
        [(0, 1), (1, 2), (2, 3), (4, 5), (5, 6), (6, 7), (0, 5), (5, 2), (2, 7)],
        edge_bytes={(a, a + 1): 100 for a in (0, 1, 2, 4, 5, 6)},
    )


@needs_metis
def test_metis_parts_may_feed_one_another_unless_acyclic_is_asked_for() -> None:
    graph = two_chains()
    free = Metis(parts=2).coarsen(graph, seed=0)
    assert free.group.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert not is_acyclic(contract(graph, free))
    tame = Metis(parts=2, acyclic=True).coarsen(graph, seed=0)
    assert tame.group.tolist() == [0, 0, 1, 1, 2, 2, 2, 3]
    assert is_acyclic(contract(graph, tame))


@needs_metis
def test_metis_balances_what_it_is_told_to() -> None:
    graph = dataclasses.replace(
        graph_of(12, [(i, i + 1) for i in range(11)], flops=[5] * 3 + [0] * 6 + [5] * 3),
        weight_bytes=np.array([9] * 6 + [3] * 6),
    )
    for weight, kind in (("flops", graph.flops), ("bytes", graph.weight_bytes), ("count", np.ones(12))):
        parts = Metis(parts=2, weight=weight).coarsen(graph, seed=0)  # type: ignore[arg-type]
        halves = sum_per_group(np.asarray(kind, np.float64), parts)
        assert abs(halves[0] - halves[1]) <= kind.max(), weight


def test_heavy_edge_merges_the_heaviest_edge_first() -> None:
    graph = graph_of(4, [(0, 1), (1, 2), (2, 3)], out_bytes=[1, 100, 2, 1])
    assert groups(HeavyEdge(parts=3, balance=2.0), graph) == [0, 1, 1, 2]


def test_heavy_edge_prefers_light_ends_to_heavy_ones() -> None:
    graph = graph_of(4, [(0, 1), (2, 3)], flops=[50, 50, 1, 1], out_bytes=[100, 0, 90, 0])
    assert groups(HeavyEdge(parts=3), graph) == [0, 1, 2, 2]


@pytest.mark.parametrize("seed", range(4))
def test_heavy_edge_does_not_merge_crossing_pairs(seed: int) -> None:
    # 0 -> 2 and 1 -> 3 are heavy; merging both would make the light 0 -> 3 and 1 -> 2 a cycle.
    graph = graph_of(4, [(0, 2), (0, 3), (1, 2), (1, 3)], edge_bytes={(0, 2): 9, (1, 3): 9})
    assert is_acyclic(contract(graph, HeavyEdge(parts=2).coarsen(graph, seed=seed)))
    assert groups(HeavyEdge(parts=2, acyclic=False), graph, seed) == [0, 1, 0, 1]


def test_heavy_edge_does_not_stretch_a_cluster_over_three_levels() -> None:
    # 0 -> 1 -> 3 is heavy; with all three in one cluster, the light 0 -> 2 -> 3 would leave it and come back.
    graph = graph_of(4, [(0, 1), (0, 2), (1, 3), (2, 3)], edge_bytes={(0, 1): 9, (1, 3): 8})
    assert groups(HeavyEdge(parts=2, balance=4.0), graph) == [0, 0, 0, 1]
    graph = graph_of(4, [(0, 1), (0, 2), (1, 3), (2, 3)], edge_bytes={(0, 1): 8, (1, 3): 9})
    assert groups(HeavyEdge(parts=2, balance=4.0), graph) == [0, 1, 0, 1]


def test_heavy_edge_does_not_merge_siblings_of_different_levels() -> None:
    # 0 and 2 are too heavy for any merge along an edge; {1, 3} would feed itself through 2.
    graph = graph_of(4, [(0, 1), (0, 3), (1, 2), (2, 3)], flops=[100, 1, 100, 1], out_bytes=[9, 1, 1, 1])
    assert groups(HeavyEdge(parts=3, balance=1.0), graph) == [0, 1, 2, 3]
    assert groups(HeavyEdge(parts=3, balance=1.0, acyclic=False), graph) == [0, 1, 2, 1]


def test_heavy_edge_merges_what_hangs_on_one_operation_when_that_is_full() -> None:
    graph = graph_of(40, [(0, i) for i in range(1, 40)])
    found = HeavyEdge(parts=4, balance=1.1).coarsen(graph, seed=0)
    assert found.k <= 5
    assert np.bincount(found.group).max() <= 11


def test_heavy_edge_merges_operations_without_edges() -> None:
    assert HeavyEdge(parts=5).coarsen(graph_of(50, []), seed=0).k == 5


def test_heavy_edge_takes_an_operation_with_more_consumers_than_a_search_looks_at() -> None:
    graph = graph_of(500, [(0, i) for i in range(1, 500)])
    assert HeavyEdge(parts=1).coarsen(graph, seed=0).k == 1


def test_heavy_edge_draws_equal_edges_by_the_seed() -> None:
    graph = graph_of(60, [(i, i + 1) for i in range(59)])
    answers = [groups(HeavyEdge(parts=20), graph, seed) for seed in range(5)]
    assert len({tuple(a) for a in answers}) > 1


def test_heavy_edge_refuses_a_cyclic_graph_only_if_acyclic_is_asked_for() -> None:
    graph = graph_of(3, [(0, 1), (1, 2), (2, 0)])
    with pytest.raises(CyclicGraphError):
        HeavyEdge(parts=1).coarsen(graph, seed=0)
    assert HeavyEdge(parts=1, acyclic=False).coarsen(graph, seed=0).k == 1


@given(
    graphs(min_n=1, max_n=16),
    st.integers(1, 6),
    st.sampled_from((1.0, 1.5, 4.0)),
    st.booleans(),
)
def test_heavy_edge_keeps_parts_cap_and_promise(graph: Graph, parts: int, balance: float, acyclic: bool) -> None:
    grouping = HeavyEdge(parts=parts, balance=balance, acyclic=acyclic).coarsen(graph, seed=1)
    cost = node_costs(graph, "flops")
    cap = balance * max(cost.sum() / parts, cost.max())
    assert grouping.k >= min(parts, graph.n)
    assert sum_per_group(cost, grouping).max() <= cap * (1 + 1e-9)  # sums are taken in another order
    if acyclic:
        assert is_acyclic(contract(graph, grouping))


@given(st.integers(0, 10**6))
def test_heavy_edge_stays_acyclic_on_wide_bipartite_graphs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    low, high = int(rng.integers(2, 8)), int(rng.integers(2, 8))
    edges = {(a, low + b) for a in range(low) for b in range(high) if rng.random() < 0.4}
    graph = graph_of(low + high, edges, out_bytes=rng.integers(0, 9, low + high).tolist())
    grouping = HeavyEdge(parts=1, balance=9.0).coarsen(graph, seed=seed)
    assert is_acyclic(contract(graph, grouping))
