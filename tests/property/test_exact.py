"""Exact methods and lower bounds against every placement, and every order, of small random problems."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from pipeline.core.devices import CostTable, DeviceSpec, Topology, contract_costs
from pipeline.core.graph import Grouping, contract
from pipeline.core.measurement import Prediction
from pipeline.core.placement import Placement
from pipeline.core.problem import Budget, Instance, Problem
from pipeline.core.simulation import ExecutionModel
from pipeline.core.stages import Answer, Simulator, Subject
from pipeline.core.tensors import edges_of
from policy.place.exact.sequential.min_cut import MinCut
from policy.place.exact.shared.cpsat import CpSat
from policy.place.exact.shared.nets import Cut
from policy.place.exact.shared.proofs import lower_bound
from runtime.simulators.dataflow.listsched import ListSched
from runtime.simulators.pipelined.pipelined import Pipelined
from runtime.simulators.sequential.sequential import Sequential
from tests.toys import ignore_progress, toy_graph

ROUNDING = 1e-3  # what whole ticks may lose
FLOATS = 1e-9
TYPES = ("MatMul", "Add", "Parameter", "Constant", "Result")
LEVELS = {  # without memory: weights count all the same, in the problem, and activations are no matter here
    "T0": ListSched(level="T0", memory=False),
    "T1": ListSched(level="T1", block_s=5e-5, gap_s=1e-4, memory=False),
    "T2": ListSched(level="T2", memory=False),
}


def random_problem(seed: int, *, n: int, p: int, even: bool, memory: bool = False, idle: float = 0.2) -> Problem:
    """Return a random problem of n operations; even: equal devices and links."""
    rng = np.random.default_rng(seed)
    edges = [(i, j) for j in range(n) for i in range(j) if rng.random() < 0.5]
    graph = toy_graph(n, edges, types=[TYPES[t] for t in rng.integers(0, len(TYPES), n)])
    producer, consumer = (np.tile(ends, 2) for ends in graph.edges)
    port = np.repeat([0, 1], graph.m)
    size = rng.integers(0, 6, (2, n))[port, producer]
    size = np.where(rng.random(size.size) < 0.2, rng.integers(0, 6, size.size), size)  # now and then a part of it
    there = (port == 0) | (rng.random(size.size) < 0.3)  # an edge carries the first output, now and then a second one
    edges, edge_bytes, reads = edges_of(producer[there], consumer[there], port[there], size[there])
    weight = rng.integers(0, 4, n) if memory else np.zeros(n)
    graph = dataclasses.replace(graph, edges=edges, edge_bytes=edge_bytes, reads=reads, weight_bytes=weight)
    op_s = rng.random((n, 1 if even else p)).repeat(p if even else 1, axis=1) * 1e-3
    op_s[rng.random(n) < idle] = 0.0
    if not even:
        op_s[rng.integers(0, n), rng.integers(0, p)] = math.inf
    room = int(max(weight.max(), math.ceil(weight.sum() / p * 1.2))) if memory else 0
    devices = tuple(DeviceSpec(f"D{d}", "CPU", "CPU", kind="gpu", memory_bytes=room) for d in range(p))
    topology = Topology.uniform(devices, bytes_per_s=4e3, latency_s=1e-4)
    if not even:
        apart = ~np.eye(p, dtype=bool)
        bytes_per_s = np.where(apart, 2e3 + 4e3 * rng.random((p, p)), np.inf)
        topology = Topology(devices, bytes_per_s, np.where(apart, 2e-4 * rng.random((p, p)), 0.0))
    costs = CostTable(graph.names, topology.names, op_s, np.zeros(p), ("given",) * p)
    return Problem(Instance(graph, topology, Grouping.identity(n), costs, costs.supported), ordered=True)


def evaluator_of(problem: Problem, measurer: ListSched | Sequential | Pipelined) -> Simulator:
    return measurer.bind(  # type: ignore[return-value]
        Subject(Path(), problem.graph, Grouping.identity(problem.graph.n), problem.topology, problem.costs, 0)
    )


def every_placement(problem: Problem) -> Iterator[Placement]:
    """Yield all placements that fit."""
    for device in product(range(problem.topology.p), repeat=problem.graph.n):
        placement = Placement(np.array(device), problem.topology.names)
        if problem.fits(placement):
            yield placement


def least_s(problem: Problem, evaluator: Simulator) -> float:
    """Return the least value of all placements without priorities."""
    found = evaluator.evaluate(list(every_placement(problem)))
    return min((r.value_s for r in found if isinstance(r, Prediction)), default=math.inf)


def solved(problem: Problem, evaluator: Simulator, method: CpSat | MinCut) -> Answer:
    return method.place(problem, evaluator, Budget(10_000), seed=0, progress=ignore_progress)


class Machine:
    """Devices and links on which activities are put one after another, in any order; the reference for `listsched`."""

    def __init__(self, problem: Problem, execution: ExecutionModel, device: tuple[int, ...]) -> None:
        self.problem, self.execution, self.device = problem, execution, device
        self.best_s = math.inf
        self.sends: list[tuple[int, list[int], int | None, float]] = []  # maker, readers, target, seconds
        self.at_once: list[tuple[int, int, float]] = []  # maker, reader, seconds
        tensors: dict[tuple[int, int, int], list[int]] = {}
        graph = problem.graph
        for u, v, t, size in graph.read_rows():
            if device[u] == device[v]:
                self.at_once.append((u, v, 0.0))
            elif size == 0 or execution.level == "T0":
                self.at_once.append((u, v, self.link_s(device[u], device[v], size) + self.latency_s(u, v)))
            else:
                tensors.setdefault((u, t, size), []).append(v)
        for (u, _, size), readers in tensors.items():
            targets = sorted({device[v] for v in readers})
            if execution.level == "T1":
                self.sends.append((u, readers, None, max(self.link_s(device[u], d, size) for d in targets)))
            else:
                for d in targets:
                    held = [v for v in readers if device[v] == d]
                    self.sends.append((u, held, d, self.link_s(device[u], d, size)))

    def link_s(self, source: int, target: int, size: int) -> float:
        return float(size / self.problem.topology.link_bytes_per_s[source, target])

    def latency_s(self, u: int, v: int) -> float:
        return float(self.problem.topology.link_latency_s[self.device[u], self.device[v]])

    def optimum_s(self) -> float:
        """Return the least time of all orders: activities are tried in the order of their starts."""
        waiting = {v: {u for u, w, _ in self.at_once if w == v} for v in range(self.problem.graph.n)}
        for x, (_, readers, _, _) in enumerate(self.sends):
            for v in readers:
                waiting[v].add(-1 - x)
        self._put({}, {}, {}, 0.0, 0.0, waiting)
        return self.best_s

    def _put(self, end: dict, free: dict, ready: dict, last_s: float, value_s: float, waiting: dict) -> None:
        n, sends = self.problem.graph.n, self.sends
        if value_s >= self.best_s:
            return
        if len(end) == n + len(sends):
            self.best_s = value_s
            return
        for x in [*range(n), *range(-len(sends), 0)]:
            if x in end or (x >= 0 and not waiting[x] <= end.keys()) or (x < 0 and sends[-1 - x][0] not in end):
                continue
            used, takes_s, held_s, before_s = self._needs(x, end, ready)
            start_s = max([before_s, *(free.get(r, 0.0) for r in used)])
            if start_s < last_s:
                continue
            released = dict(ready)
            for v, arrives_s in self._releases(x, start_s + takes_s):
                released[v] = max(released.get(v, 0.0), arrives_s)
            after = {**free, **dict.fromkeys(used, start_s + held_s)}
            longer_s = max(value_s, start_s + held_s)
            self._put({**end, x: start_s + takes_s}, after, released, start_s, longer_s, waiting)

    def _needs(self, x: int, end: dict, ready: dict) -> tuple[list, float, float, float]:
        """Return (resources, seconds until its result is there, seconds it holds them, before when it cannot start)."""
        costs = self.problem.costs
        assert costs is not None
        if x >= 0:
            op_s = float(costs.op_s[x, self.device[x]])
            return [self.device[x]], op_s, op_s + (self.execution.block_s if op_s > 0 else 0.0), ready.get(x, 0.0)
        u, _, target, seconds = self.sends[-1 - x]
        used = [("out", self.device[u])] + ([] if target is None else [("in", target)])
        return used, seconds, seconds + self.execution.gap_s, end[u]

    def _releases(self, x: int, over_s: float) -> Iterator[tuple[int, float]]:
        if x >= 0:
            yield from ((v, over_s + late_s) for u, v, late_s in self.at_once if u == x)
        else:
            u, readers, _, _ = self.sends[-1 - x]
            yield from ((v, over_s + self.latency_s(u, v)) for v in readers)


def free_optimum_s(problem: Problem, execution: ExecutionModel) -> float:
    """Return the least time of all placements and all orders, those that let devices wait included."""
    assert problem.costs is not None
    best = math.inf
    for placement in every_placement(problem):
        machine = Machine(problem, execution, tuple(placement.device.tolist()))
        machine.best_s = best * (1 + 1e-12)
        best = min(best, machine.optimum_s())
    return best


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_a_minimum_cut_is_the_best_division_over_two_devices_in_turns(seed: int, memory: bool, even: bool):
    problem = random_problem(seed, n=6, p=2, even=even, memory=memory)
    evaluator = evaluator_of(problem, Sequential())
    optimum = least_s(problem, evaluator)
    if math.isinf(optimum):
        pytest.skip("the weights do not fit")
    answer = solved(problem, evaluator, MinCut())
    assert answer.lower_bound_s <= optimum * (1 + FLOATS)
    if not memory:
        assert answer.best.result.value_s == pytest.approx(optimum, rel=FLOATS)
        assert answer.lower_bound_s == pytest.approx(optimum, rel=1e-8)


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_expansions_never_make_a_division_dearer_and_bounds_lie_below(seed: int, even: bool):
    problem = random_problem(seed, n=5, p=3, even=even)
    optimum = least_s(problem, evaluator_of(problem, Sequential()))
    cut = Cut.of(problem, problem.grouping)
    assert cut.relaxed_s(seconds=5) <= optimum * (1 + FLOATS)
    device = cut.group_s.argmin(axis=1).astype(np.int32)
    for target in (0, 1, 2, 0, 1, 2):
        offered, stated_s = cut.expanded(device, target)
        assert cut.value_s(offered) <= stated_s * (1 + FLOATS)
        assert cut.value_s(offered) <= cut.value_s(device) * (1 + FLOATS)
        device = offered
    assert cut.value_s(device) >= optimum * (1 - FLOATS)


@pytest.mark.parametrize("seed", range(6))
def test_one_operation_of_ten_thousand_years_lifts_no_bound_above_the_optimum(seed: int):
    problem = random_problem(seed, n=5, p=3, even=False)
    op_s = problem.costs.op_s.copy()
    op_s[seed % 5, np.flatnonzero(np.isfinite(op_s[seed % 5]))[0]] = 3e11
    problem = problem.on(costs=dataclasses.replace(problem.costs, op_s=op_s))
    optimum = least_s(problem, evaluator_of(problem, Sequential()))
    assert Cut.of(problem, problem.grouping).relaxed_s(seconds=5) <= optimum * (1 + FLOATS)


@pytest.mark.parametrize("seed", range(8))
def test_the_cuts_sum_is_what_the_simulator_says(seed: int):
    problem = random_problem(seed, n=5, p=3, even=bool(seed % 2))
    cut = Cut.of(problem, problem.grouping)
    evaluator = evaluator_of(problem, Sequential())
    placements = list(every_placement(problem))
    for placement, result in zip(placements, evaluator.evaluate(placements), strict=True):
        assert isinstance(result, Prediction)
        assert cut.value_s(placement.device) == pytest.approx(result.value_s, rel=FLOATS)


@pytest.mark.parametrize("level", sorted(LEVELS))
@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_the_program_of_concurrent_devices_finds_the_optimum_over_all_orders(seed: int, even: bool, level: str):
    problem = random_problem(seed, n=5, p=2, even=even, memory=seed % 2 == 1)
    evaluator = evaluator_of(problem, LEVELS[level])
    optimum = free_optimum_s(problem, evaluator.execution)
    if math.isinf(optimum):
        pytest.skip("the weights do not fit")
    answer = solved(problem, evaluator, CpSat())
    assert answer.lower_bound_s <= optimum * (1 + FLOATS)
    assert answer.lower_bound_s >= optimum * (1 - ROUNDING)
    assert answer.best.result.value_s >= optimum * (1 - FLOATS)
    bound_s, _ = lower_bound(problem, evaluator.execution, one_to_one=True)
    assert bound_s <= optimum * (1 + FLOATS)


@pytest.mark.parametrize("measurer", [Sequential(), Pipelined()], ids=["sequential", "pipelined"])
@pytest.mark.parametrize("seed", range(8))
def test_programs_without_order_find_the_optimum_and_prove_it(seed: int, measurer: Sequential | Pipelined):
    problem = random_problem(seed, n=5, p=2 + seed % 2, even=seed % 4 < 2, memory=seed % 3 == 0)
    evaluator = evaluator_of(problem, measurer)
    optimum = least_s(problem, evaluator)
    if math.isinf(optimum):
        pytest.skip("the weights do not fit")
    answer = solved(problem, evaluator, CpSat())
    assert answer.best.result.value_s == pytest.approx(optimum, rel=1e-6)
    assert answer.lower_bound_s <= optimum * (1 + FLOATS)
    assert answer.lower_bound_s == pytest.approx(optimum, rel=1e-6)
    bound_s, _ = lower_bound(problem, evaluator.execution, one_to_one=True)
    assert bound_s <= optimum * (1 + FLOATS)


@pytest.mark.parametrize("level", sorted(LEVELS))
@pytest.mark.parametrize("seed", range(6))
def test_bounds_of_merged_operations_stay_below_what_their_simulator_says(seed: int, level: str):
    fine = random_problem(seed, n=6, p=2, even=seed % 2 == 0)
    grouping = Grouping.of_labels(np.random.default_rng(seed).integers(0, 4, 6))
    assert fine.costs is not None
    graph = contract(fine.graph, grouping)
    costs = contract_costs(fine.costs, graph, grouping)
    coarse = fine.on(
        graph=graph,
        grouping=Grouping.identity(graph.n),
        costs=costs,
        allowed=np.where(costs.supported.any(axis=1)[:, None], costs.supported, True),
    )
    subject = Subject(Path(), fine.graph, grouping, fine.topology, fine.costs, 0)
    evaluator = LEVELS[level].bind(subject)
    optimum = least_s(coarse, evaluator)  # type: ignore[arg-type]
    answer = solved(coarse, evaluator, CpSat())  # type: ignore[arg-type]
    assert answer.lower_bound_s <= optimum * (1 + FLOATS)
