"""From a placement of operations to the affinities that HETERO reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import openvino as ov

from pipeline.core.devices import DeviceSpec
from pipeline.core.errors import UsageError
from pipeline.core.graph import Graph, leaders
from pipeline.core.placement import Placement

# With more than one sub-model HETERO otherwise turns exclusive requests on, and the CPU plug-in then ignores its
# thread limit without a word.
HETERO_PROPERTIES: Mapping[str, str] = {"EXCLUSIVE_ASYNC_REQUESTS": "NO"}


def normalise_placement(graph: Graph, placement: Placement) -> Placement:
    """Return the placement with what computes nothing in an inference moved to where it costs nothing.

    Parameters and what is computed from constants alone go to their first consumer, Results to their producer. A
    Parameter away from its consumer costs a sub-model and a copy, and so do unpacked weights; a Result away from its
    producer silently follows it; a Constant is shared. Moving them changes no computation.
    """
    return Placement(placement.device[leaders(graph)], placement.devices, placement.priority)


def set_affinities(model: ov.Model, affinity: Mapping[str, str]) -> None:
    """Write {operation name: device as OpenVINO knows it} on every operation of the model.

    Raises:
        UsageError: operations of the model are missing from the mapping; they are named.
    """
    missing = [op.get_friendly_name() for op in model.get_ops() if op.get_friendly_name() not in affinity]
    if missing:
        raise UsageError(
            f"{len(missing)} operation(s) have no device: {', '.join(missing[:5])}.",
            "Use the placement.json that was written beside this model.",
        )
    for op in model.get_ops():
        op.get_rt_info()["affinity"] = affinity[op.get_friendly_name()]


def affinities_of(graph: Graph, placement: Placement, devices: Sequence[DeviceSpec]) -> dict[str, str]:
    """Return {operation name: device as OpenVINO knows it} for a placement of the graph's operations."""
    known = {d.name: d.openvino_name for d in devices}
    return {name: known[device] for name, device in normalise_placement(graph, placement).to_json(graph.names).items()}


def hetero_target(devices: Sequence[DeviceSpec]) -> str:
    """Return the device string that compiles over all of the devices, "HETERO:CPU_A,CPU_B"."""
    return "HETERO:" + ",".join(d.openvino_name for d in devices)
