"""emit --to ovms-dag: what the pipeline describes, carried out here as the server does, gives the same outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import openvino as ov
import pytest
from pydantic import BaseModel, Field

from coarsen.reading.model.read import to_graph
from pipeline.core.errors import StoreError, UsageError
from pipeline.deploy.emit import emit
from pipeline.deploy.split import split
from pipeline.shared.model_inputs import make_inputs
from pipeline.shared.payload import read_json
from runtime import zoo
from tests.deployments import deployed, halves, write
from tests.models import dynamic, quantised, through_file, two_towers, with_if, with_state
from tests.two_cpus import two_cpus
from tests.unit.pipeline.deploy.test_emit import ModelEntry, one_cpu
from tests.unit.runtime.measuring.process.test_exported_models import splits

F32 = {"INFERENCE_PRECISION_HINT": "f32"}


class Source(BaseModel, extra="forbid"):
    """Where an input comes from; source: openvinotoolkit/model_server, src/schema.cpp, source_node_names."""

    node_name: str
    data_item: str


class Alias(BaseModel, extra="forbid"):
    """What later nodes call an output; source: as above, output_alias."""

    data_item: str
    alias: str


Joint = dict[str, Source]


class PipelineNode(BaseModel, extra="forbid", protected_namespaces=()):
    """A node; source: as above, node_config of a model."""

    name: str
    model_name: str
    type: Literal["DL model"]
    inputs: list[Joint] = Field(min_length=1)
    outputs: list[Alias] = Field(min_length=1)


class ServedPipeline(BaseModel, extra="forbid"):
    """A pipeline; source: as above, pipeline_config."""

    name: str
    inputs: list[str]
    nodes: list[PipelineNode]
    outputs: list[Joint]


class PipelineConfig(BaseModel, extra="forbid", protected_namespaces=()):
    """config.json with pipelines; source: as above."""

    model_config_list: list[ModelEntry]
    pipeline_config_list: list[ServedPipeline]


def emitted(run: Path, out: Path) -> PipelineConfig:
    """Return the config that is written for a run, held against the schema."""
    folder, written = emit(run, "ovms-dag", out)
    assert all(path.is_file() for path in written)
    text = (folder / "config.json").read_text(encoding="utf-8")
    config = PipelineConfig.model_validate_json(text, strict=True)
    assert all(len(joint) == 1 for node in config.pipeline_config_list[0].nodes for joint in node.inputs)
    return config


def compiled(config: PipelineConfig, out: Path) -> dict[str, ov.CompiledModel]:
    """Return {node: its model, compiled as its entry says}."""
    entries = {entry.config.name: entry.config for entry in config.model_config_list}
    found = {}
    for node in config.pipeline_config_list[0].nodes:
        entry = entries[node.model_name]
        version = out / entry.base_path / "1"
        assert sorted(path.name for path in version.iterdir()) == ["model.bin", "model.xml"]
        found[node.name] = ov.Core().compile_model(version / "model.xml", entry.target_device, entry.plugin_config)
    return found


def served(config: PipelineConfig, models: dict[str, ov.CompiledModel], request: dict[str, Any]) -> dict[str, Any]:
    """Return the outputs of a pipeline: as the server does, a node runs once all that it takes is there."""
    (pipeline,) = config.pipeline_config_list
    assert set(pipeline.inputs) == set(request)
    items = {("request", name): array for name, array in request.items()}
    waiting = list(pipeline.nodes)
    while waiting:
        ready = [n for n in waiting if all((s.node_name, s.data_item) in items for j in n.inputs for s in j.values())]
        assert ready, f"{[node.name for node in waiting]} wait for ever"
        for node in ready:
            feed = {name: items[s.node_name, s.data_item] for joint in node.inputs for name, s in joint.items()}
            given = models[node.name](feed)
            items |= {(node.name, alias.alias): given[alias.data_item] for alias in node.outputs}
            waiting.remove(node)
    joints = [pair for joint in pipeline.outputs for pair in joint.items()]
    return {label: items[s.node_name, s.data_item] for label, s in joints}


def only_name(port: Any) -> str:
    (name,) = port.get_names()  # a server that asks for any name of a port gets this one
    return str(name)


def check_joints(config: PipelineConfig, models: dict[str, ov.CompiledModel]) -> None:
    """Check that what is joined agrees in shape and precision, and that ports and nodes name one another."""
    gives = {(node, only_name(port)): port for node, model in models.items() for port in model.outputs}
    for node in config.pipeline_config_list[0].nodes:
        takes = {only_name(port): port for port in models[node.name].inputs}
        assert set(takes) == {name for joint in node.inputs for name in joint}
        assert {alias.data_item for alias in node.outputs} == {name for owner, name in gives if owner == node.name}
        for name, source in ((name, s) for joint in node.inputs for name, s in joint.items()):
            if source.node_name != "request":
                other = gives[source.node_name, source.data_item]
                assert takes[name].get_partial_shape() == other.get_partial_shape()
                assert takes[name].get_element_type() == other.get_element_type()


def bilstm() -> ov.Model:
    return zoo.build_model("bilstm-128")


MODELS = {
    "towers": lambda: two_towers(3),
    "if": with_if,
    "quantised": quantised,
    "dynamic": dynamic,
    "bilstm": bilstm,
}


def cut_in_half(model: ov.Model) -> dict[str, str]:
    """Return a placement of about half of the operations on each of two devices that parts no constraint."""
    graph = to_graph(model, source="", dynamic_cuts=True)
    found = next(splits(graph), None)
    if found is None:
        return dict.fromkeys(graph.names, "A")
    return dict(found.to_document(graph.names)["placement"])


@pytest.mark.parametrize("name", MODELS)
def test_the_pipeline_gives_the_outputs_of_the_model(name: str, tmp_path: Path) -> None:
    model = through_file(MODELS[name](), tmp_path)
    run = deployed(tmp_path / "run", model, two_cpus(), placement=cut_in_half(model), source="a model.onnx", requests=2)
    config = emitted(run, tmp_path / "out")
    models = compiled(config, tmp_path / "out")
    assert len(models) > 1 or name == "if"  # a body is one operation
    check_joints(config, models)
    feed = make_inputs(model, seed=0, dynamic_size=8)
    expected = ov.Core().compile_model(model, "CPU", F32)(feed)
    found = served(config, models, feed)
    assert {port.any_name for port in expected} == set(found)
    for port, array in expected.items():
        np.testing.assert_allclose(found[port.any_name], array, rtol=1e-4, atol=1e-5)  # other kernels
    assert {entry.config.nireq for entry in config.model_config_list} == {2}
    assert config.pipeline_config_list[0].name == "a_model"


def test_branches_on_two_devices_do_not_wait_for_one_another(tmp_path: Path) -> None:
    model = through_file(two_towers(3), tmp_path)
    names = [op.get_friendly_name() for op in model.get_ordered_ops()]
    run = deployed(
        tmp_path / "run", model, two_cpus(), placement={n: "B" if n.startswith("left") else "A" for n in names}
    )
    config = emitted(run, tmp_path / "out")
    nodes = config.pipeline_config_list[0].nodes
    first = [n for n in nodes if all(s.node_name == "request" for joint in n.inputs for s in joint.values())]
    assert len(first) == 2
    assert len(nodes) == 3


def test_the_segments_of_a_run_that_was_measured_in_segments_are_those_that_are_served(tmp_path: Path) -> None:
    model = through_file(two_towers(3), tmp_path)
    run = deployed(tmp_path / "run", model, two_cpus(), placement=halves(model), target="DATAFLOW:CPU_A,CPU_B")
    with pytest.raises(StoreError, match="cannot be read"):
        emit(run, "ovms-dag")
    manifest = split(run / "placed.xml", run / "placement.json", run / "split")
    document = read_json(run / "split" / "manifest.json")
    document["devices"]["A"]["properties"]["INFERENCE_NUM_THREADS"] = "2"  # which no other file says
    write(run / "split" / "manifest.json", document)
    config = emitted(run, tmp_path / "out")
    assert "2" in {(entry.config.plugin_config or {})["INFERENCE_NUM_THREADS"] for entry in config.model_config_list}
    assert [node.name for node in config.pipeline_config_list[0].nodes] == [s.id for s in manifest.segments]
    feed = make_inputs(model, seed=0, dynamic_size=8)
    found = served(config, compiled(config, tmp_path / "out"), feed)
    for port, array in ov.Core().compile_model(model, "CPU", F32)(feed).items():
        np.testing.assert_allclose(found[port.any_name], array, rtol=1e-4, atol=1e-5)  # other kernels


def test_two_named_devices_of_a_plugin_keep_their_properties(tmp_path: Path) -> None:
    model = through_file(two_towers(), tmp_path)
    devices = (*one_cpu(), *two_cpus()[1:])
    run = deployed(tmp_path / "run", model, devices, placement=halves(model))
    config = emitted(run, tmp_path / "out")
    assert {entry.config.target_device for entry in config.model_config_list} == {"CPU"}
    for entry in config.model_config_list:
        assert entry.config.plugin_config is not None
        assert entry.config.plugin_config["ENABLE_CPU_PINNING"] == "NO"  # else all segments share a core
        assert entry.config.plugin_config["INFERENCE_NUM_THREADS"] == "1"


def test_a_model_with_state_and_a_run_without_a_placement_are_refused(tmp_path: Path) -> None:
    model = through_file(with_state(), tmp_path)
    names = [op.get_friendly_name() for op in model.get_ordered_ops()]
    run = deployed(tmp_path / "state", model, one_cpu(), placement=dict.fromkeys(names, "A"), target="CPU_A")
    with pytest.raises(UsageError, match="keeps a state"):
        emit(run, "ovms-dag")
    run = deployed(tmp_path / "auto", two_towers(), two_cpus(), target="AUTO:CPU_A,CPU_B")
    with pytest.raises(UsageError, match="lets AUTO:CPU_A,CPU_B choose the devices"):
        emit(run, "ovms-dag", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_output_that_is_an_input_is_refused(tmp_path: Path) -> None:
    model = through_file(two_towers(), tmp_path)
    passed = ov.Model([*model.get_results(), ov.opset13.result(model.get_parameters()[0])], model.get_parameters())
    for i, result in enumerate(passed.get_results()):
        result.set_friendly_name(f"out{i}")
    run = deployed(tmp_path / "run", passed, two_cpus(), placement=halves(passed))
    with pytest.raises(UsageError, match="its output x is an input"):
        emit(run, "ovms-dag")
