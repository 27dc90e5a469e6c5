"""The JSON format of Tarnawski et al., Efficient algorithms for device placement of DNN graph operators, NeurIPS 2020.

    maxSizePerFPGA, maxFPGAs, maxCPUs
    nodes: id, supportedOnFpga, cpuLatency, fpgaLatency, isBackwardNode, colorClass?, size?, name?, layerId?
    edges: sourceId, destId, cost, size?

Latencies and costs are milliseconds; "FPGA" is any accelerator. A cost is the time to move the source's output once
between an accelerator and the host, equal on all edges that leave one source.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coarsen.reading.parts import MOST, Faults, Parts, graph_from
from pipeline.core.arrays import Float64, Int64
from pipeline.core.workload import Tags, Workload

LINK_BYTES_PER_S = 2.0**31  # the published costs are bytes over 2 GiB/s
MS = 1e-3
SAME_COST = 1e-6
TYPES = ("Forward", "Backward")
Node = Mapping[str, Any]


def is_msr(document: Mapping[str, Any]) -> bool:
    """Return whether a document is of this format, by its keys."""
    return "nodes" in document and "operations" not in document


def read_msr(document: Mapping[str, Any], *, where: str, cost_scale: float = 1.0, source: str = "") -> Workload:
    """Return the graph of a document; `where` names it in messages, `source` is the sha256 of its file.

    times: "cpu", and "*" for any accelerator. Nodes of one colour are colocated. An edge carries the bytes that take
    its cost over LINK_BYTES_PER_S; the types of the nodes are TYPES. Nodes go by their names if all have one and none
    occurs twice, else by "name#id". How many devices the file suggests is not kept.

    cost_scale: what costs are multiplied with; 1000 for the published throughput inputs of layer graphs, whose costs
    are a thousandth of those of the same graphs among the latency inputs.

    Raises:
        ModelError: something in it is wrong; the nodes are named.
    """
    faults = Faults(where)
    nodes, edges = faults.tables(document, "nodes"), faults.tables(document, "edges")
    index = _index(nodes, faults)
    faults.end()
    names = _names(nodes)
    pairs, cost = _edges(edges, index, names, faults)
    cpu_ms, fpga_ms = (faults.column(nodes, names, key, None) for key in ("cpuLatency", "fpgaLatency"))
    size = faults.column(nodes, names, "size")
    supported = np.array([_truth(node.get("supportedOnFpga", True), "supportedOnFpga", faults) for node in nodes])
    backward = [_truth(node.get("isBackwardNode", False), "isBackwardNode", faults) for node in nodes]
    labels = [_label(node.get("colorClass"), faults) for node in nodes]
    memory_bytes = faults.number(document.get("maxSizePerFPGA", 0), "maxSizePerFPGA", finite=False)
    if np.any(cost * (cost_scale * MS * LINK_BYTES_PER_S) > MOST):
        faults.add(f"a cost of {cost.max():g} ms is no time that a transfer takes")
    faults.end()
    edge_bytes = np.rint(cost * (cost_scale * MS * LINK_BYTES_PER_S))
    out_bytes = np.zeros(len(names))
    np.maximum.at(out_bytes, pairs[0], edge_bytes)
    parts = Parts(
        names=names,
        types=[TYPES[b] for b in backward],
        pairs=pairs,
        edge_bytes=edge_bytes,
        flops=np.zeros(len(names)),
        weight_bytes=size,
        out_bytes=out_bytes,
        labels=labels,
        shapes=[()] * len(names),
    )
    times = {
        "cpu": cpu_ms * MS,
        "*": np.where(supported, fpga_ms * MS, math.inf),
    }
    return Workload(
        graph_from(parts, where=where, source=source),
        Tags(_layers(nodes), np.full(len(names), -1)),
        times,
        LINK_BYTES_PER_S,
        int(memory_bytes) if math.isfinite(memory_bytes) else 0,
    )


def _index(nodes: Sequence[Node], faults: Faults) -> dict[int, int]:
    """Return the place of every node by its id."""
    index: dict[int, int] = {}
    for i, node in enumerate(nodes):
        number = node.get("id")
        if not isinstance(number, int) or isinstance(number, bool):
            faults.add(f"node {i + 1} needs a whole number as id, has {number!r}")
        elif number in index:
            faults.add(f"two nodes have the id {number}")
        else:
            index[number] = i
    if not nodes:
        faults.add("there are no nodes")
    return index


def _names(nodes: Sequence[Node]) -> tuple[str, ...]:
    names = [str(node.get("name", "")) for node in nodes]
    if all(names) and len(set(names)) == len(names):
        return tuple(names)
    return tuple(f"{name}#{node['id']}" for name, node in zip(names, nodes, strict=True))


def _truth(value: Any, key: str, faults: Faults) -> bool:
    if value in (0, 1):  # False and True as well
        return bool(value)
    faults.add(f"{key} is {value!r}, which is neither true nor false")
    return False


def _label(value: Any, faults: Faults) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    faults.add(f"colorClass is {value!r}, which is not a whole number")
    return None


def _edges(
    edges: Sequence[Node], index: Mapping[int, int], names: Sequence[str], faults: Faults
) -> tuple[Int64, Float64]:
    """Return the edges, int64 [2, m], and their costs, float64 [m] milliseconds; an edge told twice counts once."""
    cost_of: dict[int, float] = {}
    found: dict[tuple[int, int], float] = {}
    for edge in edges:
        ends = [edge.get("sourceId"), edge.get("destId")]
        strange = [end for end in ends if not isinstance(end, int) or end not in index]
        if strange:
            faults.add(f"the edge {ends[0]!r} -> {ends[1]!r} names {strange[0]!r}, which is no node's id")
            continue
        source, target = index[int(ends[0] or 0)], index[int(ends[1] or 0)]
        cost = faults.number(edge.get("cost", 0), f"cost of the edge {names[source]} -> {names[target]}")
        if abs(cost - cost_of.setdefault(source, cost)) > SAME_COST:
            faults.add(f"the edges that leave {names[source]} cost {cost_of[source]:g} and {cost:g}: give all one cost")
        found[source, target] = cost
    return np.array(list(found), np.int64).reshape(-1, 2).T, np.array(list(found.values()))


def _layers(nodes: Sequence[Node]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    values = [node.get("layerId", -1) for node in nodes]
    return np.array([v if isinstance(v, int) and 0 <= v < 2**31 - 1 else -1 for v in values], np.int32)
