"""The compiled cuts are those of the plain ones."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.graph import Graph, Grouping
from runtime.simulators.sequential.subgraphs import Cutter
from tests import plain_subgraphs
from tests.strategies import graph_of, graphs, grouped_graphs


def dense(seed: int) -> tuple[Graph, np.ndarray]:
    """Return a graph with many constants and results, and a placement whose sub-graphs wait for one another a lot."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(20, 90))
    edges = {(int(a), j) for j in range(n // 4, n) for a in rng.integers(0, j, 2)}
    read = {a for a, _ in edges}
    types = [
        str(rng.choice(["Parameter", "Constant"])) if i < n // 4 else "Add" if i in read else "Result" for i in range(n)
    ]
    lasting = np.repeat(rng.integers(0, 3, n), rng.integers(1, 6, n))[:n]
    return graph_of(n, edges, types=types), lasting.astype(np.int32)


def assert_equal_cuts(graph: Graph, node: np.ndarray | None, device: np.ndarray) -> None:
    plain, compiled = plain_subgraphs.Cutter.of(graph), Cutter.of(graph, node)
    assert compiled.split(device).group.tolist() == plain.split(device).group.tolist()
    assert compiled.count_by_device(device, 3).tolist() == plain.count_by_device(device, 3).tolist()


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_cycles_among_sub_graphs_break_as_the_reference_breaks_them(seed: int) -> None:
    graph, device = dense(seed)
    assert_equal_cuts(graph, None, device)


@settings(deadline=None)
@given(graphs(min_n=1), st.integers(0, 2**16), st.booleans())
def test_any_graph_is_cut_as_the_reference_cuts_it(graph: Graph, seed: int, mostly_one: bool) -> None:
    rng = np.random.default_rng(seed)
    device = rng.integers(0, 3, graph.n) * (rng.random(graph.n) < (0.2 if mostly_one else 1))
    assert_equal_cuts(graph, None, device.astype(np.int32))


@settings(deadline=None)
@given(grouped_graphs(min_n=1, max_n=20), st.integers(0, 2**16))
def test_operations_that_stay_together_may_be_joined_beforehand(case: tuple[Graph, Grouping], seed: int) -> None:
    graph, grouping = case
    device = np.random.default_rng(seed).integers(0, 3, grouping.k).astype(np.int32)
    assert_equal_cuts(graph, grouping.group, device[grouping.group])
