"""The timeline of an answer in segments, measured on this machine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from pipeline.core.errors import MeasurementError, UsageError
from pipeline.report.timeline import MEASURED, SCHEMA, StepRecord, TimelineRecord
from pipeline.result.deployment import SPLIT, Deployment, runs_in_segments
from pipeline.result.directory import RunDirectory
from pipeline.settings.config import Settings
from pipeline.store.store import write_json
from pipeline.system.machine_lock import measuring_alone

INFERENCES = 31


def measure_timeline(folder: Path) -> None:
    """Write timeline.json into a run directory: of some inferences on this machine that of median latency.

    Segments share their tensors, so that nothing is told of transfers.

    Raises:
        StoreError: the folder holds no finished run, or cannot be written.
        UsageError: the answer does not run in segments.
        MeasurementError: the segments are damaged, or a device refuses one.
    """
    from runtime.executor.placed import PlacedError
    from runtime.executor.timing import timed_inferences

    deployment, manifest = Deployment.load(folder), RunDirectory(folder).manifest()
    if not runs_in_segments(deployment.record.target) or manifest is None:
        raise UsageError(
            f"{folder} runs as one compiled model, which tells no timeline.", "Leave --measure out, or use `where`."
        )
    settings = Settings.from_json(manifest["settings"])
    size, split = settings.measure.dynamic_size, folder / SPLIT
    try:
        with measuring_alone(lambda _: None):
            timed = timed_inferences(split, deployment.model, seed=settings.seed, dynamic_size=size, count=INFERENCES)
    except PlacedError as error:
        raise MeasurementError(
            f"The segments in {split} cannot be run: {error}.", f"Write them again: placewright measure --run {folder}"
        ) from error
    middle = sorted(timed, key=lambda inference: inference.latency_s)[len(timed) // 2]
    steps = [StepRecord(s.name, s.device, s.start_s, s.end_s) for s in middle.segments]
    devices = list(deployment.record.devices)
    write_json(folder / MEASURED, asdict(TimelineRecord(SCHEMA, devices, steps, [], middle.latency_s)))
