"""What the simulators share: the nodes they place, and how their figures become answers.

Rules common to all of them. A placement on a device that does not support it is refused, even if it also exceeds
memory. A placement that exceeds memory costs inf seconds wherever seconds of a local search are told (`value_s`,
`end_s`, `best_s`); whether a move is taken is decided by the seconds it would have cost.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.core.arrays import Bool, Float64, Int32, Int64
from pipeline.core.devices import CostTable, Topology
from pipeline.core.errors import NAMED, UsageError
from pipeline.core.figures import bytes_text
from pipeline.core.graph import Graph, Grouping, Number, contract, makers, row_ptr, sum_per_group
from pipeline.core.measurement import Evaluation, MeasurementFailed, Prediction
from pipeline.core.placement import Placement
from pipeline.core.simulation import Moves
from pipeline.core.stages import Subject
from pipeline.shared.graphs import connected_count


@dataclass(frozen=True, slots=True, eq=False)
class SentTensors:
    """What may have to be sent: a tensor, the node that makes it and those that read it.

    maker: int32 [t], the operation that makes it. size: int64 [t], the most bytes that one reads. ptr: int64 [t + 1],
    member: int32: the two or more different nodes of net i are member[ptr[i]:ptr[i + 1]].
    """

    maker: Int32
    size: Int64
    ptr: Int64
    member: Int32

    @classmethod
    def of(cls, graph: Graph, node: Int32) -> SentTensors:
        """Return the nets of operations that are read by other nodes; node: int32 [n], what each belongs to."""
        (producer, consumer), tensor = graph.edges[:, graph.reads.edge], graph.reads.tensor
        pairs = np.stack([np.r_[tensor, tensor], np.r_[node[producer], node[consumer]]])
        pairs = np.unique(pairs[:, np.isin(pairs[0], tensor[node[producer] != node[consumer]])], axis=1)
        sent, start = np.unique(pairs[0], return_index=True)
        largest = np.zeros(graph.reads.t, np.int64)
        np.maximum.at(largest, tensor, graph.reads.size)
        return cls(makers(graph)[sent], largest[sent], np.r_[start, pairs.shape[1]], pairs[1].astype(np.int32))

    @property
    def owner(self) -> Int64:
        """Return int64 [len(member)], the net that each entry of `member` belongs to."""
        return np.repeat(np.arange(self.maker.size), np.diff(self.ptr))

    def by_node(self, k: int) -> tuple[Int64, Int64]:
        """Return (ptr, net): node j is in the nets net[ptr[j]:ptr[j + 1]]; both int64."""
        return row_ptr(self.member, k), self.owner[np.argsort(self.member, kind="stable")]


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """What is known of k nodes and p devices before any placement.

    names: the k nodes. devices: the p devices. op_s: float64 [k, p], seconds, the sum over a node's operations; inf
    where a device refuses one of them. weight_bytes: int64 [k]. capacity_bytes: int64 [p], what a device holds.
    """

    names: tuple[str, ...]
    devices: tuple[str, ...]
    op_s: Float64
    weight_bytes: Int64
    capacity_bytes: Int64

    @classmethod
    def of(cls, subject: Subject, costs: CostTable, *, memory: bool) -> Nodes:
        """Return a subject's nodes; without `memory` every device holds everything."""
        graph, grouping = subject.graph, subject.grouping
        return cls(
            graph.names if grouping.is_identity else contract(graph, grouping).names,
            subject.topology.names,
            costs.op_s if grouping.is_identity else sum_per_group(costs.op_s, grouping),
            sum_per_group(graph.weight_bytes, grouping),
            capacity_bytes(subject.topology, memory=memory),
        )

    def check(self, placements: Sequence[Placement]) -> None:
        """Check that all are placements of these nodes, before a kernel takes their numbers for indices.

        Raises:
            UsageError: one is not.
        """
        for placement in placements:
            placement.check(len(self.names), self.devices)

    def answer(self, placement: Placement, seconds: float, held_bytes: Int64, used: Bool, subgraphs: int) -> Evaluation:
        """Return what an evaluator says of a placement.

        seconds: inf if a device refuses a node. held_bytes: int64 [p], the most each device holds. used: bool [p],
        the devices that run something.
        """
        if not np.isfinite(seconds):
            refused = np.flatnonzero(np.isinf(self.op_s[np.arange(len(self.names)), placement.device]))
            pairs = [f"{self.devices[placement.device[i]]} does not run {self.names[i]}" for i in refused[:NAMED]]
            return MeasurementFailed("refused", "; ".join(pairs))
        short = held_bytes - self.capacity_bytes
        if np.any(short > 0):
            full = np.flatnonzero(short > 0)[:NAMED]
            return MeasurementFailed(
                "out_of_memory", "; ".join(f"{self.devices[d]} lacks {bytes_text(short[d], 6)} of memory" for d in full)
            )
        names = tuple(self.devices[d] for d in np.flatnonzero(used))
        return Prediction(float(seconds), executed_on=names, subgraphs=subgraphs)


