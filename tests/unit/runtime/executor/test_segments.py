"""Which operations become a segment: by hand on small graphs, and what holds on random ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.arrays import Float64, Int32, Int64
from pipeline.core.errors import UsageError
from pipeline.core.graph import Graph, Grouping, contract, is_acyclic, weight_side
from pipeline.core.placement import Placement
from runtime.executor.merging import SEGMENT_FLOPS, SegmentParts, merge_segments
from runtime.executor.segments import Segmentation, segment_graph
from tests.strategies import connected, graph_of, graphs


def chain_graph(n: int, edges: list[tuple[int, int]], *, flops: list[float] | None = None) -> Graph:
    """Return a graph of n Relus, those without a producer being Parameters."""
    graph = graph_of(n, edges)
    kinds = [0 if not any(b == i for _, b in edges) else 1 for i in range(n)]
    return replace(
        graph,
        op_type=np.array(kinds, np.int16),
        type_names=("Parameter", "Relu"),
        flops=np.array(flops or [1.0] * n),
        colocate=np.full(n, -1, np.int32),
        kernel=np.full(n, -1, np.int32),
    )


def placed(graph: Graph, devices: str, priority: list[float] | None = None) -> Placement:
    """Return the placement that gives operation i the device of letter i."""
    order = None if priority is None else np.array(priority, np.float64)
    return Placement(np.array(["AB".index(d) for d in devices], np.int32), ("A", "B"), order)


def parts(found: Segmentation, graph: Graph) -> list[tuple[str, list[int]]]:
    """Return (device, numbers of the operations) of every segment, in order."""
    number = {name: i for i, name in enumerate(graph.names)}
    return [(s.device, sorted(number[name] for name in s.operations)) for s in found.segments]


def test_two_towers_are_three_segments() -> None:
    graph = chain_graph(6, [(0, 1), (1, 2), (0, 3), (3, 4), (2, 5), (4, 5)], flops=[0, 1, 1, 5, 5, 1])
    assert parts(segment_graph(graph, placed(graph, "AAABBA")), graph) == [("B", [3, 4]), ("A", [1, 2]), ("A", [5])]


def test_what_another_device_waits_for_does_not_stand_behind_what_it_does_not_need() -> None:
    # 1 feeds 2 on the same device and 3 on the other, which must not wait for 2.
    graph = chain_graph(5, [(0, 1), (1, 2), (1, 3), (2, 4), (3, 4)], flops=[0, 1, 9, 5, 1])
    assert parts(segment_graph(graph, placed(graph, "AAABA")), graph) == [
        ("A", [1]),
        ("A", [2]),
        ("B", [3]),
        ("A", [4]),
    ]


def test_a_chain_whose_last_operation_alone_is_waited_for_is_one_segment() -> None:
    # 1, 2 and 3 each feed 4, which needs 3 and so waits for all of them.
    graph = chain_graph(5, [(0, 1), (1, 2), (2, 3), (1, 4), (2, 4), (3, 4)])
    assert parts(segment_graph(graph, placed(graph, "AAAAB")), graph) == [("A", [1, 2, 3]), ("B", [4])]


def test_heads_side_by_side_that_wait_for_the_same_are_one_segment_per_device() -> None:
    edges = [(0, 1), (0, 2), (0, 3), (0, 4), *((i, 5) for i in range(1, 5))]
    graph = chain_graph(6, edges)
    assert sorted(parts(segment_graph(graph, placed(graph, "AABABA")), graph)) == [
        ("A", [1, 3]),
        ("A", [5]),
        ("B", [2, 4]),
    ]


# Two cells of a layer on A, one after the other, what adds their inputs to them, and the cells of the layer above on B.
WAVEFRONT = [(0, 1), (1, 2), (1, 3), (2, 4), (3, 5), (4, 6), (5, 6)]


def test_a_layer_begins_before_the_one_below_it_has_ended() -> None:
    much = SEGMENT_FLOPS * 2
    graph = chain_graph(7, WAVEFRONT, flops=[0, much, much, 1, 1, much, much])
    found = parts(segment_graph(graph, placed(graph, "AAAAABB")), graph)
    assert found == [("A", [1, 3]), ("A", [2, 4]), ("B", [5]), ("B", [6])]


def test_little_work_is_not_parted_for_others_to_wait_less() -> None:
    graph = chain_graph(7, WAVEFRONT)
    assert parts(segment_graph(graph, placed(graph, "AAAAABB")), graph) == [("A", [1, 2, 3, 4]), ("B", [5, 6])]


def test_what_another_device_waits_for_is_parted_from_what_it_does_not_need() -> None:
    # 4 on the other device waits for 1 and 2 and not for 3, which 5 takes.
    much = SEGMENT_FLOPS * 3
    graph = chain_graph(6, [(0, 1), (1, 2), (1, 3), (2, 4), (3, 5), (4, 5)], flops=[0, *[much] * 5])
    found = parts(segment_graph(graph, placed(graph, "ABBBAB")), graph)
    assert sorted(found) == [("A", [4]), ("B", [1, 2]), ("B", [3]), ("B", [5])]


def test_nothing_is_parted_where_the_whole_does_not_end_sooner() -> None:
    # 4 could begin before 3 has ended, but 5 keeps its device busy for longer.
    much = SEGMENT_FLOPS * 2
    graph = chain_graph(6, [(0, 1), (1, 2), (1, 3), (2, 4), (0, 5)], flops=[0, much, much, much, 1, 5 * much])
    found = parts(segment_graph(graph, placed(graph, "AAAABB")), graph)
    assert found == [("B", [5]), ("A", [1, 2, 3]), ("B", [4])]


def test_a_placement_on_one_device_is_one_segment() -> None:
    graph = chain_graph(4, [(0, 1), (1, 2), (1, 3)])
    assert parts(segment_graph(graph, placed(graph, "AAAA")), graph) == [("A", [1, 2, 3])]


def test_the_longest_way_to_the_end_comes_first_unless_priorities_are_stated() -> None:
    graph = chain_graph(4, [(0, 1), (0, 2), (1, 3), (2, 3)], flops=[0, 1, 9, 1])
    found = segment_graph(graph, placed(graph, "AABA"))
    assert parts(found, graph) == [("B", [2]), ("A", [1]), ("A", [3])]
    assert [spec.priority for spec in found.segments] == [-12.0, -4.0, -2.0]  # FLOPs, and one per operation
    stated = segment_graph(graph, placed(graph, "AABA", [0.0, 1.0, 2.0, 3.0])).segments
    assert [(s.device, s.priority) for s in stated] == [("A", 1.0), ("B", 2.0), ("A", 3.0)]


def test_what_lies_between_colocated_operations_runs_with_them() -> None:
    graph = replace(chain_graph(4, [(0, 1), (1, 2), (2, 3), (1, 3)]), colocate=np.array([-1, 0, -1, 0], np.int32))
    found = segment_graph(graph, placed(graph, "AABA"))
    assert parts(found, graph) == [("A", [1, 2, 3])]
    assert found.moved == (graph.names[2],)


def test_a_placement_that_parts_colocated_operations_is_refused_by_name() -> None:
    graph = replace(chain_graph(4, [(0, 1), (1, 2), (2, 3)]), colocate=np.array([-1, 0, 0, -1], np.int32))
    with pytest.raises(UsageError, match=f"parts {graph.names[1]} on A from {graph.names[2]}"):
        segment_graph(graph, placed(graph, "AABB"))


@pytest.mark.parametrize(("flops", "device"), [([0, 1, 1, 9, 9], "B"), ([0, 9, 9, 1, 1], "A")])
def test_constraints_that_wait_for_each_other_run_where_the_more_work_was_placed(
    flops: list[float], device: str
) -> None:
    # 1 and 2 are on A, 3 and 4 on B: 3 waits for 1, and 2 for 4.
    graph = chain_graph(5, [(0, 1), (1, 3), (0, 4), (4, 2)], flops=flops)
    graph = replace(graph, colocate=np.array([-1, 0, 0, 1, 1], np.int32))
    found = segment_graph(graph, placed(graph, "AAABB"))
    assert parts(found, graph) == [(device, [1, 2, 3, 4])]
    assert found.moved == tuple(graph.names[i] for i in ((1, 2) if device == "B" else (3, 4)))


def test_operations_of_a_kernel_stay_together_as_long_as_they_share_a_device() -> None:
    # 1 feeds 3 on the other device: without the kernel 2 would be a segment of its own.
    graph = chain_graph(4, [(0, 1), (1, 2), (1, 3)])
    assert sorted(parts(segment_graph(graph, placed(graph, "AAAB")), graph)) == [("A", [1]), ("A", [2]), ("B", [3])]
    fused = replace(graph, kernel=np.array([-1, 0, 0, -1], np.int32))
    assert parts(segment_graph(fused, placed(fused, "AAAB")), fused) == [("A", [1, 2]), ("B", [3])]
    assert parts(segment_graph(fused, placed(fused, "AABB")), fused) == [("A", [1]), ("B", [2, 3])]


def test_a_kernel_around_an_operation_of_another_device_is_given_up() -> None:
    graph = chain_graph(4, [(0, 1), (1, 2), (2, 3), (1, 3)])
    fused = replace(graph, kernel=np.array([-1, 0, -1, 0], np.int32))
    assert parts(segment_graph(fused, placed(fused, "AABA")), fused) == [("A", [1]), ("B", [2]), ("A", [3])]


@settings(max_examples=150, deadline=None)
@given(graph=graphs(min_n=1, max_n=14), seed=st.integers(0, 2**16), much=st.booleans())
def test_segments_of_random_graphs_hold_what_they_promise(graph: Graph, seed: int, much: bool) -> None:
    rng = np.random.default_rng(seed)
    if much:
        graph = replace(graph, flops=rng.choice([0.0, 3 * SEGMENT_FLOPS], graph.n))
    device = rng.integers(0, 3, graph.n).astype(np.int32)
    for label in np.unique(graph.colocate[graph.colocate >= 0]).tolist():
        members = graph.colocate == label
        device[members] = device[np.flatnonzero(members)[0]]
    placement = Placement(device, ("A", "B", "C"), rng.random(graph.n) if seed % 2 else None)
    try:
        found = segment_graph(graph, placement)
    except UsageError:  # a Result, which is where its producer is, was drawn into a constraint with another device
        return
    number = {name: i for i, name in enumerate(graph.names)}
    home = np.full(graph.n, -1)
    for s, spec in enumerate(found.segments):
        members = [number[name] for name in spec.operations]
        assert np.all(home[members] == -1)
        home[members] = s
    kinds = np.array(graph.type_names)[graph.op_type]
    free = home == -1
    assert np.all(~free | weight_side(graph) | np.isin(kinds, ("Parameter", "Result")))
    taken = np.flatnonzero(~free)
    where = {s: spec.device for s, spec in enumerate(found.segments)}
    moved = {number[name] for name in found.moved}
    for i in taken.tolist():
        if kinds[i] != "Result" and i not in moved:
            assert where[int(home[i])] == placement.devices[device[i]]
    for label in np.unique(graph.colocate[graph.colocate >= 0]).tolist():
        assert len(set(home[(graph.colocate == label) & ~free].tolist())) <= 1
    ends = home[graph.edges[:, ~free[graph.edges[0]]]]
    assert np.all(ends[0] <= ends[1])  # in order, and so without cycles


@settings(max_examples=150, deadline=None)
@given(graph=graphs(min_n=1, max_n=12), seed=st.integers(0, 2**16))
def test_what_is_merged_waits_for_nothing_that_it_did_not_wait_for(graph: Graph, seed: int) -> None:
    device = np.random.default_rng(seed).integers(0, 2, graph.n).astype(np.int32)
    label = merge_segments(graph.edges, parts_of(device, stage=np.zeros(graph.n, np.int32), work=2 * SEGMENT_FLOPS))
    assert label.tolist() == merge_segments(graph.edges, parts_of(device, stage=np.arange(graph.n), work=0.0)).tolist()
    path, grouping = connected(graph), Grouping.of_labels(label)
    small = contract(graph, grouping)
    assert is_acyclic(small)
    few = connected(small)
    for a in range(graph.n):
        for b in range(graph.n):
            if label[a] == label[b]:
                assert device[a] == device[b]
            else:
                assert path[a, b] == few[grouping.group[a], grouping.group[b]]


@settings(max_examples=300, deadline=None)
@given(graph=graphs(min_n=1, max_n=12), seed=st.integers(0, 2**16))
def test_parts_of_a_stage_that_are_merged_do_not_wait_in_circles(graph: Graph, seed: int) -> None:
    rng = np.random.default_rng(seed)
    device, stage = (rng.integers(0, 2, graph.n).astype(np.int32) for _ in range(2))
    work = rng.choice([0.0, 2 * SEGMENT_FLOPS], graph.n)
    label = merge_segments(graph.edges, parts_of(device, stage=stage, work=work))
    assert is_acyclic(contract(graph, Grouping.of_labels(label)))
    for own in np.unique(label):
        assert np.unique(device[label == own]).size == 1


def test_a_piece_of_little_work_is_merged_though_others_wait_for_the_first() -> None:
    # 1 and 2 follow 0 and are waited for by the other device, one each.
    edges = np.array([[0, 0, 1, 2], [1, 2, 3, 4]], np.int32)
    device, stage = np.array([0, 0, 0, 1, 1], np.int32), np.array([0, 0, 0, 1, 2], np.int32)
    work = np.array([2.0, 0.5, 2.0, 2.0, 2.0]) * SEGMENT_FLOPS
    one = merge_segments(edges, parts_of(device, stage=stage, work=work))
    assert (one == one[0]).tolist() == [True, True, False, False, False]
    apart = merge_segments(edges, parts_of(device, stage=np.arange(5), work=work))
    assert len(set(apart.tolist())) == 5


def parts_of(device: Int32, *, stage: Int32 | Int64, work: Float64 | float) -> SegmentParts:
    """Return pieces that are all looked at."""
    each = np.broadcast_to(work, device.shape).astype(np.float64)
    return SegmentParts(device, np.ones(device.size, bool), stage.astype(np.int32), each)
