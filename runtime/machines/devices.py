"""Devices: what this machine has, and named devices, further instances of a plug-in with other properties."""

from __future__ import annotations

import hashlib
import logging
import platform
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import openvino as ov
import psutil

from pipeline.core.devices import DeviceSpec
from pipeline.core.errors import UNPARSABLE, DeviceError, UnknownNameError, UsageError
from pipeline.shared.runtime_words import refusal_in_words
from pipeline.system.process import cpu_count
from pipeline.system.processors import usable_processors
from runtime.machines.cpu_topology import CpuTopology, cpu_topology

log = logging.getLogger(__name__)

LIBRARIES: Mapping[str, str] = {
    "CPU": "openvino_intel_cpu_plugin",
    "GPU": "openvino_intel_gpu_plugin",
    "NPU": "openvino_intel_npu_plugin",
}
KINDS: Mapping[str, str] = {"CPU": "cpu", "GPU": "gpu", "NPU": "npu"}
MEMORY_PROPERTIES = ("GPU_DEVICE_TOTAL_MEM_SIZE", "NPU_DEVICE_TOTAL_MEM_SIZE")
PRECISIONS: Mapping[str, str] = {"FP32": "f32", "BF16": "bf16", "FP16": "f16"}
PRECISION_ALIASES: Mapping[str, str] = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "dynamic": "dynamic"}
# A named device forces these: with default pinning two of them share one core.
ALIAS_DEFAULTS: Mapping[str, Mapping[str, str]] = {"CPU": {"ENABLE_CPU_PINNING": "NO"}}
PRECISION = "INFERENCE_PRECISION_HINT"  # the property that says what a device computes in
THREADS = "INFERENCE_NUM_THREADS"
GROUP_SIZE = "DYNAMIC_QUANTIZATION_GROUP_SIZE"  # numbers of a row that are quantised together where weights are int8
KV_CACHE = "KV_CACHE_PRECISION"  # what keys and values are kept in, of a model with state
CORE_TYPE = "SCHEDULING_CORE_TYPE"
DEVICE_ID = "DEVICE_ID"  # which device of a plug-in an instance of it is

_ITEM = re.compile(r"^(?:(?P<name>[A-Za-z][A-Za-z0-9_-]*)=)?(?P<plugin>[A-Z]+(?:\.\d+)*)(?:\{(?P<properties>.*)\})?$")


@dataclass(frozen=True, slots=True)
class Plugin:
    """A device as OpenVINO discovers it.

    name: "CPU", "GPU.0". precisions: what it computes in natively, "f32" first. default_precision: what it takes
    when nobody says otherwise. settable: names of the properties that can be written. default_hint: what it aims at
    when nobody says otherwise, "LATENCY"; "" where it does not tell.
    """

    name: str
    full_name: str
    driver: str
    memory_bytes: int
    precisions: tuple[str, ...]
    default_precision: str
    settable: frozenset[str]
    default_hint: str = ""


def discover_plugins() -> dict[str, Plugin]:
    """Return the devices OpenVINO finds on this machine, by name; one that cannot tell its properties is left out."""
    core = ov.Core()
    plugins: dict[str, Plugin] = {}
    for name in core.available_devices:
        try:
            plugins[name] = _describe_plugin(core, name)
        except RuntimeError as error:  # what the bindings raise of a driver that is broken
            log.warning("%s is left out: it cannot tell its properties (%s)", name, " ".join(str(error).split()))
    return plugins


def _describe_plugin(core: ov.Core, name: str) -> Plugin:
    supported: dict[str, str] = dict(core.get_property(name, "SUPPORTED_PROPERTIES"))

    def read(key: str, default: Any) -> Any:
        return core.get_property(name, key) if key in supported else default

    capabilities = read("OPTIMIZATION_CAPABILITIES", ["FP32"])
    memory = next((int(read(key, 0)) for key in MEMORY_PROPERTIES if key in supported), 0)
    return Plugin(
        name=name,
        full_name=str(read("FULL_DEVICE_NAME", name)).strip(),
        driver=str(read("GPU_DRIVER_VERSION", read("NPU_DRIVER_VERSION", ov.get_version()))),
        memory_bytes=memory or (psutil.virtual_memory().total if name == "CPU" else 0),
        precisions=tuple(PRECISIONS[c] for c in ("FP32", "BF16", "FP16") if c in capabilities) or ("f32",),
        default_precision=precision_name(read(PRECISION, "f32")),
        settable=frozenset(key for key, mode in supported.items() if "W" in str(mode)),
        default_hint=str(read("PERFORMANCE_HINT", "")).rpartition(".")[2],
    )


