"""What every registered placer promises."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from pipeline.core.errors import DeviceError
from pipeline.core.graph import Grouping
from pipeline.core.measurement import MeasurementFailed, seconds_of
from pipeline.core.placement import Placement
from pipeline.core.problem import Budget, Problem, Progress
from pipeline.core.stages import Candidate, Placer
from pipeline.registry import build, table
from tests.toys import (
    CHAIN,
    PROBLEMS,
    ToyEvaluator,
    chain_problem,
    chain_times,
    silent,
    toy_graph,
    toy_problem,
    toy_topology,
)

NAMES = sorted(table("place"))
DEVICES = ("A", "B")
EVALUATIONS = 24
QUICK = {
    "hsdag_paper": {"episodes": 5},
    "hsdag_released": {"episodes": 5},
}  # they learn on after the last new placement


def placer(name: str) -> Placer:
    return build("place", name, QUICK.get(name))  # type: ignore[no-any-return]


def place(name: str, problem: Problem, evaluator: ToyEvaluator, *, evaluations: int = EVALUATIONS, seed: int = 0):
    return placer(name).place(problem, evaluator, Budget(evaluations), seed=seed, progress=silent).candidates


def value_s(candidate: Candidate) -> float:
    return seconds_of(candidate.result)


@pytest.mark.parametrize("toy", sorted(PROBLEMS))
@pytest.mark.parametrize("evaluations", [1, 3, EVALUATIONS])
@pytest.mark.parametrize("name", NAMES)
def test_the_answer_is_distinct_best_first_seen_and_within_the_budget(name: str, evaluations: int, toy: str):
    problem = PROBLEMS[toy][0](group="edge_score")
    evaluator = ToyEvaluator.of(problem)
    found = place(name, problem, evaluator, evaluations=evaluations)
    values = [value_s(c) for c in found]
    keys = [c.placement.key() for c in found]
    assert 1 <= evaluator.evaluations <= evaluations
    assert values == sorted(values)
    assert len(set(keys)) == len(keys)
    assert set(keys) <= {p.key() for p in evaluator.asked}
    assert values == pytest.approx([evaluator.value_s(c.placement) for c in found])
    assert values[0] == pytest.approx(min(evaluator.value_s(p) for p in evaluator.asked))


@pytest.mark.parametrize("name", NAMES)
def test_no_placement_is_asked_about_twice(name: str):
    problem = chain_problem(group="edge_score")
    evaluator = ToyEvaluator.of(problem)
    place(name, problem, evaluator)
    assert len({p.key() for p in evaluator.asked}) == evaluator.evaluations


@pytest.mark.parametrize("name", NAMES)
def test_equal_seeds_give_equal_answers(name: str):
    problem = chain_problem(group="edge_score")
    first, again = (ToyEvaluator.of(problem) for _ in range(2))
    place(name, problem, first, seed=4)
    place(name, problem, again, seed=4)
    assert [p.key() for p in first.asked] == [p.key() for p in again.asked]


@pytest.mark.parametrize("name", NAMES)
def test_every_placement_asked_about_keeps_to_allowed_devices(name: str):
    op_s = chain_times()
    op_s[0, 0] = op_s[CHAIN - 1, 1] = np.inf
    graph = toy_graph(CHAIN, [(i, i + 1) for i in range(CHAIN - 1)])
    groups = Grouping(np.arange(CHAIN) // 4)
    problem = toy_problem(graph, op_s, grouping=groups, group="edge_score")
    evaluator = ToyEvaluator.of(problem)
    found = place(name, problem, evaluator)
    assert all(problem.fits(p) for p in evaluator.asked)
    assert math.isfinite(value_s(found[0]))


@pytest.mark.parametrize("name", NAMES)
def test_every_placement_asked_about_keeps_within_memory(name: str):
    graph = toy_graph(4, [(0, 1), (1, 2), (2, 3)], weight_bytes=[5, 5, 5, 5])
    start = Placement(np.array([0, 0, 1, 1]), DEVICES)
    problem = toy_problem(graph, np.ones((4, 2)), topology=toy_topology(memory_bytes=10), start=start)
    evaluator = ToyEvaluator.of(problem)
    place(name, problem, evaluator)
    held = [np.bincount(p.device, minlength=2) * 5 for p in evaluator.asked]
    assert held
    assert all((h <= 10).all() for h in held)


@pytest.mark.parametrize("name", NAMES)
def test_the_answer_is_no_worse_than_the_start_and_the_best_single_device(name: str):
    optimum = Placement(np.repeat([1, 0], CHAIN // 2), DEVICES)
    problem = chain_problem(start=optimum)
    evaluator = ToyEvaluator.of(problem)
    found = place(name, problem, evaluator)
    singles = [evaluator.value_s(Placement.single(CHAIN, d, DEVICES)) for d in range(2)]
    assert value_s(found[0]) <= min(evaluator.value_s(optimum), *singles)


@pytest.mark.parametrize("name", NAMES)
def test_an_evaluator_that_refuses_everything_gives_an_answer_of_failures(name: str):
    class Refusing(ToyEvaluator):
        def evaluate(self, placements):
            self.asked.extend(placements)
            return [MeasurementFailed("refused", "nothing runs here") for _ in placements]

    problem = chain_problem()
    evaluator = Refusing.of(problem)
    found = place(name, problem, evaluator)
    assert found
    assert all(isinstance(c.result, MeasurementFailed) for c in found)
    assert evaluator.evaluations <= EVALUATIONS


@pytest.mark.parametrize("name", NAMES)
def test_a_refused_placement_does_not_stop_the_search(name: str):
    problem = chain_problem()
    refused = [Placement.single(CHAIN, 0, DEVICES).key()]
    found = place(name, problem, ToyEvaluator.of(problem, refused))
    assert math.isfinite(value_s(found[0]))
    assert [c for c in found if math.isinf(value_s(c))] == list(found[-1:]) or math.isfinite(value_s(found[-1]))


@pytest.mark.parametrize("name", NAMES)
def test_operations_that_no_placement_can_hold_are_an_error_of_the_devices(name: str):
    graph = toy_graph(3, [(0, 1), (1, 2)], weight_bytes=[50, 1, 1])
    problem = toy_problem(graph, np.ones((3, 2)), topology=toy_topology(memory_bytes=10))
    with pytest.raises(DeviceError):
        place(name, problem, ToyEvaluator.of(problem))


@pytest.mark.parametrize("name", NAMES)
def test_a_time_limit_ends_the_search(name: str):
    problem = chain_problem()
    evaluator = ToyEvaluator.of(problem)
    budget = Budget(EVALUATIONS, seconds=1e-9)  # over before the second placement
    placer(name).place(problem, evaluator, budget, seed=0, progress=silent)
    assert evaluator.evaluations == 1


@pytest.mark.parametrize("name", NAMES)
def test_progress_rises_and_its_value_never_gets_worse(name: str):
    told: list[Progress] = []
    problem = chain_problem()
    evaluator = ToyEvaluator.of(problem)
    placer(name).place(problem, evaluator, Budget(EVALUATIONS), seed=0, progress=told.append)
    assert [p.done for p in told] == sorted({p.done for p in told})
    assert told[-1].done == evaluator.evaluations
    assert [p.value_s for p in told] == sorted((p.value_s for p in told), reverse=True)


@pytest.mark.parametrize("name", NAMES)
def test_one_device_and_unknown_costs_are_no_obstacle(name: str):
    alone = toy_problem(toy_graph(3, [(0, 1), (1, 2)]), np.ones((3, 1)), group="edge_score")
    assert [c.placement.device.tolist() for c in place(name, alone, ToyEvaluator.of(alone))] == [[0, 0, 0]]
    known = chain_problem()
    unknown = chain_problem(costs_known=False)
    assert math.isfinite(value_s(place(name, unknown, ToyEvaluator.of(known))[0]))


@pytest.mark.parametrize("name", NAMES)
def test_tied_operations_share_a_device(name: str):
    graph = toy_graph(CHAIN, [(i, i + 1) for i in range(CHAIN - 1)], colocate=[-1, 1, -1, -1, 1, *[-1] * 7])
    problem = toy_problem(graph, chain_times())
    evaluator = ToyEvaluator.of(problem)
    place(name, problem, evaluator)
    assert all(p.device[1] == p.device[4] for p in evaluator.asked)


@pytest.mark.parametrize("name", NAMES)
def test_placing_leaves_torchs_own_generator_and_threads_alone(name: str):
    problem = chain_problem()
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    place(name, problem, ToyEvaluator.of(problem))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("name", NAMES)
def test_a_placer_that_learns_nothing_keeps_groups_together(name: str):
    if hasattr(placer(name), "recipe"):
        pytest.skip("draws groups of its own")
    problem = chain_problem(grouping=Grouping(np.arange(CHAIN) // 4))
    problem = dataclasses.replace(problem, policy=None)
    evaluator = ToyEvaluator.of(problem)
    place(name, problem, evaluator)
    assert all((p.device.reshape(-1, 4) == p.device[::4, None]).all() for p in evaluator.asked)
