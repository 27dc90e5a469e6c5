"""A placed graph as the page's script takes it: boxes, operations, what each costs where, and why it is where it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32, Int64
from pipeline.core.devices import CostTable, Topology
from pipeline.core.errors import list_some
from pipeline.core.figures import shares_of
from pipeline.core.graph import Graph, weight_side
from pipeline.placing.single_moves import RegretRecord
from pipeline.report.hierarchy import fold_graph
from pipeline.report.text import seconds_text

US = 1e6
REGRETS = 10  # that a page shows; the JSON files have more
REGRET_COLUMNS = ("operation", "device", "second best", "costs")
REGRET_WORDS = "What the second-best device costs, all else as it is."
DIGITS = 4
ALONE, CONSTANT, SHARED, WHOLE, BEST, STAYS, PAYS, UNKNOWN = range(8)
REASONS = (
    "Only this device supports the operation.",
    "It follows from constants, and is placed with its consumer.",
    "Colocation constraint: state, or quantisation that must not be cut.",
    "All operations run on this device.",
    "No device is faster for it, and moving it alone saves no transfer.",
    "Another device is faster for it, but moving it alone would cost more in transfers than it saves.",
    "By the profile, moving it alone would pay; the placement was chosen as a whole.",
    "Its time on other devices was not measured.",
)


@dataclass(frozen=True, slots=True, eq=False)
class PlacedGraph:
    """A graph of n operations, where each runs, and what is known of the costs.

    devices: p names; those that the placement uses and those that were profiled. device: int32 [n].
    op_s: float64 [n, p], seconds; inf where a device does not support an operation, nan where nobody knows.
    latency_s, bytes_per_s: float64 [p, p], of links; nan where nobody knows.
    """

    graph: Graph
    devices: tuple[str, ...]
    device: Int32
    op_s: Float64
    latency_s: Float64
    bytes_per_s: Float64

    @classmethod
    def of(
        cls, graph: Graph, placement: Mapping[str, str], profile: tuple[CostTable, Topology] | None, unplaced: str
    ) -> PlacedGraph:
        """Return the graph under {operation: device}; unplaced: the device of all that it leaves out."""
        profiled = () if profile is None else profile[1].names
        where = [placement.get(name, unplaced) for name in graph.names]
        devices = tuple(dict.fromkeys([*profiled, *where]))
        index = {name: j for j, name in enumerate(devices)}
        n, p, known = graph.n, len(devices), len(profiled)
        op_s, latency_s, bytes_per_s = np.full((n, p), np.nan), np.full((p, p), np.nan), np.full((p, p), np.nan)
        np.fill_diagonal(latency_s, 0.0)
        np.fill_diagonal(bytes_per_s, np.inf)
        if profile is not None:
            costs, topology = profile
            row = {name: i for i, name in enumerate(costs.names)}
            there = np.array([row.get(name, -1) for name in graph.names])
            op_s[:, :known] = np.where(there[:, None] >= 0, costs.op_s[there], np.nan)
            latency_s[:known, :known], bytes_per_s[:known, :known] = topology.link_latency_s, topology.link_bytes_per_s
        device = np.array([index[name] for name in where], np.int32)
        return cls(graph, devices, device, op_s, latency_s, bytes_per_s)

    @property
    def own_s(self) -> Float64:
        """Return float64 [n], seconds of each operation where it is placed."""
        seconds: Float64 = self.op_s[np.arange(self.graph.n), self.device]
        return seconds

    @property
    def timed(self) -> bool:
        """Return whether the seconds of any operation are known where it is placed."""
        return bool(np.any(np.isfinite(self.own_s) & (self.own_s > 0)))

    @property
    def shares(self) -> dict[str, float]:
        """Return by device the share of all known seconds, the largest first; of operations where none are known."""
        own_s = np.where(np.isfinite(self.own_s), self.own_s, 0.0)
        weight = own_s if self.timed else np.ones_like(own_s)
        total = np.bincount(self.device, weight, minlength=len(self.devices)).tolist()
        return shares_of({self.devices[j]: total[j] for j in np.unique(self.device).tolist()})

    @property
    def cuts(self) -> list[tuple[int, int, int]]:
        """Return (operation, device that receives, bytes) of every tensor that crosses, the largest first."""
        producer, consumer = self.graph.edges[:, self.graph.reads.edge]
        target = self.device[consumer]
        crossing = (self.device[producer] != target) & ~weight_side(self.graph)[producer]
        if not crossing.any():
            return []
        key = np.stack([self.graph.reads.tensor, target.astype(np.int64)])[:, crossing]
        _, which = np.unique(key, axis=1, return_index=True)
        rows = np.flatnonzero(crossing)[which]
        size = self.graph.reads.size[rows]
        order = np.argsort(-size, kind="stable")
        return list(
            zip(producer[rows][order].tolist(), target[rows][order].tolist(), size[order].tolist(), strict=True)
        )

    def transfers_s(self) -> Float64:
        """Return float64 [n, p], what an operation's tensors take if it alone were on each device; nan if not known."""
        side = weight_side(self.graph)
        producer, consumer = self.graph.edges[:, self.graph.reads.edge]
        counts = ~side[producer]
        producer, consumer, size = producer[counts], consumer[counts], self.graph.reads.size[counts].astype(np.float64)
        n, seconds = self.graph.n, np.zeros(self.op_s.shape)
        for j in range(len(self.devices)):
            source, target = self.device[producer], self.device[consumer]
            comes = self.latency_s[source, j] + size / self.bytes_per_s[source, j]
            goes = self.latency_s[j, target] + size / self.bytes_per_s[j, target]
            seconds[:, j] = np.bincount(consumer, comes, minlength=n) + np.bincount(producer, goes, minlength=n)
        return seconds

    def reasons(self, transfers_s: Float64) -> Int64:
        """Return int64 [n], indices of REASONS; transfers_s: as `transfers_s` says."""
        n = self.graph.n
        supported = np.isfinite(self.op_s)
        unknown = np.isnan(self.op_s).all(axis=1)
        total = np.where(supported, self.op_s + np.nan_to_num(transfers_s, nan=0.0), np.inf)
        here = np.arange(n), self.device
        own, best_s = np.where(unknown, 0.0, self.op_s[here]), np.min(np.where(supported, self.op_s, np.inf), axis=1)
        pays = np.min(total, axis=1) < total[here] * (1 - 1e-9) - 1e-12
        reason = np.where(pays, PAYS, np.where(own > best_s * (1 + 1e-9), STAYS, BEST))
        reason = np.where(unknown | ~supported[here], UNKNOWN, reason)
        if len(np.unique(self.device)) == 1:
            reason = np.full(n, WHOLE)
        else:
            reason[self._tied()] = SHARED
            reason[weight_side(self.graph)] = CONSTANT
        refused = np.isinf(self.op_s)
        reason[(supported.sum(axis=1) == 1) & supported[here] & (refused.sum(axis=1) > 0)] = ALONE
        return reason.astype(np.int64)

    def _tied(self) -> Bool:
        """Return bool [n], whether an operation must share a device with another."""
        tie = self.graph.colocate
        size = np.bincount(tie[tie >= 0], minlength=self.graph.n + 1)
        tied: Bool = (tie >= 0) & (size[tie] > 1)
        return tied

    def document(self) -> dict[str, Any]:
        """Return the graph as JSON values, in columns: first the operations that have a place of their own, in boxes.

        `home` says in whose place each of the others is shown. Times are microseconds, null where nobody knows them, -1
        where a device does not support the operation.
        """
        graph, fold = self.graph, fold_graph(self.graph, self.device)
        shown = np.zeros(graph.n, np.bool_)
        shown[fold.order] = True
        hidden = np.flatnonzero(~shown)
        every = np.r_[fold.order, hidden]
        place = np.empty(graph.n, np.int64)
        place[every] = np.arange(graph.n)
        inner = shown[graph.edges[0]] & shown[graph.edges[1]]
        transfers_s = self.transfers_s()
        shapes, shape = _distinct_table([_shape_text(graph, i) for i in every.tolist()])
        return {
            "devices": list(self.devices),
            "shown": int(fold.order.size),
            "names": [graph.names[i] for i in every.tolist()],
            "home": place[fold.home[hidden]].tolist(),
            "types": list(graph.type_names),
            "type": graph.op_type[every].tolist(),
            "shapes": shapes,
            "shape": shape,
            "device": self.device[every].tolist(),
            "weights": graph.weight_bytes[every].tolist(),
            "times": [_rounded_microseconds(self.op_s[every, j]) for j in range(len(self.devices))],
            "transfers": [_rounded_microseconds(transfers_s[every, j]) for j in range(len(self.devices))],
            "reasons": list(REASONS),
            "reason": self.reasons(transfers_s)[every].tolist(),
            "source": place[graph.edges[0, inner]].tolist(),
            "target": place[graph.edges[1, inner]].tolist(),
            "bytes": graph.edge_bytes[inner].tolist(),
            "boxes": [
                {"in": b.parent, "low": b.low, "high": b.high, "label": b.label, "rows": b.rows} for b in fold.boxes
            ],
        }


def _rounded_microseconds(seconds: Float64) -> list[float | None]:
    """Return microseconds of few digits, None for nan, -1 for inf."""
    return [
        None if value != value else -1 if value == np.inf else float(f"{value * US:.{DIGITS}g}")
        for value in seconds.tolist()
    ]


def _shape_text(graph: Graph, operation: int) -> str:
    return "x".join("?" if d < 0 else str(d) for d in graph.shape(operation))


def _distinct_table(values: Sequence[str]) -> tuple[list[str], list[int]]:
    """Return distinct values, and which of them each is."""
    index: dict[str, int] = {}
    rows = [index.setdefault(value, len(index)) for value in values]
    return list(index), rows


def regret_rows(regret: Sequence[RegretRecord]) -> list[tuple[str, ...]]:
    """Return the rows of a table, in REGRET_COLUMNS, of the operations that need their device most."""
    known = [row for row in regret if row["second"] is not None and row["cost_s"] is not None]
    return [
        (list_some(row["operations"]), row["device"], row["second"] or "", seconds_text(row["cost_s"]))
        for row in known[:REGRETS]
    ]
