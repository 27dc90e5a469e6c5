"""Clusters that a single-shot policy places: layers cut by time, told without tags, on graphs with cycles as well."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from pipeline.core.graph import Graph, Grouping, contract
from pipeline.core.problem import Problem
from pipeline.shared.graphs import edge_depths, forward_depths
from policy.place.base.hierarchy import hierarchy
from policy.place.multilevel.layers import Layers
from policy.place.published.gdp import clusters as module
from policy.place.published.gdp.clusters import clusters_of
from tests.strategies import graphs
from tests.toys import toy_graph, toy_problem


@given(graph=graphs(min_n=1))
def test_depths_without_the_edges_that_go_back_are_depths_where_none_does(graph: Graph):
    assert forward_depths(graph).tolist() == edge_depths(graph).tolist()


def test_behind_a_cycle_depths_still_grow():
    # 0 -> 1 -> 2 -> 3 -> 4 and back from 3 to 1: 1 is visited first of those on the cycle
    graph = contract(
        toy_graph(6, [(0, 1), (1, 2), (2, 3), (3, 4), (3, 5)]), Grouping(np.array([0, 1, 2, 3, 4, 1], np.int32))
    )
    assert (3, 1) in set(zip(*graph.edges.tolist(), strict=True))
    assert edge_depths(graph).tolist() == [0, 1, 0, 0, 0]
    assert forward_depths(graph).tolist() == [0, 1, 2, 3, 4]


def test_chains_of_layers_by_hand():
    # layer 0: three operations on their own; layer 1: a chain of three, beside which one more runs
    graph = toy_graph(7, [(0, 3), (1, 3), (2, 3), (3, 4), (4, 5)])
    (finest, *_) = hierarchy(toy_problem(graph, np.ones((7, 2))), least=7)
    layer = np.array([0, 0, 0, 1, 1, 1, 1], np.int32)
    layers = Layers(finest, layer, np.zeros(7), np.zeros(2, np.int32))
    assert layers.chains().tolist() == pytest.approx([3.0, 4 / 3])
    weights = Layers(finest, layer, np.array([-1.0, 0, 0, 0, 0, 0, 0]), np.zeros(2, np.int32))
    assert weights.chains().tolist() == pytest.approx([2.0, 4 / 3])


STEPS = 80


def unrolled() -> Problem:
    """Return a layer of steps that wait for one another, 2 on, and one of steps that read these alone, 82 on."""
    first, second = 2 + np.arange(STEPS), 2 + STEPS + np.arange(STEPS)
    edges = [(0, int(i)) for i in first] + [(1, int(i)) for i in second]
    edges += [(int(i), int(i) + 1) for i in first[:-1]] + [(int(i), int(i) + STEPS) for i in first]
    graph = toy_graph(2 + 2 * STEPS, edges, weight_bytes=[100, 100] + [0] * (2 * STEPS))
    op_s = np.full((graph.n, 4), 1e-3)
    op_s[:2] = 0
    return toy_problem(graph, op_s)


def test_clusters_by_layers_are_layers_and_only_what_runs_side_by_side_is_cut(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "LONG", 32)
    group = clusters_of(unrolled(), about=12, by="layers").group
    chain, beside = group[2 : 2 + STEPS], group[2 + STEPS :]
    assert len(set(chain.tolist())) == 1
    assert group[0] == chain[0]  # weights stay with their layer
    assert group[1] == beside[0]
    assert [int(np.count_nonzero(beside == part)) for part in dict.fromkeys(beside.tolist())] == [STEPS // 4] * 4
    assert (np.diff(beside) != 0).sum() == 3  # cut by time
    assert chain[0] not in beside


def test_layers_of_few_operations_say_nothing():
    problem = unrolled()
    both = [clusters_of(problem, about=12, by=by).group.tolist() for by in ("layers", "edges")]  # type: ignore[arg-type]
    assert both[0] == both[1]


def test_where_operations_share_no_weights_clusters_are_those_of_edges(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "LONG", 1)
    problem = toy_problem(toy_graph(40, [(i, i + 1) for i in range(39)]), np.ones((40, 2)))
    both = [clusters_of(problem, about=12, by=by).group.tolist() for by in ("layers", "edges")]  # type: ignore[arg-type]
    assert both[0] == both[1]
