"""Writing the JSON format of Tarnawski et al., and reading and writing the results of their tools."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Required

import numpy as np
from typing_extensions import TypedDict

from coarsen.reading.graph.msr import MS, TYPES, node_names
from pipeline.core.arrays import Int32
from pipeline.core.devices import CostTable, Topology
from pipeline.core.errors import UsageError, list_some
from pipeline.core.graph import Graph, makers
from pipeline.shared.validation import Faults, strict_table

RESULT_REMEDY = "Give a result of the official tools, or one that --official-out has written, for this graph."


@strict_table("ignore")
class OfficialDevice(TypedDict, total=False):
    """One device of a result: its load in milliseconds, below 0 if unknown, and the ids of its nodes."""

    load: float
    nodes: Required[list[int]]


@strict_table("ignore")
class OfficialResult(TypedDict, total=False):
    """A result of the official tools."""

    maxLoad: float
    totalLatency: float
    fpgas: Required[list[OfficialDevice]]
    cpus: list[OfficialDevice]


def accelerators_and_cpus(topology: Topology) -> tuple[list[int], list[int]]:
    """Return the numbers of the devices that are no CPU, and of those that are."""
    cpus = [d for d, device in enumerate(topology.devices) if device.kind == "cpu"]
    return [d for d in range(topology.p) if d not in cpus], cpus


class OfficialLoads(NamedTuple):
    """What a placement comes to.

    key: how a result names it. value_s: seconds of the whole. load_s: seconds of each (device, call). calls: of each
    accelerator at most.
    """

    key: Literal["maxLoad", "totalLatency"]
    value_s: float
    load_s: Mapping[tuple[int, int], float]
    calls: int = 1


def official_result(
    document: Mapping[str, Any],
    names: Sequence[str],
    placed: tuple[Int32, Sequence[int]],
    loads: OfficialLoads,
    topology: Topology,
) -> dict[str, Any]:
    """Return a placement of the operations `names` of a document as the official tools write it.

    placed: the device of each operation, int32 [n], and its call. The calls of an accelerator come one after another.
    """
    ids = dict(zip(node_names(document["nodes"]), [node["id"] for node in document["nodes"]], strict=True))
    mine: dict[tuple[int, int], list[int]] = {}
    accelerators, cpus = accelerators_and_cpus(topology)
    for name, d, turn in zip(names, placed[0].tolist(), placed[1], strict=True):
        mine.setdefault((d, 0 if d in cpus else turn), []).append(ids[name])

    def row(d: int, turn: int) -> OfficialDevice:
        return OfficialDevice(load=loads.load_s.get((d, turn), 0.0) / MS, nodes=sorted(mine.get((d, turn), [])))

    fpgas = [row(d, turn) for d in accelerators for turn in range(loads.calls)]
    return {loads.key: loads.value_s / MS, "fpgas": fpgas, "cpus": [row(d, 0) for d in cpus]}


def placed_by(
    result: Mapping[str, Any], document: Mapping[str, Any], topology: Topology, calls: int = 1, *, where: str
) -> tuple[dict[str, str], dict[str, int], OfficialResult]:
    """Return ({operation: device} of a result of the official tools, {operation: call}, the result).

    document: the graph's own. calls: of each accelerator at most.

    Raises:
        UsageError: it is no such result, or of another graph.
    """
    faults = Faults(where, UsageError, RESULT_REMEDY)
    checked = faults.checked(OfficialResult, result)
    faults.end()
    names = dict(zip([node["id"] for node in document["nodes"]], node_names(document["nodes"]), strict=True))
    placed: dict[str, str] = {}
    turns: dict[str, int] = {}
    accelerators, cpus = accelerators_and_cpus(topology)
    called = [(d, turn) for d in accelerators for turn in range(calls)]
    parts = (("accelerators", checked["fpgas"], called), ("CPUs", checked.get("cpus", []), [(d, 0) for d in cpus]))
    for what, rows, homes in parts:
        used = [row for row in rows if row["nodes"]]
        if len(used) > len(homes):
            faults.add(f"it uses {len(used)} {what}, and there are {len(homes)}")
            continue
        for row, (d, turn) in zip(used if len(rows) > len(homes) else rows, homes, strict=False):
            for node in row["nodes"]:
                if node not in names:
                    faults.add(f"{node} is no node's id")
                elif names[node] in placed:
                    faults.add(f"the node {node} is on two devices")
                else:
                    placed[names[node]], turns[names[node]] = topology.names[d], turn
    missing = [name for name in names.values() if name not in placed]
    if missing:
        faults.add(f"these nodes are on no device: {list_some(missing)}")
    faults.end()
    return placed, turns, checked


def to_msr(graph: Graph, costs: CostTable, topology: Topology) -> dict[str, Any]:
    """Return a graph, its costs and devices as a document of this format.

    The format knows accelerators that are equal, and CPUs that are: others are refused. Where outputs of one operation
    are read in different sizes, or over different links, its edges cost what the most expensive takes.

    Raises:
        UsageError: devices of one kind differ, or a CPU does not support an operation.
    """
    groups = accelerators_and_cpus(topology)
    for what, devices in zip(("accelerators", "CPUs"), groups, strict=True):
        times, sizes = costs.op_s[:, devices], {topology.devices[d].memory_bytes for d in devices}
        if devices and (np.any(times != times[:, :1]) or len(sizes) > 1):
            raise UsageError(f"The {what} differ; the format needs equal ones.", "Use a topology of equal devices.")
    accelerators, cpus = groups
    acc_s = costs.op_s[:, accelerators[0]] if accelerators else np.full(graph.n, math.inf)
    cpu_s = costs.op_s[:, cpus[0]] if cpus else np.where(np.isfinite(acc_s), acc_s, 0.0)
    unsupported = np.flatnonzero(~np.isfinite(cpu_s))
    if unsupported.size:
        raise UsageError(
            f"No CPU runs {list_some([graph.names[i] for i in unsupported])}, which the format cannot say.",
            "Give times for CPUs, or a topology without any.",
        )
    cost_ms = _edge_costs(graph, topology) / MS
    backward = np.array(graph.type_names)[graph.op_type] == TYPES[1]
    nodes: list[dict[str, Any]] = [
        {
            "id": i,
            "name": name,
            "supportedOnFpga": bool(np.isfinite(acc_s[i])),
            "cpuLatency": float(cpu_s[i]) / MS,
            "fpgaLatency": float(acc_s[i]) / MS if np.isfinite(acc_s[i]) else 0.0,
            "isBackwardNode": bool(backward[i]),
            "size": float(graph.weight_bytes[i]),
            **({"colorClass": int(graph.colocate[i])} if graph.colocate[i] >= 0 else {}),
        }
        for i, name in enumerate(graph.names)
    ]
    edges = [
        {"sourceId": a, "destId": b, "cost": float(cost_ms[a]), "size": float(size)}
        for (a, b), size in zip(graph.edges.T.tolist(), graph.edge_bytes.tolist(), strict=True)
    ]
    room = topology.devices[accelerators[0]].memory_bytes if accelerators else 0
    return {
        "maxSizePerFPGA": float(room or graph.weight_bytes.sum()),
        "maxFPGAs": len(accelerators),
        "maxCPUs": len(cpus),
        "nodes": nodes,
        "edges": edges,
    }


def _edge_costs(graph: Graph, topology: Topology) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return float64 [n], the seconds that the most expensive output of each operation takes over the slowest link."""
    apart = ~np.eye(topology.p, dtype=bool)
    size = np.zeros(graph.n)
    np.maximum.at(size, makers(graph)[graph.reads.tensor], graph.reads.size)
    if topology.p == 1:
        return np.zeros(graph.n)
    latency_s, per_byte_s = topology.link_latency_s[apart], 1.0 / topology.link_bytes_per_s[apart]
    return np.asarray((latency_s[:, None] + per_byte_s[:, None] * size).max(axis=0))
