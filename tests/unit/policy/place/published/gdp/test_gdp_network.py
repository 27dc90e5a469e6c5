"""The network of GDP: by hand, against plain loops, and what must not change it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from embed.features import node_features
from embed.sage import SageEncoder
from pipeline.core.errors import UsageError
from pipeline.core.graph import Graph, Grouping
from pipeline.core.learning import PolicyInputs
from pipeline.core.problem import Problem
from pipeline.settings.registry import build_implementation
from policy.place.published.gdp.network import (
    AttentionSegments,
    GraphGate,
    NodeGate,
    PlacerBlock,
    PlacerDesign,
    SegmentAttention,
    SingleShotPolicy,
    gated,
    standardised,
)
from policy.place.published.gdp.sequence import NodeSequence, SequenceBatch
from tests.toys import chain_problem, crown_problem, toy_graph, toy_problem

SMALL = PlacerDesign(
    width=8, layers=2, heads=2, inner=16, segment=4, memory=4, devices=3, gate="none", standardise=False
)
DIAMOND = torch.tensor([[0, 0, 1, 2], [1, 2, 3, 3]])


def drawn(n: int, width: int = 8, *, seed: int = 0) -> Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed))


def with_gate(gate: Any, **changes: Any) -> PlacerDesign:
    return dataclasses.replace(SMALL, gate=gate, **changes)


def inputs_of(problem: Problem) -> PolicyInputs:
    assert problem.policy is not None
    return dataclasses.replace(
        problem.policy, embedder=build_implementation("embed", "sage", {"width": 8, "layers": 2})
    )


def policy_of(problem: Problem, design: PlacerDesign = SMALL, *, seed: int = 0) -> SingleShotPolicy:
    """Return a policy whose gates and head have learned something."""
    policy = SingleShotPolicy(inputs_of(problem), design, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return policy


def sequence_of(problem: Problem) -> NodeSequence:
    return NodeSequence.of(problem, inputs_of(problem).features, most=1000, clusters=100)


def log_p_of(policy: SingleShotPolicy, *sequences: NodeSequence) -> list[Tensor]:
    with torch.no_grad():
        return policy.log_p(SequenceBatch.of(sequences))


def set_all(module: nn.Module, **values: Tensor) -> None:
    """Set parameters by name, all others to 0."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(values.get(name.replace(".", "_"), torch.zeros_like(parameter)))


# The encoder


def test_the_encoder_pools_the_greatest_of_its_neighbours_by_hand():
    encoder = SageEncoder(1, 1, 1, "both")
    one = torch.ones(1, 1)
    set_all(
        encoder,
        enter_weight=one,
        layers_0_pools_0_weight=one,
        layers_0_pools_1_weight=2 * one,
        layers_0_join_weight=torch.tensor([[1.0, 10.0, 100.0]]),
    )
    rows = encoder(torch.tensor([[1.0], [2.0], [-3.0], [4.0]]), DIAMOND)[:, 0]  # after entering: 1, 2, 0, 4

    def sigma(x: float) -> float:
        return 1 / (1 + math.exp(-x))

    expected = [
        1 + 10 * 0.0 + 100 * sigma(2 * 2),  # node 0 feeds 1 and 2
        2 + 10 * sigma(1) + 100 * sigma(2 * 4),
        0 + 10 * sigma(1) + 100 * sigma(2 * 4),
        4 + 10 * sigma(2) + 100 * 0.0,
    ]
    assert rows.tolist() == pytest.approx(expected)


def test_the_union_of_neighbours_has_one_pool_by_hand():
    encoder = SageEncoder(1, 1, 1, "union")
    one = torch.ones(1, 1)
    join = torch.tensor([[1.0, 10.0]])
    set_all(encoder, enter_weight=one, layers_0_pools_0_weight=one, layers_0_join_weight=join)
    rows = encoder(torch.tensor([[1.0], [2.0], [0.0], [4.0]]), DIAMOND)[:, 0]
    sigma = 1 / (1 + np.exp(-np.arange(5.0)))
    assert rows.tolist() == pytest.approx([1 + 10 * sigma[2], 2 + 10 * sigma[4], 10 * sigma[4], 4 + 10 * sigma[2]])


