"""A placement for OpenVINO Model Server: a model per segment, and a pipeline that starts each as soon as it can.

Source: openvinotoolkit/model_server, docs/dag_scheduler.md and src/schema.cpp.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core.errors import StoreError, UsageError
from pipeline.result.deployment import EVERYTHING, PLACEMENT, SPLIT, Deployment, runs_in_segments
from pipeline.store.store import write_json
from pipeline.system.private_files import copy_whole, make_alike

if TYPE_CHECKING:
    from runtime.executor.placed import SplitManifest
    from runtime.executor.placed.manifest import SegmentEntry

REQUEST = "request"  # the server's word for what the client sends
VERSION = "1"  # a model repository has a folder per version of a model
OUT_CONFIG, OUT_MODELS, SEGMENT_IR = "config.json", "models", "model.xml"


def server_pipeline(deployment: Deployment, out: Path) -> list[Path]:
    """Write a model repository of the segments of a run, and a config.json whose pipeline joins them.

    Raises:
        UsageError: the run leaves it to a device string where operations run, or the server cannot express the model.
    """
    _check_deployment(deployment)
    with tempfile.TemporaryDirectory(prefix="placewright-") as folder:
        manifest, source = _find_segments(deployment, Path(folder))
        _check_joints(deployment, manifest)
        paths = [
            _write_segment(segment, source, Path(folder) / segment.id, out / _base_path(deployment, segment))
            for segment in manifest.segments
        ]
    models = [{"config": _model_config(deployment, manifest, segment)} for segment in manifest.segments]
    config = {"model_config_list": models, "pipeline_config_list": [_pipeline_document(deployment, manifest)]}
    write_json(out / OUT_CONFIG, config)
    return [out / OUT_CONFIG, *(path for pair in paths for path in pair)]


def _find_segments(deployment: Deployment, scratch: Path) -> tuple[SplitManifest, Path]:
    """Return the segments of a run and the folder that they are in: those that were measured, else made now.

    Raises:
        StoreError: those that were measured are damaged.
    """
    from coarsen.reading.sizes.shapes import InputShapes
    from pipeline.deploy.split import split
    from runtime.executor.placed.errors import ManifestError
    from runtime.executor.placed.manifest import read_manifest

    if runs_in_segments(deployment.record.target):
        try:
            return read_manifest(deployment.path / SPLIT), deployment.path / SPLIT
        except ManifestError as error:
            raise StoreError(f"{error}.", f"Write it again: placewright measure --run {deployment.path}") from error
    as_placed = InputShapes(keep_dynamic=True)  # the placed model has the shapes that it was placed with
    return split(deployment.model, deployment.path / PLACEMENT, scratch / SPLIT, shapes=as_placed), scratch / SPLIT


def _check_deployment(deployment: Deployment) -> None:
    from runtime.executor.served import keeps_state

    deployment.check_in_openvino()
    if not deployment.record.placement or (len(deployment.record.devices) > 1 and not deployment.is_split):
        raise UsageError(
            f"{deployment.path} lets {deployment.record.target} choose the devices: there are no segments.",
            "Use the target ovms.",
        )
    if keeps_state(deployment.model):
        raise UsageError(
            f"The model of {deployment.path} keeps a state from one inference to the next; "
            "the server's pipelines cannot.",
            f"Use the target {EVERYTHING}.",
        )


def _check_joints(deployment: Deployment, manifest: SplitManifest) -> None:
    """Check that the server can join the segments: each waits for something, and outputs are made by one of them."""
    given = {port.tensor for port in manifest.inputs}
    passed = [port.names[0] for port in manifest.outputs if port.tensor in given]
    if passed or not all(segment.inputs for segment in manifest.segments):
        what = f"its output {passed[0]} is an input" if passed else "a segment depends on no input"
        raise UsageError(f"{deployment.path} has no pipeline for the server: {what}.", f"Use the target {EVERYTHING}.")


def _model_name(deployment: Deployment, segment: SegmentEntry) -> str:
    return f"{deployment.name}_{segment.id}"


def _base_path(deployment: Deployment, segment: SegmentEntry) -> Path:
    return Path(OUT_MODELS) / _model_name(deployment, segment)


def _write_segment(segment: SegmentEntry, source: Path, scratch: Path, base: Path) -> list[Path]:
    """Write the only version of a segment's model; return its files. source: the folder of the segments."""
    from runtime.executor.served import save_served

    written = scratch / SEGMENT_IR
    scratch.mkdir()
    save_served(segment, source / segment.file, written)
    copies = [base / VERSION / written.with_suffix(suffix).name for suffix in (".xml", ".bin")]
    try:
        make_alike(base / VERSION)
        for copy in copies:
            copy_whole(written.with_name(copy.name), copy)
    except OSError as error:
        raise StoreError(
            f"{base} cannot be written: {error.strerror}.", "Free disk space, or use another folder with --out."
        ) from error
    return copies


def _model_config(deployment: Deployment, manifest: SplitManifest, segment: SegmentEntry) -> dict[str, Any]:
    """Return the server's entry for a segment: its plug-in, and the properties of its device.

    Every model has properties of its own, so that two named devices of one plug-in stay two.
    """
    device = manifest.devices[segment.device]
    return {
        "name": _model_name(deployment, segment),
        "base_path": _base_path(deployment, segment).as_posix(),
        "target_device": device.plugin,
        "nireq": deployment.record.requests,
        "plugin_config": {key: str(value) for key, value in device.properties.items() if key != "DEVICE_ID"},
    }


def _pipeline_document(deployment: Deployment, manifest: SplitManifest) -> dict[str, Any]:
    """Return the pipeline: what it takes and gives is called as the model calls it, between segments go tensors."""
    source = {port.tensor: (REQUEST, port.names[0]) for port in manifest.inputs}
    source |= {name: (segment.id, name) for segment in manifest.segments for name in segment.outputs}
    nodes = [_pipeline_node(deployment, segment, source) for segment in manifest.segments]
    outputs = {port.names[0]: port for port in manifest.outputs}  # two Results of one tensor are one output
    return {
        "name": deployment.name,
        "inputs": [port.names[0] for port in manifest.inputs],
        "nodes": nodes,
        "outputs": [{label: _data_item(source[port.tensor])} for label, port in outputs.items()],
    }


def _pipeline_node(
    deployment: Deployment, segment: SegmentEntry, source: Mapping[str, tuple[str, str]]
) -> dict[str, Any]:
    """Return the node of a segment; source: tensor -> the node that gives it, and what that calls it."""
    return {
        "name": segment.id,
        "model_name": _model_name(deployment, segment),
        "type": "DL model",
        "inputs": [{name: _data_item(source[name])} for name in segment.inputs],
        "outputs": [{"data_item": name, "alias": name} for name in segment.outputs],
    }


def _data_item(source: tuple[str, str]) -> dict[str, str]:
    node, item = source
    return {"node_name": node, "data_item": item}
