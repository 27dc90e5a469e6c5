"""The learned placer finds known optima."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.core.problem import Budget
from policy.place.base.search import Search
from policy.place.learned.hsdag.hsdag import LEARNERS, Hsdag
from tests.slow import slow_but
from tests.toys import CROWN_OPTIMUM_S, PROBLEMS, ToyEvaluator, crown_problem, ignore_progress, optimum_s

EVALUATIONS = 300


@pytest.mark.parametrize("seed", slow_but(range(10), quick=2))
@pytest.mark.parametrize("group", ["identity", "edge_score"])
@pytest.mark.parametrize("toy", sorted(PROBLEMS))
def test_hsdag_finds_the_optimum(toy: str, group: str, seed: int):
    make, best_s = PROBLEMS[toy]
    problem = make(group=group)
    search = Search(problem, ToyEvaluator.of(problem), Budget(EVALUATIONS), ignore_progress)
    search.prove(best_s, "brute force")  # with which the search ends
    Hsdag(warm=0.0).run(search, seed=seed)
    assert search.best_s == pytest.approx(best_s)
    assert search.spent <= EVALUATIONS


@pytest.mark.parametrize("learner", LEARNERS)
def test_every_learner_finds_the_optimum(learner: str):
    make, best_s = PROBLEMS["chain"]
    problem = make()
    search = Search(problem, ToyEvaluator.of(problem), Budget(EVALUATIONS), ignore_progress)
    search.prove(best_s, "brute force")  # with which the search ends
    Hsdag(warm=0.0, drawing=1.0, learner=learner, imitation_coef=0.1).run(search, seed=0)
    assert search.best_s == pytest.approx(best_s)


def test_the_crown_has_the_optimum_it_claims_and_no_single_move_leads_to_it():
    problem = crown_problem()
    evaluator = ToyEvaluator.of(problem)
    assert optimum_s(problem) == pytest.approx(CROWN_OPTIMUM_S)
    search = Search(problem, evaluator, Budget(2), ignore_progress)
    assert search.best is not None
    for i in range(problem.graph.n):
        moved = search.best.device.copy()
        moved[i] = 1 - moved[i]
        assert evaluator.value_s(replace(search.best, device=moved)) >= search.best_s - 1e-9 > CROWN_OPTIMUM_S
