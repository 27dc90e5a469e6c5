"""Whether what was written for another tool computes what the source of the model does.

It is run in a fresh process on the inputs on which its candidate was compared, and judged as that was: a Python
program as it stands, segments as they were measured, and of any other tool its model file, with the settings that it
carries.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.core.accuracy import Accuracy
from pipeline.core.deadline import Deadline
from pipeline.core.errors import OutputMismatchError
from pipeline.core.measurement import MeasurementFailed
from pipeline.core.settings import MeasureSettings
from pipeline.deploy.emit import OUT_CONFIG, PROGRAM, TOOL_MODEL, for_compiling
from pipeline.deploy.served import VERSION
from pipeline.deploy.several import ScenarioDeployment, is_scenario_run
from pipeline.deploy.two_runs import outputs_of_segments
from pipeline.deploy.where import wanted_by
from pipeline.result.deployment import SPLIT, Deployment, runs_in_segments
from pipeline.result.directory import RunDirectory
from pipeline.result.result import KEPT, Result
from pipeline.settings.config import Settings
from pipeline.shared.checks import CHECKS, ByKind, load_by_kind, save_by_kind
from pipeline.shared.model_inputs import GIVEN, describe_kinds
from pipeline.shared.payload import load_arrays, read_json
from pipeline.system.process import LAST_WORDS, describe_ending
from runtime.measuring.contest.variant import Variant, for_batch, outputs_by_kind, reference_of, start_child
from runtime.measuring.outputs.outputs import format_percent
from runtime.measuring.outputs.quality import accuracy_of
from runtime.measuring.process.batching import repeat_outputs
from runtime.measuring.process.child import ChildError

COMPARED_S = 20.0  # after which no other kind of inputs is begun
PROGRAM_S = 60.0  # after which a process is ended
MEASURED_S, BRIEFLY_S = "3.0", "0.01"  # for which programs measure, and for which they do here
RUN_IT = (
    "import sys; path = sys.argv.pop(1); sys.argv[0] = path; "
    "exec(compile(sys.stdin.read(), path, 'exec'), {'__file__': path, '__name__': '__main__'})"
)
STATE = 'type="ReadValue"'  # in an IR: the reference is then of a sequence, and not of an inference
PROGRAMS = ("python", "onnxruntime")


def compare_emitted(run: Path, target: str, folder: Path, written: Sequence[Path]) -> str:
    """Return in a sentence how far outputs of what was written for a target are from the source's, and by what.

    Of a scenario there is a sentence for each model.

    run: the finished run. folder, written: as `emit_run` returns them.

    Raises:
        OutputMismatchError: they are further away than the run allows; the files that were written are gone.
    """
    if not is_scenario_run(run):
        told, wrong = _compare_model(Deployment.load(run), _accuracy_of_best(run), target, folder)
    else:
        scenario = ScenarioDeployment.load(run)
        folders = {load.name: load.folder for load in scenario.result.models}
        known = {folders[model.name]: model.accuracy for model in scenario.result.answer.models}
        each = {
            name: _compare_model(model, known[name], target, folder, name) for name, model in scenario.models.items()
        }
        told = " ".join(f"{name}: {told}" for name, (told, _) in each.items())
        wrong = "; ".join(f"{name}: {wrong}" for name, (_, wrong) in each.items() if wrong)
    if not wrong:
        return told
    for path in written:
        path.unlink(missing_ok=True)
    raise OutputMismatchError(
        f"What was written for {target} computes something else than its source, {wrong}. The files were removed.",
        "That is a fault of the runtime: measure again with the versions that are installed now.",
    )


def _compare_model(
    deployment: Deployment, best: Accuracy | None, target: str, folder: Path, name: str = ""
) -> tuple[str, str]:
    """Return what may be said of the outputs of one model, and by what and how they are too far off, "" if not.

    best: how far they were when it was measured. name: of the model where the folder holds several; "" for the only
    one.
    """
    run = deployment.path
    if best is None or not (run / KEPT).is_file():
        return f"Outputs were not compared: {run} keeps none of its source. Measure it again to have them compared.", ""
    settings, count = _settings(run), deployment.record.batch
    with tempfile.TemporaryDirectory(prefix="placewright-") as scratch:
        beside = Path(scratch)
        with zipfile.ZipFile(run / KEPT) as kept:
            kept.extractall(beside)
        known = load_by_kind(beside / CHECKS)
        checks = {kind: repeat_outputs(known[kind], count) for kind in best.kinds if kind in known}
        save_by_kind(beside / CHECKS, checks)
        if (beside / GIVEN).exists():
            np.savez(beside / GIVEN, **repeat_outputs(load_arrays(beside / GIVEN), count))  # type: ignore[arg-type]  # of arrays by name
        try:
            actual, by_what = _outputs(deployment, target, folder, beside, checks, settings, name)
        except ChildError as error:
            return f"Outputs were not compared, because it does not run here: {error.cause.rstrip('.')}.", ""
        reference = for_batch(reference_of(beside / TOOL_MODEL, {}), count)
        found = accuracy_of(actual, reference, best.limits, settings)
    wrong = found.message if isinstance(found, MeasurementFailed) else found.why_not
    if wrong or isinstance(found, MeasurementFailed):
        return "", f"by {by_what}: {wrong}"
    worst = "not to be told" if found.worst is None else format_percent(found.worst)
    return (
        f"Outputs were compared with those of the source, by {by_what}, on {describe_kinds(found.kinds)}: they differ "
        f"by {worst}."
    ), ""


def _accuracy_of_best(run: Path) -> Accuracy | None:
    """Return how right the answer of a run was, None where nobody knows."""
    return Result.load(run).best.accuracy if (run / "result.json").is_file() else None


def _settings(run: Path) -> MeasureSettings:
    """Return what a run has measured with; no process has longer than a program."""
    manifest = RunDirectory(run).manifest()
    measure = MeasureSettings() if manifest is None else Settings.from_json(manifest["settings"]).measure
    return replace(measure, timeout_s=min(measure.timeout_s, PROGRAM_S))


def _outputs(
    deployment: Deployment,
    target: str,
    folder: Path,
    beside: Path,
    checks: ByKind,
    settings: MeasureSettings,
    name: str,
) -> tuple[ByKind, str]:
    """Return the outputs of what was written, by kind of inputs, and what gave them.

    beside: a folder with what lies beside a normalised model.

    Raises:
        ChildError: it does not run.
    """
    model = deployment.model
    stateful = model.suffix == ".xml" and STATE in model.read_text(encoding="utf-8")  # an ONNX file has no state
    if target in PROGRAMS and not stateful:
        return _by_program(folder / PROGRAM, beside, checks, name), PROGRAM
    if runs_in_segments(deployment.record.target):
        return outputs_of_segments(deployment.path / SPLIT, beside, list(checks))[0], "its segments"
    model, variant = _carried(deployment, target, folder, name)
    for source in (model, model.with_suffix(".bin")):
        _link(source, (beside / TOOL_MODEL).with_suffix(source.suffix))
    child, _ = start_child(variant, beside / TOOL_MODEL, settings, seed=0)
    with child:
        return outputs_by_kind(child, list(checks)), f"{model.name} in OpenVINO with the settings that it carries"


def _link(source: Path, path: Path) -> None:
    """Let a file have another path as well; a copy of it where links do not reach."""
    try:
        os.link(source, path)
    except OSError:
        shutil.copyfile(source, path)


def _carried(deployment: Deployment, target: str, folder: Path, name: str) -> tuple[Path, Variant]:
    """Return the model file that was written for a target, and how what lies beside it says that it is to be run."""
    if target == "ovms":
        entries = [each["config"] for each in read_json(folder / OUT_CONFIG)["model_config_list"]]
        (entry,) = (each for each in entries if not name or each["name"] == name)
        properties: Mapping[str, Any] = entry["plugin_config"]
        return folder / entry["base_path"] / VERSION / TOOL_MODEL, _variant(entry["target_device"], properties)
    if target == "benchmark-app":
        ((_, properties),) = read_json(folder / OUT_CONFIG).items()
        return folder / TOOL_MODEL, _variant(deployment.plain(target).target, properties)
    if target == "olive":
        plain = deployment.plain(target)
        return folder / "model" / TOOL_MODEL, _variant(plain.target, for_compiling(plain))
    wanted = wanted_by(deployment)
    model = folder / name / TOOL_MODEL
    variant = Variant("emitted", "user", wanted.target, wanted.devices, wanted.properties, wanted.affinity)
    return (model if model.is_file() else deployment.model), variant


def _variant(target: str, properties: Mapping[str, str]) -> Variant:
    return Variant("emitted", "user", target, (), properties)


def _by_program(program: Path, scratch: Path, checks: ByKind, name: str) -> ByKind:
    """Return what a Python program gives that was written for users, kind by kind; it measures for a moment alone.

    name: of the model among several that it runs; "" for the only one.

    Raises:
        ChildError: it ends with a fault, or takes too long.
    """
    text = program.read_text(encoding="utf-8").replace(MEASURED_S, BRIEFLY_S)
    deadline, found = Deadline.after(COMPARED_S), dict[str, Any]()
    given, got = scratch / "given.npz", scratch / f"{name or 'got'}.npz"
    arguments = [f"{name}={given}", "--outputs", str(scratch)] if name else [str(given), str(got)]
    for kind, inputs in checks.items():
        if found and deadline.passed:
            break
        np.savez(given, **inputs)  # type: ignore[arg-type]  # of arrays by name
        command = [sys.executable, "-c", RUN_IT, str(program), *arguments]
        try:
            ran = subprocess.run(
                command, input=text, capture_output=True, text=True, timeout=PROGRAM_S, check=False, env=_quiet()
            )
        except subprocess.TimeoutExpired as error:
            raise ChildError(MeasurementFailed("timeout", f"{program} takes longer than {PROGRAM_S:g} s")) from error
        if ran.returncode:
            words = " ".join(ran.stderr.split())[-LAST_WORDS:]
            raise ChildError(MeasurementFailed("crashed", f"{program} {describe_ending(ran.returncode, words)}"))
        found[kind] = load_arrays(got)
    return found


def _quiet() -> dict[str, str]:
    """Return the environment in which OpenVINO reports nothing home."""
    return {**os.environ, "CI": "true"}
