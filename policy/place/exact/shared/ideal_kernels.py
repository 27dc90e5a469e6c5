"""All ideals of an acyclic graph: sets of elements that contain, with each, all that come before it."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np

from pipeline.core.arrays import Float64, Int32, Int64
from pipeline.shared.compiled import allocating, compiled, inlined

Rows = TypeVar("Rows", Float64, Int64, Int32)

ROOM = 1024  # ideals that a listing has room for at first; for covers, and in the table, four times as many


class Listing(NamedTuple):
    """Ideals of k elements, by size; what lies behind the counts is room for more.

    words: int64 [c, w], the elements of each as bits. hashes: int64 [c]. priced_s: float64 [c], their priced work.
    above, below, taken: int32: ideal above[x] without the element taken[x] is the ideal below[x]. table: int32, of
    hashes. first: int64 [k + 2], where those of each size begin. counts: int64 [4]: ideals from which all larger ones
    were made, ideals, covers, and the size of the ideal that comes next.
    """

    words: Int64
    hashes: Int64
    priced_s: Float64
    above: Int32
    below: Int32
    taken: Int32
    table: Int32
    first: Int64
    counts: Int64

    @classmethod
    def empty(cls, k: int) -> Listing:
        """Return the listing of the empty ideal of k elements."""
        words, hashes = np.zeros((ROOM, max(1, -(-k // 64))), np.int64), np.zeros(ROOM, np.int64)
        above, below, taken = (np.empty(4 * ROOM, np.int32) for _ in range(3))
        first = np.zeros(k + 2, np.int64)
        first[1] = 1
        table = np.full(4 * ROOM, -1, np.int32)
        counts = np.array([0, 1, 0, 0], np.int64)
        return cls(words, hashes, np.zeros(ROOM), above, below, taken, table, first, counts)

    @property
    def complete(self) -> bool:
        """Return whether there are no more ideals."""
        return bool(self.counts[0] == self.counts[1])


@compiled
def listed(need: Int64, key: Int64, priced_s: Float64, listing: Listing, many: int) -> Listing:
    """Return the listing after `many` more of its ideals have led to larger ones; the given one is used up.

    need: int64 [k, w], bits of what must come before each element. key: int64 [k], random. priced_s: float64 [k].
    """
    words, hashes, total_s, above, below, taken, table, first, counts = listing
    i, count, covers, size = counts[0], counts[1], counts[2], counts[3]
    end = i + many
    while i < end and i < count:
        if i == first[size + 1]:
            size += 1
            first[size + 1] = count
        for e in range(need.shape[0]):
            if not _addable(words[i], need[e], e):
                continue
            if 2 * count >= table.size:
                table = _rehashed(hashes, count, 2 * table.size)
            if count == hashes.size:
                longer = np.zeros((2 * len(words), words.shape[1]), np.int64)
                longer[: len(words)] = words
                words, hashes, total_s = longer, _longer(hashes), _longer(total_s)
            words[count] = words[i]
            words[count, e >> 6] |= np.int64(1) << (e & 63)
            hashes[count] = hashes[i] ^ key[e]
            j = _place_of(table, words, hashes, count)
            if j == count:
                total_s[count] = total_s[i] + priced_s[e]
                count += 1
            if covers == above.size:
                above, below, taken = _longer(above), _longer(below), _longer(taken)
            above[covers], below[covers], taken[covers] = j, i, e
            covers += 1
        i += 1
    counts[0], counts[1], counts[2], counts[3] = i, count, covers, size
    return Listing(words, hashes, total_s, above, below, taken, table, first, counts)


@compiled
def by_above(listing: Listing) -> tuple[Int64, Int32, Int32]:
    """Return (ptr int64 [c + 1], below, taken): the covers of ideal i are those from ptr[i] to ptr[i + 1]."""
    count, covers = listing.counts[1], listing.counts[2]
    ptr = np.zeros(count + 1, np.int64)
    for x in range(covers):
        ptr[listing.above[x] + 1] += 1
    ptr = np.cumsum(ptr)
    at = ptr[:-1].copy()
    below, taken = np.empty(covers, np.int32), np.empty(covers, np.int32)
    for x in range(covers):
        i = listing.above[x]
        below[at[i]], taken[at[i]] = listing.below[x], listing.taken[x]
        at[i] += 1
    return ptr, below, taken


@inlined
def _addable(ideal: Int64, need: Int64, e: int) -> bool:
    if ideal[e >> 6] >> (e & 63) & 1:
        return False
    missing = np.int64(0)
    for x in range(ideal.size):
        missing |= need[x] & ~ideal[x]
    return bool(missing == 0)


@allocating
def _place_of(table: Int32, words: Int64, hashes: Int64, candidate: int) -> int:
    """Return the number of the ideal equal to a candidate, which is entered if there is none."""
    at = hashes[candidate] & (table.size - 1)
    while table[at] >= 0:
        other = table[at]
        if hashes[other] == hashes[candidate]:
            same = True
            for x in range(words.shape[1]):
                same = same and words[other, x] == words[candidate, x]
            if same:
                return int(other)
        at = (at + 1) & (table.size - 1)
    table[at] = candidate
    return candidate


@allocating
def _rehashed(hashes: Int64, count: int, size: int) -> Int32:
    table = np.full(size, -1, np.int32)
    for i in range(count):
        at = hashes[i] & (size - 1)
        while table[at] >= 0:
            at = (at + 1) & (size - 1)
        table[at] = i
    return table


@allocating
def _longer(array: Rows) -> Rows:
    """Return an array with as much room again."""
    longer = np.zeros(2 * array.size, array.dtype)
    longer[: array.size] = array
    return longer
