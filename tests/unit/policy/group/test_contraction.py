"""The grouper by contraction: its probabilities by enumeration, and that rewards move it."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
import torch
from torch import Tensor

from pipeline.core.errors import UsageError
from pipeline.core.graph import Graph
from policy.group.contraction import Contraction, ContractionModel
from tests.toys import toy_graph

SQUARE = [(0, 1), (0, 2), (0, 3), (1, 3), (2, 3)]


def nodes(n: int, width: int = 3) -> Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(0))


def model_with_opinions(groups: int, width: int = 3) -> ContractionModel:
    model = Contraction(groups=groups, balance=9.0).build(width, seed=0)
    with torch.no_grad():
        model.phi.copy_(torch.linspace(-1, 1, width))
    return model


def every_choice(model: ContractionModel, z: Tensor, graph: Graph, edges: int) -> list[float]:
    """Return the log-probabilities of all sequences of one merge, edges counted between nodes."""
    found = []
    for taken in permutations(range(edges), 1):
        found.append(float(model.log_prob(z, graph, torch.tensor([1, *taken])).detach()))
    return found


def test_probabilities_of_all_merges_add_up_to_one():
    graph = toy_graph(4, SQUARE)
    logs = every_choice(model_with_opinions(3), nodes(4), graph, 5)
    assert sum(math.exp(value) for value in logs) == pytest.approx(1.0, abs=1e-5)
    assert max(logs) - min(logs) > 0.1


def test_entropy_is_that_of_the_merges():
    graph = toy_graph(4, SQUARE)
    model = model_with_opinions(3)
    logs = np.array(every_choice(model, nodes(4), graph, 5))
    sample = model.group(nodes(4), graph, rng=np.random.default_rng(0), greedy=False)
    assert float(sample.entropy.detach()) == pytest.approx(-(np.exp(logs) * logs).sum(), abs=1e-4)


def test_draws_come_as_often_as_their_probability_says_with_limits_that_bind():
    # two merges in one round
    pairs = [(i, i + 1) for i in range(4)]
    graph = toy_graph(5, pairs)
    model = model_with_opinions(3)
    seen: dict[tuple[int, ...], int] = {}
    samples = model.draws(nodes(5), graph, 2000, rng=np.random.default_rng(1))
    for sample in samples:
        key = tuple(sample.choice.tolist())
        seen[key] = seen.get(key, 0) + 1
        assert sample.grouping.k == 3
    total = 0.0
    for key, count in seen.items():
        p = math.exp(float(model.log_prob(nodes(5), graph, torch.tensor(key)).detach()))
        total += p
        assert count / 2000 == pytest.approx(p, abs=4.5 * math.sqrt(0.25 / 2000))
    assert total == pytest.approx(1.0, abs=0.02)


def test_greedy_merges_along_the_greatest_score():
    graph = toy_graph(4, SQUARE)
    model = model_with_opinions(3)
    logs = every_choice(model, nodes(4), graph, 5)
    found = model.group(nodes(4), graph, rng=np.random.default_rng(0), greedy=True)
    assert found.choice.tolist() == [1, int(np.argmax(logs))]


@pytest.mark.parametrize("choice", [[1, 7], [2, 0, 0], [1, -1]])
def test_a_choice_that_is_none_is_refused(choice: list[int]):
    with pytest.raises(ValueError, match="a choice must name"):
        model_with_opinions(2).log_prob(nodes(4), toy_graph(4, SQUARE), torch.tensor(choice))


def test_rewards_teach_it_to_keep_two_nodes_together():
    # reward: nodes 3 and 4 of a path share a group; the score that ships knows nothing of it
    graph, z = toy_graph(6, [(i, i + 1) for i in range(5)]), torch.eye(6)[:, :6] + 0.5
    model = Contraction(groups=4, balance=9.0).build(6, seed=0)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
    rng = np.random.default_rng(0)

    def together() -> list[float]:
        samples = model.draws(z, graph, 16, rng=rng)
        reward = torch.tensor([float(s.grouping.group[3] == s.grouping.group[4]) for s in samples])
        loss = -torch.stack([s.log_prob for s in samples]) @ (reward - reward.mean()) / 16
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        return reward.tolist()

    first = np.mean([together() for _ in range(3)])
    for _ in range(60):
        together()
    assert np.mean([together() for _ in range(3)]) > max(0.9, first)


@pytest.mark.parametrize("values", [{"groups": 0}, {"devices": 0}, {"temperature": 0.0}, {"balance": 0.5}])
def test_parameters_out_of_range_are_refused(values: dict[str, float]):
    with pytest.raises(UsageError):
        Contraction(**values)  # type: ignore[arg-type]
