"""What the second-best device of each group costs, against placements simulated one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pipeline.core.placement import Placement
from pipeline.placing.single_moves import regrets
from tests.small_cases import small_case


@pytest.mark.parametrize("number", range(12))
def test_regret_is_what_the_best_other_device_costs(number: int) -> None:
    case = small_case(number)
    problem = case.problem
    grouping, names = problem.grouping, problem.topology.names
    allowed = problem.group_allowed(grouping)
    rng = np.random.default_rng(number)
    placements = [
        Placement(np.array([rng.choice(np.flatnonzero(row)) for row in allowed], np.int32), names).lift(grouping)
        for _ in range(20)
    ]
    placement = min(placements, key=case.again_s)
    now_s, simulator = case.again_s(placement), case.simulator()
    found = regrets(problem, simulator, placement)
    assert simulator.evaluations == 0
    if math.isinf(now_s):
        assert found == []
        return
    assert len(found) == np.count_nonzero(allowed.sum(axis=1) > 1)
    for row in found:
        group = grouping.group[problem.graph.names.index(row["operations"][0])]
        members = np.flatnonzero(grouping.group == group)
        assert row["operations"] == [problem.graph.names[i] for i in members]
        here = placement.device[members[0]]
        assert row["device"] == names[here]
        others = {}
        for d in np.flatnonzero(allowed[group]):
            if d != here:
                moved = np.where(grouping.group == group, d, placement.device).astype(np.int32)
                others[names[d]] = case.again_s(Placement(moved, names))
        best_s = min(others.values())
        if row["second"] is None:
            assert row["cost_s"] is None
            assert math.isinf(best_s)
        else:
            assert others[row["second"]] == best_s
            assert row["cost_s"] == pytest.approx(best_s - now_s, abs=1e-9)
    costs = [math.inf if row["cost_s"] is None else row["cost_s"] for row in found]
    assert costs == sorted(costs, reverse=True)
