"""What the second-best device of each group costs, against placements simulated one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pipeline.core.deadline import Deadline
from pipeline.core.placement import Placement
from pipeline.placing import single_moves
from pipeline.placing.single_moves import regrets
from tests.small_cases import SmallCase, small_case


def drawn_placement(case: SmallCase, seed: int) -> Placement:
    """Return the best of a few placements at random."""
    rng, grouping = np.random.default_rng(seed), case.problem.grouping
    allowed, names = case.problem.group_allowed(grouping), case.problem.topology.names
    placements = [
        Placement(np.array([rng.choice(np.flatnonzero(row)) for row in allowed], np.int32), names).lift(grouping)
        for _ in range(20)
    ]
    return min(placements, key=case.again_s)


@pytest.mark.parametrize("number", range(12))
def test_regret_is_what_the_best_other_device_costs(number: int) -> None:
    case = small_case(number)
    problem, placement = case.problem, drawn_placement(case, number)
    grouping, names = problem.grouping, problem.topology.names
    allowed = problem.group_allowed(grouping)
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


def test_after_the_deadline_no_further_groups_are_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    for number in range(12):
        case = small_case(number)
        placement = drawn_placement(case, number)
        monkeypatch.setattr(single_moves, "TOGETHER", 64)
        whole = regrets(case.problem, case.simulator(), placement)
        monkeypatch.setattr(single_moves, "TOGETHER", 2)
        assert regrets(case.problem, case.simulator(), placement) == whole
        some = regrets(case.problem, case.simulator(), placement, deadline=Deadline.after(0.0))
        assert len(some) == min(2, len(whole))
        assert all(row in whole for row in some)
        asked += len(whole) > 2
    assert asked > 3
