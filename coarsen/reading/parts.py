"""What files of graphs share: collecting what is wrong with them, and the graph that their parts make."""

from __future__ import annotations

import contextlib
import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipeline.core.arrays import Float64, Int64
from pipeline.core.errors import CyclicGraphError, ModelError
from pipeline.core.graph import Graph

NAMED = 5  # faults that a message lists
MOST_TYPES = 2**15 - 1
MOST = 2**62  # more bytes, or FLOPs, are surely a slip


@dataclass(slots=True)
class Faults:
    """Collects what is wrong with a document, so that all of it can be said at once; `where` names the document."""

    where: str
    found: list[str] = field(default_factory=list)

    def add(self, text: str) -> None:
        """Note one fault."""
        self.found.append(text)

    def end(self) -> None:
        """Raise ModelError if there are faults."""
        if self.found:
            more = f"; and {len(self.found) - NAMED} more" if len(self.found) > NAMED else ""
            raise ModelError(
                f"In {self.where}: {'; '.join(self.found[:NAMED])}{more}.",
                "Correct the file; docs/graph.md describes both formats.",
            )

    def keys(self, table: Mapping[str, Any], known: Sequence[str], place: str) -> None:
        """Note keys that nobody reads."""
        for key in table.keys() - known:
            near = difflib.get_close_matches(str(key), known, n=1)
            self.add(f"{place} has an unknown key {key!r}" + (f" (did you mean {near[0]!r}?)" if near else ""))

    def tables(self, document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
        """Return a list of objects; [] where it is none."""
        value = document.get(key)
        if isinstance(value, list) and all(isinstance(entry, Mapping) for entry in value):
            return value
        self.add(f"{key!r} must be a list of objects")
        return []

    def number(self, value: Any, place: str, *, finite: bool = True) -> float:
        """Return a number of at least 0; nan, and a fault, where it is none."""
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and (0 <= value <= MOST or (value == math.inf and not finite)):
            return float(value)
        self.add(f"{place} is {value!r}, which is not a number of at least 0")
        return math.nan

    def numbers(
        self, values: Sequence[Any], names: Sequence[str], place: Callable[[str], str], *, finite: bool = True
    ) -> Float64:
        """Return float64 [n], numbers of at least 0, one per name; `place` says where the one of a name stands."""
        if set(map(type, values)) <= {int, float}:
            with contextlib.suppress(OverflowError):
                array = np.array(values, np.float64)
                if np.all((array >= 0) & ((array <= MOST) | ((array == math.inf) & (not finite)))):
                    return array
        return np.array([self.number(v, place(n), finite=finite) for v, n in zip(values, names, strict=True)])

    def column(self, tables: Sequence[Mapping[str, Any]], names: Sequence[str], key: str, default: Any = 0) -> Float64:
        """Return float64 [n], one key of every table, the default where it has none."""
        return self.numbers([table.get(key, default) for table in tables], names, lambda name: f"{key} of {name}")


@dataclass(frozen=True, slots=True)
class Parts:
    """What a graph is made of, as it stands in a file: n operations, m edges in any order.

    pairs: int64 [2, m]; edge_bytes: float64 [m]. labels: operations of equal label, None apart, share a device.
    """

    names: tuple[str, ...]
    types: Sequence[str]
    pairs: Int64
    edge_bytes: Float64
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
    order = np.lexsort((parts.pairs[1], parts.pairs[0]))
    vocabulary = {name: i for i, name in enumerate(dict.fromkeys(parts.types))}
    if len(vocabulary) > MOST_TYPES:
        raise ModelError(f"{where} has {len(vocabulary)} types of operations.", f"Use at most {MOST_TYPES}.")
    ties: dict[Any, int] = {}
    return Graph(
        names=parts.names,
        op_type=np.array([vocabulary[t] for t in parts.types], np.int16),
        type_names=tuple(vocabulary),
        edges=parts.pairs[:, order].astype(np.int32),
        flops=parts.flops,
        weight_bytes=np.rint(parts.weight_bytes),
        out_bytes=np.rint(parts.out_bytes),
        edge_bytes=np.rint(parts.edge_bytes[order]),
        shape_ptr=np.cumsum([0, *(len(shape) for shape in parts.shapes)]),
        shape_dim=np.array([d for shape in parts.shapes for d in shape], np.int64),
        colocate=np.array([-1 if label is None else ties.setdefault(label, len(ties)) for label in parts.labels]),
        kernel=np.full(len(parts.names), -1),
        source=source,
    )


def check_acyclic(names: Sequence[str], pairs: Int64, where: str) -> None:
    """Check that edges int64 [2, m] between operations make no cycle.

    Raises:
        CyclicGraphError: they do; one cycle is named.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n = len(names)
    links = coo_array((np.ones(pairs.shape[1], bool), (pairs[0], pairs[1])), shape=(n, n))
    count, part = connected_components(links, directed=True, connection="strong")
    loops = pairs[0][pairs[0] == pairs[1]]
    if count == n and loops.size == 0:
        return
    inside = part[pairs[0]] == part[pairs[1]]
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