def precision_name(value: Any) -> str:
    """Return "f32", "bf16" or "f16" from what OpenVINO reports for a precision.

    >>> precision_name("<Type: 'float32'>")
    'f32'
    """
    text = str(value)
    match = re.search(r"'(\w+)'", text)
    word = match.group(1) if match else text
    return PRECISION_ALIASES.get(word, word)


HALVES = ("A", "B")  # what the devices of a machine are called that has one CPU of one part alone


def default_devices(plugins: Mapping[str, Plugin], cores: CpuTopology | None = None) -> tuple[DeviceSpec, ...]:
    """Return all devices of the machine; of a CPU of several parts each part, and of one CPU alone two halves.

    A CPU with P-cores and E-cores is the devices P and E: SCHEDULING_CORE_TYPE keeps each to its cores, of which it has
    one thread each. A CPU of several NUMA nodes, or sockets, is the devices N0, N1, ... with as many threads
    (INFERENCE_NUM_THREADS) as the node has cores, so that a sub-model can run without reaching over all nodes. That it
    does, and on which of them, cannot be demanded: no documented property names a node, and ENABLE_CPU_RESERVATION,
    which keeps models apart, leaves no processors for the second sub-model of a device. To measure on one node alone
    run `numactl --cpunodebind=0 placewright ...`. A CPU of one part that is not alone is one device; alone, with two
    processors or more, it is the halves A and B.

    cores: of the CPU; None for those of this machine.

    Raises:
        DeviceError: OpenVINO finds no device.
    """
    if not plugins:
        raise DeviceError("OpenVINO finds no devices on this machine.", "Run `placewright doctor`.")
    devices: list[DeviceSpec] = []
    for name in plugins:
        parts = _cpu_parts(plugins, cores or cpu_topology()) if name == "CPU" else ()
        devices += parts or (make_spec(name, name, {}, plugins),)
    if len(devices) > 1 or set(plugins) != {"CPU"} or cpu_count() < 2:
        return tuple(devices)
    half = {THREADS: str(cpu_count() // 2)}
    return tuple(make_spec(name, "CPU", half, plugins) for name in HALVES)


def _cpu_parts(plugins: Mapping[str, Plugin], cores: CpuTopology) -> tuple[DeviceSpec, ...]:
    """Return the devices of a CPU with cores of two types, or with several nodes; () for any other."""
    most = cpu_count()
    if cores.types and CORE_TYPE in plugins["CPU"].settable:
        return tuple(
            make_spec(t, "CPU", {CORE_TYPE: f"{t}CORE_ONLY", THREADS: str(min(count, most))}, plugins)
            for t, count in cores.types.items()
        )
    if len(cores.nodes) > 1:
        return tuple(
            make_spec(f"N{node}", "CPU", {THREADS: str(min(count, most))}, plugins)
            for node, count in cores.nodes.items()
        )
    return ()


def parse_devices(texts: Sequence[str], plugins: Mapping[str, Plugin]) -> tuple[DeviceSpec, ...]:
    """Return the devices written as "CPU,GPU.1", "A=CPU{KEY=VALUE,KEY=VALUE}" or as the path of a TOML file.

    A TOML file holds one table per device: [devices.A] with `plugin` and a table `properties`.

    Raises:
        UsageError: the text is not of this form, a name occurs twice, or a property does not exist.
        DeviceError: the machine does not have the plug-in; what it has is listed.
    """
    specs: list[DeviceSpec] = []
    for text in texts:
        if text.endswith(".toml"):
            specs += [make_spec(n, p, properties, plugins) for n, p, properties in _read_toml(Path(text))]
        else:
            specs += [_parse_item(item, plugins) for item in _split_items(text)]
    if not specs:
        raise UsageError("The list of devices is empty.", "Remove --devices to use all devices of this machine.")
    names = [s.name for s in specs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"Devices are named twice: {', '.join(twice)}.", "Write NAME=CPU{...} with distinct names.")
    registered = [s.openvino_name for s in specs]
    alike = [s.name for s in specs if registered.count(s.openvino_name) > 1]
    if alike:
        raise UsageError(
            f"Device names are too alike: {', '.join(alike)}.",
            "Name every device once, with names that differ in more than dashes, dots and underlines.",
        )
    return tuple(specs)


def _split_items(text: str) -> list[str]:
    """Return the items between commas that stand outside braces."""
    return [item.strip() for item in re.split(r",(?![^{]*\})", text) if item.strip()]


def _parse_item(item: str, plugins: Mapping[str, Plugin]) -> DeviceSpec:
    match = _ITEM.match(item)
    if match is None:
        raise UsageError(f"{item!r} is not a valid device.", "Write CPU, GPU.1 or NAME=CPU{KEY=VALUE,KEY=VALUE}.")
    properties: dict[str, str] = {}
    for pair in filter(None, (match["properties"] or "").split(",")):
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not key or not value:
            raise UsageError(f"{pair!r} in {item!r} is not KEY=VALUE.", "Write for example INFERENCE_NUM_THREADS=1.")
        properties[key] = value
    if properties and match["name"] is None:
        raise UsageError(f"{item!r} has properties but no name.", f"Write for example A={item}.")
    return make_spec(match["name"] or match["plugin"], match["plugin"], properties, plugins)


def _read_toml(path: Path) -> list[tuple[str, str, dict[str, str]]]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"The devices file {path} does not exist.", "Give the path of a TOML file.") from error
    except OSError as error:
        raise UsageError(f"The devices file {path} cannot be read: {error.strerror}.", "Check the path.") from error
    except UNPARSABLE as error:
        raise UsageError(
            f"The devices file {path} is not valid TOML: {error}.", "Correct the line it names."
        ) from error
    tables = document.get("devices")
    if not isinstance(tables, dict) or not tables:
        raise UsageError(f"{path} has no [devices.NAME] table.", "Write one per device.")
    entries = []
    for name, entry in tables.items():
        fits = isinstance(entry, dict) and "plugin" in entry and not set(entry) - {"plugin", "properties"}
        if not fits or not isinstance(entry.get("properties", {}), dict):
            raise UsageError(f"Device {name!r} in {path} needs `plugin` and may have `properties`.", "Correct it.")
        properties = {key: _property_text(value) for key, value in entry.get("properties", {}).items()}
        entries.append((name, str(entry["plugin"]), properties))
    return entries


def _property_text(value: Any) -> str:
    """Return a TOML value as OpenVINO writes it, YES and NO for booleans."""
    return ("NO", "YES")[value] if isinstance(value, bool) else str(value)


def make_spec(name: str, plugin: str, properties: Mapping[str, str], plugins: Mapping[str, Plugin]) -> DeviceSpec:
    """Return the device `name`, an instance of `plugin` with `properties`; its precision is pinned in any case.

    A CPU gets as many threads as its quota feeds where there is one, unless its properties say otherwise: the runtime
    starts one for every processor, and all of them stand still once the quota is used up.

    "GPU" is "GPU.0" where there are several, and "GPU.0" is "GPU" where there is one. A further instance of "GPU.1" is
    one of the whole plug-in, so that the property DEVICE_ID tells it which of the devices it is.

    Raises:
        DeviceError: the machine does not have the plug-in.
        UnknownNameError: the plug-in has no such property that can be set.
        UsageError: the properties hold a DEVICE_ID, which the plug-in's number already says.
    """
    alias = bool(properties) or name != plugin
    plugin = _known_as(plugin, plugins)
    known = plugins[plugin]
    base, _, number = plugin.partition(".")
    for key in properties:
        if key not in known.settable:
            raise UnknownNameError(
                f"settable property of {plugin}", key, known.settable, "`placewright devices --json`"
            )
    if DEVICE_ID in properties:
        raise UsageError(
            f"{name} gives {DEVICE_ID} as a property.", f"Write {name}={base}.{properties[DEVICE_ID]} instead."
        )
    fed = (
        {THREADS: str(cpu_count())}
        if base == "CPU" and THREADS in known.settable and usable_processors().limited
        else {}
    )
    pinned = {PRECISION: known.default_precision, **fed, **properties}
    openvino_name = plugin
    if alias:
        openvino_name = f"{base}_{re.sub('[^A-Za-z0-9]', '_', name)}"  # an alias must contain the plug-in's name
        pinned = {**ALIAS_DEFAULTS.get(base, {}), **({DEVICE_ID: number} if number else {}), **pinned}
    spec = DeviceSpec(name, plugin, openvino_name, pinned, KINDS.get(base, "other"), known.memory_bytes)
    return replace(spec, fingerprint=_device_fingerprint(spec, known))


def _known_as(plugin: str, plugins: Mapping[str, Plugin]) -> str:
    """Return what OpenVINO calls the device here: the first of several has a number, the only one has none."""
    for name in (plugin, f"{plugin}.0", plugin.removesuffix(".0")):
        if name in plugins:
            return name
    raise DeviceError(f"Unknown device {plugin}.", f"This machine has {', '.join(plugins) or 'none'}.")


def registered_device(name: str, plugin: str, openvino_name: str, properties: Mapping[str, str]) -> DeviceSpec:
    """Return a device as a file of a run says it was registered."""
    return DeviceSpec(name, plugin, openvino_name, properties, KINDS.get(plugin.partition(".")[0], "other"))


def with_precision(spec: DeviceSpec, precision: str, plugin: Plugin) -> DeviceSpec:
    """Return a device that computes in another precision."""
    changed = replace(spec, properties={**spec.properties, PRECISION: precision})
    return replace(changed, fingerprint=_device_fingerprint(changed, plugin))


def _device_fingerprint(spec: DeviceSpec, plugin: Plugin) -> str:
    parts = [plugin.full_name, plugin.driver, *(f"{k}={v}" for k, v in spec.properties.items())]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def hardware_facts(plugins: Mapping[str, Plugin] | None = None) -> dict[str, Any]:
    """Return what identifies this machine to a measurement: processors, memory, system, runtime, devices.

    plugins: what `discover_plugins` has found; None to look now.
    """
    usable = usable_processors()
    governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    return {
        "cpu": _cpu_model(),
        "cpu_flags": _cpu_flags(),
        "processors": cpu_count(),
        "cpuset": usable.cpuset,
        "cpu_quota": usable.quota,
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "governor": governor.read_text(encoding="ascii").strip() if governor.exists() else "unknown",
        "container": Path("/.dockerenv").exists(),
        "openvino": ov.get_version(),
        "devices": {
            p.name: {"full_name": p.full_name, "driver": p.driver} for p in (plugins or discover_plugins()).values()
        },
    }


def hardware_fingerprint(facts: Mapping[str, Any]) -> str:
    """Return a short digest of `hardware_facts()`; records of different digests are not comparable."""
    text = "\n".join(f"{key}={facts[key]}" for key in sorted(facts))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _cpu_flags() -> str:
    """Return the vector extensions that decide speed and precision."""
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8", errors="replace") if info.exists() else ""
    wanted = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "sve")
    present = set(re.findall(r"\b[a-z0-9_]+\b", text))
    return " ".join(flag for flag in wanted if flag in present)


