"""Placeto's network, decision process and training, piece by piece."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pipeline.core.errors import UsageError
from pipeline.core.graph import Graph, Grouping
from pipeline.core.learning import Snapshot
from pipeline.core.placement import Placement
from pipeline.core.problem import Budget, Problem
from pipeline.core.stages import Answer, Evaluator
from pipeline.shared.torch_tools import torch_seeded
from pipeline.testing.simulated import simulator_of, wide_problem
from policy.place.base import training
from policy.place.base.groups import Groups
from policy.place.base.search import Search
from policy.place.published.placeto.network import PlacetoNetwork
from policy.place.published.placeto.nodes import NodeGraph, node_graph
from policy.place.published.placeto.placeto import Placeto, adopt
from policy.place.published.placeto.process import returns
from policy.place.published.placeto.trainer import PlacetoTrainer
from tests.slow import slow_where
from tests.toys import (
    FAST_S,
    ToyEvaluator,
    branches_problem,
    chain_problem,
    ignore_progress,
    toy_graph,
    toy_problem,
    toy_topology,
)
from tests.unit.policy.place.learned.hsdag.test_hsdag import Interrupted, Memory, kept_in, told, weights, with_inputs

INITIAL, REWARDS = ("random", "fresh", "first", "best"), ("dense", "terminal")
SMALL = Placeto(workers=2, rounds=2, learning_rate=0.01)
DIAMOND = [(0, 1), (0, 2), (1, 3), (2, 3)]


def diamond_problem(p: int = 2) -> Problem:
    """Return four operations of 1 to 4 ms that take p devices equally long."""
    op_s = 1e-3 * np.repeat(np.arange(1.0, 5.0)[:, None], p, axis=1)
    return toy_problem(toy_graph(4, DIAMOND), op_s)


def graph_of(problem: Problem, network: Any = "placeto", *, sweep: bool = False) -> NodeGraph:
    return node_graph(Groups.of(problem), network, sweep=sweep)


def trainer_of(problem: Problem, placer: Placeto = SMALL, evaluator: Evaluator | None = None) -> PlacetoTrainer:
    search = Search(problem, evaluator or ToyEvaluator.of(problem), Budget(10_000), ignore_progress)
    with torch_seeded(0):
        return placer.trainer([search], seed=0)


def place(
    problem: Problem, placer: Placeto = SMALL, *, evaluations: int = 60, rules: str = "", seed: int = 3
) -> Answer:
    evaluator = simulator_of(problem, rules) if rules else ToyEvaluator.of(problem)
    return placer.place(problem, evaluator, Budget(evaluations), seed=seed, progress=ignore_progress)


# The network


def counting_network(rounds: int, network: Any = "placeto") -> PlacetoNetwork:
    """Return a network all of whose layers hand on what they get, and whose head adds up everything."""
    found = PlacetoNetwork(network, devices=1, rounds=rounds, memory=False)
    with torch.no_grad():
        for layers in (found.own, found.f, found.g, found.pool_f, found.pool_g):
            for weight in layers.weights:
                weight[:] = torch.eye(weight.shape[1])
        for layer in found.head:
            if isinstance(layer, torch.nn.Linear):
                torch.nn.init.eye_(layer.weight)
        found.head[-1].weight[:] = 1.0  # type: ignore[index, operator, union-attr]
    return found


def counted(rounds: int, v: int, network: Any = "placeto") -> float:
    """Return the score of node v of the diamond where nodes 0 to 3 are told of as 1, 2, 3 and 4, and no more."""
    x = torch.zeros(4, 1, 1, 7)
    x[:, 0, 0, 0], x[..., -1] = torch.arange(1.0, 5.0), 1.0
    graph = graph_of(diamond_problem(1), network, sweep=rounds == 0)
    return float(counting_network(rounds, network)(graph, x, [v]).detach())


@pytest.mark.parametrize(
    ("rounds", "v", "expected"),
    [
        # Forward states 1, 3, 4, 9 and backward ones 6, 6, 7, 4 make 7, 9, 11, 13: all are in a pool, or in hand.
        (1, 1, 40.0),
        (1, 0, 40.0),
        # Then 1, 3, 4, 11 and 14, 6, 7, 4.
        (2, 1, 50.0),
        (8, 3, 50.0),
        (0, 1, 50.0),  # a sweep is as good as as many rounds as the graph is deep
    ],
)
def test_a_score_adds_up_what_nodes_hear_as_computed_by_hand(rounds: int, v: int, expected: float):
    assert counted(rounds, v) == expected


def test_the_ablation_hears_all_neighbours_alike_and_pools_all_other_nodes():
    # 1 + 2 + 3, 2 + 1 + 4, 3 + 1 + 4, 4 + 2 + 3
    assert counted(1, 1, "gnn") == 6 + 7 + 8 + 9


def test_a_network_of_eight_features_and_two_devices_has_the_size_of_the_published_one():
    found = PlacetoNetwork("placeto", devices=2, rounds=8, memory=True)
    assert found.features == 8
    assert sum(p.numel() for p in found.parameters()) == 20_762


def plainly(net: PlacetoNetwork, problem: Problem, x: np.ndarray, v: int) -> np.ndarray:
    """Return the scores of operation v by loops over operations; x: float [n, d]."""
    groups, n = Groups.of(problem), problem.graph.n
    graph = node_graph(groups, "placeto", sweep=False)
    value = {name: p.detach().numpy().astype(float) for name, p in net.named_parameters()}
    edges = problem.graph.edges.T.tolist()

    def through(layers: str, i: int, h: np.ndarray, *, cut: bool = True) -> np.ndarray:
        count = sum(name.startswith(f"{layers}.weights") for name in value)
        for k in range(count):
            h = h @ value[f"{layers}.weights.{k}"][i] + value[f"{layers}.biases.{k}"][i, 0]
            h = np.maximum(h, 0) if cut or k < count - 1 else h
        return h

    own = np.array([through("own", 0, row, cut=False) for row in x])
    sides = []
    for i in range(2):
        near = [[e[i] for e in edges if e[1 - i] == u] for u in range(n)]
        states = own
        for _ in range(net.rounds):
            told = [through("f", i, row) for row in states]
            states = np.array(
                [own[u] + (through("g", i, sum(told[w] for w in near[u])) if near[u] else 0) for u in range(n)]
            )
        sides.append(states)
    seen = np.concatenate(sides, axis=1)
    before, behind = reached(n, edges)
    pools = [
        [u for u in range(n) if before[v, u]],
        [u for u in range(n) if behind[v, u]],
        [u for u in range(n) if u != v and not before[v, u] and not behind[v, u]],
    ]
    parts = [
        through("pool_g", i, sum(through("pool_f", i, seen[u]) for u in pool)) if pool else np.zeros(seen.shape[1])
        for i, pool in enumerate(pools)
    ]
    h = np.concatenate([*parts, seen[v]])
    for k in (0, 2, 4):
        h = value[f"head.{k}.weight"] @ h + value[f"head.{k}.bias"]
        h = np.maximum(h, 0) if k < 4 else h
    assert sorted(graph.group.tolist()) == list(range(n))
    return h


def reached(n: int, edges: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return bool [n, n], who is before and behind whom."""
    reach = np.zeros((n, n), bool)
    for a, b in edges:
        reach[a, b] = True
    for k in range(n):
        reach |= reach[:, k : k + 1] & reach[k : k + 1]
    return reach.T, reach


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    n = draw(st.integers(1, 9))
    pairs = [(a, b) for a in range(n) for b in range(a + 1, n)]
    edges = sorted(draw(st.sets(st.sampled_from(pairs)))) if pairs else []
    order = draw(st.permutations(range(n)))
    renamed = sorted((order[a], order[b]) for a, b in edges)
    return toy_problem(toy_graph(n, renamed), np.ones((n, 2)))


