"""The simulator of HETERO, by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.core.devices import CostTable, DeviceSpec, Topology
from pipeline.core.errors import UsageError
from pipeline.core.graph import Graph, Grouping
from pipeline.core.measurement import MeasurementFailed, Prediction
from pipeline.core.placement import Placement
from pipeline.core.stages import SimulationInterruptedError, Subject
from pipeline.core.tensors import INFERRED
from runtime.simulators.sequential import sequential
from runtime.simulators.sequential.sequential import Sequential, SequentialEvaluator, cuts
from tests.strategies import graph_of

NAMES = ("A", "B")


def topology(latency_s: float = 0.5) -> Topology:
    devices = tuple(DeviceSpec(name, "CPU", f"CPU_{name}") for name in NAMES)
    return Topology.uniform(devices, bytes_per_s=10.0, latency_s=latency_s)


def subject(graph: Graph, op_s: list[list[float]], grouping: Grouping | None = None) -> Subject:
    costs = CostTable(graph.names, NAMES, np.array(op_s), np.array([0.25, 0.75]), ("given", "given"))
    return Subject(Path(), graph, grouping or Grouping.identity(graph.n), topology(), costs, 0)


def seconds(evaluator: SequentialEvaluator, *device: int) -> float:
    (answer,) = evaluator.evaluate([Placement(np.array(device), NAMES)])
    assert isinstance(answer, Prediction)
    return answer.value_s


def fan() -> Graph:
    """Return x -> a -> {b, c}; a's tensor has 20 bytes, x's 5."""
    edges = [(0, 1), (1, 2), (1, 3)]
    return graph_of(4, edges, types=["Parameter", "Relu", "Tanh", "Exp"], out_bytes=[5, 20, 1, 1])


FAN_S = [[0.0, 0.0], [1.0, 2.0], [4.0, 8.0], [16.0, 32.0]]


def test_latency_by_hand() -> None:
    evaluator = Sequential().bind(subject(fan(), FAN_S))
    assert seconds(evaluator, 0, 0, 0, 0) == 1 + 4 + 16 + 0.25
    assert seconds(evaluator, 1, 1, 1, 1) == 2 + 8 + 32 + 0.75
    # a on A, b and c on B: 20 bytes cross once at 10 bytes per second and half a second; b and c are apart.
    assert seconds(evaluator, 0, 0, 1, 1) == 1 + 8 + 32 + (0.5 + 2.0) + 0.25 + 2 * 0.75
    assert seconds(evaluator, 0, 0, 1, 0) == 1 + 8 + 16 + (0.5 + 2.0) + 0.25 + 0.75
    # a on B, b and c on A: the input goes with a.
    assert seconds(evaluator, 0, 1, 0, 0) == 2 + 4 + 16 + (0.5 + 2.0) + 0.75 + 2 * 0.25


def test_answers_tell_devices_and_sub_graphs() -> None:
    evaluator = Sequential().bind(subject(fan(), FAN_S))
    two, one = evaluator.evaluate([Placement(np.array([0, 0, 1, 1]), NAMES), Placement(np.array([1, 0, 0, 0]), NAMES)])
    assert isinstance(two, Prediction)
    assert isinstance(one, Prediction)
    assert (two.executed_on, two.subgraphs) == (("A", "B"), 3)
    assert (one.executed_on, one.subgraphs) == (("A",), 1)  # the input follows its reader


def test_an_input_read_on_two_devices_crosses_once() -> None:
    graph = graph_of(4, [(0, 1), (0, 2), (0, 3)], types=["Parameter", "Relu", "Tanh", "Exp"], out_bytes=[20, 1, 1, 1])
    evaluator = Sequential().bind(subject(graph, [[0.0, 0.0]] * 4))
    assert seconds(evaluator, 0, 0, 1, 1) == (0.5 + 2.0) + 0.25 + 2 * 0.75


def test_constants_and_what_is_made_of_them_never_cross() -> None:
    types = ["Parameter", "Constant", "Convert", "Add", "Mul"]
    graph = graph_of(5, [(0, 3), (1, 2), (2, 3), (2, 4), (3, 4)], types=types, out_bytes=[1, 90, 90, 10, 1])
    evaluator = Sequential().bind(subject(graph, [[0.0, 0.0]] * 5))
    expected = (0.5 + 1.0) + 0.25 + 0.75
    assert seconds(evaluator, 0, 0, 0, 0, 1) == expected
    assert seconds(evaluator, 0, 1, 1, 0, 1) == expected


def test_a_group_is_placed_as_one() -> None:
    grouped = Grouping(np.array([0, 0, 1, 0]))
    evaluator = Sequential().bind(subject(fan(), FAN_S, grouped))
    assert seconds(evaluator, 0, 1) == 1 + 8 + 16 + (0.5 + 2.0) + 0.25 + 0.75


def test_a_group_of_separate_strands_has_several_sub_graphs() -> None:
    grouped = Grouping(np.array([0, 0, 1, 1]))
    evaluator = Sequential().bind(subject(fan(), FAN_S, grouped))
    assert seconds(evaluator, 0, 1) == 1 + 8 + 32 + (0.5 + 2.0) + 0.25 + 2 * 0.75


def test_a_cyclic_quotient_is_measured_by_its_operations() -> None:
    graph = graph_of(4, [(0, 1), (1, 2), (2, 3)], types=["Parameter", "Relu", "Tanh", "Exp"], out_bytes=[1, 10, 20, 1])
    evaluator = Sequential().bind(subject(graph, [[0.0, 0.0]] * 4, Grouping(np.array([0, 0, 1, 0]))))
    assert seconds(evaluator, 0, 1) == (0.5 + 1.0) + (0.5 + 2.0) + 2 * 0.25 + 0.75


def test_a_refused_operation_is_an_answer() -> None:
    op_s = [*FAN_S[:3], [16.0, np.inf]]
    evaluator = Sequential().bind(subject(fan(), op_s))
    refused, fine = evaluator.evaluate([Placement(np.array(d), NAMES) for d in ([0, 0, 0, 1], [0, 0, 1, 0])])
    assert refused == MeasurementFailed("refused", "B does not run op3")
    assert isinstance(fine, Prediction)


def test_every_placement_counts_and_a_batch_equals_one_by_one() -> None:
    evaluator = Sequential().bind(subject(fan(), FAN_S))
    placements = [Placement(np.array([0, *np.unravel_index(i, (2, 2, 2))]), NAMES) for i in range(8)]
    batch = [a.value_s for a in evaluator.evaluate(placements) if isinstance(a, Prediction)]
    assert evaluator.evaluations == 8
    assert batch == [seconds(evaluator, *p.device.tolist()) for p in placements]
    assert evaluator.evaluations == 16
    assert evaluator.evaluate([]) == []
    assert evaluator.evaluations == 16


def test_equal_subjects_have_equal_fingerprints() -> None:
    def fingerprint(s: Subject) -> str:
        return Sequential().bind(s).fingerprint

    first = subject(fan(), FAN_S)
    assert fingerprint(first) == fingerprint(subject(fan(), FAN_S))
    assert fingerprint(first) != fingerprint(subject(fan(), [[1.0, 0.0], *FAN_S[1:]]))
    assert fingerprint(first) != fingerprint(replace(first, topology=topology(0.25)))
    wider = replace(fan(), edge_bytes=fan().edge_bytes * 2, reads=INFERRED)
    assert fingerprint(first) != fingerprint(replace(first, graph=wider))


def test_figures_by_hand() -> None:
    graph = replace(fan(), weight_bytes=np.array([1, 2, 4, 8]))
    figures = Sequential().bind(subject(graph, FAN_S)).simulate(np.array([[0, 0, 1, 1], [1, 0, 0, 0]], np.int32))
    assert figures.busy_s.tolist() == [[1 + 0.25, 8 + 32 + 2 * 0.75], [21 + 0.25, 0.0]]
    assert figures.cut_bytes.tolist() == [20, 0]  # the input follows its reader
    assert figures.peak_bytes.tolist() == [[3, 12], [14, 1]]  # weights count where they were placed
    assert figures.over_bytes.tolist() == [0, 0]


def test_sub_graphs_are_counted_only_if_a_launch_costs_something_or_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    placements = [Placement(np.array(device), NAMES) for device in ([0, 0, 0, 0], [0, 0, 1, 1])]
    device = np.stack([placement.device for placement in placements])
    costly = subject(fan(), FAN_S)
    assert costly.costs is not None
    free, half, full = (
        Sequential().bind(replace(costly, costs=replace(costly.costs, launch_s=np.array(launch_s))))
        for launch_s in ([0.0, 0.0], [0.0, 0.75], [0.25, 0.75])
    )
    assert (half.simulate(device).value_s - free.simulate(device).value_s).tolist() == [0.0, 1.5]
    assert (full.simulate(device).value_s - free.simulate(device).value_s).tolist() == [0.25, 1.75]
    answers = [answer for answer in free.evaluate(placements) if isinstance(answer, Prediction)]
    assert [answer.subgraphs for answer in answers] == [1, 3]
    monkeypatch.setattr(cuts, "count", None)
    assert free.simulate(device).value_s.tolist() == [answer.value_s for answer in answers]
    with pytest.raises(TypeError):
        half.simulate(device)


def test_of_large_graphs_sub_graphs_that_cost_nothing_are_counted_before_cycles_are_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng, edges = np.random.default_rng(0), [(i, j) for i in range(12) for j in range(i + 1, 12) if (i * j) % 3 == 1]
    graph = graph_of(12, [*edges, *((i, i + 1) for i in range(11))])
    given = subject(graph, np.ones((12, 2)).tolist())
    assert given.costs is not None
    free = Sequential().bind(replace(given, costs=replace(given.costs, launch_s=np.zeros(2))))
    costly = Sequential().bind(given)
    placements = [Placement(rng.integers(0, 2, 12), NAMES) for _ in range(40)]

    def counted(evaluator: SequentialEvaluator) -> list[Prediction]:
        return [answer for answer in evaluator.evaluate(placements) if isinstance(answer, Prediction)]

    exact, dear = counted(free), counted(costly)
    monkeypatch.setattr(sequential, "EXACT", 11)
    least = counted(free)
    assert counted(costly) == dear  # a launch costs something there
    assert [a.subgraphs for a in exact] == [a.subgraphs for a in dear]
    assert [(a.value_s, a.executed_on) for a in least] == [(a.value_s, a.executed_on) for a in exact]
    assert all(1 <= a.subgraphs <= b.subgraphs for a, b in zip(least, exact, strict=True))
    assert any(a.subgraphs < b.subgraphs for a, b in zip(least, exact, strict=True))
    for placement, answer in zip(placements, exact, strict=True):  # sub-graphs of one operation each
        timeline = free.timeline(placement)
        assert timeline.value_s == answer.value_s
        assert max(timeline.end_s) == pytest.approx(answer.value_s)
        source, target = graph.edges
        assert (timeline.end_s[source] <= timeline.start_s[target] + 1e-9).all()


def test_weights_must_fit_a_device_of_known_memory() -> None:
    small = tuple(replace(d, memory_bytes=size) for d, size in zip(topology().devices, (6, 0), strict=True))
    graph = replace(fan(), weight_bytes=np.array([1, 2, 4, 8]))
    case = replace(subject(graph, FAN_S), topology=Topology.uniform(small, bytes_per_s=10.0, latency_s=0.5))
    placements = [Placement(np.array(d), NAMES) for d in ([0, 0, 0, 1], [1, 1, 1, 1])]
    full, fine = Sequential().bind(case).evaluate(placements)
    assert full == MeasurementFailed("out_of_memory", "A lacks 1 B of memory")
    assert isinstance(fine, Prediction)
    assert isinstance(Sequential(memory=False).bind(case).evaluate(placements)[0], Prediction)


def test_a_timeline_runs_one_sub_graph_after_another() -> None:
    evaluator = Sequential().bind(subject(fan(), FAN_S))
    timeline = evaluator.timeline(Placement(np.array([1, 0, 1, 0]), NAMES))
    assert timeline.device.tolist() == [0, 0, 1, 0]
    # launch A 0.25, a 1, c 16; a's 20 bytes cross in 2.5; launch B 0.75, b 8
    assert timeline.start_s.tolist() == [0.25, 0.25, 20.5, 1.25]
    assert timeline.end_s.tolist() == [0.25, 1.25, 28.5, 17.25]
    sent = timeline.sent, timeline.source, timeline.target, timeline.sent_start_s, timeline.sent_end_s
    assert [column.tolist() for column in sent] == [[1], [0], [1], [17.25], [19.75]]
    assert timeline.sent_bytes.tolist() == [20]
    assert timeline.value_s == 28.5


def test_a_timeline_of_one_device_has_one_launch() -> None:
    timeline = Sequential().bind(subject(fan(), FAN_S)).timeline(Placement(np.zeros(4), NAMES))
    assert timeline.end_s.tolist() == [0.25, 1.25, 5.25, 21.25]
    assert timeline.t == 0


def test_a_timeline_that_is_interrupted_ends_at_once() -> None:
    evaluator = Sequential().bind(subject(fan(), FAN_S))
    placement = Placement(np.array([0, 0, 1, 1]), NAMES)
    whole = evaluator.timeline(placement)
    evaluator.interrupt()
    with pytest.raises(SimulationInterruptedError):
        evaluator.timeline(placement)
    evaluator.resume()
    assert evaluator.timeline(placement).value_s == whole.value_s


def test_a_placement_on_the_wrong_device_has_no_timeline() -> None:
    evaluator = Sequential().bind(subject(fan(), [*FAN_S[:3], [16.0, np.inf]]))
    with pytest.raises(UsageError, match="op3"):
        evaluator.timeline(Placement(np.ones(4), NAMES))


def test_without_costs_there_is_nothing_to_simulate() -> None:
    with pytest.raises(UsageError, match="needs a cost table"):
        Sequential().bind(replace(subject(fan(), FAN_S), costs=None))
