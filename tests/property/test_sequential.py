"""The simulator against a plain evaluator that walks the graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipeline.core.devices import CostTable, DeviceSpec, Topology
from pipeline.core.graph import Graph, contract
from pipeline.core.measurement import MeasurementFailed, Prediction
from pipeline.core.placement import Placement
from pipeline.core.stages import Subject
from runtime.simulators.sequential.sequential import Sequential
from runtime.simulators.sequential.subgraphs import count_by_device, split
from tests.strategies import connected, graphs, grouped_graphs


@st.composite
def subjects(draw: st.DrawFn) -> tuple[Subject, list[Placement]]:
    """Draw a subject on one to three devices and placements of its nodes; all times are multiples of 1/16 s."""
    graph, grouping = draw(grouped_graphs(min_n=1))
    p = draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    devices = tuple(DeviceSpec(f"D{j}", "CPU", f"CPU_{j}") for j in range(p))
    apart = ~np.eye(p, dtype=bool)
    topology = Topology(
        devices,
        np.where(apart, 2.0 ** rng.integers(10, 20, (p, p)), np.inf),
        np.where(apart, rng.integers(0, 4, (p, p)) / 16, 0.0),
    )
    op_s = rng.integers(0, 64, (graph.n, p)) / 16
    op_s[rng.random((graph.n, p)) < 0.02] = np.inf
    costs = CostTable(graph.names, topology.names, op_s, rng.integers(0, 16, p) / 16, ("given",) * p)
    device = rng.integers(0, p, (4, grouping.k))
    return Subject(Path(), graph, grouping, topology, costs, 0), [Placement(d, topology.names) for d in device]


def from_constants(graph: Graph) -> list[bool]:
    """Return per operation whether all operations without inputs above it, or itself, are Constants."""
    above = connected(graph) | np.eye(graph.n, dtype=bool)
    has_input = set(graph.edges[1].tolist())
    sources = [i for i in range(graph.n) if i not in has_input]
    return [
        all(graph.type_names[graph.op_type[s]] == "Constant" for s in sources if above[s, i]) for i in range(graph.n)
    ]


def settled(graph: Graph, device: list[int]) -> list[int]:
    """Return the devices after inputs and weights went to their first consumer and results to their producer."""
    weights = from_constants(graph)
    edges = graph.edges.T.tolist()
    types = [graph.type_names[t] for t in graph.op_type]

    def home(i: int) -> int:
        readers = [b for a, b in edges if a == i]
        if (weights[i] or types[i] == "Parameter") and readers:
            return home(min(readers))
        return device[i]

    found = [home(i) for i in range(graph.n)]
    for i in range(graph.n):
        makers = [a for a, b in edges if b == i]
        if types[i] == "Result" and makers:
            found[i] = found[min(makers)]
    return found


def expected_s(subject: Subject, placement: Placement) -> float:
    """Return the latency of a placement; infinite where a device refuses an operation."""
    graph, costs, topology = subject.graph, subject.costs, subject.topology
    assert costs is not None
    chosen = [int(placement.device[g]) for g in subject.grouping.group]
    device = settled(graph, chosen)
    total = sum(float(costs.op_s[i, d]) for i, d in enumerate(chosen))
    weights = from_constants(graph)
    crossings: dict[tuple[int, int, int], int] = {}
    for a, b, tensor, size in graph.read_rows():
        if device[a] != device[b] and not weights[a]:
            key = (a, tensor, device[b])
            crossings[key] = max(size, crossings.get(key, 0))
    for (a, _, d), size in crossings.items():
        total += topology.link_latency_s[device[a], d] + size / topology.link_bytes_per_s[device[a], d]
    counts = count_by_device(graph, np.array(device, np.int32), topology.p)
    return total + float(counts @ costs.launch_s)


@settings(deadline=None)
@given(subjects())
def test_the_simulator_equals_the_plain_evaluator(case: tuple[Subject, list[Placement]]) -> None:
    subject, placements = case
    answers = Sequential().bind(subject).evaluate(placements)
    for placement, answer in zip(placements, answers, strict=True):
        expected = expected_s(subject, placement)
        if np.isinf(expected):
            assert isinstance(answer, MeasurementFailed)
            assert answer.kind == "refused"
        else:
            assert isinstance(answer, Prediction)
            # Sums of up to a hundred terms in another order: rounding at the last few bits.
            np.testing.assert_allclose(answer.value_s, expected, rtol=1e-12)


@settings(deadline=None)
@given(graphs(min_n=1), st.integers(0, 2**16))
def test_sub_graphs_are_on_one_device_and_never_wait_for_one_another(graph: Graph, seed: int) -> None:
    device = np.random.default_rng(seed).integers(0, 3, graph.n)
    results = {i for i in range(graph.n) if graph.type_names[graph.op_type[i]] == "Result"}
    assume(all(graph.in_degree[i] == 1 for i in results))
    parts = split(graph, device)
    for k in range(parts.k):
        assert len({int(device[i]) for i in np.flatnonzero(parts.group == k) if i not in results}) <= 1
    quotient = contract(graph, parts)
    cycle = connected(quotient).diagonal().any()
    assert not cycle
