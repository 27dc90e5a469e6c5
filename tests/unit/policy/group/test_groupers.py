"""Groupers: the edge score's probabilities by hand and by enumeration, and what the others promise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from pipeline.core.errors import UsageError
from pipeline.core.graph import Graph, Grouping, components
from policy.group.cluster import Cluster
from policy.group.edge_score import EdgeScore, EdgeScoreModel, Incidence
from policy.group.metis import Metis
from tests.toys import toy_graph

SQUARE = [(0, 1), (0, 2), (1, 3), (2, 3)]


def nodes(n: int, width: int = 3) -> Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(0))


def one_round(**params: float) -> EdgeScore:
    return EdgeScore(rounds=1, stop="fixed", **params)  # type: ignore[arg-type]


def log_p(model: EdgeScoreModel, z: Tensor, graph: Graph, choice: Tensor) -> float:
    return float(model.log_prob(z, graph, choice).detach())


def draws(graph: Graph) -> Iterator[Tensor]:
    """Yield every possible choice of one round."""
    at = [np.flatnonzero((graph.edges == i).any(axis=0)).tolist() or [-1] for i in range(graph.n)]
    return (torch.tensor([1, *choice]) for choice in product(*at))


def grouped_by(graph: Graph, choice: Tensor) -> Grouping:
    """Return the groups of a choice of one round."""
    assert int(choice[0]) == 1
    taken = graph.edges[:, choice[1:][choice[1:] >= 0].numpy()]
    return components(graph.n, taken[0], taken[1])


def with_grouping(model: EdgeScoreModel, z: Tensor, graph: Graph, seed: int) -> tuple[Tensor, Tensor]:
    sample = model.group(z, graph, rng=np.random.default_rng(seed), greedy=False)
    return sample.choice, sample.log_prob


def test_a_node_takes_each_of_its_edges_with_the_softmax_of_the_scores():
    at = Incidence.of(torch.tensor([[0, 1], [1, 2]]), 3)  # a path; scores log 2 and 0
    p = at.log_softmax(torch.tensor([math.log(2), 0.0])).exp()
    assert p.tolist() == pytest.approx([1.0, 1 / 3, 2 / 3, 1.0])  # nodes 0, 1, 1, 2 and edges 0, 1, 0, 1


def test_scores_far_apart_keep_finite_log_probabilities():
    at = Incidence.of(torch.tensor([[0, 1], [1, 2]]), 3)
    found = at.log_softmax(torch.tensor([500.0, -500.0]))
    assert found.tolist() == pytest.approx([0.0, -1000.0, 0.0, 0.0])


def test_the_incidence_lists_edges_at_both_ends():
    at = Incidence.of(torch.tensor([[0, 1], [1, 2]]), 3)
    assert at.owner.tolist() == [0, 1, 1, 2]
    assert at.edge.tolist() == [0, 1, 0, 1]
    assert at.position(torch.tensor([0, 0, 1])).tolist() == [0, 2, 3]


@pytest.mark.parametrize("choice", [[1, 0, 1], [0, 0], [0, -1, 1]])
def test_a_choice_of_an_edge_that_is_not_at_the_node_is_refused(choice: list[int]):
    graph = toy_graph(3, [(0, 1), (1, 2)])
    with pytest.raises(ValueError, match="a choice must name"):
        one_round().build(3, seed=0).log_prob(nodes(3), graph, torch.tensor([1, *choice]))


def test_probabilities_of_all_choices_add_up_to_one():
    graph = toy_graph(4, [*SQUARE, (0, 3)])
    model = one_round(temperature=0.2).build(3, seed=1)
    total = sum(math.exp(log_p(model, nodes(4), graph, choice)) for choice in draws(graph))
    assert total == pytest.approx(1.0, abs=1e-5)


def test_entropy_is_that_of_the_distribution_of_choices():
    graph = toy_graph(4, [*SQUARE, (0, 3)])
    model = one_round(temperature=0.2).build(3, seed=1)
    logs = np.array([log_p(model, nodes(4), graph, choice) for choice in draws(graph)])
    sample = model.group(nodes(4), graph, rng=np.random.default_rng(0), greedy=False)
    assert float(sample.entropy.detach()) == pytest.approx(-(np.exp(logs) * logs).sum(), abs=1e-4)


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_a_recount_gives_the_very_log_probability_of_the_draw(rounds: int):
    graph = toy_graph(9, [(i, i + 1) for i in range(7)] + [(0, 4), (2, 6)])
    model = EdgeScore(rounds=rounds).build(3, seed=0)
    for seed in range(10):
        choice, log_prob = with_grouping(model, nodes(9), graph, seed)
        assert float(log_prob.detach()) < 0
        assert torch.equal(model.log_prob(nodes(9), graph, choice), log_prob)


def test_draws_come_as_often_as_their_probability_says():
    # 400 copies of a path of three: the middle of each draws between its two edges, 10 times.
    copies, runs = 400, 10
    graph = toy_graph(3 * copies, [(3 * c + i, 3 * c + i + 1) for c in range(copies) for i in range(2)])
    z = nodes(3).repeat(copies, 1)
    model = one_round(temperature=0.033).build(3, seed=2)
    p_first = math.exp(log_p(model, nodes(3), toy_graph(3, [(0, 1), (1, 2)]), torch.tensor([1, 0, 0, 1])))
    assert 0.05 < min(p_first, 1 - p_first) < 0.2  # where a draw from another distribution would show
    rng = np.random.default_rng(0)
    middle = np.arange(copies) * 3 + 1
    found = [model.group(z, graph, rng=rng, greedy=False).choice.numpy()[1 + middle] % 2 == 0 for _ in range(runs)]
    four_standard_errors = 4 * math.sqrt(p_first * (1 - p_first) / (copies * runs))
    assert np.mean(found) == pytest.approx(p_first, abs=four_standard_errors)


def test_groups_are_the_components_of_the_edges_taken():
    graph = toy_graph(8, [(i, i + 1) for i in range(6)])
    sample = one_round().build(3, seed=0).group(nodes(8), graph, rng=np.random.default_rng(3), greedy=False)
    assert sample.grouping.group.tolist() == grouped_by(graph, sample.choice).group.tolist()
    assert int(sample.choice[1 + 7]) == -1  # no edges: alone
    assert np.sum(sample.grouping.group == sample.grouping.group[7]) == 1


def test_greedy_takes_the_most_likely_choice_and_among_equals_the_lowest_edge():
    graph = toy_graph(4, [*SQUARE, (0, 3)])
    model = one_round().build(3, seed=1)
    found = model.group(nodes(4), graph, rng=np.random.default_rng(0), greedy=True)
    best = max(draws(graph), key=lambda choice: log_p(model, nodes(4), graph, choice))
    assert found.choice.tolist() == best.tolist()
    equal = model.group(torch.ones(4, 3), graph, rng=np.random.default_rng(0), greedy=True)
    assert equal.choice.tolist() == [1, 0, 0, 1, 2]


def test_a_further_round_merges_the_groups_of_the_round_before():
    graph = toy_graph(16, [(i, i + 1) for i in range(15)])
    found = [
        EdgeScore(rounds=rounds, stop="fixed")
        .build(3, seed=0)
        .group(nodes(16), graph, rng=np.random.default_rng(0), greedy=True)
        for rounds in (1, 2, 9)
    ]
    assert found[0].grouping.k <= 8
    assert found[1].grouping.k <= found[0].grouping.k // 2
    assert found[2].grouping.k == 1
    assert found[1].choice.numel() == 1 + 16 + found[0].grouping.k


def test_the_number_of_rounds_is_drawn_with_a_learned_probability():
    graph = toy_graph(4, SQUARE)
    model = EdgeScore(rounds=2).build(3, seed=0)
    assert model.b is not None
    log_b = model.b.detach().log_softmax(0)
    none = model.log_prob(nodes(4), graph, torch.tensor([0]))
    assert float(none.detach()) == pytest.approx(float(log_b[0]))
    fixed = one_round().build(3, seed=0)
    choice = next(iter(draws(graph)))
    assert log_p(model, nodes(4), graph, choice) == pytest.approx(
        log_p(fixed, nodes(4), graph, choice) + float(log_b[1])
    )
    drawn = model.draws(nodes(4), graph, 400, rng=np.random.default_rng(0))
    found = np.bincount([int(sample.choice[0]) for sample in drawn], minlength=3) / 400
    four_standard_errors = 4 * math.sqrt(0.25 / 400)
    assert found == pytest.approx(log_b.exp().numpy(), abs=four_standard_errors)


def test_parsing_stops_at_the_number_of_groups_asked_for():
    graph = toy_graph(64, [(i, i + 1) for i in range(63)])
    for groups in (1, 5, 20):
        model = EdgeScore(rounds=9, stop="fixed", groups=groups).build(3, seed=0)
        found = model.draws(nodes(64), graph, 8, rng=np.random.default_rng(0))
        assert all(sample.grouping.k <= max(groups, 64 // 2) for sample in found)
        assert all(groups // 8 <= sample.grouping.k for sample in found)  # one round merges a few at a time


def test_many_draws_at_once_are_independent_and_each_counts_its_own_probability():
    graph = toy_graph(9, [(i, i + 1) for i in range(7)] + [(0, 4), (2, 6)])
    model = EdgeScore(rounds=3).build(3, seed=0)
    found = model.draws(nodes(9), graph, 40, rng=np.random.default_rng(0))
    assert len({tuple(sample.choice.tolist()) for sample in found}) > 20
    for sample in found:
        recount = model.log_prob(nodes(9), graph, sample.choice)
        assert float(recount.detach()) == pytest.approx(float(sample.log_prob.detach()), abs=1e-5)
    expected = sum(float(s.log_prob.detach()) for s in found)
    gradient = torch.autograd.grad(torch.stack([s.log_prob for s in found]).sum(), list(model.parameters()))
    again = torch.autograd.grad(
        torch.stack([model.log_prob(nodes(9), graph, s.choice) for s in found]).sum(), list(model.parameters())
    )
    assert expected < 0
    for together, alone in zip(gradient, again, strict=True):
        assert torch.allclose(together, alone, atol=1e-4)


def test_a_high_temperature_makes_draws_uniform():
    graph = toy_graph(3, [(0, 1), (1, 2)])
    model = one_round(temperature=1e6).build(3, seed=2)
    assert log_p(model, nodes(3), graph, torch.tensor([1, 0, 0, 1])) == pytest.approx(math.log(1 / 2), abs=1e-5)


def test_the_gradient_estimated_from_draws_is_that_of_the_expected_reward():
    # The reward of a draw is its number of groups. Exact: differentiate the sum of p R over all choices.
    graph, z = toy_graph(4, [*SQUARE, (0, 3)]), nodes(4)
    model = one_round(hidden=4).build(3, seed=0)
    parameters = list(model.parameters())
    expected = sum(model.log_prob(z, graph, c).exp() * grouped_by(graph, c).k for c in draws(graph))
    assert isinstance(expected, Tensor)
    exact = torch.cat([g.reshape(-1) for g in torch.autograd.grad(expected, parameters)])
    rng, estimates = np.random.default_rng(0), []
    for _ in range(500):
        sample = model.group(z, graph, rng=rng, greedy=False)
        surrogate = sample.log_prob * (sample.grouping.k - expected.detach())
        estimates.append(torch.cat([g.reshape(-1) for g in torch.autograd.grad(surrogate, parameters)]))
    found = torch.stack(estimates)
    standard_error = found.std(dim=0) / math.sqrt(len(estimates))
    assert float(exact.norm()) > 3 * float(standard_error.norm())  # else anything would pass
    assert bool(((found.mean(dim=0) - exact).abs() <= 4 * standard_error + 1e-6).all())


def test_metis_cuts_a_graph_where_few_bytes_flow():
    cliques = [(i, j) for i in range(4) for j in range(i + 1, 4)] + [
        (i, j) for i in range(4, 8) for j in range(i + 1, 8)
    ]
    graph = toy_graph(8, [*cliques, (3, 4)])
    found = Metis(parts=2).build(3, seed=0).group(nodes(8), graph, rng=np.random.default_rng(0), greedy=True)
    assert found.grouping.group.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_metis_leaves_a_graph_of_few_nodes_as_it_is():
    graph = toy_graph(3, [(0, 1)])
    model = Metis(parts=16).build(3, seed=0)
    assert model.group(nodes(3), graph, rng=np.random.default_rng(0), greedy=True).grouping.k == 3


def test_metis_partitions_the_graph_it_is_asked_about():
    model, rng = Metis(parts=2).build(3, seed=0), np.random.default_rng(0)
    for n in (6, 9, 6):
        graph = toy_graph(n, [(i, i + 1) for i in range(n - 1)])
        assert model.group(nodes(n), graph, rng=rng, greedy=True).grouping.n == n


def test_cluster_merges_neighbours_with_similar_embeddings():
    graph = toy_graph(6, [(i, i + 1) for i in range(5)])
    z = torch.tensor([[0.0], [0.1], [5.0], [5.1], [0.0], [0.1]])
    model = Cluster(groups=3).build(1, seed=0)
    found = model.group(z, graph, rng=np.random.default_rng(0), greedy=True)
    assert found.grouping.group.tolist() == [0, 0, 1, 1, 2, 2]  # 0 and 4 are alike but not joined


def test_cluster_reaches_its_number_of_groups_on_a_graph_without_edges():
    graph = toy_graph(20, [])
    for groups in (1, 7):
        found = (
            Cluster(groups=groups).build(3, seed=0).group(nodes(20), graph, rng=np.random.default_rng(0), greedy=True)
        )
        assert found.grouping.k == groups


@pytest.mark.parametrize(
    ("cls", "values"),
    [
        (EdgeScore, {"rounds": 0}),
        (EdgeScore, {"stop": "never"}),
        (EdgeScore, {"temperature": 0.0}),
        (Metis, {"parts": 0}),
        (Cluster, {"groups": 0}),
    ],
)
def test_parameters_out_of_range_are_refused(cls: type, values: dict[str, float]):
    with pytest.raises(UsageError):
        cls(**values)
