"""Without pymetis: who takes its place, that it is said, that keys tell, and who refuses instead."""

from __future__ import annotations

import itertools
import logging
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarsen.heavy_edge import HeavyEdge
from coarsen.metis import Metis
from pipeline.bench.methods import BenchMethod, versions_of
from pipeline.core.errors import MissingPackageError
from pipeline.core.graph import Graph, Grouping
from pipeline.core.problem import Budget
from pipeline.result.notes import partition_notes
from pipeline.shared import partition
from pipeline.shared.partition import even_parts, has_metis
from pipeline.store.store import Entry
from pipeline.store.task import Outcome
from pipeline.testing.problems import ignore_progress
from pipeline.testing.simulated import simulator_of, wide_problem
from policy.place.base.search import Search
from policy.place.local.packings import packings
from policy.place.portfolio import Portfolio
from policy.place.rules.metis import Metis as MetisPlacer
from tests.strategies import graph_of, graphs
from tests.unit.pipeline.stages.test_keys import tasks
from tests.unit.policy.place.local.test_packings import braided, searched


@pytest.fixture(scope="module", autouse=True)
def no_metis() -> object:
    """Let Python find no pymetis, in every test of this file."""
    patch = pytest.MonkeyPatch()
    patch.setitem(sys.modules, "pymetis", None)
    yield
    patch.undo()
    partition.tell_once.cache_clear()


@pytest.fixture(autouse=True)
def untold() -> None:
    """Let everything be told once more."""
    partition.tell_once.cache_clear()


def even(graph: Graph, parts: int) -> list[int]:
    weight = np.ones(graph.n)
    return even_parts(graph, parts, node_weight=weight, edge_weight=weight[: graph.m], balance=1.05, seed=0).tolist()


def test_it_is_not_there() -> None:
    assert not has_metis()


def test_a_chain_is_cut_as_often_as_it_must_be_and_evenly(caplog: pytest.LogCaptureFixture) -> None:
    chain = graph_of(12, [(i, i + 1) for i in range(11)])
    with caplog.at_level(logging.WARNING):
        part = even(chain, 3)
        even(chain, 4)
    assert np.bincount(part).tolist() == [4, 4, 4]
    assert sum(a != b for a, b in itertools.pairwise(part)) == 2
    assert [record.message for record in caplog.records] == [
        "pymetis is not installed: nodes are divided along an order of them instead of by METIS, which cuts more."
    ]


@given(graphs(min_n=1), st.integers(1, 5))
def test_parts_are_numbered_from_nought_and_none_holds_a_node_more_than_its_share(graph: Graph, parts: int) -> None:
    part = even(graph, parts)
    sizes = np.bincount(part)
    assert len(part) == graph.n
    assert sizes.min() > 0
    assert len(sizes) <= max(parts, 1) or parts >= graph.n
    assert sizes.max() <= graph.n / parts + 1


def test_the_coarsener_is_heavy_edges_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    graph = graph_of(12, [(i, i + 1) for i in range(11)], out_bytes=[8] * 12)
    with caplog.at_level(logging.WARNING):
        found = Metis(parts=4, acyclic=True).coarsen(graph, seed=3)
    assert found.group.tolist() == HeavyEdge(parts=4).coarsen(graph, seed=3).group.tolist()
    assert "using coarsen.heavy_edge instead of coarsen.metis" in caplog.text


def test_the_grouper_and_the_packings_go_on() -> None:
    from policy.group.metis import Metis as MetisGrouper

    problem = braided(90)
    grouping: Grouping = MetisGrouper(parts=3).build(1, seed=0)._partition(problem.graph)
    assert grouping.k == 3
    search = searched(problem)
    assert search.simulate(np.stack(list(packings(search)))).over_bytes.min() == 0


def test_the_portfolio_leaves_the_placer_out_which_alone_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    problem = wide_problem()
    simulator = simulator_of(problem, "T2")
    with caplog.at_level(logging.WARNING):
        answer = Portfolio().place(problem, simulator, Budget(100), seed=0, progress=ignore_progress)
    assert answer.candidates
    assert "portfolio leaves the placer metis out" in caplog.text
    with pytest.raises(MissingPackageError, match="pip install pymetis"):
        MetisPlacer().run(Search(problem, simulator_of(problem, "T2"), Budget(10), ignore_progress), seed=0)


def test_keys_tell_what_was_made_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    without, cell = tasks(coarsen__use=("metis",)), versions_of(BenchMethod("heft", "heft"), MetisPlacer())
    monkeypatch.setattr("pipeline.stages.stage.has_metis", lambda: True)
    monkeypatch.setattr("pipeline.bench.methods.has_metis", lambda: True)
    there = tasks(coarsen__use=("metis",))
    differ = {stage for stage in there if there[stage].version != without[stage].version}
    assert differ == {"coarsen", "place"} | ({"group"} & set(there))
    assert there["read"].key == without["read"].key
    assert set(cell) - set(versions_of(BenchMethod("heft", "heft"), MetisPlacer())) == {"pymetis"}


@pytest.mark.parametrize(("use", "said"), [(("fold", "metis"), True), (("fold", "heavy_edge"), False)])
def test_the_result_says_who_took_its_place(use: tuple[str, ...], said: bool, tmp_path: Path) -> None:
    task = tasks(coarsen__use=use)["coarsen"]
    outcome = Outcome(task, Entry(tmp_path, "", {}, {}, {}), ran=True, why="", seconds=0.0)
    notes = partition_notes({"coarsen": outcome})
    assert notes == (
        ["pymetis, which coarsen.metis needs, is not installed: coarsen.heavy_edge was used instead."] if said else []
    )
