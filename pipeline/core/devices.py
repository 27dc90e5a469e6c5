"""Devices, the links between them, and what operations cost on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, TypedDict

import numpy as np

from pipeline.core.arrays import Float64, Int64, frozen
from pipeline.core.graph import Graph, Grouping, sum_per_group

Origin = Literal["measured", "modelled", "given"]
AUTO_BATCH = "BATCH"  # begins the target of a device whose requests OpenVINO computes together
DATAFLOW = "DATAFLOW"  # begins the target of what runs in segments, as HETERO does of what OpenVINO splits


class DeviceDocument(TypedDict):
    """A `DeviceSpec` in files."""

    name: str
    plugin: str
    openvino_name: str
    properties: dict[str, str]
    kind: str
    memory_bytes: int
    fingerprint: str


def computes_together(target: str) -> bool:
    """Return whether a target stands for a device whose requests OpenVINO computes together.

    >>> computes_together("BATCH:CPU(4)"), computes_together("CPU")
    (True, False)
    """
    return target.partition(":")[0] == AUTO_BATCH


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One device that operations can be placed on.

    name: what the user calls it, "GPU" or "A".
    plugin: the device OpenVINO knows it by without us, "CPU" or "GPU.1".
    openvino_name: what it is registered as in a Core: `plugin` itself, or an alias for a named device.
    properties: OpenVINO properties pinned on it, for example INFERENCE_NUM_THREADS.
    kind: "cpu", "gpu", "npu" or "other".
    memory_bytes: how much it can hold; 0 means not known.
    fingerprint: what identifies the hardware, driver and properties; equal means comparable.
    """

    name: str
    plugin: str
    openvino_name: str
    properties: Mapping[str, str] = field(default_factory=dict)
    kind: str = "other"
    memory_bytes: int = 0
    fingerprint: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "properties", MappingProxyType(dict(sorted(self.properties.items()))))

    def to_json(self) -> DeviceDocument:
        """Return the device as JSON values, from which DeviceSpec(**document) makes it again."""
        return {
            "name": self.name,
            "plugin": self.plugin,
            "openvino_name": self.openvino_name,
            "properties": dict(self.properties),
            "kind": self.kind,
            "memory_bytes": self.memory_bytes,
            "fingerprint": self.fingerprint,
        }

    @property
    def is_alias(self) -> bool:
        """Return whether the device must be registered as a further instance of its plug-in."""
        return self.openvino_name != self.plugin and not computes_together(self.openvino_name)


@dataclass(frozen=True, slots=True, eq=False)
class Topology:
    """p devices and the links between every two of them.

    link_bytes_per_s: float64 [p, p], from row to column; infinite on the diagonal.
    link_latency_s: float64 [p, p], seconds before the first byte arrives; 0 on the diagonal.
    """

    devices: tuple[DeviceSpec, ...]
    link_bytes_per_s: Float64
    link_latency_s: Float64

    def __post_init__(self) -> None:
        p = len(self.devices)
        if p == 0 or len({d.name for d in self.devices}) != p:
            raise ValueError("a topology needs at least one device, and device names must be unique")
        for name in ("link_bytes_per_s", "link_latency_s"):
            object.__setattr__(self, name, frozen(getattr(self, name), np.float64, (p, p), name))
        if np.any(np.isnan(self.link_bytes_per_s)) or np.any(self.link_bytes_per_s <= 0):
            raise ValueError("link_bytes_per_s must be positive")
        if not np.all(np.isfinite(self.link_latency_s)) or np.any(self.link_latency_s < 0):
            raise ValueError("link_latency_s must be finite and not negative")

    @classmethod
    def uniform(cls, devices: tuple[DeviceSpec, ...], *, bytes_per_s: float, latency_s: float) -> Topology:
        """Return a topology in which every link between two devices is the same."""
        apart = ~np.eye(len(devices), dtype=bool)
        return cls(devices, np.where(apart, bytes_per_s, np.inf), np.where(apart, latency_s, 0.0))

    @property
    def p(self) -> int:
        """Return the number of devices."""
        return len(self.devices)

    def later(self, seconds: float) -> Topology:
        """Return the topology with links between different devices that take so many seconds more for any tensor."""
        apart = ~np.eye(self.p, dtype=bool)
        return Topology(self.devices, self.link_bytes_per_s, self.link_latency_s + np.where(apart, seconds, 0.0))

    def mean_transfer_s(self, size: Int64) -> Float64:
        """Return float64 [m], mean seconds over all links of tensors of int64 [m] bytes; 0 for one device."""
        apart = ~np.eye(self.p, dtype=bool)
        if self.p == 1:
            return np.zeros(size.shape)
        per_byte: Float64 = (1.0 / self.link_bytes_per_s[apart]).mean()
        seconds: Float64 = self.link_latency_s[apart].mean() + size * per_byte
        return seconds

    def slowest_link_s(self, size: Int64) -> Float64:
        """Return float64 [t, p], seconds of int64 [t] bytes over the slowest link from or to a device; 0 for a CPU."""
        seconds = np.zeros((size.size, self.p))
        for d, e in np.argwhere(~np.eye(self.p, dtype=bool)).tolist():
            link_s = self.link_latency_s[d, e] + size / self.link_bytes_per_s[d, e]
            for end in (d, e):
                if self.devices[end].kind != "cpu":
                    seconds[:, end] = np.maximum(seconds[:, end], link_s)
        return seconds

    @property
    def names(self) -> tuple[str, ...]:
        """Return the device names in the order of their indices."""
        return tuple(d.name for d in self.devices)


@dataclass(frozen=True, slots=True, eq=False)
class CostTable:
    """What n operations cost on p devices.

    names: n operation names. devices: p device names.
    op_s: float64 [n, p], seconds of one operation on one device; inf where the device does not support it.
    launch_s: float64 [p], seconds that every sub-graph on the device costs beyond its operations.
    origin: where the figures of each device came from, one word per device.
    """

    names: tuple[str, ...]
    devices: tuple[str, ...]
    op_s: Float64
    launch_s: Float64
    origin: tuple[Origin, ...]

    def __post_init__(self) -> None:
        n, p = len(self.names), len(self.devices)
        object.__setattr__(self, "op_s", frozen(self.op_s, np.float64, (n, p), "op_s"))
        object.__setattr__(self, "launch_s", frozen(self.launch_s, np.float64, (p,), "launch_s"))
        if np.any(np.isnan(self.op_s)) or np.any(self.op_s < 0):
            raise ValueError("op_s must not be NaN or negative")
        if not np.all(np.isfinite(self.launch_s)) or np.any(self.launch_s < 0):
            raise ValueError("launch_s must be finite and not negative")
        if len(self.origin) != p:
            raise ValueError(f"origin must have one entry for each of {p} devices")

    def slower(self, slowdown: Float64) -> CostTable:
        """Return the table with operations that take so many times as long on each device; float64 [p]."""
        return replace(self, op_s=self.op_s * slowdown)

    @property
    def supported(self) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
        """Return bool [n, p], whether each device supports each operation."""
        return np.isfinite(self.op_s)


def contract_costs(costs: CostTable, graph: Graph, grouping: Grouping) -> CostTable:
    """Return the costs of the groups: the sum over members, inf where a device refuses one of them.

    graph: the contracted graph, whose names the groups take.
    """
    return CostTable(
        names=graph.names,
        devices=costs.devices,
        op_s=sum_per_group(costs.op_s, grouping),
        launch_s=costs.launch_s,
        origin=costs.origin,
    )
