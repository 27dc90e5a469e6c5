"""Where a run of the dataflow machine may begin: states kept along the run of another placement."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.core.arrays import Float64, Int32, Int64
from pipeline.shared.compiled import inlined
from runtime.simulators.dataflow.state import DataflowMachine, DataflowState, reset

BEFORE_S = -1.0  # a moment before the first event


class Snapshots(NamedTuple):
    """States along the run of one placement, from which the runs of placements go on that are the same up to there.

    ints: int32 [s, ...], floats: float64 [s, ...], as in `DataflowState`.
    seen_s: float64 [s], up to when all has happened in it. kept: int64 [1], how many there are.
    """

    ints: Int32
    floats: Float64
    seen_s: Float64
    kept: Int64


class Part(NamedTuple):
    """Which part of a run is wanted.

    first_s: the moment up to which, itself excluded, all happens as in the run that left the snapshots.
    limit_s: the run may be given up when it is certain to take longer.
    """

    first_s: float
    limit_s: float


def new_snapshots(state: DataflowState, most: int) -> Snapshots:
    """Return room for at most `most` states."""
    ints, floats = np.empty((most, state.ints.size), np.int32), np.empty((most, state.floats.size))
    return Snapshots(ints, floats, np.empty(most), np.zeros(1, np.int64))


@inlined
def copied(source: Float64 | Int32, target: Float64 | Int32) -> None:
    """Copy an array; of slices numba would ask whether they overlap, and allocate."""
    for a in range(source.size):
        target[a] = source[a]


@inlined
def save(state: DataflowState, snapshots: Snapshots, now_s: float) -> None:
    """Keep the state as it is after all that happens up to now."""
    row = snapshots.kept[0]
    copied(state.ints, snapshots.ints[row])
    copied(state.floats, snapshots.floats[row])
    snapshots.seen_s[row] = now_s
    snapshots.kept[0] = row + 1


@inlined
def restore(machine: DataflowMachine, state: DataflowState, snapshots: Snapshots, first_s: float) -> float:
    """Go back to the last state kept that has not seen the moment first_s, or before all; return what it has seen."""
    row = snapshots.kept[0] - 1
    while row >= 0 and snapshots.seen_s[row] >= first_s:
        row -= 1
    if row < 0:
        reset(machine, state)
        return BEFORE_S
    copied(snapshots.ints[row], state.ints)
    copied(snapshots.floats[row], state.floats)
    return float(snapshots.seen_s[row])


@inlined
def next_snapshot(kept: int, most: int, n: int) -> int:
    """Return how many of n operations have to end before the next snapshot is left; more than there are if none is."""
    return int((kept + 1) * (n // (most + 1) + 1) if kept < most else n + 1)
