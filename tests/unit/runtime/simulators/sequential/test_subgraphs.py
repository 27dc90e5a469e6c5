"""The sub-graphs that we count are those that HETERO makes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from coarsen.fold import Fold
from pipeline.core.graph import Graph, Grouping
from pipeline.core.placement import Placement
from runtime.machines.devices import core_for
from runtime.measuring.process.affinity import (
    HETERO_PROPERTIES,
    affinities_of,
    hetero_target,
    normalise_placement,
    set_affinities,
)
from runtime.simulators.sequential.subgraphs import count_by_device, split
from tests import models
from tests.slow import slow_where
from tests.strategies import graph_of
from tests.two_cpus import NAMES, branchy, two_cpus, write


def split_of(graph: Graph, *device: int) -> list[int]:
    return split(graph, np.array(device, np.int32)).group.tolist()


def test_a_diamond_with_one_branch_elsewhere_is_three() -> None:
    # x -> a -> b (other device) -> d and a -> c -> d: a's sub-graph must not wait for b's.
    types = ["Parameter", "Relu", "Relu", "Relu", "Add", "Result"]
    graph = graph_of(6, [(0, 1), (1, 2), (1, 3), (2, 4), (3, 4), (4, 5)], types=types)
    assert split_of(graph, 0, 0, 1, 0, 0, 0) == [0, 0, 1, 0, 2, 2]
    assert count_by_device(graph, np.array([0, 0, 1, 0, 0, 0]), 2).tolist() == [2, 1]


def test_a_chain_is_cut_where_the_device_changes() -> None:
    graph = graph_of(6, [(i, i + 1) for i in range(5)], types=["Parameter", *["Relu"] * 4, "Result"])
    assert split_of(graph, 0, 0, 1, 1, 0, 0) == [0, 0, 1, 1, 2, 2]
    assert count_by_device(graph, np.array([0, 0, 1, 1, 0, 0]), 3).tolist() == [2, 1, 0]


def test_a_result_runs_where_its_producer_does() -> None:
    graph = graph_of(3, [(0, 1), (1, 2)], types=["Parameter", "Relu", "Result"])
    assert split_of(graph, 0, 0, 1) == [0, 0, 0]


def test_separate_strands_on_one_device_are_separate() -> None:
    graph = graph_of(4, [(0, 1), (2, 3)], types=["Parameter", "Relu"] * 2)
    assert split_of(graph, 0, 0, 0, 0) == [0, 0, 1, 1]


def test_a_constant_alone_on_its_device_is_no_sub_graph() -> None:
    graph = graph_of(3, [(0, 2), (1, 2)], types=["Parameter", "Constant", "Add"])
    assert count_by_device(graph, np.array([0, 1, 0]), 2).tolist() == [1, 0]


def test_what_unpacks_a_constant_is_one() -> None:
    graph = graph_of(4, [(0, 3), (1, 2), (2, 3)], types=["Parameter", "Constant", "Convert", "Add"])
    assert count_by_device(graph, np.array([0, 1, 1, 0]), 2).tolist() == [1, 1]


def test_sub_graphs_that_wait_for_one_another_through_a_shared_constant_are_cut() -> None:
    # Strands x -> a -> b and y -> c -> d; the constant joins a with d, and b and c share device 1 and a constant.
    types = ["Parameter", "Parameter", "Constant", "Constant", "Add", "Add", "Add", "Add"]
    edges = [(0, 4), (2, 4), (4, 5), (3, 5), (1, 6), (3, 6), (6, 7), (2, 7)]
    graph = graph_of(8, edges, types=types)
    parts = split(graph, np.array([0, 1, 0, 1, 0, 1, 1, 0], np.int32)).group
    assert not waits_for_itself(graph, parts)


def test_a_single_device_is_not_cut() -> None:
    graph = graph_of(4, [(0, 1), (2, 3)], types=["Parameter", "Relu"] * 2)
    assert count_by_device(graph, np.ones(4, np.int32), 3).tolist() == [0, 1, 0]


def waits_for_itself(graph: Graph, parts: np.ndarray) -> bool:
    """Return whether the sub-graphs have a cycle, by taking away again and again those that wait for none."""
    waiting = {(int(parts[a]), int(parts[b])) for a, b in graph.edges.T.tolist() if parts[a] != parts[b]}
    while waiting:
        heads = {b for _, b in waiting}
        left = {(a, b) for a, b in waiting if a in heads}
        if left == waiting:
            return True
        waiting = left
    return False


MODELS: dict[str, Callable[[], ov.Model]] = {
    "branchy": partial(branchy, 1),
    "branchy packed": partial(branchy, 2, packed=True),
    "two_towers": models.two_towers,
    "quantised": models.quantised,
    "dynamic": models.dynamic,
    "chain": partial(models.chain, 6),
}


@pytest.mark.parametrize("folded", [True, False], ids=["folded", "raw"])
@pytest.mark.parametrize("name", slow_where(MODELS, set(MODELS) - {"branchy", "two_towers", "quantised"}))
def test_the_count_is_heteros(name: str, folded: bool, tmp_path: Path) -> None:
    path, graph = write(MODELS[name](), tmp_path)
    grouping = Fold().coarsen(graph, seed=0) if folded else Grouping.identity(graph.n)
    core = core_for(two_cpus())
    rng = np.random.default_rng(7)
    ours, real = [], []
    for _ in range(5):
        placement = Placement(rng.integers(0, 2, grouping.k), NAMES).lift(grouping)
        model = core.read_model(path)
        set_affinities(model, affinities_of(graph, placement, two_cpus()))
        compiled = core.compile_model(model, hetero_target(two_cpus()), dict(HETERO_PROPERTIES))
        real.append(int(compiled.get_property("HETERO_NUMBER_OF_SUBMODELS")))
        settled = normalise_placement(graph, placement).device
        ours.append(int(count_by_device(graph, settled, 2).sum()))
        assert not waits_for_itself(graph, split(graph, settled).group)
    assert ours == real
    assert max(real) > 2


@pytest.mark.parametrize("name", ["branchy packed", "quantised"])
def test_the_count_is_heteros_for_weights_away_from_their_reader(name: str, tmp_path: Path) -> None:
    path, graph = write(MODELS[name](), tmp_path)
    core = core_for(two_cpus())
    rng = np.random.default_rng(13)  # draws placements that HETERO would cut further but for unpacked weights
    for _ in range(3):
        device = rng.integers(0, 2, graph.n)
        model = core.read_model(path)
        set_affinities(model, {name: ("CPU_A", "CPU_B")[d] for name, d in zip(graph.names, device, strict=True)})
        compiled = core.compile_model(model, hetero_target(two_cpus()), dict(HETERO_PROPERTIES))
        real = int(compiled.get_property("HETERO_NUMBER_OF_SUBMODELS"))
        assert int(count_by_device(graph, device, 2).sum()) == real
