"""What every registered coarsener promises."""

from __future__ import annotations

import dataclasses
import importlib.util
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import registry
from pipeline.core.graph import Graph, contract, is_acyclic
from pipeline.core.stages import Coarsener
from tests.strategies import graph_of, graphs

# Further parameters to try; a name that is missing here is tried with its defaults alone.
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "colocate": [{"rule": "released"}],
    "metis": [{"parts": 3}, {"parts": 4, "acyclic": True}, {"parts": 2, "weight": "bytes"}],
    "heavy_edge": [{"parts": 3}, {"parts": 2, "balance": 9.0}, {"parts": 3, "acyclic": False}],
}
NEEDS = {"metis": "pymetis"}


def _cases() -> list[Any]:
    cases = []
    for name in registry.table("coarsen"):
        needs = NEEDS.get(name)
        missing = needs is not None and importlib.util.find_spec(needs) is None
        marks = [pytest.mark.skip(reason=f"coarsen.{name} needs {needs}, which is not installed")] if missing else []
        for values in [{}, *VARIANTS.get(name, [])]:
            label = "-".join([name, *(f"{k}={v}" for k, v in values.items())])
            cases.append(pytest.param(name, values, id=label, marks=marks))
    return cases


every_coarsener = pytest.mark.parametrize(("name", "values"), _cases())


def readable_graphs(max_n: int = 12) -> st.SearchStrategy[Graph]:
    """Draw graphs as every coarsener may meet them: at least one kernel is known, as after a compilation."""
    return graphs(min_n=1, max_n=max_n).map(with_kernel)


def with_kernel(graph: Graph) -> Graph:
    kernel = graph.kernel.copy()
    kernel[0] = max(kernel[0], 0)
    return dataclasses.replace(graph, kernel=kernel)


@every_coarsener
@settings(max_examples=25)  # for each of a dozen parametrisations
@given(graph=readable_graphs(), seed=st.integers(0, 3))
def test_grouping_covers_the_graph_and_keeps_its_promises(
    name: str, values: dict[str, Any], graph: Graph, seed: int
) -> None:
    coarsener: Coarsener = registry.build("coarsen", name, values)
    grouping = coarsener.coarsen(graph, seed=seed)
    small = contract(graph, grouping)
    assert grouping.n == graph.n
    assert small.n == grouping.k
    assert small.flops.sum() == graph.flops.sum()
    assert small.weight_bytes.sum() == graph.weight_bytes.sum()
    assert not coarsener.acyclic or is_acyclic(small)
    again = registry.build("coarsen", name, values).coarsen(graph, seed=seed)
    assert np.array_equal(again.group, grouping.group)


@every_coarsener
@settings(max_examples=25)  # for each of a dozen parametrisations
@given(graph=readable_graphs(), seed=st.integers(0, 3))
def test_grouping_depends_on_neither_names_nor_units(
    name: str, values: dict[str, Any], graph: Graph, seed: int
) -> None:
    coarsener: Coarsener = registry.build("coarsen", name, values)
    other = dataclasses.replace(
        graph,
        names=tuple(reversed(graph.names)),
        flops=graph.flops * 1024,  # powers of two leave every quotient of floats as it was
        weight_bytes=graph.weight_bytes * 1024,
        out_bytes=graph.out_bytes * 1024,
        edge_bytes=graph.edge_bytes * 1024,
    )
    before, after = (coarsener.coarsen(g, seed=seed) for g in (graph, other))
    assert np.array_equal(before.group, after.group)


@every_coarsener
@pytest.mark.parametrize(
    "graph",
    [
        graph_of(1, [], kernel=[0]),
        graph_of(2, [], kernel=[0, 1]),
        graph_of(2, [(0, 1)], kernel=[0, 0]),
        graph_of(2, [(1, 0)], kernel=[0, -1], types=["MatMul", "Constant"], flops=[0, 0], out_bytes=[0, 0]),
        graph_of(9, [], kernel=[0] * 9),
        graph_of(9, [], kernel=[0] * 9, types=["Constant"] * 9),
        graph_of(40, [(0, i) for i in range(1, 40)], kernel=[0] * 40),
        graph_of(0, []),
    ],
    ids=["1 node", "2 nodes", "1 edge", "no cost", "no edges", "constants", "star", "empty"],
)
def test_smallest_graphs_are_grouped(name: str, values: dict[str, Any], graph: Graph) -> None:
    coarsener: Coarsener = registry.build("coarsen", name, values)
    grouping = coarsener.coarsen(graph, seed=0)
    assert grouping.n == graph.n
    assert not coarsener.acyclic or is_acyclic(contract(graph, grouping))


@every_coarsener
def test_global_random_state_stays_as_it_was(name: str, values: dict[str, Any]) -> None:
    graph = graph_of(40, [(i, i + 1) for i in range(39)], kernel=[i // 2 for i in range(40)])
    np.random.seed(1)  # noqa: NPY002
    random.seed(1)
    registry.build("coarsen", name, values).coarsen(graph, seed=5)
    drawn = np.random.random(), random.random()  # noqa: NPY002
    np.random.seed(1)  # noqa: NPY002
    random.seed(1)
    assert drawn == (np.random.random(), random.random())  # noqa: NPY002


@every_coarsener
def test_version_and_promise_are_stated(name: str, values: dict[str, Any]) -> None:
    coarsener: Coarsener = registry.build("coarsen", name, values)
    assert coarsener.version >= 1
    assert isinstance(coarsener.acyclic, bool)
    assert all(p.help for p in registry.parameters(type(coarsener)))
