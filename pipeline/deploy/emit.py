"""Files that run what a run found best, for other tools: each target writes a folder that needs nothing beside it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipeline.core.devices import computes_together
from pipeline.core.errors import DeviceError, StoreError, UnknownNameError, UsageError
from pipeline.deploy.annotated import onnx_session
from pipeline.deploy.rendering import render_template
from pipeline.deploy.served import VERSION, server_pipeline
from pipeline.result.deployment import EVERYTHING, Deployment, PlainTarget
from pipeline.store.store import write_json, write_text
from pipeline.system.private_files import copy_whole, make_alike

TOOL_MODEL, OUT_CONFIG, PROGRAM, AFFINITIES = "model.xml", "config.json", "run.py", "affinities.json"
OLIVE_DEVICES = ("cpu", "gpu", "npu")  # what Olive's systems know by name
PROVIDER = "OpenVINOExecutionProvider"

Writer = Callable[[Deployment, Path], list[Path]]


def emit(run: Path, target: str, out: Path | None = None) -> tuple[Path, list[Path]]:
    """Write the files that run a run's best candidate with `target`; return their folder and their paths.

    out: the folder; RUN/emit/TARGET unless given.

    Raises:
        UnknownNameError: there is no such target.
        StoreError: the folder holds no finished run, or `out` cannot be written.
        UsageError: the target cannot express what was found; it says which can.
    """
    if target not in TARGETS:
        raise UnknownNameError("target", target, TARGETS)
    folder = out if out is not None else run / "emit" / target
    return folder, TARGETS[target](Deployment.load(run), folder)


def benchmark_app(deployment: Deployment, out: Path) -> list[Path]:
    """Write the JSON that benchmark_app -load_config takes, and its whole command line."""
    plain = _without_batches(deployment.plain("benchmark-app"), "benchmark_app")
    numbered = sorted(name for name in plain.devices if "." in name and name != plain.target)
    if numbered:
        raise UsageError(
            f"benchmark_app does not read the properties of {', '.join(numbered)} in {plain.target}, and says nothing.",
            f"Use the target {EVERYTHING}.",
        )
    alone = deployment.record.requests == 1 and deployment.record.objective == "latency"
    words = ["benchmark_app", "-m", TOOL_MODEL, "-d", plain.target, "-load_config", "config.json", "-hint", "none"]
    words += ["-nireq", str(deployment.record.requests), "-api", "sync" if alone else "async"]
    written = write_model(deployment, out)
    # Of all devices in the file, the tool hands those properties to compile_model alone that stand at its target.
    write_json(out / OUT_CONFIG, {plain.target.partition(":")[0]: for_compiling(plain)})
    write_text(out / "command.txt", shlex.join(words) + "\n")
    return [out / "command.txt", out / OUT_CONFIG, *written]


def _without_batches(plain: PlainTarget, tool: str) -> PlainTarget:
    """Return a target that a tool can take.

    Raises:
        UsageError: requests are computed together, in batches of a size that the tool takes for part of a name.
    """
    if computes_together(plain.target):
        raise UsageError(f"{tool} does not know the device {plain.target}.", f"Use the target {EVERYTHING}, or ovms.")
    return plain


def model_server(deployment: Deployment, out: Path) -> list[Path]:
    """Write a model repository and the config.json of OpenVINO Model Server."""
    return write_repository({deployment.name: deployment}, out)


def write_repository(models: Mapping[str, Deployment], out: Path) -> list[Path]:
    """Write a model repository of models by name, and one config.json that lists them in their order."""
    entries = {name: server_entry(model, name) for name, model in models.items()}
    written = [
        path
        for name, model in models.items()
        for path in write_model(model, out / entries[name]["base_path"] / VERSION)
    ]
    write_json(out / OUT_CONFIG, {"model_config_list": [{"config": entry} for entry in entries.values()]})
    return [out / OUT_CONFIG, *written]


def server_entry(deployment: Deployment, name: str) -> dict[str, Any]:
    """Return the server's entry for a model, which it takes from a folder of that name in `models`."""
    plain = deployment.plain("ovms")
    return {
        "name": name,
        "base_path": f"models/{name}",
        "target_device": plain.target,
        "nireq": deployment.record.requests,
        "plugin_config": for_compiling(plain),
    }


def python_program(deployment: Deployment, out: Path) -> list[Path]:
    """Write a Python program that needs openvino and numpy only, or onnxruntime in its place if that runs the model."""
    if deployment.in_onnxruntime:
        return onnx_session(deployment, out)
    deployment.check_whole("which it compiles as one")
    written = [*write_model(deployment, out), *write_affinities(deployment, out)]
    write_text(out / PROGRAM, _render_program("run.py.j2", deployment))
    return [out / PROGRAM, *written]


def write_affinities(deployment: Deployment, out: Path) -> list[Path]:
    """Write the affinities of a split, which OpenVINO does not save, to a folder; return the file, none of others."""
    if not deployment.is_split:
        return []
    write_json(out / AFFINITIES, deployment.affinities)
    return [out / AFFINITIES]


def cpp_program(deployment: Deployment, out: Path) -> list[Path]:
    """Write a C++ program and what CMake builds it with."""
    deployment.check_whole("which it compiles as one")
    written = write_model(deployment, out)
    write_text(out / "main.cpp", _render_program("main.cpp.j2", deployment))
    write_text(out / "CMakeLists.txt", _render_program("CMakeLists.txt.j2", deployment))
    return [out / "main.cpp", out / "CMakeLists.txt", *written]


