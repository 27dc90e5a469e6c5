"""A placement of groups where nodes are placed, or of other devices, is one clear error at every border."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from pipeline.core.errors import UsageError
from pipeline.core.graph import Grouping
from pipeline.core.placement import Placement
from pipeline.core.problem import Budget
from pipeline.core.simulation import Moves
from pipeline.core.stages import Subject
from pipeline.settings.registry import build_implementation
from pipeline.testing.placers import check_placer
from pipeline.testing.problems import SumEvaluator, chain_problem, ignore_progress
from policy.place.base.search import Method, Search

SIMULATORS = ("listsched", "sequential", "pipelined", "latency")
FOURS = Grouping.of_labels(np.arange(12) // 4)


@dataclass(frozen=True, slots=True)
class Forgetful(Method):
    """Asks about placements of groups without lifting them."""

    version: ClassVar[int] = 1

    def run(self, search: Search, *, seed: int) -> None:
        """Ask about one."""
        grouping = search.problem.grouping if search.problem.grouping.k < search.problem.graph.n else FOURS
        search.evaluate([Placement(np.zeros(grouping.k, np.int32), search.problem.topology.names)])


def three(names: tuple[str, ...] = ("A", "B")) -> Placement:
    return Placement(np.zeros(3, np.int32), names)


def searching(simulator: str = "listsched") -> Search:
    problem = chain_problem()
    subject = Subject(None, problem.graph, Grouping.identity(12), problem.topology, problem.costs, 0)
    return Search(problem, build_implementation("measure", simulator).bind(subject), Budget(30), ignore_progress)


def refuses(call: Callable[[], object], *, nodes: int = 12) -> None:
    with pytest.raises(UsageError) as caught:
        call()
    assert f"A placement of 3 nodes was given where {nodes} are placed" in caught.value.cause
    assert "lift(grouping)" in caught.value.remedy


def test_a_problem_refuses_a_placement_of_groups() -> None:
    refuses(lambda: chain_problem().fits(three()))


@pytest.mark.parametrize("simulator", SIMULATORS)
def test_a_search_refuses_a_placement_of_groups(simulator: str) -> None:
    search = searching(simulator)
    one = np.zeros(1, np.int32)
    move = Moves(np.array([0, 1]), one, one, one - 1, np.zeros(1), np.zeros(1))
    refuses(lambda: search.evaluate([three()]))
    refuses(lambda: search.simulate(np.zeros((2, 3), np.int32)))
    refuses(lambda: search.timeline(three()))
    refuses(lambda: search.local_search(three(), move))


@pytest.mark.parametrize("simulator", SIMULATORS)
def test_a_simulator_refuses_a_placement_of_groups_before_it_counts(simulator: str) -> None:
    problem = chain_problem()
    subject = Subject(None, problem.graph, Grouping.identity(12), problem.topology, problem.costs, 0)
    evaluator = build_implementation("measure", simulator).bind(subject)
    whole = Placement.single(12, 0, ("A", "B"))
    refuses(lambda: evaluator.evaluate([whole, three()]))
    refuses(lambda: evaluator.simulate(np.zeros((1, 3), np.int32), None))
    refuses(lambda: evaluator.timeline(three()))
    assert evaluator.evaluations == 0


def test_the_evaluator_of_the_contract_suite_refuses_a_placement_of_groups() -> None:
    refuses(lambda: SumEvaluator.of(chain_problem()).evaluate([three()]))


def test_the_contract_suite_says_what_a_placer_forgot() -> None:
    refuses(lambda: check_placer(Forgetful()))


def test_a_placement_on_other_devices_is_refused_by_their_names() -> None:
    other = Placement(np.zeros(12, np.int32), ("B", "A"))
    with pytest.raises(UsageError, match=r"A placement on B, A was given where the devices are A, B\."):
        chain_problem().fits(other)


def test_lifting_by_another_grouping_is_a_clear_error() -> None:
    with pytest.raises(UsageError, match="A placement of 3 groups does not fit a grouping into 12"):
        three().lift(Grouping.identity(12))
