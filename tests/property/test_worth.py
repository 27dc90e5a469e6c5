"""What is proven of a split, and of machines that differ in one thing, against every placement of small problems."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from pipeline.core.graph import Grouping
from pipeline.core.placement import Placement
from pipeline.core.problem import Problem
from pipeline.core.stages import Simulator, Subject
from pipeline.placing.worth import (
    LINKS,
    MEMORY,
    PARTS,
    changed_machines,
    judge_worth,
    most_gain,
    parts_in_order,
    single_seconds,
    split_may_pay,
    with_copy,
)
from pipeline.settings.registry import build_implementation
from pipeline.shared.partition import colocation_grouping
from tests.property.test_exact import random_problem
from tests.small_cases import SmallCase
from tests.toys import toy_graph

RULES = ("listsched", "sequential", "pipelined", "latency")
FLOATS = 1e-9


def simulator_of(problem: Problem, rules: str) -> Simulator:
    subject = Subject(None, problem.graph, Grouping.identity(problem.graph.n), problem.topology, problem.costs, 0)
    return build_implementation("measure", rules, {}).bind(subject)  # type: ignore[no-any-return]


def small_problem(seed: int) -> Problem:
    problem = random_problem(seed, n=5, p=2 + seed % 2, even=seed % 3 == 0, memory=seed % 4 == 1)
    return replace(problem.on(grouping=colocation_grouping(problem.graph)), ordered=False)


def optimum_s(problem: Problem, rules: str) -> float:
    """Return the least seconds of all placements of a problem; inf if none fits."""
    return SmallCase(problem, rules).optimum_s()


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("seed", range(24))
def test_no_placement_beats_what_is_proven_on_any_of_the_machines(seed: int, rules: str) -> None:
    problem = small_problem(seed)
    found = judge_worth(problem, simulator_of(problem, rules), seconds=30.0)
    assert found["asked_all"]
    best_s = optimum_s(problem, rules)
    assert found["lower_bound_s"] <= best_s * (1 + FLOATS)
    if found["single"] is not None and found["most_gain"] is not None and math.isfinite(best_s):
        assert found["single"]["value_s"] / best_s - 1 <= found["most_gain"] + FLOATS
    alone = [Placement.single(problem.graph.n, d, problem.topology.names) for d in range(problem.topology.p)]
    alone_s = min(SmallCase(problem, rules).again_s(placement) for placement in alone)
    assert alone_s == (found["single"]["value_s"] if found["single"] is not None else math.inf)
    changes = {change.name: change for change in changed_machines(problem, memory=True)}
    assert [row["change"] for row in found["what_if"]] == list(changes)
    for row in found["what_if"]:
        changed_s = optimum_s(changes[row["change"]].problem, rules)
        if not row["feasible"]:
            assert math.isinf(changed_s)
        elif math.isfinite(changed_s):
            assert row["lower_bound_s"] is not None
            assert row["lower_bound_s"] <= changed_s * (1 + FLOATS)


@pytest.mark.parametrize("rules", RULES)
def test_where_no_split_may_pay_none_does(rules: str) -> None:
    told = []
    for seed in range(24):
        problem = small_problem(seed)
        simulator = simulator_of(problem, rules)
        for least in (0.0, 0.1, 0.5):
            told.append(split_may_pay(problem, simulator, 30.0, least=least))
            single_s = float(single_seconds(problem, simulator).min())
            assert told[-1] or single_s <= optimum_s(problem, rules) * (1 + least) * (1 + FLOATS)
    assert {True, False} == set(told)


@pytest.mark.parametrize("seed", range(12))
def test_half_the_memory_never_lowers_the_bound(seed: int) -> None:
    problem = small_problem(4 * seed + 1)
    found = judge_worth(problem, simulator_of(problem, "listsched"), seconds=30.0)
    rows = {row["change"]: row for row in found["what_if"]}
    assert not rows[MEMORY]["feasible"] or rows[MEMORY]["lower_bound_s"] >= found["lower_bound_s"]  # type: ignore[operator]


@pytest.mark.parametrize(("spare", "fits"), [(0, True), (-1, False)])
def test_half_the_memory_is_infeasible_only_where_weights_exceed_it(spare: int, fits: bool) -> None:
    problem = small_problem(1)
    total, p = int(problem.graph.weight_bytes.sum()), problem.topology.p
    room = 2 * (-(-total // p) + spare)
    devices = tuple(replace(device, memory_bytes=room) for device in problem.topology.devices)
    tight = problem.on(topology=replace(problem.topology, devices=devices))
    (change,) = (c for c in changed_machines(tight, memory=True) if c.name == MEMORY)
    assert change.fits is fits
    assert MEMORY not in [c.name for c in changed_machines(tight, memory=False)]


@pytest.mark.parametrize("rules", RULES)
def test_one_device_more_leaves_every_placement_as_it_was(rules: str) -> None:
    problem = small_problem(7)
    wider = with_copy(problem, 1)
    device = np.array(list(product(range(problem.topology.p), repeat=problem.graph.n)), np.int32)
    before, after = (simulator_of(each, rules).simulate(device) for each in (problem, wider))
    assert np.allclose(before.value_s, after.value_s, rtol=1e-12)
    if simulator_of(problem, rules).execution.anonymous:  # with queues, what is sent first depends on device numbers
        copied = np.where(device == 1, problem.topology.p, device)
        assert np.allclose(simulator_of(wider, rules).simulate(copied).value_s, before.value_s, rtol=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_parts_hold_every_operation_once_and_about_equal_work(seed: int) -> None:
    problem = random_problem(seed, n=64, p=2, even=True)
    parts = parts_in_order(problem)
    assert sorted(np.concatenate(parts).tolist()) == list(range(64))
    assert len(parts) == PARTS


def test_what_a_chain_rests_on_is_known_by_hand() -> None:
    # Two devices alike: a chain gains nothing, whatever the links. Its parts fall by the share of their work.
    problem = small_problem(0)
    chain = problem.graph.n
    graph = toy_graph(chain, [(i, i + 1) for i in range(chain - 1)], types=["MatMul"] * chain)
    assert problem.costs is not None
    costs = replace(problem.costs, op_s=np.full((chain, problem.topology.p), 0.25), names=graph.names)
    even = problem.on(graph=graph, costs=costs, allowed=np.ones((chain, problem.topology.p), bool))
    found = judge_worth(even, simulator_of(even, "listsched"), seconds=30.0)
    assert found["single"] is not None
    assert found["single"]["value_s"] == pytest.approx(0.25 * chain)
    assert found["most_gain"] == pytest.approx(0.0, abs=1e-6)
    assert found["worth"] is False
    assert found["rests_on"]["link"] is None
    part = found["rests_on"]["part"]
    assert part is not None
    assert part["fall"] == pytest.approx(part["operations"] / chain)
    assert next(row for row in found["what_if"] if row["change"] == LINKS)["fall"] == pytest.approx(0.0)
    assert "alone is optimal" in found["verdict"]


def test_a_device_that_lacks_memory_does_not_count_as_a_single_one() -> None:
    problem = small_problem(1)
    alone_s = single_seconds(problem, simulator_of(problem, "listsched"))
    held = int(problem.graph.weight_bytes.sum())
    assert all(math.isinf(s) for s, d in zip(alone_s, problem.topology.devices, strict=True) if d.memory_bytes < held)
    found = judge_worth(problem, simulator_of(problem, "listsched"), seconds=30.0)
    assert (found["single"], found["worth"], found["most_gain"]) == (None, None, None)
    assert found["verdict"].startswith("No device alone runs and holds the model; no placement takes less than")


def test_without_a_bound_anything_may_be_gained() -> None:
    assert math.isinf(most_gain(1.0, 0.0))


def test_without_time_what_was_not_asked_is_said() -> None:
    problem = small_problem(0)
    found = judge_worth(problem, simulator_of(problem, "listsched"), seconds=1e-9)
    assert not found["asked_all"]
    assert found["what_if"] == []
    assert found["lower_bound_s"] <= optimum_s(problem, "listsched") * (1 + FLOATS)