@settings(max_examples=25, deadline=None)
@given(problem=problems(), seed=st.integers(0, 99))
def test_the_network_computes_what_its_formula_says_and_batches_change_nothing(problem: Problem, seed: int):
    with torch_seeded(seed):
        net = PlacetoNetwork("placeto", devices=2, rounds=3, memory=False)
        for bias in (*net.own.biases, *net.f.biases, *net.g.biases, *net.pool_g.biases):
            torch.nn.init.normal_(bias)
    graph, n, rng = graph_of(problem), problem.graph.n, np.random.default_rng(seed)
    x = rng.normal(size=(n, 3, 2, net.features + 1)).astype(np.float32)  # by node
    x[..., -1] = 1.0
    nodes = rng.integers(0, n, 3)
    together = net(graph, torch.from_numpy(x), nodes.tolist()).detach().numpy()
    for i, w in itertools.product(range(3), range(2)):
        rows = np.empty((n, net.features))
        rows[graph.group] = x[:, i, w, :-1]
        expected = plainly(net, problem, rows, int(graph.group[nodes[i]]))
        np.testing.assert_allclose(together[i, w], expected, rtol=2e-4, atol=2e-4)
        alone = net(graph, torch.from_numpy(x[:, i : i + 1, w : w + 1].copy()), nodes[i : i + 1].tolist())
        np.testing.assert_allclose(alone.detach().numpy()[0, 0], together[i, w], rtol=1e-4, atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(problem=problems())
def test_pools_are_the_nodes_before_behind_and_parallel(problem: Problem):
    graph, n = graph_of(problem), problem.graph.n
    before, behind = reached(n, problem.graph.edges.T.tolist())
    for v in range(n):
        found = [sorted(graph.group[nodes].tolist()) for nodes in graph.pools(v)]
        u = graph.group[v]
        parallel = ~(before[u] | behind[u])
        parallel[u] = False
        assert found == [np.flatnonzero(pool).tolist() for pool in (before[u], behind[u], parallel)]


def test_a_sweep_and_as_many_rounds_as_the_graph_is_deep_agree_in_value_and_gradient():
    problem = branches_problem()
    slopes, scores = [], []
    for rounds in (0, 11):
        with torch_seeded(1):
            net = PlacetoNetwork("placeto", devices=2, rounds=rounds, memory=False)
            x = torch.randn(12, 2, 1, net.features + 1)
        x[..., -1] = 1.0
        found = net(graph_of(problem, sweep=rounds == 0), x, [3, 7])
        found.square().sum().backward()
        scores.append(found.detach())
        slopes.append([p.grad for p in net.parameters()])
    torch.testing.assert_close(*scores)
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_slopes_are_those_of_small_differences():
    problem = diamond_problem()
    with torch_seeded(2):
        net = PlacetoNetwork("placeto", devices=2, rounds=2, memory=False)
        x = torch.randn(4, 1, 1, net.features + 1)
    x[..., -1] = 1.0
    graph = graph_of(problem)

    def loss() -> Tensor:
        return net(graph, x, [1]).sum()  # type: ignore[no-any-return]

    loss().backward()
    for weight in (net.f.weights[0], net.g.biases[1], net.pool_f.weights[1], net.own.weights[2]):
        grad = weight.grad
        at = int(grad.abs().flatten().argmax())
        with torch.no_grad():
            flat = weight.view(-1)
            flat[at] += 1e-3
            up = float(loss())
            flat[at] -= 2e-3
            down = float(loss())
            flat[at] += 1e-3
        assert float(grad.flatten()[at]) == pytest.approx((up - down) / 2e-3, rel=0.05)


def renamed(problem: Problem, order: Sequence[int]) -> Problem:
    """Return a problem whose operation i is the other's operation order[i]."""
    place_of = np.argsort(order)
    edges = sorted((int(place_of[a]), int(place_of[b])) for a, b in problem.graph.edges.T)
    assert problem.costs is not None
    return toy_problem(toy_graph(problem.graph.n, edges), problem.costs.op_s[list(order)])


def test_renumbering_operations_changes_no_score():
    problem, order = diamond_problem(), [2, 0, 3, 1]
    scores = []
    for one, where in ((problem, range(4)), (renamed(problem, order), order)):
        process = trainer_of(one).processes[0]
        group = [where[u] for u in process.graph.group.tolist()]  # the operation of `problem` that each node is
        device = np.array([[[u % 2 for u in group]]], np.int32)
        start = np.array([[[0.1 * u * u for u in group]]], np.float32)
        found = process.features(np.array([0]), device, start)
        net = process.network
        scores.append(net(process.graph, torch.from_numpy(found), [group.index(0)]).detach())
    torch.testing.assert_close(*scores)


def test_renaming_devices_renames_the_scores():
    problem = diamond_problem(3)
    process = trainer_of(problem).processes[0]
    net, order = process.network, [2, 0, 1]
    device = np.array([[[0, 1, 2, 1]]], np.int32)
    start = np.zeros((1, 1, 4), np.float32)
    before = process.scores(np.array([1]), device, start).detach()
    with torch.no_grad():
        first = net.own.weights[0][0]
        first[-3:] = first[-3:][order].clone()
        net.head[-1].weight[:] = net.head[-1].weight[order].clone()  # type: ignore[operator, index]
        net.head[-1].bias[:] = net.head[-1].bias[order].clone()  # type: ignore[operator, index]
    after = process.scores(np.array([1]), np.argsort(order)[device].astype(np.int32), start).detach()
    torch.testing.assert_close(after, before[..., order])


# The decision process


def test_probabilities_of_all_episodes_add_up_to_one():
    problem = toy_problem(toy_graph(3, [(0, 1), (0, 2)]), np.ones((3, 2)))
    process = trainer_of(problem).processes[0]
    total = 0.0
    for actions in itertools.product(range(2), repeat=3):
        device, log_p = process.first.copy(), 0.0
        for step, action in enumerate(actions):
            scores = process.scores(np.array([step]), device[None, None], np.zeros((1, 1, 3), np.float32))
            log_p += float(scores[0, 0, action].detach())
            device[process.visit[step]] = action
        total += np.exp(log_p)
    assert total == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("rules", ["", "T1"])
def test_what_is_learned_from_is_what_was_drawn(rules: str):
    problem = wide_problem()
    trainer = trainer_of(problem, evaluator=simulator_of(problem, rules) if rules else None)
    process = trainer.processes[0]
    episodes = process.episodes(3, trainer.rng, greedy=False)
    assert episodes is not None
    steps = np.arange(len(process.visit))
    again = process.scores(steps, episodes.device[steps], episodes.start[steps]).detach().numpy()
    recounted = np.take_along_axis(again, episodes.action[..., None], axis=2)[..., 0]
    np.testing.assert_allclose(recounted, episodes.log_p, atol=1e-4)
    device = process.first[None].repeat(3, axis=0)
    for i, v in enumerate(process.visit.tolist()):
        assert np.array_equal(episodes.device[i], device)
        device[:, v] = episodes.action[i]


def test_costs_are_what_the_simulator_says_over_the_best_single_device():
    problem = wide_problem()
    simulator = simulator_of(problem, "T2")
    process = trainer_of(problem, evaluator=simulator).processes[0]
    assert process.unit_s == process.search.best_s
    asked = process._ask(process.first[None])
    assert asked is not None
    placed = np.empty_like(process.first)
    placed[process.graph.group] = process.first
    placement = process.groups.placement(placed)
    timeline = simulator.timeline(placement)
    assert asked[0][0] * process.unit_s == pytest.approx(timeline.value_s)
    starts = np.full(process.groups.k, np.inf)
    np.minimum.at(starts, process.groups.grouping.group, timeline.start_s)
    np.testing.assert_allclose(asked[1][0], starts[process.graph.group] / process.unit_s, rtol=1e-5)


@pytest.mark.parametrize(("penalty", "seconds"), [(2.0, False), (2.0, True), (1e9, False)])
def test_bytes_beyond_the_memory_cost_and_the_cost_is_capped(penalty: float, seconds: bool):
    graph = toy_graph(4, DIAMOND, weight_bytes=[10] * 4)
    problem = toy_problem(graph, np.ones((4, 2)), topology=toy_topology(memory_bytes=32))
    simulator = simulator_of(problem, "T0")
    placer = dataclasses.replace(SMALL, penalty=penalty, seconds=seconds)
    process = trainer_of(problem, placer, simulator).processes[0]
    asked = process._ask(np.zeros((1, 4), np.int32))
    assert asked is not None
    found = simulator.simulate(np.zeros((1, 4), np.int32))
    over = float(found.peak_bytes[0, 0] - 32)
    assert over >= 8
    expected = found.value_s[0] / process.unit_s + penalty * over / (1e9 if seconds else 32 / 8)
    assert asked[0][0] == pytest.approx(min(expected, 10.0))


def test_features_tell_what_is_documented():
    process = trainer_of(diamond_problem()).processes[0]
    device = np.array([[[0, 1, 1, 0]]], np.int32)
    start = np.array([[[0.0, 1.0, 3.0, 5.0]]], np.float32)
    found = process.features(np.array([2]), device, start)[:, 0, 0]
    assert process.visit.tolist() == [0, 1, 2, 3]
    expected = [
        # time, bytes, done, in hand, start from node 2 over 3, bytes held, devices, 1
        [0.25, 1, 1, 0, -1, 1, 1, 0, 1],
        [0.5, 1, 1, 0, -2 / 3, 1, 0, 1, 1],
        [0.75, 1, 0, 1, 0, 1, 0, 1, 1],
        [1, 1, 0, 0, 2 / 3, 1, 1, 0, 1],
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_returns_telescope_and_the_terminal_reward_is_the_cost():
    cost = np.array([[5.0, 1.0], [4.0, 2.0], [6.0, 2.0], [3.0, 0.5]])
    np.testing.assert_allclose(returns(cost, "dense", 1.0), [[2, 0.5], [1, 1.5], [3, 1.5]])
    np.testing.assert_allclose(returns(cost, "dense", 0.5)[:, 0], [1 + 0.5 * (-2 + 0.5 * 3), -2 + 0.5 * 3, 3])
    np.testing.assert_allclose(returns(cost, "terminal", 1.0), [[-3, -0.5]] * 3)


@pytest.mark.parametrize(
    ("initial", "reward"),
    slow_where(list(itertools.product(INITIAL, REWARDS)), {(initial, "terminal") for initial in INITIAL[1:]}),
)
def test_every_start_and_reward_places_within_what_is_allowed(initial: Any, reward: Any):
    placer = dataclasses.replace(SMALL, initial=initial, reward=reward, order="shuffled", steps=7)
    problem = wide_problem()
    answer = place(problem, placer, rules="T1")
    assert all(problem.fits(c.placement) for c in answer.candidates)
    process = trainer_of(problem, placer, simulator_of(problem, "T1")).processes[0]
    first = process.beginning(np.random.default_rng(0))
    assert process.visit.size == 7
    assert process.allowed[np.arange(first.size), first].all()
    if initial == "first":
        assert np.array_equal(first, process.allowed.argmax(axis=1))
    if initial == "best":
        best = process.search.best
        assert best is not None
        assert np.array_equal(process.groups.devices_of(best)[process.graph.group], first)


def test_a_terminal_reward_asks_twice_per_episode_and_a_dense_one_after_every_change():
    for reward in ("terminal", "dense"):
        problem = diamond_problem()
        evaluator = simulator_of(problem, "T1")
        placer = dataclasses.replace(SMALL, reward=reward, workers=1)
        trainer = trainer_of(problem, placer, evaluator)
        before = evaluator.evaluations
        episodes = trainer.processes[0].episodes(1, trainer.rng, greedy=False)
        assert episodes is not None
        after = np.append(episodes.device[1:, 0], episodes.device[-1:, 0], axis=0)
        after[-1, trainer.processes[0].visit[-1]] = episodes.action[-1, 0]
        changes = int((after != episodes.device[:, 0]).any(axis=1).sum())
        assert changes > 0
        assert evaluator.evaluations - before == (2 if reward == "terminal" else 1 + changes)


# Training


def test_the_baseline_is_the_mean_return_of_each_step_over_the_last_updates():
    trainer = trainer_of(chain_problem(), dataclasses.replace(SMALL, window=2))
    episodes = trainer.processes[0].episodes(2, trainer.rng, greedy=False)
    assert episodes is not None
    gains = []
    for factor in (1.0, 2.0, 4.0):
        scaled = dataclasses.replace(episodes, cost=factor * episodes.cost)
        lesson = trainer.credited(0, scaled)
        gains.append(returns(scaled.cost, "dense", 1.0))
        baseline = np.mean([gain.mean(axis=1) for gain in gains[-2:]], axis=0)
        np.testing.assert_allclose(lesson.advantage, gains[-1] - baseline[:, None])


@pytest.mark.parametrize("clip", [0.0, 0.2])
def test_graphs_taught_together_are_taught_the_sum_of_what_each_teaches(clip: float):
    problems = [chain_problem(), branches_problem(), diamond_problem()]
    searches = [Search(p, ToyEvaluator.of(p), Budget(10_000), ignore_progress) for p in problems]
    with torch_seeded(0):
        trainer = SMALL.trainer(searches, seed=0)
    lessons = []
    for i in range(3):
        episodes = trainer.processes[i].episodes(2, trainer.rng, greedy=False)
        assert episodes is not None
        lessons.append(trainer.credited(i, episodes))
    together, _ = trainer.gradient(lessons, beta=0.1, clip=clip)
    apart = [trainer.gradient([lesson], beta=0.1, clip=clip)[0] for lesson in lessons]
    np.testing.assert_allclose(together, sum(apart), rtol=1e-3, atol=1e-4)
    assert all(np.abs(one).max() > 1e-3 for one in apart)


def test_every_parameter_is_taught_and_steps_of_many_chunks_teach_the_same(monkeypatch: pytest.MonkeyPatch):
    problem = wide_problem()
    trainer = trainer_of(problem, evaluator=simulator_of(problem, "T1"))
    episodes = trainer.processes[0].episodes(2, trainer.rng, greedy=False)
    assert episodes is not None
    lesson = trainer.credited(0, episodes)
    whole, entropy = trainer.gradient([lesson], beta=1.0, clip=0.0)
    assert all(p.grad is not None and bool(p.grad.any()) for p in trainer.network.parameters())
    monkeypatch.setattr("policy.place.published.placeto.trainer.CHUNK", 40)
    pieces, again = trainer.gradient([lesson], beta=1.0, clip=0.0)
    np.testing.assert_allclose(pieces, whole, rtol=1e-3, atol=1e-3)
    assert again == pytest.approx(entropy, rel=1e-5)


def test_ppo_begins_with_the_gradient_of_reinforce_and_stops_where_it_went_far():
    trainer = trainer_of(chain_problem())
    episodes = trainer.processes[0].episodes(2, trainer.rng, greedy=False)
    assert episodes is not None
    lesson = trainer.credited(0, episodes)
    plain, _ = trainer.gradient([lesson], beta=0.0, clip=0.0)
    ppo, _ = trainer.gradient([lesson], beta=0.0, clip=0.2)
    np.testing.assert_allclose(ppo, plain, rtol=1e-3, atol=1e-5)
    gained = np.where(lesson.advantage > 0, 1.0, -1.0)
    far = dataclasses.replace(episodes, log_p=(episodes.log_p - gained).astype(np.float32))
    stopped, _ = trainer.gradient([dataclasses.replace(lesson, episodes=far)], beta=0.0, clip=0.2)
    assert np.abs(stopped).max() < 1e-6 < np.abs(plain).max()


@pytest.mark.parametrize("control", ["frozen", "uniform"])
def test_controls_never_learn(control: Any):
    problem = wide_problem()
    placer = dataclasses.replace(SMALL, control=control)
    trainer = trainer_of(problem, placer, simulator_of(problem, "T1"))
    before = trainer.adam.weights.copy()
    for _ in range(3):
        trainer.update()
    assert np.array_equal(trainer.adam.weights, before)
    episodes = trainer.processes[0].episodes(1, trainer.rng, greedy=False)
    assert episodes is not None
    if control == "uniform":
        open_to = trainer.processes[0].allowed[trainer.processes[0].visit].sum(axis=1)
        np.testing.assert_allclose(episodes.log_p[:, 0], -np.log(open_to), rtol=1e-6)


@pytest.mark.parametrize("factor", [2.0**10, 2.0**-10])
def test_the_scale_of_times_and_bytes_changes_nothing(factor: float):
    problem = wide_problem(memory_bytes=128)
    assert problem.costs is not None
    topology = dataclasses.replace(
        problem.topology,
        link_bytes_per_s=problem.topology.link_bytes_per_s / factor,
        link_latency_s=problem.topology.link_latency_s * factor,
    )
    costs = dataclasses.replace(problem.costs, op_s=problem.costs.op_s * factor)
    slower = problem.on(topology=topology, costs=costs)
    keys = [[c.placement.key() for c in place(p, rules="T2").candidates] for p in (problem, slower)]
    assert keys[0] == keys[1]


# Policies and checkpoints


def test_a_policy_goes_on_on_another_graph_and_begins_with_a_greedy_episode():
    memory = Memory()
    place(kept_in(chain_problem(), memory))
    learned = memory.policies[-1]
    assert learned.facts["features"] == 8
    other = with_inputs(branches_problem(), learned=learned)
    place(kept_in(other, memory), dataclasses.replace(SMALL, control="frozen"))
    assert weights(memory.policies[-1].arrays) == weights(learned.arrays)
    place(kept_in(other, memory))
    assert weights(memory.policies[-1].arrays) != weights(learned.arrays)
    asked = []
    for seed in (1, 2):
        evaluator = ToyEvaluator.of(other)
        placer = dataclasses.replace(SMALL, control="frozen", initial="first")
        placer.place(other, evaluator, Budget(15), seed=seed, progress=ignore_progress)
        asked.append([p.key() for p in evaluator.asked])
    trainer = trainer_of(other, dataclasses.replace(SMALL, initial="first"))
    adopt(trainer, learned)
    episodes = trainer.processes[0].episodes(1, trainer.rng, greedy=True)
    assert episodes is not None
    changes = len({row.tobytes() for row in episodes.device[:, 0]})
    assert asked[0][: 1 + changes] == asked[1][: 1 + changes]  # no chance yet


def test_a_policy_that_does_not_fit_is_refused_with_what_differs():
    memory = Memory()
    place(kept_in(chain_problem(), memory))
    learned = memory.policies[-1]
    three = toy_problem(toy_graph(3, [(0, 1)]), np.ones((3, 3)))
    with pytest.raises(UsageError, match="devices is 2, not 3"):
        place(with_inputs(three, learned=learned))
    for changed, said in (
        ({"rounds": 3}, "rounds is 2, not 3"),
        ({"memory": False}, "features is 8, not 7"),
        ({"network": "gnn"}, "network is placeto, not gnn"),
    ):
        with pytest.raises(UsageError, match=said):
            place(with_inputs(chain_problem(), learned=learned), dataclasses.replace(SMALL, **changed))
    older = Snapshot(learned.arrays, {**learned.facts, "schema": "placewright.policy/placeto/0"})
    with pytest.raises(UsageError, match="is of kind"):
        place(with_inputs(chain_problem(), learned=older))
    some = dict(list(learned.arrays.items())[:-1])
    with pytest.raises(UsageError, match="do not fit"):
        place(with_inputs(chain_problem(), learned=Snapshot(some, learned.facts)))


@pytest.mark.parametrize("rules", ["", "T1"])
def test_a_search_interrupted_anywhere_ends_as_if_it_never_was(rules: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(training, "SAVE_EVERY_S", 0.0)
    problem, whole = wide_problem(), Memory()
    placer = dataclasses.replace(SMALL, workers=1)
    expected = place(kept_in(problem, whole), placer, evaluations=90, rules=rules)
    assert len(whole.states) > 3
    broken = Memory(dies_after=2)
    for _ in range(100):
        try:
            answer = place(kept_in(problem, broken), placer, evaluations=90, rules=rules)
            break
        except Interrupted:
            continue
    assert told(answer) == told(expected)
    assert weights(broken.policies[-1].arrays) == weights(whole.policies[-1].arrays)


def test_one_operation_on_one_device_is_placed():
    problem = toy_problem(toy_graph(1, []), np.full((1, 1), FAST_S))
    assert place(problem).value_s == FAST_S


def test_groups_that_form_a_cycle_are_placed():
    graph: Graph = toy_graph(4, [(0, 1), (1, 2), (2, 3)])
    problem = toy_problem(graph, np.ones((4, 2)), grouping=Grouping(np.array([0, 1, 0, 1], np.int32)))
    assert len(place(problem).candidates) > 1


def test_a_search_without_costs_and_one_that_is_told_no_starts_learn():
    evaluator = ToyEvaluator.of(chain_problem())
    answer = SMALL.place(chain_problem(costs_known=False), evaluator, Budget(60), seed=0, progress=ignore_progress)
    assert np.isfinite(answer.value_s)
    assert np.isfinite(place(wide_problem(), rules="sequential").value_s)


@pytest.mark.parametrize(
    "wrong",
    [
        {"workers": 0},
        {"rounds": -1},
        {"gamma": 1.5},
        {"learning_rate": 0.0},
        {"penalty": -1.0},
        {"cap": float("nan")},
        {"network": "gnn", "rounds": 0},
    ],
)
def test_parameters_that_make_no_sense_are_refused(wrong: dict[str, Any]):
    with pytest.raises(UsageError):
        Placeto(**wrong)


def test_problems_of_several_numbers_of_devices_are_not_learned_together():
    problems = [diamond_problem(2), diamond_problem(3)]
    searches = [Search(p, ToyEvaluator.of(p), Budget(9), ignore_progress) for p in problems]
    with pytest.raises(UsageError, match="equally many devices"):
        SMALL.trainer(searches, seed=0)


def test_starts_are_those_of_the_timeline_for_groups_as_well():
    problem = wide_problem()
    simulator = simulator_of(problem, "T1")
    device = np.stack([np.zeros(18, np.int32), np.arange(18, dtype=np.int32) % 3])
    found, start_s = simulator.simulate_starts(device)  # type: ignore[attr-defined]
    for i in range(2):
        timeline = simulator.timeline(Placement(device[i], problem.topology.names))
        assert found.value_s[i] == timeline.value_s
        assert np.array_equal(start_s[i], timeline.start_s)
    assert simulator.evaluations == 4
