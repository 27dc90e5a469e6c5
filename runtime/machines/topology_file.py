"""Machines described in a TOML file: devices, their links and their chips."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, Required

import numpy as np
from pydantic import BeforeValidator, Field
from typing_extensions import TypedDict

from pipeline.core.arrays import Float64
from pipeline.core.devices import DeviceSpec, Topology
from pipeline.core.errors import UNPARSABLE, DeviceError, UsageError, list_some
from pipeline.shared.validation import Faults, Finite, Name, repeated_values, strict_table
from runtime.machines.machine import Kind, Machine, simulated_device
from runtime.machines.roofline import CHIPS, EFFICIENCY, Chip

UNITS: Mapping[str, float] = MappingProxyType(
    {"": 1, "B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
)
AMOUNT = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[0-9]+)?)\s*([A-Za-z]*)(?:/s)?\s*")
DEFAULT_CHIPS: Mapping[str, str] = MappingProxyType({"cpu": "desktop-cpu", "gpu": "desktop-gpu"})


def _byte_amount(value: Any) -> Any:
    """Return the bytes that a text such as "16GiB" or "12GB/s" stands for; any other value as it is."""
    match = AMOUNT.fullmatch(value) if isinstance(value, str) else None
    return float(match[1]) * UNITS[match[2]] if match is not None and match[2] in UNITS else value


IN_UNITS = BeforeValidator(_byte_amount, json_schema_input_type=float | str)
Bytes = Annotated[float, Field(ge=0), IN_UNITS]
LEAST_BYTES_PER_S = 1e-100  # the time of any tensor is a number
Rate = Annotated[float, Field(gt=0), IN_UNITS]
Above0 = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Efficiency = TypedDict("Efficiency", dict.fromkeys(EFFICIENCY, Above0), total=False)  # type: ignore[misc]
strict_table()(Efficiency)


@strict_table()
class DeviceTable(TypedDict, total=False):
    """A [[device]]: what it is called, what it holds, and the figures of its chip."""

    name: Required[Name]
    kind: Kind
    memory_bytes: Bytes
    chip: Literal[tuple(CHIPS)]  # type: ignore[valid-type]
    flops_per_s: Above0
    bytes_per_s: Rate
    launch_s: Finite
    auxiliary_s: Finite
    efficiency: Efficiency


@strict_table()
class LinksTable(TypedDict, total=False):
    """The [links] between all devices that no [[link]] joins."""

    bytes_per_s: Rate
    latency_s: Finite


LinkTable = TypedDict(
    "LinkTable",
    {"from": Required[Name], "to": Required[Name], "bytes_per_s": Rate, "latency_s": Finite, "both_ways": bool},
    total=False,
)
strict_table()(LinkTable)


@strict_table()
class TopologyDocument(TypedDict, total=False):
    """A machine as TOML; docs/search.md says what its keys mean."""

    device: list[DeviceTable]
    link: list[LinkTable]
    links: LinksTable


def read_topology(path: Path) -> Machine:
    """Return the machine that a TOML file describes.

    Raises:
        UsageError: the file cannot be read, or something in it is wrong; all faults are named.
        DeviceError: it names no device.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.", "Give a TOML file or a preset.") from error
    except UNPARSABLE as error:
        raise UsageError(f"{path} is not valid TOML: {error}.", "Correct the line it names.") from error
    return topology_of(document, str(path))


def topology_of(document: Mapping[str, Any], where: str) -> Machine:
    """Return the machine that a parsed TOML document describes; `where` names it in messages.

    Raises:
        UsageError: something in it is wrong; all faults are named.
        DeviceError: it names no device.
    """
    faults = Faults(where, UsageError, "Correct the file; docs/search.md shows one.")
    checked = faults.checked(TopologyDocument, document)
    tables = checked.get("device", [])
    if not tables:
        faults.end()
        raise DeviceError(f"{where} names no device.", 'Add a [[device]] with name = "gpu0" and kind = "gpu".')
    names = [entry["name"] for entry in tables]
    for name in repeated_values(names):
        faults.add(f"two devices are called {name}")
    chips = tuple(_chip_of(entry, faults) for entry in tables)
    bytes_per_s, latency_s = _link_matrices(checked, names, faults)
    faults.end()
    return Machine(Topology(tuple(map(_device_of, tables)), bytes_per_s, latency_s), chips)


def _device_of(entry: DeviceTable) -> DeviceSpec:
    memory_bytes = entry.get("memory_bytes", 0.0)
    return simulated_device(
        entry["name"], entry.get("kind", "other"), 0 if math.isinf(memory_bytes) else int(memory_bytes)
    )


def _chip_of(entry: DeviceTable, faults: Faults) -> Chip | None:
    """Return a device's chip: a named one, or what its kind suggests, with the file's figures in place of its own."""
    base = CHIPS.get(entry.get("chip", DEFAULT_CHIPS.get(entry.get("kind", "other"), "none")))
    figures: dict[str, Any] = {k: v for k, v in entry.items() if k not in ("name", "kind", "memory_bytes", "chip")}
    if base is None and not figures:
        return None
    if base is None and not {"flops_per_s", "bytes_per_s"} <= figures.keys():
        faults.add(f"device {entry['name']} needs both flops_per_s and bytes_per_s, or a chip ({', '.join(CHIPS)})")
    base = base or Chip(1.0, 1.0)
    return replace(base, **figures | {"efficiency": {**base.efficiency, **figures.get("efficiency", {})}})


def _link_matrices(checked: TopologyDocument, names: Sequence[str], faults: Faults) -> tuple[Float64, Float64]:
    """Return bytes per second and latency between every two devices, both float64 [p, p]."""
    usual, p = checked.get("links", {}), len(names)
    bytes_per_s = np.full((p, p), usual.get("bytes_per_s", math.nan))
    latency_s = np.full((p, p), usual.get("latency_s", 0.0))
    for entry in checked.get("link", []):
        ends = (entry["from"], entry["to"])
        unknown = [end for end in ends if end not in names]
        if unknown:
            faults.add(f"a link names the device {unknown[0]!r}, which is not there (there are {', '.join(names)})")
            continue
        a, b = map(names.index, ends)
        if a == b:
            faults.add(f"a link leads from {ends[0]} to itself")
        ways = ([a, b], [b, a]) if entry.get("both_ways", True) else ([a], [b])
        bytes_per_s[ways] = entry.get("bytes_per_s", bytes_per_s[ways])
        latency_s[ways] = entry.get("latency_s", latency_s[ways])
    np.fill_diagonal(bytes_per_s, np.inf)
    np.fill_diagonal(latency_s, 0.0)
    if np.any(bytes_per_s < LEAST_BYTES_PER_S):
        faults.add(f"the bandwidth of a link is {np.nanmin(bytes_per_s):g} bytes/s, which is not plausible")
    missing = [f"{names[a]} -> {names[b]}" for a, b in np.argwhere(np.isnan(bytes_per_s)).tolist()]
    if missing:
        faults.add(
            f"the bandwidth of {len(missing)} link(s) is missing: {list_some(missing)} "
            "(give them as [[link]], or bytes_per_s in [links])"
        )
    return bytes_per_s, latency_s
