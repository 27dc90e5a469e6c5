"""Which edges of a graph carry the same tensor, as far as their bytes tell."""

from __future__ import annotations

import numpy as np

from pipeline.core.arrays import Bool, Int32, Int64


def tensors_read(producer: Int32, edge_bytes: Int64, out_bytes: Int64) -> Int64:
    """Return int64 [m], for every edge the first edge that carries its tensor; equal for edges of one tensor.

    A graph knows what flows along each edge, and how many bytes each operation produces in all, but not which output
    an edge reads. So the edges of an operation, largest first, are outputs of their own as long as these fit into what
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
    found = np.empty(m, np.int64)
    found[largest_first] = largest_first[leader]
    return found


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