def known_costs(subject: Subject, measurer: str) -> CostTable:
    """Return a subject's cost table.

    Raises:
        UsageError: it has none.
    """
    if subject.costs is None:
        raise UsageError(f"The simulator `{measurer}` needs a cost table.", "Profile the devices first.")
    return subject.costs


def running_s(subject: Subject, costs: CostTable, placement: Placement) -> Float64:
    """Return float64 [n], the seconds of each operation where its node is placed.

    Raises:
        UsageError: it is not supported there.
    """
    names = subject.graph.names
    op_s: Float64 = costs.op_s[np.arange(len(names)), placement.device[subject.grouping.group]]
    if not np.all(np.isfinite(op_s)):
        refused = ", ".join(names[i] for i in np.flatnonzero(np.isinf(op_s))[:NAMED])
        raise UsageError(f"The placement puts {refused} where it is not supported.", "Place it elsewhere.")
    return op_s


def capacity_bytes(topology: Topology, *, memory: bool = True) -> Int64:
    """Return int64 [p], the bytes each device holds: as good as infinite where not known, or without `memory`."""
    endless = np.iinfo(np.int64).max
    return np.array([d.memory_bytes if memory and d.memory_bytes else endless for d in topology.devices], np.int64)


def over_bytes(held_bytes: Int64, capacity_bytes: Int64) -> Int64:
    """Return int64 [b], the bytes by which int64 [b, p] exceed int64 [p], summed over devices."""
    excess: Int64 = np.maximum(held_bytes - capacity_bytes, 0).sum(axis=1)
    return excess


def batches(placements: Sequence[Placement]) -> Iterator[tuple[list[int], Int32, Float64 | None]]:
    """Yield the placements as arrays, those with priorities apart from those without.

    Each as (their b indices, device int32 [b, k], priority float64 [b, k] or None).
    """
    plain = [i for i, placement in enumerate(placements) if placement.priority is None]
    ordered = [i for i, placement in enumerate(placements) if placement.priority is not None]
    if plain:
        yield plain, np.stack([placements[i].device for i in plain]), None
    if ordered:
        priority = np.stack([p for i in ordered if (p := placements[i].priority) is not None])
        yield ordered, np.stack([placements[i].device for i in ordered]), priority


def members(grouping: Grouping) -> tuple[Int64, Int32]:
    """Return (ptr, operation): group g has the operations operation[ptr[g]:ptr[g + 1]], the first one first.

    ptr: int64 [k + 1]; operation: int32 [n].
    """
    return row_ptr(grouping.group, grouping.k), np.argsort(grouping.group, kind="stable").astype(np.int32)


def expanded(moves: Moves, grouping: Grouping) -> Moves:
    """Return moves of k groups as moves of their n operations; the i-th remains the i-th."""
    if grouping.k == grouping.n and np.array_equal(grouping.group, np.arange(grouping.n)):
        return moves
    ptr, operation = members(grouping)
    count = np.diff(ptr)[moves.node]
    ends = np.zeros(moves.node.size + 1, np.int64)
    np.cumsum(count, out=ends[1:])
    within = np.arange(ends[-1]) - np.repeat(ends[:-1], count)
    node = operation[np.repeat(ptr[moves.node], count) + within]
    like = np.where(moves.like >= 0, operation[ptr[:-1][moves.like]], -1).astype(np.int32)
    return Moves.made(
        ends[moves.ptr],
        node,
        moves.device,
        like,
        moves.shift,
        ends[moves.back],
        moves.threshold_s,
        price_s_per_byte=moves.price_s_per_byte,
        bounded=moves.bounded,
    )


def digest(*parts: npt.NDArray[np.generic] | str) -> str:
    """Return 16 hexadecimal digits that are equal for equal arrays and words."""
    sha256 = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else np.ascontiguousarray(part).tobytes()
        sha256.update(len(content).to_bytes(8, "little") + content)
    return sha256.hexdigest()[:16]


def owned(array: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """Return a copy that may be written to: for one that may not, every kernel would be compiled once more."""
    return np.array(array, order="C")


def pieces(edges: Int32, device: Int32) -> int:
    """Return into how many connected pieces device int32 [n] cuts a graph; edges: int32 [2, m].

    What a runtime makes of a placement at least; one that cannot run sub-graphs that wait for one another makes more.
    A placement on one device is not cut at all.
    """
    return 1 if np.all(device == device[:1]) else connected_count(edges, np.ascontiguousarray(device))
