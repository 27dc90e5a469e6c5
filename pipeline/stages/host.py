"""The model file of a run, and the machine that it runs on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from pipeline.core.errors import MissingPackageError, UsageError

NOT_INSTALLED = "not installed"
ONNXRUNTIME_BUILDS = ("gpu", "directml", "openvino", "qnn", "rocm", "migraphx", "training")


@dataclass(frozen=True, slots=True)
class HostMachine:
    """The devices of a run and the hardware they are on.

    facts: see `runtime.machines.devices.hardware_facts`. low: (plug-in, precision) of what they and their baselines
    compute in other than f32; spare: of what they can besides. open_names: those whose precision nobody asked for; they
    compute in f32 if a model needs that. halves: whether the devices are halves of one CPU that nobody asked for.
    whole: the devices of which those are parts that nobody asked for; they take their place where all parts run a model
    wrongly, or nothing is placed on them.
    """

    devices: tuple[Mapping[str, Any], ...]
    facts: Mapping[str, Any]
    fingerprint: str
    low: tuple[tuple[str, str], ...] = ()
    open_names: tuple[str, ...] = ()
    halves: bool = False
    whole: tuple[Mapping[str, Any], ...] = ()
    spare: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model file and the sha256 of its content."""

    path: Path
    sha256: str


def look_at_model(path: Path) -> ModelFile:
    """Return a model file with its hash.

    Raises:
        ModelError: there is no such file.
    """
    from coarsen.reading.model.files import model_sha256

    return ModelFile(path, model_sha256(path))


def look_at_machine(devices: Sequence[str]) -> HostMachine:
    """Return the machine and the devices asked for, or those it has.

    Raises:
        DeviceError: a device is not there.
        UsageError: a device is not written as it should be.
    """
    from runtime.machines import devices as available
    from runtime.measuring.profile.precisions import FULL, low_precisions, spare_precisions

    plugins = available.discover_plugins()
    specs = available.parse_devices(devices, plugins) if devices else available.default_devices(plugins)
    if devices:
        available.check_properties(specs)
    facts = available.hardware_facts(plugins)
    low = low_precisions(specs, plugins)
    parts = [d for d in specs if d.is_alias and not devices]
    whole = [available.make_spec(name, name, {}, plugins) for name in dict.fromkeys(d.plugin for d in parts)]
    mine = () if devices else (*specs, *whole)
    open_names = tuple(d.name for d in mine if d.properties[available.PRECISION] != FULL)
    documents, fingerprint = tuple(d.to_json() for d in specs), available.hardware_fingerprint(facts)
    halves = not devices and tuple(d.name for d in specs) == available.HALVES
    of_parts = tuple(d.to_json() for d in whole) if len(parts) == len(specs) else ()
    spare = tuple(spare_precisions(low, specs, plugins))
    return HostMachine(documents, facts, fingerprint, tuple(low), open_names, halves, of_parts, spare)


def onnxruntime_version() -> str:
    """Return the version of ONNX Runtime, whichever of its distributions is installed, with the name of a special one.

    `NOT_INSTALLED` if there is none.
    """
    for name in ("onnxruntime", *(f"onnxruntime-{build}" for build in ONNXRUNTIME_BUILDS)):
        version = installed_version(name)
        if version != NOT_INSTALLED:
            return version if name == "onnxruntime" else f"{version} ({name})"
    return NOT_INSTALLED


def check_onnxruntime(model: Path, remedy: str) -> None:
    """Check that ONNX Runtime is there, and that a model is for it; remedy: what else to do.

    Raises:
        UsageError: the model is no ONNX file.
        MissingPackageError: onnxruntime is not installed.
    """
    if model.suffix != ".onnx":
        cause = f"ONNX Runtime runs ONNX files, and {model.name} is none."
        raise UsageError(cause, f"{remedy}, or give the .onnx file.")
    if onnxruntime_version() == NOT_INSTALLED:
        raise MissingPackageError("Running a model by ONNX Runtime takes", "onnxruntime")


def installed_version(name: str) -> str:
    """Return the version of an installed distribution, `NOT_INSTALLED` if there is none; it is not imported."""
    return _ask_version(metadata.version, name)


@cache
def _ask_version(ask: Callable[[str], str], name: str) -> str:
    try:
        return ask(name)
    except metadata.PackageNotFoundError:
        return NOT_INSTALLED
