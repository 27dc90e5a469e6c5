"""A simulator of HETERO: the sub-graphs of one inference run one after another."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pipeline.core.arrays import Float64, Int32, Int64
from pipeline.core.devices import contract_costs
from pipeline.core.errors import UsageError
from pipeline.core.graph import Graph, contract, is_acyclic
from pipeline.core.measurement import Measurement, MeasurementFailed
from pipeline.core.placement import Placement
from pipeline.core.stages import Subject
from runtime.subgraphs import count_by_device


@dataclass(frozen=True, slots=True)
class Sequential:
    """Predicts latency = operation times + transfers + a launch per sub-graph.

        T(P) = sum_i op_s[i, P(i)]
             + sum over tensors t and devices d /= P(t) that read t: latency[P(t), d] + bytes(t) / bandwidth[P(t), d]
             + sum over sub-graphs g: launch_s[P(g)]

    A tensor crosses once per reading device. Sub-graphs are cut as HETERO cuts them, cycles broken. Nothing overlaps.
    """

    version: ClassVar[int] = 1
    real: ClassVar[bool] = False

    def bind(self, subject: Subject) -> SequentialEvaluator:
        """Return the evaluator of one subject.

        Raises:
            UsageError: the subject has no cost table.
        """
        if subject.costs is None:
            raise UsageError("The simulator `sequential` needs a cost table.", "Profile the devices first.")
        return SequentialEvaluator(subject)


class SequentialEvaluator:
    """Evaluates batches of placements of one subject's nodes."""

    version: ClassVar[int] = 1

    def __init__(self, subject: Subject) -> None:
        if subject.costs is None:
            raise ValueError("a subject without costs")
        self.evaluations = 0
        self.graph: Graph = contract(subject.graph, subject.grouping)
        self.costs = contract_costs(subject.costs, self.graph, subject.grouping)
        self.topology = subject.topology
        self.tensors = Tensors.of(subject)
        self.grouping = subject.grouping
        # Only an acyclic quotient has the sub-graphs of the operations themselves.
        self.cut_graph = self.graph if is_acyclic(self.graph) else subject.graph

    @property
    def fingerprint(self) -> str:
        """Return a digest of the costs and links."""
        digest = hashlib.sha256()
        for array in (
            self.costs.op_s,
            self.costs.launch_s,
            self.topology.link_bytes_per_s,
            self.topology.link_latency_s,
        ):
            digest.update(array.tobytes())
        return digest.hexdigest()[:16]

    def evaluate(self, placements: Sequence[Placement]) -> list[Measurement | MeasurementFailed]:
        """Return the predicted latency of each placement; one on a device that refuses an operation is refused."""
        self.evaluations += len(placements)
        if not placements:
            return []
        device = np.stack([p.device for p in placements])
        operations_s = self.costs.op_s[np.arange(self.graph.n), device].sum(axis=1)
        transfers_s = self.tensors.transfer_s(device, self.topology.link_bytes_per_s, self.topology.link_latency_s)
        answers: list[Measurement | MeasurementFailed] = []
        for i, placement in enumerate(placements):
            if not np.isfinite(operations_s[i]):
                answers.append(self._refusal(placement))
                continue
            cut = placement if self.cut_graph is self.graph else placement.lift(self.grouping)
            counts = count_by_device(self.cut_graph, cut.device, self.topology.p)
            total = operations_s[i] + transfers_s[i] + counts @ self.costs.launch_s
            answers.append(
                Measurement(np.array([total]), executed_on=placement.devices_used, subgraphs=int(counts.sum()))
            )
        return answers

    def _refusal(self, placement: Placement) -> MeasurementFailed:
        refused = np.flatnonzero(~self.costs.supported[np.arange(self.graph.n), placement.device])
        pairs = [f"{placement.devices[placement.device[i]]} does not run {self.graph.names[i]}" for i in refused[:5]]
        return MeasurementFailed("refused", "; ".join(pairs))


@dataclass(frozen=True, slots=True, eq=False)
class Tensors:
    """The tensors that flow between nodes: each is made by one operation and read by one or more other nodes.

    source: int32 [t], the node that makes each. size: float64 [t], bytes. ptr: int64 [t + 1] and reader: int32: the
    nodes that read tensor i are reader[ptr[i]:ptr[i + 1]].
    """

    source: Int32
    size: Float64
    ptr: Int64
    reader: Int32

    @classmethod
    def of(cls, subject: Subject) -> Tensors:
        """Return the tensors that can cross a boundary between the subject's nodes."""
        group = subject.grouping.group
        producer, consumer = subject.graph.edges
        cut = group[producer] != group[consumer]
        producer, reader, size = producer[cut], group[consumer[cut]], subject.graph.edge_bytes[cut]
        order = np.lexsort((reader, producer))
        producer, reader, size = producer[order], reader[order], size[order]
        first = np.r_[True, (np.diff(producer) != 0) | (np.diff(reader) != 0)][: producer.size]
        producer, reader, size = producer[first], reader[first], size[first]
        start = np.flatnonzero(np.r_[True, np.diff(producer) != 0][: producer.size])
        widest = np.maximum.reduceat(size, start) if start.size else size
        return cls(group[producer[start]], widest.astype(np.float64), np.r_[start, producer.size], reader)

    def transfer_s(self, device: Int32, bytes_per_s: Float64, latency_s: Float64) -> Float64:
        """Return float64 [b], the seconds all transfers of each placement take; device: int32 [b, k]."""
        total = np.zeros(device.shape[0])
        if self.source.size == 0:
            return total
        home = device[:, self.source]  # [b, t]
        reading = device[:, self.reader]
        for d in range(bytes_per_s.shape[0]):
            read_here = np.logical_or.reduceat(reading == d, self.ptr[:-1], axis=1)
            crosses = read_here & (home != d)
            total += np.where(crosses, latency_s[home, d] + self.size / bytes_per_s[home, d], 0.0).sum(axis=1)
        return total
