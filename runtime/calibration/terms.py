"""What the simulator `sequential` adds up, as a vector per placement: prediction = row . coefficients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from pipeline.core.arrays import Bool, Float64, Int32, Int64
from pipeline.core.devices import CostTable, Origin, Topology
from pipeline.core.graph import leaders
from pipeline.core.placement import Placement
from pipeline.core.stages import Subject
from runtime.calibration.ridge import Prior
from runtime.simulators.sequential.sequential import Sent
from runtime.simulators.sequential.subgraphs import Cutter
from runtime.simulators.shared.simulated import known_costs

LEAST_SHARE = 0.02  # a type that takes less than this of every device is corrected together with others of its kind
OTHERS = "others"
FACTOR_SPREAD = 0.3  # how far the factor of an operation type is expected to lie from 1
OVERHEAD_SHARE = 0.3  # what a boundary may well cost, in mean times of a node where it is fastest
# How much of a coefficient's spread it shares with all of its kind, with those of its device or of its link's way
# there, and with those of its operation type; the rest is its own.
SHARED = 0.4
SHARED_BY_DEVICE = 0.3
SHARED_BY_TYPE = 0.2

TermKind = Literal["operations", "latency", "bytes", "launch"]
OF_LINKS: tuple[TermKind, TermKind] = ("latency", "bytes")


@dataclass(frozen=True, slots=True)
class Term:
    """One coefficient.

    kind: "operations", a factor on profiled times of one operation type on one device; "latency", seconds per
    transfer; "bytes", seconds per byte; "launch", seconds per sub-graph. what: the operation type, or "". device: the
    device, the sender of a link. target: the receiver, or "".
    """

    kind: TermKind
    what: str
    device: str
    target: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """The q coefficients of one subject, and how placements use them.

    terms: q of them. prior: what the profile says of them. kind_of: int64 [n], the number of each operation's type
    among `types`. spent_s: float64 [n, p], seconds, 0 where not supported. launches: whether sub-graphs cost
    something by themselves; if not, what they cost is part of the latencies.
    """

    subject: Subject
    costs: CostTable
    terms: tuple[Term, ...]
    prior: Prior
    types: tuple[str, ...]
    kind_of: Int64
    launches: bool
    _node: Int32
    _cutter: Cutter

    @classmethod
    def of(cls, subject: Subject, *, launches: bool) -> Terms:
        """Return the terms of a subject.

        Raises:
            UsageError: the subject has no cost table.
        """
        costs = known_costs(subject, "sequential")
        types, kind_of = _counted_types(subject, costs)
        node: Int32 = subject.grouping.group[leaders(subject.graph)]
        terms = _list_terms(types, subject.topology.names, launches=launches)
        prior = _profile_prior(terms, subject, costs, launches=launches)
        return cls(subject, costs, terms, prior, types, kind_of, launches, node, Cutter.of(subject.graph, node))

    def rows(self, placements: Sequence[Placement]) -> Float64:
        """Return float64 [b, q], what each placement multiplies the coefficients with; inf where it is refused."""
        return np.array([self._row(placement) for placement in placements]).reshape(len(placements), len(self.terms))

    def _row(self, placement: Placement) -> Float64:
        graph, p = self.subject.graph, self.subject.topology.p
        placed = placement.device[self.subject.grouping.group]
        op_s = self.costs.op_s[np.arange(graph.n), placed]
        operations = np.zeros((len(self.types), p))
        np.add.at(operations, (self.kind_of, placed), op_s)
        device = placement.device[self._node]
        sent = Sent.of(graph, device, np.zeros(graph.n, np.int64))
        count, size = np.zeros((p, p)), np.zeros((p, p))
        np.add.at(count, (sent.source, sent.target), 1.0)
        np.add.at(size, (sent.source, sent.target), sent.size)
        apart = ~np.eye(p, dtype=bool)
        parts = [operations.reshape(-1), count[apart], size[apart]]
        if self.launches:
            parts.append(self._cutter.count_by_device(device, p).astype(np.float64))
        return np.concatenate(parts)

    def corrected(self, value: Float64) -> tuple[CostTable, Topology]:
        """Return the cost table and the topology with which `sequential` says row . value; value: float64 [q]."""
        topology, p, c = self.subject.topology, self.subject.topology.p, len(self.types)
        apart = ~np.eye(p, dtype=bool)
        factor, latency, per_byte = np.split(value[: c * p + 2 * p * (p - 1)], [c * p, c * p + p * (p - 1)])
        latency_s, bytes_per_s = np.zeros((p, p)), np.full((p, p), np.inf)
        latency_s[apart] = latency
        bytes_per_s[apart] = np.divide(1.0, per_byte, out=np.full(per_byte.size, np.inf), where=per_byte > 0)
        op_s = self.costs.op_s.copy()
        known = np.isfinite(op_s)
        op_s[known] *= factor.reshape(c, p)[self.kind_of][known]
        launch_s = value[c * p + 2 * p * (p - 1) :] if self.launches else np.zeros(p)
        origin: tuple[Origin, ...] = tuple("measured" for _ in range(p))
        costs = replace(self.costs, op_s=op_s, launch_s=launch_s, origin=origin)
        return costs, Topology(topology.devices, bytes_per_s, latency_s)


def _counted_types(subject: Subject, costs: CostTable) -> tuple[tuple[str, ...], Int64]:
    """Return the operation types that count, and int64 [n], which of them each operation is of."""
    graph = subject.graph
    spent_s = np.where(np.isfinite(costs.op_s), costs.op_s, 0.0)
    by_type = np.zeros((len(graph.type_names), spent_s.shape[1]))
    np.add.at(by_type, graph.op_type, spent_s)
    total = by_type.sum(axis=0)
    share = np.divide(by_type, total, out=np.zeros(by_type.shape), where=total > 0).max(axis=1)
    large = np.flatnonzero(share >= LEAST_SHARE)
    number = np.full(share.size, large.size)
    number[large] = np.arange(large.size)
    return (*(graph.type_names[i] for i in large), OTHERS), number[graph.op_type]


def _list_terms(types: Sequence[str], devices: Sequence[str], *, launches: bool) -> tuple[Term, ...]:
    links = [(a, b) for a in devices for b in devices if a != b]
    terms = [Term("operations", t, d) for t in types for d in devices]
    terms += [Term(kind, "", a, b) for kind in OF_LINKS for a, b in links]
    terms += [Term("launch", "", d) for d in devices if launches]
    return tuple(terms)


def _profile_prior(terms: Sequence[Term], subject: Subject, costs: CostTable, *, launches: bool) -> Prior:
    """Return what the profile says, and how far it may be off.

    Without launches of their own the latencies begin with what the profile booked as a launch: the constant part of
    a boundary, of which a placement on one device has none.
    """
    topology = subject.topology
    apart = ~np.eye(topology.p, dtype=bool)
    latency = topology.link_latency_s + (0.0 if launches else costs.launch_s[None, :])
    mean = (
        np.ones(sum(t.kind == "operations" for t in terms)),
        latency[apart],
        1.0 / topology.link_bytes_per_s[apart],
        costs.launch_s if launches else np.zeros(0),
    )
    fastest_s = costs.op_s.min(axis=1)
    overhead_s = OVERHEAD_SHARE * float(fastest_s[np.isfinite(fastest_s)].sum()) / max(subject.grouping.k, 1)
    typical_bytes = max(float(subject.graph.edge_bytes.mean()), 1.0) if subject.graph.m else 1.0
    scale = (
        np.full(mean[0].size, FACTOR_SPREAD),
        np.maximum(mean[1], overhead_s),
        np.maximum(mean[2], overhead_s / typical_bytes),
        np.maximum(mean[3], overhead_s),
    )
    tiny = np.finfo(np.float64).tiny  # where neither operations nor links take time
    return Prior(np.concatenate(mean), np.maximum(np.concatenate(scale), tiny), _term_correlation(terms))


def _term_correlation(terms: Sequence[Term]) -> Float64:
    """Return float64 [q, q], how much two coefficients are expected to err together."""

    def equal(values: Sequence[str]) -> Bool:
        correlation: Bool = np.array([[a == b for b in values] for a in values], bool).reshape(len(terms), len(terms))
        return correlation

    kind = equal([t.kind for t in terms])
    device = kind & equal([t.device for t in terms])
    what = kind & equal([t.what or t.target for t in terms])
    own = 1.0 - SHARED - SHARED_BY_DEVICE - SHARED_BY_TYPE
    correlation: Float64 = SHARED * kind + SHARED_BY_DEVICE * device + SHARED_BY_TYPE * what + own * np.eye(len(terms))
    return correlation