def write_olive(deployment: Deployment, out: Path) -> list[Path]:
    """Write an Olive workflow that encapsulates the model for ONNX Runtime and measures it there.

    Olive's own OpenVINO evaluator compiles without properties; ONNX Runtime's provider takes them from a file of the
    form of benchmark_app's.

    Source: microsoft/Olive, olive/evaluator/olive_evaluator.py and olive/passes/openvino/encapsulation.py.
    """
    plain = _without_batches(deployment.plain("olive"), "Olive")
    device = plain.target.partition(":")[0].partition(".")[0].lower()
    settings = {
        "execution_provider": [PROVIDER],
        "provider_options": [{"device_type": plain.target, "load_config": "openvino.json"}],
    }
    system = {"device": device if device in OLIVE_DEVICES else "cpu", "execution_providers": [PROVIDER]}
    workflow = {
        "input_model": {"type": "OpenVINOModel", "model_path": "model"},
        "systems": {"local": {"type": "LocalSystem", "accelerators": [system]}},
        "evaluators": {"speed": {"metrics": [_latency_metric(settings)]}},
        "passes": {"encapsulate": {"type": "OpenVINOEncapsulation", "target_device": system["device"]}},
        "evaluator": "speed",
        "evaluate_input_model": False,
        "host": "local",
        "target": "local",
        "output_dir": "optimised",
    }
    written = write_model(deployment, out / "model")
    write_json(out / "openvino.json", _properties_by_device(plain))
    write_json(out / "workflow.json", workflow)
    return [out / "workflow.json", out / "openvino.json", *written]


def _latency_metric(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return Olive's metric of latency, taken with these settings of ONNX Runtime."""
    goal = {"warmup_num": 10, "repeat_test_num": 100}
    return {
        "name": "latency",
        "type": "latency",
        "sub_types": [{"name": "p50", "priority": 1, "metric_config": goal}, {"name": "avg", "metric_config": goal}],
        "user_config": {"inference_settings": {"onnx": settings}},
    }


def _properties_by_device(plain: PlainTarget) -> dict[str, dict[str, str]]:
    """Return {device: its properties}, that of AUTO or HETERO among them, as ONNX Runtime's provider sets them."""
    mode, colon, _ = plain.target.partition(":")
    by_device = {name: dict(properties) for name, properties in plain.devices.items()}
    return by_device | ({mode: dict(plain.properties)} if colon or mode not in by_device else {})


def for_compiling(plain: PlainTarget) -> dict[str, str]:
    """Return the properties to hand to compile_model.

    Those of several devices are one property, in the words in which OpenVINO reads a map from text: it takes JSON with
    quotes for device names that it does not know, and says nothing.
    """
    if plain.target in plain.devices:
        return dict(plain.devices[plain.target])
    if computes_together(plain.target):  # which takes its device's as its own
        return {**plain.properties, **next(iter(plain.devices.values()))}
    each = ",".join(
        f"{name}:{{{','.join(f'{key}:{value}' for key, value in properties.items())}}}"
        for name, properties in plain.devices.items()
    )
    return {**plain.properties, **({"DEVICE_PROPERTIES": f"{{{each}}}"} if each else {})}


def write_model(deployment: Deployment, folder: Path) -> list[Path]:
    """Copy the placed model and its weights to a folder; return both."""
    path = folder / TOOL_MODEL
    copies = [(deployment.model, path), (deployment.weights, path.with_suffix(".bin"))]
    try:
        make_alike(folder)
        for source, copy in copies:
            copy_whole(source, copy)
    except OSError as error:
        raise StoreError(
            f"{folder} cannot be written: {error.strerror}.", "Free disk space, or use another folder with --out."
        ) from error
    return [copy for _, copy in copies]


def _render_program(template: str, deployment: Deployment) -> str:
    """Return a program for what a run found."""
    record = deployment.record
    return render_template(
        template,
        candidate=record.candidate,
        target=record.target,
        properties=record.properties,
        devices=libraries_and_properties(deployment),
        affinities=deployment.affinities,
        requests=record.requests,
        batch=record.batch,
    )


def libraries_and_properties(deployment: Deployment) -> dict[str, tuple[str | None, Mapping[str, str]]]:
    """Return {device as OpenVINO knows it: the library of a plug-in registered so, None for its own; properties}."""
    return {
        d.openvino_name: (None if d.openvino_name == d.plugin else library_of(d.plugin), d.properties)
        for d in deployment.record.devices.values()
    }


def library_of(plugin: str) -> str:
    """Return the library of a plug-in that is registered once more.

    Raises:
        DeviceError: no plug-in of this name can be.
    """
    from runtime.machines.devices import LIBRARIES

    base = plugin.partition(".")[0]
    if base not in LIBRARIES:
        raise DeviceError(f"No library is known of the plug-in {plugin}.", "Run `placewright tune`.")
    return LIBRARIES[base]


TARGETS: Mapping[str, Writer] = {
    "benchmark-app": benchmark_app,
    "ovms": model_server,
    "ovms-dag": server_pipeline,
    "python": python_program,
    "cpp": cpp_program,
    "olive": write_olive,
    "onnxruntime": onnx_session,
}
"""What can be written for, by name."""
