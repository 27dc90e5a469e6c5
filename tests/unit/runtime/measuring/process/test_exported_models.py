"""Models as exporters make them: read with the defaults, run with the inputs we make, and split."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from coarsen.reading.model.read import read_shaped, save_model, to_graph
from coarsen.reading.sizes.shapes import InputShapes
from pipeline.core.devices import Topology
from pipeline.core.graph import Graph, Grouping
from pipeline.core.measurement import Measurement
from pipeline.core.placement import Placement
from pipeline.core.stages import Subject
from pipeline.shared.model_inputs import make_inputs
from pipeline.shared.partition import colocation_grouping, join_groupings
from runtime.machines.devices import core_for
from runtime.measuring.contest.hetero import Hetero
from runtime.measuring.process.affinity import (
    HETERO_PROPERTIES,
    affinities_of,
    hetero_target,
    normalise_placement,
    set_affinities,
)
from tests.exported_models import EXPORTED
from tests.slow import slow_but
from tests.two_cpus import two_cpus

SIZES = {
    "dynamic_batch_cnn": ["[1,3,48,48]"],
    "scalar_bounds": ["[1,256]", "[]", "[]"],
    "detector": ["[1,3,224,224]"],
    "text_detector": ["[1,3,224,224]"],
    "text_recogniser": ["[1,3,48,320]"],
    "branching": ["[1,3,32,32]"],
    "looping": ["[1,32]"],
    "lstm_states_as_inputs": ["[1,128,8]", "[1,1,16]", "[1,1,16]"],
    "lstm_with_state": ["[1,128,8]"],
    "nms_detector": ["[1,3,64,64]"],
    "uint8_images": ["[1,224,224,3]"],
    "text_classifier": ["[1,64]"] * 3,  # as many as there are positions
    "qdq_cnn": ["[1,3,64,64]"],
    "fake_quantised_cnn": ["[1,3,64,64]"],
    "fp16_weights": ["[1,3,64,64]"],
    "fp16_cnn": ["[1,3,48,48]"],
    "topk_classifier": ["[1,3,32,32]"],
    "two_sequences": ["[1,128,20]", "[1,128]"],
}


@cache
def read(name: str, folder: Path) -> tuple[ov.Model, Graph]:
    model, _ = read_shaped(EXPORTED[name](folder), InputShapes())
    return model, to_graph(model, source="0" * 64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exported")


def splits(graph: Graph) -> Iterator[Placement]:
    """Yield placements on two devices that keep to the colocation, cut at three places."""
    group = join_groupings(Grouping.identity(graph.n), colocation_grouping(graph)).group
    _, first = np.unique(group, return_index=True)
    for cut in (graph.n // 2, graph.n // 4, 3 * graph.n // 4):
        placement = normalise_placement(graph, Placement((first[group] >= cut).astype(np.int32), ("A", "B")))
        if len(placement.devices_used) > 1:
            yield placement


def outputs(compiled: ov.CompiledModel, model: ov.Model) -> list[np.ndarray]:
    request = compiled.create_infer_request()
    made = make_inputs(model, seed=0, dynamic_size=8)
    for port, array in zip(compiled.inputs, made.values(), strict=True):
        request.set_tensor(port, ov.Tensor(array))
    request.infer()
    return [np.array(tensor.data) for tensor in request.output_tensors]


def test_every_model_has_its_sizes_told() -> None:
    assert set(SIZES) == set(EXPORTED)


@pytest.mark.parametrize("name", EXPORTED)
def test_inputs_get_the_sizes_that_the_model_bears(name: str, folder: Path) -> None:
    model, _ = read(name, folder)
    assert [str(port.get_partial_shape()) for port in model.inputs] == SIZES[name]


@pytest.mark.parametrize("name", EXPORTED)
def test_a_split_gives_the_outputs_of_the_whole(name: str, folder: Path) -> None:
    model, graph = read(name, folder)
    core = core_for(two_cpus())
    whole = outputs(core.compile_model(model, two_cpus()[0].openvino_name), model)
    ran = 0
    for placement in splits(graph):
        placed = model.clone()
        set_affinities(placed, affinities_of(graph, placement, two_cpus()))
        compiled = core.compile_model(placed, hetero_target(two_cpus()), dict(HETERO_PROPERTIES))
        assert compiled.get_property("HETERO_NUMBER_OF_SUBMODELS") > 1
        for found, expected in zip(outputs(compiled, model), whole, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
        ran += 1
    assert ran > 0


@pytest.mark.parametrize("name", EXPORTED)
def test_no_split_of_a_dynamic_model_cuts_a_dynamic_tensor(name: str, folder: Path) -> None:
    model, _ = read_shaped(EXPORTED[name](folder), InputShapes(keep_dynamic=True))
    graph = to_graph(model, source="0" * 64)
    group = dict(
        zip(
            graph.names,
            join_groupings(Grouping.identity(graph.n), colocation_grouping(graph)).group.tolist(),
            strict=True,
        )
    )
    joined = [
        (out.get_node().get_friendly_name(), reader.get_node().get_friendly_name())
        for operation in model.get_ordered_ops()
        for out in operation.outputs()
        if out.get_partial_shape().is_dynamic
        for reader in out.get_target_inputs()
    ]
    assert joined or all(port.get_partial_shape().is_static for port in model.inputs)
    assert all(group[a] == group[b] for a, b in joined)


@pytest.mark.parametrize("name", slow_but(sorted(EXPORTED, key=lambda n: n != "text_recogniser"), quick=1))
def test_a_split_is_measured(name: str, folder: Path, tmp_path: Path) -> None:
    model, graph = read(name, folder)
    save_model(model, tmp_path / "model.xml")
    topology = Topology.uniform(two_cpus(), bytes_per_s=1e9, latency_s=1e-5)
    subject = Subject(tmp_path / "model.xml", graph, Grouping.identity(graph.n), topology, None, 0)
    (found,) = Hetero(seconds=0.05).bind(subject).evaluate([next(splits(graph))])
    assert isinstance(found, Measurement)
    assert found.subgraphs > 1
