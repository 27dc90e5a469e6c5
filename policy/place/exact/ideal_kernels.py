"""All ideals of an acyclic graph: sets of elements that contain, with each, all that come before it."""

from __future__ import annotations

import numpy as np

from pipeline.core.arrays import Int32, Int64
from pipeline.shared.compiled import allocating, compiled, inlined


@compiled
def ideals(need: Int64, key: Int64, most: int) -> tuple[Int64, Int64, Int32, Int32, Int32]:
    """Return (first int64 [k + 2]; int64 [c, w], the elements of each ideal as bits; above, below, taken: int32).

    The last three: ideal above[x] without the element taken[x] is the ideal below[x]. need: int64 [k, w], bits of what
    must come before each element. key: int64 [k], random. Everything is empty where there are more than `most` ideals.
    """
    k, w = need.shape
    room, pairs = 1024, 4096
    words, hashes = np.zeros((room, w), np.int64), np.zeros(room, np.int64)
    above, below, taken = np.empty(pairs, np.int32), np.empty(pairs, np.int32), np.empty(pairs, np.int32)
    table = np.full(4096, -1, np.int32)
    first = np.zeros(k + 2, np.int64)
    first[1] = count = 1
    found = 0
    for size in range(k):
        for i in range(first[size], first[size + 1]):
            for e in range(k):
                if not _addable(words[i], need[e], e):
                    continue
                if 2 * count >= table.size:
                    table = _rehashed(hashes, count, 2 * table.size)
                if count == room:
                    room *= 2
                    words, hashes = _longer_rows(words, room), _longer(hashes, room)
                words[count] = words[i]
                words[count, e >> 6] |= np.int64(1) << (e & 63)
                hashes[count] = hashes[i] ^ key[e]
                j = _place_of(table, words, hashes, count)
                if j == count:
                    count += 1
                    if count > most:
                        return first[:0], words[:0], above[:0], below[:0], taken[:0]
                if found == pairs:
                    pairs *= 2
                    above, below, taken = _longer32(above, pairs), _longer32(below, pairs), _longer32(taken, pairs)
                above[found], below[found], taken[found] = j, i, e
                found += 1
        first[size + 2] = count
    return first, words[:count].copy(), above[:found].copy(), below[:found].copy(), taken[:found].copy()


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
def _longer(array: Int64, size: int) -> Int64:
    longer = np.zeros(size, np.int64)
    longer[: array.size] = array
    return longer


@allocating
def _longer32(array: Int32, size: int) -> Int32:
    longer = np.zeros(size, np.int32)
    longer[: array.size] = array
    return longer


@allocating
def _longer_rows(array: Int64, size: int) -> Int64:
    longer = np.zeros((size, array.shape[1]), np.int64)
    longer[: len(array)] = array
    return longer
