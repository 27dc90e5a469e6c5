"""emit --to onnxruntime: every node of the ONNX file says where its operation was placed, and ONNX Runtime takes it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from coarsen.reading.model.files import model_sha256
from coarsen.reading.model.read import read_shaped
from coarsen.reading.sizes.shapes import InputShapes
from pipeline.core.errors import StoreError, UsageError
from pipeline.deploy.emit import emit
from pipeline.shared.model_inputs import make_inputs
from runtime.machines.devices import parse_devices
from runtime.measuring.outputs.tensor_names import producers_of_tensors
from tests.deployments import deployed, halves, write
from tests.exported_models import EXPORTED
from tests.models import through_file, two_towers
from tests.onnx_models import convolution_onnx
from tests.two_cpus import two_cpus
from tests.unit.pipeline.deploy.test_emit import executed, one_cpu, quick
from tests.unit.runtime.machines.test_devices import PLUGINS

ort = pytest.importorskip("onnxruntime")

TWO = ("GPU.1", "CPU")
SETTING = "session.layer_assignment_settings"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("onnx")


def placed_run(folder: Path, source: Path, placement: Mapping[str, str] | None = None, devices: Any = None) -> Path:
    """Write a run of an ONNX file, half of it on a GPU unless placed otherwise; return its folder."""
    model, _ = read_shaped(source, InputShapes())
    known = devices or parse_devices([",".join(TWO)], PLUGINS)
    place = dict(placement or halves(model, TWO))
    return deployed(folder, model, known, placement=place, source=str(source), sha256=model_sha256(source))


def small_onnx(path: Path) -> Path:
    """Write a small network whose nodes have names of their own: ONNX Runtime refuses equal ones."""
    model = onnx.load(convolution_onnx(path))
    for i, node in enumerate(model.graph.node):
        node.name = f"node{i}"
    onnx.save(model, path)
    return path


def annotation(node: Any) -> str:
    """Return the annotation of a node, "" if it has none."""
    return next((prop.value for prop in node.metadata_props if prop.key == "layer_ann"), "")


def annotations(path: Path) -> dict[str, str]:
    """Return {a node's first output: its annotation}."""
    return {node.output[0]: annotation(node) for node in onnx.load(path, load_external_data=False).graph.node}


def outputs(path: Path, feed: Mapping[str, Any], config: Mapping[str, str]) -> tuple[list[Any], dict[str, set[str]]]:
    """Return what ONNX Runtime gives, and {provider: names of its nodes} as its session tells it."""
    options = ort.SessionOptions()
    options.log_severity_level = 4  # there is no GPU here, which it would say of every rule
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    for key, value in {**config, "session.record_ep_graph_assignment_info": "1"}.items():
        options.add_session_config_entry(key, value)
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    told: dict[str, set[str]] = {}
    for assigned in session.get_provider_graph_assignment_info():
        told.setdefault(assigned.ep_name, set()).update(node.name for node in assigned.get_nodes())
    return session.run(None, dict(feed)), told


@pytest.mark.parametrize("name", sorted(EXPORTED))
def test_every_node_is_annotated_and_the_outputs_stay(name: str, folder: Path, tmp_path: Path) -> None:
    source = EXPORTED[name](folder)
    if source.suffix != ".onnx":
        pytest.skip("not of ONNX")
    run = placed_run(tmp_path / "run", source)
    out, written = emit(run, "onnxruntime")
    assert [path.name for path in written[:3]] == ["run.py", "session.json", "model.onnx"]
    placement = json.loads((run / "placement.json").read_text(encoding="utf-8"))["placement"]
    gives, said = producers_of_tensors(run / "placed.xml"), annotations(out / "model.onnx")
    assert all(said[tensor] == placement[gives[tensor]] for tensor in said if tensor in gives)
    assert set(said.values()) == set(TWO)  # none is left without
    model, _ = read_shaped(source, InputShapes())
    feed = make_inputs(model, seed=0, dynamic_size=8)
    config = json.loads((out / "session.json").read_text(encoding="utf-8"))["config"]
    assert config == {SETTING: "gpu(=GPU.1); cpu(=CPU)"}
    found, told = outputs(out / "model.onnx", feed, config)
    expected, plain = outputs(source, feed, {})
    assert told == plain
    assert set(told) == {"CPUExecutionProvider"}  # the other one is not in this wheel
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", ["branching", "looping"])
def test_a_body_runs_where_its_node_does(name: str, folder: Path, tmp_path: Path) -> None:
    out, _ = emit(placed_run(tmp_path / "run", EXPORTED[name](folder)), "onnxruntime")
    owners = [node for node in onnx.load(out / "model.onnx").graph.node if any(a.HasField("g") for a in node.attribute)]
    inside = [(node, inner) for node in owners for a in node.attribute for inner in a.g.node]
    assert inside
    assert all(annotation(inner) == annotation(node) != "" for node, inner in inside)


def test_the_option_is_read_by_this_onnx_runtime(tmp_path: Path) -> None:
    """Otherwise the tests above would hold for any text."""
    out, _ = emit(placed_run(tmp_path / "run", small_onnx(tmp_path / "c.onnx")), "onnxruntime")
    with pytest.raises(Exception, match="Invalid layering config"):
        outputs(out / "model.onnx", {}, {SETTING: "gpu(=GPU.1"})


def test_folded_arithmetic_follows_what_reads_it_and_what_is_read_by_none_its_producer(tmp_path: Path) -> None:
    source = small_onnx(tmp_path / "c.onnx")
    model, _ = read_shaped(source, InputShapes())
    order = [op.get_friendly_name() for op in model.get_ordered_ops()]
    gives = {t: op.get_friendly_name() for op in model.get_ordered_ops() for o in op.outputs() for t in o.get_names()}
    first = order.index(gives["r"])
    placement = {op: "GPU.1" if i <= first else "CPU" for i, op in enumerate(order)}
    assert "s" not in gives  # the shape and what is made of it are constants by now
    said = annotations(emit(placed_run(tmp_path / "run", source, placement), "onnxruntime")[0] / "model.onnx")
    assert said == {
        **{"c": "GPU.1", "r": "GPU.1"},
        **dict.fromkeys(("s", "rows", "target", "flat", "n", "y"), "CPU"),
    }


def test_a_run_on_one_device_names_it_and_its_threads(tmp_path: Path) -> None:
    source = small_onnx(tmp_path / "c.onnx")
    model, _ = read_shaped(source, InputShapes())
    placement = dict.fromkeys([op.get_friendly_name() for op in model.get_ordered_ops()], "A")
    out, _ = emit(placed_run(tmp_path / "run", source, placement, one_cpu()), "onnxruntime")
    session = json.loads((out / "session.json").read_text(encoding="utf-8"))
    assert session == {
        "config": {SETTING: "cpu(=A)"},
        "options": {"intra_op_num_threads": 1},
        "providers": [],
        "measured_shapes": {"x": [1, 3, 8, 8]},
    }


def test_the_program_runs_the_model_and_says_where(tmp_path: Path) -> None:
    source = small_onnx(tmp_path / "c.onnx")
    out, _ = emit(placed_run(tmp_path / "run", source), "onnxruntime", tmp_path / "out")
    quick(out / "run.py")
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "in.npz", x=x)
    said = executed([sys.executable, str(out / "run.py"), "in.npz", "out.npz"], tmp_path)
    assert "nodes: CPUExecutionProvider " in said
    assert "median latency" in said
    with np.load(tmp_path / "out.npz") as found:
        np.testing.assert_allclose(found["output_0"], outputs(source, {"x": x}, {})[0][0], rtol=1e-5, atol=1e-6)


