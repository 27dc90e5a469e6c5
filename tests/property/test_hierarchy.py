"""Graphs folded into boxes: whatever the graph, every operation has one place and nothing waits in a circle."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.graph import Graph
from pipeline.report import hierarchy
from pipeline.report.hierarchy import Hierarchy, fold_graph, order_layers
from tests.strategies import graphs


@pytest.fixture(autouse=True)
def small_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let boxes be so small that graphs of a dozen operations have several levels."""
    for name, value in {"LEAF": 3, "MOST": 4, "CHUNKS": 2, "LEAST": 1}.items():
        monkeypatch.setattr(hierarchy, name, value)


placed = graphs(min_n=1, max_n=14).flatmap(
    lambda g: st.tuples(st.just(g), st.lists(st.integers(0, 2), min_size=g.n, max_size=g.n))
)


def members(fold: Hierarchy, code: int) -> list[int]:
    """Return the operations of a child of a box, by their numbers in the graph."""
    if code >= 0:
        return [int(fold.order[code])]
    return fold.order[fold.boxes[-1 - code].low : fold.boxes[-1 - code].high].tolist()


@given(placed)
def test_every_operation_has_one_place_in_one_box(case: tuple[Graph, list[int]]) -> None:
    graph, device = case
    fold = fold_graph(graph, np.array(device, np.int32))
    codes = [code for box in fold.boxes for row in box.rows for code in row]
    assert sorted(c for c in codes if c >= 0) == list(range(fold.order.size))
    assert sorted(-1 - c for c in codes if c < 0) == list(range(1, len(fold.boxes)))
    assert len(set(fold.order.tolist())) == fold.order.size
    assert set(fold.home.tolist()) <= set(fold.order.tolist())
    assert all(fold.home[i] == i for i in fold.order.tolist())


@given(placed)
def test_a_box_holds_what_its_children_hold_and_never_too_many(case: tuple[Graph, list[int]]) -> None:
    graph, device = case
    fold = fold_graph(graph, np.array(device, np.int32))
    for number, box in enumerate(fold.boxes):
        children = [code for row in box.rows for code in row]
        assert sorted(i for c in children for i in members(fold, c)) == sorted(members(fold, -1 - number))
        assert all(fold.boxes[-1 - c].parent == number for c in children if c < 0)
        assert len(children) <= 4
        assert box.rows == [] or all(box.rows)


@given(placed)
def test_in_every_box_tensors_flow_from_a_row_to_a_later_one(case: tuple[Graph, list[int]]) -> None:
    graph, device = case
    fold = fold_graph(graph, np.array(device, np.int32))
    for box in fold.boxes:
        row_of = {i: r for r, row in enumerate(box.rows) for code in row for i in members(fold, code)}
        child_of = {i: code for row in box.rows for code in row for i in members(fold, code)}
        for u, v in graph.edges.T.tolist():
            if u in row_of and v in row_of and child_of[u] != child_of[v]:
                assert row_of[u] < row_of[v]


def test_nodes_on_a_circle_stand_last_and_none_is_lost() -> None:
    rows = order_layers(4, np.array([[0, 1, 2], [1, 2, 1]]))
    assert rows[0] == [0] or rows[0] == [3, 0] or rows[0] == [0, 3]
    assert sorted(i for row in rows for i in row) == [0, 1, 2, 3]
    assert {1, 2} <= set(rows[-1])


def test_neighbours_stand_near_one_another() -> None:
    """Two chains side by side do not cross."""
    rows = order_layers(4, np.array([[0, 1], [3, 2]]))
    assert rows in ([[0, 1], [3, 2]], [[1, 0], [2, 3]])
