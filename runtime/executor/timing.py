"""When the segments of an inference really run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import openvino as ov

from pipeline.shared.model_inputs import make_inputs
from runtime.executor import placed
from runtime.executor.placed.requests import PlacedRequest
from runtime.executor.placed.runners import runner_of

WARM_UP = 5
MS = 1e3


@dataclass(frozen=True, slots=True)
class TimedSegment:
    """A segment, its device, and its begin and end in seconds from the begin of the inference."""

    name: str
    device: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class TimedInference:
    """One inference: its seconds, and its segments in the order in which they began."""

    latency_s: float
    segments: Sequence[TimedSegment]


def timed_inferences(folder: Path, model: Path, *, seed: int, dynamic_size: int, count: int) -> list[TimedInference]:
    """Return inferences, one after another, of what `split` wrote into a folder, by the runner that the folder says.

    model: the whole, which says what the inputs are; seed, dynamic_size: of their values and open dimensions.

    Raises:
        PlacedError: the folder is damaged, or a segment fails.
    """
    inputs = list(make_inputs(ov.Core().read_model(model), seed=seed, dynamic_size=dynamic_size).values())
    with placed.load(folder) as loaded:
        runner = runner_of(loaded.runner_name, loaded.wiring, 1)
        try:
            request = PlacedRequest(loaded.wiring, runner)
            timed = [_time_inference(request, inputs) for _ in range(WARM_UP + count)]
        finally:
            runner.close()
    return timed[WARM_UP:]


def _time_inference(request: PlacedRequest, inputs: Sequence[object]) -> TimedInference:
    begun_s = time.perf_counter()
    request.execute(inputs)
    taken_s = time.perf_counter() - begun_s
    segments = []
    for entry, own, start_s in zip(request.wiring.manifest.segments, request.segments, request.begun_s, strict=True):
        start_s -= begun_s
        segments.append(TimedSegment(entry.id, entry.device, start_s, start_s + own.latency / MS))
    return TimedInference(taken_s, sorted(segments, key=lambda s: s.start_s))
