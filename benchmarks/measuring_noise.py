"""How much measurements of one and the same variant differ: the smallest gain the protocol can show."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from benchmarks.common import Figure, figure, say, silent, zoo_model
from pipeline.core.measurement import Measurement, MeasurementFailed, median_interval, ratio_interval
from pipeline.core.settings import MeasureSettings
from runtime.machines.devices import discover, make_spec
from runtime.measuring.interleave import interleave
from runtime.measuring.variant import Variant

NETWORK = "resnet50"
NAMES = ("first", "second", "third")
THREADS = "2"
ROUNDS = 12


def figures() -> Iterator[Figure]:
    """Yield the figures of the default protocol, then of the one under SCHED_RR."""
    with tempfile.TemporaryDirectory() as folder:
        model, _ = zoo_model(NETWORK, Path(folder))
        for realtime in (False, True):
            settings = MeasureSettings(rounds=ROUNDS, realtime=realtime)
            results = measure(model, settings, Path(folder) / f"rounds-{realtime}.jsonl")
            name = f"measuring_noise.{'default' if realtime else 'plain'}"
            how = (
                f"zoo:{NETWORK} on {THREADS} CPU threads, one variant under {len(NAMES)} names, interleaved, "
                f"{settings.rounds} rounds of {settings.batch_s:g} s each, realtime={realtime}"
            )
            yield from noise(name, results, how)


def measure(model: Path, settings: MeasureSettings, journal: Path) -> dict[str, Measurement | MeasurementFailed]:
    """Return what the equal variants gave."""
    properties = {"INFERENCE_NUM_THREADS": THREADS, "INFERENCE_PRECISION_HINT": "f32"}
    device = make_spec("A", "CPU", properties, discover())
    variants = [Variant(name, "baseline", device.openvino_name, (device,), single=True) for name in NAMES]
    return interleave(variants, model, settings, seed=0, journal=journal, progress=silent)


def noise(name: str, results: Mapping[str, Measurement | MeasurementFailed], how: str) -> Iterator[Figure]:
    """Yield how far apart the variants lie, each against its own interval and against one another."""
    failed = [f"{r.kind}, {r.message}" for r in results.values() if isinstance(r, MeasurementFailed)]
    if failed:
        yield figure(f"{name}.cv", None, "%", f"not measured: {failed[0]}; {how}")
        return
    samples = [r.samples_s for r in results.values() if isinstance(r, Measurement)]
    medians = np.array([np.median(s) for s in samples])
    yield figure(f"{name}.median", float(np.median(medians)) * 1e3, "ms", f"median of the variants' medians; {how}")
    spread = float(np.std(medians, ddof=1) / medians.mean())
    yield figure(f"{name}.cv", 100 * spread, "%", f"coefficient of variation of the variants' medians; {how}")
    intervals = [median_interval(s) for s in samples]
    half = float(np.median([(i.high - i.low) / 2 / i.median for i in intervals]))
    yield figure(
        f"{name}.half_width", 100 * half, "%", f"half the 95 % interval of a median, median of the variants; {how}"
    )
    first = ratio_interval(samples[0], samples[1])
    for word, value in (("median", first.median), ("low", first.low), ("high", first.high)):
        what = "paired ratio of the first variant to the second, median" if word == "median" else "95 % interval of it"
        yield figure(f"{name}.ratio_{word}", value, "1", f"{what}; {how}")
    worst = max(abs(ratio_interval(a, b).median - 1) for a, b in itertools.combinations(samples, 2))
    yield figure(f"{name}.ratio_worst", 100 * worst, "%", f"largest distance of a pair's ratio from 1; {how}")


if __name__ == "__main__":
    say(figures())
