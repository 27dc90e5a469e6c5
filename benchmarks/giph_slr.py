"""Small random graphs on many unequal devices: how long schedules are over the longest path of least times."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from benchmarks.common import Figure, figure, say
from pipeline.core.arrays import Float64
from pipeline.core.devices import CostTable, Origin, Topology
from pipeline.core.graph import Graph, Grouping, topological_order
from pipeline.core.measurement import MeasurementFailed
from pipeline.core.problem import Budget, Instance, Problem, Progress, allowed_devices
from pipeline.core.stages import Answer, Simulator, Subject
from pipeline.core.workload import Workload
from pipeline.settings.registry import build_implementation
from runtime.simulators.dataflow.listsched import ListSched
from runtime.zoo.workloads.giph import instance

INSTANCES = 600
BUDGET_S = 1.0
ENDLESS = 10**9


def figures() -> Iterator[Figure]:
    """Yield mean ratios of random placements, HEFT, HEFT and annealing on 2 n evaluations, and the portfolio."""
    problems = [problem_of(*instance(i, seed=0)) for i in range(INSTANCES)]
    for name, target, run in (
        ("random", None, lambda problem: place(problem, "random", Budget(1))),
        ("heft", None, lambda problem: place(problem, "heft", Budget(ENDLESS))),
        ("anneal_2n", 1.282, heft_then_anneal),
        ("portfolio_1s", 1.235, lambda problem: place(problem, "portfolio", Budget(seconds=BUDGET_S))),
    ):
        yield mean_ratio(name, problems, run, target)


def mean_ratio(name: str, problems: list[Problem], run: Callable[[Problem], Answer], target: float | None) -> Figure:
    """Return the mean ratio of schedule length to the longest path of least times."""
    run(problems[0])  # loads what is compiled
    ratios = []
    for problem in problems:
        result = run(problem).best.result
        if isinstance(result, MeasurementFailed):
            raise TypeError("a placement of a simulated graph has a value")
        ratios.append(result.value_s / shortest_s(problem))
    mean_n = statistics.mean(problem.graph.n for problem in problems)
    how = f"mean over {len(problems)} graphs of {mean_n:.0f} operations in the mean, 20 devices, T0, FIFO"
    return figure(f"giph_slr.{name}", statistics.mean(ratios), "", how, target=target)


def heft_then_anneal(problem: Problem) -> Answer:
    """Return what annealing finds from HEFT's placement, which counts as the first of 2 n evaluations."""
    heft = place(problem, "heft", Budget(ENDLESS)).best.placement
    return place(replace(problem, start=heft), "anneal", Budget(2 * problem.graph.n))


def place(problem: Problem, name: str, budget: Budget) -> Answer:
    """Return a placer's answer on contention-free links."""
    answer: Answer = build_implementation("place", name).place(
        problem, evaluator_of(problem), budget, seed=0, progress=silent
    )
    return answer


def evaluator_of(problem: Problem) -> Simulator:
    """Return the simulator of a problem's own costs."""
    subject = Subject(None, problem.graph, Grouping.identity(problem.graph.n), problem.topology, problem.costs, 0)
    return ListSched(level="T0").bind(subject)


def problem_of(workload: Workload, topology: Topology) -> Problem:
    """Return the problem of placing a workload whose times name every device."""
    graph = workload.graph
    op_s = np.stack([workload.times[name] for name in topology.names], axis=1)
    origin: list[Origin] = ["given"] * topology.p
    costs = CostTable(graph.names, topology.names, op_s, np.zeros(topology.p), tuple(origin))
    return Problem(
        Instance(graph, topology, Grouping.identity(graph.n), costs, allowed_devices(graph, topology, costs, {}))
    )


def shortest_s(problem: Problem) -> float:
    """Return the longest path of every operation's least time, in seconds: no schedule is shorter."""
    least_s = np.array([]) if problem.costs is None else problem.costs.op_s.min(axis=1)
    return float(longest_path(problem.graph, least_s).max())


def longest_path(graph: Graph, op_s: Float64) -> Float64:
    """Return float64 [n], the longest path that ends with each operation."""
    end_s = op_s.copy()
    for i in topological_order(graph).tolist():
        for j in graph.edges[1][graph.edges[0] == i].tolist():
            end_s[j] = max(end_s[j], end_s[i] + op_s[j])
    return end_s


def silent(_: Progress) -> None:
    """Take progress and say nothing."""


if __name__ == "__main__":
    say(figures())
