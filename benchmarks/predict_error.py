"""How far `placewright predict` is off on models that it does not know, and how often its interval holds.

Every model is calibrated on this machine's CPU in f32, unless the folder knows it; then each is predicted from the
others. What `benchmarks.exported_architectures` wrote has the sizes of its list.

python -m benchmarks.predict_error MACHINES MODEL...
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.common import PLACEWRIGHT, Figure, figure, say
from runtime.calibration.machine_lines import MachineLine, by_device, lines_in, read_machine_lines
from runtime.calibration.transfer import LEVEL, predict_seconds

DEVICE = "CPU=CPU{INFERENCE_PRECISION_HINT=f32}"
FEWEST = 5  # models without which nothing can be said


def calibrate(machines: Path, models: Sequence[Path]) -> None:
    """Add lines of models to a folder of machines."""
    known = {line["model"] for line in lines_in(machines)}
    for model in models:
        if model.name in known:
            continue
        with tempfile.TemporaryDirectory() as folder:
            more = ["--measurements", "1", "--holdout", "0", "--quiet", *shapes_of(model)]
            command = [str(PLACEWRIGHT), "calibrate", str(model), "--devices", DEVICE, *more, "--out", folder]
            done = subprocess.run([*command, "--machines", str(machines)], capture_output=True, text=True, check=False)
        print(f"{model.name}: {done.stderr.strip() or 'calibrated'}", file=sys.stderr, flush=True)


def shapes_of(model: Path) -> list[str]:
    """Return the options that size a model which was exported beside a list."""
    path = model.with_name("LIST.json")
    entries = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    sizes: dict[str, list[int]] = next((entry["sizes"] for entry in entries if entry["path"] == model.name), {})
    return [word for name, shape in sizes.items() for word in ("--shape", f"{name}={'x'.join(map(str, shape))}")]


def figures(machines: Path) -> Iterator[Figure]:
    """Yield the median error of models that are left out, and how often the interval holds what was measured."""
    for (_, device), lines in by_device(read_machine_lines(machines)).items():
        if len(lines) >= FEWEST:
            yield from of_device(device, lines)


def of_device(device: str, lines: Sequence[MachineLine]) -> Iterator[Figure]:
    """Yield the figures of one device."""
    errors, held = [], []
    for line in lines:
        said = predict_seconds([other for other in lines if other is not line], line["rows"])
        errors.append(abs(said.seconds / line["latency_s"] - 1))
        held.append(said.low is not None and said.high is not None and said.low <= line["latency_s"] <= said.high)
        print(f"{line['model']}: {said.seconds / line['latency_s']:.3f}, {held[-1]}", file=sys.stderr)
    how = f"{len(lines)} models on {device}, each predicted from the others"
    yield figure("predict_error.median", 100 * float(np.median(errors)), "%", how, target=20.0)
    outside = 100 * (1 - float(np.mean(held)))
    yield figure(
        "predict_error.outside", outside, "%", f"intervals of {LEVEL:.0%}, {how}", target=100 * (1 - LEVEL) + 5
    )


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    calibrate(folder, [Path(word) for word in sys.argv[2:]])
    say(figures(folder))
