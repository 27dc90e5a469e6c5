"""Placeto and HDP learn: what their policies draw gets faster, and Placeto finds known optima."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeline.core.problem import Budget
from pipeline.shared.torch_tools import torch_seeded
from policy.place.base.search import Search
from policy.place.published.hdp.hdp import Hdp
from policy.place.published.placeto.placeto import Placeto
from tests.toys import PROBLEMS, ToyEvaluator, chain_problem, ignore_progress, toy_graph, toy_problem

LEARNER = Placeto(workers=4, rounds=2, learning_rate=0.01, last_learning_rate=0.001, entropy_coef=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("toy", ["branches", "chain"])
def test_placeto_finds_the_optimum_of_toys(toy: str, seed: int):
    make, optimum = PROBLEMS[toy]
    problem = make()
    answer = LEARNER.place(problem, ToyEvaluator.of(problem), Budget(600), seed=seed, progress=ignore_progress)
    assert answer.value_s == pytest.approx(optimum)


def test_what_placeto_draws_gets_faster_by_learning_alone():
    costs = {}
    for control in ("", "frozen"):
        problem = chain_problem()
        search = Search(problem, ToyEvaluator.of(problem), Budget(100_000), ignore_progress)
        with torch_seeded(0):
            trainer = replace(LEARNER, control=control).trainer([search], seed=0)
            for _ in range(12):
                trainer.update()
            episodes = trainer.processes[0].episodes(16, np.random.default_rng(0), greedy=False)
        assert episodes is not None
        costs[control] = float(episodes.cost[-1].mean())
    assert costs[""] < 0.8 * costs["frozen"]


def test_hdp_learns_which_device_is_faster():
    times = {}
    for frozen in (False, True):
        problem = toy_problem(toy_graph(8, []), 1e-3 * np.repeat([[5.0, 1.0]], 8, axis=0))
        search = Search(problem, ToyEvaluator.of(problem), Budget(100_000), ignore_progress)
        placer = Hdp(
            hidden=16, groups=4, samples=8, learning_rate=3e-3, temperature=1.0, seconds=False, first_baseline=0.0,
            frozen=frozen,
        )  # fmt: skip
        with torch_seeded(0):
            trainer = placer.trainer(search, seed=0)
            for _ in range(60):
                trainer.update()
            drawn = [trainer.draw(greedy=False) for _ in range(8)]
        placements = [trainer.placement(d.group, row) for d in drawn for row in d.written.device.numpy()]
        times[frozen] = float(np.mean(search.evaluate(placements)))
    assert times[False] < 0.6 * times[True]
