"""Groups of a problem by learned contraction: where they may be, what they hold, and how many there are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeline.core.problem import Budget
from pipeline.offline.scenario import Scenario, load
from policy.place.base.contraction import contraction, contraction_levels
from policy.place.base.hierarchy import hierarchy, work_of
from policy.place.multilevel.multilevel import Multilevel
from tests.toys import toy_graph, toy_problem

PATH = [(i, i + 1) for i in range(19)]


def test_groups_are_about_as_many_as_asked_for_and_none_too_heavy():
    problem = toy_problem(toy_graph(20, PATH), np.ones((20, 2)))
    for groups in (5, 10):
        found = contraction(problem, groups=groups)
        assert groups / 2 <= found.k <= 2 * groups
        assert np.bincount(found.group, weights=work_of(problem)).max() <= 2 * 20 / groups


def test_what_is_light_joins_a_neighbour_beyond_the_number_asked_for():
    seconds = np.where(np.arange(20) % 2, 1.0, 1e-3)[:, None] * np.ones((1, 2))
    problem = toy_problem(toy_graph(20, PATH), seconds)
    assert contraction(problem, groups=20, balance=1.0).k == 10


def test_groups_have_a_device_in_common_and_fit_four_to_the_smallest():
    graph = toy_graph(20, PATH, weight_bytes=[10] * 20)
    problem = toy_problem(graph, np.ones((20, 2)))
    devices = tuple(replace(d, memory_bytes=240) for d in problem.topology.devices)
    allowed = np.ones((20, 2), bool)
    allowed[:10, 1] = allowed[10:, 0] = False
    problem = problem.on(topology=replace(problem.topology, devices=devices), allowed=allowed)
    found = contraction(problem, groups=2)
    assert problem.group_allowed(found).any(axis=1).all()
    assert np.bincount(found.group, weights=graph.weight_bytes).max() <= 60


def test_multilevel_moves_groups_of_the_contraction_unless_told_otherwise():
    case = load(Scenario("zoo:moe-block?fidelity=core", "p100:4"))
    finest = hierarchy(case.problem, least=4)[0]
    levels = contraction_levels(finest, [32, 8, 32])
    assert [level.k for level in levels] == sorted({level.k for level in levels})
    assert levels[-1].groups.grouping.group.tolist() == contraction(case.problem, groups=32).group.tolist()
    assert levels[-1].work_s.sum() == pytest.approx(finest.work_s.sum())
    answers = [
        Multilevel(contracted=contracted).place(
            case.problem, case.simulator(), Budget(200), seed=0, progress=lambda _: None
        )
        for contracted in (False, True)
    ]
    assert answers[0].best.placement.device.tolist() != answers[1].best.placement.device.tolist()
