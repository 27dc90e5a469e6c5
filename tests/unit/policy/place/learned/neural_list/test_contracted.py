"""Schedules on groups of the learned contraction: what they keep to, and what they are worth."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from pipeline.core.graph import Grouping, is_acyclic
from pipeline.core.problem import Budget, Problem
from pipeline.offline.scenario import LoadedScenario, Scenario, load
from pipeline.placing.setup import coarse_problem
from pipeline.shared.feasibility import feasible_grouping
from policy.place.base.search import Search
from policy.place.learned.neural_list import neural_list
from policy.place.learned.neural_list.instances import JOINED, ListInstance, contracted_instances, list_instances
from policy.place.learned.neural_list.list_policy import shipped
from policy.place.learned.neural_list.neural_list import NeuralList
from policy.place.learned.neural_list.sampling import asked
from policy.place.lists.submit import fitted

GRAPHS = ("txl2?fidelity=core&segments=2", "moe-block?fidelity=core", "nas-rnn?index=7", "layered?n=200")


def case_of(graph: str, topology: str = "equal:4") -> LoadedScenario:
    return load(Scenario(f"zoo:{graph}", topology))


def search_of(problem: Problem, case: LoadedScenario, evaluations: int = 1000) -> Search:
    return Search(problem, case.simulator(), Budget(evaluations), lambda _: None)


def contracted(search: Search) -> list[ListInstance]:
    return list(contracted_instances(search, list_instances(search)[0]))


@pytest.mark.parametrize("together", [1, 3])
@pytest.mark.parametrize("graph", GRAPHS)
def test_what_is_one_node_or_must_be_together_is_together_and_on_a_device_that_may_run_it(graph: str, together: int):
    case, rng = case_of(graph), np.random.default_rng(0)
    allowed = case.problem.allowed.copy()
    barred = rng.random(case.graph.n) < 0.1
    allowed[barred, rng.integers(0, 4, int(barred.sum()))] = False
    groups = Grouping(np.arange(case.graph.n, dtype=np.int32) // together)
    search = search_of(case.problem.on(allowed=allowed, grouping=groups), case)
    found = contracted(search)
    assert {instance.nodes is None for instance in found} == {True, False}
    for instance in found:
        schedule = instance.schedule(shipped()[0].scores(instance.context))
        device = fitted(search.problem, instance.handed, schedule.homes.device)
        assert allowed[np.arange(device.size), device].all()
        whole = instance.of_operations(schedule)
        assert whole.start_s.shape == whole.finish_s.shape == device.shape
        for grouping in [feasible_grouping(search.problem), *([] if instance.nodes is None else [instance.nodes])]:
            first = np.unique(grouping.group, return_index=True)[1]
            assert np.array_equal(device, device[first][grouping.group])
        if instance.nodes is not None:
            assert np.array_equal(whole.start_s, schedule.start_s[instance.nodes.group])
        assert math.isfinite(asked(search, instance, schedule))


@pytest.mark.parametrize("graph", GRAPHS)
def test_nodes_have_the_work_of_their_operations_and_close_no_cycle(graph: str):
    case = case_of(graph)
    search = search_of(case.problem, case)
    for instance in contracted(search):
        assert instance.work.op_s.sum(axis=0) == pytest.approx(instance.handed.op_s.sum(axis=0))
        if instance.nodes is not None:
            assert instance.work.order.size == instance.nodes.k < case.graph.n
            nodes = coarse_problem(case.graph, case.topology, case.costs, instance.nodes)
            assert is_acyclic(nodes.graph)


def test_where_nodes_close_cycles_their_groups_share_devices_alone():
    case = case_of("nas-cnn?index=5")
    halves = Grouping.of_labels(np.arange(case.graph.n) % 40)
    problem = coarse_problem(case.graph, case.topology, case.costs, halves)
    assert not is_acyclic(problem.graph)
    search = Search(problem, case.simulator(halves), Budget(10), lambda _: None)
    found = contracted(search)
    assert 1 <= len(found) <= len(JOINED)
    assert all(instance.nodes is None for instance in found)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ordered", [False, True])
def test_answers_fit_where_memory_is_short(seed: int, ordered: bool):
    case = case_of(f"layered?n={80 + 30 * seed}")
    devices = case.topology.devices
    held = int(case.graph.weight_bytes.sum() + case.graph.out_bytes.sum()) // 2
    topology = replace(case.topology, devices=tuple(replace(device, memory_bytes=held) for device in devices))
    problem = replace(case.problem.on(topology=topology), ordered=ordered)
    placer = NeuralList(samples=16, contracted=True)
    answer = placer.place(problem, case.simulator(), Budget(200), seed=seed, progress=lambda _: None)
    assert math.isfinite(answer.value_s)
    assert problem.fits(answer.best.placement)


@pytest.mark.parametrize(("graph", "most"), [("gnmt2?fidelity=core&steps=5", 0.9), ("txl2", 0.9)])
def test_a_pass_on_groups_of_the_contraction_is_faster_on_graphs_they_were_not_learned_from(graph: str, most: float):
    case = case_of(graph)
    alone_s, contracted_s = (
        NeuralList(passes=1, samples=0, improve=False, contracted=on)
        .place(case.problem, case.simulator(), Budget(1000), seed=0, progress=lambda _: None)
        .value_s
        for on in (False, True)
    )
    assert contracted_s < most * alone_s


def test_no_groups_are_made_where_there_is_no_time_for_them(monkeypatch: pytest.MonkeyPatch):
    asked_for: list[int] = []
    monkeypatch.setattr(neural_list, "contracted_instances", lambda *_: asked_for.append(1) or [])
    case, placer = case_of("layered?n=200"), NeuralList(samples=0, improve=False, contracted=True)
    for seconds, times in ((0.01, 0), (60.0, 1)):
        placer.place(case.problem, case.simulator(), Budget(seconds=seconds), seed=0, progress=lambda _: None)
        assert len(asked_for) == times