def test_an_encoder_of_unknown_neighbours_is_refused():
    with pytest.raises(UsageError, match="unknown kind of neighbours"):
        build_implementation("embed", "sage", {"neighbours": "all"})


# Features


def test_places_of_neighbours_are_those_nearest_in_order():
    graph = toy_graph(4, [(0, 1), (0, 2), (1, 3), (2, 3)])
    found = node_features(graph, Grouping.identity(4), None, blocks=("index_neighbours",))
    assert found.column("place").tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert found.column("before:0").tolist() == pytest.approx([-1, 0, 0, 2 / 3])
    assert found.column("before:1").tolist() == pytest.approx([-1, -1, -1, 1 / 3])
    assert found.column("after:0").tolist() == pytest.approx([1 / 3, 1, 1, -1])
    assert (found.column("after:2") == -1).all()


def test_the_last_of_many_producers_and_the_first_of_many_consumers_are_told():
    n = 9  # a row in which the last reads all, and all read the first
    edges = sorted(
        {(i, i + 1) for i in range(n - 1)} | {(0, i) for i in range(1, n)} | {(i, n - 1) for i in range(n - 1)}
    )
    found = node_features(toy_graph(n, edges), Grouping.identity(n), None, blocks=("index_neighbours",))
    place = np.arange(n) / (n - 1)
    assert [found.column(f"before:{i}")[-1] for i in range(5)] == pytest.approx(place[[7, 6, 5, 4, 3]])
    assert [found.column(f"after:{i}")[0] for i in range(5)] == pytest.approx(place[1:6])


def test_types_are_hashed_alike_in_every_graph():
    graphs = [toy_graph(3, [(0, 1)], types=types) for types in (("MulGrad", "Add"), ("Relu", "MulGrad"))]
    rows = [node_features(g, Grouping.identity(3), None, blocks=("type_hash",)).values for g in graphs]
    assert np.array_equal(rows[0][0], rows[1][1])
    assert all(np.allclose(r.sum(axis=1), 1) for r in rows)
    merged = node_features(graphs[0], Grouping(np.array([0, 0, 1])), None, blocks=("type_hash",)).values
    assert np.allclose(merged[0], (rows[0][0] + rows[0][1]) / 2)


# Attention


def test_attention_by_hand():
    attention = SegmentAttention(1, 1)
    one = torch.ones(1, 1)
    set_all(attention, query_weight=one, key_weight=one, value_weight=one, out_weight=2 * one)
    x = torch.tensor([[1.0], [0.0], [2.0], [3.0]])
    at = AttentionSegments.of([4], length=2, memory=2)

    def heard(query: float, others: Sequence[float]) -> float:
        weights = np.exp([query * other for other in others])
        return 2 * float(weights @ np.array(others) / weights.sum())

    expected = [heard(1, [1, 0]), heard(0, [1, 0]), heard(2, [1, 0, 2, 3]), heard(3, [1, 0, 2, 3])]
    assert attention(x, at, None)[:, 0].tolist() == pytest.approx(expected)


def plainly(layer: SegmentAttention, x: Tensor, *, segment: int, memory: int) -> Tensor:
    """Return what attention is, one segment and one head after the other."""
    n, width = x.shape
    rows = []
    for begin in range(0, n, segment):
        own, past = x[begin : begin + segment], x[max(0, begin - memory) : begin].detach()
        both = torch.cat([past, own])
        heads = []
        for head in range(layer.heads):
            part = slice(head * width // layer.heads, (head + 1) * width // layer.heads)
            q, k, v = layer.query(own)[:, part], layer.key(both)[:, part], layer.value(both)[:, part]
            heads.append(torch.softmax(q @ k.T / math.sqrt(k.shape[1]), dim=1) @ v)
        rows.append(layer.out(torch.cat(heads, dim=1)))
    return torch.cat(rows)


@pytest.mark.parametrize(
    ("n", "segment", "memory"), [(1, 4, 4), (7, 3, 3), (8, 4, 0), (9, 2, 6), (10, 4, 3), (5, 9, 9)]
)
def test_attention_in_segments_is_that_of_one_segment_after_the_other(n: int, segment: int, memory: int):
    torch.manual_seed(0)
    layer, x = SegmentAttention(8, 2), drawn(n).requires_grad_()
    found = layer(x, AttentionSegments.of([n], length=segment, memory=memory), None)
    expected = plainly(layer, x, segment=segment, memory=memory)
    assert torch.allclose(found, expected, atol=1e-6)
    weights = drawn(n, seed=1)
    gradients = [
        torch.autograd.grad((out * weights).sum(), [x, *layer.parameters()], retain_graph=True)
        for out in (found, expected)
    ]
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*gradients, strict=True))


