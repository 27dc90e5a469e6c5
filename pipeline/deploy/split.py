"""A placed model in segments, written to a folder, and such folders and runs loaded."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.core.devices import DeviceSpec, computes_together
from pipeline.core.errors import OutputMismatchError, StoreError, UsageError
from pipeline.core.graph import Graph, leaders
from pipeline.core.placement import Placement
from pipeline.core.settings import MeasureSettings
from pipeline.deploy.several import is_scenario_run, load_several
from pipeline.placing.near import devices_of
from pipeline.result.deployment import SPLIT, Deployment
from pipeline.result.directory import MANIFEST
from pipeline.result.records import RegisteredRecord
from pipeline.shared.checks import FACTS, REFERENCE, ReferenceOrder
from pipeline.shared.json_object import read_object
from pipeline.shared.payload import from_json, load_graph, read_json
from pipeline.stages.host import look_at_model

logger = logging.getLogger(__name__)
CHECKED_S = 20.0  # for comparing a model with its source, at most twice as long

if TYPE_CHECKING:
    from coarsen.reading.sizes.shapes import InputShapes
    from runtime.executor.placed import SplitManifest
    from runtime.executor.splitting import HowToRun


def split(
    model: Path,
    placement: Path,
    out: Path,
    *,
    devices: str | None = None,
    how: HowToRun | None = None,
    shapes: InputShapes | None = None,
) -> SplitManifest:
    """Write the folder that runs a model in the segments of a placement; return its manifest.

    placement: JSON {operation: device}, or a document with `placement`, perhaps `priority` and perhaps `devices`, such
    as a run's placement.json. Constants, inputs and outputs may be left out. devices: as the command line takes them;
    None for those of the document, or else the machine's own. how: by threads, one inference at a time, if None.

    Raises:
        UsageError: the placement does not fit the model, or parts what must run in one sub-model.
        ModelError: the model cannot be read.
        DeviceError: the machine does not have a device.
        StoreError: the folder cannot be written.
        OutputMismatchError: the model as it is read, or what was written, gives other outputs than its source.
    """
    document = _read_placement(placement)
    specs = _placement_devices(document, devices)
    return _write_split(model, document, specs, out, how=how, shapes=shapes)


def load(folder: str | Path, *, runner: Any = None, requests: int | None = None) -> Any:
    """Return the model of a folder that `split` wrote, or of a finished run, compiled and ready to run in segments.

    That is a `PlacedModel`. Where ONNX Runtime is the answer of a run, it is loaded there, as an `OnnxModel`, takes no
    runner, and as many callers as there are. Of a scenario's run it is a mapping, name -> model, `LoadedModels`.

    runner: serial, level, threads or pipeline; None for what the folder says. requests: inferences in flight.

    Raises:
        StoreError: the folder holds neither.
        UsageError: the run leaves it to AUTO or HETERO where operations run; or runner or requests are given for
            several models, each of which has its own.
        PlacedError: the segments are damaged, or a device refuses one.
        MissingPackageError: ONNX Runtime is the answer, and not installed.
    """
    from coarsen.reading.sizes.shapes import InputShapes
    from runtime.executor import placed
    from runtime.executor.onnx_session import OnnxModel
    from runtime.executor.segments import segment_graph
    from runtime.executor.splitting import HowToRun, how_to_run, placed_in_memory

    path = Path(folder)
    if is_scenario_run(path):
        if runner is not None or requests is not None:
            raise UsageError(f"{path} holds several models.", "Load one of them to give it a runner or requests.")
        return load_several(path, load)
    for place in (path, path / SPLIT):
        if _holds_split(place):
            return placed.load(place, runner=runner, requests=requests)
    deployment = Deployment.load(path)
    record = deployment.record
    if deployment.in_onnxruntime:
        return OnnxModel(deployment.model, deployment.onnx_options, record.target.split(","))
    devices = _device_specs(record.devices)
    if not record.placement or (len(devices) > 1 and not deployment.is_split):
        raise UsageError(
            f"{path} lets {record.target} choose the devices: there are no segments.",
            "Take pipeline.Result.load(run).compile().",
        )
    if computes_together(record.target):  # as which the only device computes requests together
        (device,) = devices
        properties = {**device.properties, **record.properties}
        devices = (replace(device, openvino_name=record.target, properties=properties),)
    how = how_to_run(runner or HowToRun().runner, record.requests if requests is None else requests)
    as_placed = InputShapes(keep_dynamic=True)  # the placed model has the shapes that it was placed with
    document = {"placement": record.placement, "priority": record.priority}
    compiler = placed.SegmentCompiler()
    with tempfile.TemporaryDirectory(prefix="placewright-") as scratch:
        model, graph, placement = _read_placed_model(deployment.model, document, devices, Path(scratch), as_placed)
        parts = segment_graph(graph, placement)
        return placed_in_memory(compiler.core.read_model(model), parts, devices, how, compiler)


def _device_specs(records: Mapping[str, RegisteredRecord]) -> tuple[DeviceSpec, ...]:
    """Return the devices of a placement's record."""
    from runtime.machines.devices import registered_device

    return tuple(registered_device(name, d.plugin, d.openvino_name, d.properties) for name, d in records.items())