def check_properties(devices: Sequence[DeviceSpec]) -> None:
    """Check that the devices' properties have values that their plug-ins take.

    Raises:
        UsageError: one has not; in OpenVINO's words.
    """
    for device in devices:
        try:
            core_for([device]).get_property(device.openvino_name, "SUPPORTED_PROPERTIES")
        except RuntimeError as error:
            given = ",".join(f"{key}={value}" for key, value in device.properties.items())
            raise UsageError(
                f"{device.name} does not accept {given}: {refusal_in_words(str(error))}.",
                "Correct the value after --devices; `placewright devices --json` lists what can be set.",
            ) from error


def core_for(devices: Sequence[DeviceSpec]) -> ov.Core:
    """Return a Core in which every named device is registered and every property is set.

    Raises:
        DeviceError: a plug-in library cannot be registered under the alias.
    """
    core = ov.Core()
    for device in devices:
        base = device.plugin.split(".")[0]
        if device.is_alias:
            if base not in LIBRARIES:
                raise DeviceError(
                    f"{device.name} needs a second instance of {device.plugin}, and no way to register one is known.",
                    f"Named devices work for {', '.join(LIBRARIES)}.",
                )
            core.register_plugin(LIBRARIES[base], device.openvino_name)
        core.set_property(device.openvino_name, dict(device.properties))
    return core
