"""The learned placer learns: it finds known optima, and what its policy draws gets faster."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from pipeline.core.problem import Budget, Problem
from pipeline.shared.torch_tools import seeded
from policy.place.agent.hsdag import Hsdag
from policy.place.agent.net import Policy
from policy.place.agent.rollout import Actor
from policy.place.agent.trainer import Hyperparameters, Trainer
from policy.place.agent.world import World
from policy.place.search import Search
from tests.slow import slow_but
from tests.toys import CROWN_OPTIMUM_S, PROBLEMS, ToyEvaluator, crown_problem, optimum_s, silent

EVALUATIONS = 300
LEARNING = Hyperparameters(
    batch=16,
    learning_rate=1e-2,
    entropy_coef=0.0,
    p_local_search=0.0,
    groupings=4,
    temperature=0.3,
    last_temperature=0.03,
    p_incumbent=0.2,
    elites=4,
    p_scratch=1.0,
    imitation_coef=0.0,
)


@pytest.mark.parametrize("seed", slow_but(range(10), quick=5))
@pytest.mark.parametrize("group", ["identity", "edge_score"])
@pytest.mark.parametrize("toy", sorted(PROBLEMS))
def test_hsdag_finds_the_optimum(toy: str, group: str, seed: int):
    make, best_s = PROBLEMS[toy]
    problem = make(group=group)
    search = Search(problem, ToyEvaluator.of(problem), Budget(EVALUATIONS), silent)
    search.prove(best_s, "brute force")  # with which the search ends
    Hsdag(warm=0.0).run(search, seed=seed)
    assert search.best_s == pytest.approx(best_s)
    assert search.spent <= EVALUATIONS


def test_the_crown_has_the_optimum_it_claims_and_no_single_move_leads_to_it():
    problem = crown_problem()
    evaluator = ToyEvaluator.of(problem)
    assert optimum_s(problem) == pytest.approx(CROWN_OPTIMUM_S)
    search = Search(problem, evaluator, Budget(2), silent)
    assert search.best is not None
    for i in range(problem.graph.n):
        moved = search.best.device.copy()
        moved[i] = 1 - moved[i]
        assert evaluator.value_s(replace(search.best, device=moved)) >= search.best_s - 1e-9 > CROWN_OPTIMUM_S


def drawn_s(problem: Problem, hyper: Hyperparameters, *, updates: int, seed: int) -> tuple[float, float]:
    """Return the mean seconds of plans made from nothing, before and after so many updates."""
    assert problem.policy is not None
    evaluator = ToyEvaluator.of(problem)
    search = Search(problem, evaluator, Budget(10**6), silent)
    policy = Policy(problem.policy, hidden=32, execution=None, seed=seed)
    with torch.no_grad():
        policy.making.v.zero_()  # its first guess would be good already
    actor = Actor(problem, World.of(problem), policy, torch.tensor(problem.policy.features), 1)
    trainer = Trainer(search, actor, hyper, seed=seed)

    def mean_s() -> float:
        some, bases = np.ones(200), [trainer.bases.from_scratch()] * 200
        with torch.no_grad():
            found = actor.draw(actor.nodes(), bases, moves=some, reach=some, rng=np.random.default_rng(9))
        return float(np.mean([evaluator.value_s(p) for p in found.placements]))

    before_s = mean_s()
    for _ in range(updates):
        trainer.update()
    return before_s, mean_s()


@pytest.mark.parametrize(
    ("toy", "group"),
    [
        *((toy, "identity") for toy in sorted(PROBLEMS)),
        *(pytest.param(toy, "edge_score", marks=pytest.mark.slow) for toy in sorted(PROBLEMS) if toy != "crown"),
        ("crown", "edge_score"),
    ],
)
def test_what_the_policy_draws_gets_faster_while_it_learns(toy: str, group: str):
    make, best_s = PROBLEMS[toy]
    with seeded(0):
        before_s, after_s = drawn_s(make(group=group), LEARNING, updates=40, seed=0)
        _, idle_s = drawn_s(make(group=group), replace(LEARNING, learning_rate=1e-12), updates=40, seed=0)
    assert idle_s == pytest.approx(before_s, rel=0.02)
    assert before_s > 1.4 * best_s
    assert after_s < before_s - 0.5 * (before_s - best_s)
