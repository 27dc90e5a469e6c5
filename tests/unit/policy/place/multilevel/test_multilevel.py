"""Search over groups: coarse clusters refined."""

from __future__ import annotations

import dataclasses
import itertools
import math
import threading
import time
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.core.errors import UsageError
from pipeline.core.graph import Graph, Grouping, contract, is_acyclic
from pipeline.core.measurement import Prediction, seconds_of
from pipeline.core.placement import Placement
from pipeline.core.problem import Budget, Problem
from pipeline.core.simulation import Moves
from pipeline.core.stages import Candidate, Subject
from pipeline.core.tensors import INFERRED
from pipeline.core.workload import Tags
from pipeline.offline.scenario import Scenario, load
from pipeline.shared.graphs import edge_depths
from policy.place.base.groups import Groups
from policy.place.base.hierarchy import COUNTS, GROWTH, Level, hierarchy, work_of
from policy.place.base.history import History
from policy.place.base.matching import CROWD, LIGHT, MatchingWeights, Neighbours, clusters, quotient
from policy.place.base.search import Search
from policy.place.local.spilling import held_at_peaks, spill_blocks
from policy.place.multilevel import multilevel
from policy.place.multilevel.coarse_search import CoarseSearch, cells_of, coarse_instance_of
from policy.place.multilevel.estimate import CoarseTrials, estimate_s, local_search
from policy.place.multilevel.layers import layers_of, spread
from policy.place.multilevel.moves import LevelClusters, draw
from policy.place.multilevel.multilevel import Multilevel, PartClock, _try
from policy.place.multilevel.starts import contiguous, earliest, small_cut, split, starts
from policy.place.rules.expert import Expert
from runtime.simulators.dataflow.listsched import ListSched, ListSchedEvaluator
from tests.strategies import graphs
from tests.toys import PROBLEMS, ToyEvaluator, chain_problem, ignore_progress, toy_graph, toy_problem, toy_topology

WIDE = 40  # operations that run before the first one that reads them


def best_s(placer: Multilevel, problem: Problem, evaluations: int, seed: int = 0) -> float:
    evaluator = ToyEvaluator.of(problem)
    answer = placer.place(problem, evaluator, Budget(evaluations), seed=seed, progress=ignore_progress)
    return evaluator.value_s(answer.best.placement)