def test_segments_that_remember_all_hear_what_one_long_segment_does():
    torch.manual_seed(0)
    layer, x = SegmentAttention(8, 2), drawn(12)
    whole = layer(x, AttentionSegments.of([12], length=12, memory=0), None)
    parts = layer(x, AttentionSegments.of([12], length=4, memory=8), None)
    assert torch.allclose(parts[8:], whole[8:], atol=1e-6)  # what the last segment hears is all there is
    assert not torch.allclose(parts[:8], whole[:8], atol=1e-3)
    block = PlacerBlock(SMALL)
    whole, parts = (block(x, AttentionSegments.of([12], length=n, memory=m), None) for n, m in ((12, 0), (99, 99)))
    assert torch.equal(whole, parts)


def test_no_gradient_crosses_segments():
    torch.manual_seed(0)
    x = drawn(8).requires_grad_()
    gate = torch.ones(8, 8, requires_grad=True)
    out = PlacerBlock(SMALL)(x, AttentionSegments.of([8], length=4, memory=4), gate)
    found = torch.autograd.grad(out[4:].sum() + (out[4:] ** 2).sum(), [x, gate])
    assert all(bool((g[:4] == 0).all()) and bool((g[4:] != 0).any()) for g in found)


def test_the_order_within_a_segment_does_not_matter():
    torch.manual_seed(0)
    block, x, order = PlacerBlock(SMALL), drawn(8), torch.tensor([2, 0, 3, 1, 7, 5, 4, 6])
    at = AttentionSegments.of([8], length=4, memory=4)
    assert torch.allclose(block(x[order], at, None), block(x, at, None)[order], atol=1e-6)


# Superposition


@pytest.mark.parametrize("gate", ["node", "graph"])
def test_a_gate_is_one_before_it_has_learned_and_leaves_the_network_as_it_is(gate: str):
    problem = crown_problem()
    plain = SingleShotPolicy(inputs_of(problem), SMALL, seed=0)
    other = SingleShotPolicy(inputs_of(problem), with_gate(gate), seed=0)
    other.load_state_dict({**other.state_dict(), **plain.state_dict()})
    sequence = sequence_of(problem)
    assert torch.equal(log_p_of(plain, sequence)[0], log_p_of(other, sequence)[0])
    with torch.no_grad():
        assert other.gate is not None
        other.gate.last.bias.add_(1.0)
    assert not torch.allclose(log_p_of(plain, sequence)[0], log_p_of(other, sequence)[0], atol=1e-4)


def test_a_gate_of_ones_is_no_gate():
    torch.manual_seed(0)
    block, x, at = PlacerBlock(SMALL), drawn(8), AttentionSegments.of([8], length=4, memory=4)
    assert torch.equal(block(x, at, torch.ones(8, 8)), block(x, at, None))


def test_a_gate_scales_the_columns_of_every_dense_layer():
    torch.manual_seed(0)
    block, x, at = PlacerBlock(SMALL), drawn(8), AttentionSegments.of([8], length=4, memory=4)
    gate = 0.5 + torch.rand(8, generator=torch.Generator().manual_seed(3))
    keyed = PlacerBlock(SMALL)
    keyed.load_state_dict(block.state_dict())
    attention = keyed.attention
    with torch.no_grad():
        for layer in (attention.query, attention.key, attention.value, attention.out, keyed.grow, keyed.shrink):
            layer.weight.mul_(gated(torch.ones_like(layer.weight), gate.expand(len(layer.weight), -1)))
    assert torch.allclose(block(x, at, gate.expand(8, -1)), keyed(x, at, None), atol=1e-5)


