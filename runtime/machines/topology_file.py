"""Machines described in a TOML file: devices, their links and their chips."""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from pipeline.core.arrays import Float64
from pipeline.core.devices import DeviceSpec, Topology
from pipeline.core.errors import DeviceError, UsageError
from runtime.machines.machine import KINDS, Machine, simulated
from runtime.machines.roofline import CHIPS, EFFICIENCY, Chip

CHIP_KEYS = tuple(f.name for f in fields(Chip))
DEVICE_KEYS = ("name", "kind", "memory_bytes", "chip", *CHIP_KEYS)
LINK_KEYS = ("from", "to", "bytes_per_s", "latency_s", "both_ways")
UNITS: Mapping[str, int] = MappingProxyType(
    {"": 1, "B": 1}
    | {f"{prefix}B": 1000 ** (i + 1) for i, prefix in enumerate("kMGT")}
    | {f"{prefix}iB": 1024 ** (i + 1) for i, prefix in enumerate("KMGT")}
)
DEFAULT_CHIPS: Mapping[str, str] = MappingProxyType({"cpu": "desktop-cpu", "gpu": "desktop-gpu"})
NAMED = 5  # faults that a message lists


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
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is no TOML: {error}.", "Correct the line it names.") from error
    return topology_of(document, str(path))


def topology_of(document: Mapping[str, Any], where: str) -> Machine:
    """Return the machine that a parsed TOML document describes; `where` names it in messages.

    Raises:
        UsageError: something in it is wrong; all faults are named.
        DeviceError: it names no device.
    """
    check = _Check()
    check.keys(document, ("device", "link", "links"), "the file")
    tables = check.tables(document, "device")
    if not tables:
        check.done(where)
        raise DeviceError(f"{where} names no device.", 'Add a [[device]] with name = "gpu0" and kind = "gpu".')
    devices, chips = zip(*(_device(table, i, check) for i, table in enumerate(tables)), strict=True)
    names = [d.name for d in devices]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        check.fault(f"two devices are called {', '.join(twice)}")
    bytes_per_s, latency_s = _links(document, names, check)
    check.done(where)
    return Machine(Topology(devices, bytes_per_s, latency_s), chips)


