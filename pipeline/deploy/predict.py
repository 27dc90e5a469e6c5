"""What a model would take on machines that are known by their calibrations: with an interval, and how to check it."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from coarsen.reading.model.constant_growth import ReadLimits
from coarsen.reading.model.files import model_sha256
from coarsen.reading.read_in_process import read_in_process
from coarsen.reading.sizes.shapes import InputShapes
from pipeline.core.errors import UsageError
from pipeline.shared.payload import load_graph
from runtime.calibration.machine_lines import by_device, read_machine_lines, rows_of
from runtime.calibration.transfer import MachinePrediction, predict_seconds
from runtime.machines.devices import ALIAS_DEFAULTS


@dataclass(frozen=True, slots=True)
class PredictedMachine:
    """What a model would take on one device of a machine.

    measured_s: what it took, where it is among the models known; the prediction then rests on the others alone. check:
    the command that measures it there.
    """

    fingerprint: str
    machine: str
    runtime: str
    device: str
    prediction: MachinePrediction
    measured_s: float | None
    check: str


@dataclass(frozen=True, slots=True)
class PredictRecord:
    """What `predict` prints; machines: the fastest first."""

    schema: Literal["placewright.predict/1"]
    model: str
    operations: int
    machines: Sequence[PredictedMachine]


def predict(model: Path, machines: Sequence[Path], shapes: Sequence[str]) -> PredictRecord:
    """Return what a model would take on the machines of files and folders, of which there is at least one.

    Raises:
        UsageError: nothing is known of any machine, or shapes do not fit.
        ModelError: the model cannot be read.
    """
    devices = by_device(read_machine_lines(*machines))
    sha256 = model_sha256(model)
    with tempfile.TemporaryDirectory(prefix="placewright-predict-") as folder:
        read_in_process(
            model, Path(folder), source=sha256, limits=ReadLimits(), shapes=InputShapes(tuple(shapes)), save=False
        )
        rows = rows_of(load_graph(Path(folder) / "graph.npz"))
    found = []
    sized = "".join(f" --shape {shlex.quote(shape)}" for shape in shapes)
    out_text = shlex.quote(f"{model.stem}-calibrated")
    folder_text = shlex.quote(str(machines[0] if machines[0].is_dir() else machines[0].parent))
    for lines in devices.values():
        others = [line for line in lines if line["sha256"] != sha256]
        if not others:
            continue
        here = next((line for line in lines if line["sha256"] == sha256), None)
        last = lines[-1]
        devices_text = shlex.quote(devices_option(last["device"]))
        found.append(
            PredictedMachine(
                fingerprint=last["fingerprint"],
                machine=last["machine"],
                runtime=last["runtime"],
                device=last["device"],
                prediction=predict_seconds(others, rows),
                measured_s=None if here is None else here["latency_s"],
                check=f"placewright calibrate {shlex.quote(str(model))} --devices {devices_text}{sized} "
                f"--measurements 1 --holdout 0 --out {out_text} --machines {folder_text}",
            )
        )
    if not found:
        raise UsageError(
            f"{' '.join(map(str, machines))} knows no other model than this one whose operations take time.",
            "Calibrate further models with --machines.",
        )
    ranked = sorted(found, key=lambda each: each.prediction.seconds)
    return PredictRecord("placewright.predict/1", str(model), len(rows), ranked)


def devices_option(device: str) -> str:
    """Return the --devices that makes a device of a machine's lines again, its properties included.

    A device with a name of its own has what such devices are given; one without has what it is given anyway.

    >>> devices_option("CPU{INFERENCE_PRECISION_HINT=bf16}")
    'CPU'
    >>> devices_option("CPU{ENABLE_CPU_PINNING=NO,INFERENCE_NUM_THREADS=1}")
    'CPU=CPU{ENABLE_CPU_PINNING=NO,INFERENCE_NUM_THREADS=1}'
    """
    plugin = device.partition("{")[0]
    kind = plugin.partition(".")[0]
    named = "{" in device and all(f"{key}=" in device for key in ALIAS_DEFAULTS.get(kind, {}))
    return f"{kind}={device}" if named else plugin
