"""What exact methods find and prove on the inputs of Tarnawski et al. for throughput, and on towers of branches.

python -m benchmarks.exact [folder of inputs] [seconds of the default search]

The files (MIT licence) are not part of the project: PLACEWRIGHT_MSR names the folder that holds `throughput-inputs`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import psutil

from benchmarks.anchors import FOLDER
from benchmarks.common import Figure, figure, say, timed
from pipeline import registry
from pipeline.core.devices import CostTable, DeviceSpec, Origin, Topology
from pipeline.core.problem import Budget, Problem
from pipeline.core.stages import Answer
from pipeline.offline.scenario import LoadedScenario, Scenario, load
from pipeline.placing.rehearsal import rehearse
from pipeline.placing.setup import problem_of
from pipeline.testing.graphs import graph_of

INPUTS = FOLDER.parent / "throughput-inputs"
ORDERED = ("dpl", "dp")
FREE = ("milp", "cpsat")
SOLVER_S = 60.0
SEARCH_S = 15.0
TOWERS = ((3, 4, 6), (9, 4, 7))  # blocks, chains of each, operations of a chain
MB = 1e6


def figures(folder: Path = INPUTS, seconds: float = SEARCH_S) -> Iterator[Figure]:
    """Yield load, gap, seconds and memory of every method on every input."""
    rehearse((*ORDERED, *FREE, "portfolio"), "pipelined", 500, say=lambda _: None)
    paths = sorted(folder.glob("*/*.json"))
    if not paths:
        yield figure("exact.inputs", None, "ms", f"no files below {folder.name}: set PLACEWRIGHT_MSR")
    for path in paths:
        name = f"{path.parent.name[0]}.{path.stem}"
        yield from _of_case(name, load(Scenario(str(path), evaluator="pipelined")), seconds)
    for shape in TOWERS:
        case = load(Scenario("zoo:chainmm", "accelerators:6x1", evaluator="pipelined"))
        yield from _of_case(f"towers.{'x'.join(map(str, shape))}", replace(case, problem=towers(*shape)), seconds)


def _of_case(name: str, case: LoadedScenario, seconds: float) -> Iterator[Figure]:
    ordered = replace(case, scenario=replace(case.scenario, contiguity="ordered"))
    for placer in ORDERED:
        yield from _answered(f"exact.{name}.ordered.{placer}", ordered, placer, SOLVER_S)
    for placer in FREE:
        yield from _answered(f"exact.{name}.free.{placer}", case, placer, SOLVER_S)
    yield from _answered(f"exact.{name}.free.search", case, "portfolio", seconds)


def _answered(label: str, case: LoadedScenario, placer: str, budget_s: float) -> Iterator[Figure]:
    """Yield the load, the gap in percent, the seconds, and the memory of the process at the end."""

    def answered() -> Answer:
        found: Answer = registry.build("place", placer).place(
            case.problem, case.simulator(), Budget(seconds=budget_s), seed=0, progress=lambda _: None
        )
        return found

    seconds, answer = timed(answered)
    how = f"{case.graph.n} operations, at most {budget_s:g} s; found by {answer.best.found_by}, {answer.bound_by}"
    yield figure(f"{label}.load", answer.value_s * 1e3, "ms", how)
    yield figure(f"{label}.gap", 100 * answer.gap, "%", how)
    yield figure(f"{label}.seconds", seconds, "s", how)
    yield figure(f"{label}.memory", psutil.Process().memory_info().rss / MB, "MB", "resident, with all that is loaded")


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
    given = sys.argv[1:]
    folder = Path(given[0]) if given else INPUTS
    say(figures(folder, float(given[1]) if len(given) > 1 else SEARCH_S))