def test_gates_by_hand():
    x, at = torch.tensor([[1.0, 2.0], [3.0, 4.0], [-1.0, 0.0]]), AttentionSegments.of([2, 1], length=2, memory=0)
    design = dataclasses.replace(SMALL, width=2, inner=2, heads=1)
    graph = GraphGate(design)
    set_all(graph, last_weight=torch.eye(2))
    expected = 2 / (1 + np.exp(-np.array([[2.0, 3.0], [2.0, 3.0], [-1.0, 0.0]])))
    assert np.allclose(graph(x, at).detach().numpy(), expected)
    node = NodeGate(design)
    set_all(node, last_weight=torch.eye(2), block_thought_bias=torch.tensor([0.5, -0.5]))
    assert np.allclose(node(x, at).detach().numpy(), 2 / (1 + np.exp(-np.array([[0.5, -0.5]] * 3))))


# The policy


def test_the_head_by_hand():
    problem = toy_problem(toy_graph(4, [(0, 1), (0, 2), (1, 3), (2, 3)]), np.ones((4, 2)))
    policy = SingleShotPolicy(inputs_of(problem), SMALL, seed=0)
    set_all(policy, head_bias=torch.tensor([1.0, 3.0, 9.0]))  # the third device does not exist
    expected = np.log(np.exp([1.0, 3.0]) / np.exp([1.0, 3.0]).sum())
    assert np.allclose(log_p_of(policy, sequence_of(problem))[0].numpy(), np.tile(expected, (4, 1)))


@pytest.mark.parametrize("gate", ["none", "node", "graph"])
def test_probabilities_of_all_placements_sum_to_one(gate: str):
    allowed = np.array([[True, True, True], [True, False, True], [True, True, False], [False, True, False]])
    graph = toy_graph(4, [(0, 1), (0, 2), (1, 3), (2, 3)])
    problem = toy_problem(graph, np.ones((4, 3)), allowed=allowed)
    sequence = sequence_of(problem)
    log_p = log_p_of(policy_of(problem, with_gate(gate)), sequence)[0].double()
    total, allowed_ones = 0.0, 0
    for device in product(range(3), repeat=4):
        p = float(log_p[torch.arange(4), torch.tensor(device)].sum().exp())
        fits = problem.fits(sequence.placement(torch.tensor(device)))
        assert (p > 0) == fits
        total, allowed_ones = total + p, allowed_ones + fits
    assert allowed_ones == 3 * 2 * 2
    assert total == pytest.approx(1.0, abs=1e-6)


def test_standardised_embeddings_by_hand():
    x, at = torch.tensor([[1.0, 5.0], [3.0, 5.0], [7.0, 7.0]]), AttentionSegments.of([2, 1], length=2, memory=0)
    found = standardised(x, at)
    assert torch.allclose(found, torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]), atol=1e-5)


@pytest.mark.parametrize("standardise", [False, True])
@pytest.mark.parametrize("gate", ["none", "node", "graph"])
def test_a_batch_of_graphs_is_placed_as_one_by_one(gate: str, standardise: bool):
    problems = [chain_problem(), crown_problem(), toy_problem(toy_graph(1, []), np.ones((1, 2)))]
    policy = policy_of(problems[0], with_gate(gate, standardise=standardise))
    sequences = [sequence_of(problem) for problem in problems]
    alone = [log_p_of(policy, sequence)[0] for sequence in sequences]
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(log_p_of(policy, *sequences), alone, strict=True))


