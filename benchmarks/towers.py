"""What exact methods find and prove on towers of branches, which look like the hardest of the published graphs.

python -m benchmarks.towers [seconds of every method]

The published graphs themselves: `placewright bench exact --inputs DIR`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from benchmarks.common import Figure, figure, say, timed
from benchmarks.suites.exact import METHODS, ExactMethod
from pipeline.core.graph import Grouping
from pipeline.core.problem import Budget, Problem
from pipeline.core.stages import Answer, Placer, Simulator, Subject
from pipeline.placing.compile_kernels import compile_kernels
from pipeline.settings import registry
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
        problem = towers_problem(*shape)
        for method in METHODS["pipelined"]:
            label = f"exact.towers.{'x'.join(map(str, shape))}.{method.name.replace(' ', '.')}"
            yield from _answered(label, problem, method, seconds)


def moves() -> Figure:
    """Return the mean time of a move of annealing, all that the search does beside included."""
    problem = towers_problem(*SEARCHED)
    spent, answer = placed("anneal", problem, "free", Budget(MOVES))
    moved = answer.evaluations or MOVES
    how = f"{moved} moves of `anneal` on {problem.graph.n} operations, {problem.topology.p} devices, free stages"
    return figure("exact.move", 1e6 * spent / moved, "us", how, target=1e6 / RATE)


def _answered(label: str, problem: Problem, method: ExactMethod, seconds: float) -> Iterator[Figure]:
    """Yield the load, the gap in percent and the seconds."""
    spent, answer = placed(method.placer, problem, method.contiguity, Budget(seconds=seconds))
    how = f"{problem.graph.n} operations, at most {seconds:g} s; found by {answer.best.found_by}, {answer.bound_by}"
    yield figure(f"{label}.load", answer.value_s * 1e3, "ms", how)
    yield figure(f"{label}.gap", 100 * answer.gap, "%", how)
    yield figure(f"{label}.seconds", spent, "s", how)


def placed(name: str, problem: Problem, contiguity: str, budget: Budget) -> tuple[float, Answer]:
    """Return the seconds that a placer takes, and its answer; compilation apart."""
    compile_kernels((name,), "pipelined", problem.graph.n, say=lambda _: None)
    placer: Placer = registry.build_implementation("place", name)
    alone = Grouping.identity(problem.graph.n)
    subject = Subject(None, problem.graph, alone, problem.topology, problem.costs, 0)
    simulator: Simulator = registry.build_implementation("measure", "pipelined", {"contiguity": contiguity}).bind(
        subject
    )
    return timed(lambda: placer.place(problem, simulator, budget, seed=0, progress=lambda _: None))


if __name__ == "__main__":
    say(figures(float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS))
