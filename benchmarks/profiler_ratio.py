"""How long profiling one device takes, beside 200 plain inferences on it."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common import Figure, figure, say, silent, timed, zoo_model
from pipeline.core.devices import DeviceSpec
from pipeline.core.graph import Graph
from pipeline.core.settings import MeasureSettings, ProfileSettings
from runtime.machines.devices import discover_plugins, make_spec
from runtime.measuring.contest.variant import Variant, start_child
from runtime.measuring.profile.profile import profile_model

NETWORK = "resnet50"
INFERENCES = 200
PAIRS = 3
TARGET = 2.0
SETTINGS = MeasureSettings()


def figures() -> Iterator[Figure]:
    """Yield the ratio, and the seconds of its two sides."""
    device = make_spec(
        "A", "CPU", {"INFERENCE_NUM_THREADS": "1", "INFERENCE_PRECISION_HINT": "f32"}, discover_plugins()
    )
    with tempfile.TemporaryDirectory() as folder:
        model, graph = zoo_model(NETWORK, Path(folder))
        pairs = [(profile_s(model, graph, device), plain_s(model, device)) for _ in range(PAIRS)]
    how = f"zoo:{NETWORK} on one CPU thread in f32, the two sides by turns, median of {PAIRS} pairs"
    yield figure(
        "profiler_ratio",
        statistics.median(ours / plain for ours, plain in pairs),
        "1",
        f"The profiler with {ProfileSettings().inferences} inferences over child start, compilation and "
        f"{INFERENCES} plain inferences; {how}",
        target=TARGET,
    )
    yield figure("profiler_ratio.profile", statistics.median(p[0] for p in pairs), "s", f"profile; {how}")
    yield figure(
        "profiler_ratio.plain",
        statistics.median(p[1] for p in pairs),
        "s",
        f"child start, compilation and {INFERENCES} inferences; {how}",
    )


def profile_s(model: Path, graph: Graph, device: DeviceSpec) -> float:
    """Return the seconds of profiling one device with the default settings, all its processes included."""
    return timed(
        lambda: profile_model(
            model,
            graph,
            (device,),
            ProfileSettings(),
            measuring=SETTINGS,
            seed=0,
            progress=silent,
        )
    )[0]


def plain_s(model: Path, device: DeviceSpec) -> float:
    """Return the seconds of a measuring process that compiles the model and runs it without counters."""

    def run() -> None:
        child, _ = start_child(Variant("A", "baseline", device.openvino_name, (device,)), model, SETTINGS, seed=0)
        with child:
            child.ask("run", seconds=0.0, minimum=INFERENCES, realtime=False)

    return timed(run)[0]


if __name__ == "__main__":
    say(figures())
