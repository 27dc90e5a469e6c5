"""Placements near an earlier one, against every placement of small problems."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from pipeline.core.arrays import Int32
from pipeline.core.devices import Topology
from pipeline.core.errors import DeviceError, UsageError
from pipeline.core.placement import Placement
from pipeline.core.problem import Budget, Problem
from pipeline.core.stages import Answer
from pipeline.placing import near as near_module
from pipeline.placing.near import Near, NearRecord, place_near
from pipeline.settings.registry import build_implementation
from tests.small_cases import SmallCase, small_case

FLOATS = 1e-9
BUDGET = Budget(evaluations=400)


def near_of(case: SmallCase, seed: int, *, limit: int | None, price_s: float = 0.0) -> Near:
    """Return a random earlier placement of a case, in which the last operation is new."""
    problem = case.problem
    rng = np.random.default_rng(seed)
    home = np.array([rng.choice(np.flatnonzero(row)) for row in problem.allowed], np.int32)
    home = home[np.unique(problem.grouping.group, return_index=True)[1]][problem.grouping.group]
    home[-1] = -1
    return Near(home, limit=limit, price_s=price_s)


def placed(case: SmallCase, near: Near, *, placer: str = "anneal") -> tuple[Answer, NearRecord]:
    def place(problem: Problem, budget: Budget, seed: int) -> tuple[Answer, int]:
        simulator = SmallCase(problem, case.rules).simulator()
        built = build_implementation("place", placer)
        answer = built.place(problem, simulator, budget, seed=seed, progress=lambda _: None)
        return answer, simulator.evaluations

    answer, spent, record = place_near(case.problem, near, case.simulator(), place, BUDGET, seed=0)
    assert spent <= BUDGET.evaluations + 2 * case.problem.graph.n  # type: ignore[operator]  what comes back is tried
    return answer, record


def best_near(case: SmallCase, near: Near) -> float:
    """Return the least seconds and price of all placements within the limit, one by one; inf if none fits."""
    problem = case.problem
    homes = [np.flatnonzero(row).tolist() for row in problem.group_allowed(problem.grouping)]
    device: Int32 = np.array(list(product(*homes)), np.int32)[:, problem.grouping.group]
    moved = ((near.home >= 0) & (device != near.home)).sum(axis=1)
    found = case.simulator().simulate(device)
    value_s = np.where(found.over_bytes == 0, found.value_s, math.inf) + near.price_s * moved
    return float(value_s[moved <= (math.inf if near.limit is None else near.limit)].min(initial=math.inf))


CASES = [case for case in (small_case(number) for number in range(18)) if case.problem.graph.n <= 6]


@pytest.mark.parametrize("limit", [0, 1, 2, None])
@pytest.mark.parametrize("few", [True, False])
def test_within_the_limit_and_never_better_than_brute_force(
    monkeypatch: pytest.MonkeyPatch, limit: int | None, few: bool
) -> None:
    if not few:
        monkeypatch.setattr(near_module, "ENUMERATED", 0)
        monkeypatch.setattr(near_module, "IDLE", 6)
    optimal = compared = 0
    for number, case in enumerate(CASES):
        near = near_of(case, number, limit=limit, price_s=0.1 if number % 2 else 0.0)
        best_s = best_near(case, near)
        try:
            answer, record = placed(case, near)
        except UsageError:
            assert math.isinf(best_s)
            continue
        except DeviceError:
            assert not few or math.isinf(best_s)
            continue
        moved = near.moved(answer.best.placement).size
        assert limit is None or moved <= limit
        assert len(record["moved"]) == moved
        value_s = answer.value_s + near.price_s * moved
        assert answer.value_s == pytest.approx(case.again_s(answer.best.placement), rel=FLOATS)
        assert value_s >= best_s * (1 - FLOATS)
        compared += 1
        optimal += value_s <= best_s * (1 + FLOATS)
        assert not record["optimal"] or value_s <= best_s * (1 + FLOATS)
    assert compared >= 3
    assert optimal >= 0.6 * compared  # all where the few are simulated, see above


def test_an_equal_graph_and_no_moves_give_the_earlier_placement() -> None:
    case = small_case(0)
    device = np.arange(case.problem.graph.n, dtype=np.int32) % case.problem.topology.p
    device = device[np.unique(case.problem.grouping.group, return_index=True)[1]][case.problem.grouping.group]
    roomy = SmallCase(
        case.problem.on(
            topology=Topology(
                tuple(replace(d, memory_bytes=0) for d in case.problem.topology.devices),
                case.problem.topology.link_bytes_per_s,
                case.problem.topology.link_latency_s,
            )
        ),
        case.rules,
    )
    answer, record = placed(roomy, Near(device, limit=0))
    np.testing.assert_array_equal(answer.best.placement.device, device)
    assert record["moved"] == []
    assert record["before_s"] == pytest.approx(answer.value_s)


def test_operations_are_joined_by_name() -> None:
    problem = small_case(1).problem
    names, devices = problem.graph.names, problem.topology.names
    near = Near.of({names[0]: devices[1], names[1]: "elsewhere", "gone": devices[0]}, problem)
    assert near.home[0] == 1
    assert set(near.home[1:].tolist()) == {-1}
    record = near.record(problem, Placement.single(len(names), 0, devices), math.inf, optimal=False)
    assert record["moved"] == [{"operation": names[0], "before": devices[1], "now": devices[0]}]
    assert record["added"] == list(names[2:])
    assert record["removed"] == ["gone"]
    assert record["device_gone"] == [names[1]]
    with pytest.raises(UsageError, match="names no operation"):
        Near.of({"gone": devices[0]}, problem)


def test_what_must_move_is_said() -> None:
    case = next(c for c in CASES if not c.problem.allowed.all())
    problem = case.problem
    group, device = (int(x[0]) for x in np.nonzero(~problem.group_allowed(problem.grouping)))
    home = np.where(problem.grouping.group == group, device, -1).astype(np.int32)
    with pytest.raises(UsageError, match="must move, and 0 may"):
        placed(case, Near(home, limit=0))
