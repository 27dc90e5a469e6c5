"""Which operation reads which output of which other, and how much of it; inferred from bytes where nobody says."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.core.arrays import Bool, Int32, Int64, frozen


@dataclass(frozen=True, slots=True, eq=False)
class Reads:
    """What flows along the edges of a graph: f reads of t tensors, sorted by (edge, port).

    edge: int64 [f], the edge that a read belongs to. port: int32 [f], which output of the edge's producer it reads.
    size: int64 [f], the bytes that it takes of it. tensor: int64 [f], the number of the output in [0, t), equal for
    reads of one output; sorted by (producer, port).
    """

    edge: Int64
    port: Int32
    size: Int64
    tensor: Int64

    def __post_init__(self) -> None:
        for name, dtype in (("edge", np.int64), ("port", np.int32), ("size", np.int64), ("tensor", np.int64)):
            array = frozen(getattr(self, name), dtype, (np.size(self.edge),), f"reads.{name}")
            if array.size and array.min() < 0:
                raise ValueError(f"reads.{name} must not be negative")
            object.__setattr__(self, name, array)
        step = np.diff(self.edge)
        if np.any(step < 0) or np.any((step == 0) & (np.diff(self.port) <= 0)):
            raise ValueError("reads must be unique and sorted by (edge, port)")

    @property
    def t(self) -> int:
        """Return the number of tensors that are read."""
        return int(self.tensor.max()) + 1 if self.tensor.size else 0

    def same_as(self, other: Reads) -> bool:
        """Return whether the other reads are equal to these."""
        names = ("edge", "port", "size", "tensor")
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in names)

    def check(self, edge_bytes: Int64) -> None:
        """Check that these are the reads of edges of these bytes, int64 [m], or raise ValueError."""
        m = edge_bytes.size
        if self.edge.max(initial=-1) >= m or np.any(np.bincount(self.edge, minlength=m) == 0):
            raise ValueError("every edge needs a read, and every read an edge")
        total = np.zeros(m, np.int64)
        np.add.at(total, self.edge, self.size)
        if not np.array_equal(total, edge_bytes):
            raise ValueError("the bytes of each edge must be those of its reads; give both, or INFERRED as reads")


_NONE = np.zeros(0, np.int64)
INFERRED = Reads(_NONE, _NONE.astype(np.int32), _NONE, _NONE)  # a graph given these infers them from its bytes


def edges_of(producer: Int64, consumer: Int64, port: Int64, size: Int64) -> tuple[Int32, Int64, Reads]:
    """Return (edges, edge_bytes, reads) of reads int64 [...] in any order: int32 [2, m], int64 [m], and the reads.

    What a consumer reads twice of one output counts once, with the larger size.
    """
    order = np.lexsort((port, consumer, producer))
    row = np.stack([producer[order], consumer[order], port[order]]).astype(np.int64)
    begins = _column_changes(row)
    size = np.maximum.reduceat(size[order], np.flatnonzero(begins)) if begins.size else _NONE
    row = row[:, begins]
    begins = _column_changes(row[:2])
    edge = np.cumsum(begins) - 1
    edge_bytes = np.add.reduceat(size, np.flatnonzero(begins)) if begins.size else _NONE
    output = row[0] * (row[2].max(initial=0) + 1) + row[2]
    reads = Reads(edge, row[2].astype(np.int32), size, np.unique(output, return_inverse=True)[1])
    return row[:2, begins].astype(np.int32), edge_bytes, reads


def _column_changes(row: Int64) -> Bool:
    """Return bool [f], whether each column of int64 [..., f] is the first or differs from the one before."""
    begins: Bool = np.r_[True, np.any(np.diff(row, axis=1) != 0, axis=0)]
    return begins[: row.shape[1]]


def inferred(producer: Int32, edge_bytes: Int64, out_bytes: Int64) -> Reads:
    """Return the reads of edges by what flows along each and what each operation produces: one for every edge.

    producer: int32 [m], sorted. edge_bytes: int64 [m]. out_bytes: int64 [n]. See `tensors_read`.
    """
    tensor = np.unique(tensors_read(producer, edge_bytes, out_bytes), return_inverse=True)[1]
    first = np.full(out_bytes.size, producer.size)  # of each producer, its first tensor
    np.minimum.at(first, producer, tensor)
    return Reads(np.arange(producer.size), (tensor - first[producer]).astype(np.int32), edge_bytes, tensor)


def tensors_read(producer: Int32, edge_bytes: Int64, out_bytes: Int64) -> Int64:
    """Return int64 [m], for every edge the first edge that carries its tensor; equal for edges of one tensor.

    Known is what flows along each edge, and how many bytes each operation produces in all, but not which output an edge
    reads. So the edges of an operation, largest first, are outputs of their own as long as these fit into what
    it produces; any other edge reads an output of its size, if there is one, or a part of the largest. The first edge
    always counts; edges without bytes are parts of it.

    This is exact where an operation has one output, however often and in whatever parts it is read, where every output
    is read once, and where one reader takes several outputs that others read one by one. What a device receives by it
    lies between the largest edge and the sum of the edges that lead there.

    producer: int32 [m], sorted. edge_bytes: int64 [m]. out_bytes: int64 [n].

    >>> two = np.array([0, 0], np.int32), np.array([100, 100])
    >>> tensors_read(*two, np.array([200])).tolist(), tensors_read(*two, np.array([100])).tolist()
    ([0, 1], [0, 0])
    """
    m = producer.size
    if m == 0:
        return np.zeros(0, np.int64)
    largest_first = np.lexsort((np.arange(m), -edge_bytes, producer))
    size = edge_bytes[largest_first]
    begins = np.r_[True, np.diff(producer) != 0]
    start = np.flatnonzero(begins)
    own = _own_outputs(size, start, out_bytes[producer[start]])
    index = np.arange(m)
    run = np.maximum.accumulate(np.where(begins | np.r_[True, np.diff(size) != 0], index, 0))  # the first of its size
    leader = np.where(own, index, np.where(own[run], run, np.repeat(start, np.diff(np.r_[start, m]))))
    number = np.empty(m, np.int64)
    number[largest_first] = largest_first[leader]
    return number


def _own_outputs(size: Int64, start: Int64, room: Int64) -> Bool:
    """Return bool [m], whether each edge counts as an output of its own.

    size: int64 [m], of the edges of each producer, largest first. start: int64 [u], where those of each producer begin.
    room: int64 [u], the bytes that each produces.
    """
    end = np.r_[start[1:], size.size]
    own = np.zeros(size.size, bool)
    own[start] = True
    left = room - size[start]
    least = np.minimum.reduceat(np.where(size > 0, size, np.iinfo(np.int64).max), start)
    at = start + 1
    while True:
        going = (at < end) & (left >= least)  # what has no room for its least edge is done
        at, end, left, least = at[going], end[going], left[going], least[going]
        if not at.size:
            return own
        fits = (size[at] > 0) & (size[at] <= left)
        own[at] = fits
        left = left - np.where(fits, size[at], 0)
        at = at + 1
