"""Walks of the simulators whose placements need no order against placements evaluated one after another."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.devices import CostTable, DeviceSpec, Topology
from pipeline.core.errors import UsageError
from pipeline.core.measurement import Prediction
from pipeline.core.placement import Placement
from pipeline.core.simulation import LocalSearch, Moves
from pipeline.core.stages import Measurer, Simulator, Subject
from pipeline.shared.partition import colocation_grouping, join_groupings
from runtime.simulators.calls.latency import SingleInference
from runtime.simulators.dataflow.listsched import ListSched
from runtime.simulators.pipelined.pipelined import Pipelined
from runtime.simulators.sequential.sequential import Sequential
from tests.plain_walks import stepwise
from tests.strategies import grouped_graphs

SIMULATORS = {"sequential": Sequential(), "pipelined": Pipelined(), "latency": SingleInference(calls=2)}


@st.composite
def subjects(draw: st.DrawFn) -> tuple[Subject, np.random.Generator]:
    """Draw a subject of up to four unlike devices, tight in memory, whose seconds have no short binary form."""
    graph, grouping = draw(grouped_graphs(min_n=1))
    p = draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    graph = replace(graph, weight_bytes=rng.integers(0, 4, graph.n))
    capacity = [int(rng.integers(0, 2 * graph.n)) for _ in range(p)]
    devices = tuple(
        DeviceSpec(f"D{d}", "X", "X", kind=str(rng.choice(["gpu", "cpu"])), memory_bytes=capacity[d]) for d in range(p)
    )
    apart = ~np.eye(p, dtype=bool)
    topology = Topology(
        devices, np.where(apart, rng.uniform(1e3, 1e6, (p, p)), np.inf), np.where(apart, rng.random((p, p)), 0.0)
    )
    op_s = rng.random((graph.n, p))
    op_s[rng.random((graph.n, p)) < 0.02] = np.inf
    costs = CostTable(graph.names, topology.names, op_s, rng.random(p) * draw(st.booleans()), ("given",) * p)
    if draw(st.booleans()):
        grouping = join_groupings(grouping, colocation_grouping(graph))
    return Subject(None, graph, grouping, topology, costs, 0), rng


def start_and_moves(
    subject: Subject, rng: np.random.Generator, r: int = 40, least: int = 0
) -> tuple[Placement, Moves, np.ndarray]:
    """Return a placement, ordered or not, moves of every kind of `least` nodes or more, and what is allowed."""
    k, p = subject.grouping.k, subject.topology.p
    size = rng.integers(least, min(k, 4) + 1, r)
    node = np.concatenate([np.zeros(0, np.int32), *(rng.choice(k, s, replace=False) for s in size)])
    ptr = np.r_[0, np.cumsum(size)]
    moves = Moves(
        ptr,
        node,
        rng.integers(-1, p, r),
        np.where(rng.random(r) < 0.2, rng.integers(0, k, r), -1),
        np.where(rng.random(r) < 0.3, rng.random(r), 0.0),
        rng.choice([0.0, 0.5, -0.5, math.inf], r),
        np.where(rng.random(r) < 0.5, ptr[1:], rng.integers(ptr[:-1], ptr[1:] + 1)),
        float(rng.choice([math.inf, 0.0, 0.1, 1.0])),
    )
    priority = rng.random(k) if rng.random() < 0.5 else None
    return Placement(rng.integers(0, p, k), subject.topology.names, priority), moves, rng.random((k, p)) < 0.9


@pytest.mark.parametrize("name", [*SIMULATORS, "listsched"])
@settings(deadline=None)
@given(case=subjects(), limit=st.integers(0, 60))
def test_a_walk_equals_its_steps_bit_for_bit(name: str, case: tuple[Subject, np.random.Generator], limit: int) -> None:
    subject, rng = case
    measurer: Measurer = ListSched() if name == "listsched" else SIMULATORS[name]
    simulator = cast("Simulator", measurer.bind(subject))
    start, moves, allowed = start_and_moves(subject, rng, least=name == "listsched")
    if name == "listsched":  # which lets a node stay where it may not go, and shifts no nodes at all
        allowed[np.arange(start.n), start.device] = True
    local_search = simulator.local_search(start, moves, allowed=allowed, limit=limit)
    assert simulator.evaluations == local_search.evaluations <= limit
    expected = stepwise(simulator, start, moves, allowed, limit)
    assert local_search.tried.tolist() == expected.tried.tolist()
    assert local_search.taken.tolist() == expected.taken.tolist()
    assert local_search.value_s.tobytes() == expected.value_s.tobytes()
    assert (local_search.end_s, local_search.best_s) == (expected.end_s, expected.best_s)
    assert local_search.end.key() == expected.end.key()
    assert local_search.best.key() == expected.best.key()


@pytest.mark.parametrize("name", SIMULATORS)
@settings(deadline=None)
@given(case=subjects())
def test_a_bounded_walk_differs_in_what_moves_cost_that_are_not_taken_alone(
    name: str, case: tuple[Subject, np.random.Generator]
) -> None:
    subject, rng = case
    simulator: Simulator = SIMULATORS[name].bind(subject)
    start, moves, allowed = start_and_moves(subject, rng)
    whole = simulator.local_search(start, moves, allowed=allowed, limit=moves.r)
    quick = simulator.local_search(start, replace(moves, bounded=True), allowed=allowed, limit=moves.r)
    assert_equal_but_for_refusals(quick, whole)


def assert_equal_but_for_refusals(quick: LocalSearch, whole: LocalSearch) -> None:
    """Compare a walk whose moves were bounded with one whose moves were not."""
    assert quick.tried.tolist() == whole.tried.tolist()
    assert quick.taken.tolist() == whole.taken.tolist()
    told = whole.taken | ~np.isinf(quick.value_s)
    assert quick.value_s[told].tobytes() == whole.value_s[told].tobytes()
    assert (quick.end_s, quick.best_s) == (whole.end_s, whole.best_s)
    assert quick.end.key() == whole.end.key()
    assert quick.best.key() == whole.best.key()


@pytest.mark.parametrize("name", SIMULATORS)
@settings(deadline=None, max_examples=40)
@given(case=subjects())
def test_figures_and_answers_agree(name: str, case: tuple[Subject, np.random.Generator]) -> None:
    subject, rng = case
    simulator: Simulator = SIMULATORS[name].bind(subject)
    device = rng.integers(0, subject.topology.p, (5, subject.grouping.k)).astype(np.int32)
    figures = simulator.simulate(device)
    answers = simulator.evaluate([Placement(row, subject.topology.names) for row in device])
    assert simulator.evaluations == 10
    weight = np.zeros((5, subject.topology.p), np.int64)
    for b, row in enumerate(device):
        np.add.at(weight[b], row[subject.grouping.group], subject.graph.weight_bytes)
    capacity = [d.memory_bytes or 2**40 for d in subject.topology.devices]
    assert figures.peak_bytes.tolist() == weight.tolist()
    assert figures.over_bytes.tolist() == np.maximum(weight - capacity, 0).sum(axis=1).tolist()
    for answer, value_s, over in zip(answers, figures.value_s, figures.over_bytes, strict=True):
        if isinstance(answer, Prediction):
            assert (answer.value_s, 0) == (value_s, over)
        else:
            assert answer.kind == ("refused" if math.isinf(value_s) else "out_of_memory")
            assert math.isinf(value_s) or over > 0


@pytest.mark.parametrize("name", SIMULATORS)
@settings(deadline=None, max_examples=40)
@given(case=subjects())
def test_a_timeline_holds_everything_once_and_ends_with_the_value(
    name: str, case: tuple[Subject, np.random.Generator]
) -> None:
    subject, rng = case
    assert subject.costs is not None
    known = replace(subject.costs, op_s=np.where(np.isinf(subject.costs.op_s), 1.0, subject.costs.op_s))
    subject = replace(subject, costs=known)
    simulator: Simulator = SIMULATORS[name].bind(subject)
    placement = Placement(rng.integers(0, subject.topology.p, subject.grouping.k), subject.topology.names)
    figures = simulator.simulate(placement.device[None])
    if math.isinf(figures.value_s[0]):  # calls that wait for one another
        with pytest.raises(UsageError, match="form a cycle"):
            simulator.timeline(placement)
        return
    timeline = simulator.timeline(placement)
    chosen = placement.device[subject.grouping.group]
    took_s = timeline.end_s - timeline.start_s
    # Differences of sums: rounding at the last bits.
    np.testing.assert_allclose(took_s, known.op_s[np.arange(subject.graph.n), chosen], rtol=1e-9, atol=1e-12)
    last_s = max(timeline.end_s.max(initial=0.0), timeline.sent_end_s.max(initial=0.0))
    assert timeline.value_s == figures.value_s[0]
    np.testing.assert_allclose(timeline.value_s, last_s, rtol=1e-12)
    if name == "sequential":
        assert timeline.sent_bytes.sum() == figures.cut_bytes[0]
        for a, b in subject.graph.edges.T.tolist():
            assert timeline.start_s[b] >= timeline.end_s[a] - 1e-9
