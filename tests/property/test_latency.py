"""One inference with calls of accelerators: simulator, bounds and solvers against brute force."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from pipeline.core.arrays import Float64, Int32
from pipeline.core.errors import DeviceError
from pipeline.core.graph import Grouping
from pipeline.core.placement import Placement
from pipeline.core.problem import Budget, Problem
from pipeline.core.simulation import Moves
from pipeline.core.stages import Answer, Simulator, Subject
from pipeline.offline.calls import checked_latency, turns_of
from pipeline.settings.registry import build_implementation
from policy.place.exact.calls.flow_bound import flow_bound
from policy.place.exact.shared.proofs import lower_bound
from tests.small_pipelines import SmallPipeline, small_pipeline

CLOSE = 1e-9
FEW, MANY = range(60), range(60, 1500)


def simulator(problem: Problem, calls: int = 1) -> Simulator:
    subject = Subject(None, problem.graph, Grouping.identity(problem.graph.n), problem.topology, problem.costs, 0)
    return build_implementation("measure", "latency", {"calls": calls}).bind(subject)  # type: ignore[no-any-return]


def case_of(number: int) -> SmallPipeline:
    return small_pipeline(number, training=False)


def all_calls(problem: Problem, device: Int32, calls: int) -> tuple[Int32, Float64]:
    """Return every placement once for each way to spread what lies on accelerators over calls."""
    cpu = np.array([spec.kind == "cpu" for spec in problem.topology.devices])
    turns = np.array(list(product(range(calls), repeat=problem.graph.n)), np.float64)
    rows, priorities = [], []
    for row in device:
        kept = turns[(turns[:, cpu[row]] == 0).all(axis=1)]
        rows.append(np.repeat(row[None], len(kept), axis=0))
        priorities.append(kept)
    return np.concatenate(rows), np.concatenate(priorities)


def optimum_s(case: SmallPipeline, calls: int = 1) -> float:
    device = case.placements()
    if not device.size:
        return math.inf
    priority = None
    if calls > 1:
        device, priority = all_calls(case.problem, device, calls)
    return float(simulator(case.problem, calls).simulate(device, priority).value_s.min(initial=math.inf))


def answer(problem: Problem, placer: str, calls: int = 1) -> Answer | None:
    settings = {"effort": 1.0} if placer == "cpsat" else {}
    asked = simulator(problem, calls)
    try:
        return build_implementation("place", placer, settings).place(  # type: ignore[no-any-return]
            problem, asked, Budget(evaluations=2000), seed=0, progress=lambda _: None
        )
    except DeviceError:
        return None


def check(case: SmallPipeline, placer: str, calls: int = 1) -> None:
    best_s = optimum_s(case, calls)
    problem = case.problem if calls == 1 else _ordered(case.problem)
    found = answer(problem, placer, calls)
    if math.isinf(best_s):
        assert found is None or math.isinf(found.value_s)
        return
    assert found is not None
    assert found.lower_bound_s <= best_s * (1 + CLOSE)
    assert found.value_s >= best_s * (1 - CLOSE)
    placement = found.best.placement
    if math.isfinite(found.value_s):
        checked = checked_latency(problem, placement.device.tolist(), turns_of(placement, calls))
        assert checked.faults == []
        assert checked.value_s == pytest.approx(found.value_s, rel=CLOSE)
    if placer == "cpsat":
        assert found.value_s == pytest.approx(best_s, rel=CLOSE)
        assert found.proven


def _ordered(problem: Problem) -> Problem:
    return replace(problem, ordered=True)


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_the_simulator_counts_as_the_definition_does(calls: int) -> None:
    rng = np.random.default_rng(calls)
    waits = 0
    for number in FEW:
        problem = case_of(number).problem
        device = rng.integers(0, problem.topology.p, (20, problem.graph.n)).astype(np.int32)
        turn = rng.integers(0, calls, device.shape)
        found = simulator(problem, calls).simulate(device, turn.astype(np.float64))
        for row in range(len(device)):
            checked = checked_latency(problem, device[row].tolist(), turn[row].tolist())
            assert problem.costs is not None
            if problem.costs.supported[np.arange(problem.graph.n), device[row]].all():
                assert found.value_s[row] == pytest.approx(checked.value_s, rel=CLOSE)
                waits += math.isinf(checked.value_s)
            else:
                assert math.isinf(found.value_s[row])
    assert waits > 0


def test_a_local_search_knows_what_every_move_costs() -> None:
    rng = np.random.default_rng(0)
    for number in FEW[:20]:
        problem = _ordered(case_of(number).problem)
        n, p = problem.graph.n, problem.topology.p
        moves = Moves(
            np.arange(31),
            rng.integers(0, n, 30).astype(np.int32),
            rng.integers(-1, p, 30).astype(np.int32),
            np.full(30, -1, np.int32),
            rng.choice([0.0, 1.0, -1.0], 30),
            np.full(30, math.inf),
        )
        begun = simulator(problem, 2)
        placement = Placement(np.full(n, p - 1, np.int32), problem.topology.names, np.zeros(n))
        search = begun.local_search(placement, moves, allowed=np.isfinite(problem.costs.op_s), limit=100)  # type: ignore[union-attr]
        for i in range(30):
            moved = moves.applied(i, placement)
            assert moved.priority is not None
            found = simulator(problem, 2).simulate(moved.device[None], moved.priority[None])
            if search.tried[i]:
                assert search.value_s[i] == (found.value_s[0] if found.over_bytes[0] == 0 else math.inf)
            placement = moved if search.taken[i] else placement
        assert search.end.key() == placement.key()


@pytest.mark.parametrize("calls", [1, 2])
def test_no_placement_is_faster_than_the_bound(calls: int) -> None:
    tight = 0
    for number in FEW[:40] if calls == 1 else FEW[:20]:
        case = case_of(number)
        best_s = optimum_s(case, calls)
        bound_s, _ = lower_bound(case.problem, simulator(case.problem, calls).execution, one_to_one=True)
        assert bound_s <= best_s * (1 + CLOSE)
        tight += math.isclose(bound_s, best_s, rel_tol=1e-6)
    assert tight > 5  # of no use if it is never reached


def test_calls_in_series_are_never_better_than_the_optimum() -> None:
    for number in FEW[:20]:
        check(case_of(number), "latency_dp")


def test_the_solver_finds_and_proves_the_optimum() -> None:
    for number in FEW[:30]:
        check(case_of(number), "cpsat")


def test_the_solver_finds_and_proves_the_optimum_of_two_calls() -> None:
    better = 0
    for number in FEW[:20]:
        case = case_of(number)
        check(case, "cpsat", calls=2)
        better += optimum_s(case, 2) < optimum_s(case) * (1 - CLOSE)
    assert better > 0


@pytest.mark.slow
def test_no_placement_is_faster_than_the_bound_of_a_flow() -> None:
    for number in MANY:
        case = case_of(number)
        assert flow_bound(case.problem, seconds=math.inf) <= optimum_s(case) * (1 + CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize(("placer", "calls"), [("latency_dp", 1), ("cpsat", 1), ("cpsat", 2)])
def test_a_thousand_optima(placer: str, calls: int) -> None:
    for number in MANY:
        check(case_of(number), placer, calls)
