"""Small placement problems whose optimum is known, and an evaluator that counts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from embed.features import node_features
from pipeline.core.devices import CostTable, DeviceSpec, Topology
from pipeline.core.graph import Graph, Grouping
from pipeline.core.learning import PolicyInputs
from pipeline.core.measurement import Evaluation, Measurement, MeasurementFailed
from pipeline.core.placement import Placement
from pipeline.core.problem import Problem, Progress
from pipeline.registry import build

FAST_S, SLOW_S = 1e-3, 20e-3
CUT_S = 0.5e-3
CHAIN = 12


def toy_graph(
    n: int,
    edges: Sequence[tuple[int, int]],
    *,
    flops: Sequence[float] | None = None,
    types: Sequence[str] = ("MatMul",),
    shapes: Sequence[tuple[int, ...]] | None = None,
    weight_bytes: Sequence[int] | None = None,
    colocate: Sequence[int] | None = None,
) -> Graph:
    """Return a graph of operations "0", "1", ...; operation i has type types[i % len(types)]."""
    names = sorted(set(types))
    pairs = np.array(sorted(edges), dtype=np.int32).reshape(-1, 2).T
    dims = [(1,)] * n if shapes is None else shapes
    return Graph(
        names=tuple(str(i) for i in range(n)),
        op_type=np.array([names.index(types[i % len(types)]) for i in range(n)]),
        type_names=tuple(names),
        edges=pairs,
        flops=np.ones(n) if flops is None else np.array(flops, dtype=np.float64),
        weight_bytes=np.zeros(n, dtype=np.int64) if weight_bytes is None else np.array(weight_bytes),
        out_bytes=np.full(n, 4),
        edge_bytes=np.full(pairs.shape[1], 4),
        shape_ptr=np.cumsum([0, *(len(shape) for shape in dims)]),
        shape_dim=np.array([d for shape in dims for d in shape], dtype=np.int64),
        colocate=np.full(n, -1) if colocate is None else np.array(colocate),
        kernel=np.full(n, -1),
    )


def toy_topology(p: int = 2, *, memory_bytes: int = 0) -> Topology:
    """Return devices "A", "B", ... between which a tensor of 4 bytes takes CUT_S."""
    devices = tuple(DeviceSpec(chr(65 + i), "CPU", "CPU", memory_bytes=memory_bytes) for i in range(p))
    return Topology.uniform(devices, bytes_per_s=4 / (CUT_S / 2), latency_s=CUT_S / 2)


def toy_problem(
    graph: Graph,
    op_s: np.ndarray,
    *,
    grouping: Grouping | None = None,
    allowed: np.ndarray | None = None,
    start: Placement | None = None,
    topology: Topology | None = None,
    embed: str = "directed",
    group: str = "identity",
    costs_known: bool = True,
) -> Problem:
    """Return the problem of placing a graph whose operations take op_s, float64 [n, p], seconds."""
    topology = topology or toy_topology(op_s.shape[1])
    costs = CostTable(graph.names, topology.names, op_s, np.zeros(topology.p), ("given",) * topology.p)
    known = costs if costs_known else None
    features = node_features(graph, Grouping.identity(graph.n), known).values
    return Problem(
        graph=graph,
        topology=topology,
        grouping=grouping or Grouping.identity(graph.n),
        costs=known,
        allowed=costs.supported if allowed is None else allowed,
        start=start,
        policy=PolicyInputs(features, build("embed", embed), build("group", group)),
    )


def chain_times() -> np.ndarray:
    """Return float64 [CHAIN, 2]: device A is slow at operation 2, device B at operation 9."""
    op_s = np.full((CHAIN, 2), FAST_S)
    op_s[2, 0] = op_s[9, 1] = SLOW_S
    return op_s


def chain_problem(**options: object) -> Problem:
    """Return a chain with one slow operation per device; the optimum runs B first, then A, cut once."""
    graph = toy_graph(CHAIN, [(i, i + 1) for i in range(CHAIN - 1)])
    return toy_problem(graph, chain_times(), **options)  # type: ignore[arg-type]


CHAIN_OPTIMUM_S = CHAIN * FAST_S + CUT_S


def branches_problem(**options: object) -> Problem:
    """Return two branches of five operations between a source and a sink, each branch slow on one device.

    The optimum runs each branch on the other device. Source and sink lie with either branch: two tensors are cut.
    """
    a, b = range(1, 6), range(6, 11)
    edges = [(0, 1), (0, 6), (5, 11), (10, 11)] + [(i, i + 1) for i in (*a[:-1], *b[:-1])]
    op_s = np.full((12, 2), FAST_S)
    op_s[list(a), 0] = op_s[list(b), 1] = 5 * FAST_S
    return toy_problem(toy_graph(12, edges), op_s, **options)  # type: ignore[arg-type]


BRANCHES_OPTIMUM_S = 12 * FAST_S + 2 * CUT_S

CROWN = 6


def crown_problem(**options: object) -> Problem:
    """Return two rows of CROWN operations, each upper one read by all lower ones but that below it.

    Every third operation of a row is fast on B, the others on A. The one optimum runs each where it is fast and cuts
    16 tensors. No single move leads away from all on A, which is slower.
    """
    edges = [(i, CROWN + j) for i in range(CROWN) for j in range(CROWN) if i != j]
    fast = np.arange(2 * CROWN) % 3 == 0
    op_s = np.where(np.stack([~fast, fast], axis=1), FAST_S, 3.5 * FAST_S)
    return toy_problem(toy_graph(2 * CROWN, edges), op_s, **options)  # type: ignore[arg-type]


CROWN_OPTIMUM_S = 12 * FAST_S + 16 * CUT_S

PROBLEMS = {
    "chain": (chain_problem, CHAIN_OPTIMUM_S),
    "branches": (branches_problem, BRANCHES_OPTIMUM_S),
    "crown": (crown_problem, CROWN_OPTIMUM_S),
}


class ToyEvaluator:
    """Answers with the sum of the operations' times and of the transfers on cut edges.

    refused: placements on which it fails, by key.
    """

    version = 1

    def __init__(self, graph: Graph, topology: Topology, op_s: np.ndarray, refused: Sequence[bytes] = ()) -> None:
        self.graph, self.topology, self.op_s, self.refused = graph, topology, op_s, frozenset(refused)
        self.asked: list[Placement] = []

    @classmethod
    def of(cls, problem: Problem, refused: Sequence[bytes] = ()) -> ToyEvaluator:
        """Return the evaluator that agrees with a problem's costs."""
        assert problem.costs is not None
        return cls(problem.graph, problem.topology, problem.costs.op_s, refused)

    @property
    def fingerprint(self) -> str:
        return "toy"

    @property
    def evaluations(self) -> int:
        return len(self.asked)

    def value_s(self, placement: Placement) -> float:
        """Return what a placement costs."""
        device = placement.device
        source, target = device[self.graph.edges]
        latency_s = self.topology.link_latency_s[source, target]
        transfer_s = latency_s + self.graph.edge_bytes / self.topology.link_bytes_per_s[source, target]
        return float(self.op_s[np.arange(device.size), device].sum() + transfer_s.sum())

    def evaluate(self, placements: Sequence[Placement]) -> list[Evaluation]:
        self.asked.extend(placements)
        return [
            MeasurementFailed("refused", "not this one")
            if placement.key() in self.refused
            else Measurement(np.array([self.value_s(placement)]))
            for placement in placements
        ]


def optimum_s(problem: Problem) -> float:
    """Return the least time over all placements that fit, by trying every one."""
    evaluator = ToyEvaluator.of(problem)
    return min(
        evaluator.value_s(placement)
        for devices in product(range(problem.topology.p), repeat=problem.graph.n)
        if problem.fits(placement := Placement(np.array(devices), problem.topology.names))
    )


def silent(_: Progress) -> None:
    """Take note of nothing."""