def random_graph(n: int, *, seed: int = 0, ties: bool = False) -> Graph:
    """Return a graph in which every operation reads up to two of the thirty before it."""
    rng = np.random.default_rng(seed)
    consumer = np.repeat(np.arange(1, n), 2)
    producer = np.maximum(consumer - rng.integers(1, 31, consumer.size), 0)
    edges = sorted(set(zip(producer.tolist(), consumer.tolist(), strict=True)))
    colocate = np.where(rng.random(n) < 0.1, rng.integers(0, max(n // 10, 1), n), -1) if ties else np.full(n, -1)
    graph = toy_graph(n, edges, weight_bytes=rng.integers(0, 9, n).tolist(), colocate=colocate.tolist())
    return dataclasses.replace(graph, edge_bytes=rng.integers(0, 40, graph.m), out_bytes=np.full(n, 40), reads=INFERRED)


def random_problem(n: int, p: int = 3, *, seed: int = 0, ties: bool = False, memory_bytes: int = 0) -> Problem:
    rng = np.random.default_rng(seed)
    op_s = rng.random((n, p)) * 1e-3
    op_s[rng.random((n, p)) < 0.05] = np.inf
    op_s[np.isinf(op_s).all(axis=1)] = 1e-3
    topology = toy_topology(p, memory_bytes=memory_bytes)
    return lean(toy_problem(random_graph(n, seed=seed, ties=ties), op_s, topology=topology))


def lean(problem: Problem) -> Problem:
    return dataclasses.replace(problem, policy=None)


def unrolled(layers: int, steps: int) -> tuple[Problem, Tags]:
    """Return a net of layers unrolled in time; a weight per layer, read at every step. Sends 4 bytes per edge."""
    number = {("w", layer): layer for layer in range(layers)}
    layer_of, step_of = list(range(layers)), [-1] * layers
    edges = []
    for t in range(steps):
        for layer in range(layers):
            for part in range(4):
                i = number[layer, t, part] = len(layer_of)
                layer_of.append(layer)
                step_of.append(t)
                before = {0: [("w", layer), (layer - 1, t, 3), (layer, t - 1, 3)]}.get(part, [(layer, t, part - 1)])
                edges += [(number[b], i) for b in before if b in number]
    n = len(layer_of)
    graph = toy_graph(n, edges, weight_bytes=[100 if i < layers else 0 for i in range(n)])
    op_s = np.full((n, 2), 1e-3)
    op_s[:layers] = 0
    op_s[layers::4] = 10e-3  # what reads the weights
    return lean(toy_problem(graph, op_s)), Tags(np.array(layer_of), np.array(step_of))


def wide_chains() -> tuple[Problem, ListSchedEvaluator]:
    """Return two long operations, then WIDE short ones, of which each makes 10 bytes for an operation of its own.

    A device runs all producers before the first of the readers, so that it must hold everything its producers make:
    twice of what it can where the three devices divide the time.
    """
    n = 2 + 2 * WIDE
    edges = [(0, 1), *((1, 2 + i) for i in range(WIDE)), *((2 + i, 2 + WIDE + i) for i in range(WIDE))]
    graph = toy_graph(n, edges, weight_bytes=[0] * n)
    out_bytes = np.where((np.arange(n) > 1) & (np.arange(n) < 2 + WIDE), 10, 0)
    graph = dataclasses.replace(graph, out_bytes=out_bytes, edge_bytes=out_bytes[graph.edges[0]], reads=INFERRED)
    op_s = np.full((n, 3), 1e-3)
    op_s[:2] *= 2 * WIDE
    problem = lean(toy_problem(graph, op_s, topology=toy_topology(3, memory_bytes=10 * WIDE // 2)))
    subject = Subject(None, graph, problem.grouping, problem.topology, problem.costs, 0)
    return problem, ListSched().bind(subject)


@pytest.mark.parametrize("toy", sorted(PROBLEMS))
def test_it_finds_the_optimum_of_the_toy_problems(toy: str):
    problem, optimum_s = PROBLEMS[toy][0](), PROBLEMS[toy][1]
    assert best_s(Multilevel(), lean(problem), 800) == pytest.approx(optimum_s)


def test_priorities_are_drawn_where_devices_can_be_told_an_order_and_only_there():
    for ordered in (True, False):
        problem = dataclasses.replace(lean(chain_problem()), ordered=ordered)
        evaluator = ToyEvaluator.of(problem)
        Multilevel().place(problem, evaluator, Budget(40), seed=0, progress=ignore_progress)
        assert any(p.priority is not None for p in evaluator.asked) == ordered


@pytest.mark.parametrize(
    "build",
    [
        lambda: Multilevel(near=2),
        lambda: Multilevel(patience=0),
        lambda: Multilevel(workers=0),
    ],
)
def test_parameters_that_make_no_sense_are_refused(build):
    with pytest.raises(UsageError):
        build()


# Groups


def test_units_move_away_from_full_devices_the_heaviest_first():
    graph = toy_graph(4, [(0, 1), (1, 2), (2, 3)], weight_bytes=[3, 6, 5, 0])
    groups = Groups.of(lean(toy_problem(graph, np.ones((4, 2)), topology=toy_topology(memory_bytes=8))))
    assert groups.repaired(np.zeros(4, np.int32)).tolist() == [0, 1, 0, 0]
    fits = np.array([0, 1, 0, 1], np.int32)
    assert groups.repaired(fits) is fits


@given(graph=graphs(min_n=1))
@settings(max_examples=30)
def test_depth_is_the_longest_path_that_leads_to_an_operation(graph: Graph):
    expected = np.zeros(graph.n, int)
    for _ in range(graph.n):  # relaxed as often as a path can be long
        for u, v in graph.edges.T.tolist():
            expected[v] = max(expected[v], expected[u] + 1)
    assert edge_depths(graph).tolist() == expected.tolist()


# Coarsening


def level_of(problem: Problem) -> Level:
    return hierarchy(problem, least=problem.graph.n)[0]


@given(seed=st.integers(0, 2**16), ties=st.booleans())
@example(seed=139, ties=True)  # two operations of a constraint that no device executes both of
@settings(max_examples=20, deadline=None)
def test_a_hierarchy_covers_all_operations_and_every_level_is_coarser_and_allowed(seed: int, ties: bool):
    problem = random_problem(120, seed=seed, ties=ties)
    levels = hierarchy(problem, least=4)
    colocate = problem.graph.colocate
    sizes = [level.k for level in levels]
    assert sizes == sorted(set(sizes), reverse=True)
    for fine, coarse in pairwise(levels):
        assert len(set(zip(fine.groups.grouping.group, coarse.groups.grouping.group, strict=True))) == fine.k  # nested
    for level in levels:
        group = level.groups.grouping.group
        assert level.groups.allowed.any(axis=1).all()
        assert (level.groups.allowed[group] <= problem.allowed).all()
        constraints = [colocate == t for t in set(colocate[colocate >= 0].tolist())]
        assert all(len(set(group[tied])) == 1 for tied in constraints if problem.allowed[tied].all(axis=0).any())
        assert level.work_s.sum() == pytest.approx(levels[0].work_s.sum())
        assert level.groups.held_bytes.sum() == problem.graph.weight_bytes.sum()
    depth, work = edge_depths(problem.graph), work_of(problem)
    for c in range(levels[0].k):
        members = np.flatnonzero(levels[0].groups.grouping.group == c)
        assert levels[0].first[c] == depth[members[work[members] >= COUNTS * work[members].max()]].min()


@given(seed=st.integers(0, 2**16), memory_bytes=st.sampled_from([0, 200]))
@settings(max_examples=10, deadline=None)
def test_no_cluster_outgrows_its_level(seed: int, memory_bytes: int):
    levels = hierarchy(random_problem(150, seed=seed, memory_bytes=memory_bytes), least=4)
    for fine, coarse in pairwise(levels):
        cap_s = GROWTH * fine.work_s.sum() / fine.k
        largest = fine.work_s.max()
        assert coarse.work_s.max() <= max(cap_s, largest) + (1 + LIGHT) * cap_s
        if memory_bytes:
            assert coarse.groups.held_bytes.max() <= max(memory_bytes // 4, fine.groups.held_bytes.max())


def test_the_same_graph_gives_the_same_levels():
    a, b = (hierarchy(random_problem(200), least=4) for _ in range(2))
    assert [x.groups.grouping.group.tolist() for x in a] == [x.groups.grouping.group.tolist() for x in b]


def reference_clusters(
    tensors: Neighbours, weights: MatchingWeights, order: list[int], cap_s: float, cap_bytes: int
) -> list:
    """Return the clusters as sets of nodes, grown as `clusters` says, by plain Python."""
    of = {i: frozenset([i]) for i in order}
    floor = max(1e-3 * weights.work_s.sum() / len(order), 1e-30)
    seed_work = {i: weights.work_s[i] for i in order}  # of the cluster's first node
    head = {i: i for i in order}
    for u in order:
        if len(of[u]) > 1:
            continue
        best, best_score = None, 0.0
        for e in range(tensors.ptr[u], tensors.ptr[u + 1]):
            other = of[tensors.neighbour[e]]
            work, held = (sum(w[i] for i in other) for w in (weights.work_s, weights.held))
            allowed = weights.allowed[list(other)].all(axis=0)
            both = int((allowed & weights.allowed[u]).sum())
            either = int((allowed | weights.allowed[u]).sum())
            if weights.held[u] and held and weights.held[u] + held > cap_bytes:
                continue
            c = head[next(iter(other))]
            light = weights.work_s[u] <= LIGHT * cap_s and work - seed_work[c] <= cap_s
            if not light and (len(other) >= CROWD or weights.work_s[u] + work > cap_s):
                continue
            score = tensors.transfer_s[e] * both / either / (weights.work_s[u] + work + floor)
            if both and score > best_score:
                best, best_score = other, score
        if best is not None:
            c = head[next(iter(best))]
            for i in best | {u}:
                of[i] = best | {u}
                head[i] = c
    return sorted({tuple(sorted(c)) for c in of.values()})


@given(seed=st.integers(0, 2**16))
@settings(max_examples=20, deadline=None)
def test_clusters_grow_as_plain_python_grows_them(seed: int):
    level = level_of(random_problem(40, seed=seed))
    order = np.argsort(level.work_s, kind="stable")
    # Work in whole powers of two, so that sums are exact in any order.
    work = np.exp2(np.random.default_rng(seed).integers(-9, 0, level.k))
    weights = MatchingWeights(work, level.groups.held_bytes, level.groups.allowed, level.layer)
    label = clusters(level.tensors, weights, order, 0.5, 12, 1)
    found = sorted(tuple(np.flatnonzero(label == c).tolist()) for c in set(label.tolist()))
    assert found == reference_clusters(level.tensors, weights, order.tolist(), 0.5, 12)


@given(seed=st.integers(0, 2**16))
@settings(max_examples=20, deadline=None)
def test_a_quotient_adds_up_transfers_between_clusters(seed: int):
    level = level_of(random_problem(30, seed=seed))
    label = np.random.default_rng(seed).integers(0, 5, level.k).astype(np.int32)
    dense = np.zeros((5, 5))
    for i in range(level.k):
        for e in range(level.tensors.ptr[i], level.tensors.ptr[i + 1]):
            dense[label[i], label[level.tensors.neighbour[e]]] += level.tensors.transfer_s[e]
    np.fill_diagonal(dense, 0)
    found = quotient(level.tensors, label, 5)
    again = np.zeros((5, 5))
    again[np.repeat(np.arange(5), np.diff(found.ptr)), found.neighbour] += found.transfer_s
    assert again == pytest.approx(dense)
    assert np.unique(np.repeat(np.arange(5), np.diff(found.ptr)) * 5 + found.neighbour).size == found.neighbour.size


# Layers


def test_layers_are_cut_by_time_into_parts_of_equal_work():
    problem, tags = unrolled(3, 8)
    layers = layers_of(hierarchy(problem.on(tags=tags), least=4))
    assert layers is not None
    assert layers.layer.tolist() == tags.layer.tolist()
    part = layers.chunk(4)
    assert part.tolist() == [-1 if t < 0 else t // 2 for t in tags.step.tolist()]
    assert layers.level(4).k == 3 * (4 + 1)


def test_layers_are_told_by_the_weights_that_operations_share():
    problem, tags = unrolled(3, 40)
    layers = layers_of(hierarchy(problem, least=4))
    assert layers is not None
    assert layers.count == 3
    work = problem.costs.op_s[:, 0]
    assert work[layers.layer == tags.layer].sum() > 0.85 * work.sum()
    assert (np.diff(layers.when[3::12]) > 0).all()  # from step to step


def test_a_graph_without_shared_weights_has_no_layers():
    assert layers_of(hierarchy(lean(chain_problem()), least=2)) is None


def test_layers_spread_along_the_most_expensive_tensors():
    #  0 (layer 7) -2- 1 -1- 2 -3- 3 (layer 5);  4 alone
    tensors = Neighbours(
        np.array([0, 1, 3, 5, 6, 6]), np.array([1, 0, 2, 1, 3, 2], np.int32), np.array([2.0, 2.0, 1.0, 1.0, 3.0, 3.0])
    )
    assert spread(tensors, np.array([7, -1, -1, 5, -1], np.int32), 9).tolist() == [7, 7, 5, 5, -1]


# Starts


def test_work_is_split_in_order_by_the_devices_speed():
    assert contiguous(np.ones(6), np.array([0.5, 0.5])).tolist() == [0, 0, 0, 1, 1, 1]
    assert contiguous(np.ones(6), np.array([1 / 3, 2 / 3])).tolist() == [0, 0, 1, 1, 1, 1]


def test_the_earliest_finish_weighs_waiting_against_sending():
    # Two equal consumers of one producer, 1 s each; sending takes 0.25 s per tensor and reader.
    graph = toy_graph(3, [(0, 1), (0, 2)])
    for tensor_s, devices in ((0.5, [0, 0, 1]), (8.0, [0, 0, 0])):
        topology = dataclasses.replace(toy_topology(2), link_latency_s=np.array([[0, tensor_s], [tensor_s, 0]]))
        level = level_of(lean(toy_problem(graph, np.ones((3, 2)), topology=topology)))
        assert earliest(level).tolist() == devices


@given(seed=st.integers(0, 2**16))
@settings(max_examples=15, deadline=None)
def test_small_cuts_never_grow_the_cut_and_keep_to_allowed_devices(seed: int):
    problem = random_problem(60, seed=seed)
    level = level_of(problem)
    even = np.full(3, 1 / 3)
    device = np.where(level.groups.allowed, np.random.default_rng(seed).random((level.k, 3)), -1).argmax(axis=1)

    def cut_s(device: np.ndarray) -> float:
        source = np.repeat(np.arange(level.k), np.diff(level.tensors.ptr))
        return float(level.tensors.transfer_s[device[source] != device[level.tensors.neighbour]].sum())

    changed = small_cut(level, device.astype(np.int32), even)
    assert cut_s(changed) <= cut_s(device) + 1e-12
    assert level.groups.allowed[np.arange(level.k), changed].all()


@pytest.mark.parametrize("tagged", [True, False])
def test_starts_keep_to_allowed_devices_memory_and_ties(tagged: bool):
    problem, tags = unrolled(4, 16)
    topology = toy_topology(2, memory_bytes=200)
    problem = problem.on(topology=topology, tags=tags if tagged else None)
    levels = hierarchy(problem, least=2)
    layers = layers_of(levels)
    made = list(starts(list(levels), layers))
    assert made
    assert all(problem.fits(placement) for placement in made)
    assert np.array_equal(split(levels[0], np.array([1.0, 0.0])), np.zeros(levels[0].k))


# The sketch


def sketch_and_simulator(seed: int, label: np.ndarray | None = None):
    """Return a problem of 40 operations, its sketch, and the simulator it imitates."""
    problem = random_problem(40, seed=seed)
    rng = np.random.default_rng(seed)
    op_s = rng.uniform(0.1, 1, (40, 3)) * 1e-3
    costs = dataclasses.replace(problem.costs, op_s=op_s)
    graph = dataclasses.replace(problem.graph, edge_bytes=rng.integers(0, 4, problem.graph.m), reads=INFERRED)
    problem = problem.on(costs=costs, allowed=costs.supported, graph=graph)
    found, cells = coarse_instance_of(problem, op_s, np.arange(40, dtype=np.int32) if label is None else label)
    subject = Subject(None, graph, Grouping.identity(40), problem.topology, costs, 0)
    return problem, found, cells, ListSched(level="T2").bind(subject)


def test_two_cells_that_begin_with_sources_do_not_wait_for_each_other():
    graph = toy_graph(4, [(0, 2), (0, 3), (1, 2), (1, 3)])
    cells = cells_of(graph, np.array([0, 1, 1, 0], np.int32))
    assert is_acyclic(contract(graph, cells))


@given(seed=st.integers(0, 2**16))
@settings(max_examples=20, deadline=None)
def test_a_sketch_of_single_operations_says_what_the_simulator_says(seed: int):
    _, found, cells, simulator = sketch_and_simulator(seed)
    assert cells.k == 40
    device = np.random.default_rng(seed).integers(0, 3, (5, 40)).astype(np.int32)
    first = np.unique(cells.group, return_index=True)[1]
    estimated = [estimate_s(found, d[first], np.inf) for d in device]
    assert estimated == pytest.approx(simulator.simulate(device).value_s.tolist(), rel=1e-12)


@pytest.mark.parametrize(
    ("edges", "size", "expected_ms"),
    [
        ([(0, 1), (0, 2)], 4, 2.75),  # A sends to B until 1.25, there at 1.5, then to C until 1.5, there at 1.75
        ([(0, 2), (1, 2)], 4, 2.75),  # C takes from A until 1.25, then from B until 1.5, there at 1.75
        ([(0, 1), (0, 2)], 0, 2.25),  # nothing to send, so no link is taken
    ],
)
def test_devices_send_and_take_one_tensor_at_a_time(edges: list[tuple[int, int]], size: int, expected_ms: float):
    graph = toy_graph(3, edges)
    graph = dataclasses.replace(graph, edge_bytes=np.full(2, size), reads=INFERRED)
    problem = lean(toy_problem(graph, np.full((3, 3), 1e-3), topology=toy_topology(3)))
    found, _ = coarse_instance_of(problem, np.full((3, 3), 1e-3), np.arange(3, dtype=np.int32))
    assert estimate_s(found, np.arange(3, dtype=np.int32), np.inf) * 1e3 == pytest.approx(expected_ms)


@given(graph=graphs(min_n=1, max_n=14), labels=st.integers(1, 4), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_cells_keep_labels_apart_and_the_graph_acyclic(graph: Graph, labels: int, seed: int):
    label = np.random.default_rng(seed).integers(0, labels, graph.n).astype(np.int32)
    cells = cells_of(graph, label)
    assert is_acyclic(contract(graph, cells))
    assert all(len(set(label[cells.group == c].tolist())) == 1 for c in range(cells.k))


def test_cells_join_chains_and_leaves_of_one_label():
    graph = toy_graph(6, [(0, 1), (1, 2), (2, 3), (1, 4), (3, 5)])
    cells = cells_of(graph, np.array([0, 0, 0, 1, 0, 1], np.int32))
    assert cells.group.tolist() == [0, 0, 0, 1, 0, 1]


@given(seed=st.integers(0, 2**16))
@settings(max_examples=20, deadline=None)
def test_an_estimate_beyond_the_limit_is_given_up_and_no_other(seed: int):
    _, found, cells, _ = sketch_and_simulator(seed, np.arange(40, dtype=np.int32) // 3)
    device = np.random.default_rng(seed).integers(0, 3, cells.k).astype(np.int32)
    value_s = estimate_s(found, device, np.inf)
    assert estimate_s(found, device, value_s * 1.001) == value_s
    assert estimate_s(found, device, value_s * 0.8) in (math.inf, value_s)
    assert estimate_s(found, device, 0.0) == math.inf


@given(seed=st.integers(0, 2**16))
@settings(max_examples=10, deadline=None)
def test_a_walk_in_the_sketch_takes_what_plain_python_takes(seed: int):
    problem, found, cells, _ = sketch_and_simulator(seed)
    found = found._replace(room=np.full(3, int(found.held.sum()) // 2))
    rng = np.random.default_rng(seed)
    device = (np.arange(cells.k) % 3).astype(np.int32)
    levels = hierarchy(problem, least=4)
    moves = draw([LevelClusters.of(level, np.arange(40, dtype=np.int32)) for level in levels[:3]], 30, 3, 0.5, rng)
    allowed = rng.random((40, 3)) < 0.9
    trials = CoarseTrials(*moves, rng.exponential(1e-4, 30), allowed)
    placement, plan_s = device.copy(), estimate_s(found, device, np.inf)
    best_s = plan_s
    for i in range(30):
        cell = moves.item[moves.ptr[i] : moves.ptr[i + 1]]
        goal = placement[moves.like[i]] if moves.like[i] >= 0 else moves.device[i]
        moved = placement.copy()
        moved[cell] = goal
        held = np.bincount(moved, weights=found.held, minlength=3)
        grown = held[goal] > np.bincount(placement, weights=found.held, minlength=3)[goal]
        if not allowed[cell, goal].all() or (grown and held[goal] > found.room[goal]):
            continue
        value_s = estimate_s(found, moved, np.inf)
        if value_s <= plan_s + trials.threshold_s[i]:
            placement, plan_s = moved, value_s
            best_s = min(best_s, value_s)
    end, end_s, _, met_s = local_search(found, trials, device)
    assert end.tolist() == placement.tolist()
    assert [end_s, met_s] == [plan_s, best_s]


def test_a_simulators_placements_are_refined_in_the_sketch_first():
    problem, _, _, simulator = sketch_and_simulator(1)
    single_s = simulator.simulate(np.repeat(np.arange(3), 40).reshape(3, 40).astype(np.int32)).value_s.min()
    found = [
        Multilevel(sketched=share).place(problem, simulator, Budget(200), seed=0, progress=ignore_progress).best.result
        for share in (0.7, 0.0)
    ]
    assert all(isinstance(result, Prediction) and result.value_s < single_s for result in found)


# Refining


def test_a_move_takes_a_whole_cluster_to_a_neighbour_or_anywhere():
    level = hierarchy(random_problem(80), least=4)[2]
    clusters = LevelClusters.of(level, np.arange(80, dtype=np.int32))
    group, tensors = level.groups.grouping.group, level.tensors
    moves = draw([clusters], 60, 3, 0.5, np.random.default_rng(0))
    assert 10 < (moves.like >= 0).sum() < 50
    for i in range(60):
        members = moves.item[moves.ptr[i] : moves.ptr[i + 1]]
        cluster = group[members[0]]
        assert sorted(members.tolist()) == np.flatnonzero(group == cluster).tolist()
        near = tensors.neighbour[tensors.ptr[cluster] : tensors.ptr[cluster + 1]]
        assert 0 <= moves.device[i] < 3 if moves.like[i] < 0 else group[moves.like[i]] in near


def test_refining_ends_no_worse_than_every_start():
    problem = random_problem(300, ties=True)
    evaluator = ToyEvaluator.of(problem)
    found = Multilevel().place(problem, evaluator, Budget(300), seed=0, progress=ignore_progress)
    levels = hierarchy(problem, least=3)
    begun = [evaluator.value_s(p) for p in starts([levels[0], levels[-1]], layers_of(levels))]
    assert evaluator.value_s(found.best.placement) <= min(begun)


@pytest.mark.parametrize(("budget", "seeds"), [(Budget(200, seconds=600.0), 2), (Budget(200), 1)])
def test_workers_refine_with_seeds_of_their_own_where_time_is_limited(
    budget: Budget, seeds: int, monkeypatch: pytest.MonkeyPatch
):
    problem, _, _, simulator = sketch_and_simulator(1)
    drawn = []  # (generator, thread, devices); one thread may come to both parts

    def noted(*arguments: Any) -> Moves:
        moves = draw(*arguments)
        drawn.append((arguments[-1], threading.get_ident(), moves.device.tobytes()))
        return moves

    monkeypatch.setattr(multilevel, "draw", noted)
    answer = Multilevel(workers=2, sketched=0).place(problem, simulator, budget, seed=0, progress=ignore_progress)
    first = {id(generator): device for generator, _, device in reversed(drawn)}
    assert len(set(first.values())) >= seeds
    assert len({thread for _, thread, _ in drawn if thread != threading.get_ident()}) >= seeds - 1
    assert answer.evaluations <= 200
    assert (
        answer.value_s
        <= Multilevel(sketched=0).place(problem, simulator, Budget(5), seed=0, progress=ignore_progress).value_s
    )


@pytest.mark.parametrize("evaluations", [8, 24])
def test_multilevel_is_no_worse_than_the_layer_wise_split(evaluations: int):
    case = load(Scenario("zoo:rnnlm2?steps=6", "p100x8"))
    split_s, found_s = (
        placer.place(case.problem, case.simulator(), Budget(evaluations), seed=0, progress=ignore_progress).value_s
        for placer in (Expert(), Multilevel())
    )
    assert found_s <= split_s


def test_a_rule_whose_placement_does_not_fit_says_what_is_lacking():
    problem, evaluator = wide_chains()
    start = Placement(np.arange(problem.graph.n, dtype=np.int32) % 3, problem.topology.names)
    answer = Expert().place(
        dataclasses.replace(problem, start=start), evaluator, Budget(100), seed=0, progress=ignore_progress
    )
    assert answer.best.found_by == "start"
    assert math.isinf(answer.own_s)
    lacking = "C lacks 200 B of memory"
    assert answer.notes == (f"The answer is the start, for no placement of expert's own can be used: {lacking}.",)


def test_a_layer_wise_split_that_does_not_fit_is_brought_within_memory():
    problem, evaluator = wide_chains()
    search = Search(problem, evaluator, Budget(100), ignore_progress)
    Expert().run(search, seed=0)
    assert search.best is None  # all that the third device makes is there before anything reads it
    spill_blocks(search)
    assert search.best is not None
    assert search.simulate(search.best.device[None]).over_bytes.tolist() == [0]
    spent = search.spent
    spill_blocks(search)
    assert search.spent == spent  # once per search


def test_bytes_at_the_peak_are_those_of_outputs_that_wait_together():
    problem, evaluator = wide_chains()
    timeline = evaluator.timeline(Placement(np.zeros(problem.graph.n, np.int32), problem.topology.names))
    held = held_at_peaks(problem, timeline)
    assert held.tolist() == [0, 0, *[10] * WIDE, *[0] * WIDE]


def test_a_local_search_has_no_more_moves_than_its_time_allows(monkeypatch: pytest.MonkeyPatch):
    now = itertools.count(0.0, 0.5)  # seconds, half of one at every look
    monkeypatch.setattr(multilevel, "time", SimpleNamespace(monotonic=lambda: next(now)))
    clock = PartClock(1.6, 10**9)
    clock.tick(1, 1.0)  # a move a second
    assert clock.moves(10**6) == 1
    assert clock.moves(10**6) == 0


def test_starts_end_with_their_share_of_the_time(monkeypatch: pytest.MonkeyPatch):
    problem, _, _, simulator = sketch_and_simulator(1)
    now = itertools.count(0.0, 1.0)  # seconds, one at every look
    search = Search(problem, simulator, Budget(10**9, seconds=10**9), ignore_progress)
    monkeypatch.setattr(multilevel, "time", SimpleNamespace(monotonic=lambda: next(now)))
    search._last_s = time.monotonic() + 40.0
    begun = (Placement(np.full(problem.graph.n, i % 3, np.int32), problem.topology.names) for i in itertools.count())
    _try(search, begun, CoarseSearch.of(search, list(hierarchy(problem, least=3))))
    assert next(now) < 40


def test_a_device_like_one_that_failed_alone_is_not_asked_about():
    problem, evaluator = wide_chains()
    assert Search(problem, evaluator, Budget(100), ignore_progress).spent == 1


def test_of_a_very_large_graph_few_placements_are_kept():
    history = History(10**6, ("A", "B"))
    for i in range(50):
        device = np.zeros(10**6, np.int32)
        device[i] = 1
        placement = Placement(device, ("A", "B"))
        history.note(placement.digest(), Candidate(placement, Prediction(1.0 + abs(i - 30)), "toy"))
    values = [seconds_of(candidate.result) for candidate in history.ranked()]
    assert values == [1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0, 5.0]
    assert history.best_s == 1.0


def test_twenty_thousand_operations_are_placed_better_than_on_one_device():
    problem = random_problem(20_000, p=4)
    evaluator = ToyEvaluator.of(problem)
    search = Search(problem, evaluator, Budget(120), ignore_progress)
    single_s = search.best_s
    Multilevel().run(search, seed=0)
    assert search.spent == 120
    assert search.best_s < single_s
    assert math.isfinite(search.best_s)
    assert all(isinstance(p, Placement) and problem.fits(p) for p in evaluator.asked)
