"""What emit writes is run by the tool it is for, where that can be installed; else it keeps to the tool's schema."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import openvino as ov
import pytest
from pydantic import BaseModel

from coarsen.reading.model.files import model_sha256
from coarsen.reading.model.read import read_model, read_shaped
from coarsen.reading.sizes.shapes import InputShapes
from pipeline.core.devices import DeviceSpec
from pipeline.core.errors import StoreError, UnknownNameError, UsageError
from pipeline.deploy.emit import TARGETS, emit, for_compiling
from pipeline.deploy.rendering import cpp_literal, python_literal
from pipeline.result.deployment import Deployment
from runtime.machines.devices import discover_plugins, make_spec, parse_devices
from runtime.measuring.process.deploy import compile_placed
from tests.deployments import deployed, halves, write
from tests.models import chain, constant, dynamic, through_file, two_towers, with_state
from tests.openvino_calls import RecordingCore
from tests.slow import slow_but
from tests.two_cpus import two_cpus
from tests.unit.runtime.machines.test_devices import PLUGINS

PLAIN = ("benchmark-app", "ovms", "olive")
HEADERS = Path(ov.__file__).parent / "include"
LIBRARIES = Path(ov.__file__).parent / "libs"
AWKWARD = ('a "quoted" name', "back\\slash", "two\nlines", "größe ∑ 名", "tri??/graph", "{{ braces }} {% if %}", "'")


def one_cpu(**properties: str) -> tuple[DeviceSpec, ...]:
    """Return the named device A with these properties, one thread of the CPU in f32 unless told otherwise."""
    its = {"INFERENCE_NUM_THREADS": "1", "INFERENCE_PRECISION_HINT": "f32", **properties}
    return (make_spec("A", "CPU", its, discover_plugins()),)


def split_run(folder: Path, **more: Any) -> Path:
    """Write a run that splits two towers over A and B."""
    model = through_file(two_towers(2, width=16), folder)
    return deployed(folder / "run", model, two_cpus(), placement=halves(model), **more)


def executed(command: list[str], folder: Path) -> str:
    """Return what a command says, which must succeed."""
    found = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, "CI": "true"}
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def flat_model() -> ov.Model:
    """Return a model of one input x, float32 [1, 16]."""
    x = ov.opset13.parameter([1, 16], np.float32, name="x")
    x.output(0).set_names({"x"})
    return ov.Model([ov.opset13.relu(ov.opset13.exp(x))], [x], "flat")


def flat_onnx(path: Path, batch: int | str = 1) -> Path:
    """Write an ONNX file of one input x, float32 [batch, 16]."""
    x, y = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [batch, 16]) for n in "xy")
    nodes = [onnx.helper.make_node("Exp", ["x"], ["e"], "n0"), onnx.helper.make_node("Relu", ["e"], ["y"], "n1")]
    opset = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(onnx.helper.make_graph(nodes, "flat", [x], [y]), opset_imports=opset, ir_version=8)
    onnx.save(model, path)
    return path


def said_of_mistake(folder: Path, *arguments: str) -> str:
    """Return the one line that an emitted program says of a mistake, after which it ends."""
    found = subprocess.run(
        [sys.executable, str(folder / "run.py"), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "CI": "true"},
    )
    assert found.returncode == 2, found.stdout + found.stderr
    (line,) = found.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def quick(program: Path) -> None:
    """Let an emitted program measure for a moment only."""
    text = program.read_text(encoding="utf-8")
    assert "3.0" in text
    program.write_text(text.replace("3.0", "0.2"), encoding="utf-8")


@pytest.mark.parametrize(("target", "plain"), [("CPU_A", "CPU"), ("AUTO:CPU_A", "AUTO:CPU")])
def test_benchmark_app_runs_its_command_with_the_measured_settings(target: str, plain: str, tmp_path: Path) -> None:
    run = deployed(tmp_path / "run", two_towers(2, width=16), one_cpu(), target=target, requests=2)
    out, written = emit(run, "benchmark-app")
    assert out == run / "emit" / "benchmark-app"
    assert all(path.is_file() for path in written)
    words = shlex.split((out / "command.txt").read_text(encoding="utf-8"))
    assert words[:5] == ["benchmark_app", "-m", "model.xml", "-d", plain]
    assert words[words.index("-hint") :] == ["-hint", "none", "-nireq", "2", "-api", "async"]
    start = [sys.executable, "-c", "from openvino.tools.benchmark.main import main; main()"]
    said = executed([*start, *words[1:], "-t", "1"], out)
    assert "Throughput:" in said
    assert "INFERENCE_NUM_THREADS: 1" in said
    assert "INFERENCE_PRECISION_HINT: <Type: 'float32'>" in said


def test_a_numbered_device_in_auto_is_refused_for_benchmark_app_which_would_ignore_its_properties(
    tmp_path: Path,
) -> None:
    devices = parse_devices(["GPU.1,CPU"], PLUGINS)
    run = deployed(tmp_path / "run", two_towers(), devices, target="AUTO:GPU.1,CPU")
    with pytest.raises(UsageError, match=r"does not read the properties of GPU\.1 in AUTO:GPU\.1,CPU"):
        emit(run, "benchmark-app")
    assert emit(run, "ovms")[1]


def test_one_request_for_latency_is_measured_synchronously(tmp_path: Path) -> None:
    out, _ = emit(deployed(tmp_path / "run", two_towers(), one_cpu()), "benchmark-app", tmp_path / "out")
    assert (out / "command.txt").read_text(encoding="utf-8").endswith("-nireq 1 -api sync\n")


def test_a_named_device_becomes_its_plugin_with_all_properties(tmp_path: Path) -> None:
    device = parse_devices(["B=GPU.1{INFERENCE_NUM_THREADS=2}"], PLUGINS)
    run = deployed(tmp_path / "run", two_towers(), device, properties={"PERFORMANCE_HINT": "LATENCY"})
    plain = Deployment.load(run).plain("ovms")
    assert plain.target == "GPU.1"
    assert plain.properties == {}
    assert plain.devices["GPU.1"].items() >= {"INFERENCE_NUM_THREADS": "2", "PERFORMANCE_HINT": "LATENCY"}.items()
    assert "DEVICE_ID" not in plain.devices["GPU.1"]


def test_requests_that_are_computed_together_keep_the_size_of_a_batch(tmp_path: Path) -> None:
    device = (DeviceSpec("CPU", "CPU", "CPU", {"INFERENCE_NUM_THREADS": "1"}, "cpu"),)
    waits = {"AUTO_BATCH_TIMEOUT": "1"}
    run = deployed(tmp_path / "run", chain(2), device, target="BATCH:CPU(4)", properties=waits)
    plain = Deployment.load(run).plain("ovms")
    assert plain.target == "BATCH:CPU(4)"
    compiled = ov.Core().compile_model(chain(2), plain.target, for_compiling(plain))
    assert compiled.get_property("AUTO_BATCH_TIMEOUT") == "1"
    assert for_compiling(plain) == {**waits, "INFERENCE_NUM_THREADS": "1"}
    assert "BATCH:CPU(4)" in (emit(run, "ovms")[0] / "config.json").read_text(encoding="utf-8")
    for target in ("benchmark-app", "olive"):
        with pytest.raises(UsageError, match=r"does not know the device BATCH:CPU\(4\)"):
            emit(run, target)


def test_auto_over_different_plugins_keeps_its_order_and_their_properties(tmp_path: Path) -> None:
    devices = parse_devices(["A=GPU{INFERENCE_NUM_THREADS=2},CPU"], PLUGINS)
    target = "AUTO:" + ",".join(d.openvino_name for d in devices)
    run = deployed(tmp_path / "run", two_towers(), devices, target=target, properties={"LOG_LEVEL": "LOG_NONE"})
    found = Deployment.load(run).plain("ovms")
    assert found.target == "AUTO:GPU.0,CPU"
    assert found.properties == {"LOG_LEVEL": "LOG_NONE"}
    assert list(found.devices) == ["GPU.0", "CPU"]
    out, _ = emit(run, "olive")
    document = json.loads((out / "openvino.json").read_text(encoding="utf-8"))
    assert document["AUTO"] == {"LOG_LEVEL": "LOG_NONE"}
    assert document["GPU.0"]["INFERENCE_NUM_THREADS"] == "2"


def test_the_servers_properties_of_several_devices_are_in_words_that_openvino_reads(tmp_path: Path) -> None:
    devices = parse_devices(["A=CPU{INFERENCE_NUM_THREADS=1,INFERENCE_PRECISION_HINT=f32}"], discover_plugins())
    run = deployed(tmp_path / "run", two_towers(), devices, target="AUTO:CPU_A", properties={})
    out, _ = emit(run, "ovms", tmp_path / "out")
    entry = json.loads((out / "config.json").read_text(encoding="utf-8"))["model_config_list"][0]["config"]
    assert entry["target_device"] == "AUTO:CPU"
    model = ov.Core().read_model(out / entry["base_path"] / "1" / "model.xml")
    compiled = ov.Core().compile_model(model, entry["target_device"], entry["plugin_config"])
    assert compiled.get_property("DEVICE_PROPERTIES")["CPU"]["INFERENCE_NUM_THREADS"] == 1


class ModelConfig(BaseModel, extra="forbid", protected_namespaces=()):
    """A model of the server; source: openvinotoolkit/model_server, src/schema.cpp, model_config."""

    name: str
    base_path: str
    batch_size: int | str | None = None
    model_version_policy: dict[str, Any] | None = None
    shape: dict[str, Any] | str | None = None
    nireq: int | None = None
    target_device: str | None = None
    plugin_config: dict[str, str] | None = None  # the parser takes text of every property


class ModelEntry(BaseModel, extra="forbid", protected_namespaces=()):
    """An entry of the list of models."""

    config: ModelConfig


class ServerConfig(BaseModel, extra="forbid", protected_namespaces=()):
    """config.json of the server; source: as above."""

    model_config_list: list[ModelEntry]


def test_the_model_servers_config_keeps_to_its_schema_and_names_a_repository(tmp_path: Path) -> None:
    run = deployed(tmp_path / "run", two_towers(), one_cpu(), requests=4, source="some/Größe der 'Netze'.xml")
    out, _ = emit(run, "ovms", tmp_path / "out")
    document = json.loads((out / "config.json").read_text(encoding="utf-8"))
    ServerConfig.model_validate(document, strict=True)
    entry = document["model_config_list"][0]["config"]
    assert entry["name"] == "Gr_e_der_Netze"
    assert entry["nireq"] == 4
    assert entry["target_device"] == "CPU"
    version = out / entry["base_path"] / "1"
    assert sorted(p.name for p in version.iterdir()) == ["model.bin", "model.xml"]
    compiled = ov.Core().compile_model(version / "model.xml", entry["target_device"], entry["plugin_config"])
    assert compiled.get_property("INFERENCE_NUM_THREADS") == 1
    assert compiled.get_property("INFERENCE_PRECISION_HINT") == ov.Type.f32


def placed_outputs(run: Path, arrays: dict[str, Any]) -> list[Any]:
    """Return the outputs of the placed model as `Result.compile` compiles it."""
    document = json.loads((run / "placement.json").read_text(encoding="utf-8"))
    request = compile_placed(run / "placed.xml", document).create_infer_request()
    request.infer(arrays)
    return [np.array(t.data) for t in request.output_tensors]


@pytest.mark.parametrize(("target", "file"), [("python", "run.py"), ("cpp", "main.cpp")])
@pytest.mark.parametrize(("batch", "times"), [(1, 0), (16, 1)])
def test_a_program_counts_all_inferences_of_a_batch(
    target: str, file: str, batch: int, times: int, tmp_path: Path
) -> None:
    out, _ = emit(deployed(tmp_path / "run", two_towers(), one_cpu(), batch=batch), target)
    assert (out / file).read_text(encoding="utf-8").count("rate = 16 * ") == times


@pytest.mark.parametrize("requests", [1, 3])
def test_the_python_program_gives_the_outputs_of_the_placed_model(requests: int, tmp_path: Path) -> None:
    run = split_run(tmp_path, requests=requests, candidate=AWKWARD[0])
    out, written = emit(run, "python", tmp_path / "elsewhere" / "out")
    assert {p.name for p in written} == {"run.py", "model.xml", "model.bin", "affinities.json"}
    shutil.rmtree(run / "emit", ignore_errors=True)
    x = np.random.default_rng(1).standard_normal((1, 16)).astype(np.float32)
    np.savez(tmp_path / "in.npz", x=x)
    quick(out / "run.py")
    said = executed([sys.executable, str(out / "run.py"), "in.npz", "out.npz"], tmp_path)
    assert said.startswith('a "quoted" name: median latency ')
    assert said.endswith(" inferences per second\n")
    with np.load(tmp_path / "out.npz") as found:
        for i, expected in enumerate(placed_outputs(run, {"x": x})):
            np.testing.assert_array_equal(found[f"output_{i}"], expected)


def test_the_python_program_asks_of_openvino_what_the_placed_model_is_compiled_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = parse_devices(["B=GPU.1{INFERENCE_NUM_THREADS=1},CPU"], PLUGINS)  # which no test machine has
    model = through_file(two_towers(2, width=16), tmp_path)
    run = deployed(tmp_path / "run", model, devices, placement=halves(model, ("B", "CPU")))
    out, _ = emit(run, "python")
    monkeypatch.setattr(ov, "Core", RecordingCore)
    expected: Any = compile_placed(run / "placed.xml", json.loads((run / "placement.json").read_text(encoding="utf-8")))
    compiling = (out / "run.py").read_text(encoding="utf-8").split("ports = ")[0]
    monkeypatch.setattr(sys, "argv", ["run.py"])
    names: dict[str, Any] = {"__file__": str(out / "run.py")}
    exec(compiling, names)
    assert names["compiled"].calls == expected.calls
    assert {"GPU_B", "CPU"} == set(names["compiled"].calls[-1][-1].values())


@pytest.mark.parametrize("model", [with_state, dynamic])
def test_the_python_program_runs_models_with_state_and_with_open_dimensions(model: Any, tmp_path: Path) -> None:
    run = deployed(tmp_path / "run", model(), one_cpu(), requests=2)
    out, _ = emit(run, "python")
    assert not (out / "affinities.json").exists()
    quick(out / "run.py")
    assert "inferences per second" in executed([sys.executable, str(out / "run.py")], tmp_path)


def test_the_python_program_imports_openvino_and_numpy_alone(tmp_path: Path) -> None:
    out, _ = emit(split_run(tmp_path), "python")
    tree = ast.parse((out / "run.py").read_text(encoding="utf-8"))
    imports = {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    assert imports - set(sys.stdlib_module_names) == {"numpy", "openvino"}


def awkward_run(folder: Path) -> Path:
    """Write a run whose operations, candidate and properties have names that need escaping."""
    x = ov.opset13.parameter([1, 4], np.float32, name="x")
    value = x
    for i, name in enumerate(AWKWARD):
        value = ov.opset13.add(value, constant([float(i)], f"{name} c"), name=name)
    model = ov.Model([ov.opset13.result(value, name="out")], [x], "awkward")
    ov.serialize(model, folder / "model.xml")
    model = read_model(folder / "model.xml")
    return deployed(folder / "run", model, two_cpus(), placement=halves(model), candidate="".join(AWKWARD))


def test_names_with_quotes_and_the_like_reach_the_python_program_whole(tmp_path: Path) -> None:
    run = awkward_run(tmp_path)
    out, _ = emit(run, "python")
    quick(out / "run.py")
    said = executed([sys.executable, "-X", "utf8", str(out / "run.py")], tmp_path)
    assert said.startswith("".join(AWKWARD))


@pytest.mark.parametrize("text", AWKWARD)
def test_a_literal_stands_for_the_text(text: str) -> None:
    assert ast.literal_eval(python_literal(text)) == text
    literal = cpp_literal(text)
    assert literal.isascii()
    assert "\n" not in literal
    assert "??" not in literal
    assert ast.literal_eval(f"b{literal}".replace("\\?", "?")).decode() == text


def compiler() -> str:
    """Return the C++ compiler, or skip."""
    found = shutil.which("g++")
    if found is None or not HEADERS.is_dir():
        pytest.skip("no g++ here, or an OpenVINO without its headers")
    return found


@pytest.mark.parametrize("requests", slow_but([1, 2], quick=1))
def test_the_cpp_program_is_valid(requests: int, tmp_path: Path) -> None:
    run = awkward_run(tmp_path) if requests == 1 else deployed(tmp_path / "run", two_towers(), one_cpu(), requests=2)
    out, written = emit(run, "cpp")
    assert {p.name for p in written} == {"main.cpp", "CMakeLists.txt", "model.xml", "model.bin"}
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", f"-isystem{HEADERS}", "-fsyntax-only"]
    executed([compiler(), *flags, "main.cpp"], out)


def test_the_cpp_program_holds_the_device_of_every_operation(tmp_path: Path) -> None:
    run = split_run(tmp_path)
    out, _ = emit(run, "cpp")
    program = (out / "main.cpp").read_text(encoding="utf-8")
    affinities = Deployment.load(run).affinities
    assert set(affinities.values()) == {"CPU_A", "CPU_B"}
    assert all(f'{{ "{operation}", "{device}" }}' in program for operation, device in affinities.items())
    assert '{ "CPU_A", "openvino_intel_cpu_plugin", {' in program


@pytest.mark.slow
@pytest.mark.parametrize("requests", [1, 2])
def test_the_cpp_program_is_built_and_runs(requests: int, tmp_path: Path) -> None:
    out, _ = emit(split_run(tmp_path, requests=requests), "cpp")
    quick(out / "main.cpp")
    library = next(LIBRARIES.glob("libopenvino.so*"))
    linked = ["-o", "placed", "main.cpp", f"-isystem{HEADERS}", str(library), f"-Wl,-rpath,{LIBRARIES}"]
    executed([compiler(), "-std=c++17", *linked], out)
    assert "best: median latency " in executed([str(out / "placed")], out)
    missing = subprocess.run([str(out / "placed"), "none.xml"], cwd=out, capture_output=True, text=True, check=False)
    assert missing.returncode == 1
    assert missing.stderr.startswith("error: none.xml cannot be read. Give the path of the model")


class OliveWorkflow(BaseModel, extra="forbid", protected_namespaces=()):
    """The keys of an Olive workflow that are used; source: microsoft/Olive, olive/workflows/run/config.py."""

    input_model: dict[Literal["type", "model_path"], str]
    systems: dict[str, dict[str, Any]]
    evaluators: dict[str, dict[str, Any]]
    passes: dict[str, dict[str, Any]]
    evaluator: str
    evaluate_input_model: bool
    host: str
    target: str
    output_dir: str


def test_the_olive_workflow_refers_to_what_it_holds_and_lies_beside(tmp_path: Path) -> None:
    out, _ = emit(deployed(tmp_path / "run", two_towers(), one_cpu()), "olive", tmp_path / "out")
    document = json.loads((out / "workflow.json").read_text(encoding="utf-8"))
    OliveWorkflow.model_validate(document, strict=True)
    assert document["host"] in document["systems"]
    assert document["target"] in document["systems"]
    (metric,) = document["evaluators"][document["evaluator"]]["metrics"]
    settings = metric["user_config"]["inference_settings"]["onnx"]
    assert [len(settings[k]) for k in ("execution_provider", "provider_options")] == [1, 1]
    folder = out / document["input_model"]["model_path"]
    assert sorted(p.name for p in folder.iterdir()) == ["model.bin", "model.xml"]  # it wants one of each
    loaded = json.loads((out / settings["provider_options"][0]["load_config"]).read_text(encoding="utf-8"))
    assert loaded["CPU"]["INFERENCE_NUM_THREADS"] == "1"
    assert document["passes"]["encapsulate"]["target_device"] == "cpu"


@pytest.mark.parametrize("target", PLAIN)
def test_a_split_is_refused_where_it_cannot_be_expressed_and_nothing_is_written(target: str, tmp_path: Path) -> None:
    run = split_run(tmp_path)
    with pytest.raises(UsageError, match=f"over A, B, which {target} cannot express.*target python or cpp") as caught:
        emit(run, target, tmp_path / "out")
    assert caught.value.exit_code == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("target", PLAIN)
def test_two_named_devices_of_one_plugin_are_refused_where_they_are_one(target: str, tmp_path: Path) -> None:
    run = deployed(tmp_path / "run", two_towers(), two_cpus(), target="AUTO:CPU_A,CPU_B")
    with pytest.raises(UsageError, match="cannot distinguish"):
        emit(run, target)


def test_a_misspelt_target_gets_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"Unknown target 'benchmark_app'\. Did you mean 'benchmark-app'"):
        emit(tmp_path, "benchmark_app")
    assert list(TARGETS) == ["benchmark-app", "ovms", "ovms-dag", "python", "cpp", "olive", "onnxruntime"]


def test_a_folder_without_a_finished_run_says_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not a run directory"):
        Deployment.load(tmp_path)
    run = deployed(tmp_path / "run", two_towers(), one_cpu())
    (run / "placed.bin").rename(tmp_path / "placed.bin")
    with pytest.raises(StoreError, match=r"placed\.bin is missing"):
        Deployment.load(run)
    record = (run / "placement.json").read_text(encoding="utf-8")
    (run / "placement.json").write_text(record.replace("placed.xml", "x" * 300), encoding="utf-8")
    with pytest.raises(StoreError, match=r"x is missing"):
        Deployment.load(run)
    for damage in ("{", "[]", '{"schema": "placewright.placement/1"}'):
        (run / "placement.json").write_text(damage, encoding="utf-8")
        with pytest.raises(StoreError, match="damaged"):
            Deployment.load(run)
    (run / "placement.json").unlink()
    with pytest.raises(StoreError, match=r"not finished: its last stage is read\. placewright measure --run"):
        Deployment.load(run)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    run = deployed(tmp_path / "run", two_towers(), one_cpu())
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(StoreError, match="cannot be written"):
        emit(run, "python", tmp_path / "file" / "out")


def test_a_placement_that_was_written_before_requests_counted_has_one(tmp_path: Path) -> None:
    run = deployed(tmp_path / "run", two_towers(), one_cpu())
    document = json.loads((run / "placement.json").read_text(encoding="utf-8"))
    write(run / "placement.json", {k: v for k, v in document.items() if k not in ("requests", "objective")})
    assert (Deployment.load(run).record.requests, Deployment.load(run).record.objective) == (1, "latency")


X = np.zeros((1, 16), np.float32)
MISTAKES: dict[str, tuple[Any, str, str]] = {  # what INPUTS.npz holds -> what is said, with {x}: the model's inputs
    "another name": ({"y": X}, "in.npz has y, which is no input of the model", "Inputs are: {x}"),
    "a name too much": ({"{name}": X, "label": X}, "in.npz has label, which is no input", "Inputs are: {x}"),
    "none": ({}, "in.npz has no array {name}", "Inputs are: {x}"),
    "another shape": ({"{name}": X[:, :5]}, "{name} in in.npz is float32 [1, 5]", "The model takes {x}"),
    "another rank": ({"{name}": X[0]}, "{name} in in.npz is float32 [16]", "The model takes {x}"),
    "another type": ({"{name}": X.astype(np.float64)}, "{name} in in.npz is float64 [1, 16]", "The model takes {x}"),
    "text": (b"x,y\n1,2\n", "in.npz holds no arrays by name", "Give an .npz file"),
    "an array alone": (X, "in.npz holds no arrays by name", "Give an .npz file"),
    "nothing": (b"", "in.npz holds no arrays by name", "Give an .npz file"),
    "no file": (None, "in.npz cannot be read: No such file", "Give an .npz file"),
}


@pytest.fixture(scope="module", params=["python", "onnxruntime"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a program that takes one input of float32, [1, 16]."""
    folder = tmp_path_factory.mktemp("program")
    if request.param == "python":
        out, _ = emit(deployed(folder / "run", through_file(flat_model(), folder), one_cpu()), "python", folder / "out")
    else:
        pytest.importorskip("onnxruntime")
        source = flat_onnx(folder / "flat.onnx")
        model, _ = read_shaped(source, InputShapes())
        placement = dict.fromkeys([op.get_friendly_name() for op in model.get_ordered_ops()], "A")
        run = deployed(
            folder / "run", model, one_cpu(), placement=placement, source=str(source), sha256=model_sha256(source)
        )
        out, _ = emit(run, "onnxruntime", folder / "out")
    quick(out / "run.py")
    return out


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_inputs_is_one_line_of_the_program(mistake: str, program: Path) -> None:
    content, cause, remedy = MISTAKES[mistake]
    file = program / "in.npz"
    file.unlink(missing_ok=True)
    if isinstance(content, dict):
        np.savez(file, **{name.format(name="x"): array for name, array in content.items()})
    elif isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        with file.open("wb") as stream:
            np.save(stream, content)
    line = said_of_mistake(program, "in.npz")
    for words in (cause, remedy):
        assert words.format(name="x", x="x float32 [1, 16]") in line


