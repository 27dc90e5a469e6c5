"""What exact methods find and prove on towers of branches, which look like the hardest of the published graphs.

python -m benchmarks.exact [seconds of every method]

The published graphs themselves: `placewright bench exact --inputs DIR`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from benchmarks.common import Figure, figure, say, timed
from pipeline import registry
from pipeline.bench.exact import METHODS, ExactMethod
from pipeline.core.devices import CostTable, DeviceSpec, Origin, Topology
from pipeline.core.problem import Budget, Problem
from pipeline.core.stages import Answer
from pipeline.offline.scenario import LoadedScenario, Scenario, load
from pipeline.placing.rehearsal import rehearse
from pipeline.placing.setup import problem_of
from pipeline.testing.graphs import graph_of

SECONDS = 60.0
TOWERS = ((3, 4, 6), (9, 4, 7))  # blocks, chains of each, operations of a chain


def figures(seconds: float = SECONDS) -> Iterator[Figure]:
    """Yield load, gap and seconds of every method on every tower."""
    for shape in TOWERS:
        case = load(Scenario("zoo:chainmm", "accelerators:6x1", evaluator="pipelined"))
        case = replace(case, problem=towers(*shape))
        for method in METHODS["pipelined"]:
            rehearse((method.placer,), "pipelined", case.graph.n, say=lambda _: None)
            scenario = replace(case.scenario, contiguity=method.contiguity)
            label = f"exact.towers.{'x'.join(map(str, shape))}.{method.name.replace(' ', '.')}"
            yield from _answered(label, replace(case, scenario=scenario), method, seconds)


def _answered(label: str, case: LoadedScenario, method: ExactMethod, seconds: float) -> Iterator[Figure]:
    """Yield the load, the gap in percent and the seconds."""

    def answered() -> Answer:
        found: Answer = registry.build("place", method.placer).place(
            case.problem, case.simulator(), Budget(seconds=seconds), seed=0, progress=lambda _: None
        )
        return found

    spent, answer = timed(answered)
    how = f"{case.graph.n} operations, at most {seconds:g} s; found by {answer.best.found_by}, {answer.bound_by}"
    yield figure(f"{label}.load", answer.value_s * 1e3, "ms", how)
    yield figure(f"{label}.gap", 100 * answer.gap, "%", how)
    yield figure(f"{label}.seconds", spent, "s", how)


def towers(blocks: int, chains: int, length: int, *, seed: int = 0) -> Problem:
    """Return blocks in a row, each of parallel chains between two operations, on six accelerators and a CPU.

    A block has (length + 1) ** chains ideals, so few operations make many.
    """
    rng = np.random.default_rng(seed)
    edges: list[tuple[int, int]] = []
    last = 0
    for _ in range(blocks):
        ends = []
        number = last + 1
        for _ in range(chains):
            chain = [last, *range(number, number + length)]
            edges += pairwise(chain)
            number += length
            ends.append(chain[-1])
        edges += [(end, number) for end in ends]
        last = number
    graph = graph_of(last + 1, edges, out_bytes=rng.integers(1, 4_000_000, last + 1).tolist())
    specs = [DeviceSpec(f"acc{d}", "X", "X", kind="npu") for d in range(6)] + [DeviceSpec("cpu0", "X", "X", kind="cpu")]
    topology = Topology.uniform(tuple(specs), bytes_per_s=2.0**31, latency_s=0.0)
    fast_s = rng.uniform(1e-4, 3e-3, graph.n)
    op_s = np.stack([*([fast_s] * 6), 20 * fast_s], axis=1)
    origin: tuple[Origin, ...] = tuple("given" for _ in specs)
    costs = CostTable(graph.names, topology.names, op_s, np.zeros(topology.p), origin)
    return problem_of(graph, topology, costs)


if __name__ == "__main__":
    say(figures(float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS))
