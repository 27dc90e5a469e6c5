"""Sub-graphs as walks count them against the plain reference, on networks whose branches make cycles likely."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.devices import CostTable, DeviceSpec, Topology
from pipeline.core.graph import Graph, Grouping, leaders
from pipeline.core.placement import Placement
from pipeline.core.simulation import Moves
from pipeline.core.stages import Subject
from runtime.simulators.sequential import subgraphs
from runtime.simulators.sequential.sequential import Sequential, SequentialEvaluator
from tests import plain_subgraphs
from tests.property.test_simulator_walks import assert_equal_but_for_refusals
from tests.slow import slow_but
from tests.strategies import graph_of

LAUNCH_S = (1.0, 2.0**10, 2.0**20)  # counts below 1,024 can be read off their sum


class Network:
    """A network that is put together operation by operation, each in a group."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.types: list[str] = []
        self.edges: set[tuple[int, int]] = set()
        self.group: list[int] = []

    def add(self, kind: str, inputs: list[int], *, apart: bool = True) -> int:
        """Add an operation, to a new group or to that of its first input."""
        self.edges |= {(a, len(self.types)) for a in inputs}
        self.types.append(kind)
        self.group.append(len(self.types) if apart or not inputs else self.group[inputs[0]])
        return len(self.types) - 1

    def weight(self) -> int:
        """Add a Constant, perhaps with its Convert, perhaps one that was there before."""
        known = [i for i, kind in enumerate(self.types) if kind in ("Constant", "Convert")]
        if known and self.rng.random() < 0.1:
            return int(self.rng.choice(known))
        constant = self.add("Constant", [])
        return self.add("Convert", [constant], apart=False) if self.rng.random() < 0.7 else constant

    def layer(self, x: int) -> int:
        """Add a convolution, and perhaps what follows it, mostly in one group."""
        x = self.add("MatMul", [x, self.weight()])
        for kind in ("Add", "Relu")[: self.rng.integers(0, 3)]:
            inputs = [x] if kind == "Relu" else [x, self.weight()]
            x = self.add(kind, inputs, apart=bool(self.rng.random() < 0.2))
        return x


def branching(seed: int) -> tuple[Graph, Grouping, np.random.Generator]:
    """Return a network of blocks of several branches each, and what is placed together."""
    rng = np.random.default_rng(seed)
    net = Network(rng)
    x = net.layer(net.add("Parameter", []))
    for _ in range(rng.integers(2, 5)):
        ends = [x] * int(rng.random() < 0.3)
        for _ in range(rng.integers(1, 4)):
            y = x
            for _ in range(rng.integers(1, 4)):
                y = net.layer(y)
            ends.append(y)
        x = net.add("Add", ends) if len(set(ends)) > 1 else net.layer(ends[0])
    net.add("Result", [x])
    graph = graph_of(len(net.types), net.edges, types=net.types)
    return graph, Grouping.of_labels(np.array(net.group)), rng


def launches_only(graph: Graph, grouping: Grouping, p: int) -> SequentialEvaluator:
    """Return a simulator in which nothing but launches takes time."""
    devices = tuple(DeviceSpec(f"D{d}", "X", "X") for d in range(p))
    topology = Topology.uniform(devices, bytes_per_s=math.inf, latency_s=0.0)
    costs = CostTable(graph.names, topology.names, np.zeros((graph.n, p)), np.array(LAUNCH_S[:p]), ("given",) * p)
    return Sequential().bind(Subject(None, graph, grouping, topology, costs, 0))


def moves_of(rng: np.random.Generator, k: int, p: int, r: int) -> Moves:
    """Return moves of one to four nodes, a third of which are refused wherever they lead."""
    size = rng.integers(1, min(k, 4) + 1, r)
    node = np.concatenate([rng.choice(k, s, replace=False) for s in size])
    threshold_s = rng.choice([-math.inf, 0.0, math.inf], r)
    none = np.full(r, -1)
    return Moves(np.r_[0, np.cumsum(size)], node, rng.integers(0, p, r), none, np.zeros(r), threshold_s)


@pytest.mark.parametrize("p", [2, 3])
@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**32), mixed=st.booleans())
def test_a_walk_counts_sub_graphs_as_the_reference_does(p: int, seed: int, mixed: bool) -> None:
    check_walk(seed, p, moved=40, mixed=mixed)


