"""A folder that runs a placed model in segments: one IR per segment, manifest.json, and the program that runs them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import get_args

import openvino as ov

from pipeline.core.devices import DeviceSpec
from pipeline.core.errors import StoreError, UnknownNameError
from pipeline.core.graph import Graph
from pipeline.core.placement import Placement
from pipeline.shared.payload import whole_ir
from pipeline.system.private_files import copy_whole, make_alike, write_whole
from pipeline.system.process import cpu_count
from runtime.executor.building import SegmentedModel, cut_model
from runtime.executor.placed.compiling import SegmentCompiler
from runtime.executor.placed.manifest import (
    MANIFEST,
    SCHEMA,
    DeviceEntry,
    RunnerName,
    SegmentEntry,
    SplitManifest,
)
from runtime.executor.placed.model import PlacedModel
from runtime.executor.segments import Segmentation, segment_graph
from runtime.machines.devices import LIBRARIES, THREADS

PROGRAM = "placed"  # the folder of what runs the segments, beside them
# A segment runs one inference at a time. With the default pinning two compiled models share a core.
CPU_PROPERTIES: Mapping[str, str] = {"NUM_STREAMS": "1", "ENABLE_CPU_PINNING": "NO"}


@dataclass(frozen=True, slots=True)
class HowToRun:
    """How segments are to be run: by which runner, and how many inferences at a time."""

    runner: RunnerName = "threads"
    requests: int = 1


def device_entries(devices: Sequence[DeviceSpec]) -> dict[str, DeviceEntry]:
    """Return what the manifest says of devices: all that decides how they run, threads and pinning among it."""
    return {d.name: _device_entry(d) for d in devices}


def _device_entry(device: DeviceSpec) -> DeviceEntry:
    base = device.plugin.partition(".")[0]
    stated = {**CPU_PROPERTIES, THREADS: str(cpu_count())} if base == "CPU" else {}
    library = LIBRARIES[base] if device.is_alias else ""
    return DeviceEntry(device.openvino_name, device.plugin, library, stated | dict(device.properties))


def how_to_run(runner: str, requests: int) -> HowToRun:
    """Return how segments are to be run.

    Raises:
        UnknownNameError: there is no such runner.
    """
    names: tuple[RunnerName, ...] = get_args(RunnerName)
    for name in names:
        if name == runner:
            return HowToRun(name, requests)
    raise UnknownNameError("runner", runner, names)


def split_file(
    model: Path, graph: Graph, placement: Placement, devices: Sequence[DeviceSpec], out: Path, how: HowToRun
) -> SplitManifest:
    """Write the folder of a model that lies in a file; see `split_model`."""
    return split_model(ov.Core().read_model(model), graph, placement, devices, out, how)


def split_model(
    model: ov.Model, graph: Graph, placement: Placement, devices: Sequence[DeviceSpec], out: Path, how: HowToRun
) -> SplitManifest:
    """Write the folder that runs a placement of a model's operations in segments; return its manifest.

    model, graph: as the reader makes them. What was in the folder of an earlier split is replaced.

    Raises:
        UsageError: the placement parts what must run in one sub-model.
        StoreError: the folder cannot be written.
    """
    segments = segment_graph(graph, placement)
    pieces = cut_model(model, segments.segments)
    try:
        make_alike(out)
        for old in [out / MANIFEST, *out.glob("segment*.xml"), *out.glob("segment*.bin")]:
            old.unlink(missing_ok=True)
        digests = [_save_segment(piece.model, out / f"segment{s}.xml") for s, piece in enumerate(pieces.segments)]
        manifest = manifest_of(segments, pieces, device_entries(devices), digests, graph.source, how)
        # Copy the program that runs segments, which needs openvino and numpy alone
        folder = out / PROGRAM
        make_alike(folder)
        source = files("runtime.executor.placed")
        for entry in source.iterdir():
            if entry.name.endswith(".py"):
                copy_whole(Path(str(entry)), folder / entry.name)
        write_whole(out / MANIFEST, (json.dumps(asdict(manifest), indent=1) + "\n").encode())
    except OSError as error:
        raise StoreError(f"{out} cannot be written: {error.strerror}.", "Choose a folder you may write to.") from error
    return manifest


def manifest_of(
    segments: Segmentation,
    pieces: SegmentedModel,
    devices: Mapping[str, DeviceEntry],
    digests: Sequence[str],
    source: str,
    how: HowToRun,
) -> SplitManifest:
    """Return the manifest of a model in segments; digests: one per segment, equal for equal models."""
    rows = zip(segments.segments, pieces.segments, digests, strict=True)
    entries = tuple(
        SegmentEntry(
            id=f"segment{s}",
            file=f"segment{s}.xml",
            sha256=digest,
            device=spec.device,
            priority=spec.priority,
            inputs=piece.inputs,
            outputs=piece.outputs,
            operations=spec.operations,
        )
        for s, (spec, piece, digest) in enumerate(rows)
    )
    used = {spec.device for spec in segments.segments}
    return SplitManifest(
        schema=SCHEMA,
        source=source,
        runner=how.runner,
        requests=how.requests,
        devices={name: entry for name, entry in devices.items() if name in used},
        tensors=pieces.tensors,
        inputs=pieces.inputs,
        outputs=pieces.outputs,
        segments=entries,
        moved=segments.moved,
    )


def placed_in_memory(
    model: ov.Model, segments: Segmentation, devices: Sequence[DeviceSpec], how: HowToRun, compiler: SegmentCompiler
) -> PlacedModel:
    """Return a model in segments, compiled, without a folder.

    compiler: compiles for this one model alone; a segment that it has compiled before it does not compile again.

    Raises:
        SegmentError: a device refuses its segment.
    """
    pieces = cut_model(model, segments.segments)
    rows = zip(segments.segments, pieces.segments, strict=True)
    digests = [
        hashlib.sha256(json.dumps([spec.operations, piece.inputs, piece.outputs]).encode()).hexdigest()
        for spec, piece in rows
    ]
    manifest = manifest_of(segments, pieces, device_entries(devices), digests, "", how)
    return PlacedModel(manifest, [partial(_whole_model, piece.model) for piece in pieces.segments], compiler)


def _whole_model(model: ov.Model) -> ov.Model:
    return model


def _save_segment(model: ov.Model, xml: Path) -> str:
    """Write a segment's IR; return the sha256 of both its files."""
    with whole_ir(xml) as written:
        ov.save_model(model, written, compress_to_fp16=False)
        return hashlib.sha256(written.read_bytes() + written.with_suffix(".bin").read_bytes()).hexdigest()
