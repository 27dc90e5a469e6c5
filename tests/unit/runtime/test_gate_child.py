"""The measuring child of a gate: with the runtimes that are here, and as old interpreters read it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from pipeline.core.measurement import MeasurementFailed
from pipeline.gate.environments import PROGRAM, look_at_environment, start_child
from pipeline.shared.checks import load_by_kind
from runtime.measuring.gate_child import plain_arrays
from runtime.measuring.process.child import Child, ChildError
from tests.models import two_towers, with_state
from tests.onnx_models import onnx_file


@pytest.fixture
def child() -> Iterator[Child]:
    with start_child(sys.executable) as started:
        yield started


def load(child: Child, model: Path, arrays: dict[str, Any], mode: str = "latency", **settings: str) -> dict[str, Any]:
    inputs = model.parent / "inputs.npz"
    np.savez(inputs, **{f"noise/{name}": array for name, array in arrays.items()})
    told: dict[str, Any] = child.ask(
        "load", model=str(model), inputs=str(inputs), device="CPU", settings=settings, mode=mode
    )
    return told


@pytest.fixture
def towers(tmp_path: Path) -> Path:
    ov.save_model(two_towers(), tmp_path / "model.xml", compress_to_fp16=False)
    return tmp_path / "model.xml"


def test_it_is_written_in_the_oldest_python_that_it_takes() -> None:
    ast.parse(PROGRAM.read_text(encoding="utf-8"), feature_version=(3, 9))
    imported = {
        name.partition(".")[0]
        for node in ast.walk(ast.parse(PROGRAM.read_text(encoding="utf-8")))
        for name in ([a.name for a in node.names] if isinstance(node, ast.Import) else [])
        + ([node.module or ""] if isinstance(node, ast.ImportFrom) else [])
    }
    assert imported - sys.stdlib_module_names == {"numpy", "openvino", "onnxruntime"}


def test_openvino_is_loaded_run_and_looked_into(child: Child, towers: Path, tmp_path: Path) -> None:
    begun = child.ask("begin", runtime="")
    assert (begun["runtime"], begun["version"], begun["fault"]) == ("openvino", ov.get_version(), "")
    x = np.random.default_rng(0).standard_normal((1, 8)).astype(np.float32)
    loaded = load(child, towers, {"x": x}, INFERENCE_PRECISION_HINT="f32")
    assert (loaded["precision"], loaded["devices"], loaded["requests"]) == ("f32", ["CPU"], 1)
    assert loaded["compile_bytes"] >= 10**6
    assert len(child.ask("run", seconds=0.0, minimum=5)["samples_s"]) == 5
    assert child.ask("outputs", path=str(tmp_path / "out.npz")) == {"names": ["out"], "left_out": []}
    expected = ov.compile_model(two_towers(), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(x)[0]
    with np.load(tmp_path / "out.npz") as outputs:
        np.testing.assert_allclose(outputs["noise/output_0"], expected, rtol=1e-5)
    kernels = {name: kernel for name, kernel, _, _ in child.ask("kernels")["kernels"]}
    assert "left0" in kernels
    graph = child.ask("graph")
    assert (graph["results"], sorted(graph["producers"]["sum"])) == (["sum"], ["left1.relu", "right1.relu"])
    child.ask("results", operations=["left0.relu", "nothing"], path=str(tmp_path / "results.npz"))
    with np.load(tmp_path / "results.npz") as results:
        assert results.files == ["left0.relu"]
        assert results["left0.relu"].min() >= 0


def test_throughput_runs_as_many_inferences_as_the_runtime_wants(child: Child, towers: Path) -> None:
    child.ask("begin", runtime="openvino")
    loaded = load(child, towers, {"x": np.ones((1, 8), np.float32)}, "throughput", NUM_STREAMS="2")
    assert loaded["requests"] == 2
    told = child.ask("run", seconds=0.01, minimum=3)
    assert len(told["samples_s"]) >= 6
    assert 0 < told["period_s"] <= max(told["samples_s"])


def test_a_state_begins_anew_with_every_inference(child: Child, tmp_path: Path) -> None:
    ov.save_model(with_state(), tmp_path / "model.xml", compress_to_fp16=False)
    child.ask("begin", runtime="openvino")
    load(child, tmp_path / "model.xml", {"x": np.ones((1, 4), np.float32)}, INFERENCE_PRECISION_HINT="f32")
    child.ask("run", seconds=0.0, minimum=3)
    child.ask("outputs", path=str(tmp_path / "out.npz"))
    with np.load(tmp_path / "out.npz") as outputs:
        np.testing.assert_allclose(outputs["noise/output_0"], 2 * np.tanh(1.0), rtol=1e-5)


def test_onnx_runtime_is_loaded_run_and_looked_into(child: Child, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    weight = onnx.numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w")
    model = onnx_file(tmp_path / "m.onnx", [onnx.helper.make_node("Conv", ["x", "w"], ["y"], name="conv")], [weight])
    assert child.ask("begin", runtime="onnxruntime")["runtime"] == "onnxruntime"
    x = {"another name": np.ones((1, 3, 8, 8), np.float32)}  # there is one input: its place says which
    assert load(child, model, x, intra_op_num_threads="1")["devices"] == ["CPUExecutionProvider"]
    assert len(child.ask("run", seconds=0.0, minimum=4)["samples_s"]) == 4
    assert "Conv" in " ".join(kernel for _, kernel, _, _ in child.ask("kernels")["kernels"])
    assert load(child, model, x, "throughput")["requests"] >= 1
    assert child.ask("run", seconds=0.0, minimum=2)["period_s"] > 0


def test_strings_and_maps_of_onnx_runtime_are_arrays(child: Child, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    helper, types = onnx.helper, onnx.TensorProto
    labels = {"keys_int64s": [0, 1, 2], "values_strings": ["cat", "h\u00e4re", "ox"]}
    nodes = [
        helper.make_node("ArgMax", ["x"], ["id"], axis=1, keepdims=0),
        helper.make_node("LabelEncoder", ["id"], ["label"], domain="ai.onnx.ml", **labels),
        helper.make_node("ZipMap", ["x"], ["zipped"], domain="ai.onnx.ml", classlabels_strings=["cat", "hare", "ox"]),
        helper.make_node("SplitToSequence", ["x"], ["listed"], axis=0),
    ]
    zipped = helper.make_sequence_type_proto(
        helper.make_map_type_proto(types.STRING, helper.make_tensor_type_proto(types.FLOAT, None))
    )
    listed = helper.make_sequence_type_proto(helper.make_tensor_type_proto(types.FLOAT, None))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", types.FLOAT, [2, 3])],
        [
            helper.make_tensor_value_info("label", types.STRING, [2]),
            helper.make_value_info("zipped", zipped),
            helper.make_value_info("listed", listed),
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    child.ask("begin", runtime="onnxruntime")
    x = np.array([[0.0, 2.0, 1.0], [3.0, 0.5, 1.0]], np.float32)
    load(child, tmp_path / "m.onnx", {"x": x})
    names = ["label", "zipped (keys)", "zipped (values)", "listed[0]", "listed[1]"]
    assert child.ask("outputs", path=str(tmp_path / "out.npz")) == {"names": names, "left_out": []}
    found = load_by_kind(tmp_path / "out.npz")["noise"]
    assert found["output_0"].tolist() == ["h\u00e4re".encode(), b"cat"]
    assert found["output_1"].tolist() == [[b"cat", b"hare", b"ox"]] * 2
    np.testing.assert_array_equal(found["output_2"], x)
    np.testing.assert_array_equal(found["output_4"], x[1:])


def test_what_no_array_holds_is_left_out() -> None:
    assert plain_arrays("sparse", object()) == [("sparse", None)]
    assert plain_arrays("objects", np.array([1, "a"], object)) == [("objects", None)]


@pytest.mark.parametrize("quantised", [False, True])
def test_onnx_runtime_tells_precisions_as_openvino_does(child: Child, tmp_path: Path, quantised: bool) -> None:
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    nodes = [onnx.helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], name="quantise")]
    nodes += [onnx.helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"])]
    halves = [onnx.helper.make_node("Cast", ["x"], ["h"], name="cast", to=onnx.TensorProto.FLOAT16)]
    halves += [onnx.helper.make_node("Cast", ["h"], ["y"], to=onnx.TensorProto.FLOAT)]
    arrays = [("scale", np.float32(0.1)), ("zero", np.uint8(0))]
    constants = [onnx.numpy_helper.from_array(np.array(array), name) for name, array in arrays if quantised]
    model = onnx_file(tmp_path / "m.onnx", nodes if quantised else halves, constants)
    child.ask("begin", runtime="onnxruntime")
    load(child, model, {"x": np.ones((1, 3, 8, 8), np.float32)}, graph_optimization_level="ORT_DISABLE_ALL")
    told = {precision for _, _, precision, _ in child.ask("kernels")["kernels"]}
    assert ({"u8", "f32"} if quantised else {"f16", "f32"}) <= told


def test_a_model_without_inputs_has_outputs_all_the_same(child: Child, tmp_path: Path) -> None:
    constant = ov.opset13.constant(np.arange(3, dtype=np.float32))
    model = ov.Model([ov.opset13.relu(constant).output(0)], [])
    ov.save_model(model, tmp_path / "model.xml", compress_to_fp16=False)
    child.ask("begin", runtime="openvino")
    load(child, tmp_path / "model.xml", {})
    assert len(child.ask("outputs", path=str(tmp_path / "out.npz"))["names"]) == 1
    assert load_by_kind(tmp_path / "out.npz")["alone"]["output_0"].tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("arrays", "settings", "words"),
    [({}, {}, "it has 1 inputs"), ({"x": np.ones((1, 8), np.float32)}, {"NO_SUCH_KEY": "1"}, "NO_SUCH_KEY")],
)
def test_what_the_runtime_refuses_is_an_answer(
    child: Child, towers: Path, arrays: dict[str, Any], settings: dict[str, str], words: str
) -> None:
    child.ask("begin", runtime="openvino")
    with pytest.raises(ChildError) as caught:
        load(child, towers, arrays, **settings)
    assert isinstance(caught.value.failed, MeasurementFailed)
    assert caught.value.failed.kind == "refused"
    assert words in caught.value.failed.message


def test_this_environment_is_looked_at_by_default() -> None:
    found = look_at_environment(None, "")
    assert (found.python, found.runtime, found.version) == (sys.executable, "openvino", ov.get_version())


def test_a_package_that_shadows_the_runtime_in_the_working_directory_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "openvino.py").write_text("raise ImportError('shadowed')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert look_at_environment(None, "openvino").version == ov.get_version()
