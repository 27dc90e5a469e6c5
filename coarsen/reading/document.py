"""Graphs as JSON documents of our own: operations with what is known of their times, and the edges between them.

docs/graph.md describes the format. A device's times stand under its name, its kind, or "*" for every device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from coarsen.reading.parts import NAMED, Faults, Parts, graph_from
from pipeline.core.arrays import Float64, Int32, Int64
from pipeline.core.workload import Tags, Workload

FORMAT = "placewright.graph/1"
DOCUMENT_KEYS = ("format", "operations", "edges", "link_bytes_per_s", "memory_bytes")
OPERATION_KEYS = (
    *("name", "type", "flops", "weight_bytes", "output_bytes"),
    *("time_s", "shape", "colocate", "layer", "step"),
)
EDGE_KEYS = ("from", "to", "bytes")


def read_document(document: Mapping[str, Any], *, where: str, source: str = "") -> Workload:
    """Return the graph of a document; `where` names it in messages, `source` is the sha256 of its file.

    Raises:
        ModelError: something in it is wrong; the operations are named.
    """
    faults = Faults(where)
    faults.keys(document, DOCUMENT_KEYS, "the document")
    operations = faults.tables(document, "operations")
    edges = faults.tables(document, "edges")
    names = _names(operations, faults)
    pairs, carried = _edges(edges, names, faults)
    faults.end()
    out_bytes = _outputs(operations, names, pairs, carried, faults)
    edge_bytes = np.where(np.isnan(carried), out_bytes[pairs[0]], carried)
    types = [str(op.get("type", "Operation")) for op in operations]
    shapes = [_shape(op, name, faults) for op, name in zip(operations, names, strict=True)]
    flops, weight_bytes = (faults.column(operations, names, key) for key in ("flops", "weight_bytes"))
    times = _times(operations, names, faults)
    labels = _labels(operations, names, faults)
    tags = Tags(_whole(operations, names, "layer", faults), _whole(operations, names, "step", faults))
    link_bytes_per_s = faults.number(document.get("link_bytes_per_s", 0), "link_bytes_per_s")
    memory_bytes = faults.number(document.get("memory_bytes", 0), "memory_bytes")
    faults.end()
    graph = graph_from(
        Parts(
            names=names,
            types=types,
            pairs=pairs,
            edge_bytes=edge_bytes,
            flops=flops,
            weight_bytes=weight_bytes,
            out_bytes=out_bytes,
            labels=labels,
            shapes=shapes,
        ),
        where=where,
        source=source,
    )
    return Workload(graph, tags, times, link_bytes_per_s, int(memory_bytes))


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
    edges = [
        {"from": names[a], "to": names[b], "bytes": size}
        for a, b, size in zip(*graph.edges.tolist(), graph.edge_bytes.tolist(), strict=True)
    ]
    limits = {"link_bytes_per_s": workload.link_bytes_per_s, "memory_bytes": workload.memory_bytes}
    return {"format": FORMAT, **{k: v for k, v in limits.items() if v}, "operations": operations, "edges": edges}


def _names(operations: Sequence[Mapping[str, Any]], faults: Faults) -> tuple[str, ...]:
    seen: set[str] = set()
    for i, operation in enumerate(operations):
        name = operation.get("name")
        if not isinstance(name, str) or not name:
            faults.add(f"operation {i + 1} needs a name, has {name!r}")
            continue
        if name in seen:
            faults.add(f"two operations are called {name!r}")
        seen.add(name)
        faults.keys(operation, OPERATION_KEYS, f"operation {name!r}")
    if not operations:
        faults.add("there are no operations")
    return tuple(str(operation.get("name")) for operation in operations)


def _edges(edges: Sequence[Mapping[str, Any]], names: Sequence[str], faults: Faults) -> tuple[Int64, Float64]:
    """Return the edges, int64 [2, m] as they stand, and their bytes, float64 [m], nan where none are given."""
    index = {name: i for i, name in enumerate(names)}
    pairs: list[tuple[int, int]] = []
    sizes: list[float] = []
    for edge in edges:
        faults.keys(edge, EDGE_KEYS, "an edge")
        start, end = edge.get("from"), edge.get("to")
        strange = [name for name in (start, end) if not isinstance(name, str) or name not in index]
        if strange:
            faults.add(f"the edge {start!r} -> {end!r} names {strange[0]!r}, which is no operation")
            continue
        pairs.append((index[str(start)], index[str(end)]))
        size = edge.get("bytes")
        sizes.append(math.nan if size is None else faults.number(size, f"bytes of the edge {start} -> {end}"))
    for a, b in _repeated(pairs):
        faults.add(f"the edge {names[a]} -> {names[b]} is there twice")
    return np.array(pairs, np.int64).reshape(-1, 2).T, np.array(sizes)


def _repeated(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    seen: set[tuple[int, int]] = set()
    return [pair for pair in pairs if pair in seen or seen.add(pair)]  # type: ignore[func-returns-value]


def _outputs(
    operations: Sequence[Mapping[str, Any]], names: Sequence[str], pairs: Int64, carried: Float64, faults: Faults
) -> Float64:
    """Return float64 [n], bytes each operation puts out: as given, else the most that an edge carries from it."""
    most = np.zeros(len(names))
    known = ~np.isnan(carried)
    np.maximum.at(most, pairs[0][known], carried[known])
    for i, operation in enumerate(operations):
        if "output_bytes" in operation:
            most[i] = faults.number(operation["output_bytes"], f"output_bytes of {names[i]}")
    return most


def _times(operations: Sequence[Mapping[str, Any]], names: Sequence[str], faults: Faults) -> dict[str, Float64]:
    """Return device, kind or "*" -> float64 [n] seconds; null stands for not supported.

    The "*" of an operation holds for what it does not name; it counts for further devices only if all have one.
    """
    rows = [op.get("time_s", {}) for op in operations]
    tables = [row if isinstance(row, Mapping) else {"*": row} for row in rows]
    devices = dict.fromkeys(key for table in tables for key in table if key != "*")
    found: dict[str, Float64] = {}
    for device in [*devices, *(["*"] if all("*" in table for table in tables) else [])]:
        missing = [n for n, table in zip(names, tables, strict=True) if device not in table and "*" not in table]
        if missing:
            more = " ..." if len(missing) > NAMED else ""
            faults.add(f"there is no time_s on {device!r} for {', '.join(missing[:NAMED])}{more}; null is unsupported")
            continue
        given = [table.get(device, table.get("*")) for table in tables]
        values = [math.inf if value is None else value for value in given]
        found[str(device)] = faults.numbers(values, names, partial(_time_of, str(device)), finite=False)
    if tables and not found and any(tables) and not faults.found:
        missing = [name for name, table in zip(names, tables, strict=True) if not table]
        faults.add(f"there is no time_s for {', '.join(missing[:NAMED])}, though others have one; null is unsupported")
    return found


def _time_of(device: str, name: str) -> str:
    return f"time_s of {name} on {device}"


def _whole(tables: Sequence[Mapping[str, Any]], names: Sequence[str], key: str, faults: Faults) -> Int32:
    """Return int32 [n], a whole number of at least 0 of every operation, -1 where it has none."""
    values = [table.get(key, -1) for table in tables]
    for name, value in zip(names, values, strict=True):
        if not isinstance(value, int) or isinstance(value, bool) or not -1 <= value < 2**31 - 1:
            faults.add(f"{key} of {name} is {value!r}, which is not a whole number of at least 0")
            return np.full(len(names), -1, np.int32)
    return np.array(values, np.int32)


def _shape(operation: Mapping[str, Any], name: str, faults: Faults) -> tuple[int, ...]:
    shape = operation.get("shape", [])
    if isinstance(shape, list) and all(isinstance(d, int) and not isinstance(d, bool) and d >= -1 for d in shape):
        return tuple(shape)
    faults.add(f"shape of {name} is {shape!r}, which is not a list of whole numbers, -1 for any")
    return ()


def _labels(operations: Sequence[Mapping[str, Any]], names: Sequence[str], faults: Faults) -> list[str | int | None]:
    labels = [operation.get("colocate") for operation in operations]
    for name, label in zip(names, labels, strict=True):
        if not isinstance(label, str | int | None):
            faults.add(f"colocate of {name} is {label!r}, which is neither a text nor a whole number")
    return labels
