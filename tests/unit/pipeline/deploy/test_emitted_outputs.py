"""What emit writes is run on the inputs that its run was judged on, and refused where its outputs are others."""

from __future__ import annotations

import json
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from coarsen.reading.model.read import read_model
from pipeline.core.accuracy import Accuracy, AccuracyLimits
from pipeline.core.errors import OutputMismatchError
from pipeline.deploy.emit import emit
from pipeline.deploy.emitted_outputs import compare_emitted
from pipeline.result.result import KEPT
from pipeline.settings.config import Settings
from pipeline.shared.checks import CHECKS, REFERENCE, save_by_kind
from runtime.machines.devices import discover_plugins, make_spec
from tests.deployments import deployed, measured, write
from tests.two_cpus import two_cpus
from tests.unit.pipeline.deploy.test_emit import flat_model, flat_onnx

LIMITS = AccuracyLimits.of(1e-3)
RIGHT = Accuracy("output_0", "noise", 0.0, 0.0, "", 0.0, 0.0, 0.0, 0, 0, 0.0, True, ("noise", "zeros"), LIMITS)


def run_of(folder: Path, model: ov.Model, *, wrong: float = 0.0, accuracy: Accuracy | None = RIGHT, **how: Any) -> Path:
    """Write a run of a model of one input x and what it was judged on; wrong: by how much the reference is off."""
    run = deployed(folder / "run", model, how.pop("devices", (make_spec("CPU", "CPU", {}, discover_plugins()),)), **how)
    measured(run, [1.0, 1.1, 1.2])
    document = json.loads((run / "result.json").read_text())
    document["candidates"][0]["accuracy"] = None if accuracy is None else asdict(accuracy)
    (run / "result.json").write_text(json.dumps(document))
    manifest = json.loads((run / "manifest.json").read_text())
    write(run / "manifest.json", {**manifest, "settings": Settings().to_json()})
    shape = [1, *list(model.inputs[0].get_shape())[1:]]
    rng = np.random.default_rng(1)
    checks = {"noise": {"x": rng.standard_normal(shape)}, "zeros": {"x": np.zeros(shape)}}
    checks = {kind: {"x": np.asarray(each["x"], np.float32)} for kind, each in checks.items()}
    expected = {
        kind: {"output_0": np.exp(each["x"]) * np.float32(1 + (wrong if kind == "noise" else 0))}
        for kind, each in checks.items()
    }
    save_by_kind(folder / CHECKS, checks)
    save_by_kind(folder / REFERENCE, expected)
    with zipfile.ZipFile(run / KEPT, "w") as kept:
        for name in (CHECKS, REFERENCE):
            kept.write(folder / name, name)
    return run


@pytest.mark.parametrize(
    ("target", "by_what"),
    [
        ("python", "run.py"),
        ("cpp", "model.xml in OpenVINO"),
        ("ovms", "model.xml in OpenVINO"),
        ("benchmark-app", "model.xml in OpenVINO"),
        ("olive", "model.xml in OpenVINO"),
    ],
)
@pytest.mark.parametrize("batch", [1, 3])
def test_what_is_written_is_run_on_what_the_run_was_judged_on(
    target: str, by_what: str, batch: int, tmp_path: Path
) -> None:
    model = flat_model()
    model.reshape([batch, 16])
    run = run_of(tmp_path, model, batch=batch)
    said = compare_emitted(run, target, *emit(run, target))
    assert said.startswith(f"Outputs were compared with those of the source, by {by_what}")
    assert "on noise, zeros: they differ by" in said


@pytest.mark.parametrize("target", ["python", "ovms"])
def test_files_that_compute_something_else_are_refused_and_removed(target: str, tmp_path: Path) -> None:
    run = run_of(tmp_path, flat_model(), wrong=0.5)
    folder, written = emit(run, target)
    with pytest.raises(OutputMismatchError, match=rf"for {target} .* 33\.3 % .*output_0 on noise") as caught:
        compare_emitted(run, target, folder, written)
    assert caught.value.exit_code == 6
    assert not any(path.exists() for path in written)


def test_the_settings_that_are_written_are_those_it_runs_with(tmp_path: Path) -> None:
    run = run_of(tmp_path, flat_model())
    folder, written = emit(run, "ovms")
    config = json.loads((folder / "config.json").read_text())
    config["model_config_list"][0]["config"]["plugin_config"] = {"NO_SUCH_PROPERTY": "1"}
    (folder / "config.json").write_text(json.dumps(config))
    assert "NO_SUCH_PROPERTY" in compare_emitted(run, "ovms", folder, written)


def test_onnx_runtimes_program_runs_as_well(tmp_path: Path) -> None:
    from coarsen.reading.model.files import model_sha256

    source = flat_onnx(tmp_path / "net.onnx")
    model = read_model(source)
    placement = dict.fromkeys([op.get_friendly_name() for op in model.get_ordered_ops()], "A")
    here = {"source": str(source), "sha256": model_sha256(source)}
    device = two_cpus()[0]
    run = run_of(tmp_path, model, devices=[device], placement=placement, target=device.openvino_name, **here)
    assert "by run.py, on noise, zeros" in compare_emitted(run, "onnxruntime", *emit(run, "onnxruntime"))


def test_what_does_not_run_here_or_has_no_reference_is_told(tmp_path: Path) -> None:
    run = run_of(tmp_path, flat_model())
    folder, written = emit(run, "python")
    (folder / "run.py").write_text("import sys; sys.exit('no such device')")
    assert "does not run here" in compare_emitted(run, "python", folder, written)
    (run / KEPT).unlink()
    assert compare_emitted(run, "python", folder, written).startswith("Outputs were not compared: ")
    bare = run_of(tmp_path, flat_model(), accuracy=None)
    assert compare_emitted(bare, "python", folder, written).startswith("Outputs were not compared: ")
    assert all(path.exists() for path in written)
