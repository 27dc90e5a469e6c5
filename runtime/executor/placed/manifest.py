"""What manifest.json of a split model says: its segments, the devices they run on, and the tensors between them."""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from .errors import ManifestError

MANIFEST = "manifest.json"
SCHEMA: Literal["placewright.split/1"] = "placewright.split/1"
RunnerName = Literal["serial", "level", "threads", "pipeline"]


@dataclass(frozen=True, slots=True)
class DeviceEntry:
    """A device: what OpenVINO calls it, and the plug-in that is registered under this name unless it is its own.

    library: of the plug-in to register, "" for none. properties: of every segment that is compiled for it.
    """

    openvino_name: str
    plugin: str
    library: str = ""
    properties: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor: its element type as OpenVINO writes it, and its shape, -1 for what is dynamic; None: any rank."""

    type: str
    shape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class PortEntry:
    """An input or output of the whole model: the tensor that it is, and what the model calls it."""

    tensor: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """A segment: its IR, the device that runs it, and which tensors it takes and gives, by their names in the IR.

    file: the .xml beside the manifest. sha256: of the .xml and the .bin, one after the other. priority: among segments
    that are ready the smaller runs first. operations: of the model, that it runs.
    """

    id: str
    file: str
    sha256: str
    device: str
    priority: float
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    operations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SplitManifest:
    """A model in segments, in an order in which they can run one after another.

    runner: how they are run unless one says otherwise. requests: inferences in flight. source: sha256 of the model.
    moved: operations that run elsewhere than the placement says.
    """

    schema: Literal["placewright.split/1"]
    source: str
    runner: RunnerName
    requests: int
    devices: dict[str, DeviceEntry]
    tensors: dict[str, TensorEntry]
    inputs: tuple[PortEntry, ...]
    outputs: tuple[PortEntry, ...]
    segments: tuple[SegmentEntry, ...]
    moved: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        produced = {port.tensor for port in self.inputs}
        for segment in self.segments:
            missing = [name for name in segment.inputs if name not in produced]
            if missing:
                raise ManifestError(f"segment {segment.id} takes {missing[0]}, which nothing before it makes")
            if segment.device not in self.devices:
                raise ManifestError(f"segment {segment.id} runs on {segment.device}, which is no device of the file")
            produced.update(segment.outputs)
        unknown = [name for name in produced if name not in self.tensors]
        if unknown:
            raise ManifestError(f"the tensor is not described: {unknown[0]}")
        lost = [port.tensor for port in self.outputs if port.tensor not in produced]
        if lost:
            raise ManifestError(f"no segment makes the output {lost[0]}")
        if self.requests < 1:
            raise ManifestError(f"requests is {self.requests}, but must be at least 1")


def read_manifest(folder: Path) -> SplitManifest:
    """Return what the manifest of a folder says.

    Raises:
        ManifestError: there is none, or it is not what is documented.
    """
    path = folder / MANIFEST
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ManifestError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{path} is no JSON: {error}") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ManifestError(f"{path} is not of schema {SCHEMA}")
    try:
        manifest: SplitManifest = _checked(SplitManifest, document, "the file")
    except ManifestError as error:
        raise ManifestError(f"{path}: {error}") from error
    return manifest


def _checked(kind: Any, value: Any, where: str) -> Any:
    """Return a value of a JSON document as the type `kind`, or raise ManifestError."""
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind) and isinstance(kind, type):
        hints, known = get_type_hints(kind), {f.name: f for f in fields(kind)}
        if not isinstance(value, Mapping):
            raise ManifestError(f"{where} must be a table of keys")
        unknown = [key for key in value if key not in known]
        optional = {"library", "properties", "moved"}
        missing = [key for key in known if key not in value and key not in optional]
        if unknown or missing:
            raise ManifestError(
                f"{where} " + (f"has an unknown key {unknown[0]}" if unknown else f"needs {missing[0]}")
            )
        return kind(**{key: _checked(hints[key], item, f"{key} of {where}") for key, item in value.items()})
    if origin in (Union, types.UnionType):
        return None if value is None else _checked(arguments[0], value, where)
    if origin is Literal:
        fits = value in arguments
    elif origin is tuple:
        if isinstance(value, list):
            return tuple(_checked(arguments[0], item, f"item {i} of {where}") for i, item in enumerate(value))
        fits = False
    elif origin is dict:
        if isinstance(value, dict):
            return {key: _checked(arguments[1], item, f"{key} of {where}") for key, item in value.items()}
        fits = False
    else:
        number = kind is float and isinstance(value, int)
        fits = (isinstance(value, kind) or number) and not isinstance(value, bool)
    if not fits:
        raise ManifestError(f"{where} is {str(value)[:80]!r}, which it must not be")
    return value