class _Check:
    """Collects what is wrong with a document, so that all of it can be said at once."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def fault(self, text: str) -> None:
        self.faults.append(text)

    def done(self, where: str) -> None:
        if self.faults:
            more = f"; and {len(self.faults) - NAMED} more" if len(self.faults) > NAMED else ""
            raise UsageError(
                f"In {where}: {'; '.join(self.faults[:NAMED])}{more}.", "Correct the file; docs/search.md shows one."
            )

    def keys(self, table: Mapping[str, Any], known: Sequence[str], place: str) -> None:
        for key in table:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
                self.fault(f"{place} has an unknown key {key!r} ({hint})")

    def tables(self, document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
        found = document.get(key, [])
        if isinstance(found, list) and all(isinstance(table, Mapping) for table in found):
            return found
        self.fault(f"{key!r} must be written as [[{key}]]")
        return []

    def text(self, table: Mapping[str, Any], key: str, place: str, default: str) -> str:
        value = table.get(key, default)
        if isinstance(value, str) and value:
            return value
        self.fault(f'{place} needs {key} = "...", has {value!r}')
        return default

    def number(self, table: Mapping[str, Any], key: str, place: str, default: float, *, zero: bool = True) -> float:
        """Return a number that is not negative; texts such as "16GiB" count bytes."""
        value = table.get(key, default)
        number = _amount(value) if isinstance(value, str) else value
        if isinstance(number, int | float) and not isinstance(number, bool) and (number > 0 or (zero and number == 0)):
            return float(number)
        self.fault(f"{place} has {key} = {value!r}, which is not a number {'of at least' if zero else 'above'} 0")
        return default


def _amount(text: str) -> float | None:
    match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([A-Za-z]*)(?:/s)?\s*", text)
    if match is None or match[2] not in UNITS or match[1].count(".") > 1:
        return None
    return float(match[1]) * UNITS[match[2]]


def _device(table: Mapping[str, Any], i: int, check: _Check) -> tuple[DeviceSpec, Chip | None]:
    name = check.text(table, "name", f"[[device]] {i + 1}", "")
    place = f"device {name or i + 1}"
    check.keys(table, DEVICE_KEYS, place)
    kind = check.text(table, "kind", place, "other")
    if kind not in KINDS:
        check.fault(f"{place} is of the unknown kind {kind!r} (known are {', '.join(KINDS)})")
    memory_bytes = check.number(table, "memory_bytes", place, 0.0)
    if math.isinf(memory_bytes):
        memory_bytes = 0.0
    return simulated(name, kind, int(memory_bytes)), _chip(table, kind, place, check)


def _chip(table: Mapping[str, Any], kind: str, place: str, check: _Check) -> Chip | None:
    """Return a device's chip: a named one, or what its kind suggests, with the file's figures in place of its own."""
    name = check.text(table, "chip", place, DEFAULT_CHIPS.get(kind, "none"))
    if name != "none" and name not in CHIPS:
        check.fault(f"{place} has the unknown chip {name!r} (known are {', '.join(CHIPS)})")
    base = CHIPS.get(name)
    given = [key for key in CHIP_KEYS if key in table]
    if base is None and not given:
        return None
    if base is None and not {"flops_per_s", "bytes_per_s"} <= set(given):
        check.fault(f"{place} needs both flops_per_s and bytes_per_s, or a chip ({', '.join(CHIPS)})")
    base = base or Chip(1.0, 1.0)
    figures: dict[str, Any] = {
        key: check.number(table, key, place, getattr(base, key), zero=key.endswith("y_s") or key == "launch_s")
        for key in given
        if key != "efficiency"
    }
    shares = table.get("efficiency", {})
    if not isinstance(shares, Mapping):
        check.fault(f"{place} needs efficiency = {{conv = 0.5, ...}}")
        shares = {}
    check.keys(shares, tuple(EFFICIENCY), f"efficiency of {place}")
    efficiency = {k: check.number(shares, k, f"efficiency of {place}", 1.0, zero=False) for k in shares}
    return replace(base, **figures, efficiency={**base.efficiency, **efficiency})


def _links(document: Mapping[str, Any], names: Sequence[str], check: _Check) -> tuple[Float64, Float64]:
    """Return bytes per second and latency between every two devices, both float64 [p, p]."""
    common = document.get("links", {})
    if not isinstance(common, Mapping):
        check.fault("'links' must be written as [links]")
        common = {}
    check.keys(common, ("bytes_per_s", "latency_s"), "[links]")
    usual = (
        check.number(common, "bytes_per_s", "[links]", math.nan, zero=False) if "bytes_per_s" in common else math.nan
    )
    usual_latency_s = check.number(common, "latency_s", "[links]", 0.0)
    p = len(names)
    bytes_per_s, latency_s = np.full((p, p), usual), np.full((p, p), usual_latency_s)
    for i, table in enumerate(check.tables(document, "link")):
        _link(table, f"[[link]] {i + 1}", names, (bytes_per_s, latency_s), check)
    np.fill_diagonal(bytes_per_s, np.inf)
    np.fill_diagonal(latency_s, 0.0)
    missing = [f"{names[a]} -> {names[b]}" for a, b in np.argwhere(np.isnan(bytes_per_s)).tolist()]
    if missing:
        more = " ..." if len(missing) > NAMED else ""
        check.fault(
            f"the bandwidth of {len(missing)} link(s) is missing: {', '.join(missing[:NAMED])}{more} "
            "(give them as [[link]], or bytes_per_s in [links])"
        )
    if not np.all(np.isfinite(latency_s)):
        check.fault("a latency is infinite")
    return bytes_per_s, latency_s


def _link(
    table: Mapping[str, Any], place: str, names: Sequence[str], links: tuple[Float64, Float64], check: _Check
) -> None:
    """Write one [[link]] into the arrays of bytes per second and latency."""
    check.keys(table, LINK_KEYS, place)
    ends = [check.text(table, key, place, "") for key in ("from", "to")]
    for end in ends:
        if end and end not in names:
            check.fault(f"{place} names the device {end!r}, which is not there (there are {', '.join(names)})")
    both_ways = table.get("both_ways", True)
    if not isinstance(both_ways, bool):
        check.fault(f"{place} has both_ways = {both_ways!r}, which is neither true nor false")
    if not set(ends) <= set(names):
        return
    a, b = (names.index(end) for end in ends)
    if a == b:
        check.fault(f"{place} leads from {ends[0]} to itself")
    for value, key, zero in ((links[0], "bytes_per_s", False), (links[1], "latency_s", True)):
        if key in table:
            number = check.number(table, key, place, 1.0, zero=zero)
            value[a, b] = number
            if both_ways:
                value[b, a] = number
