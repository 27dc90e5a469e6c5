"""Graphs as JSON documents of our own: operations with what is known of their times, and the edges between them.

docs/graph.md describes the format. A device's times stand under its name, its kind, or "*" for every device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Required

import numpy as np
from pydantic import BeforeValidator, Field
from typing_extensions import TypedDict

from coarsen.reading.graph.graph_parts import MOST, REMEDY, Parts, graph_from
from pipeline.core.arrays import Float64, Int64
from pipeline.core.errors import ModelError, list_some
from pipeline.core.tensors import inferred
from pipeline.core.workload import Tags, Workload
from pipeline.shared.validation import Faults, Name, repeated_values, strict_table

FORMAT = "placewright.graph/1"
NO_TAG = -1  # of an operation without a layer or step

Amount = Annotated[float, Field(ge=0, le=MOST, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0)]
Tag = Annotated[int, Field(ge=NO_TAG, lt=2**31 - 1)]
Port = Annotated[int, Field(ge=0, lt=2**31 - 1)]
Dimension = Annotated[int, Field(ge=-1, lt=2**63)]


def _times_by_device(value: Any) -> Any:
    """Return times by device; one number, or null, stands for every device."""
    return value if isinstance(value, Mapping) else {"*": value}


Times = Annotated[
    dict[str, Seconds | None],
    BeforeValidator(_times_by_device, json_schema_input_type=Seconds | None | dict[str, Seconds | None]),
]


@strict_table()
class OperationEntry(TypedDict, total=False):
    """An operation of a document; null as a time is a device that does not support it."""

    name: Required[Name]
    type: str
    flops: Amount
    weight_bytes: Amount
    output_bytes: Amount | None
    time_s: Times
    shape: list[Dimension]
    colocate: str | int | None
    layer: Tag
    step: Tag


EdgeEntry = TypedDict(
    "EdgeEntry", {"from": Required[str], "to": Required[str], "bytes": Amount | None, "output": Port}, total=False
)
strict_table()(EdgeEntry)


@strict_table()
class GraphDocument(TypedDict, total=False):
    """A graph as JSON; docs/graph.md says what its keys mean."""

    format: str
    operations: Required[Annotated[list[OperationEntry], Field(min_length=1)]]
    edges: Required[list[EdgeEntry]]
    link_bytes_per_s: Amount
    memory_bytes: Amount


def read_document(document: Mapping[str, Any], *, where: str, source: str = "") -> Workload:
    """Return the graph of a document; `where` names it in messages, `source` is the sha256 of its file.

    Raises:
        ModelError: something in it is wrong; the operations are named.
    """
    faults = Faults(where, ModelError, REMEDY)
    checked = faults.checked(GraphDocument, document)
    faults.end()
    operations, edges = checked["operations"], checked["edges"]
    names = tuple(op["name"] for op in operations)
    ports = np.array([edge.get("output", -1) for edge in edges], np.int64)
    pairs = _read_pairs(edges, names, ports, faults)
    times = _read_times([op.get("time_s", {}) for op in operations], names, faults)
    faults.end()
    carried = np.array([edge.get("bytes") for edge in edges], np.float64)  # nan where none are given
    # float64 [n], bytes each operation puts out: as given, else the most that edges carry of each output
    outputs, which = np.unique(np.stack([pairs[0], ports]), axis=1, return_inverse=True)
    most = np.zeros(outputs.shape[1])
    known = ~np.isnan(carried)
    np.maximum.at(most, which.ravel()[known], carried[known])
    total = np.bincount(outputs[0], most, minlength=len(operations))
    given = np.array([op.get("output_bytes") for op in operations], np.float64)
    out_bytes = np.where(np.isnan(given), total, given)
    graph = graph_from(
        Parts(
            names=names,
            types=[op.get("type", "Operation") for op in operations],
            pairs=pairs,
            edge_bytes=np.where(np.isnan(carried), out_bytes[pairs[0]], carried),
            ports=ports,
            flops=np.array([op.get("flops", 0.0) for op in operations]),
            weight_bytes=np.array([op.get("weight_bytes", 0.0) for op in operations]),
            out_bytes=out_bytes,
            labels=[op.get("colocate") for op in operations],
            shapes=[tuple(op.get("shape", ())) for op in operations],
        ),
        where=where,
        source=source,
    )
    layers, steps = ([op.get(key, NO_TAG) for op in operations] for key in ("layer", "step"))
    tags = Tags(np.array(layers, np.int32), np.array(steps, np.int32))
    return Workload(graph, tags, times, checked.get("link_bytes_per_s", 0.0), int(checked.get("memory_bytes", 0.0)))


def to_document(workload: Workload) -> dict[str, Any]:
    """Return a graph as JSON values, from which `read_document` makes it again; kernels of a runtime are left out."""
    graph, tags = workload.graph, workload.tags
    types = [graph.type_names[t] for t in graph.op_type.tolist()]
    columns: dict[str, Sequence[Any]] = {
        "name": graph.names,
        "type": types,
        "flops": graph.flops.tolist(),
        "weight_bytes": graph.weight_bytes.tolist(),
        "output_bytes": graph.out_bytes.tolist(),
        "shape": [list(graph.shape(i)) for i in range(graph.n)],
    }
    operations: list[dict[str, Any]] = [
        dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
    ]
    for key, values in (("colocate", graph.colocate), ("layer", tags.layer), ("step", tags.step)):
        for i in np.flatnonzero(values >= 0).tolist():
            operations[i][key] = int(values[i])
    for device, seconds in workload.times.items():
        for operation, value in zip(operations, seconds.tolist(), strict=True):
            operation.setdefault("time_s", {})[device] = value if math.isfinite(value) else None
    names = graph.names
    ports = graph.reads.port.tolist()
    edges = [
        {"from": names[a], "to": names[b], "bytes": size, "output": port}
        for (a, b, _, size), port in zip(graph.read_rows(), ports, strict=True)
    ]
    if graph.reads.same_as(inferred(graph.edges[0], graph.edge_bytes, graph.out_bytes)):
        for edge in edges:
            del edge["output"]  # their bytes tell
    limits = {"link_bytes_per_s": workload.link_bytes_per_s, "memory_bytes": workload.memory_bytes}
    return {"format": FORMAT, **{k: v for k, v in limits.items() if v}, "operations": operations, "edges": edges}


def _read_pairs(edges: Sequence[EdgeEntry], names: Sequence[str], ports: Int64, faults: Faults) -> Int64:
    """Return the edges, int64 [2, m] as they stand; names must be unique and known, and no edge there twice.

    ports: int64 [m], the output that each carries, -1 where it is not told; of no operation may it be told in part.
    """
    index = {name: i for i, name in enumerate(names)}
    for name in repeated_values(names) if len(index) < len(names) else ():
        faults.add(f"two operations are called {name!r}")
    ends = [(edge["from"], edge["to"]) for edge in edges]
    unknown = [(a, b, a if a not in index else b) for a, b in ends if a not in index or b not in index]
    for a, b, name in unknown:
        faults.add(f"the edge {a!r} -> {b!r} names {name!r}, which is not an operation")
    whole = [(*pair, port) for pair, port in zip(ends, ports.tolist(), strict=True)]
    for a, b, port in repeated_values(whole) if len(set(whole)) < len(whole) else ():
        faults.add(f"the edge {a} -> {b} {'' if port < 0 else f'of output {port} '}is listed twice")
    told = {a for a, _, port in whole if port >= 0}
    for name in dict.fromkeys(a for a, _, port in whole if port < 0 and a in told):
        faults.add(f"some edges of {name!r} say which output they carry, and some do not")
    if unknown:
        return np.empty((2, 0), np.int64)
    return np.array([(index[a], index[b]) for a, b in ends], np.int64).reshape(-1, 2).T


def _read_times(rows: Sequence[Mapping[str, float | None]], names: Sequence[str], faults: Faults) -> dict[str, Float64]:
    """Return device, kind or "*" -> float64 [n] seconds; null stands for not supported.

    The "*" of an operation holds for what it does not name; it counts for further devices only if all have one.
    """
    devices = dict.fromkeys(key for row in rows for key in row if key != "*")
    times: dict[str, Float64] = {}
    for device in [*devices, *(["*"] if all("*" in row for row in rows) else [])]:
        missing = [n for n, row in zip(names, rows, strict=True) if device not in row and "*" not in row]
        if missing:
            faults.add(f"time_s on {device!r} is missing for {list_some(missing)}; null means unsupported")
            continue
        given = [row[device] if device in row else row["*"] for row in rows]
        times[device] = np.array([math.inf if value is None else value for value in given])
    if not times and any(rows) and not faults.faults:
        missing = [name for name, row in zip(names, rows, strict=True) if not row]
        faults.add(f"time_s is missing for {list_some(missing)}; null means unsupported")
    return times
