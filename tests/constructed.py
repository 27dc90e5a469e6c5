"""Random problems for the constructor of `neural_list`, with all their figures at hand to be changed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pipeline.core.arrays import Float64, Int64
from pipeline.core.devices import CostTable, DeviceSpec, Topology
from pipeline.core.graph import Graph, Grouping
from pipeline.core.problem import Instance, Problem
from pipeline.core.simulation import DataflowModel, Level
from policy.place.learned.neural_list.instances import ListInstance
from policy.place.learned.neural_list.list_policy import ListPolicy
from policy.place.learned.neural_list.sampling import ListDraft
from policy.place.lists.listing import PartialSchedule
from policy.place.lists.work import work_of
from tests.strategies import graph_of


@dataclass(frozen=True)
class Amounts:
    """Operations, edges and devices by their numbers. Times in seconds, [n, p]; links bytes per second, [p, p]."""

    edges: tuple[tuple[int, int], ...]
    op_s: Float64
    out_bytes: Int64
    weight_bytes: Int64
    link_bytes_per_s: Float64
    latency_s: Float64
    memory_bytes: tuple[int, ...]

    @classmethod
    def drawn(cls, seed: int, n: int, p: int) -> Amounts:
        """Return a random graph on unequal devices, no two figures of which are equal."""
        rng = np.random.default_rng(seed)
        edges = {(int(rng.integers(max(0, j - 6), j)), j) for j in range(1, n) for _ in range(2)}
        return cls(
            tuple(sorted(edges)),
            0.1 + rng.random((n, p)),
            rng.permutation(np.arange(100, 100 + n)),
            rng.permutation(np.arange(100, 100 + n)),
            rng.uniform(100, 1000, (p, p)),
            0.01 * rng.random((p, p)),
            (0,) * p,
        )

    @property
    def graph(self) -> Graph:
        """Return the graph."""
        graph = graph_of(len(self.op_s), self.edges, out_bytes=self.out_bytes.tolist())
        return replace(graph, weight_bytes=self.weight_bytes)

    @property
    def problem(self) -> Problem:
        """Return the problem of placing the operations one by one."""
        p = self.op_s.shape[1]
        apart = ~np.eye(p, dtype=bool)
        devices = tuple(DeviceSpec(f"D{d}", "CPU", "CPU", memory_bytes=self.memory_bytes[d]) for d in range(p))
        topology = Topology(
            devices, np.where(apart, self.link_bytes_per_s, np.inf), np.where(apart, self.latency_s, 0.0)
        )
        graph, names = self.graph, topology.names
        costs = CostTable(graph.names, names, self.op_s, np.zeros(p), ("given",) * p)
        return Problem(Instance(graph, topology, Grouping.identity(graph.n), costs, costs.supported))

    def instance(self, level: Level = "T2") -> ListInstance:
        """Return what the constructor sees."""
        return ListInstance.of(work_of(self.problem, execution=DataflowModel(level)))

    def renumbered(self, new: Int64) -> Amounts:
        """Return the same operations with other numbers: operation i becomes new[i]."""
        old = np.argsort(new)
        edges = tuple(sorted((int(new[i]), int(new[j])) for i, j in self.edges))
        return replace(
            self,
            edges=edges,
            op_s=self.op_s[old],
            out_bytes=self.out_bytes[old],
            weight_bytes=self.weight_bytes[old],
        )

    def on(self, order: Int64) -> Amounts:
        """Return the same problem on the devices in another order."""
        pairs = np.ix_(order, order)
        return replace(
            self,
            op_s=self.op_s[:, order],
            link_bytes_per_s=self.link_bytes_per_s[pairs],
            latency_s=self.latency_s[pairs],
            memory_bytes=tuple(self.memory_bytes[d] for d in order),
        )

    def scaled(self, *, seconds: float, amount: int) -> Amounts:
        """Return the problem with all times multiplied by one number, and all bytes by another."""
        return replace(
            self,
            op_s=self.op_s * seconds,
            latency_s=self.latency_s * seconds,
            out_bytes=self.out_bytes * amount,
            weight_bytes=self.weight_bytes * amount,
            memory_bytes=tuple(m * amount for m in self.memory_bytes),
            link_bytes_per_s=self.link_bytes_per_s * amount / seconds,
        )


def schedule_of(
    amounts: Amounts, policy: ListPolicy, *, level: Level = "T2", width: int = 1, sweeps: int = 1
) -> PartialSchedule:
    """Return what a policy constructs, the last of some schedules each of which sees the one before."""
    instance = amounts.instance(level)
    scores = policy.scores(instance.context)
    schedule = instance.schedule(scores, width=width)
    for _ in range(sweeps - 1):
        schedule = instance.schedule(scores, width=width, before=ListDraft(instance, schedule).device)
    return schedule
