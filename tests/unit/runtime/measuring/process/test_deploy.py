"""What a run directory holds is put to use the same way by the snippet of docs/result.md and by `Result.compile`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import openvino as ov
import pytest

from coarsen.reading.model.read import save_model
from pipeline.core.devices import DeviceSpec
from runtime.machines.devices import parse_devices
from runtime.measuring.contest.variant import Variant, executed_names
from runtime.measuring.process.affinity import hetero_target
from runtime.measuring.process.deploy import compile_placed
from tests import ROOT, models
from tests.openvino_calls import RecordingCore
from tests.unit.runtime.machines.test_devices import PLUGINS

PAGE = ROOT / "docs" / "result.md"
OPERATIONS = ("x", "op0", "op1", "out")


def placed_run(folder: Path, devices: tuple[DeviceSpec, ...]) -> dict[str, Any]:
    """Write a run directory whose placement gives the devices the operations in turn; return placement.json."""
    (folder / "run").mkdir()
    save_model(models.chain(2), folder / "run" / "placed.xml")
    document = {
        "target": hetero_target(devices),
        "properties": {"EXCLUSIVE_ASYNC_REQUESTS": "NO"},
        "devices": {
            d.name: {"openvino_name": d.openvino_name, "plugin": d.plugin, "properties": dict(d.properties)}
            for d in devices
        },
        "placement": {name: devices[i % len(devices)].name for i, name in enumerate(OPERATIONS)},
    }
    (folder / "run" / "placement.json").write_text(json.dumps(document), encoding="utf-8")
    return document


def snippet_calls(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Return what the page's snippet asks of OpenVINO in a folder that holds `run/`."""
    section = PAGE.read_text(encoding="utf-8").split("# What to do with a result")[1]
    code = section.split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    exec(code, names)
    calls: list[tuple[Any, ...]] = names["compiled"].calls
    return calls


def test_an_alias_of_the_second_gpu_runs_on_the_second_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = parse_devices(["B=GPU.1{INFERENCE_PRECISION_HINT=f32},GPU"], PLUGINS)
    document = placed_run(tmp_path, devices)
    monkeypatch.setattr(ov, "Core", RecordingCore)
    compiled: Any = compile_placed(tmp_path / "run" / "placed.xml", document)
    assert compiled.calls == snippet_calls(tmp_path, monkeypatch)
    assert compiled.calls == [
        ("register_plugin", "openvino_intel_gpu_plugin", "GPU_B"),
        ("set_property", "GPU_B", {"DEVICE_ID": "1", "INFERENCE_PRECISION_HINT": "f32"}),
        ("set_property", "GPU.0", {"INFERENCE_PRECISION_HINT": "bf16"}),
        (
            "compile_model",
            "HETERO:GPU_B,GPU.0",
            {"EXCLUSIVE_ASYNC_REQUESTS": "NO"},
            {"x": "GPU_B", "op0": "GPU.0", "op1": "GPU_B", "out": "GPU.0"},
        ),
    ]


@pytest.mark.parametrize(
    ("device", "said", "name"),
    [("B=GPU.1", "GPU_B.1", "B"), ("B=GPU.1", "GPU_B", "B"), ("GPU", "GPU.0", "GPU"), ("GPU", "CPU", "CPU")],
)
def test_where_a_model_ran_is_told_in_the_users_names(device: str, said: str, name: str) -> None:
    devices = parse_devices([device], PLUGINS)
    variant = Variant("v", "baseline", devices[0].openvino_name, devices)
    assert executed_names(variant, [said]) == (name,)


def test_the_only_gpu_is_told_without_its_number() -> None:
    devices = parse_devices(["GPU"], {"GPU": replace(PLUGINS["GPU.0"], name="GPU")})
    assert executed_names(Variant("v", "baseline", "GPU", devices), ["GPU.0"]) == ("GPU",)