def test_a_command_line_and_an_output_that_cannot_be_are_one_line(program: Path) -> None:
    np.savez(program / "in.npz", x=X)
    assert "3 arguments were given. Usage: python run.py" in said_of_mistake(program, "a", "b", "c")
    assert "cannot be written" in said_of_mistake(program, "in.npz", "nowhere/out.npz")
    assert "median latency" in executed([sys.executable, "run.py", "in.npz"], program)


def test_a_file_that_was_left_behind_is_one_line(program: Path, tmp_path: Path) -> None:
    for path in program.iterdir():
        if path.suffix not in (".xml", ".onnx"):
            shutil.copy(path, tmp_path)
    assert re.search(r"model\.(xml|onnx) is missing\. Copy the whole folder", said_of_mistake(tmp_path))


def test_what_is_assumed_of_an_open_dimension_is_said(tmp_path: Path) -> None:
    out, _ = emit(deployed(tmp_path / "run", through_file(dynamic(), tmp_path), one_cpu()), "python", tmp_path / "out")
    quick(out / "run.py")
    assert "INPUTS.npz gives other shapes" in executed([sys.executable, "run.py"], out)


def test_onnx_runtime_gets_the_sizes_that_were_measured_where_dimensions_are_open(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    source = flat_onnx(tmp_path / "flat.onnx", batch="batch")
    model, _ = read_shaped(source, InputShapes(("x=5x16",)))
    placement = dict.fromkeys([op.get_friendly_name() for op in model.get_ordered_ops()], "A")
    run = deployed(
        tmp_path / "run", model, one_cpu(), placement=placement, source=str(source), sha256=model_sha256(source)
    )
    out, _ = emit(run, "onnxruntime", tmp_path / "out")
    quick(out / "run.py")
    said = executed([sys.executable, "run.py"], out)
    assert "x float32 [?, 16]: taken as [5, 16]; INPUTS.npz gives other shapes" in said


def test_an_input_without_dimensions_stays_one(tmp_path: Path) -> None:
    x = ov.opset13.parameter([], np.float32, name="x")
    x.output(0).set_names({"x"})
    model = ov.Model([ov.opset13.exp(x)], [x], "scalar")
    out, _ = emit(deployed(tmp_path / "run", model, one_cpu()), "python", tmp_path / "out")
    quick(out / "run.py")
    np.savez(tmp_path / "in.npz", x=np.float32(0))
    executed([sys.executable, str(out / "run.py"), "in.npz", "out.npz"], tmp_path)
    with np.load(tmp_path / "out.npz") as found:
        assert found["output_0"].shape == ()


def test_affinities_of_another_model_are_one_line(tmp_path: Path) -> None:
    out, _ = emit(split_run(tmp_path), "python", tmp_path / "out")
    affinities = json.loads((out / "affinities.json").read_text(encoding="utf-8"))
    name = next(iter(affinities))
    write(out / "affinities.json", {k: v for k, v in affinities.items() if k != name})
    assert f"affinities.json has no {name} of model.xml" in said_of_mistake(out)
