"""One inference with calls of accelerators: a case by hand, the published files, and bad input."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.cli.main import run_command_line
from pipeline.core.devices import CostTable, DeviceSpec, Topology
from pipeline.core.graph import Grouping
from pipeline.core.placement import Placement
from pipeline.core.problem import Budget, Problem
from pipeline.core.simulation import CallsModel, LatencyModel
from pipeline.core.stages import Subject
from pipeline.offline.scenario import Scenario, load
from pipeline.offline.search import Effort, search, simulate
from pipeline.placing.setup import problem_of
from policy.place.exact.calls.latency_bound import path_bound
from policy.place.exact.calls.latency_dp import LatencyDp
from policy.place.exact.calls.series import SeriesProgram
from policy.place.exact.shared.stages import all_ideals
from runtime.simulators.calls.latency import LatencyEvaluator, SingleInference
from tests.published import MSR
from tests.slow import slow_where
from tests.strategies import graph_of

PUBLISHED = {  # milliseconds of the best known, of the sum over ideals, and of the bound
    "LayerGraphs/bert24_inference.json": (100.2185, 100.2185, 100.218),
    "LayerGraphs/resnet50_inference.json": (1156.8813, 1156.8813, 1156.881),
    "OperatorGraphs/bert_l-3_inference.json": (408.4744, 414.430, 408.469),
    "OperatorGraphs/resnet50_inference.json": (651.1208, 651.121, 629.745),
}
DIAMOND = [(0, 1), (0, 2), (1, 3), (2, 3)]


def published(name: str, calls: int = 1) -> Scenario:
    path = MSR / "latency-inputs" / name
    if not path.exists():
        pytest.skip(f"{path} is not on this machine")
    return Scenario(str(path), evaluator="latency", calls=calls)


def diamond() -> Problem:
    """Return four operations of 1 s on two accelerators and of 3 s on a CPU; whatever is sent takes 0.5 s."""
    graph = graph_of(4, DIAMOND, out_bytes=[5, 5, 5, 5])
    specs = [DeviceSpec(f"acc{d}", "X", "X", kind="npu") for d in range(2)] + [DeviceSpec("cpu0", "X", "X", kind="cpu")]
    topology = Topology.uniform(tuple(specs), bytes_per_s=10.0, latency_s=0.0)
    op_s = np.repeat([[1.0, 1.0, 3.0]], 4, axis=0)
    costs = CostTable(graph.names, topology.names, op_s, np.zeros(3), ("given",) * 3)
    return problem_of(graph, topology, costs)


def evaluator(problem: Problem, calls: int = 1) -> LatencyEvaluator:
    subject = Subject(None, problem.graph, Grouping.identity(problem.graph.n), problem.topology, problem.costs, 0)
    return SingleInference(calls=calls).bind(subject)


def test_calls_take_operations_and_what_is_sent() -> None:
    simulator = evaluator(diamond())
    value_s = simulator.simulate(
        np.array(
            [
                [2, 2, 2, 2],  # CPUs run the branches side by side: 3 + 3 + 3
                [0, 0, 0, 0],  # one call
                [0, 0, 2, 0],  # the call waits for the CPU, which waits for the call
                [0, 0, 1, 1],  # 2 + 0.5 for op0's output + 0.5 for op1's, then 0.5 + 0.5 + 2
                [2, 0, 2, 2],  # the CPU's branch and a call of 0.5 + 1 + 0.5 side by side
            ],
            np.int32,
        )
    ).value_s
    assert value_s.tolist() == [9.0, 4.0, math.inf, 6.0, 9.0]


def test_priorities_say_in_which_call_an_operation_is() -> None:
    simulator = evaluator(diamond(), calls=2)
    device = np.array([[0, 0, 2, 0]], np.int32)
    turns = np.array([[0.0, 0.0, 0.0, 1.0]])
    # The first call: 1 + 1 and both outputs sent; the CPU: 3; the second call reads two tensors.
    assert simulator.simulate(device, turns).value_s.tolist() == [3.0 + 3.0 + 2.0]
    assert simulator.simulate(device, turns + 7.5).value_s.tolist() == [math.inf]  # all in the last call
    assert simulator.simulate(device).value_s.tolist() == [math.inf]  # without an order, all in the first
    assert SingleInference().execution == LatencyModel()
    assert SingleInference(calls=2).execution == CallsModel(calls=2)


def test_a_timeline_fills_calls_with_receiving_computing_and_sending() -> None:
    problem = diamond()
    timeline = evaluator(problem).timeline(Placement(np.array([0, 0, 1, 1], np.int32), problem.topology.names))
    assert timeline.start_s.tolist() == [0.0, 1.0, 4.0, 5.0]
    assert timeline.end_s.tolist() == [1.0, 2.0, 5.0, 6.0]
    sent = zip(
        timeline.sent.tolist(),
        timeline.source.tolist(),
        timeline.target.tolist(),
        timeline.sent_start_s.tolist(),
        strict=True,
    )
    assert sorted(sent, key=lambda row: row[3]) == [(0, 0, 1, 2.0), (1, 0, 1, 2.5), (0, 0, 1, 3.0), (1, 0, 1, 3.5)]
    assert timeline.value_s == 6.0


@pytest.mark.parametrize("name", slow_where(PUBLISHED, {name for name in PUBLISHED if "resnet50" in name}))
def test_published_graphs_have_at_least_the_recorded_values(name: str) -> None:
    best_ms, sum_ms, bound_ms = PUBLISHED[name]
    case = load(published(name))
    assert path_bound(case.problem, 1, seconds=60.0) * 1e3 >= bound_ms
    program = SeriesProgram.of(case.problem)
    assert program is not None
    ideals = all_ideals(program.stages, 10**9, lambda: True)
    assert ideals is not None
    staged = program.least_sum(ideals, lambda: True)
    assert staged is not None
    assert staged.value_s * 1e3 == pytest.approx(sum_ms, abs=1e-3)
    answer = LatencyDp().place(case.problem, case.simulator(), Budget(100), seed=0, progress=lambda _: None)
    assert answer.value_s * 1e3 == pytest.approx(best_ms, abs=1e-3)
    assert answer.proven


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_default_search_proves_published_graphs_optimal(name: str) -> None:
    answer = search(published(name), Effort(budget_s=60.0))
    assert answer["proven"]
    assert answer["value_s"] * 1e3 == pytest.approx(PUBLISHED[name][0], abs=1e-3)


def document() -> dict[str, Any]:
    """Return a file of the official format with two accelerators, a CPU, a colour class and ids of its own."""
    times = {"cpuLatency": 8.0, "fpgaLatency": 2.0}
    return {
        "maxSizePerFPGA": 100.0,
        "maxFPGAs": 2,
        "maxCPUs": 1,
        "nodes": [
            {"id": 7, "size": 30.0, "colorClass": 4, **times},
            {"id": 3, "size": 30.0, "colorClass": 4, **times},
            {"id": 9, "size": 60.0, **times},
        ],
        "edges": [{"sourceId": 7, "destId": 3, "cost": 9.0}, {"sourceId": 3, "destId": 9, "cost": 0.5}],
    }


def written(path: Path, value: Any) -> str:
    path.write_text(json.dumps(value), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("calls", [1, 2])
def test_a_result_is_written_and_checked(calls: int, tmp_path: Path) -> None:
    scenario = Scenario(written(tmp_path / "g.json", document()), evaluator="latency", calls=calls)
    result = tmp_path / "r.json"
    answer = search(scenario, Effort("cpsat", evaluations=500), official=result)
    assert answer["value_s"] == pytest.approx(7e-3)
    assert answer["proven"]
    assert [(call["start_s"], call["end_s"]) for call in answer["calls"] or []] == [
        (0.0, pytest.approx(4.5e-3)),
        (pytest.approx(4.5e-3), pytest.approx(7e-3)),
    ]
    found = json.loads(result.read_text())
    assert found["totalLatency"] == pytest.approx(7.0)
    assert len(found["fpgas"]) == 2 * calls
    assert sorted(row["nodes"] for row in found["fpgas"] if row["nodes"]) == [[3, 7], [9]]
    assert simulate(scenario, result, official=True)["official"] == {
        "stated_s": pytest.approx(7e-3),
        "checked_s": pytest.approx(7e-3),
        "faults": [],
    }
    written(result, found | {"totalLatency": 3.0})
    checked = simulate(scenario, result, official=True)["official"]
    assert checked is not None
    assert "states a latency of 3 ms" in checked["faults"][0]


def changed(**values: Any) -> dict[str, Any]:
    return document() | values


@pytest.mark.parametrize(
    ("graph", "code", "words"),
    [
        (changed(nodes=document()["nodes"][:1] * 2), 3, "two nodes have the id 7"),
        (changed(edges=[{"sourceId": 7, "destId": 8}]), 3, "8, which is no node's id"),
        (changed(edges=[*document()["edges"], {"sourceId": 7, "destId": 9, "cost": 1.0}]), 3, "#7"),
        (changed(edges=[{"sourceId": a, "destId": b} for a, b in ((3, 9), (9, 3))]), 3, "cycle: #3 -> #9"),
        (changed(nodes=[document()["nodes"][0] | {"fpgaLatency": -1.0}]), 3, "fpgaLatency of node 7"),
        (changed(nodes=[document()["nodes"][0] | {"cpuLatency": math.nan}]), 3, "cpuLatency of node 7"),
        (changed(maxFPGAs=0, maxCPUs=0), 2, "accelerators:NxM needs N, M >= 1, got 0x0"),
        (changed(maxCPUs=0, maxSizePerFPGA=50.0), 2, "#7, #3 share a colocation constraint"),
        (changed(nodes=[n | {"isBackwardNode": n["id"] == 9} for n in document()["nodes"]]), 2, "no backward pass: #9"),
    ],
)
def test_bad_files_end_in_one_line(
    graph: dict[str, Any], code: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = written(tmp_path / "g.json", graph), tmp_path / "out.json"
    command = ["search", path, "--objective", "latency", "--evaluations", "20", "--official-out", str(out), "--quiet"]
    assert run_command_line(command) == code
    captured = capsys.readouterr()
    cause = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert len(cause) == 1
    assert words in cause[0]
    assert captured.out == ""
    assert not out.exists()


def test_calls_belong_to_latency_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["search", "zoo:chainmm", "--topology", "equal:2", "--calls", "2"]) == 2
    assert "listsched does not count calls" in capsys.readouterr().err
