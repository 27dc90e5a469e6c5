"""What placers are given, and how much they may spend."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.core.errors import UsageError
from pipeline.core.problem import Budget
from policy.place.base.groups import Groups
from tests.toys import toy_graph, toy_problem


def test_a_budget_without_any_limit_is_refused_and_one_limit_suffices() -> None:
    assert (Budget(3).seconds, Budget(seconds=2.0).evaluations) == (None, None)
    with pytest.raises(UsageError, match="has no limit"):
        Budget()


def test_what_was_derived_is_made_again_once_it_is_forgotten() -> None:
    problem = toy_problem(toy_graph(3, [(0, 1), (1, 2)]), np.ones((3, 2)))
    first = problem.derived(Groups.of)
    assert problem.derived(Groups.of) is first
    problem.forget()
    again = problem.derived(Groups.of)
    assert again is not first
    assert again.grouping.group.tolist() == first.grouping.group.tolist()
