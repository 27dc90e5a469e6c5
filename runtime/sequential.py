"""A simulator of HETERO: the sub-graphs of one inference run one after another."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pipeline.core.arrays import Float64, Int32, Int64
from pipeline.core.errors import UsageError
from pipeline.core.graph import Graph, contract, sum_per_group, weight_side
from pipeline.core.measurement import Measurement, MeasurementFailed
from pipeline.core.placement import Placement
from pipeline.core.stages import Subject
from runtime.affinity import followed
from runtime.subgraphs import Cutter


@dataclass(frozen=True, slots=True)
class Sequential:
    """Predicts latency = operation times + transfers + a launch per sub-graph.

        T(P) = sum_i op_s[i, P(i)]
             + sum over tensors t and devices d /= P(t) that read t: latency[P(t), d] + bytes(t) / bandwidth[P(t), d]
             + sum over sub-graphs g: launch_s[P(g)]

    A tensor crosses once per reading device. P is settled before it is measured, and so it is here: inputs and
    constants lie where they are read, results where they are made. Sub-graphs are cut as HETERO cuts them, cycles
    broken. Nothing overlaps.
    """

    version: ClassVar[int] = 2
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

    version: ClassVar[int] = 2

    def __init__(self, subject: Subject) -> None:
        if subject.costs is None:
            raise ValueError("a subject without costs")
        self.evaluations = 0
        self.graph = subject.graph
        self.names = contract(subject.graph, subject.grouping).names
        self.op_s = sum_per_group(subject.costs.op_s, subject.grouping)  # [k, p]
        self.launch_s = subject.costs.launch_s
        self.topology = subject.topology
        # Per operation the node whose device it runs on, once the placement is settled as the runtime's is.
        self.node: Int32 = subject.grouping.group[followed(subject.graph)]
        self.cutter = Cutter.of(subject.graph)
        self.tensors = Tensors.of(subject.graph, self.node)

    @property
    def fingerprint(self) -> str:
        """Return a digest of the costs, the links and the tensors."""
        digest = hashlib.sha256()
        for array in (
            self.op_s,
            self.launch_s,
            self.topology.link_bytes_per_s,
            self.topology.link_latency_s,
            self.node,
            self.graph.edges,
            self.graph.edge_bytes,
        ):
            digest.update(array.tobytes())
        return digest.hexdigest()[:16]

    def evaluate(self, placements: Sequence[Placement]) -> list[Measurement | MeasurementFailed]:
        """Return the predicted latency of each placement; one on a device that refuses an operation is refused."""
        self.evaluations += len(placements)
        if not placements:
            return []
        device = np.stack([p.device for p in placements])
        operations_s = self.op_s[np.arange(len(self.names)), device].sum(axis=1)
        transfers_s = self.tensors.transfer_s(device, self.topology.link_bytes_per_s, self.topology.link_latency_s)
        answers: list[Measurement | MeasurementFailed] = []
        for i, placement in enumerate(placements):
            if not np.isfinite(operations_s[i]):
                answers.append(self._refusal(placement))
                continue
            counts = self.cutter.count_by_device(placement.device[self.node], self.topology.p)
            total = operations_s[i] + transfers_s[i] + counts @ self.launch_s
            used = tuple(placement.devices[d] for d in np.flatnonzero(counts))
            answers.append(Measurement(np.array([total]), executed_on=used, subgraphs=int(counts.sum())))
        return answers

    def _refusal(self, placement: Placement) -> MeasurementFailed:
        refused = np.flatnonzero(np.isinf(self.op_s[np.arange(len(self.names)), placement.device]))
        pairs = [f"{placement.devices[placement.device[i]]} does not run {self.names[i]}" for i in refused[:5]]
        return MeasurementFailed("refused", "; ".join(pairs))


@dataclass(frozen=True, slots=True, eq=False)
class Tensors:
    """The tensors that flow between nodes: each is made by one operation and read by one or more other nodes.

    source: int32 [t], the node that makes each. ptr: int64 [t + 1]. reader: int32 and size: float64 bytes: the nodes
    that read tensor i are reader[ptr[i]:ptr[i + 1]], and what each reads of it is size[ptr[i]:ptr[i + 1]].
    """

    source: Int32
    ptr: Int64
    reader: Int32
    size: Float64

    @classmethod
    def of(cls, graph: Graph, node: Int32) -> Tensors:
        """Return the tensors that can cross a boundary; node: int32 [n], on whose device each operation runs.

        What is computed from constants alone is there before the first inference and never crosses.
        """
        producer, consumer = graph.edges
        flows = (node[producer] != node[consumer]) & ~weight_side(graph)[producer]
        pairs, which = np.unique(np.stack([producer, node[consumer]])[:, flows], axis=1, return_inverse=True)
        size = np.zeros(pairs.shape[1])
        np.maximum.at(size, which.reshape(-1), graph.edge_bytes[flows])
        tensors, start = np.unique(pairs[0], return_index=True)
        return cls(node[tensors], np.r_[start, pairs.shape[1]], pairs[1], size)

    def transfer_s(self, device: Int32, bytes_per_s: Float64, latency_s: Float64) -> Float64:
        """Return float64 [b], the seconds all transfers of each placement take; device: int32 [b, k]."""
        total = np.zeros(device.shape[0])
        if self.source.size == 0:
            return total
        home = device[:, self.source]  # [b, t]
        reading = device[:, self.reader]
        for d in range(bytes_per_s.shape[0]):
            read_here = np.where(reading == d, self.size, -1.0)
            size = np.maximum.reduceat(read_here, self.ptr[:-1], axis=1)  # [b, t]
            crosses = (size >= 0) & (home != d)
            total += np.where(crosses, latency_s[home, d] + size / bytes_per_s[home, d], 0.0).sum(axis=1)
        return total
