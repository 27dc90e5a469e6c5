"""Node features: every formula by hand, and what must hold for any graph."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embed.features import BLOCKS, DEFAULT_BLOCKS, Features, needs_costs, node_features
from embed.structure import fractal_dimension, heaviest_path, mean_rank
from embed.vocabulary import OP_TYPES
from pipeline.core.devices import CostTable
from pipeline.core.errors import CyclicGraphError, UnknownNameError
from pipeline.core.graph import Graph, Grouping, topological_order
from pipeline.core.settings import EmbedSettings
from pipeline.core.tensors import edges_of
from tests.strategies import graphs
from tests.toys import toy_graph


def alone(graph: Graph, costs: CostTable | None = None, *blocks: str) -> Features:
    return node_features(graph, Grouping.identity(graph.n), costs, blocks=blocks or BLOCKS)


def pairs(*edges: tuple[int, int]) -> np.ndarray:
    return np.array(edges, dtype=np.int32).reshape(-1, 2).T


def table(graph: Graph, op_s: list[list[float]]) -> CostTable:
    p = len(op_s[0])
    return CostTable(graph.names, tuple("AB"[:p]), np.array(op_s), np.zeros(p), ("given",) * p)


def renumbered(graph: Graph, number: np.ndarray) -> Graph:
    """Return the graph in which operation i is called number[i]."""
    old = np.argsort(number)
    ends = number[graph.edges[:, graph.reads.edge]]
    edges, edge_bytes, reads = edges_of(ends[0], ends[1], graph.reads.port, graph.reads.size)
    shapes = [graph.shape(i) for i in old.tolist()]
    return dataclasses.replace(
        graph,
        names=tuple(graph.names[i] for i in old),
        op_type=graph.op_type[old],
        edges=edges,
        flops=graph.flops[old],
        weight_bytes=graph.weight_bytes[old],
        out_bytes=graph.out_bytes[old],
        edge_bytes=edge_bytes,
        reads=reads,
        shape_ptr=np.cumsum([0, *(len(shape) for shape in shapes)]),
        shape_dim=np.array([d for shape in shapes for d in shape], dtype=np.int64),
        colocate=graph.colocate[old],
        kernel=graph.kernel[old],
    )


def slope_by_hand(distances: list[int]) -> float:
    """Return the fractal dimension from a node's distances to the others, by numpy's own line fit."""
    radii = sorted(set(distances))
    if len(radii) < 2:
        return 0.0
    within = [sum(d <= r for d in distances) for r in radii]
    return float(np.polyfit(np.log(radii), np.log(within), 1)[0])


def distances_by_search(n: int, edges: np.ndarray, root: int) -> list[int]:
    neighbours: list[set[int]] = [set() for _ in range(n)]
    for a, b in edges.T.tolist():
        neighbours[a].add(b)
        neighbours[b].add(a)
    distance, shell = {root: 0}, [root]
    while shell:
        shell = sorted({j for i in shell for j in neighbours[i] if j not in distance})
        distance |= dict.fromkeys(shell, distance[root] + 1 + max(distance.values()))
    return [d for node, d in distance.items() if node != root]


def test_fractal_dimension_of_a_path_of_three_is_one_at_its_ends_and_zero_in_the_middle():
    # End: 1 node within 1 hop, 2 within 2: slope log 2 / log 2. Middle: one distance only.
    assert fractal_dimension(3, pairs((0, 1), (1, 2))) == pytest.approx([1.0, 0.0, 1.0])


def test_fractal_dimension_of_a_grid_of_nine():
    grid = [(i, i + 1) for i in range(9) if i % 3 < 2] + [(i, i + 3) for i in range(6)]
    found = fractal_dimension(9, pairs(*grid))
    assert found[4] == pytest.approx(1.0)  # centre: 4 nodes within 1 hop, 8 within 2
    x, y = np.log([1, 2, 3, 4]), np.log([2, 5, 7, 8])  # corner
    assert found[0] == pytest.approx(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())


def test_fractal_dimension_leaves_out_what_cannot_be_reached():
    path = pairs((0, 1), (1, 2))
    with_island = pairs((0, 1), (1, 2), (3, 4))
    assert fractal_dimension(6, with_island)[:3] == pytest.approx(fractal_dimension(3, path))
    assert fractal_dimension(6, with_island)[3:].tolist() == [0.0, 0.0, 0.0]


def test_fractal_dimension_of_resnet50_spans_the_known_range():
    # 396 operations and 411 edges, with a Constant and a Convert for each weight; minimum, median and maximum of a
    # correct computation on this graph are 1.17, 1.53 and 2.00.
    edges: list[tuple[int, int]] = []
    count = 0

    def op(*inputs: int) -> int:
        nonlocal count
        edges.extend((i, count) for i in inputs)
        count += 1
        return count - 1

    def weight() -> int:
        return op(op())

    def convolution(x: int) -> int:
        return op(op(x, weight()), weight())

    x = op(op(convolution(op())))
    for blocks in (3, 4, 6, 3):
        for block in range(blocks):
            beside = convolution(x) if block == 0 else x
            x = op(op(convolution(op(convolution(op(convolution(x))))), beside))
    x = op(op(x, op()), op())
    op(op(op(x, weight()), weight()))
    assert (count, len(edges)) == (396, 411)
    found = fractal_dimension(count, pairs(*edges))
    assert [found.min(), np.median(found), found.max()] == pytest.approx([1.17, 1.53, 2.00], abs=0.005)


@settings(deadline=None, max_examples=50)
@given(graphs(min_n=1))
def test_fractal_dimension_agrees_with_a_plain_search(graph: Graph):
    expected = [slope_by_hand(distances_by_search(graph.n, graph.edges, root)) for root in range(graph.n)]
    assert fractal_dimension(graph.n, graph.edges) == pytest.approx(expected)


@settings(deadline=None, max_examples=50)
@given(graphs(min_n=1))
def test_search_near_by_is_exact_when_nothing_is_far(graph: Graph):
    near = fractal_dimension(graph.n, graph.edges, exact_up_to=0, radius=20, ball=10**6)
    assert near == pytest.approx(fractal_dimension(graph.n, graph.edges))


def test_search_near_by_stops_at_its_radius():
    path = pairs(*((i, i + 1) for i in range(9)))
    near = fractal_dimension(10, path, exact_up_to=0, radius=2, ball=100)
    assert near[0] == pytest.approx(1.0)  # 1 and 2 nodes within 1 and 2 hops
    assert near[5] == pytest.approx(math.log(4 / 2) / math.log(2))
    assert near[1] == pytest.approx(math.log(3 / 2) / math.log(2))


def test_search_near_by_gives_up_at_a_hub():
    star = pairs(*((0, i) for i in range(1, 40)))
    assert fractal_dimension(40, star, exact_up_to=0, radius=4, ball=20).tolist() == [0.0] * 40
    assert fractal_dimension(40, star)[1] == pytest.approx(math.log(39) / math.log(2))


def test_search_near_by_gives_up_per_node():
    # A hub 0 of thirty leaves with a tail 0 - 31 - 32 - 33. From 33 the hub is reached, its leaves are not.
    edges = pairs(*((0, i) for i in range(1, 32)), (31, 32), (32, 33))
    near = fractal_dimension(34, edges, exact_up_to=0, radius=8, ball=20)
    assert near[33] == pytest.approx(1.0)  # 1, 2 and 3 nodes within 1, 2 and 3 hops
    assert near[31] == 0.0


def test_depths_and_slack_of_a_diamond():
    # 0 -> {1, 2} -> 3 of 1, 5, 2 and 1 FLOPs: the critical path 0 1 3 weighs 7, the path through 2 weighs 4.
    graph = toy_graph(4, [(0, 1), (0, 2), (1, 3), (2, 3)], flops=[1, 5, 2, 1])
    found = alone(graph)
    assert found.column("depth_in") == pytest.approx(np.array([0, 1, 1, 6]) / 7)
    assert found.column("depth_out") == pytest.approx(np.array([6, 1, 1, 0]) / 7)
    assert found.column("slack") == pytest.approx(np.array([0, 0, 3, 0]) / 7)


def test_paths_are_weighted_by_mean_time_over_supporting_devices_when_costs_are_known():
    graph = toy_graph(3, [(0, 2), (1, 2)], flops=[9, 1, 1])
    costs = table(graph, [[1.0, 3.0], [6.0, math.inf], [1.0, 1.0]])  # means 2, 6, 1
    assert alone(graph, costs).column("slack") == pytest.approx(np.array([4, 0, 0]) / 7)


def test_paths_count_operations_when_nothing_has_a_weight():
    found = alone(toy_graph(3, [(0, 1), (1, 2)], flops=[0, 0, 0]))
    assert found.column("depth_in") == pytest.approx([0, 1 / 3, 2 / 3])


def test_a_cyclic_quotient_takes_levels_and_depths_of_its_members():
    # 0 -> 1 -> 2, and 0 with 2 in one group: the groups wait for one another.
    graph = toy_graph(3, [(0, 1), (1, 2)], flops=[1, 2, 1])
    found = node_features(graph, Grouping(np.array([0, 1, 0])), None)
    assert found.column("depth_in") == pytest.approx([0, 1 / 4])
    assert found.column("depth_out") == pytest.approx([0, 1 / 4])
    assert found.column("position") == pytest.approx([0, 1])


def test_a_cyclic_raw_graph_is_refused():
    with pytest.raises(CyclicGraphError):
        alone(toy_graph(2, [(0, 1), (1, 0)]))


def test_position_is_the_topological_rank_and_its_encoding():
    found = alone(toy_graph(4, [(0, 1), (0, 2), (1, 3), (2, 3)]))  # levels 0, 1, 1, 2: ranks 0, 1.5, 1.5, 3
    assert found.column("position") == pytest.approx([0, 0.5, 0.5, 1])
    assert found.column("sin:0") == pytest.approx(np.sin([1, 2.5, 2.5, 4]))
    assert found.column("cos:3") == pytest.approx(np.cos(np.array([1, 2.5, 2.5, 4]) / 1000 ** (6 / 8)))


def test_types_are_averaged_over_members_and_unknown_ones_count_as_other():
    graph = toy_graph(4, [], types=("Relu", "MatMul", "MatMul", "NoSuchOperation"))
    found = node_features(graph, Grouping(np.array([0, 0, 0, 1])), None)
    assert found.column("type:MatMul") == pytest.approx([2 / 3, 0])
    assert found.column("type:Relu") == pytest.approx([1 / 3, 0])
    assert found.column("type:other").tolist() == [0, 1]


def test_vocabulary_is_sorted_and_without_repetition():
    assert list(OP_TYPES) == sorted(set(OP_TYPES))


def test_degrees_of_the_quotient_are_one_hot_up_to_seven():
    graph = toy_graph(10, [(i, 9) for i in range(9)])
    found = alone(graph)
    assert found.column("in:8+").tolist() == [0] * 9 + [1]
    assert found.column("out:1").tolist() == [1] * 9 + [0]
    grouped = node_features(graph, Grouping(np.array([0] * 9 + [1])), None)
    assert grouped.column("in:1").tolist() == [0, 1]


def test_shapes_are_padded_and_a_dynamic_dimension_is_zero_and_flagged():
    graph = toy_graph(3, [], shapes=[(3, -1), (), (1, 2, 3, 4, 5, 6)])
    found = alone(graph)
    axes = np.stack([found.column(f"axis:{i}") for i in range(5)], axis=1) * 10
    assert axes[0] == pytest.approx([math.log(4), 0, 0, 0, 0])
    assert axes[1].tolist() == [0] * 5
    assert axes[2] == pytest.approx(np.log([2, 3, 4, 5, 31]))  # the last two axes are multiplied
    assert found.column("dynamic").tolist() == [1, 0, 0]


def test_sizes_are_logarithms_of_the_quotients_sums():
    graph = toy_graph(3, [(0, 1), (0, 2)], flops=[1, 10, 100], weight_bytes=[7, 8, 9])
    found = node_features(graph, Grouping(np.array([0, 1, 1])), None)
    assert found.column("flops") * 10 == pytest.approx(np.log([2, 111]))
    assert found.column("weight_bytes") * 10 == pytest.approx(np.log([8, 18]))
    assert found.column("in_bytes") * 10 == pytest.approx([0, math.log(5)])  # one tensor, sent once


def test_times_are_standardised_over_all_devices_together():
    graph = toy_graph(2, [])
    found = alone(graph, table(graph, [[1e-6, 3e-6], [math.inf, 3e-6]]))
    logs = np.log([2, 4, 4])
    scaled = (logs - logs.mean()) / logs.std()
    assert found.column("time:A") == pytest.approx([scaled[0], 0])
    assert found.column("time:B") == pytest.approx(scaled[1:])
    assert found.column("supported:A").tolist() == [1, 0]


def test_spread_of_times_by_hand():
    # Logs of 1 + microseconds: log 2 and log 4, with mean 1.5 log 2; and log 16 alone.
    graph = toy_graph(2, [])
    found = alone(graph, table(graph, [[1e-6, 3e-6], [math.inf, 15e-6]]), "spread")
    assert found.columns == ("time_mean", "time_least", "time_most", "supported_share")
    mean = math.log(2) * 1.5
    assert found.column("time_mean") == pytest.approx([-1, 1])
    assert found.column("time_least") == pytest.approx([math.log(2) - mean, 0])
    assert found.column("time_most") == pytest.approx([math.log(4) - mean, 0])
    assert found.column("supported_share").tolist() == [1, 0.5]


def test_an_operation_without_a_device_spreads_nothing():
    graph = toy_graph(3, [])
    found = alone(graph, table(graph, [[1e-6, 1e-6], [math.inf, math.inf], [9e-6, 9e-6]]), "spread")
    assert found.values[1].tolist() == [0, 0, 0, 0]
    assert found.column("time_mean") == pytest.approx([-1, 0, 1])


@settings(deadline=None, max_examples=50)
@given(graphs(min_n=1), st.permutations(range(3)))
def test_spread_knows_neither_names_nor_order_nor_number_of_the_devices(graph: Graph, order: list[int]):
    op_s = np.abs(np.sin(np.arange(3 * graph.n))).reshape(graph.n, 3)
    twice = np.concatenate([op_s, op_s], axis=1)
    names = ("A", "B", "C", "D", "E", "F")

    def spread(seconds: np.ndarray) -> np.ndarray:
        p = seconds.shape[1]
        costs = CostTable(graph.names, names[:p], seconds, np.zeros(p), ("given",) * p)
        return alone(graph, costs, "spread").values

    # float32 rounding of sums taken in another order
    assert np.allclose(spread(op_s), spread(op_s[:, order]), atol=1e-5)
    assert np.allclose(spread(op_s), spread(twice), atol=1e-5)


def test_index_counts_in_a_topological_order():
    found = alone(toy_graph(4, [(3, 0), (0, 1), (3, 2)]), None, "index")
    assert found.columns == ("index",)
    assert found.column("index").tolist() == [1, 2, 3, 0]


def test_the_degrees_of_the_paper_are_those_that_occur():
    graph = toy_graph(12, [(0, i) for i in range(1, 12)])
    found = alone(graph, None, "degree_values")
    assert found.columns == ("in=0", "in=1", "out=0", "out=11")
    assert found.values.tolist() == [[1, 0, 0, 1]] + [[0, 1, 1, 0]] * 11


def test_the_shapes_of_the_paper_are_dimensions_padded_to_the_longest():
    graph = toy_graph(3, [(0, 1)], shapes=[(2, 3, 4, 5, 6, 7), (224,), (-1, 9)])
    found = alone(graph, None, "dims")
    assert found.columns == tuple(f"dim:{i}" for i in range(6))
    assert found.values.tolist() == [[2, 3, 4, 5, 6, 7], [224, 0, 0, 0, 0, 0], [0, 9, 0, 0, 0, 0]]
    assert alone(toy_graph(2, [], shapes=[(), ()]), None, "dims").values.shape == (2, 0)


def test_the_index_of_the_paper_is_encoded_from_one_on_by_sines_of_base_1000():
    found = alone(toy_graph(3, [(2, 0), (2, 1)]), None, "index_encoding")  # the order is 2, 0, 1
    for i in range(4):
        angle = np.array([2, 3, 1]) / 1000 ** (2 * i / 8)
        assert np.allclose(found.column(f"index_sin:{i}"), np.sin(angle))
        assert np.allclose(found.column(f"index_cos:{i}"), np.cos(angle))
    assert len(found.columns) == 8


def test_index_of_a_cyclic_quotient_is_that_of_the_first_member():
    graph = toy_graph(4, [(0, 1), (1, 2), (2, 3)])
    found = node_features(graph, Grouping(np.array([0, 1, 0, 1])), None, blocks=("index",))
    assert found.column("index").tolist() == [0, 1]


def test_blocks_come_in_the_order_asked_for_and_only_those():
    graph = toy_graph(3, [(0, 1), (1, 2)])
    costs = table(graph, [[1.0, 2.0]] * 3)
    assert alone(graph, costs, "paths", "fractal").columns == ("depth_in", "depth_out", "slack", "fractal")
    parts = [alone(graph, costs, block).columns for block in BLOCKS]
    assert alone(graph, costs).columns == sum(parts, ())


def test_without_costs_the_blocks_made_of_times_are_left_out():
    graph = toy_graph(3, [(0, 1), (1, 2)])
    assert alone(graph, None, "times", "index", "spread").columns == ("index",)
    assert alone(graph, None, "times").values.shape == (3, 0)


def test_an_unknown_block_is_named():
    with pytest.raises(UnknownNameError, match="shape"):
        alone(toy_graph(1, []), None, "shape")
    with pytest.raises(UnknownNameError, match="Unknown block of features"):
        needs_costs(["types", "colour"])


@pytest.mark.parametrize("block", BLOCKS)
def test_blocks_that_look_at_costs_say_so(block: str):
    graph = toy_graph(3, [(0, 1), (1, 2), (0, 2)], flops=[1, 2, 3])
    cheap, dear = table(graph, [[1.0, 1.0]] * 3), table(graph, [[1.0, 2.0], [5.0, 7.0], [1.0, 9.0]])
    differ = not np.array_equal(alone(graph, cheap, block).values, alone(graph, dear, block).values)
    assert differ == needs_costs([block])


def test_blocks_of_the_settings_are_the_default_and_name_no_device():
    graph = toy_graph(2, [])
    assert EmbedSettings().blocks == DEFAULT_BLOCKS
    costs = table(graph, [[1.0, 2.0]] * 2)
    columns = node_features(graph, Grouping.identity(2), costs).columns
    assert not {"time:A", "supported:A"} & {*columns}


def test_the_columns_are_the_same_for_every_graph():
    small, large = toy_graph(1, []), toy_graph(5, [(0, 1), (1, 4)], types=("Relu", "Odd"))
    blocks = tuple(block for block in BLOCKS if block not in ("degree_values", "dims"))
    assert alone(small, None, *blocks).columns == alone(large, None, *blocks).columns
    assert len(set(alone(large).columns)) == len(alone(large).columns)


def test_equal_ranks_share_their_mean():
    assert mean_rank(np.array([2, 2, 0, 7, 2])).tolist() == [2, 2, 0, 4, 2]


@settings(deadline=None, max_examples=50)
@given(graphs(min_n=1))
def test_heaviest_paths_agree_with_recursion(graph: Graph):
    def longest(i: int, row: int) -> float:
        beyond = graph.edges[row][graph.edges[1 - row] == i].tolist()
        return max((graph.flops[j] + longest(j, row) for j in beyond), default=0.0)

    order = topological_order(graph)
    before = heaviest_path(graph, order, graph.flops)
    after = heaviest_path(graph, order, graph.flops, reverse=True)
    assert before.tolist() == [longest(i, 0) for i in range(graph.n)]
    assert after.tolist() == [longest(i, 1) for i in range(graph.n)]


@settings(deadline=None, max_examples=50)
@given(graphs(min_n=1), st.data())
def test_renumbering_operations_renumbers_the_rows(graph: Graph, data: st.DataObject):
    number = np.array(data.draw(st.permutations(range(graph.n))))
    op_s = np.abs(np.sin(np.arange(2 * graph.n))).reshape(graph.n, 2)
    costs = table(graph, op_s.tolist())
    other = renumbered(graph, number)
    other_costs = table(other, op_s[np.argsort(number)].tolist())
    # float32 rounding of sums taken in another order
    blocks = tuple(block for block in BLOCKS if not block.startswith("index"))  # which go by the numbering
    found = alone(graph, costs, *blocks)
    assert np.allclose(alone(other, other_costs, *blocks).values[number], found.values, atol=1e-5)


@settings(deadline=None, max_examples=50)
@given(graphs(min_n=1), st.data())
def test_renumbering_groups_renumbers_the_rows(graph: Graph, data: st.DataObject):
    labels = data.draw(st.lists(st.integers(0, 3), min_size=graph.n, max_size=graph.n))
    grouping = Grouping.of_labels(np.array(labels))
    number = np.array(data.draw(st.permutations(range(grouping.k))))
    found = node_features(graph, grouping, None)
    other = node_features(graph, Grouping(number[grouping.group]), None)
    assert np.isfinite(found.values).all()
    assert np.allclose(other.values[number], found.values, atol=1e-5)
