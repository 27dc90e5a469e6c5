"""The graph, groupings and the quotient, by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from pipeline.core.errors import CyclicGraphError
from pipeline.core.graph import (
    Graph,
    Grouping,
    adjacency,
    components,
    contract,
    group_edges,
    is_acyclic,
    sum_per_group,
    topological_order,
)
from tests.strategies import graph_of


def diamond() -> Graph:
    """Return op0 -> {op1, op2} -> op3 -> op4; op0 sends 8 bytes, op1 4, op2 6, op3 2."""
    graph = graph_of(
        5,
        [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4)],
        types=["Parameter", "MatMul", "Add", "Concat", "Result"],
        flops=[0, 10, 20, 5, 0],
        out_bytes=[8, 4, 6, 2, 0],
    )
    return dataclasses.replace(
        graph,
        weight_bytes=np.array([0, 100, 10, 0, 1]),
        shape_ptr=np.array([0, 2, 3, 3, 4, 4]),
        shape_dim=np.array([1, 8, 4, -1]),
        source="abc",
    )


def grouping(*labels: int) -> Grouping:
    return Grouping(np.array(labels, np.int32))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"names": ("a", "a", "b", "c", "d")}, "names must be unique"),
        ({"op_type": np.array([0, 1, 2, 3, 5])}, "op_type must index"),
        ({"op_type": np.zeros(4)}, "op_type must have shape"),
        ({"edges": np.array([[0, 0], [1, 5]])}, "edges must lie in"),
        ({"edges": np.array([[0, 0, 1, 2, 3], [1, 2, 1, 3, 4]])}, "must not be loops"),
        ({"edges": np.array([[0, 0, 1, 2, 3], [2, 1, 3, 3, 4]])}, "unique and sorted"),
        ({"edges": np.array([[0, 0, 1, 2, 3], [1, 1, 3, 3, 4]])}, "unique and sorted"),
        ({"flops": np.array([0, 1, np.nan, 0, 0])}, "flops must be finite"),
        ({"flops": np.array([0, 1, -1, 0, 0])}, "flops must be finite"),
        ({"weight_bytes": np.array([0, -1, 0, 0, 0])}, "weight_bytes must be finite"),
        ({"edge_bytes": np.zeros(4)}, "edge_bytes must have shape"),
        ({"shape_ptr": np.array([0, 2, 3, 3, 3, 3])}, "shape_ptr must rise"),
        ({"shape_ptr": np.array([0, 3, 2, 3, 4, 4])}, "shape_ptr must rise"),
        ({"colocate": np.array([-1, -1, -1, -1, 5])}, "colocate must lie in"),
        ({"kernel": np.array([-2, -1, -1, -1, -1])}, "kernel must lie in"),
    ],
)
def test_graph_refuses_what_is_not_legal(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(diamond(), **change)


def test_graph_arrays_are_read_only_copies() -> None:
    flops = np.ones(2)
    graph = dataclasses.replace(graph_of(2, [(0, 1)]), flops=flops)
    flops[0] = 7
    assert graph.flops.tolist() == [1, 1]
    with pytest.raises(ValueError, match="read-only"):
        graph.flops[0] = 7


def test_graph_counts_degrees_and_tells_shapes() -> None:
    graph = diamond()
    assert (graph.n, graph.m) == (5, 5)
    assert graph.in_degree.tolist() == [0, 1, 1, 2, 1]
    assert graph.out_degree.tolist() == [2, 1, 1, 1, 0]
    assert [graph.shape(i) for i in range(5)] == [(1, 8), (4,), (), (-1,), ()]


def test_graph_without_operations_is_legal() -> None:
    graph = graph_of(0, [])
    assert (graph.n, graph.m) == (0, 0)
    assert topological_order(graph).size == 0
    assert contract(graph, Grouping.identity(0)).n == 0


@pytest.mark.parametrize("labels", [[0, 2], [1, 1], [-1, 0]])
def test_grouping_refuses_empty_groups_and_negative_numbers(labels: list[int]) -> None:
    with pytest.raises(ValueError, match=r"empty groups|must lie in|negative"):
        Grouping(np.array(labels, np.int32))


def test_grouping_then_composes() -> None:
    both = grouping(0, 0, 1, 2).then(grouping(1, 0, 1))
    assert both.group.tolist() == [1, 1, 0, 1]
    assert both.k == 2
    with pytest.raises(ValueError, match="cannot follow"):
        grouping(0, 1).then(grouping(0, 0, 0))


def test_adjacency_lists_consumers_and_producers() -> None:
    ptr, consumers = adjacency(diamond())
    assert (ptr.tolist(), consumers.tolist()) == ([0, 2, 3, 4, 5, 5], [1, 2, 3, 3, 4])
    ptr, producers = adjacency(diamond(), reverse=True)
    assert (ptr.tolist(), producers.tolist()) == ([0, 0, 1, 2, 4, 5], [0, 0, 1, 2, 3])


def test_topological_order_takes_the_smallest_ready_operation() -> None:
    assert topological_order(graph_of(5, [(4, 0), (3, 0), (0, 2)])).tolist() == [1, 3, 4, 0, 2]


def test_topological_order_names_the_operations_of_a_cycle() -> None:
    with pytest.raises(CyclicGraphError, match="op1, op2"):
        topological_order(graph_of(4, [(0, 1), (1, 2), (2, 1)]))


def test_is_acyclic_sees_a_cycle() -> None:
    assert is_acyclic(diamond())
    assert not is_acyclic(graph_of(3, [(0, 1), (1, 2), (2, 0)]))


def test_components_join_undirected_pairs() -> None:
    joined = components(6, np.array([5, 3, 1], np.int32), np.array([3, 0, 2], np.int32))
    assert joined.group.tolist() == [0, 1, 1, 0, 2, 0]


def test_group_edges_count_a_tensor_sent_twice_to_one_group_once() -> None:
    edges, size, _ = group_edges(diamond(), grouping(0, 1, 1, 2, 2))
    assert edges.tolist() == [[0, 1], [1, 2]]
    assert size.tolist() == [8, 4 + 6]


def test_group_edges_count_a_tensor_once_for_each_group_that_reads_it() -> None:
    edges, size, _ = group_edges(diamond(), grouping(0, 1, 2, 0, 0))
    assert edges.tolist() == [[0, 0, 1, 2], [1, 2, 0, 0]]
    assert size.tolist() == [8, 8, 4, 6]


def test_group_edges_of_one_group_are_none() -> None:
    edges, size, _ = group_edges(diamond(), grouping(0, 0, 0, 0, 0))
    assert edges.shape == (2, 0)
    assert size.shape == (0,)


def test_sum_per_group_adds_rows() -> None:
    rows = np.array([[1.0, np.inf], [2.0, 3.0], [4.0, 5.0]])
    assert sum_per_group(rows, grouping(0, 1, 0)).tolist() == [[5.0, np.inf], [2.0, 3.0]]


def test_contract_adds_up_and_takes_the_heaviest_members_name() -> None:
    small = contract(diamond(), grouping(0, 1, 1, 2, 2))
    assert small.names == ("op0", "op2", "op3")
    assert [small.type_names[t] for t in small.op_type] == ["Parameter", "Add", "Concat"]
    assert small.flops.tolist() == [0, 30, 5]
    assert small.weight_bytes.tolist() == [0, 110, 1]
    assert small.edges.tolist() == [[0, 1], [1, 2]]
    assert small.edge_bytes.tolist() == [8, 10]
    assert [small.shape(i) for i in range(3)] == [(1, 8), (), (-1,)]
    assert small.source == "abc"


def test_contract_counts_bytes_that_leave_the_group_or_the_model() -> None:
    # {op3, op4}: op3's two bytes stay inside, op4 ends the model with 0 bytes. {op1, op2}: both leave.
    assert contract(diamond(), grouping(0, 1, 1, 2, 2)).out_bytes.tolist() == [8, 10, 0]
    assert contract(diamond(), grouping(0, 0, 0, 0, 1)).out_bytes.tolist() == [2, 0]


def test_contract_breaks_ties_of_flops_by_bytes_then_by_number() -> None:
    graph = graph_of(4, [], flops=[1, 1, 1, 1], out_bytes=[1, 5, 3, 3])
    assert contract(graph, grouping(0, 0, 1, 1)).names == ("op1", "op2")


def test_contract_names_a_group_after_what_computes_in_it() -> None:
    # A table of weights, widened by a Convert of many FLOPs, that a Gather of none reads.
    types = ["Constant", "Convert", "Parameter", "Gather", "Result"]
    graph = graph_of(
        5, [(0, 1), (1, 3), (2, 3), (3, 4)], types=types, flops=[0, 99, 0, 0, 0], out_bytes=[9, 9, 1, 2, 2]
    )
    assert contract(graph, grouping(0, 0, 1, 0, 0)).names == ("op3", "op2")
    assert contract(graph, grouping(0, 0, 1, 2, 3)).names == ("op1", "op2", "op3", "op4")


def test_contract_prefers_among_equal_flops_the_member_whose_output_leaves() -> None:
    graph = graph_of(3, [(0, 1), (1, 2)], out_bytes=[9, 1, 1])
    assert contract(graph, grouping(0, 0, 1)).names == ("op1", "op2")


def test_contract_allows_a_cyclic_quotient() -> None:
    small = contract(diamond(), grouping(0, 1, 1, 0, 0))
    assert small.edges.tolist() == [[0, 1], [1, 0]]
    assert not is_acyclic(small)


def test_contract_carries_the_kernel_of_the_heaviest_member_that_has_one() -> None:
    graph = graph_of(6, [], flops=[9, 1, 2, 7, 1, 3], kernel=[-1, 3, 5, 5, -1, -1])
    assert contract(graph, grouping(0, 0, 0, 1, 1, 2)).kernel.tolist() == [0, 0, -1]
    assert contract(graph, grouping(0, 1, 0, 2, 2, 2)).kernel.tolist() == [1, 0, 1]


def test_contract_joins_ties_that_meet_in_a_group() -> None:
    graph = graph_of(7, [], colocate=[0, 4, 4, 6, 2, -1, 2])
    # op0 and op1 meet, so ties 0 and 4 become one, and the group of op2 carries it; ties 6 and 2 stay apart.
    assert contract(graph, grouping(0, 0, 1, 2, 3, 3, 4)).colocate.tolist() == [0, 0, 1, 2, 2]


def test_contract_refuses_a_grouping_of_another_size() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        contract(diamond(), grouping(0, 1))
