"""A machine that need not be at hand: devices, their links and their chips."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from pipeline.core.devices import DeviceSpec, Topology
from runtime.machines.roofline import Chip

Kind = Literal["cpu", "gpu", "npu", "other"]
KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """Devices with their links, and the figures from which times follow.

    chips: one per device of the topology; None where nothing is known.
    """

    topology: Topology
    chips: tuple[Chip | None, ...]

    def __post_init__(self) -> None:
        if len(self.chips) != self.topology.p:
            raise ValueError(f"{len(self.chips)} chips do not fit {self.topology.p} devices")

    def without_memory_limits(self) -> Machine:
        """Return the same machine with devices that hold anything."""
        devices = tuple(replace(d, memory_bytes=0) for d in self.topology.devices)
        return Machine(replace(self.topology, devices=devices), self.chips)


def simulated_device(name: str, kind: str, memory_bytes: int = 0) -> DeviceSpec:
    """Return a device that OpenVINO never sees."""
    return DeviceSpec(name, kind.upper(), kind.upper(), kind=kind, memory_bytes=memory_bytes)
