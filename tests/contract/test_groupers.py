"""Every registered grouper keeps the promises of `pipeline.testing.groupers`, on graphs that hypothesis draws."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.graph import Graph, Grouping
from pipeline.core.learning import Grouper
from pipeline.settings.registry import build_implementation, implementation_table
from pipeline.testing import groupers
from tests.strategies import graphs, grouped_graphs

NAMES = sorted(implementation_table("group"))


def grouper(name: str) -> Grouper:
    return build_implementation("group", name)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", NAMES)
def test_a_grouper_keeps_its_promises(name: str):
    groupers.check_grouper(grouper(name))


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=25)
@given(graph=graphs(min_n=1), greedy=st.booleans(), seed=st.integers(0, 99))
def test_a_draw_groups_every_node_and_counts_its_own_probability(name: str, graph: Graph, greedy: bool, seed: int):
    groupers.check_draw(grouper(name), graph, seed=seed, greedy=greedy)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=25)
@given(drawn=grouped_graphs(min_n=1))
def test_a_cyclic_quotient_can_be_grouped(name: str, drawn: tuple[Graph, Grouping]):
    groupers.check_quotient(grouper(name), *drawn)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "identity"])
def test_a_large_graph_has_fewer_groups_than_nodes(name: str):
    assert groupers.draw_sample(grouper(name), groupers.LARGE, greedy=True).grouping.k < groupers.LARGE.n
