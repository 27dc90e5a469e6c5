"""Recipes: what placers that bring their own stages are given, and their answers in terms of operations."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import pipeline.settings.declared
from coarsen.colocate import Colocate
from pipeline.core.errors import UnknownNameError
from pipeline.core.graph import Graph, Grouping, contract
from pipeline.core.learning import Snapshot
from pipeline.core.measurement import Measurement
from pipeline.core.placement import Placement
from pipeline.core.problem import Problem
from pipeline.core.stages import Answer, Candidate, Recipe
from pipeline.offline.scenario import Scenario, load
from pipeline.offline.search import Effort, search
from pipeline.placing.recipes import lift_answer, prepare_problem
from pipeline.settings.config import Settings
from pipeline.settings.registry import load_implementation
from pipeline.stages.host import HostMachine, ModelFile
from pipeline.stages.plan import plan_tasks
from tests.toys import chain_problem, toy_graph, toy_problem

DEVICES = ("A", "B")
RECIPE = Recipe(
    coarsen=(("colocate", {"rule": "paper"}),),
    blocks=("types", "index"),
    embed=("gcn", {"width": 8, "layers": 1}),
    group=("identity", {}),
)


def forked(**options: object) -> Problem:
    """Return 0 -> 1 -> {2 -> 3, 4 -> 5} -> 6 -> 7, of which co-location makes four chains of two."""
    edges = [(0, 1), (1, 2), (2, 3), (1, 4), (4, 5), (3, 6), (5, 6), (6, 7)]
    op_s = 1e-3 * np.arange(1.0, 17.0).reshape(8, 2)
    colocate = options.pop("colocate", None)
    return toy_problem(toy_graph(8, edges, colocate=colocate), op_s, **options)  # type: ignore[arg-type]


def made(problem: Problem, recipe: Recipe = RECIPE) -> tuple[Grouping, Problem]:
    return prepare_problem(recipe, problem, problem.costs, seed=0)


def test_groups_are_those_of_the_coarseners_and_costs_their_sums():
    grouping, own = made(forked())
    assert grouping.group.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert own.graph.m == 4
    assert own.costs is not None
    assert own.costs.op_s[0].tolist() == pytest.approx([1e-3 + 3e-3, 2e-3 + 4e-3])


def test_coarseners_run_one_after_another():
    chain = dataclasses.replace(RECIPE, coarsen=(("colocate", {"rule": "paper"}), ("colocate", {"rule": "released"})))
    grouping, own = made(forked(), chain)
    assert grouping.group.tolist() == [0, 0, 0, 0, 0, 0, 1, 1]
    assert own.graph.n == 2


def test_features_embedder_and_grouper_are_the_recipes():
    _, own = made(forked())
    assert own.policy is not None
    assert own.policy.features.shape[0] == 4
    assert own.policy.features[:, -1].tolist() == [0, 1, 2, 3]
    assert own.policy.embedder.encoder(5, seed=0).width == 8
    assert not own.policy.encoder_weights


def test_pins_hold_for_the_groups():
    allowed = np.ones((8, 2), bool)
    allowed[3, 0] = False
    _, own = made(forked(allowed=allowed))
    assert own.allowed.tolist() == [[True, True], [False, True], [True, True], [True, True]]


def test_a_group_whose_members_have_no_device_in_common_is_taken_apart():
    allowed = np.ones((8, 2), bool)
    allowed[2, 0] = allowed[3, 1] = False
    grouping, own = made(forked(allowed=allowed))
    assert grouping.k == own.graph.n == 5
    assert grouping.group[2] != grouping.group[3]
    assert own.allowed.any(axis=1).all()


def test_tied_operations_are_in_one_group():
    grouping, _ = made(forked(colocate=[-1, -1, 5, -1, -1, 5, -1, -1]))
    assert grouping.group[2] == grouping.group[3] == grouping.group[4] == grouping.group[5]


def test_a_start_that_keeps_groups_together_is_carried_over():
    start = Placement(np.array([0, 0, 1, 1, 0, 0, 1, 1]), DEVICES)
    problem = dataclasses.replace(forked(start=start), start_by="heft")
    grouping, own = made(problem)
    assert own.start is not None
    assert own.start.device.tolist() == [0, 1, 0, 1]
    assert own.start.lift(grouping).key() == start.key()
    assert own.start_by == "heft"


def test_a_start_that_parts_a_group_is_not():
    assert made(forked(start=Placement(np.array([0, 1, 1, 1, 0, 0, 1, 1]), DEVICES)))[1].start is None


@pytest.mark.parametrize(("priority", "kept"), [([0, 0, 1, 1, 2, 2, 3, 3], True), ([0, 1, 2, 3, 4, 5, 6, 7], False)])
def test_priorities_come_along_if_groups_can_have_them(priority: list[int], kept: bool):
    start = Placement(np.zeros(8, np.int32), DEVICES, np.array(priority, float))
    _, own = made(dataclasses.replace(forked(start=start), ordered=True))
    assert own.ordered
    assert (own.start is not None) is kept


def test_unknown_costs_stay_unknown():
    problem = chain_problem(costs_known=False)
    _, own = prepare_problem(dataclasses.replace(RECIPE, blocks=("spread", "index")), problem, None, seed=0)
    assert own.costs is None
    assert own.policy is not None
    assert own.policy.features.shape[1] == 1


def test_a_learned_policy_is_handed_on():
    problem = forked()
    assert problem.policy is not None
    snapshot = Snapshot({}, {"by": "an earlier search"})
    problem = dataclasses.replace(problem, policy=dataclasses.replace(problem.policy, learned=snapshot))
    _, own = made(problem)
    assert own.policy is not None
    assert own.policy.learned is snapshot


def test_a_recipe_that_names_what_does_not_exist_is_refused():
    for wrong in ({"coarsen": (("colocation", {}),)}, {"blocks": ("typos",)}, {"embed": ("gnc", {})}):
        with pytest.raises(UnknownNameError):
            made(forked(), dataclasses.replace(RECIPE, **wrong))  # type: ignore[arg-type]


def test_an_answer_is_lifted_to_operations_without_its_bound():
    groups = Placement(np.array([1, 0]), DEVICES)
    answer = Answer((Candidate(groups, Measurement(np.array([2.0])), "x"),), lower_bound_s=1.0, bound_by="exact")
    found = lift_answer(answer, Grouping(np.array([0, 0, 1, 0])))
    assert found.best.placement.device.tolist() == [1, 1, 0, 1]
    assert (found.value_s, found.best.found_by) == (2.0, "x")
    assert (found.lower_bound_s, found.bound_by) == (0.0, "")


def test_an_answer_for_groups_of_one_operation_each_keeps_its_bound():
    groups = Placement(np.array([1, 0]), DEVICES)
    answer = Answer((Candidate(groups, Measurement(np.array([2.0])), "x"),), lower_bound_s=1.0, bound_by="exact")
    found = lift_answer(answer, Grouping(np.array([1, 0])))
    assert found.best.placement.device.tolist() == [0, 1]
    assert (found.lower_bound_s, found.bound_by) == (1.0, "exact")


@pytest.mark.parametrize(("name", "evaluator"), [("hsdag_paper", "listsched"), ("hsdag_released", "sequential")])
def test_a_search_by_a_placer_with_a_recipe_answers_in_operations(name: str, evaluator: str):
    quick = {f"place.{name}.hidden": 16, f"place.{name}.episodes": 2}
    scenario = Scenario("zoo:rnnlm2?steps=3", "equal:2", evaluator=evaluator, settings=quick)
    document = search(scenario, Effort(name, evaluations=30))
    case = load(scenario)
    assert document["placement"].keys() == {*case.graph.names}
    assert document["evaluations"] <= 30
    assert document["value_s"] == pytest.approx(document["fifo_s"])
    assert 0 < document["lower_bound_s"] <= document["value_s"]
    rule = "paper" if name == "hsdag_paper" else "released"
    groups = _groups(case.graph, rule)
    device = np.array([document["placement"][operation] for operation in case.graph.names])
    assert all(len({*device[groups.group == g]}) == 1 for g in range(groups.k))


def _groups(graph: Graph, rule: str) -> Grouping:
    found: Grouping = load_implementation("coarsen", "colocate")(rule=rule).coarsen(graph, seed=0)
    assert contract(graph, found).n < graph.n
    return found


def test_what_a_placer_brings_along_is_part_of_the_key_of_its_answer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        pipeline.settings.declared, "recall_answer", lambda question, answer: answer()
    )  # versions change without text
    model, machine = ModelFile(Path("m.xml"), "0" * 64), HostMachine((), {}, "here")

    def key(*placers: str) -> str:
        settings = Settings().updated({"place.use": placers, "place.reward": "simulated"}, "the test")
        return plan_tasks(model, settings, machine, upto="place")[-1].key

    before = key("hsdag_paper"), key("anneal")
    monkeypatch.setattr(Colocate, "version", Colocate.version + 1)
    assert key("hsdag_paper") != before[0]
    assert key("anneal") == before[1]
