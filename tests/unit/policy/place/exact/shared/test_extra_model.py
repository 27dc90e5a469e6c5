"""An execution model that the source knows nothing of: `tests/extra_model.py` is the only file that it takes."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.core.graph import Grouping
from pipeline.core.problem import Budget, Problem
from pipeline.core.stages import Answer, Subject
from pipeline.testing.problems import ignore_progress
from pipeline.testing.simulated import wide_problem
from policy.place.exact.shared.cpsat import CpSat
from policy.place.exact.shared.proofs import lower_bound
from policy.place.portfolio import LARGE, Portfolio, parts
from tests.extra_model import SharedMemory, SharedMemoryModel, group_s


def placed(placer: CpSat | Portfolio, problem: Problem) -> Answer:
    alone = Grouping.identity(problem.graph.n)
    subject = Subject(None, problem.graph, alone, problem.topology, problem.costs, 0)
    return placer.place(problem, SharedMemory().bind(subject), Budget(300), seed=0, progress=ignore_progress)


def test_the_bounds_of_an_extra_model_are_proven() -> None:
    problem = wide_problem()
    found_s, by = lower_bound(problem, SharedMemoryModel(), one_to_one=True)
    assert (found_s, by) == (pytest.approx(float(group_s(problem).min(axis=1).sum())), "least work")


def test_the_portfolio_lets_the_exact_placer_of_an_extra_model_search() -> None:
    found = placed(Portfolio(), wide_problem())
    assert found.best.found_by == "extra_model"
    assert found.proven
    assert "extra_model" in parts(100, SharedMemoryModel())
    assert "extra_model" in parts(LARGE + 1, SharedMemoryModel())


def test_solvers_place_by_an_extra_model_as_well() -> None:
    problem = wide_problem()
    found = placed(CpSat(), problem)
    assert found.value_s == pytest.approx(float(group_s(problem).min(axis=1).sum()))
    assert np.isclose(found.lower_bound_s, found.value_s)