def _holds_split(folder: Path) -> bool:
    """Return whether a folder holds the manifest of a split model."""
    from runtime.executor.placed.manifest import SCHEMA

    file = folder / MANIFEST
    if not file.is_file():
        return False
    try:
        document = read_json(file)
    except (OSError, ValueError) as error:
        raise StoreError(f"{file} is damaged.", "Write it again with `placewright split`.") from error
    return isinstance(document, Mapping) and document.get("schema") == SCHEMA


def _write_split(
    model: Path,
    document: Mapping[str, Any],
    devices: Sequence[DeviceSpec],
    out: Path,
    *,
    how: HowToRun | None = None,
    shapes: InputShapes | None = None,
) -> SplitManifest:
    from runtime.executor.splitting import HowToRun, split_file

    with tempfile.TemporaryDirectory(prefix="placewright-") as scratch:
        folder = Path(scratch)
        plain, graph, placement = _read_placed_model(model, document, devices, folder, shapes, compared=True)
        manifest = split_file(plain, graph, placement, devices, out, how or HowToRun())
        _compare_with_source(out, model, folder)
        return manifest


def _compare_with_source(out: Path, model: Path, folder: Path) -> None:
    """Check that the segments in `out` give what the source of their model does; folder: as the read step leaves it.

    Raises:
        OutputMismatchError: they do not; their manifest is gone.
    """
    from pipeline.deploy.departures import output_departures
    from pipeline.deploy.two_runs import outputs_of_segments
    from runtime.measuring.outputs.outputs import Reference, format_percent
    from runtime.measuring.outputs.quality import limits_for, reference_beside, same_within
    from runtime.measuring.process.child import ChildError

    if not (folder / REFERENCE).exists():
        why = " ".join(read_json(folder / FACTS)["why_not"])
        logger.warning("The outputs of the segments were not compared with those of %s. %s", model, why)
        return
    reference = reference_beside(folder)
    try:
        actual, precisions = outputs_of_segments(out, folder, list(reference.outputs))
    except ChildError as error:
        logger.warning("The segments do not run here, and were not compared with %s. %s", model, error.cause)
        return
    limits = same_within(limits_for(precisions, Reference({}), MeasureSettings()).output)
    judged = output_departures(actual, reference, limits)
    worst = max(judged, key=lambda one: one.order)
    if worst.departs:
        (out / MANIFEST).unlink()
        raise OutputMismatchError(
            f"The outputs of the segments differ from {model} by {worst.difference} on the inputs {worst.inputs!r} "
            f"({format_percent(worst.allowed)} allowed). {out / MANIFEST} was removed.",
            "Find the first operation that differs: placewright where MODEL --outputs, on each device.",
        )


