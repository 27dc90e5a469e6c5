"""What the proofs of bounds and programs rest on, each by a case in which leaving it out would prove too much."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import pytest
from ortools.sat.python.cp_model import CpSolver

from pipeline.core.graph import Grouping
from pipeline.core.problem import Budget, Problem
from pipeline.core.simulation import DataflowModel, ExecutionModel
from pipeline.core.stages import Answer, Subject
from policy.place.base.groups import Groups
from policy.place.exact.dataflow.cpsat_schedule import listsched
from policy.place.exact.dataflow.cpsat_times import Times
from policy.place.exact.sequential.min_cut import MinCut
from policy.place.exact.shared.bounds import Bound
from policy.place.exact.shared.cpsat import CpSat
from policy.place.exact.shared.cpsat_models import alike_devices
from policy.place.exact.shared.objectives import Unknown, folded
from policy.place.exact.shared.proofs import lower_bound
from policy.place.portfolio import Portfolio
from runtime.simulators.dataflow.listsched import ListSched
from runtime.simulators.sequential.sequential import Sequential
from tests.toys import ignore_progress
from tests.unit.policy.place.exact.shared.test_bounds import problem_of

NEVER = math.inf


def placed(placer: CpSat | MinCut, problem: Problem, measurer: ListSched | Sequential) -> Answer:
    """Return a placer's answer for a problem whose nodes are the simulator's operations."""
    alone = Grouping.identity(problem.graph.n)
    simulator = measurer.bind(Subject(None, problem.graph, alone, problem.topology, problem.costs, 0))
    return placer.place(problem, simulator, Budget(100), seed=0, progress=ignore_progress)


def test_the_block_after_the_last_operation_delays_nothing_that_follows_elsewhere():
    # 0 and 1 end at 1 and 2.5 on D0; 2 takes no time and hears of 1 at 2.5 + 0.1 + 1.
    problem = problem_of([(0, 2), (1, 2)], [[1.0, NEVER], [1.0, NEVER], [NEVER, 0.0]])
    found_s, _ = lower_bound(problem, DataflowModel("T1", block_s=0.5), one_to_one=True)
    assert found_s == pytest.approx(3.6)


def test_a_device_receives_one_tensor_at_a_time_in_the_program_of_t2():
    # 0 and 1 end at 1 on devices of their own; of their tensors the second is there at 1.2 + 1, and 2 takes 1.
    problem = problem_of([(0, 2), (1, 2)], [[1.0, NEVER, NEVER], [NEVER, 1.0, NEVER], [NEVER, NEVER, 1.0]])
    groups = Groups.of(problem)
    made = listsched(problem, groups, Times.of(problem, groups, DataflowModel("T2"), NEVER), None, 0.0)
    solver = CpSolver()
    solver.solve(made.model)
    assert solver.objective_value * made.tick_s == pytest.approx(3.2)


@pytest.mark.parametrize(
    ("room", "pinned", "alike"), [([9, 9], False, [[0, 1]]), ([9, 8], False, []), ([9, 9], True, [])]
)
def test_devices_of_other_room_or_other_operations_are_not_alike(room: list[int], pinned: bool, alike: list[list[int]]):
    problem = problem_of([], [[1.0, 1.0], [1.0, 1.0]], weight=[1, 1], room=room)
    if pinned:
        problem = problem.on(allowed=np.array([[True, False], [True, True]]))
    assert alike_devices(problem, Groups.of(problem), np.ones((2, 2))) == alike


@pytest.mark.parametrize(
    ("idle_s", "weight", "k"), [([0.0, 0.0], 0, 1), ([0.0, NEVER], 0, 2), ([0.0, 0.0], 1, 2), ([0.0, 0.1], 0, 2)]
)
def test_only_what_takes_nothing_and_can_go_along_is_one_with_its_reader(idle_s: list[float], weight: int, k: int):
    problem = problem_of([(0, 1)], [idle_s, [1.0, 1.0]], weight=[weight, 1], room=[9, 9])
    assert folded(problem).k == k


def test_programs_over_groups_that_could_be_taken_apart_prove_nothing():
    together = problem_of([], [[1.0, 9.0], [9.0, 1.0]]).on(grouping=Grouping(np.zeros(2, np.int32)))
    assert placed(CpSat(), together, ListSched("T0")).lower_bound_s <= 1.0
    assert placed(CpSat(), together, Sequential()).lower_bound_s <= 2.0
    assert placed(MinCut(), together, Sequential()).lower_bound_s <= 2.0


class Unheard(ExecutionModel):
    """The rules of somebody's own simulator."""


class Hurried(DataflowModel):
    """Rules derived from known ones."""


def test_of_rules_that_are_not_known_nothing_is_proven_and_of_derived_ones_what_their_base_proves():
    problem = problem_of([(0, 1)], [[1.0, 2.0], [2.0, 1.0]])
    assert lower_bound(problem, Unheard(), one_to_one=True) == (0.0, "")
    assert lower_bound(problem, Hurried("T0"), one_to_one=True) == lower_bound(
        problem, DataflowModel("T0"), one_to_one=True
    )
    assert lower_bound(problem, Hurried("T0"), one_to_one=True)[0] > 0


class AtLeastOneSecond(Unknown):
    """Of these rules it is known that everything takes a second."""

    def bounds(self, problem: Problem, execution: ExecutionModel, *, seconds: float, one_to_one: bool) -> list[Bound]:
        return [(1.0, "patience")]


PATIENT = AtLeastOneSecond()


class Patient(ExecutionModel):
    """The rules of somebody's simulator who knows their objective."""

    objective: ClassVar[str] = f"{__name__}:PATIENT"


def test_a_model_may_bring_an_objective_of_its_own():
    found_s, by = lower_bound(problem_of([], [[1.0, 2.0]]), Patient(), one_to_one=True)
    assert (found_s, by) == (pytest.approx(1.0), "patience")


@pytest.mark.parametrize("placer", [CpSat(), MinCut(), Portfolio()])
def test_placers_search_in_simulators_of_unknown_rules_and_prove_nothing(placer: CpSat | MinCut | Portfolio):
    problem = problem_of([(i, i + 1) for i in range(13)], [[1.0, 1.3], [2.0, 1.0]] * 7)
    alone = Grouping.identity(problem.graph.n)
    simulator = Sequential().bind(Subject(None, problem.graph, alone, problem.topology, problem.costs, 0))
    known = placer.place(problem, simulator, Budget(300), seed=0, progress=ignore_progress)
    simulator.execution = Unheard()
    found = placer.place(problem, simulator, Budget(300), seed=0, progress=ignore_progress)
    assert (known.lower_bound_s > 0, found.lower_bound_s) == (True, 0.0)
    assert found.value_s <= 1.05 * known.value_s
