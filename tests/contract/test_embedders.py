"""Every registered embedder keeps the promises of `pipeline.testing.embedders`, and what some promise beyond them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embed.features import node_features
from embed.pretrain import pretrain
from pipeline.core.errors import UsageError
from pipeline.core.graph import Graph, Grouping
from pipeline.core.learning import Embedder
from pipeline.settings.registry import build_implementation, implementation_table
from pipeline.shared.torch_tools import torch_seeded
from pipeline.testing import embedders
from tests.strategies import graphs
from tests.toys import toy_graph

NAMES = sorted(implementation_table("embed"))
FEATURES = 7


def embedder(name: str, **values: object) -> Embedder:
    return build_implementation("embed", name, values)  # type: ignore[no-any-return]


def toy() -> tuple[Graph, np.ndarray]:
    graph = toy_graph(6, [(0, 1), (1, 2), (1, 3), (2, 4), (3, 4), (4, 5)], types=("MatMul", "Relu", "Add"))
    return graph, node_features(graph, Grouping.identity(6), None).values


def edges_of(graph: Graph) -> torch.Tensor:
    return torch.tensor(graph.edges, dtype=torch.int64)


def random_features(n: int) -> torch.Tensor:
    return torch.randn(n, FEATURES, generator=torch.Generator().manual_seed(n))


@pytest.mark.parametrize("name", NAMES)
def test_an_embedder_keeps_its_promises(name: str):
    embedders.check_embedder(embedder(name))


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=10)
@given(graph=graphs(min_n=1))
def test_an_encoder_gives_a_finite_row_of_its_width_for_every_node(name: str, graph: Graph):
    embedders.check_rows(embedder(name), graph)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=10)
@given(graph=graphs(min_n=1), data=st.data())
def test_renumbering_nodes_renumbers_the_rows(name: str, graph: Graph, data: st.DataObject):
    number = np.array(data.draw(st.permutations(range(graph.n))))
    embedders.check_equivariance(embedder(name), graph, number)


@pytest.mark.slow
def test_encoders_leave_no_temporary_files(tmp_path: Path):
    script = (
        "from pipeline.settings.registry import build_implementation\n"
        "import torch\n"
        f"for name in {NAMES!r}:\n"
        f"    encoder = build_implementation('embed', name).encoder({FEATURES}, seed=0)\n"
        f"    encoder(torch.ones(3, {FEATURES}), torch.tensor([[0, 1], [1, 2]]))\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("name", ["gcn", "directed"])
def test_without_epochs_the_embedding_is_that_of_a_fresh_encoder(name: str):
    graph, features = toy()
    made = embedder(name, pretrain_epochs=0)
    with torch_seeded(0):
        fresh = made.encoder(features.shape[1], seed=3)(torch.tensor(features), edges_of(graph))
    assert np.array_equal(made.embed(features, graph, seed=3).nodes, fresh.detach().numpy())


@pytest.mark.parametrize("name", ["gcn", "directed"])
def test_training_tells_the_graph_from_its_shuffled_features(name: str):
    n = 40
    graph = toy_graph(n, [(i, i + 1) for i in range(n - 1)])
    features = torch.eye(2)[(torch.arange(n) // 20)]  # neighbours have equal features, shuffled ones do not
    encoder = embedder(name, width=16).encoder(2, seed=0)
    losses = pretrain(encoder, features, edges_of(graph), epochs=100, seed=0)
    assert np.mean(losses[-20:]) < np.mean(losses[:20]) - 0.1


def test_training_starts_from_the_encoders_own_parameters():
    graph, features = toy()
    encoder = embedder("gcn").encoder(features.shape[1], seed=0)
    before = {name: value.clone() for name, value in encoder.module.state_dict().items()}
    pretrain(encoder, torch.tensor(features), edges_of(graph), epochs=1, seed=5)
    for name, value in encoder.module.state_dict().items():
        assert torch.allclose(value, before[name], atol=2e-3)  # one step of Adam moves a number by its rate, 1e-3


def test_dropout_is_drawn_from_the_seed():
    graph, features = toy()
    found = [embedder("gcn", dropout=0.5, pretrain_epochs=5).embed(features, graph, seed=0).nodes for _ in range(2)]
    assert np.array_equal(*found)


@pytest.mark.parametrize("name", ["gcn", "directed"])
def test_one_layer_hears_from_producers_and_from_consumers_and_from_no_further(name: str):
    edges, features = edges_of(toy_graph(5, [(i, i + 1) for i in range(4)])), random_features(5)
    encoder = embedder(name, layers=1).encoder(FEATURES, seed=0)
    before = encoder(features, edges)[2]
    for node, heard in ((0, False), (1, True), (3, True), (4, False)):
        changed = features.clone()
        changed[node] += 1.0
        assert torch.allclose(encoder(changed, edges)[2], before, atol=1e-6) != heard


def test_the_directed_encoder_tells_producers_from_consumers_and_the_gcn_does_not():
    forward, features = edges_of(toy_graph(3, [(0, 1), (0, 2)])), random_features(3)
    for name, equal in (("directed", False), ("gcn", True)):
        encoder = embedder(name).encoder(FEATURES, seed=0)
        assert torch.allclose(encoder(features, forward), encoder(features, forward.flip(0)), atol=1e-5) == equal


@pytest.mark.parametrize(
    ("name", "values"), [("gcn", {"dropout": 1.0}), ("gcn", {"width": 0}), ("directed", {"layers": -1})]
)
def test_parameters_out_of_range_are_refused(name: str, values: dict[str, float]):
    with pytest.raises(UsageError):
        embedder(name, **values)
