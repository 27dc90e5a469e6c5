"""METIS parts, the repair of cyclic quotients, and joined groupings."""

from __future__ import annotations

import importlib.util
import itertools
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.arrays import Float64, Int32
from pipeline.core.errors import CyclicGraphError, PlacewrightError, UnknownNameError, UsageError
from pipeline.core.graph import Graph, Grouping, contract, group_edges, is_acyclic
from pipeline.shared.cycles import strong_components
from pipeline.shared.partition import (
    _clip_weights,
    _integer_weights,
    _undirected_graph,
    check_node_cost,
    check_parts,
    colocation_grouping,
    join_groupings,
    make_acyclic,
    metis_parts,
    node_costs,
)
from tests.strategies import connected, graph_of, graphs, grouped_graphs, groupings

needs_metis = pytest.mark.skipif(
    importlib.util.find_spec("pymetis") is None, reason="pymetis is not installed: no METIS partition can be made"
)


def grouping(*labels: int) -> Grouping:
    return Grouping(np.array(labels, np.int32))


def grid(side: int) -> Graph:
    """Return a square grid whose edges lead right and down."""
    at = np.arange(side * side).reshape(side, side)
    right = zip(at[:, :-1].ravel().tolist(), at[:, 1:].ravel().tolist(), strict=True)
    down = zip(at[:-1].ravel().tolist(), at[1:].ravel().tolist(), strict=True)
    return graph_of(side * side, [*right, *down])


def cut(graph: Graph, parts: int, *, seed: int = 0, balance: float = 1.05, node_weight: Float64 | None = None) -> Int32:
    """Return METIS parts of nodes that weigh 1 unless told otherwise."""
    weight = np.ones(graph.n) if node_weight is None else node_weight
    return metis_parts(graph, parts, node_weight=weight, edge_weight=graph.edge_bytes, balance=balance, seed=seed)


def test_node_costs_add_one_percent_of_the_mean() -> None:
    graph = graph_of(4, [], flops=[0, 100, 300, 0], out_bytes=[2, 0, 2, 4])
    assert node_costs(graph, "flops").tolist() == [1, 101, 301, 1]
    assert node_costs(graph, "bytes").tolist() == pytest.approx([2.02, 0.02, 2.02, 4.02])
    assert node_costs(graph, "count").tolist() == [1.01] * 4


def test_node_costs_are_positive_where_nothing_costs() -> None:
    assert node_costs(graph_of(2, [], flops=[0, 0]), "flops").tolist() == [1, 1]
    assert node_costs(graph_of(0, []), "bytes").tolist() == []


def test_checks_refuse_unknown_costs_and_impossible_partitions() -> None:
    check_node_cost("flops")
    check_parts(1, 1.0)
    with pytest.raises(UnknownNameError, match="flops"):
        check_node_cost("flop")
    for parts, balance in ((0, 1.05), (-3, 1.05), (4, 0.99), (4, float("nan"))):
        with pytest.raises(UsageError):
            check_parts(parts, balance)


def test_undirected_lists_both_directions_and_merges_opposite_edges() -> None:
    graph = graph_of(3, [(0, 1), (1, 0), (2, 1)])
    ptr, neighbour, weight = _undirected_graph(graph, np.array([1.0, 2.0, 1.0]))
    assert (ptr.tolist(), neighbour.tolist()) == ([0, 1, 3, 4], [1, 2, 0, 1])
    heavy, light = 1 + 2**28 * 3 // 4, 1 + 2**28 // 4
    assert weight.tolist() == [heavy, light, heavy, light]


def test_integers_are_positive_and_their_sum_fits_32_bits() -> None:
    assert _integer_weights(np.zeros(3)).tolist() == [1, 1, 1]
    assert _integer_weights(np.array([1e300, 1e300, 0.0])).tolist() == [1 + 2**27, 1 + 2**27, 1]
    assert _integer_weights(np.full(1000, 1e9)).sum() < 2**31


def test_clipped_makes_a_heavy_node_a_fair_part() -> None:
    assert _clip_weights(np.array([1.0, 8.0, 1.0]), 2).tolist() == [1, 2, 1]
    assert _clip_weights(np.array([1.0, 1.5, 1.5]), 2).tolist() == [1, 1.5, 1.5]
    assert _clip_weights(np.array([100.0, 50.0, 1.0, 2.0, 3.0]), 4).tolist() == [3, 3, 1, 2, 3]


