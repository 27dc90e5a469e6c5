"""Measures what every operation costs on every device, and what the links between devices cost."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.core.arrays import Float64
from pipeline.core.devices import CostTable, DeviceSpec, Origin, Topology
from pipeline.core.errors import DeviceError
from pipeline.core.graph import Graph
from pipeline.core.settings import MeasureSettings, ProfileSettings
from runtime.measuring.affinity import HETERO_PROPERTIES, hetero_target
from runtime.measuring.child import Child
from runtime.measuring.links import fit_link
from runtime.measuring.variant import Variant, start

BYTES_PER_FLOP = 4.0  # weighs bytes against FLOPs when a kernel's time is shared out among the operations it fuses


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """What profiling found.

    latency_s: whole-model median with counters on, per device. covered: share of that latency the counters explain.
    refused: operations that each device does not run.
    """

    costs: CostTable
    topology: Topology
    latency_s: Mapping[str, float]
    covered: Mapping[str, float]
    refused: Mapping[str, tuple[str, ...]]


def profile(
    model: Path,
    graph: Graph,
    devices: Sequence[DeviceSpec],
    settings: ProfileSettings,
    *,
    dynamic_size: int,
    seed: int,
    progress: Callable[[str], None],
) -> Profile:
    """Return the measured costs of a model's operations on the devices and of the links between them.

    Raises:
        DeviceError: operations that no device runs; all are listed.
        ChildError: a device cannot be profiled at all.
    """
    refused = {d.name: _refused(model, d, settings) for d in devices}
    _check_every_operation_has_a_home(refused)
    op_s = np.zeros((graph.n, len(devices)))
    latency_s: dict[str, float] = {}
    covered: dict[str, float] = {}
    for j, device in enumerate(devices):
        progress(f"profiling {device.name}")
        kernels = _kernels(model, device, devices, refused[device.name], settings, dynamic_size=dynamic_size, seed=seed)
        # The counters are means over all inferences, cold and disturbed ones too: brought down to the median one.
        op_s[:, j] = share_out(graph, kernels["kernels"]) * (kernels["latency_s"] / kernels["mean_s"])
        latency_s[device.name] = kernels["latency_s"]
        covered[device.name] = float(op_s[:, j].sum() / kernels["latency_s"])
        gone = set(refused[device.name])
        op_s[[name in gone for name in graph.names], j] = np.inf
    launch_s, topology = _links(devices, settings, progress)
    names = tuple(d.name for d in devices)
    origin: tuple[Origin, ...] = tuple("measured" for _ in devices)
    costs = CostTable(graph.names, names, op_s, launch_s, origin)
    return Profile(costs, topology, latency_s, covered, refused)


def _refused(model: Path, device: DeviceSpec, settings: ProfileSettings) -> tuple[str, ...]:
    with Child(timeout_s=settings.timeout_s) as child:
        return tuple(child.ask("support", model=str(model), device=device.to_json())["refused"])


def _check_every_operation_has_a_home(refused: Mapping[str, tuple[str, ...]]) -> None:
    everywhere = set.intersection(*(set(names) for names in refused.values()))
    if everywhere:
        listed = ", ".join(sorted(everywhere)[:20]) + (" ..." if len(everywhere) > 20 else "")
        raise DeviceError(
            f"{len(everywhere)} operation(s) run on none of {', '.join(refused)}: {listed}.",
            "Add a device that runs them, for example CPU.",
        )


def _kernels(
    model: Path,
    device: DeviceSpec,
    devices: Sequence[DeviceSpec],
    refused: tuple[str, ...],
    settings: ProfileSettings,
    *,
    dynamic_size: int,
    seed: int,
) -> dict[str, Any]:
    """Return the kernel times of the model on one device; what it refuses runs on the others meanwhile."""
    if refused:
        order = (device, *(d for d in devices if d.name != device.name))
        variant = Variant(
            device.name, "profile", hetero_target(order), order, {**HETERO_PROPERTIES, "PERF_COUNT": "YES"}
        )
    else:
        variant = Variant(device.name, "profile", device.openvino_name, (device,), {"PERF_COUNT": "YES"})
    measuring = MeasureSettings(timeout_s=settings.timeout_s, dynamic_size=dynamic_size)
    child, _ = start(variant, model, measuring, seed=seed)
    with child:
        return child.ask("kernels", count=settings.inferences)


def share_out(graph: Graph, kernels: Sequence[tuple[Sequence[str], float]]) -> Float64:
    """Return float64 [n], seconds per operation: each kernel's time shared by FLOPs and bytes among its operations.

    An operation that several kernels run (a decomposed one) gets its share of each.
    """
    index = {name: i for i, name in enumerate(graph.names)}
    weight = graph.flops + BYTES_PER_FLOP * graph.out_bytes + 1.0
    op_s = np.zeros(graph.n)
    for names, seconds in kernels:
        members = np.array([index[name] for name in names])
        op_s[members] += seconds * weight[members] / weight[members].sum()
    return op_s


def kernel_labels(graph: Graph, groups: Sequence[Sequence[str]]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Return int32 [n], the number of the kernel that runs each operation, -1 for none; of several the first counts."""
    index = {name: i for i, name in enumerate(graph.names)}
    label = np.full(graph.n, -1, dtype=np.int32)
    for number, names in enumerate(groups):
        for name in names:
            if label[index[name]] < 0:
                label[index[name]] = number
    return label


def _links(
    devices: Sequence[DeviceSpec], settings: ProfileSettings, progress: Callable[[str], None]
) -> tuple[Float64, Topology]:
    """Return what a sub-graph costs on each device, float64 [p], and the topology with measured links.

    The constant part of a boundary is booked as the launch of one more sub-graph, the part that grows with the
    tensor as the link's bandwidth.
    """
    p = len(devices)
    constant = np.zeros((p, p))
    bytes_per_s = np.full((p, p), np.inf)
    for i, j in itertools.combinations(range(p), 2):
        progress(f"measuring the link {devices[i].name} - {devices[j].name}")
        with Child(timeout_s=settings.timeout_s) as child:
            link = child.ask("link", a=devices[i].to_json(), b=devices[j].to_json(), count=settings.link_inferences)
        constant_s, speed = fit_link(link["boundary_s"], link["bytes"])
        constant[i, j] = constant[j, i] = constant_s
        bytes_per_s[i, j] = bytes_per_s[j, i] = speed
    launch_s = constant.sum(axis=1) / max(p - 1, 1)
    return launch_s, Topology(tuple(devices), bytes_per_s, np.zeros((p, p)))
