"""The head that judges what the agent knows of a plan: its formula, its devices, and the numbering of nodes."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pipeline.core.graph import Graph, Grouping
from pipeline.core.placement import Placement
from pipeline.core.problem import Problem
from pipeline.core.simulation import DataflowModel, Timeline
from pipeline.core.tensors import INFERRED
from policy.place.agent.context import AT, COLUMNS, Context, GroupBatch, context
from policy.place.agent.net import FIRST, FIRST_CONCURRENT, Head, OrderHead, Policy, pooled
from policy.place.agent.rollout import Actor, Base
from policy.place.agent.schedule import Schedule
from policy.place.agent.world import World
from tests.strategies import graphs
from tests.toys import toy_graph, toy_problem
from tests.unit.test_agent import ROUNDING, P, simulator_of, timeline_of, uneven_problem, whole


def head(*, concurrent: bool = False, width: int = 4) -> Head:
    generator = torch.Generator().manual_seed(0)
    made = Head(width, 8, concurrent=concurrent)
    with torch.no_grad():
        for value in made.parameters():
            value.normal_(0.0, 0.5, generator=generator)
    return made


def some_context(k: int, p: int) -> Context:
    columns = torch.randn(k, p + 1, len(COLUMNS), generator=torch.Generator().manual_seed(1))
    forbidden = torch.zeros(k, p + 1, dtype=torch.bool)
    forbidden[0, 1] = forbidden[-1, p] = k > 1
    return Context(columns, forbidden)


def test_scores_are_those_of_the_formula_and_barred_targets_are_impossible():
    net, at, z = head(), some_context(2, 3), torch.randn(2, 4, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        found = net.scores(z, at)
    for g in range(2):
        for t in range(4):
            hidden = torch.relu(net.group.weight @ z[g] + net.group.bias + net.pair.weight @ at.columns[g, t])
            expected = float((net.out.weight[0] @ hidden + net.v @ at.columns[g, t]).detach())
            assert float(found[g, t]) == (-math.inf if at.forbidden[g, t] else pytest.approx(expected, abs=ROUNDING))
    p = net.targets(z, at, calm=torch.zeros(2)).detach().exp()
    assert p.sum(dim=1).tolist() == pytest.approx([1.0, 1.0])
    assert float(p[0, 1]) == float(p[1, 3]) == 0


def test_calm_adds_to_the_odds_of_staying_and_of_keeping_ones_place():
    net, at, z = head(), some_context(1, 2), torch.randn(1, 4, generator=torch.Generator().manual_seed(2))
    calm, ordering = torch.tensor([1.7]), OrderHead(4, 8)
    for still, plain, calmed in (
        (2, net.targets(z, at, calm=torch.zeros(1)), net.targets(z, at, calm=calm)),
        (1, ordering.shifts(z, calm=torch.zeros(1)), ordering.shifts(z, calm=calm)),
    ):
        odds = [float((p[0, still] - p[0, 0]).detach()) for p in (plain, calmed)]
        assert odds[1] - odds[0] == pytest.approx(1.7, abs=ROUNDING)


def test_the_head_tells_devices_apart_by_their_columns_alone():
    net, at, z = head(), some_context(2, 3), torch.randn(2, 4, generator=torch.Generator().manual_seed(2))
    order = [2, 0, 1, 3]
    permuted = Context(at.columns[:, order], at.forbidden[:, order])
    assert torch.allclose(net.scores(z, permuted), net.scores(z, at)[:, order], atol=1e-6)
    assert net.scores(z, some_context(2, 7)).shape == (2, 8)


def test_the_linear_term_begins_as_a_list_scheduler_would_judge():
    for concurrent, expected in ((False, FIRST), (True, FIRST_CONCURRENT)):
        v = Head(4, 8, concurrent=concurrent).v.detach()
        assert {name: pytest.approx(float(v[AT[name]])) for name in expected} == expected
        assert int((v != 0).sum()) == len(expected)


def test_groups_are_described_by_the_mean_of_their_members():
    nodes = torch.tensor([[1.0, 0.0], [3.0, 2.0], [5.0, 5.0]])
    groups = GroupBatch.of([Grouping(np.array([0, 0, 1])), whole(3)])
    assert pooled(nodes, groups).tolist() == [[2.0, 1.0], [5.0, 5.0], [3.0, pytest.approx(7 / 3)]]
    assert groups.k.tolist() == [2, 1]
    assert groups.least(torch.tensor([[3.0, 1.0, 2.0], [5.0, 4.0, 6.0]])).tolist() == [1.0, 2.0, 4.0]


def test_the_gradient_of_a_draw_reaches_every_parameter():
    problem = uneven_problem(toy_graph(4, [(0, 1), (1, 2), (1, 3)]), 0, group="edge_score")
    problem = dataclasses.replace(problem, ordered=True)
    assert problem.policy is not None
    policy = Policy(problem.policy, hidden=8, execution=DataflowModel(), seed=0)
    actor = Actor(problem, World.of(problem), policy, torch.tensor(problem.policy.features), 2)
    base = Base(Placement(np.zeros(4), problem.topology.names), 4.0, order=np.arange(4.0))
    anew = Base(None, 4.0, order=np.arange(4.0))
    some = np.full(8, 2.0)
    rollout = actor.draw(actor.nodes(), [base, anew] * 4, moves=some, reach=some, rng=np.random.default_rng(0))
    rollout.log_prob.sum().backward()
    found = {
        name: value.grad is not None and float(value.grad.abs().sum()) > 0 for name, value in policy.named_parameters()
    }
    assert {name for name, reached in found.items() if not reached} == set()


# Numbering


def renumbered(problem: Problem, place: np.ndarray) -> Problem:
    """Return the problem with node i as number place[i]."""
    graph, old = problem.graph, np.argsort(place)
    assert problem.costs is not None
    assert problem.policy is not None
    edges = place[graph.edges]
    at = np.lexsort(edges[::-1])
    moved = dataclasses.replace(
        toy_graph(graph.n, [(int(a), int(b)) for a, b in edges.T]),
        names=tuple(graph.names[i] for i in old),
        edge_bytes=graph.edge_bytes[at],
        reads=INFERRED,
        weight_bytes=graph.weight_bytes[old],
    )
    again = toy_problem(moved, np.ones((graph.n, problem.topology.p)), topology=problem.topology)
    placed = problem.on(
        graph=moved,
        grouping=again.grouping,
        costs=dataclasses.replace(problem.costs, names=moved.names, op_s=problem.costs.op_s[old]),
        allowed=problem.allowed[old],
    )
    return dataclasses.replace(
        placed, policy=dataclasses.replace(problem.policy, features=problem.policy.features[old])
    )


def decoded(problem: Problem, timeline: Timeline) -> tuple[Placement, Tensor]:
    """Return what a policy of fixed weights makes of a plan that runs so, and its scores [n, p + 1]."""
    assert problem.policy is not None
    policy = Policy(problem.policy, hidden=8, execution=DataflowModel(), seed=0)
    world = World.of(problem)
    actor = Actor(problem, world, policy, torch.tensor(problem.policy.features), 2)
    plan = Placement(timeline.device, problem.topology.names)
    schedule = Schedule.of(timeline, problem.graph, world)
    with torch.no_grad():
        policy.changing.out.weight.mul_(30)  # or the first guess would decide alone
        nodes = actor.nodes()
        made = actor.decode(nodes, Base(plan, 10.0, schedule)).placements[0]
        groups = GroupBatch.of([Grouping.identity(problem.graph.n)])
        device = torch.tensor(plan.device, dtype=torch.int64)[None]
        at = context(world, groups, device, [schedule], value=torch.tensor([10.0]))
        return made, policy.changing.scores(pooled(nodes, groups), at)


@given(graph=graphs(min_n=2, max_n=8), seed=st.integers(0, 2**16))
@settings(max_examples=25, deadline=None)
def test_numbering_the_nodes_anew_renumbers_the_answer(graph: Graph, seed: int):
    rng = np.random.default_rng(seed)
    graph = toy_graph(graph.n, [(int(a), int(b)) for a, b in graph.edges.T])
    graph = dataclasses.replace(graph, edge_bytes=rng.integers(1, 2**20, graph.m), reads=INFERRED)
    problem, plan = uneven_problem(graph, seed), rng.integers(0, P, graph.n)
    timeline = simulator_of(problem).timeline(Placement(plan, problem.topology.names))
    place = rng.permutation(graph.n)
    old = np.argsort(place)  # the simulator itself goes by numbers where operations are ready at one moment
    moved = timeline_of(problem, *(x[old].tolist() for x in (plan, timeline.start_s, timeline.end_s)))
    made, score = decoded(problem, timeline)
    again, score_again = decoded(renumbered(problem, place), moved)
    assert torch.allclose(score, score_again[place], atol=1e-3)
    best = torch.topk(score, 2, dim=1).values
    if bool((best[:, 0] - best[:, 1] > 1e-2).all()):  # else rounding may decide
        assert again.device[place].tolist() == made.device.tolist()
