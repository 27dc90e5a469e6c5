"""Tensors that may have to be sent, and the nodes that make and read them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.core.arrays import Int32, Int64
from pipeline.core.graph import Graph, makers, row_ptr


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