@given(st.lists(st.integers(1, 10**6), min_size=2, max_size=9), st.data())
def test_clipped_weights_allow_a_fair_part_and_no_larger_clip_does(weights: list[int], data: st.DataObject) -> None:
    parts = data.draw(st.integers(1, len(weights) - 1))
    weight = np.array(weights, np.float64)
    clipped = _clip_weights(weight, parts)
    clip = clipped.max()
    assert np.array_equal(clipped, np.minimum(weight, clip))
    assert clip <= clipped.sum() / parts * (1 + 1e-9)  # rounding of a sum
    if clip < weight.max():
        larger = np.minimum(weight, clip * 1.001)
        assert larger.max() > larger.sum() / parts


@needs_metis
def test_metis_finds_the_edge_between_two_cliques() -> None:
    left = itertools.combinations(range(8), 2)
    right = itertools.combinations(range(8, 16), 2)
    parts = cut(graph_of(16, [*left, *right, (3, 12)]), 2)
    assert parts.tolist() == [0] * 8 + [1] * 8


@needs_metis
def test_metis_cuts_the_light_edge_of_a_chain() -> None:
    graph = graph_of(6, [(i, i + 1) for i in range(5)], out_bytes=[9, 9, 1, 9, 9, 9])
    assert cut(graph, 2).tolist() == [0, 0, 0, 1, 1, 1]


@needs_metis
@pytest.mark.parametrize("parts", [2, 5, 16])
def test_metis_keeps_the_balance(parts: int) -> None:
    size = np.bincount(cut(grid(20), parts), minlength=parts)
    assert size.sum() == 400
    assert size.max() <= 1.05 * 400 / parts + 1  # METIS rounds the bound to whole nodes


@needs_metis
def test_metis_balances_weights_and_not_numbers() -> None:
    graph = graph_of(100, [(i, i + 1) for i in range(99)])
    parts = cut(graph, 2, node_weight=np.where(np.arange(100) < 20, 4.0, 1.0))
    assert np.bincount(parts).tolist() == pytest.approx([20, 80], abs=3)  # 5 % of a half of 160 is 4


@needs_metis
def test_metis_gives_equal_parts_for_equal_seeds_whatever_ran_before() -> None:
    graph = grid(15)
    answers = {seed: cut(graph, 5, seed=seed) for seed in range(6)}
    for seed in reversed(range(6)):
        assert np.array_equal(cut(graph, 5, seed=seed), answers[seed])
    assert len({a.tobytes() for a in answers.values()}) > 1, "the seed does not reach METIS"


@needs_metis
def test_metis_numbers_parts_by_first_appearance_without_gaps() -> None:
    parts = cut(grid(10), 12)
    first = [parts.tolist().index(p) for p in range(parts.max() + 1)]
    assert first == sorted(first)


@needs_metis
def test_metis_takes_a_node_heavier_than_all_others_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    weight = np.ones(100)
    weight[7] = 1e12
    for parts in (2, 7, 50, 99):
        assert cut(grid(10), parts, node_weight=weight).max() < parts
    assert capfd.readouterr() == ("", "")


@needs_metis
@pytest.mark.parametrize("n", [2, 3, 10])
def test_metis_takes_graphs_without_edges(n: int) -> None:
    assert cut(graph_of(n, []), n - 1).max() < n - 1