@pytest.mark.parametrize("remembered", [2, subgraphs.REMEMBERED])
@pytest.mark.parametrize("p", [2, 3])
@pytest.mark.parametrize("seed", slow_but(range(4), quick=1))
def test_a_long_walk_counts_as_the_reference_does_however_little_it_remembers(
    seed: int, p: int, remembered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subgraphs, "REMEMBERED", remembered)
    check_walk(seed, p, moved=400, mixed=True)


def check_walk(seed: int, p: int, *, moved: int, mixed: bool) -> None:
    """Compare the seconds of a walk's moves, and its end, with those of plain code."""
    graph, grouping, rng = branching(seed)
    plain, node = plain_subgraphs.Cutter.of(graph), grouping.group[leaders(graph)]
    moves = moves_of(rng, grouping.k, p, moved)
    start = rng.integers(0, p, grouping.k) if mixed else np.zeros(grouping.k, np.int64)
    simulator = launches_only(graph, grouping, p)
    placement = Placement(start, simulator._nodes.devices)
    local_search = simulator.local_search(placement, moves, allowed=np.ones((grouping.k, p), bool), limit=10**6)
    for i in range(moves.r):
        changed = moves.applied(i, placement)
        if local_search.tried[i]:
            counts = plain.count_by_device(changed.device[node], p)
            assert local_search.value_s[i] == float(counts @ np.array(LAUNCH_S[:p]))
        placement = changed if local_search.taken[i] else placement
    assert local_search.end.key() == placement.key()


@settings(deadline=None)
@given(seed=st.integers(0, 2**32), p=st.integers(2, 3))
def test_a_bounded_walk_stops_counting_only_where_moves_are_refused(seed: int, p: int) -> None:
    graph, grouping, rng = branching(seed)
    moves = moves_of(rng, grouping.k, p, 200)
    moves = replace(moves, threshold_s=rng.choice([-1.0, 0.0, 1.0, 2.0, 2.0**10, 2.0**11], moves.r))
    placement = Placement(rng.integers(0, p, grouping.k), tuple(f"D{d}" for d in range(p)))
    simulator, allowed = launches_only(graph, grouping, p), np.ones((grouping.k, p), bool)
    quick = simulator.local_search(placement, replace(moves, bounded=True), allowed=allowed, limit=10**6)
    whole = launches_only(graph, grouping, p).local_search(placement, moves, allowed=allowed, limit=10**6)
    assert_equal_but_for_refusals(quick, whole)
    again = simulator.local_search(
        placement, moves, allowed=allowed, limit=10**6
    )  # what was given up is not remembered
    assert again.value_s.tobytes() == whole.value_s.tobytes()


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**32))
def test_what_a_simulator_remembers_changes_no_count(seed: int) -> None:
    graph, grouping, rng = branching(seed)
    device = rng.integers(0, 2, (6, grouping.k)).astype(np.int32)
    simulator = launches_only(graph, grouping, 2)
    first = simulator.simulate(device).value_s
    assert first.tolist() == simulator.simulate(device).value_s.tolist()
    again = [launches_only(graph, grouping, 2).simulate(row[None]).value_s[0] for row in device]
    assert first.tolist() == again


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**32))
def test_sub_graphs_of_merged_operations_are_split_as_the_reference_splits_them(seed: int) -> None:
    graph, grouping, rng = branching(seed)
    node = grouping.group[leaders(graph)]
    device = rng.integers(0, 2, grouping.k).astype(np.int32)[node]
    cutter = launches_only(graph, grouping, 2)._cutter
    assert cutter.split(device).group.tolist() == plain_subgraphs.Cutter.of(graph).split(device).group.tolist()


def test_the_networks_drawn_have_cycles_that_are_broken_in_every_way() -> None:
    more = 0
    for seed in range(20):
        graph, grouping, rng = branching(seed)
        device = rng.integers(0, 2, grouping.k).astype(np.int32)[grouping.group[leaders(graph)]]
        producer, consumer = graph.edges
        joined = (device[producer] == device[consumer]).nonzero()[0]
        label = np.arange(graph.n)
        for _, e in pairwise(np.r_[-1, joined, joined]):
            label[label == label[producer[e]]] = label[consumer[e]]
        more += plain_subgraphs.Cutter.of(graph).split(device).k > np.unique(label).size
    assert more >= 10
