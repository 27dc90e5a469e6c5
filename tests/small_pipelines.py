"""Small pipelines of all kinds, and what brute force says of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32
from pipeline.core.devices import CostTable, DeviceSpec, Topology
from pipeline.core.graph import Graph, Grouping
from pipeline.core.problem import Instance, Problem
from pipeline.core.simulation import Contiguity, Passes
from pipeline.core.stages import Simulator, Subject
from pipeline.settings.registry import build_implementation
from pipeline.shared.partition import colocation_grouping
from tests.strategies import connected, graph_of

MOST = 5000  # placements that brute force looks at


@dataclass(frozen=True, slots=True, eq=False)
class SmallPipeline:
    """A problem of 4 to 7 operations on k accelerators and l CPUs, k and l from 0 to 3."""

    problem: Problem

    def simulator(self, contiguity: Contiguity, passes: Passes = "together") -> Simulator:
        """Return the simulator, its count at 0."""
        problem = self.problem
        subject = Subject(None, problem.graph, Grouping.identity(problem.graph.n), problem.topology, problem.costs, 0)
        return build_implementation("measure", "pipelined", {"contiguity": contiguity, "passes": passes}).bind(subject)  # type: ignore[no-any-return]

    def placements(self) -> Int32:
        """Return int32 [c, n], every placement that is allowed and fits."""
        problem = self.problem
        homes = [np.flatnonzero(row).tolist() for row in problem.group_allowed(problem.grouping)]
        device = np.array(list(product(*homes)), np.int32).reshape(-1, len(homes))[:, problem.grouping.group]
        room = np.array([d.memory_bytes or np.inf for d in problem.topology.devices])
        held = np.stack([(device == d) @ problem.graph.weight_bytes for d in range(problem.topology.p)], axis=1)
        return device[(held <= room).all(axis=1)]

    def loads_s(self, device: Int32) -> Float64:
        """Return float64 [c], the largest loads of placements, by the definition."""
        problem = self.problem
        graph, topology, costs = problem.graph, problem.topology, problem.costs
        assert costs is not None
        found = np.zeros((len(device), topology.p))
        for d, spec in enumerate(topology.devices):
            on = device == d
            found[:, d] = on @ np.where(np.isfinite(costs.op_s[:, d]), costs.op_s[:, d], 0.0)
            for u in range(graph.n) if spec.kind != "cpu" and topology.p > 1 else ():
                mine = np.flatnonzero(graph.edges[0] == u)
                members = [u, *graph.edges[1, mine].tolist()]
                if mine.size:
                    pay_s = graph.edge_bytes[mine].max() / topology.link_bytes_per_s[0, 1]
                    found[:, d] += pay_s * (on[:, members].any(axis=1) & ~on[:, members].all(axis=1))
        return found.max(axis=1)

    def ordered(self, device: Int32) -> Bool:
        """Return bool [c], whether the devices can be put in an order."""
        graph, p = self.problem.graph, self.problem.topology.p
        backward = np.array(graph.type_names)[graph.op_type] == "Backward"
        forward_of = {int(c) for c in self.problem.grouping.group[~backward]}
        leads = np.zeros((len(device), p, p), bool)
        row = np.arange(len(device))
        for a, b in graph.edges.T.tolist():
            if not backward[a] and not backward[b]:
                leads[row, device[:, a], device[:, b]] = True
            elif backward[a] and backward[b] and not {*self.problem.grouping.group[[a, b]].tolist()} <= forward_of:
                leads[row, device[:, b], device[:, a]] = True
        leads[:, np.arange(p), np.arange(p)] = False
        for middle in range(p):
            leads |= leads[:, :, [middle]] & leads[:, [middle], :]
        return ~leads[:, np.arange(p), np.arange(p)].any(axis=1)

    def convex(self, device: Int32) -> Bool:
        """Return bool [c], whether no path of the forward pass leaves a device and comes back."""
        graph = self.problem.graph
        backward = np.array(graph.type_names)[graph.op_type] == "Backward"
        inside = ~backward[graph.edges].any(axis=0)
        path = connected(graph_of(graph.n, graph.edges[:, inside].T.tolist()))
        found = np.ones(len(device), bool)
        for u, w, v in product(range(graph.n), repeat=3):
            if path[u, w] and path[w, v]:
                found &= ~((device[:, u] == device[:, v]) & (device[:, u] != device[:, w]))
        return found

    def optimum_s(self, contiguity: Contiguity) -> float:
        """Return the least largest load of all placements as contiguous as asked for; inf if none fits."""
        device = self.placements()
        kept = {"free": lambda d: np.ones(len(d), bool), "convex": self.convex, "ordered": self.ordered}[contiguity]
        return float(self.loads_s(device)[kept(device)].min(initial=math.inf))


def small_pipeline(number: int, *, training: bool | None = None) -> SmallPipeline:
    """Return case `number`; training: whether it has backward operations, by chance if None."""
    rng = np.random.default_rng([29, number])
    while True:
        n = int(rng.integers(4, 8))
        k, cores = (int(x) for x in rng.integers(0, 4, 2))
        if k + cores > 0 and (k + cores) ** n <= MOST:
            break
    trains = bool(rng.random() < 0.4) if training is None else training
    graph = _training(rng, n) if trains and n >= 5 else _inference(rng, n)
    specs = [DeviceSpec(f"acc{d}", "X", "X", kind="npu") for d in range(k)]
    specs += [DeviceSpec(f"cpu{d}", "X", "X", kind="cpu") for d in range(cores)]
    topology = Topology.uniform(tuple(specs), bytes_per_s=10.0, latency_s=0.0)
    fast = rng.integers(0, 9, graph.n) * (rng.random(graph.n) < 0.8) * 1.0
    slow = fast * rng.choice([1.0, 2.0, 10.0]) + rng.integers(0, 2, graph.n)
    op_s = np.repeat(np.stack([fast, slow], axis=1), [k, cores], axis=1)
    if cores:
        op_s[rng.random(graph.n) < 0.1, :k] = np.inf
    costs = CostTable(graph.names, topology.names, op_s, np.zeros(topology.p), ("given",) * topology.p)
    problem = Problem(Instance(graph, topology, colocation_grouping(graph), costs, np.isfinite(op_s)))
    if k and rng.random() < 0.5:
        room = max(int(graph.weight_bytes.sum() * rng.uniform(0.2, 0.9)), 1)
        devices = tuple(replace(d, memory_bytes=room if d.kind != "cpu" else 0) for d in topology.devices)
        problem = problem.on(topology=replace(topology, devices=devices))
    return SmallPipeline(problem)


def _inference(rng: np.random.Generator, n: int) -> Graph:
    edges = [(i, j) for j in range(1, n) for i in range(j) if rng.random() < 1.6 / j]
    colours = np.where(rng.random(n) < 0.25, rng.integers(0, 2, n), -1)
    return _made(rng, n, edges, colours.tolist(), n)


def _training(rng: np.random.Generator, n: int) -> Graph:
    """Return a graph whose last operations are backward ones, some without a forward one of their colour."""
    first = n - n // 3
    edges = [(i, j) for j in range(1, first) for i in range(j) if rng.random() < 1.6 / j]
    edges += [(i, j) for j in range(first, n) for i in range(j) if rng.random() < 0.3]
    colours = list(range(n))
    for j in range(first, n):
        if rng.random() < 0.7:
            colours[j] = int(rng.integers(0, first))
    return _made(rng, n, edges, colours, first)


def _made(rng: np.random.Generator, n: int, edges: list[tuple[int, int]], colours: list[int], first: int) -> Graph:
    size = rng.integers(0, 40, n)
    sizes = {(a, b): int(size[a]) for a, b in edges}
    graph = graph_of(n, edges, out_bytes=size.tolist(), edge_bytes=sizes, colocate=colours)
    types = (np.arange(n) >= first).astype(np.int16)
    weights = 10 * rng.integers(0, 4, n)
    return replace(graph, op_type=types, type_names=("Forward", "Backward"), weight_bytes=weights)
