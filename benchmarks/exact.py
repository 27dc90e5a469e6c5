"""What exact methods find and prove on towers of branches, which look like the hardest of the published graphs.

python -m benchmarks.exact [seconds of every method]

The published graphs themselves: `placewright bench exact --inputs DIR`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.common import Figure, figure, say, timed
from pipeline import registry
from pipeline.bench.exact import METHODS, ExactMethod
from pipeline.core.problem import Budget
from pipeline.core.stages import Answer
from pipeline.offline.scenario import LoadedScenario, Scenario, load
from pipeline.placing.rehearsal import rehearse
from pipeline.testing.problems import towers_problem

SECONDS = 60.0
TOWERS = ((3, 4, 6), (12, 4, 7))  # blocks, chains of each, operations of a chain: 7,205 and 49,154 ideals
SEARCHED = (7, 4, 7)  # the same of the graph on which moves are counted: 204 operations
MOVES = 2_000_000
RATE = 300_000  # moves that a second should be enough for


def figures(seconds: float = SECONDS) -> Iterator[Figure]:
    """Yield what a move of local search takes, and load, gap and seconds of every method on every tower."""
    yield moves()
    for shape in TOWERS:
        case = load(Scenario("zoo:chainmm", "accelerators:6x1", evaluator="pipelined"))
        case = replace(case, problem=towers_problem(*shape))
        for method in METHODS["pipelined"]:
            rehearse((method.placer,), "pipelined", case.graph.n, say=lambda _: None)
            scenario = replace(case.scenario, contiguity=method.contiguity)
            label = f"exact.towers.{'x'.join(map(str, shape))}.{method.name.replace(' ', '.')}"
            yield from _answered(label, replace(case, scenario=scenario), method, seconds)


def moves() -> Figure:
    """Return the mean time of a move of annealing, all that the search does beside included."""
    case = load(Scenario("zoo:chainmm", "accelerators:6x1", evaluator="pipelined"))
    case = replace(case, problem=towers_problem(*SEARCHED))
    rehearse(("anneal",), "pipelined", case.graph.n, say=lambda _: None)
    anneal, simulator = registry.build("place", "anneal"), case.simulator()
    spent, answer = timed(lambda: anneal.place(case.problem, simulator, Budget(MOVES), seed=0, progress=lambda _: None))
    how = f"{answer.evaluations} moves of `anneal` on {case.graph.n} operations, 7 devices, free stages"
    return figure("exact.move", 1e6 * spent / answer.evaluations, "us", how, target=1e6 / RATE)


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


if __name__ == "__main__":
    say(figures(float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS))
