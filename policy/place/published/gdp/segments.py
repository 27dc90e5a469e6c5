"""Which nodes attend to which: those of their own segment, and those in the memory of the segment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class AttentionSegments:
    """The n nodes of one or several sequences below one another, cut into s segments of l nodes.

    own: int64 [s, l], the nodes of each segment; where there is none, any. before: int64 [s, m], the m nodes before
    it in its own sequence, its memory. seen: bool [s, m + l], which of both there are. slot: int64 [n], where each node
    stands in `own`, its rows one after another. owner: int64 [n], the sequence of each node. sizes: nodes of each.
    """

    own: Tensor
    before: Tensor
    seen: Tensor
    slot: Tensor
    owner: Tensor
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, sizes: Sequence[int], *, length: int, memory: int) -> AttentionSegments:
        """Return the segments of sequences, of at most `length` nodes, each of which remembers `memory` nodes.

        >>> AttentionSegments.of([5], length=2, memory=1).before.tolist()
        [[0], [1], [3]]
        >>> AttentionSegments.of([5], length=2, memory=1).seen.tolist()[0]
        [False, True, True]
        """
        most = max(sizes, default=0)
        length = max(1, min(length, most))
        memory = min(memory, (max(most - 1, 0) // length) * length)  # what lies before the last segment at most
        own, before, seen, slot, rows, first = [], [], [], [], 0, 0
        for size in sizes:
            begin = np.arange(0, size, length)[:, None]
            mine, past = begin + np.arange(length), begin - memory + np.arange(memory)
            there = mine < size
            own.append(np.where(there, mine, 0) + first)
            before.append(np.maximum(past, 0) + first)
            seen.append(np.concatenate([past >= 0, there], axis=1))
            slot.append(np.flatnonzero(there) + rows)
            rows, first = rows + there.size, first + size
        owner = np.repeat(np.arange(len(sizes)), sizes)
        stacked = [torch.from_numpy(np.concatenate(part)) for part in (own, before, seen, slot)]
        return cls(stacked[0], stacked[1], stacked[2], stacked[3], torch.from_numpy(owner), tuple(sizes))