def test_external_data_comes_along(tmp_path: Path) -> None:
    small_onnx(tmp_path / "c.onnx")
    source = tmp_path / "split" / "c.onnx"
    source.parent.mkdir()
    onnx.save_model(
        onnx.load(tmp_path / "c.onnx"), source, save_as_external_data=True, location="c.weights", size_threshold=100
    )
    out, written = emit(placed_run(tmp_path / "run", source), "onnxruntime", tmp_path / "out")
    assert out / "c.weights" in written
    feed = {"x": np.ones((1, 3, 8, 8), np.float32)}
    np.testing.assert_array_equal(outputs(out / "model.onnx", feed, {})[0][0], outputs(source, feed, {})[0][0])


def test_what_onnx_runtime_cannot_have_is_refused(tmp_path: Path) -> None:
    source = small_onnx(tmp_path / "c.onnx")
    model, _ = read_shaped(source, InputShapes())
    twins = placed_run(tmp_path / "twins", source, halves(model), two_cpus())
    with pytest.raises(UsageError, match="ONNX Runtime cannot distinguish"):
        emit(twins, "onnxruntime")
    towers = through_file(two_towers(), tmp_path)
    with pytest.raises(UsageError, match=r"towers\.xml, which is not an ONNX file"):
        emit(deployed(tmp_path / "ir", towers, one_cpu(), source="some/towers.xml"), "onnxruntime")
    run = placed_run(tmp_path / "run", source)
    document = json.loads((run / "placement.json").read_text(encoding="utf-8"))
    write(run / "placement.json", {**document, "placement": {}, "target": "AUTO:GPU.1,CPU"})
    with pytest.raises(UsageError, match=r"lets AUTO:GPU\.1,CPU choose the devices"):
        emit(run, "onnxruntime")
    write(run / "placement.json", document)
    source.write_bytes(source.read_bytes() + b"\x00\x00")
    with pytest.raises(StoreError, match="has changed since"):
        emit(run, "onnxruntime")
    source.unlink()
    with pytest.raises(StoreError, match="is missing"):
        emit(run, "onnxruntime")
    assert not (run / "emit").exists()
