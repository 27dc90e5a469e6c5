"""Topologies as TOML, which `runtime.machines.topology_file` reads."""

from __future__ import annotations

import json

from pipeline.core.devices import DeviceSpec, Topology
from runtime.machines.machine import KINDS


def topology_text(topology: Topology) -> str:
    """Return a topology as TOML: names, kinds and memory of the devices, and every link in each direction."""
    parts = [_device_text(d) for d in topology.devices]
    for i, source in enumerate(topology.names):
        for j, target in enumerate(topology.names):
            if i != j:
                ends = f"from = {json.dumps(source)}\nto = {json.dumps(target)}\n"
                speed, latency_s = float(topology.link_bytes_per_s[i, j]), float(topology.link_latency_s[i, j])
                parts.append(f"[[link]]\n{ends}bytes_per_s = {speed!r}\nlatency_s = {latency_s!r}\nboth_ways = false\n")
    return "\n".join(parts)


def _device_text(device: DeviceSpec) -> str:
    kind = device.kind if device.kind in KINDS else "other"
    memory = f"memory_bytes = {device.memory_bytes}\n" if device.memory_bytes else ""
    return f"[[device]]\nname = {json.dumps(device.name)}\nkind = {json.dumps(kind)}\n{memory}"
