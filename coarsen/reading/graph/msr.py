"""The JSON format of Tarnawski et al., Efficient algorithms for device placement of DNN graph operators, NeurIPS 2020.

Latencies and costs are milliseconds; "FPGA" is any accelerator. A cost is the time to move the source's output once
between an accelerator and the host, equal on all edges that leave one source.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Required

import numpy as np
from pydantic import BeforeValidator, Field
from typing_extensions import TypedDict

from coarsen.reading.graph.graph_parts import MOST, REMEDY, Parts, graph_from
from pipeline.core.arrays import Float64, Int64
from pipeline.core.errors import ModelError
from pipeline.core.workload import Tags, Workload
from pipeline.shared.validation import Faults, Finite, repeated_values, strict_table

LINK_BYTES_PER_S = 2.0**31  # the published costs are bytes over 2 GiB/s
MS = 1e-3
SAME_COST = 1e-6
TYPES = ("Forward", "Backward")

Truth = Literal[False, True, 0, 1]


@strict_table("ignore")
class NodeEntry(TypedDict, total=False):
    """A node: an operation, with times in milliseconds."""

    id: Required[int]
    name: Annotated[str, BeforeValidator(str)]
    supportedOnFpga: Truth
    cpuLatency: Required[Finite]
    fpgaLatency: Required[Finite]
    isBackwardNode: Truth
    colorClass: int | None
    size: Annotated[float, Field(ge=0, le=MOST)]
    layerId: Any


@strict_table("ignore")
class TransferEntry(TypedDict, total=False):
    """An edge, with the milliseconds that moving its source's output takes."""

    sourceId: Required[int]
    destId: Required[int]
    cost: Finite


@strict_table("ignore")
class OfficialDocument(TypedDict, total=False):
    """A graph in the format of Tarnawski et al.; docs/graph.md says what its keys mean."""

    maxSizePerFPGA: Annotated[float, Field(ge=0)]
    maxFPGAs: Annotated[int, Field(ge=0)]
    maxCPUs: Annotated[int, Field(ge=0)]
    nodes: Required[Annotated[list[NodeEntry], Field(min_length=1)]]
    edges: Required[list[TransferEntry]]


def is_msr(document: Mapping[str, Any]) -> bool:
    """Return whether a document is of this format, by its keys."""
    return "nodes" in document and "operations" not in document


def read_msr(document: Mapping[str, Any], *, where: str, cost_scale: float = 1.0, source: str = "") -> Workload:
    """Return the graph of a document; `where` names it in messages, `source` is the sha256 of its file.

    times: "cpu", and "*" for any accelerator. Nodes of one colour are colocated. An edge carries the bytes that take
    its cost over LINK_BYTES_PER_S; the types of the nodes are TYPES. Nodes go by their names if all have one and none
    occurs twice, else by "name#id". topology: as many accelerators and CPUs as the file says, if it does.

    cost_scale: what costs are multiplied with; 1000 for the published throughput inputs of layer graphs, whose costs
    are a thousandth of those of the same graphs among the latency inputs.

    Raises:
        ModelError: something in it is wrong; the nodes are named.
    """
    faults = Faults(where, ModelError, REMEDY)
    checked = faults.checked(OfficialDocument, document)
    faults.end()
    nodes, edges = checked["nodes"], checked["edges"]
    names = node_names(nodes)
    pairs, cost = _read_transfers(edges, [node["id"] for node in nodes], names, faults)
    with np.errstate(over="ignore"):  # refused below
        edge_bytes = np.rint(cost * (cost_scale * MS * LINK_BYTES_PER_S))
    if np.any(edge_bytes > MOST):
        faults.add(f"the transfer cost {cost.max():g} ms is not plausible")
    faults.end()
    out_bytes = np.zeros(len(names))
    np.maximum.at(out_bytes, pairs[0], edge_bytes)
    parts = Parts(
        names=names,
        types=[TYPES[node.get("isBackwardNode", False)] for node in nodes],
        pairs=pairs,
        edge_bytes=edge_bytes,
        ports=np.full(cost.size, -1),
        flops=np.zeros(len(names)),
        weight_bytes=np.array([node.get("size", 0.0) for node in nodes]),
        out_bytes=out_bytes,
        labels=[node.get("colorClass") for node in nodes],
        shapes=[()] * len(names),
    )
    memory_bytes = checked.get("maxSizePerFPGA", 0.0)
    fpga_ms = [node["fpgaLatency"] if node.get("supportedOnFpga", True) else math.inf for node in nodes]
    times = {"cpu": np.array([node["cpuLatency"] for node in nodes]) * MS, "*": np.array(fpga_ms) * MS}
    values = [node.get("layerId") for node in nodes]
    return Workload(
        graph_from(parts, where=where, source=source),
        Tags(
            np.array([v if isinstance(v, int) and 0 <= v < 2**31 - 1 else -1 for v in values], np.int32),
            np.full(len(names), -1),
        ),
        times,
        LINK_BYTES_PER_S,
        int(memory_bytes) if memory_bytes < 2**63 else 0,
        f"accelerators:{checked['maxFPGAs']}x{checked.get('maxCPUs', 0)}" if "maxFPGAs" in checked else "",
    )


def node_names(nodes: Sequence[NodeEntry]) -> tuple[str, ...]:
    """Return what the nodes of a document are called; see `read_msr`."""
    names = [node.get("name", "") for node in nodes]
    if all(names) and len(set(names)) == len(names):
        return tuple(names)
    return tuple(f"{name}#{node['id']}" for name, node in zip(names, nodes, strict=True))


def _read_transfers(
    edges: Sequence[TransferEntry], ids: Sequence[int], names: Sequence[str], faults: Faults
) -> tuple[Int64, Float64]:
    """Return the edges, int64 [2, m], and their costs, float64 [m] milliseconds; an edge told twice counts once."""
    index = {number: i for i, number in enumerate(ids)}
    for number in repeated_values(ids):
        faults.add(f"two nodes have the id {number}")
    cost_of: dict[int, float] = {}
    costs: dict[tuple[int, int], float] = {}
    for edge in edges:
        ends = (edge["sourceId"], edge["destId"])
        unknown = [end for end in ends if end not in index]
        if unknown:
            faults.add(f"the edge {ends[0]} -> {ends[1]} names {unknown[0]}, which is no node's id")
            continue
        source, cost = index[ends[0]], edge.get("cost", 0.0)
        if abs(cost - cost_of.setdefault(source, cost)) > SAME_COST:
            faults.add(f"the edges that leave {names[source]} cost {cost_of[source]:g} and {cost:g}: give all one cost")
        costs[source, index[ends[1]]] = cost
    return np.array(list(costs), np.int64).reshape(-1, 2).T, np.array(list(costs.values()))
