"""Every registered coarsener keeps the promises of `pipeline.testing.coarseners`, on graphs that hypothesis draws."""

from __future__ import annotations

import dataclasses
import importlib.util
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.graph import Graph
from pipeline.settings import registry
from pipeline.testing import coarseners
from tests.strategies import graphs

# Further parameters to try; a name that is missing here is tried with its defaults alone.
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "colocate": [{"rule": "released"}],
    "metis": [{"parts": 3}, {"parts": 4, "acyclic": True}, {"parts": 2, "weight": "bytes"}],
    "heavy_edge": [{"parts": 3}, {"parts": 2, "balance": 9.0}, {"parts": 3, "acyclic": False}],
    "contraction": [{"parts": 3}, {"parts": 2, "acyclic": False}],
}
NEEDS = {"metis": "pymetis"}


def _cases() -> list[Any]:
    cases = []
    for name in registry.implementation_table("coarsen"):
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
def test_a_coarsener_keeps_its_promises(name: str, values: dict[str, Any]) -> None:
    coarseners.check_coarsener(registry.build_implementation("coarsen", name, values))


@every_coarsener
@settings(max_examples=25)  # for each of a dozen parametrisations
@given(graph=readable_graphs(), seed=st.integers(0, 3))
def test_grouping_covers_the_graph_and_keeps_its_promises(
    name: str, values: dict[str, Any], graph: Graph, seed: int
) -> None:
    coarseners.check_grouping(registry.build_implementation("coarsen", name, values), graph, seed=seed)


@every_coarsener
@settings(max_examples=25)  # for each of a dozen parametrisations
@given(graph=readable_graphs(), seed=st.integers(0, 3))
def test_grouping_depends_on_neither_names_nor_units(
    name: str, values: dict[str, Any], graph: Graph, seed: int
) -> None:
    coarseners.check_indifference(registry.build_implementation("coarsen", name, values), graph, seed=seed)
