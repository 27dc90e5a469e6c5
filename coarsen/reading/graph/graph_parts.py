"""What files of graphs share: the graph that their parts make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.core.arrays import Float64, Int64
from pipeline.core.errors import NAMED, CyclicGraphError, ModelError
from pipeline.core.graph import Graph
from pipeline.core.tensors import edges_of, inferred
from pipeline.shared.cycles import strong_components

REMEDY = "Correct the file; docs/graph.md describes both formats."
MOST_TYPES = 2**15 - 1
MOST = 2.0**62  # more bytes, or FLOPs, are surely a slip


@dataclass(frozen=True, slots=True)
class Parts:
    """What a graph is made of, as it stands in a file: n operations, m edges in any order.

    pairs: int64 [2, m]; edge_bytes: float64 [m]. ports: int64 [m], which output of its producer an edge carries, -1
    where the file does not say; it says so of all edges of a producer or of none. Pairs with a port may occur again
    with another one. labels: operations of equal label, None apart, share a device.
    """

    names: tuple[str, ...]
    types: Sequence[str]
    pairs: Int64
    edge_bytes: Float64
    ports: Int64
    flops: Float64
    weight_bytes: Float64
    out_bytes: Float64
    labels: Sequence[Any]
    shapes: Sequence[tuple[int, ...]]


def graph_from(parts: Parts, *, where: str, source: str) -> Graph:
    """Return the graph of its parts.

    Raises:
        CyclicGraphError: the edges make a cycle, which is named.
    """
    check_acyclic(parts.names, parts.pairs, where)
    vocabulary = {name: i for i, name in enumerate(dict.fromkeys(parts.types))}
    if len(vocabulary) > MOST_TYPES:
        raise ModelError(f"{where} has {len(vocabulary)} types of operations.", f"Use at most {MOST_TYPES}.")
    ties: dict[Any, int] = {}
    # int64 [m], the output that each edge carries: as the file says, else as its bytes tell
    unsaid = np.flatnonzero(parts.ports < 0)
    unsaid = unsaid[np.lexsort((parts.pairs[1, unsaid], parts.pairs[0, unsaid]))]
    ports = parts.ports.copy()
    size, out_bytes = (np.rint(amount).astype(np.int64) for amount in (parts.edge_bytes[unsaid], parts.out_bytes))
    ports[unsaid] = inferred(parts.pairs[0, unsaid].astype(np.int32), size, out_bytes).port
    edges, edge_bytes, reads = edges_of(
        parts.pairs[0], parts.pairs[1], ports, np.rint(parts.edge_bytes).astype(np.int64)
    )
    return Graph(
        names=parts.names,
        op_type=np.array([vocabulary[t] for t in parts.types], np.int16),
        type_names=tuple(vocabulary),
        edges=edges,
        flops=parts.flops,
        weight_bytes=np.rint(parts.weight_bytes),
        out_bytes=np.rint(parts.out_bytes),
        edge_bytes=edge_bytes,
        shape_ptr=np.cumsum([0, *(len(shape) for shape in parts.shapes)]),
        shape_dim=np.array([d for shape in parts.shapes for d in shape], np.int64),
        colocate=np.array([-1 if label is None else ties.setdefault(label, len(ties)) for label in parts.labels]),
        kernel=np.full(len(parts.names), -1),
        source=source,
        reads=reads,
    )


def check_acyclic(names: Sequence[str], pairs: Int64, where: str) -> None:
    """Check that edges int64 [2, m] between operations make no cycle.

    Raises:
        CyclicGraphError: they do; one cycle is named.
    """
    part = strong_components(len(names), pairs)
    inside = part[pairs[0]] == part[pairs[1]]
    if not inside.any():
        return
    follower = dict(zip(*pairs[:, inside].tolist(), strict=True))
    place: dict[int, int] = {}
    at = next(iter(follower))
    while at not in place:
        place[at] = len(place)
        at = follower[at]
    cycle = [*list(place)[place[at] :], at]
    shown = " -> ".join(names[i] for i in cycle[: NAMED + 1]) + (" -> ..." if len(cycle) > NAMED + 1 else "")
    raise CyclicGraphError(
        f"The graph in {where} has a cycle: {shown}.",
        "Take one of these edges out: a graph is run from input to output.",
    )
