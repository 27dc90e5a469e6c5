"""No placement that keeps to the colocation loses int8."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coarsen.reading.model.read import read_shaped, to_graph
from coarsen.reading.sizes.shapes import InputShapes
from pipeline.core.graph import Graph, Grouping
from pipeline.core.placement import Placement
from pipeline.shared.partition import colocation_grouping, join_groupings
from runtime.machines.devices import core_for
from runtime.measuring.process.affinity import HETERO_PROPERTIES, affinities_of, hetero_target, set_affinities
from runtime.measuring.process.kernels import int8_kernels
from tests.exported_models import EXPORTED
from tests.two_cpus import two_cpus

CONVOLUTIONS = 3


@cache
def read(name: str, folder: Path) -> tuple[ov.Model, Graph]:
    model, _ = read_shaped(EXPORTED[name](folder), InputShapes())
    return model, to_graph(model, source="0" * 64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("int8")


def kernels_of(model: ov.Model, graph: Graph, device: np.ndarray[tuple[int], np.dtype[np.int32]]) -> list[str]:
    """Return the int8 kernels of a model placed on two CPUs, device: int32 [n]."""
    placed = model.clone()
    set_affinities(placed, affinities_of(graph, Placement(device, ("A", "B")), two_cpus()))
    core = core_for(two_cpus())
    return int8_kernels(core.compile_model(placed, hetero_target(two_cpus()), dict(HETERO_PROPERTIES)))


def after(graph: Graph, name: str) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Return a placement that is cut behind one operation, whatever the colocation says."""
    return (np.arange(graph.n) > graph.names.index(name)).astype(np.int32)


@pytest.mark.parametrize("name", ["qdq_cnn", "fake_quantised_cnn"])
@settings(max_examples=8, deadline=None, derandomize=True)
@given(data=st.data())
def test_splits_keep_the_int8_kernels_of_the_whole(name: str, folder: Path, data: st.DataObject) -> None:
    model, graph = read(name, folder)
    grouping = join_groupings(Grouping.identity(graph.n), colocation_grouping(graph))
    seed, share = data.draw(st.integers(0, 2**32 - 1)), data.draw(st.sampled_from((0.1, 0.5)))
    device = (np.random.default_rng(seed).random(grouping.k) < share).astype(np.int32)  # of the groups
    assert len(kernels_of(model, graph, device[grouping.group])) == CONVOLUTIONS


def test_the_cpu_runs_both_models_in_int8(folder: Path) -> None:
    for name in ("qdq_cnn", "fake_quantised_cnn"):
        compiled = core_for(two_cpus()).compile_model(read(name, folder)[0], two_cpus()[0].openvino_name)
        assert len(int8_kernels(compiled)) == CONVOLUTIONS


@pytest.mark.parametrize("kind", ["Convert", "Subtract", "Multiply"])
def test_a_cut_inside_a_dequantise_chain_would_lose_int8_and_is_ruled_out(kind: str, folder: Path) -> None:
    model, graph = read("qdq_cnn", folder)
    chain = {}  # of the second convolution's input: by type, the last wins
    for operation in model.get_ordered_ops():
        own = operation.get_friendly_name()
        if operation.get_type_name() == "FakeQuantize":
            chain = {}
        if own.startswith("/Conv_8"):
            break
        if list(operation.get_output_shape(0)) == [1, 16, 32, 32]:
            chain[operation.get_type_name()] = own
    reader = "/Conv_8/WithoutBiases"
    group = dict(
        zip(
            graph.names,
            join_groupings(Grouping.identity(graph.n), colocation_grouping(graph)).group.tolist(),
            strict=True,
        )
    )
    assert group[chain[kind]] == group[reader]
    if kind != "Convert":  # behind it the runtime finds its way back
        assert len(kernels_of(model, graph, after(graph, chain[kind]))) < CONVOLUTIONS