@pytest.mark.parametrize("n", [0, 1, 5])
def test_metis_parts_of_one_node_or_of_everything_need_no_metis(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymetis", None)
    graph = graph_of(n, [])
    assert cut(graph, n + 1).tolist() == list(range(n))
    assert cut(graph, max(n, 1)).tolist() == list(range(n))
    assert cut(graph, 1).tolist() == [0] * n


def test_metis_missing_is_told_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(PlacewrightError, match=r"not installed.*pip install pymetis"):
        cut(grid(3), 2)


def test_metis_refuses_no_parts() -> None:
    with pytest.raises(UsageError, match="0 parts"):
        cut(grid(3), 0)


def test_tied_groups_equal_ties_only() -> None:
    assert colocation_grouping(graph_of(5, [], colocate=[2, -1, 0, 2, -1])).group.tolist() == [0, 1, 2, 0, 3]
    assert colocation_grouping(graph_of(0, [])).k == 0


def test_join_closes_over_both_groupings() -> None:
    assert join_groupings(grouping(0, 0, 1, 2, 3), grouping(0, 1, 1, 2, 3)).group.tolist() == [0, 0, 0, 1, 2]
    with pytest.raises(ValueError, match="cannot be joined"):
        join_groupings(grouping(0), grouping(0, 1))


@given(st.data())
def test_join_is_the_transitive_closure_of_being_together(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    a, b = data.draw(groupings(graph)), data.draw(groupings(graph))
    together = (a.group[:, None] == a.group) | (b.group[:, None] == b.group)
    for middle in range(graph.n):
        together |= together[:, [middle]] & together[[middle], :]
    joined = join_groupings(a, b).group
    assert np.array_equal(joined[:, None] == joined, together)


@given(grouped_graphs(max_n=14))
def teststrong_components_agree_with_the_transitive_closure(case: tuple[Graph, Grouping]) -> None:
    small = contract(*case)
    component = strong_components(small.n, small.edges)
    path = connected(small)
    expected = (path & path.T) | np.eye(small.n, dtype=bool)
    assert np.array_equal(component[:, None] == component, expected)


@given(grouped_graphs(max_n=14))
def test_make_acyclic_refines_and_repairs_and_leaves_other_groups_whole(case: tuple[Graph, Grouping]) -> None:
    graph, before = case
    after = make_acyclic(graph, before)
    assert len({*zip(after.group.tolist(), before.group.tolist(), strict=True)}) == after.k, "not a refinement"
    assert is_acyclic(contract(graph, after))
    on_cycle = connected(contract(graph, before)).diagonal()
    for g in np.flatnonzero(~on_cycle):
        assert len({*after.group[before.group == g].tolist()}) == 1


def test_make_acyclic_returns_an_acyclic_grouping_unchanged() -> None:
    before = grouping(0, 1, 1, 2)
    assert make_acyclic(graph_of(4, [(0, 1), (0, 2), (1, 3), (2, 3)]), before) is before


def test_make_acyclic_cuts_one_group_where_one_cut_is_enough() -> None:
    # a1 -> b1, b2 -> a2: {a1, a2} and {b1, b2} feed each other; cutting either of them is enough.
    graph = graph_of(4, [(0, 1), (2, 3)])
    assert make_acyclic(graph, grouping(0, 1, 1, 0)).k == 3


def test_make_acyclic_cuts_a_chain_that_alternates_at_every_change() -> None:
    chain = graph_of(6, [(i, i + 1) for i in range(5)])
    assert make_acyclic(chain, grouping(0, 0, 1, 0, 1, 1)).group.tolist() == [0, 0, 1, 2, 3, 3]


def test_make_acyclic_gives_the_turn_to_the_group_that_can_run_most_of_its_rest() -> None:
    # A = {0, 1, 4} can run two of three, B = {2, 3} one of two. B first would need four pieces.
    assert make_acyclic(graph_of(5, [(0, 2), (2, 4)]), grouping(0, 0, 1, 1, 0)).group.tolist() == [0, 0, 1, 1, 2]


def test_make_acyclic_compares_shares_and_not_numbers_of_operations() -> None:
    # A = {0, ..., 5} can run three of six, B = {6, 7, 8} two of three: after B, the larger group is not cut.
    edges = [(6, 3), (7, 4), (7, 5), (0, 8)]
    found = make_acyclic(graph_of(9, edges), grouping(*[0] * 6, *[1] * 3))
    assert found.group.tolist() == [0, 0, 0, 0, 0, 0, 1, 1, 2]


def test_make_acyclic_leaves_a_group_behind_the_cycle_whole() -> None:
    # A = {0, 3} and B = {1, 2} feed each other; C = {4, 5, 6} only waits, though it could run two of three at once.
    graph = graph_of(7, [(0, 1), (2, 3), (3, 6)])
    assert make_acyclic(graph, grouping(0, 1, 1, 0, 2, 2, 2)).group.tolist() == [0, 1, 1, 2, 3, 3, 3]


def test_make_acyclic_takes_a_cycle_of_many_groups() -> None:
    # Group i holds the end of edge i - 1 and the start of edge i: a ring of 3000 groups, deeper than the call stack.
    k = 3000
    graph = graph_of(2 * k, [(i, k + (i + 1) % k) for i in range(k)])
    before = Grouping(np.tile(np.arange(k, dtype=np.int32), 2))
    assert make_acyclic(graph, before).k == k + 1


def test_make_acyclic_refuses_a_graph_that_is_cyclic_itself() -> None:
    graph = graph_of(3, [(0, 1), (1, 2), (2, 0)])
    with pytest.raises(CyclicGraphError):
        make_acyclic(graph, Grouping.identity(3))
    assert group_edges(graph, make_acyclic(graph, grouping(0, 0, 0)))[0].size == 0