def renumbered(problem: Problem, number: np.ndarray) -> Problem:
    """Return the same problem with node i as number[i]."""
    graph = problem.graph
    edges = sorted(map(tuple, number[graph.edges].T.tolist()))
    back = np.argsort(number)
    types = [graph.type_names[graph.op_type[i]] for i in back]
    assert problem.costs is not None
    moved: Graph = toy_graph(graph.n, edges, types=types)
    return toy_problem(moved, problem.costs.op_s[back], allowed=problem.allowed[back])


def with_features(problem: Problem, features: np.ndarray) -> Problem:
    assert problem.policy is not None
    return dataclasses.replace(problem, policy=dataclasses.replace(problem.policy, features=features))


@pytest.mark.parametrize("seed", range(3))
def test_renumbering_nodes_renumbers_the_answer(seed: int):
    rng = np.random.default_rng(seed)
    edges = [(i, j) for j in range(1, 20) for i in range(max(0, j - 4), j) if i == j - 1 or rng.random() < 0.4]
    problem = toy_problem(toy_graph(20, edges, types=("MatMul", "Relu", "Add")), np.ones((20, 2)))
    blocks = ("type_hash", "shapes", "index_neighbours")
    rows = node_features(problem.graph, Grouping.identity(20), None, blocks=blocks).values
    number = rng.permutation(20)
    other = with_features(renumbered(problem, number), rows[np.argsort(number)])
    problem = with_features(problem, rows)
    policy = policy_of(problem, with_gate("node", standardise=True))  # five segments of four
    found = []
    for case in (problem, other):
        sequence = sequence_of(case)
        found.append(log_p_of(policy, sequence)[0][torch.from_numpy(sequence.groups.grouping.group.astype(np.int64))])
    assert found[0].std(dim=0).min() > 0.01
    assert torch.allclose(found[1][torch.from_numpy(number)], found[0], atol=1e-5)


def test_exchanging_what_the_head_knows_of_devices_exchanges_the_devices():
    problem = crown_problem()
    policy, sequence = policy_of(problem), sequence_of(problem)
    before = log_p_of(policy, sequence)[0]
    with torch.no_grad():
        for parameter in (policy.head.weight, policy.head.bias):
            parameter[:2] = parameter[:2].flip(0).clone()
    assert torch.allclose(log_p_of(policy, sequence)[0], before.flip(1), atol=1e-6)


# The sequence


def test_nodes_come_in_topological_order_and_colocated_ones_are_one():
    graph = toy_graph(5, [(4, 3), (4, 2), (3, 1), (2, 1), (1, 0)], colocate=[-1, -1, 2, 2, -1])
    sequence = sequence_of(toy_problem(graph, np.ones((5, 2))))
    assert sequence.groups.grouping.group.tolist() == [3, 2, 1, 1, 0]
    assert not sequence.coarse
    assert sequence.placement(torch.tensor([0, 1, 0, 1])).device.tolist() == [1, 0, 1, 1, 0]


def test_a_cycle_that_colocation_makes_is_no_obstacle():
    graph = toy_graph(4, [(0, 1), (1, 2), (2, 3)], colocate=[-1, 1, -1, 1])
    sequence = sequence_of(toy_problem(graph, np.ones((4, 2))))
    assert sorted(set(sequence.groups.grouping.group.tolist())) == [0, 1, 2]
    assert sequence.groups.grouping.group[0] == 0


def test_features_of_colocated_nodes_are_their_mean():
    problem = toy_problem(toy_graph(3, [(0, 1), (1, 2)], colocate=[1, 1, -1]), np.ones((3, 2)))
    features = inputs_of(problem).features
    sequence = sequence_of(problem)
    assert np.allclose(sequence.features[0].numpy(), features[:2].mean(axis=0), atol=1e-6)


def test_many_nodes_become_clusters():
    n = 60
    problem = toy_problem(toy_graph(n, [(i, i + 1) for i in range(n - 1)]), np.ones((n, 2)))
    sequence = NodeSequence.of(problem, inputs_of(problem).features, most=50, clusters=10)
    assert sequence.coarse
    assert sequence.k <= 20
    assert sequence.features.shape[0] == sequence.k
    assert NodeSequence.of(problem, inputs_of(problem).features, most=60, clusters=10).k == n
