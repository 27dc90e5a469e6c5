"""Lower bounds and packings: cases computed by hand, and plain references of the compiled parts."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from ortools.sat.python.cp_model import OPTIMAL, CpSolver

from pipeline.core.devices import CostTable, DeviceSpec, Topology
from pipeline.core.errors import UsageError
from pipeline.core.graph import Grouping
from pipeline.core.placement import Placement
from pipeline.core.problem import Budget, Instance, Problem
from pipeline.core.simulation import DataflowModel, ExecutionModel, LatencyModel, PipelineModel, SequentialModel
from pipeline.core.stages import Subject
from pipeline.settings.registry import build_implementation
from policy.place.base.groups import Groups
from policy.place.exact.dataflow.cpsat_schedule import listsched
from policy.place.exact.dataflow.cpsat_times import Times
from policy.place.exact.sequential.min_cut import MinCut
from policy.place.exact.shared.bound_kernels import interval_bound
from policy.place.exact.shared.bounds import explain_memory, least_memory
from policy.place.exact.shared.cpsat import CpSat
from policy.place.exact.shared.cpsat_models import in_order_of_use, in_ticks, tick_of
from policy.place.exact.shared.flow import Arcs
from policy.place.exact.shared.nets import Nets
from policy.place.exact.shared.paths import BoundInputs, Paths
from policy.place.exact.shared.proofs import lower_bound
from policy.place.exact.shared.relaxation import load_bound
from runtime.simulators.dataflow.listsched import ListSched
from tests.published import MSR
from tests.strategies import graph_of
from tests.toys import ignore_progress

INPUTS = MSR / "latency-inputs"
LISTSCHED = DataflowModel("T0")
LATENCY_S = 1.0


def problem_of(
    edges: Sequence[tuple[int, int]],
    op_s: Sequence[Sequence[float]],
    *,
    weight: Sequence[int] | None = None,
    room: Sequence[int] | None = None,
    colocate: Sequence[int] | None = None,
    launch_s: float = 0.0,
) -> Problem:
    """Return a problem whose tensors of one byte take LATENCY_S and a tenth between any two devices."""
    times = np.array(op_s, dtype=np.float64)
    n, p = times.shape
    graph = graph_of(n, edges, colocate=colocate)
    if weight is not None:
        graph = dataclasses.replace(graph, weight_bytes=np.array(weight))
    room = [0] * p if room is None else room
    devices = tuple(DeviceSpec(f"D{d}", "CPU", "CPU", memory_bytes=room[d]) for d in range(p))
    topology = Topology.uniform(devices, bytes_per_s=10.0, latency_s=LATENCY_S)
    costs = CostTable(graph.names, topology.names, times, np.full(p, launch_s), ("given",) * p)
    return Problem(Instance(graph, topology, Grouping.identity(n), costs, costs.supported))


def bound_s(problem: Problem, execution: ExecutionModel = LISTSCHED, *, one_to_one: bool = True) -> float:
    return lower_bound(problem, execution, one_to_one=one_to_one)[0]


def unlimited(p: int) -> np.ndarray:
    return np.full(p, 2**60)


def test_equal_devices_share_the_work_evenly():
    load_s, price = load_bound(np.array([[3.0, 3.0], [1.0, 1.0]]), np.zeros(2, np.int64), unlimited(2), seconds=1)
    assert load_s == 2.0
    assert price.tolist() == [0.5, 0.5]


def test_unequal_devices_are_loaded_as_the_linear_program_says():
    # Each device is twice as fast at one group. The third takes 3 anywhere and is divided: 1 + 1 + 3 over two devices.
    group_s = np.array([[1.0, 2.0], [2.0, 1.0], [3.0, 3.0]])
    load_s, _ = load_bound(group_s, np.zeros(3, np.int64), unlimited(2), seconds=5)
    assert load_s == pytest.approx(2.5, rel=1e-6)


def test_memory_keeps_work_from_the_fast_device():
    # Both groups would take 1 s on A, 10 s on B; A holds only half of the weights: T = x + 0 for the share x = 1 on A,
    # and the other group's whole 10 s on B, so that the loads are 1 and 10.
    group_s = np.array([[1.0, 10.0], [1.0, 10.0]])
    load_s, _ = load_bound(group_s, np.array([4, 4]), np.array([4, 2**60]), seconds=5)
    assert load_s == pytest.approx(10.0, rel=1e-6)


def test_a_group_that_no_device_may_have_allows_no_division():
    group_s = np.array([[math.inf, math.inf], [1.0, 2.0], [3.0, math.inf]])
    assert load_bound(group_s, np.array([50, 40, 30]), np.array([97, 97]), seconds=1)[0] == math.inf


def test_a_path_takes_the_better_of_slow_operations_and_transfers():
    # 0 is fast on A, 1 on B: staying costs 1 + 5 on A, going over costs 1 + 1.1 + 1.
    problem = problem_of([(0, 1)], [[1.0, 5.0], [5.0, 1.0]])
    assert bound_s(problem) == pytest.approx(3.1)


def test_a_cpu_hands_a_tensor_to_another_one_for_nothing_where_calls_alone_pay():
    problem = problem_of([(0, 1)], [[1.0, 9.0, 9.0], [9.0, 1.0, 9.0]])
    kinds = zip(problem.topology.devices, ("cpu", "cpu", "gpu"), strict=True)
    devices = tuple(dataclasses.replace(device, kind=kind) for device, kind in kinds)
    problem = problem.on(topology=dataclasses.replace(problem.topology, devices=devices))
    assert bound_s(problem, LatencyModel()) == pytest.approx(2.0)


def test_operations_without_a_device_in_common_pay_for_the_transfer():
    problem = problem_of([(0, 1)], [[2.0, math.inf], [math.inf, 3.0]])
    assert bound_s(problem) == pytest.approx(2 + LATENCY_S + 0.1 + 3)


def test_tied_operations_pay_for_no_transfer_but_go_the_same_way():
    problem = problem_of([(0, 1)], [[1.0, 5.0], [5.0, 1.0]], colocate=[0, 0])
    assert bound_s(problem) == pytest.approx(6.0)


def test_work_between_a_common_head_and_a_common_tail_counts_with_both():
    # 0 feeds four operations of 3 s that feed 5: 1 + 4 * 3 / 2 + 1 on two equal devices, more than 5 s of path or
    # 14 / 2 s of work.
    edges = [(0, i) for i in range(1, 5)] + [(i, 5) for i in range(1, 5)]
    problem = problem_of(edges, [[t, t] for t in (1.0, 3.0, 3.0, 3.0, 3.0, 1.0)])
    assert lower_bound(problem, LISTSCHED, one_to_one=True) == (pytest.approx(8.0), "work between heads and tails")


def test_work_before_and_after_an_operation_makes_its_head_and_tail_longer():
    # 0 feeds four operations of 3 s that feed 5, which feeds four more that feed 10: 5 waits for all of the first four,
    # so that it takes 1 + 6 + 1 + 6 + 1 on two equal devices. Between heads along paths and tails there are 14.5 s.
    edges = [(a, i) for a, first in ((0, 1), (5, 6)) for i in range(first, first + 4)]
    edges += [(i, b) for b, first in ((5, 1), (10, 6)) for i in range(first, first + 4)]
    times = [1.0 if i % 5 == 0 else 3.0 for i in range(11)]
    problem = problem_of(edges, [[t, t] for t in times])
    work = BoundInputs.of(problem)
    paths = Paths.of(problem, work)
    assert paths is not None
    even = np.full(2, 0.5)
    assert paths.interval_s(work.op_s, even, 0.0) == pytest.approx(14.5)
    assert paths.busy(work, even, 0.0, lambda: False).interval_s(work.op_s, even, 0.0) == pytest.approx(14.5)
    assert lower_bound(problem, LISTSCHED, one_to_one=True) == (pytest.approx(15.0), "work before and after paths")


@pytest.mark.parametrize("seed", range(20))
def test_nothing_starts_before_its_head_or_ends_too_late_for_its_tail(seed: int):
    rng = np.random.default_rng(seed)
    n, p = 12, 2
    edges = [(i, j) for j in range(n) for i in range(max(0, j - 4), j) if rng.random() < 0.5]
    op_s = rng.random((n, p)) if seed % 2 else np.repeat(rng.random((n, 1)), p, axis=1)
    problem = problem_of(edges, op_s.tolist())
    problem = problem.on(topology=Topology.uniform(problem.topology.devices, bytes_per_s=100.0, latency_s=0.0))
    block_s = 0.05 * (seed % 3)
    rules = {"level": "T1", "block_s": block_s, "gap_s": 0.0}
    work = BoundInputs.of(problem)
    paths = Paths.of(problem, work)
    assert paths is not None
    _, price = work.load(block_s, 1.0)
    busy = paths.busy(work, price, block_s, lambda: True)
    assert np.all(busy.start_s >= paths.start_s)
    head_s, tail_s = busy.start_s.min(axis=1), busy.tail_s.min(axis=1)
    subject = Subject(None, problem.graph, Grouping.identity(n), problem.topology, problem.costs, 0)
    simulator = build_implementation("measure", "listsched", rules).bind(subject)
    for _ in range(200):
        device, priority = rng.integers(0, p, n, dtype=np.int32), rng.random(n)
        found = simulator.timeline(Placement(device, problem.topology.names, priority))
        assert np.all(found.start_s >= head_s - 1e-9)
        assert np.all(found.value_s - found.end_s >= tail_s - 1e-9)


@pytest.mark.parametrize(
    ("op_s", "expected_s"),
    [
        (0.2, 0.2 + 4 * 0.2 + 0.2),  # one after the other: whatever is sent comes later
        (0.4, 0.4 + 0.4 + LATENCY_S + 0.1 + 0.4),  # two at least are elsewhere, or else they would come later
    ],
)
def test_operations_wait_for_all_before_them_on_their_device_or_for_transfers(op_s: float, expected_s: float):
    edges = [(0, i) for i in range(1, 5)] + [(i, 5) for i in range(1, 5)]
    problem = problem_of(edges, [[op_s] * 4] * 6)
    work = BoundInputs.of(problem)
    paths = Paths.of(problem, work)
    assert paths is not None
    busy = paths.busy(work, np.full(4, 0.25), 0.0, lambda: True)
    assert busy.start_s[5].min() + op_s == pytest.approx(expected_s)
    assert busy.tail_s[0].min() + op_s == pytest.approx(expected_s)
    assert lower_bound(problem, LISTSCHED, one_to_one=True) == (
        pytest.approx(expected_s),
        "work before and after paths",
    )


def test_without_knowing_the_operations_only_work_is_counted():
    problem = problem_of([(0, 1)], [[1.0, 1.0], [1.0, 1.0]])
    assert bound_s(problem, one_to_one=False) == pytest.approx(1.0)
    assert bound_s(problem) == pytest.approx(2.0)


def test_memory_that_forces_a_second_device_forces_a_transfer():
    problem = problem_of([(0, 1), (1, 2)], [[1.0, 1.0]] * 3, weight=[2, 2, 2], room=[4, 4])
    assert lower_bound(problem, LISTSCHED, one_to_one=True) == (
        pytest.approx(3 + LATENCY_S + 0.1),
        "transfers that memory forces",
    )


@pytest.mark.parametrize("seed", range(20))
def test_the_interval_bound_is_that_of_the_best_pair_of_head_and_tail(seed: int):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 12))
    head, tail = rng.integers(0, 6, n).astype(float), rng.integers(0, 6, n).astype(float)
    work = rng.random(n)
    expected = max(
        a + work[held].sum() + b for a, b in product(head, tail) if (held := (head >= a) & (tail >= b)).any()
    )
    assert interval_bound(head, tail, work) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(10))
def test_starts_and_tails_are_those_of_a_plain_recursion(seed: int):
    rng = np.random.default_rng(seed)
    n, p = 7, 3
    edges = [(i, j) for j in range(n) for i in range(j) if rng.random() < 0.4]
    problem = problem_of(edges, rng.random((n, p)).tolist())
    work = BoundInputs.of(problem)
    paths = Paths.of(problem, work)
    assert paths is not None

    def link_s(i: int, at: int, other: int) -> float:
        return float(work.op_s[i, at]) + (1.1 if at != other else 0.0)

    def start(v: int, d: int) -> float:
        before = [
            min(start(u, s) + work.op_s[u, s] + (1.1 if s != d else 0) for s in range(p)) for u, w in edges if w == v
        ]
        return max(before, default=0.0)

    def tail(v: int, d: int) -> float:
        after = [
            min(tail(w, t) + work.op_s[w, t] + (1.1 if t != d else 0) for t in range(p)) for u, w in edges if u == v
        ]
        return max(after, default=0.0)

    assert paths.start_s == pytest.approx(np.array([[start(v, d) for d in range(p)] for v in range(n)]))
    assert paths.tail_s == pytest.approx(np.array([[tail(v, d) for d in range(p)] for v in range(n)]))


def test_a_cycle_leaves_the_work_as_the_only_bound():
    problem = problem_of([(0, 1), (1, 0)], [[1.0, 1.0]] * 2)
    assert bound_s(problem) == pytest.approx(1.0)


def test_devices_in_turns_add_up_and_start_at_least_one_sub_graph():
    problem = problem_of([(0, 1)], [[1.0, 5.0], [5.0, 1.0]], launch_s=0.5)
    assert bound_s(problem, SequentialModel()) == pytest.approx(1 + 1 + LATENCY_S + 0.1 + 0.5)
    assert bound_s(problem, SequentialModel(), one_to_one=False) == pytest.approx(2.5)


def test_a_pipeline_is_as_slow_as_its_largest_operation():
    problem = problem_of([(0, 1)], [[4.0, 5.0], [1.0, 1.0]])
    assert bound_s(problem, PipelineModel()) == pytest.approx(4.0)


def test_nothing_is_proven_without_rules_or_costs():
    problem = problem_of([(0, 1)], [[1.0], [1.0]])
    assert lower_bound(problem, None) == (0.0, "")
    assert lower_bound(problem.on(costs=None), LISTSCHED) == (0.0, "")


@pytest.mark.parametrize("seed", range(10))
def test_the_least_memory_suffices_and_is_not_far_above_the_best_packing(seed: int):
    rng = np.random.default_rng(seed)
    weight = rng.integers(0, 20, 6)
    problem = problem_of([], [[1.0, 1.0]] * 6, weight=weight.tolist())
    found = least_memory(problem)
    loads = [np.bincount(device, weights=weight, minlength=2).max() for device in product(range(2), repeat=6)]
    assert min(loads) <= found <= math.ceil(min(loads) * 11 / 9)  # first fit decreasing: 11/9 of the bins at most
    enough = problem_of([], [[1.0, 1.0]] * 6, weight=weight.tolist(), room=[max(found, 1)] * 2)
    assert explain_memory(enough) is None


def test_weights_that_do_not_fit_are_explained_with_the_memory_that_would_do():
    problem = problem_of([], [[1.0, 1.0]] * 3, weight=[6, 5, 4], room=[7, 7])
    error = explain_memory(problem)
    assert error is not None
    assert "9 bytes" in error.remedy
    assert explain_memory(problem_of([], [[1.0, 1.0]] * 3, weight=[6, 5, 4], room=[9, 7])) is None
    assert explain_memory(problem_of([], [[1.0, 1.0]] * 3, weight=[6, 5, 4])) is None


def test_readers_of_parts_of_a_tensor_are_charged_for_the_largest_part():
    graph = graph_of(4, [(0, 1), (0, 2), (0, 3)], edge_bytes={(0, 1): 2, (0, 2): 5, (0, 3): 5})
    nets = Nets.of(graph, Grouping.identity(4), normalised=False)
    held = [
        (int(nets.home[t]), sorted(nets.reader[nets.ptr[t] : nets.ptr[t + 1]].tolist()), float(nets.size[t]))
        for t in range(nets.t)
    ]
    assert held == [(0, [1, 2, 3], 2.0), (0, [2, 3], 3.0)]
    assert nets.first.tolist() == [True, False]


def test_a_cut_without_arcs_leaves_everybody_where_they_are_cheapest():
    arcs = Arcs(3)
    there = np.zeros(3, bool)
    base_s = arcs.choose(np.array([1.0, math.inf, 2.0]), np.array([2.0, 5.0, 1.0]), there)
    goes, flow_s = arcs.solve()
    assert base_s == 7.0
    assert flow_s == 0.0
    assert goes.tolist() == [False, True, True]


def test_times_become_whole_ticks_and_never_longer():
    assert tick_of(np.array([0.001, 0.25]), 1.0, ticks=1000) == pytest.approx(1e-3)
    assert tick_of(np.array([math.pi]), 10.0, ticks=1000) == pytest.approx(0.01)
    assert in_ticks(np.array([0.3, 0.39999, math.inf]), 0.1).tolist() == [3, 3, 0]


def test_a_time_just_below_a_whole_tick_is_not_rounded_up():
    almost_s = np.array([1 - 5e-7])
    assert in_ticks(almost_s, 1.0).tolist() == [0]
    assert tick_of(almost_s, 1.0, ticks=1000) == pytest.approx(1e-7)


def test_a_program_without_a_placement_to_start_from_leaves_room_for_blocks_and_gaps():
    problem = problem_of([(0, 1), (1, 2)], [[1e-3, math.inf], [math.inf, 1e-3], [1e-3, math.inf]])
    rules = DataflowModel("T1", block_s=5.0, gap_s=20.0)
    groups = Groups.of(problem)
    made = listsched(problem, groups, Times.of(problem, groups, rules, math.inf), None, 0.0)
    solver = CpSolver()
    assert solver.solve(made.model) == OPTIMAL
    # Two operations, a send of 0.1 s that arrives 1 s later, and a second send with the gap behind it.
    assert solver.objective_value * made.tick_s == pytest.approx(2e-3 + 1.1 + 0.1 + 20.0, rel=1e-3)


def test_devices_alike_are_used_in_order():
    device = in_order_of_use(np.array([2, 0, 2, 1], np.int32), [[0, 2]], np.arange(4))
    assert device.tolist() == [0, 2, 0, 1]


@pytest.mark.parametrize("wrong", [{"largest": -1}, {"workers": 0}, {"effort": 0.0}])
def test_a_solver_without_means_is_refused(wrong: dict[str, float]):
    with pytest.raises(UsageError, match="out of range"):
        CpSat(**wrong)


@pytest.mark.parametrize("wrong", [{"passes": -1}, {"prices": -1}])
def test_a_negative_number_of_passes_is_refused(wrong: dict[str, int]):
    with pytest.raises(UsageError, match="out of range"):
        MinCut(**wrong)


def msr_problem(name: str, devices: int) -> Problem:
    """Return a published latency problem on equal accelerators, memory ignored; times in seconds."""
    document = json.loads((INPUTS / name).read_text(encoding="utf-8"))
    bytes_per_s = 2**41  # fine enough for costs in ms
    index = {node["id"]: i for i, node in enumerate(document["nodes"])}
    cost_ms = {(index[e["sourceId"]], index[e["destId"]]): e["cost"] for e in document["edges"]}
    carried = {edge: round(ms * 1e-3 * bytes_per_s) for edge, ms in cost_ms.items()}
    graph = graph_of(len(index), list(carried), edge_bytes=carried)
    op_s = np.array([[node["fpgaLatency"] * 1e-3] * devices for node in document["nodes"]])
    specs = tuple(DeviceSpec(f"D{d}", "CPU", "CPU") for d in range(devices))
    topology = Topology.uniform(specs, bytes_per_s=bytes_per_s, latency_s=0.0)
    costs = CostTable(graph.names, topology.names, op_s, np.zeros(devices), ("given",) * devices)
    return Problem(Instance(graph, topology, Grouping.identity(graph.n), costs, costs.supported), ordered=True)


@pytest.mark.skipif(not INPUTS.exists(), reason="the published inputs are not here")
@pytest.mark.parametrize(
    ("name", "bound_ms"),
    [("LayerGraphs/bert24_inference.json", 92.406), ("OperatorGraphs/resnet50_inference.json", 289.855)],
)
def test_published_bounds_are_reached(name: str, bound_ms: float):
    assert bound_s(msr_problem(name, 4), DataflowModel("T1")) * 1e3 == pytest.approx(bound_ms, abs=1e-3)


@pytest.mark.skipif(not INPUTS.exists(), reason="the published inputs are not here")
def test_resnet50_is_proven_to_run_best_on_one_of_four_accelerators():
    problem = msr_problem("LayerGraphs/resnet50_inference.json", 4)
    subject = Subject(Path(), problem.graph, problem.grouping, problem.topology, problem.costs, 0)
    evaluator = ListSched(level="T1-bare").bind(subject)
    answer = CpSat().place(problem, evaluator, Budget(1000), seed=0, progress=ignore_progress)
    assert answer.best.result.value_s * 1e3 == pytest.approx(201.45)  # type: ignore[union-attr]
    assert answer.lower_bound_s * 1e3 == pytest.approx(201.45, rel=1e-3)
    assert len(answer.best.placement.devices_used) == 1
