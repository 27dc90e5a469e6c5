"""Seconds per operation and device for machines that are not at hand: from the graph, or from a roofline."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pipeline.core.arrays import Float64
from pipeline.core.devices import CostTable, DeviceSpec, Origin
from pipeline.core.errors import UsageError
from pipeline.core.workload import Workload
from runtime.machines.machine import Machine
from runtime.machines.roofline import Chip, roofline_s

Times = Mapping[str, Float64]  # device name, device kind or "*" -> float64 [n] seconds, inf where not supported


def cost_table(workload: Workload, machine: Machine, given: Times | None = None) -> CostTable:
    """Return what the operations cost on the devices.

    Per device the first that there is: `given` for its name, its kind, or "*"; the workload's own times in the same
    order; the roofline of its chip.

    Raises:
        UsageError: nothing tells the times of a device.
    """
    topology = machine.topology
    modelled: dict[int, Float64] = {}  # devices of one chip share its roofline
    columns: list[Float64] = []
    origin: list[Origin] = []
    for device, chip in zip(topology.devices, machine.chips, strict=True):
        known = _times_of(given or {}, device)
        if known is None:
            known = _times_of(workload.times, device)
        origin.append("modelled" if known is None else "given")
        if known is None and id(chip) not in modelled:
            modelled[id(chip)] = _modelled_seconds(workload, device, chip)
        known = modelled[id(chip)] if known is None else known
        columns.append(known)
    op_s = np.stack(columns, axis=1)
    return CostTable(workload.graph.names, topology.names, op_s, np.zeros(topology.p), tuple(origin))


def _times_of(times: Times, device: DeviceSpec) -> Float64 | None:
    return next((times[key] for key in (device.name, device.kind, "*") if key in times), None)


def _modelled_seconds(workload: Workload, device: DeviceSpec, chip: Chip | None) -> Float64:
    if chip is None:
        raise UsageError(
            f"The operation times on the device {device.name} are unknown.",
            "Set its chip in the topology file, or add a column to the --costs file.",
        )
    if workload.times and not workload.graph.flops.any():
        raise UsageError(
            f"The graph has times for {', '.join(sorted(workload.times))}, but none for the {device.kind} "
            f"{device.name}, and no FLOPs to model them with.",
            "Name or kind the devices as the graph does, or give --costs.",
        )
    return roofline_s(workload.graph, chip)
