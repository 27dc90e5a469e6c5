"""What a finished run says to deploy, and the same in the words of tools that know plug-ins alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pipeline.core.devices import DATAFLOW
from pipeline.core.errors import StoreError, UsageError
from pipeline.result.directory import RunDirectory
from pipeline.result.onnx_copy import ONNX
from pipeline.result.records import PlacementRecord, RegisteredRecord
from pipeline.shared.payload import from_json, read_json
from pipeline.system.paths import is_file

PLACEMENT = "placement.json"
SPLIT = "split"  # where in a run directory the segments of its answer lie, if it is run in segments
EVERYTHING = "python or cpp"  # the targets that can express whatever can be measured


@dataclass(frozen=True, slots=True)
class PlainTarget:
    """What OpenVINO's own devices are told, without named ones.

    target: the device string. devices: {plug-in: its properties}. properties: of the target itself where that is AUTO
    or HETERO, otherwise none.
    """

    target: str
    devices: Mapping[str, Mapping[str, str]]
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Deployment:
    """A run directory that holds a placed model, and what its placement.json says."""

    path: Path
    record: PlacementRecord

    @classmethod
    def load(cls, path: Path) -> Deployment:
        """Return what a run directory says to deploy.

        Raises:
            StoreError: it holds no run, one that is not finished, or files that are damaged or missing.
        """
        file = path / PLACEMENT
        if not file.is_file():
            raise _unfinished_error(path)
        try:
            record = from_json(PlacementRecord, read_json(file))
            file_of_run = PurePosixPath(record.model.file)
            if not file_of_run.name or file_of_run.parent not in (PurePosixPath(), PurePosixPath(ONNX)):
                raise ValueError("its model lies elsewhere")
        except (OSError, ValueError) as error:
            raise StoreError(f"{file} is damaged.", f"Write it again: placewright measure --run {path}") from error
        deployment = cls(path, record)
        for part in (deployment.model, *(() if deployment.in_onnxruntime else (deployment.weights,))):
            if not is_file(part):
                raise StoreError(f"{part} is missing.", f"Write it again: placewright measure --run {path}")
        return deployment

    @property
    def model(self) -> Path:
        """Return the path of the placed model."""
        return self.path / self.record.model.file

    @property
    def weights(self) -> Path:
        """Return the path of the placed model's weights."""
        return self.model.with_suffix(".bin")

    @property
    def name(self) -> str:
        """Return the model's name as servers take it in addresses: letters, digits, dashes and underlines."""
        manifest = RunDirectory(self.path).manifest()
        stem = "model" if manifest is None else Path(manifest["model"]["path"]).stem
        return re.sub(r"[^A-Za-z0-9_-]+", "_", stem).strip("_") or "model"

    @property
    def in_onnxruntime(self) -> bool:
        """Return whether ONNX Runtime runs the model, an ONNX file then, and not OpenVINO."""
        return self.record.runtime == "onnxruntime"

    @property
    def onnx_options(self) -> dict[str, str]:
        """Return the options of ONNX Runtime's session, by its own names for them."""
        return {name: value for device in self.record.devices.values() for name, value in device.properties.items()}

    @property
    def is_split(self) -> bool:
        """Return whether operations have devices of their own, which OpenVINO forgets when a model is saved."""
        target = self.record.target
        return (target.startswith("HETERO") or runs_in_segments(target)) and bool(self.record.placement)

    def check_whole(self, why: str) -> None:
        """Check that OpenVINO runs the model as one.

        Raises:
            UsageError: it runs in segments, and so what was asked for cannot be done; `why` says what that is; or
                ONNX Runtime runs it.
        """
        self.check_in_openvino()
        if runs_in_segments(self.record.target):
            raise UsageError(
                f"{self.path} runs the model in segments, {why}.",
                f"Use {self.path / SPLIT} (needs openvino and numpy only), pipeline.load, or --to ovms-dag.",
            )

    def check_in_openvino(self) -> None:
        """Check that OpenVINO runs the model.

        Raises:
            UsageError: ONNX Runtime does.
        """
        if self.in_onnxruntime:
            raise UsageError(
                f"{self.path} runs the model by ONNX Runtime, and not by OpenVINO.",
                "Take pipeline.load, or --to python; a run with --runtimes openvino has an answer of OpenVINO's.",
            )

    @property
    def affinities(self) -> dict[str, str]:
        """Return {operation: device as OpenVINO knows it} of a split, {} of anything else."""
        known = {name: device.openvino_name for name, device in self.record.devices.items()}
        return {op: known[device] for op, device in self.record.placement.items()} if self.is_split else {}

    def plain(self, target: str) -> PlainTarget:
        """Return the run for `target`, a tool that knows plug-ins alone: a named device becomes its plug-in.

        Raises:
            UsageError: the run cannot be told without named devices or affinities.
        """
        record = self.record
        self.check_whole(f"which {target} cannot express")
        if self.is_split:
            raise UsageError(
                f"{self.path} splits the model over {', '.join(record.devices)}, which {target} cannot express.",
                f"Use the target {EVERYTHING}.",
            )
        mode, colon, _ = record.target.partition(":")
        if not colon and len(record.devices) == 1:
            (device,) = record.devices.values()
            return PlainTarget(device.plugin, {device.plugin: _own_properties(device) | record.properties}, {})
        plugins = [d.plugin for d in record.devices.values()]
        if len(set(plugins)) != len(plugins):
            raise UsageError(
                f"{self.path} runs on {', '.join(record.devices)}, which {target} cannot distinguish: "
                f"it knows {', '.join(sorted(set(plugins)))}.",
                f"Use the target {EVERYTHING}.",
            )
        order = ",".join(self._listed())
        return PlainTarget(
            f"{mode}:{order}" if order else mode,
            {d.plugin: _own_properties(d) for d in record.devices.values()},
            record.properties,
        )

    def _listed(self) -> list[str]:
        """Return the plug-ins of the devices that the target lists, in its order."""
        plugins = {d.openvino_name: d.plugin for d in self.record.devices.values()}
        listed = [name.partition("(") for name in self.record.target.partition(":")[2].split(",") if name]
        return [f"{plugins[name]}{paren}{size}" for name, paren, size in listed]  # BATCH:CPU(4)


def runs_in_segments(target: str) -> bool:
    """Return whether a target stands for segments that the executor runs."""
    return target.partition(":")[0] == DATAFLOW


def _own_properties(device: RegisteredRecord) -> dict[str, str]:
    """Return the properties of a device but its number, which the name of its plug-in already says."""
    return {key: value for key, value in device.properties.items() if key != "DEVICE_ID"}


def _unfinished_error(path: Path) -> StoreError:
    """Return the error of a folder without a placement: no run, or one that has come to some stage only."""
    manifest = RunDirectory(path).manifest()
    if manifest is None:
        return StoreError(
            f"{path} is not a run directory.", "Pass the run directory of `placewright tune MODEL --out DIR`."
        )
    last = list(manifest["stages"])[-1:] or ["the start"]
    return StoreError(
        f"The run in {path} is not finished: its last stage is {last[0]}.", f"placewright measure --run {path}"
    )
