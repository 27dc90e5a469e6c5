"""What every registered grouper promises."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.graph import Graph, Grouping, contract
from pipeline.core.learning import Grouper, GroupSample
from pipeline.registry import build, table
from tests.strategies import graphs, grouped_graphs
from tests.toys import toy_graph

NAMES = sorted(table("group"))
WIDTH = 5


def grouper(name: str) -> Grouper:
    return build("group", name)  # type: ignore[no-any-return]


def nodes(n: int) -> torch.Tensor:
    return torch.randn(n, WIDTH, generator=torch.Generator().manual_seed(n))


def draw(name: str, graph: Graph, *, seed: int = 0, build_seed: int = 0, greedy: bool = False) -> GroupSample:
    model = grouper(name).build(WIDTH, seed=build_seed)
    return model.group(nodes(graph.n), graph, rng=np.random.default_rng(seed), greedy=greedy)


def large() -> Graph:
    """Return a graph large enough that every grouper has something to merge."""
    return toy_graph(40, [(i, i + 1) for i in range(38)] + [(i, i + 7) for i in range(0, 30, 5)])


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=25)
@given(graph=graphs(min_n=1), greedy=st.booleans(), seed=st.integers(0, 99))
def test_a_draw_groups_every_node_and_counts_its_own_probability(name: str, graph: Graph, greedy: bool, seed: int):
    model, z = grouper(name).build(WIDTH, seed=0), nodes(graph.n)
    sample = model.group(z, graph, rng=np.random.default_rng(seed), greedy=greedy)
    assert sample.grouping.n == graph.n
    assert sample.choice.dtype == torch.int64
    assert sample.log_prob.shape == sample.entropy.shape == ()
    assert float(sample.log_prob.detach()) <= 1e-6  # rounding
    assert float(sample.entropy.detach()) >= -1e-6
    assert torch.equal(model.log_prob(z, graph, sample.choice), sample.log_prob)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=25)
@given(drawn=grouped_graphs(min_n=1))
def test_a_cyclic_quotient_can_be_grouped(name: str, drawn: tuple[Graph, Grouping]):
    quotient = contract(*drawn)
    assert draw(name, quotient).grouping.n == quotient.n


@pytest.mark.parametrize("name", NAMES)
def test_the_greedy_grouping_does_not_depend_on_the_generator(name: str):
    first, other = (draw(name, large(), seed=seed, greedy=True) for seed in (0, 1))
    assert np.array_equal(first.grouping.group, other.grouping.group)
    assert torch.equal(first.choice, other.choice)


@pytest.mark.parametrize("name", NAMES)
def test_equal_generators_give_equal_draws(name: str):
    first, again = (draw(name, large(), seed=7) for _ in range(2))
    assert np.array_equal(first.grouping.group, again.grouping.group)
    assert torch.equal(first.log_prob, again.log_prob)


@pytest.mark.parametrize("name", NAMES)
def test_equal_seeds_build_equal_models(name: str):
    first, again = (grouper(name).build(WIDTH, seed=5).module.state_dict() for _ in range(2))
    assert first.keys() == again.keys()
    for label, weight in first.items():
        assert torch.equal(weight, again[label])


@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_reaches_every_parameter(name: str):
    model, graph = grouper(name).build(WIDTH, seed=0), large()
    sample = model.group(nodes(graph.n), graph, rng=np.random.default_rng(0), greedy=False)
    for label, parameter in model.module.named_parameters():
        (gradient,) = torch.autograd.grad(sample.log_prob, parameter, retain_graph=True)
        assert bool((gradient != 0).any()), label


@pytest.mark.parametrize("name", NAMES)
def test_grouping_leaves_the_global_generators_and_torchs_threads_alone(name: str):
    state, numpy_state, threads = torch.get_rng_state(), np.random.get_state(legacy=False), torch.get_num_threads()  # noqa: NPY002
    draw(name, large())
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(np.random.get_state(legacy=False)["state"]["key"], numpy_state["state"]["key"])  # noqa: NPY002
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("name", [name for name in NAMES if name != "identity"])
def test_a_large_graph_has_fewer_groups_than_nodes(name: str):
    assert draw(name, large(), greedy=True).grouping.k < 40
