"""Scores of edges depend on neither units nor names nor numbers, and the weights that ship fit the figures."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.core.arrays import Float64
from pipeline.core.graph import Graph, Grouping, contract
from pipeline.shared.contraction.edge_figures import EDGE_FIGURES, NODE_FIGURES, EdgeFigures
from pipeline.shared.contraction.edge_network import SHIPPED, edge_logits, shipped_weights, weight_shapes
from tests.toys import toy_graph


def graph(order: list[int]) -> Graph:
    """Return a diamond with a tail, its operations numbered by `order`."""
    edges = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4)]
    pairs = sorted((order[a], order[b]) for a, b in edges)
    return toy_graph(5, pairs)


WORK = np.array([1.0, 2, 3, 4, 5])


def figures(of: Graph, work: Float64, times: float = 1.0) -> EdgeFigures:
    read_s = times * work[of.edges[0, of.reads.edge]]
    return EdgeFigures.of(of, times * work, read_s, devices=4, room_bytes=0)


def test_the_weights_that_ship_are_of_these_figures_and_small():
    assert {name: array.shape for name, array in shipped_weights().items()} == weight_shapes()
    assert SHIPPED.stat().st_size <= 300_000
    found = figures(graph([0, 1, 2, 3, 4]), WORK)
    assert found.node.shape == (5, len(NODE_FIGURES))
    assert found.edge.shape == (5, len(EDGE_FIGURES))


def test_scores_do_not_depend_on_the_unit_of_time():
    one, other = (edge_logits(shipped_weights(), figures(graph([0, 1, 2, 3, 4]), WORK, s)) for s in (1.0, 1e-6))
    assert one == pytest.approx(other)
    assert np.ptp(one) > 0


def test_scores_belong_to_operations_whatever_their_numbers():
    order = [3, 0, 4, 1, 2]
    one, other = graph([0, 1, 2, 3, 4]), graph(order)
    work = np.empty(5)
    work[order] = WORK
    scores = dict(
        zip(zip(*one.edges.tolist(), strict=True), edge_logits(shipped_weights(), figures(one, WORK)), strict=True)
    )
    for (a, b), score in zip(other.edges.T.tolist(), edge_logits(shipped_weights(), figures(other, work)), strict=True):
        assert score == pytest.approx(scores[order.index(a), order.index(b)])


def test_slack_and_depth_are_those_of_the_longest_path():
    found = figures(graph([0, 1, 2, 3, 4]), WORK)
    # the longest path is 0, 2, 3, 4: 13 seconds; by way of 1 it is one less
    assert found.node[:, NODE_FIGURES.index("slack")] == pytest.approx([0, 1 / 13, 0, 0, 0])
    assert found.node[:, NODE_FIGURES.index("before")] == pytest.approx([0, 1 / 13, 1 / 13, 4 / 13, 8 / 13])
    assert found.edge[:, EDGE_FIGURES.index("slack")] == pytest.approx([1 / 13, 0, 1 / 13, 0, 0])


def test_a_graph_with_a_cycle_is_scored():
    chain = toy_graph(6, [(0, 1), (1, 2), (2, 3), (3, 4), (3, 5)])
    cyclic = contract(chain, Grouping(np.array([0, 1, 2, 3, 4, 1], np.int32)))
    assert np.isfinite(edge_logits(shipped_weights(), EdgeFigures.of_graph(cyclic, devices=2))).all()
