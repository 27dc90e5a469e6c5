"""What every registered placer promises where the evaluator is a simulator, and where plans may carry priorities."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from pipeline.core.graph import Grouping
from pipeline.core.measurement import Prediction, seconds_of
from pipeline.core.placement import Placement
from pipeline.core.problem import Budget, Problem
from pipeline.core.stages import Answer, Placer, Simulator, Subject
from pipeline.registry import build, table
from tests.toys import silent, toy_graph, toy_problem, toy_topology

# The published agents take seconds a search; test_placers holds them to their promises in the quick suite.
PUBLISHED = ("hsdag_paper", "hsdag_released")
NAMES = [pytest.param(name, marks=pytest.mark.slow if name in PUBLISHED else ()) for name in sorted(table("place"))]
SIMULATORS = {
    "sequential": ("sequential", {}),
    "T0": ("listsched", {"level": "T0"}),
    "T1": ("listsched", {"level": "T1"}),
    "T2": ("listsched", {"level": "T2"}),
    "pipelined": ("pipelined", {}),
}
EVALUATIONS = 60
QUICK = {
    "hsdag_paper": {"episodes": 5},
    "hsdag_released": {"episodes": 5},
}  # they learn on after the last new placement
DEVICES = ("A", "B", "C")


def wide_problem(*, ordered: bool = False, memory_bytes: int = 0, seed: int = 0) -> Problem:
    """Return four chains of four operations between a source and a sink; two operations are tied, one is pinned."""
    rng = np.random.default_rng(seed)
    chains = [[1 + 4 * c + i for i in range(4)] for c in range(4)]
    edges = [(0, c[0]) for c in chains] + [(c[-1], 17) for c in chains]
    edges += [(a, b) for c in chains for a, b in itertools.pairwise(c)]
    colocate = [-1] * 18
    colocate[2] = colocate[9] = 0
    graph = toy_graph(18, edges, colocate=colocate, weight_bytes=[10] * 18)
    allowed = np.ones((18, 3), bool)
    allowed[5] = [False, True, False]
    problem = toy_problem(
        graph,
        1e-3 * (0.5 + rng.random((18, 3))),
        allowed=allowed,
        topology=toy_topology(3, memory_bytes=memory_bytes),
        group="edge_score",
    )
    return dataclasses.replace(problem, ordered=ordered)


def simulator_of(problem: Problem, rules: str) -> Simulator:
    name, values = SIMULATORS[rules]
    subject = Subject(None, problem.graph, Grouping.identity(problem.graph.n), problem.topology, problem.costs, 0)
    return build("measure", name, values).bind(subject)  # type: ignore[no-any-return]


def place(name: str, problem: Problem, simulator: Simulator, budget: Budget, seed: int = 0) -> Answer:
    placer: Placer = build("place", name, QUICK.get(name))
    return placer.place(problem, simulator, budget, seed=seed, progress=silent)


def value_s(answer: Answer) -> float:
    result = answer.best.result
    return seconds_of(result)


def again_s(simulator: Simulator, placement: Placement) -> float:
    found = simulator.evaluate([placement])[0]
    return seconds_of(found)


@pytest.mark.parametrize("rules", sorted(SIMULATORS))
@pytest.mark.parametrize("name", NAMES)
def test_the_budget_is_kept_and_the_value_is_what_the_simulator_says(name: str, rules: str):
    problem = wide_problem()
    simulator = simulator_of(problem, rules)
    answer = place(name, problem, simulator, Budget(EVALUATIONS))
    assert 1 <= simulator.evaluations <= EVALUATIONS
    for candidate in answer.candidates:
        if isinstance(candidate.result, Prediction):
            assert candidate.result.value_s == pytest.approx(again_s(simulator, candidate.placement))
    assert all(problem.fits(c.placement) for c in answer.candidates)
    assert all(c.placement.device[2] == c.placement.device[9] for c in answer.candidates)
    assert all(c.placement.device[5] == 1 for c in answer.candidates)
    assert all(c.placement.priority is None for c in answer.candidates)
    assert answer.lower_bound_s <= value_s(answer) * (1 + 1e-9)


@pytest.mark.parametrize("rules", ["T0", "T1", "T2"])
@pytest.mark.parametrize("name", NAMES)
def test_with_priorities_the_answer_is_no_worse_than_the_start_and_equal_seeds_agree(name: str, rules: str):
    problem = wide_problem(ordered=True)
    device = np.where(np.arange(18) % 2 == 0, 0, 1).astype(np.int32)
    device[[2, 9]] = 0
    device[5] = 1
    start = Placement(device, DEVICES, np.arange(18.0)[::-1])
    problem = dataclasses.replace(problem, start=start)
    first, again = (place(name, problem, simulator_of(problem, rules), Budget(EVALUATIONS), seed=3) for _ in range(2))
    assert value_s(first) <= again_s(simulator_of(problem, rules), start)
    assert [c.placement.key() for c in first.candidates] == [c.placement.key() for c in again.candidates]


@pytest.mark.parametrize("evaluations", [1, 2, 5, EVALUATIONS])
@pytest.mark.parametrize("name", NAMES)
def test_looking_for_an_order_keeps_the_budget_as_well(name: str, evaluations: int):
    problem = wide_problem(ordered=True)
    simulator = simulator_of(problem, "T2")
    place(name, problem, simulator, Budget(evaluations))
    assert simulator.evaluations <= evaluations


@pytest.mark.parametrize("name", NAMES)
def test_memory_that_activations_exceed_is_respected(name: str):
    # 18 weights of 10 bytes and tensors of 4: no device holds them all, two do only just.
    device = (np.arange(18) % 3).astype(np.int32)
    device[[2, 9]], device[5] = 0, 1
    problem = dataclasses.replace(wide_problem(memory_bytes=95), start=Placement(device, DEVICES))
    simulator = simulator_of(problem, "T2")
    answer = place(name, problem, simulator, Budget(EVALUATIONS))
    for candidate in answer.candidates:
        if isinstance(candidate.result, Prediction):
            assert simulator.simulate(candidate.placement.device[None]).over_bytes[0] == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_simulated_search_names_who_found_what(name: str):
    problem = wide_problem()
    answer = place(name, problem, simulator_of(problem, "T2"), Budget(EVALUATIONS))
    assert all(c.found_by for c in answer.candidates)
