"""Small placement problems whose optimum is known, and an evaluator that remembers what it was asked."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from embed.features import node_features
from pipeline.core.arrays import Bool, Float64
from pipeline.core.devices import CostTable, DeviceSpec, Topology
from pipeline.core.graph import Graph, Grouping
from pipeline.core.learning import PolicyInputs, Snapshot
from pipeline.core.measurement import Evaluation, Measurement, MeasurementFailed
from pipeline.core.placement import Placement
from pipeline.core.problem import Instance, Problem, Progress
from pipeline.settings.registry import build_implementation
from pipeline.testing.graphs import graph_of

FAST_S, SLOW_S = 1e-3, 20e-3
CUT_S = 0.5e-3
CHAIN = 12
CROWN = 6


def small_graph(
    n: int,
    edges: Sequence[tuple[int, int]],
    *,
    weight_bytes: Sequence[int] | None = None,
    colocate: Sequence[int] | None = None,
) -> Graph:
    """Return a graph of n MatMuls that put out 4 bytes each."""
    return graph_of(n, edges, weight_bytes=weight_bytes, out_bytes=[4] * n, colocate=colocate)


def small_topology(p: int = 2, *, memory_bytes: int = 0) -> Topology:
    """Return devices "A", "B", ... between which a tensor of 4 bytes takes CUT_S."""
    devices = tuple(DeviceSpec(chr(65 + i), "CPU", "CPU", memory_bytes=memory_bytes) for i in range(p))
    return Topology.uniform(devices, bytes_per_s=4 / (CUT_S / 2), latency_s=CUT_S / 2)


def small_problem(
    graph: Graph,
    op_s: Float64,
    *,
    grouping: Grouping | None = None,
    allowed: Bool | None = None,
    start: Placement | None = None,
    topology: Topology | None = None,
    embed: str = "directed",
    group: str = "identity",
    costs_known: bool = True,
    ordered: bool = False,
) -> Problem:
    """Return the problem of placing a graph whose operations take op_s, float64 [n, p], seconds."""
    topology = topology or small_topology(op_s.shape[1])
    costs = CostTable(
        graph.names, topology.names, op_s, np.zeros(topology.p), tuple("given" for _ in range(topology.p))
    )
    known = costs if costs_known else None
    features = node_features(graph, Grouping.identity(graph.n), known).values
    return Problem(
        Instance(
            graph=graph,
            topology=topology,
            grouping=grouping or Grouping.identity(graph.n),
            costs=known,
            allowed=costs.supported if allowed is None else allowed,
        ),
        start=start,
        policy=PolicyInputs(features, build_implementation("embed", embed), build_implementation("group", group)),
        ordered=ordered,
    )


def chain_graph(**options: Any) -> Graph:
    """Return CHAIN operations in a row."""
    return small_graph(CHAIN, list(itertools.pairwise(range(CHAIN))), **options)


def chain_times() -> Float64:
    """Return float64 [CHAIN, 2]: device A is slow at operation 2, device B at operation 9."""
    op_s = np.full((CHAIN, 2), FAST_S)
    op_s[2, 0] = op_s[9, 1] = SLOW_S
    return op_s


def chain_problem(**options: Any) -> Problem:
    """Return a chain with one slow operation per device; the optimum runs B first, then A, cut once."""
    return small_problem(chain_graph(), chain_times(), **options)


def branches_problem(**options: Any) -> Problem:
    """Return two branches of five operations between a source and a sink, each branch slow on one device.

    The optimum runs each branch on the other device. Source and sink lie with either branch: two tensors are cut.
    """
    a, b = range(1, 6), range(6, 11)
    edges = [(0, 1), (0, 6), (5, 11), (10, 11), *itertools.pairwise(a), *itertools.pairwise(b)]
    op_s = np.full((12, 2), FAST_S)
    op_s[list(a), 0] = op_s[list(b), 1] = 5 * FAST_S
    return small_problem(small_graph(12, edges), op_s, **options)


def crown_problem(**options: Any) -> Problem:
    """Return two rows of CROWN operations, each upper one read by all lower ones but that below it.

    Every third operation of a row is fast on B, the others on A. The one optimum runs each where it is fast and cuts
    16 tensors. No single move leads away from all on A, which is slower.
    """
    edges = [(i, CROWN + j) for i in range(CROWN) for j in range(CROWN) if i != j]
    fast = np.arange(2 * CROWN) % 3 == 0
    op_s = np.where(np.stack([~fast, fast], axis=1), FAST_S, 3.5 * FAST_S)
    return small_problem(small_graph(2 * CROWN, edges), op_s, **options)


def towers_problem(blocks: int, chains: int, length: int, *, seed: int = 0) -> Problem:
    """Return blocks in a row, each of parallel chains between two operations, on six accelerators and a CPU.

    A block has (length + 1) ** chains ideals, so few operations make many, as in the hardest of the graphs published
    with Tarnawski et al., NeurIPS 2020.
    """
    rng = np.random.default_rng(seed)
    edges: list[tuple[int, int]] = []
    last = 0
    for _ in range(blocks):
        end = last + chains * length + 1
        for first in range(last + 1, end, length):
            edges += itertools.pairwise([last, *range(first, first + length), end])
        last = end
    graph = graph_of(last + 1, edges, out_bytes=rng.integers(1, 4_000_000, last + 1).tolist())
    specs = [DeviceSpec(f"acc{d}", "X", "X", kind="npu") for d in range(6)] + [DeviceSpec("cpu0", "X", "X", kind="cpu")]
    fast_s = rng.uniform(1e-4, 3e-3, graph.n)
    op_s = np.stack([*([fast_s] * 6), 20 * fast_s], axis=1)
    return small_problem(graph, op_s, topology=Topology.uniform(tuple(specs), bytes_per_s=2.0**31, latency_s=0.0))


PROBLEMS: Mapping[str, Callable[..., Problem]] = {
    "chain": chain_problem,
    "branches": branches_problem,
    "crown": crown_problem,
}
OPTIMUM_S: Mapping[str, float] = {
    "chain": CHAIN * FAST_S + CUT_S,
    "branches": 12 * FAST_S + 2 * CUT_S,
    "crown": 12 * FAST_S + 16 * CUT_S,
}


class SumEvaluator:
    """Answers with the sum of the operations' times and of the transfers on cut edges; `asked` is what it was asked.

    refused: placements on which it fails, by key; None refuses all of them.
    """

    version: ClassVar[int] = 1

    def __init__(self, graph: Graph, topology: Topology, op_s: Float64, refused: Collection[bytes] | None = ()) -> None:
        self.graph, self.topology, self.op_s, self.refused = graph, topology, op_s, refused
        self.asked: list[Placement] = []

    @classmethod
    def of(cls, problem: Problem, refused: Collection[bytes] | None = ()) -> SumEvaluator:
        """Return the evaluator that agrees with a problem's costs.

        Raises:
            ValueError: the problem has none.
        """
        if problem.costs is None:
            raise ValueError("the problem has no costs")
        return cls(problem.graph, problem.topology, problem.costs.op_s, refused)

    @property
    def fingerprint(self) -> str:
        """Return what the figures depend on."""
        return "sum"

    @property
    def evaluations(self) -> int:
        """Return how many placements it was asked about."""
        return len(self.asked)

    def value_s(self, placement: Placement) -> float:
        """Return what a placement costs, in seconds."""
        placement.check(self.graph.n, self.topology.names)
        device = placement.device
        source, target = device[self.graph.edges]
        latency_s = self.topology.link_latency_s[source, target]
        transfer_s = latency_s + self.graph.edge_bytes / self.topology.link_bytes_per_s[source, target]
        return float(self.op_s[np.arange(device.size), device].sum() + transfer_s.sum())

    def evaluate(self, placements: Sequence[Placement]) -> list[Evaluation]:
        """Return one answer per placement, in order."""
        self.asked.extend(placements)
        return [
            MeasurementFailed("refused", "not this one")
            if self.refused is None or placement.key() in self.refused
            else Measurement(np.array([self.value_s(placement)]))
            for placement in placements
        ]


class MemoryCheckpointer:
    """Keeps snapshots in memory: the last state saved, and all policies published."""

    def __init__(self) -> None:
        self.state: Snapshot | None = None
        self.published: list[Snapshot] = []

    def load(self) -> Snapshot | None:
        """Return the state saved last."""
        return self.state

    def save(self, state: Snapshot) -> None:
        """Keep a state."""
        self.state = state

    def publish(self, policy: Snapshot) -> None:
        """Keep a policy."""
        self.published.append(policy)


def ignore_progress(_: Progress) -> None:
    """Take note of nothing."""
