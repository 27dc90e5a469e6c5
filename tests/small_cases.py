"""Five hundred small problems short of memory, and what brute force says of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from pipeline.core.arrays import Int64
from pipeline.core.devices import CostTable, DeviceSpec, Topology
from pipeline.core.graph import Graph, Grouping
from pipeline.core.placement import Placement
from pipeline.core.problem import Instance, Problem
from pipeline.core.stages import Simulator, Subject
from pipeline.settings.registry import build_implementation
from pipeline.shared.partition import colocation_grouping
from tests.strategies import graph_of

CASES = 500
RULES = ("listsched", "sequential", "listsched", "pipelined")
SHARES = (1.05, 1.1, 1.5)  # memory of a device over an equal share of what one device alone would hold


@dataclass(frozen=True, slots=True, eq=False)
class SmallCase:
    """A problem of 3 to 8 operations on 2 or 3 devices. rules: the simulator, listsched at level T2."""

    problem: Problem
    rules: str

    def simulator(self) -> Simulator:
        """Return the simulator, its count at 0."""
        problem, alone = self.problem, Grouping.identity(self.problem.graph.n)
        subject = Subject(None, problem.graph, alone, problem.topology, problem.costs, 0)
        return build_implementation("measure", self.rules, {}).bind(subject)  # type: ignore[no-any-return]

    def within(self, share: float) -> SmallCase:
        """Return the case with devices that hold `share` of an equal share of what one device alone would hold."""
        topology = self.problem.topology
        alone = np.zeros((1, self.problem.graph.n), np.int32)
        free = self.problem.on(allowed=np.ones_like(self.problem.allowed))
        total = int(SmallCase(free, self.rules).simulator().simulate(alone).peak_bytes.sum())
        room = max(1, int(share * total / topology.p))
        devices = tuple(replace(d, memory_bytes=room) for d in topology.devices)
        return SmallCase(self.problem.on(topology=replace(topology, devices=devices)), self.rules)

    def optimum_s(self) -> float:
        """Return the least seconds of all placements, one by one; inf if none fits."""
        homes = [np.flatnonzero(row).tolist() for row in self.problem.group_allowed(self.problem.grouping)]
        device = np.array(list(product(*homes)), np.int32)[:, self.problem.grouping.group]
        found = self.simulator().simulate(device)
        return float(np.where(found.over_bytes == 0, found.value_s, math.inf).min(initial=math.inf))

    def again_s(self, placement: Placement) -> float:
        """Return what a placement costs, asked on its own; inf if it does not fit."""
        found = self.simulator().simulate(placement.device[None], None)
        return float(found.value_s[0]) if found.over_bytes[0] == 0 else math.inf


def small_case(number: int) -> SmallCase:
    """Return case `number` of CASES with memory SHARES[number % 3]; a fourth of them have unlike devices or ties."""
    rng = np.random.default_rng([17, number])
    n, p = int(rng.integers(3, 9)), int(rng.integers(2, 4))
    graph = _graph(rng, n)
    kinds = np.where(rng.random(p) < 0.8, "gpu", "cpu")
    devices = tuple(DeviceSpec(f"D{d}", "X", "X", kind=str(kinds[d])) for d in range(p))
    alike = rng.random() < 0.5
    op_s = np.repeat(rng.uniform(0.1, 2.0, (n, 1)), p, axis=1) * (1.0 if alike else rng.uniform(0.5, 2.0, (n, p)))
    allowed = np.ones((n, p), bool)
    if number % 8 == 5:
        allowed[np.arange(n), rng.integers(0, p, n)] = rng.random(n) < 0.5
        allowed[graph.colocate >= 0] = True
    seconds_per_byte = rng.choice([1e-3, 1e-2, 1e-1])
    apart = ~np.eye(p, dtype=bool)
    speed = np.full((p, p), 1 / seconds_per_byte) if alike else rng.uniform(0.5, 2.0, (p, p)) / seconds_per_byte
    topology = Topology(devices, np.where(apart, speed, np.inf), np.where(apart, 0.01, 0.0))
    launch_s = np.full(p, rng.choice([0.0, 0.2]))
    costs = CostTable(graph.names, topology.names, op_s, launch_s, ("given",) * p)
    problem = Problem(Instance(graph, topology, colocation_grouping(graph), costs, allowed))
    return SmallCase(problem, RULES[number % 4]).within(SHARES[number % 3])


def _graph(rng: np.random.Generator, n: int) -> Graph:
    """Return a random acyclic graph of n operations with weights of up to 40 bytes and outputs of up to 20."""
    edges = [(i, j) for j in range(1, n) for i in range(j) if rng.random() < 1.6 / max(j, 1)]
    colocate = np.full(n, -1)
    if rng.random() < 0.15:
        colocate[rng.choice(n, 2, replace=False)] = 0
    out = rng.integers(1, 1 + int(rng.choice([2, 6, 20])), n)
    graph = graph_of(n, edges, out_bytes=out.tolist(), colocate=colocate.tolist())
    weights: Int64 = 10 * rng.integers(1, 1 + int(rng.choice([2, 4])), n)
    return replace(graph, weight_bytes=weights)
