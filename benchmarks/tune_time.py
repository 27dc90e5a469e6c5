"""How long tuning Inception-V3 within the default budget takes once everything is installed."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common import PLACEWRIGHT, Figure, figure, parts, say, timed
from pipeline.result.directory import MANIFEST
from pipeline.shared.payload import read_json

NETWORK = "inception-v3"
TARGET_S = 180.0


def figures() -> Iterator[Figure]:
    """Yield the seconds of the command, then of each stage."""
    with tempfile.TemporaryDirectory() as folder:
        run, store = Path(folder) / "run", Path(folder) / "store"
        command = [str(PLACEWRIGHT), "tune", f"zoo:{NETWORK}", "--out", str(run), "--store", str(store), "--quiet"]
        spent_s, _ = timed(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))
        stages = {stage: record["seconds"] for stage, record in read_json(run / MANIFEST)["stages"].items()}
    how = f"`placewright tune zoo:{NETWORK}` with an empty store and the default budget, once"
    yield figure("tune_time", spent_s, "s", how, target=TARGET_S)
    yield from parts("tune_time", stages | {"rest": spent_s - sum(stages.values())}, how)


if __name__ == "__main__":
    say(figures())
