"""Placements judged by a percentile over disturbed costs."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.core.devices import CostTable, DeviceSpec, Topology
from pipeline.core.graph import Grouping
from pipeline.core.problem import Budget, Instance, Problem
from pipeline.core.stages import Answer, Simulator
from pipeline.placing.robust import place_robust
from pipeline.settings.registry import build_implementation
from tests.small_cases import SmallCase
from tests.toys import toy_graph

CHAIN = 12


def fragile_problem() -> Problem:
    """Return a chain that is 2 % faster on the GPU, where one operation takes nearly all of the time."""
    graph = toy_graph(CHAIN, [(i, i + 1) for i in range(CHAIN - 1)])
    devices = tuple(DeviceSpec(name, name, name, kind=name.lower()) for name in ("CPU", "GPU"))
    topology = Topology.uniform(devices, bytes_per_s=1e9, latency_s=10.0)
    op_s = np.full((CHAIN, 2), 1.02 / CHAIN)  # errors of many operations level out
    op_s[:, 1] = 0.01
    op_s[0, 1] = 1.0 - 0.01 * (CHAIN - 1)
    costs = CostTable(graph.names, topology.names, op_s, np.zeros(2), ("given", "given"))
    return Problem(Instance(graph, topology, Grouping.identity(CHAIN), costs, costs.supported))


def simulator_of(problem: Problem) -> Simulator:
    return SmallCase(problem, "sequential").simulator()


def place(problem: Problem, budget: Budget, seed: int) -> tuple[Answer, int]:
    simulator = simulator_of(problem)
    placer = build_implementation("place", "anneal")
    return placer.place(problem, simulator, budget, seed=seed, progress=lambda _: None), simulator.evaluations


@pytest.mark.parametrize(("residual", "device"), [(0.4, 0), (0.001, 1)])
def test_a_fragile_placement_is_chosen_only_where_costs_are_certain(residual: float, device: int) -> None:
    budget = Budget(evaluations=4000)
    answer, spent, record = place_robust(fragile_problem(), residual, simulator_of, place, budget, seed=0)
    assert set(answer.best.placement.device.tolist()) == {device}
    assert record["nominal_s"] == pytest.approx(1.0, rel=0.01)
    assert record["value_s"] <= record["nominal_value_s"]
    assert spent <= 4000 + 4
    assert answer.lower_bound_s <= answer.value_s
