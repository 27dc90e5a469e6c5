"""What every grouper promises, and the models it builds."""

from __future__ import annotations

import numpy as np
import torch

from pipeline.core.graph import Graph, Grouping, contract
from pipeline.core.learning import Grouper, GroupSample
from pipeline.testing.graphs import graph_of, random_graphs
from pipeline.testing.promises import (
    check_declaration,
    global_state_unchanged,
    is_seeded,
    promise_that_ends,
    require_promise,
)

WIDTH = 5
DRAWS = 3
# Large enough that every grouper has something to merge.
LARGE = graph_of(40, [(i, i + 1) for i in range(38)] + [(i, i + 7) for i in range(0, 30, 5)])


@promise_that_ends
def check_grouper(grouper: Grouper) -> None:
    """Hold a grouper, and the models it builds, to all promises of their Protocols.

    Raises:
        AssertionError: it breaks one of them; the message says which.
    """
    check_declaration(grouper)
    for promise in PROMISES:
        promise(grouper)
    for seed, graph in enumerate(random_graphs()):
        check_draw(grouper, graph, seed=seed, greedy=seed % 2 == 0)
        labels = np.random.default_rng(seed).integers(0, graph.n, graph.n)
        check_quotient(grouper, graph, Grouping.of_labels(labels))


def check_draw(grouper: Grouper, graph: Graph, *, seed: int, greedy: bool) -> None:
    """Require that a draw groups every node, and that its probability is found again from its choice."""
    model, z = grouper.build(WIDTH, seed=0), draw_embeddings(graph.n)
    sample = model.group(z, graph, rng=np.random.default_rng(seed), greedy=greedy)
    require_promise(sample.grouping.n == graph.n, grouper, f"groups {sample.grouping.n} of {graph.n} nodes")
    require_promise(sample.choice.dtype == torch.int64, grouper, f"gives a choice of {sample.choice.dtype}, not int64")
    scalars = sample.log_prob.shape == sample.entropy.shape == ()
    require_promise(
        scalars, grouper, f"gives log_prob {sample.log_prob.shape} and entropy {sample.entropy.shape}, not scalars"
    )
    log_prob, entropy = float(sample.log_prob.detach()), float(sample.entropy.detach())
    require_promise(log_prob <= 1e-6, grouper, f"gives a draw the log-probability {log_prob}")  # rounding
    require_promise(entropy >= -1e-6, grouper, f"gives the entropy {entropy}")
    equal = torch.equal(model.log_prob(z, graph, sample.choice), sample.log_prob)
    require_promise(equal, grouper, "finds another log-probability for a choice than `group` gave with it")


def check_draws(grouper: Grouper) -> None:
    """Require that `draws` gives as many draws as asked for, each with the log-probability of its choice."""
    model, z = grouper.build(WIDTH, seed=0), draw_embeddings(LARGE.n)
    samples = model.draws(z, LARGE, DRAWS, rng=np.random.default_rng(0))
    require_promise(len(samples) == DRAWS, grouper, f"gives {len(samples)} draws instead of {DRAWS}")
    for sample in samples:
        again = model.log_prob(z, LARGE, sample.choice)
        close = torch.allclose(again, sample.log_prob, rtol=1e-4, atol=1e-4)  # float32 sums, many draws at once
        require_promise(close, grouper, "finds another log-probability for a choice than `draws` gave with it")


def check_quotient(grouper: Grouper, graph: Graph, grouping: Grouping) -> None:
    """Require that a quotient graph, which may be cyclic, can be grouped."""
    quotient = contract(graph, grouping)
    grouped = draw_sample(grouper, quotient).grouping.n
    require_promise(grouped == quotient.n, grouper, f"groups {grouped} of the {quotient.n} nodes of a quotient graph")


def check_greedy(grouper: Grouper) -> None:
    """Require that the most likely grouping does not depend on the generator."""
    first, other = (draw_sample(grouper, LARGE, seed=seed, greedy=True) for seed in (0, 1))
    same = np.array_equal(first.grouping.group, other.grouping.group) and torch.equal(first.choice, other.choice)
    require_promise(same, grouper, "draws at random although `greedy` asks for the most likely grouping")


def check_generators(grouper: Grouper) -> None:
    """Require that equal generators give equal draws."""
    first, again = (draw_sample(grouper, LARGE, seed=7) for _ in range(2))
    same = np.array_equal(first.grouping.group, again.grouping.group)
    same = same and torch.equal(first.log_prob, again.log_prob)
    require_promise(same, grouper, "draws differently from equal generators")


def check_seeds(grouper: Grouper) -> None:
    """Require that equal seeds build equal models, and all seeds where it says that it is not seeded."""
    first, again = (grouper.build(WIDTH, seed=5).module.state_dict() for _ in range(2))
    require_promise(first.keys() == again.keys(), grouper, "builds models of different parameters from one seed")
    for label, weight in first.items():
        require_promise(torch.equal(weight, again[label]), grouper, f"builds models of different {label} from one seed")
    if not is_seeded(grouper):
        one, other = (draw_sample(grouper, LARGE, built=seed, greedy=True).grouping.group for seed in (5, 6))
        same = np.array_equal(one, other)
        require_promise(
            same, grouper, "says that it is not seeded, and groups an equal graph differently for other seeds"
        )


def check_gradients(grouper: Grouper) -> None:
    """Require that the gradient of a draw's log-probability reaches every parameter."""
    model = grouper.build(WIDTH, seed=0)
    sample = model.group(draw_embeddings(LARGE.n), LARGE, rng=np.random.default_rng(0), greedy=False)
    for label, parameter in model.module.named_parameters():
        (gradient,) = torch.autograd.grad(sample.log_prob, parameter, retain_graph=True)
        require_promise(bool((gradient != 0).any()), grouper, f"has a parameter that no gradient reaches: {label}")


def check_global_state(grouper: Grouper) -> None:
    """Require that it leaves generators and threads of the process alone."""
    with global_state_unchanged(grouper):
        draw_sample(grouper, LARGE)


PROMISES = (check_draws, check_greedy, check_generators, check_seeds, check_gradients, check_global_state)


def draw_embeddings(n: int) -> torch.Tensor:
    """Return float32 [n, WIDTH], embeddings drawn from a seed."""
    return torch.randn(n, WIDTH, generator=torch.Generator().manual_seed(n))


def draw_sample(grouper: Grouper, graph: Graph, *, seed: int = 0, greedy: bool = False, built: int = 0) -> GroupSample:
    """Return a draw of a fresh model, whose own seed is `built`, on drawn embeddings."""
    model = grouper.build(WIDTH, seed=built)
    return model.group(draw_embeddings(graph.n), graph, rng=np.random.default_rng(seed), greedy=greedy)