def _read_placed_model(
    model: Path,
    document: Mapping[str, Any],
    devices: Sequence[DeviceSpec],
    folder: Path,
    shapes: InputShapes | None,
    *,
    compared: bool = False,
) -> tuple[Path, Graph, Placement]:
    """Return the file of a model as the reader leaves it in a folder, its graph, and the placement of all of that.

    compared: whether it is compared with its source, and read another way where its outputs depart.

    Raises:
        OutputMismatchError: its outputs depart whichever way it is read.
    """
    from coarsen.reading.model.constant_growth import ReadLimits
    from coarsen.reading.read_in_process import read_in_process
    from coarsen.reading.sizes.shapes import InputShapes
    from pipeline.stages.repair_outputs import read_faithfully, source_of

    known, limits = look_at_model(model), ReadLimits()

    alike: Mapping[str, Any] = {"dynamic_cuts": True}
    if compared:
        order = ReferenceOrder(source=True, seconds=CHECKED_S, limit_s=2 * CHECKED_S, inferences=1)
        source = source_of(known, limits, locate_s=CHECKED_S, **alike)
        read_faithfully(source, folder, shapes or InputShapes(), order)
    else:
        read_in_process(known.path, folder, source=known.sha256, limits=limits, shapes=shapes, **alike)
    graph = load_graph(folder / "graph.npz")
    names = tuple(d.name for d in devices)
    way = read_json(folder / FACTS)["way"] if compared else ""
    try:
        return folder / "model.xml", graph, _complete_placement(document, graph, names)
    except UsageError as error:
        if not way:
            raise
        raise OutputMismatchError(
            f"{model} computes something else once it is read as usual, and the placement does not fit it as it is "
            f"right, where {way}: {error.cause}",
            "Make a placement of it as it is then: placewright tune.",
        ) from error


def _read_placement(path: Path) -> Mapping[str, Any]:
    """Return the document of a placement, its operations under `placement`."""
    document = read_object(path, "a placement")
    devices = devices_of(document, str(path))
    if not devices:
        raise UsageError(
            f"{path} holds no placement of operations.", "Pass a placement.json, or JSON {operation: device}."
        )
    return document if devices is not document else {"placement": devices}


def _placement_devices(document: Mapping[str, Any], devices: str | None) -> tuple[DeviceSpec, ...]:
    """Return the devices of a placement: those that are named, those of its document, or the machine's own."""
    from runtime.machines.devices import discover_plugins, parse_devices

    used = sorted(set(document["placement"].values()))
    if devices is not None:
        return parse_devices([devices], discover_plugins())
    if isinstance(document.get("devices"), Mapping):
        try:
            records = {name: from_json(RegisteredRecord, device) for name, device in document["devices"].items()}
        except ValueError as error:
            raise UsageError("The placement's `devices` are damaged.", "Name them with --devices.") from error
        return _device_specs(records)
    here = discover_plugins()
    unknown = [name for name in used if name not in here]
    if unknown:
        raise UsageError(
            f"The placement defines no device {', '.join(unknown)}.", "Name the devices: --devices 'A=CPU{...},GPU'."
        )
    return parse_devices(used, here)


def _complete_placement(document: Mapping[str, Any], graph: Graph, devices: tuple[str, ...]) -> Placement:
    """Return the placement; inputs, constants and outputs that it leaves out go where they are read or made."""
    given: dict[str, str] = dict(document["placement"])
    leader = leaders(graph)
    for i in np.flatnonzero(leader != np.arange(graph.n)).tolist():
        name, first = graph.names[i], graph.names[leader[i]]
        if name not in given and first in given:
            given[name] = given[first]
    return Placement.from_document({"placement": given, "priority": document.get("priority")}, graph.names, devices)
