"""Elements, merging, counting, dynamic programs and the official files, by hand and against published values."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipeline
from pipeline.cli.main import run_command_line
from pipeline.core.devices import CostTable, DeviceSpec, Topology
from pipeline.core.graph import Graph, Grouping
from pipeline.core.problem import Budget, Problem
from pipeline.core.simulation import Contiguity
from pipeline.core.stages import Subject
from pipeline.offline.scenario import Scenario, load
from pipeline.offline.search import Effort, search, simulate
from pipeline.placing.setup import problem_of
from pipeline.testing.problems import towers_problem
from policy.place.exact.pipelined.cpsat_pipeline import Pieces, covers
from policy.place.exact.pipelined.dp import Dp
from policy.place.exact.pipelined.objective import counting_bound
from policy.place.exact.shared.cpsat import CpSat
from policy.place.exact.shared.elements import Elements, inseparable_grouping, leaves_folded
from policy.place.exact.shared.stages import Replication, StageProgram, all_ideals, best_of_orders, difference, value_s
from runtime.simulators.pipelined.pipelined import Pipelined
from tests.published import MSR
from tests.strategies import graph_of

PUBLISHED = {
    "LayerGraphs/bert24_inference.json": (28, 30, 17.7899),
    "LayerGraphs/bert24_training.json": (28, 30, 41.7458),
    "LayerGraphs/resnet50_inference.json": (177, 242, 33.7747),
    "OperatorGraphs/bert_l-3_inference.json": (128, 1428, 27.9186),
    "OperatorGraphs/bert_l-3_training.json": (138, 2774, 65.3031),
    "OperatorGraphs/resnet50_inference.json": (176, 241, 124.3488),
}
FREE = {
    "LayerGraphs/bert24_inference.json": 17.7147,
    "LayerGraphs/bert24_training.json": 39.7895,
    "OperatorGraphs/bert_l-3_inference.json": 21.9084,
    "OperatorGraphs/bert_l-3_training.json": 54.2074,
}


def published(name: str) -> Problem:
    path = MSR / "throughput-inputs" / name
    if not path.exists():
        pytest.skip(f"{path} is not on this machine")
    return load(Scenario(str(path), evaluator="pipelined")).problem


def small(graph: Graph, op_s: list[float], accelerators: int = 2, cores: int = 0, memory_bytes: int = 0) -> Problem:
    specs = [DeviceSpec(f"acc{d}", "X", "X", kind="npu", memory_bytes=memory_bytes) for d in range(accelerators)]
    specs += [DeviceSpec(f"cpu{d}", "X", "X", kind="cpu") for d in range(cores)]
    topology = Topology.uniform(tuple(specs), bytes_per_s=10.0, latency_s=0.0)
    table = np.repeat(np.array(op_s)[:, None], topology.p, axis=1)
    costs = CostTable(graph.names, topology.names, table, np.zeros(topology.p), ("given",) * topology.p)
    return problem_of(graph, topology, costs)


def program_of(problem: Problem, replication: Replication | None = None) -> StageProgram:
    found = StageProgram.of(problem.derived(Elements.of), replication or Replication())
    assert found is not None
    return found


@pytest.mark.parametrize("name", PUBLISHED)
def test_stages_of_published_graphs_have_the_published_loads(name: str) -> None:
    elements, ideals, load_ms = PUBLISHED[name]
    program = program_of(published(name))
    found = all_ideals(program, 10**9, lambda: True)
    assert found is not None
    assert (program.elements.k, found.size) == (elements, ideals)
    best = program.of_ideals(found, lambda: True, workers=2)
    assert best is not None
    assert value_s(best) * 1e3 == pytest.approx(load_ms, abs=6e-5)  # published with four decimals
    linear = best_of_orders(program, np.random.default_rng(0), 100, lambda: True)
    assert value_s(linear) >= value_s(best) * (1 - 1e-9)
    assert value_s(linear) <= value_s(best) * (1 + 1e-3)
    sharper = program.below(value_s(best) * (1 - 1e-9)).of_ideals(found, lambda: True, workers=1)
    assert sharper == []  # the limit leaves out what it should


@pytest.mark.parametrize(("shape", "ideals"), [((2, 3, 2), 2 * 27), ((3, 4, 6), 3 * 7**4)])
def test_towers_have_many_ideals_and_their_best_stages_are_proven(shape: tuple[int, int, int], ideals: int) -> None:
    problem = towers_problem(*shape)
    subject = Subject(None, problem.graph, Grouping.identity(problem.graph.n), problem.topology, problem.costs, 0)
    found = all_ideals(program_of(problem), 10**9, lambda: True)
    assert found is not None
    assert found.size == ideals + 2  # nothing, and everything
    simulator = Pipelined(contiguity="ordered").bind(subject)
    answer = Dp().place(problem, simulator, Budget(500), seed=0, progress=lambda _: None)
    assert answer.proven


@pytest.mark.slow
def test_hundreds_of_operations_in_towers_are_proven() -> None:
    test_towers_have_many_ideals_and_their_best_stages_are_proven((12, 4, 7), 12 * 8**4)


@pytest.mark.slow
@pytest.mark.parametrize("name", FREE)
def test_the_default_search_proves_published_graphs_optimal(name: str) -> None:
    published(name)
    scenario = Scenario(str(MSR / "throughput-inputs" / name), evaluator="pipelined")
    answer = search(scenario, Effort(budget_s=60.0))
    assert answer["proven"]
    assert answer["value_s"] * 1e3 == pytest.approx(FREE[name], abs=6e-5)


CHAIN = graph_of(3, [(0, 1), (1, 2)])
CROSSED = graph_of(4, [(0, 2), (3, 1)], colocate=[0, 0, 1, 1])  # u1 -> v1, v2 -> u2


@pytest.mark.parametrize(
    ("graph", "op_s", "expected_s"),
    [
        (CHAIN, [1.0, 2.0, 1.0], {"free": 2.2, "convex": 3.1, "ordered": 3.1}),
        (CROSSED, [1.0] * 4, {"free": 2.2, "convex": 2.2, "ordered": 4.0}),
    ],
)
def test_the_three_notions_of_contiguity_differ(
    graph: Graph, op_s: list[float], expected_s: dict[Contiguity, float]
) -> None:
    problem = small(graph, op_s)
    subject = Subject(None, graph, Grouping.identity(graph.n), problem.topology, problem.costs, 0)
    for contiguity, value in expected_s.items():
        simulator = Pipelined(contiguity=contiguity).bind(subject)
        placer = Dp() if contiguity == "ordered" else CpSat(effort=1.0)
        answer = placer.place(problem, simulator, Budget(500), seed=0, progress=lambda _: None)
        assert answer.proven
        assert answer.value_s == pytest.approx(value)


@pytest.mark.parametrize(("contiguity", "optimum_s"), [("free", 2.2), ("convex", 3.1), ("ordered", 3.1)])
def test_the_best_ordered_stages_prove_nothing_where_others_are_allowed(
    contiguity: Contiguity, optimum_s: float
) -> None:
    problem = small(CHAIN, [1.0, 2.0, 1.0])
    subject = Subject(None, CHAIN, Grouping.identity(3), problem.topology, problem.costs, 0)
    simulator = Pipelined(contiguity=contiguity).bind(subject)
    answer = Dp().place(problem, simulator, Budget(500), seed=0, progress=lambda _: None)
    assert answer.value_s == pytest.approx(3.1)
    assert answer.lower_bound_s <= optimum_s
    assert answer.bound_by == "dp" or contiguity != "ordered"


@pytest.mark.parametrize("shape", [(2, 3, 2), (3, 2, 2)])
def test_the_priced_work_of_an_ideal_is_that_of_its_elements(shape: tuple[int, int, int]) -> None:
    program = program_of(towers_problem(*shape))
    found = all_ideals(program, 10**9, lambda: True)
    assert found is not None
    assert program.priced_s.min() >= 0 < program.priced_s.max()
    elements = [difference(found, 0, i) for i in range(found.size)]
    assert found.lattice.priced_s == pytest.approx([program.priced_s[each].sum() for each in elements])


def test_idle_leaves_are_folded_again_and_again_where_memory_allows_it() -> None:
    graph = graph_of(5, [(0, 1), (1, 2), (2, 3), (2, 4)], weight_bytes=[5, 0, 5, 0, 5])
    op_s = [0.0, 0.0, 1.0, 2.0, 0.0]
    assert leaves_folded(small(graph, op_s)).grouping.group.tolist() == [0, 0, 0, 1, 0]
    # 15 bytes in all: where a device holds 14, only what has no weights moves.
    assert leaves_folded(small(graph, op_s, memory_bytes=14)).k == 5
    assert leaves_folded(small(graph, op_s, memory_bytes=15)).k == 2


def test_classes_in_a_cycle_are_one_element_and_nets_of_equal_members_are_one() -> None:
    graph = graph_of(4, [(0, 1), (2, 3)], out_bytes=[10, 1, 20, 1], colocate=[0, 1, 1, 0])
    elements = Elements.of(small(graph, [1.0] * 4))
    assert elements.k == 1
    parted = Elements.of(small(replace(graph, colocate=np.array([0, 1, 0, 1])), [1.0] * 4))
    assert parted.charges.pay_s.tolist() == [[3.0]]  # 10 and 20 bytes at 10 bytes a second


def test_elements_are_one_where_parting_them_takes_too_long() -> None:
    graph = graph_of(3, [(0, 1), (1, 2)], out_bytes=[10, 30, 1])
    charges = Elements.of(small(graph, [1.0, 1.0, 4.0])).charges
    assert inseparable_grouping(charges, (2,), 7.1).group.tolist() == [0, 1, 2]
    assert inseparable_grouping(charges, (2,), 7.0).group.tolist() == [0, 1, 1]  # 3 s of transfer and 4 s of work
    assert inseparable_grouping(charges, (2,), 3.0).group.tolist() == [0, 0, 0]


def test_large_units_are_counted() -> None:
    five = np.full((5, 2), 3.0)
    assert counting_bound(five, 7.5) == pytest.approx(9.0)  # one of two devices has three of five
    five[:, 1] = 100.0
    assert counting_bound(five, 7.5) == pytest.approx(15.0)
    assert counting_bound(np.full((4, 2), 3.0), 6.0) == 6.0


def test_covers_say_how_many_pieces_are_too_many() -> None:
    assert covers(np.array([1.0, 2.0, 3.0, math.inf]), 4.0) == [([1, 2], 1), ([0, 1, 2], 2)]


def test_one_of_some_equal_devices_is_crowded() -> None:
    graph = graph_of(5, [(i, i + 1) for i in range(4)], out_bytes=[1] * 5)
    problem = small(graph, [3.0] * 5)
    groups = leaves_folded(problem)
    pieces = Pieces.of(problem, groups, np.array([0, 0, 1, 1, 1], np.int32), 9.2)
    assert pieces.pigeonhole is not None
    assert (pieces.pigeonhole.device, pieces.pigeonhole.least, sorted(pieces.pigeonhole.members)) == (
        0,
        3,
        [0, 1, 2, 3, 4],
    )
    assert pieces.device is not None
    assert pieces.device.tolist() == [1, 1, 0, 0, 0]


def test_replicas_share_a_load_and_exchange_gradients() -> None:
    graph = graph_of(2, [(0, 1)], out_bytes=[10, 1], weight_bytes=[0, 6])
    problem = small(graph, [1.0, 6.0], accelerators=3)
    program = program_of(problem, Replication(3, 0.0))
    found = all_ideals(program, 10**8, lambda: True)
    assert found is not None
    best = program.of_ideals(found, lambda: True, workers=1)
    assert best is not None
    assert [(s.replicas, s.load_s) for s in best] == [(3, pytest.approx(7 / 3))]  # together: no transfer
    costly = program_of(problem, Replication(3, 0.5)).of_ideals(found, lambda: True, workers=1)
    assert costly is not None
    # Three replicas of 6 bytes: 7 / 3 + 4 * 2 / 3 * 6 * 0.5 is more than one stage each: 2 s and 7 s.
    assert max(s.load_s for s in costly) == pytest.approx(7.0)


def test_too_little_memory_for_ideals_is_told(caplog: pytest.LogCaptureFixture) -> None:
    lanes = 12
    graph = graph_of(2 * lanes, [(i, lanes + i) for i in range(lanes)])
    program = program_of(small(graph, [1.0] * (2 * lanes)))
    assert all_ideals(program, 10**6, lambda: True) is None  # 3^12 ideals
    assert all_ideals(program_of(small(graph_of(3, [(0, 1), (1, 2)]), [1.0] * 3)), 10**6, lambda: True) is not None


# The official files


def document() -> dict[str, Any]:
    """Return three nodes of which two share a colour; ids are no positions, and there is a chain 7 -> 3 -> 9."""
    times = {"cpuLatency": 20.0, "fpgaLatency": 2.0, "supportedOnFpga": 1, "isBackwardNode": False}
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


def test_the_file_says_which_devices_there_are(tmp_path: Path) -> None:
    case = load(Scenario(written(tmp_path / "g.json", document()), evaluator="pipelined"))
    assert case.topology.names == ("acc0", "acc1", "cpu0")
    assert [d.memory_bytes for d in case.topology.devices] == [100, 100, 0]
    assert case.scenario.topology == "accelerators:2x1"


def test_a_result_is_written_and_checked(tmp_path: Path) -> None:
    graph, result = written(tmp_path / "g.json", document()), tmp_path / "r.json"
    scenario = Scenario(graph, evaluator="pipelined", contiguity="ordered")
    answer = search(scenario, Effort("dp", evaluations=50, replicate=0), official=result)
    assert answer["value_s"] == pytest.approx(4.5e-3)
    assert answer["proven"]
    assert [len(stage["operations"]) for stage in answer["stages"] or []] == [2, 1]
    found = json.loads(result.read_text())
    assert found["maxLoad"] == pytest.approx(4.5)
    assert sorted(map(tuple, (row["nodes"] for row in found["fpgas"]))) == [(3, 7), (9,)]
    assert simulate(scenario, result, official=True)["official"] == {
        "stated_s": pytest.approx(4.5e-3),
        "checked_s": pytest.approx(4.5e-3),
        "faults": [],
    }
    found["maxLoad"] = 3.0
    written(result, found)
    checked = simulate(scenario, result, official=True)["official"]
    assert checked is not None
    assert "states a load of 3 ms" in checked["faults"][0]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"nodes": [7, 3]}], "on no device: #9"),
        ([{"nodes": [7, 3, 9, 9]}], "the node 9 is on two devices"),
        ([{"nodes": [7, 3, 8]}], "8 is no node's id"),
        ([{"nodes": [7]}, {"nodes": [3]}, {"nodes": [9]}], "it uses 3 accelerators, and there are 2"),
    ],
)
def test_results_of_other_graphs_are_refused(
    rows: list[Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = written(tmp_path / "g.json", document())
    result = written(tmp_path / "r.json", {"fpgas": rows, "cpus": []})
    assert run_command_line(["simulate", graph, "--evaluator", "pipelined", "--official", result]) == 2
    assert words in capsys.readouterr().err


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
        (changed(maxFPGAs=-1), 3, "maxFPGAs"),
        (changed(maxFPGAs=0, maxCPUs=0), 2, "accelerators:NxM needs N, M >= 1, got 0x0"),
        (changed(maxCPUs=0, maxSizePerFPGA=50.0), 2, "#7, #3 share a colocation constraint"),
    ],
)
def test_bad_files_end_in_one_line(
    graph: dict[str, Any], code: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = written(tmp_path / "g.json", graph), tmp_path / "out.json"
    command = ["search", path, "--objective", "max-load", "--evaluations", "20", "--official-out", str(out), "--quiet"]
    assert run_command_line(command) == code
    captured = capsys.readouterr()
    cause = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert len(cause) == 1
    assert words in cause[0]
    assert captured.out == ""
    assert not out.exists()


def test_any_graph_can_be_written_in_the_official_format_and_read_again(tmp_path: Path) -> None:
    from coarsen.reading.graph.msr_files import to_msr

    first = load(Scenario("zoo:chainmm", "accelerators:2x1", evaluator="pipelined"))
    path = written(tmp_path / "g.json", to_msr(first.graph, first.costs, first.topology))
    again = load(Scenario(path, evaluator="pipelined"))
    assert again.graph.names == first.graph.names
    device = np.arange(first.graph.n, dtype=np.int32)[None] % 3
    loads = [case.simulator().simulate(device).busy_s for case in (first, again)]
    np.testing.assert_allclose(loads[0], loads[1], rtol=1e-6)  # bytes are whole numbers


def test_the_package_offers_what_the_command_line_does() -> None:
    assert pipeline.Scenario is Scenario


def test_a_search_ends_where_the_gap_is_small_enough(tmp_path: Path) -> None:
    scenario = Scenario(written(tmp_path / "g.json", document()), evaluator="pipelined")
    whole = search(scenario, Effort("anneal", evaluations=400))
    assert not whole["proven"]
    loose = search(scenario, Effort("portfolio", evaluations=400, gap=0.9))
    assert loose["evaluations"] < whole["evaluations"]
    assert loose["gap"] <= 0.9


@pytest.mark.parametrize("gap", ["100%", "-1", "one"])
def test_a_gap_is_a_share(gap: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["search", "zoo:chainmm", "--topology", "equal:2", "--gap", gap]) == 2
    assert "such as 2%" in capsys.readouterr().err
