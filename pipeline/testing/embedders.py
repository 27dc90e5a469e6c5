"""What every embedder promises, and the encoders it builds."""

from __future__ import annotations

import numpy as np
import torch

from pipeline.core.arrays import Float32, Int64
from pipeline.core.graph import Graph
from pipeline.core.learning import Embedder
from pipeline.shared.torch_tools import torch_seeded
from pipeline.testing.graphs import graph_of, random_graphs
from pipeline.testing.promises import (
    check_declaration,
    global_state_unchanged,
    is_seeded,
    promise_that_ends,
    require_promise,
)

FEATURES = 7


@promise_that_ends
def check_embedder(embedder: Embedder) -> None:
    """Hold an embedder, and the encoders it builds, to all promises of their Protocols.

    Raises:
        AssertionError: it breaks one of them; the message says which.
    """
    check_declaration(embedder)
    for seed, graph in enumerate(random_graphs()):
        check_rows(embedder, graph)
        check_equivariance(embedder, graph, np.random.default_rng(seed).permutation(graph.n))
    for promise in PROMISES:
        promise(embedder)


def check_rows(embedder: Embedder, graph: Graph) -> None:
    """Require that an encoder gives a finite row of its width for every node."""
    encoder = embedder.encoder(FEATURES, seed=0)
    rows = encoder(_draw_features(graph.n), _edges_of(graph))
    expected = (graph.n, encoder.width)
    require_promise(tuple(rows.shape) == expected, embedder, f"gives rows of shape {tuple(rows.shape)}, not {expected}")
    require_promise(rows.dtype == torch.float32, embedder, f"gives rows of {rows.dtype}, not float32")
    require_promise(bool(rows.isfinite().all()), embedder, "gives rows that are not finite")


def check_equivariance(embedder: Embedder, graph: Graph, number: Int64) -> None:
    """Require that renumbering nodes, node i as number[i], renumbers the rows and changes nothing else."""
    to = torch.tensor(number)
    encoder = embedder.encoder(FEATURES, seed=0)
    x, edges = _draw_features(graph.n), _edges_of(graph)
    moved = torch.empty_like(x)
    moved[to] = x
    rows = encoder(moved, to[edges])
    same = torch.allclose(rows[to], encoder(x, edges), atol=1e-4)  # float32 sums in another order
    require_promise(same, embedder, "gives rows that depend on the numbers of nodes")


def check_gradients(embedder: Embedder) -> None:
    """Require that the gradient reaches every parameter of an encoder."""
    graph, features = _small_graph()
    encoder = embedder.encoder(features.shape[1], seed=0)
    weights = torch.randn(graph.n, encoder.width, generator=torch.Generator().manual_seed(1))
    total = (encoder(torch.tensor(features), _edges_of(graph)) * weights).sum()
    for label, parameter in encoder.module.named_parameters():
        (gradient,) = torch.autograd.grad(total, parameter, retain_graph=True)
        require_promise(bool((gradient != 0).any()), embedder, f"has a parameter that no gradient reaches: {label}")


def check_seeds(embedder: Embedder) -> None:
    """Require finite embeddings, equal for equal seeds, and for others what is said: equal ones, or other weights."""
    graph, features = _small_graph()
    first, again, other = (embedder.embed(features, graph, seed=seed) for seed in (3, 3, 4))
    require_promise(first.nodes.shape[0] == graph.n, embedder, f"embeds {first.nodes.shape[0]} of {graph.n} nodes")
    require_promise(np.isfinite(first.nodes).all(), embedder, "gives embeddings that are not finite")
    require_promise(np.array_equal(first.nodes, again.nodes), embedder, "gives other embeddings for an equal seed")
    for label, weight in first.weights.items():
        require_promise(
            np.array_equal(weight, again.weights[label]), embedder, f"leaves another {label} for an equal seed"
        )
    if not is_seeded(embedder):
        same = np.array_equal(first.nodes, other.nodes)
        require_promise(same, embedder, "says that it is not seeded, and gives other embeddings for other seeds")
    elif first.weights:
        require_promise(not np.array_equal(first.nodes, other.nodes), embedder, "has weights that no seed changes")


def check_weights_left_behind(embedder: Embedder) -> None:
    """Require that an encoder with the weights that `embed` left gives its embedding."""
    graph, features = _small_graph()
    embedding = embedder.embed(features, graph, seed=3)
    encoder = embedder.encoder(features.shape[1], seed=99)
    encoder.module.load_state_dict({label: torch.tensor(weight) for label, weight in embedding.weights.items()})
    encoder.module.eval()
    with torch_seeded(0):  # one thread, as embed() computes: the sums are then taken in one order
        rows = encoder(torch.tensor(features), _edges_of(graph)).detach().numpy()
    require_promise(np.array_equal(rows, embedding.nodes), embedder, "leaves weights that do not give its embedding")


def check_global_state(embedder: Embedder) -> None:
    """Require that it leaves generators and threads of the process alone."""
    graph, features = _small_graph()
    with global_state_unchanged(embedder):
        embedder.embed(features, graph, seed=3)


def check_one_node(embedder: Embedder) -> None:
    """Require that a graph of one node can be embedded."""
    nodes = embedder.embed(_draw_features(1).numpy(), graph_of(1, []), seed=0).nodes
    require_promise(np.isfinite(nodes).all(), embedder, "gives a graph of one node embeddings that are not finite")


PROMISES = (check_gradients, check_seeds, check_weights_left_behind, check_global_state, check_one_node)


def _small_graph() -> tuple[Graph, Float32]:
    graph = graph_of(6, [(0, 1), (1, 2), (1, 3), (2, 4), (3, 4), (4, 5)], types=("MatMul", "Relu", "Add") * 2)
    return graph, _draw_features(graph.n).numpy()


def _edges_of(graph: Graph) -> torch.Tensor:
    return torch.tensor(graph.edges, dtype=torch.int64)


def _draw_features(n: int) -> torch.Tensor:
    return torch.randn(n, FEATURES, generator=torch.Generator().manual_seed(n))
