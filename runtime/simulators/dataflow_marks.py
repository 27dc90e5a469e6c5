"""Where a run of the dataflow machine may begin: states kept along the run of another plan."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.compiled import compiled, inlined
from pipeline.core.arrays import Float64, Int32, Int64
from runtime.simulators.dataflow_state import State

BEFORE_S = -1.0  # a moment before the first event


class Marks(NamedTuple):
    """States along the run of one plan, from which the runs of plans go on that are the same up to there.

    ints: int32 [s, ...], floats: float64 [s, ...], as in `State`; the first is that before any plan begins.
    seen_s: float64 [s], up to when all has happened in it. kept: int64 [1], how many there are.
    """

    ints: Int32
    floats: Float64
    seen_s: Float64
    kept: Int64


class Part(NamedTuple):
    """Which part of a run is wanted.

    first_s: the moment up to which, itself excluded, all happens as in the run that left the marks.
    limit_s: the run may be given up when it is certain to take longer. load_s: float64 [p], for how long the plan's
    work takes each device; looked at only where limit_s is finite.
    """

    first_s: float
    limit_s: float
    load_s: Float64


@compiled
def new_marks(state: State, most: int) -> Marks:
    """Return room for at most `most` states, of which the first is that before any plan begins."""
    marks = Marks(
        np.empty((most, state.ints.size), np.int32),
        np.empty((most, state.floats.size)),
        np.empty(most),
        np.zeros(1, np.int64),
    )
    save(state, marks, -1.0)
    return marks


@inlined
def save(state: State, marks: Marks, now_s: float) -> None:
    """Keep the state as it is after all that happens up to now."""
    row = marks.kept[0]
    for a in range(state.ints.size):
        marks.ints[row, a] = state.ints[a]
    for a in range(state.floats.size):
        marks.floats[row, a] = state.floats[a]
    marks.seen_s[row] = now_s
    marks.kept[0] = row + 1


@inlined
def restore(state: State, marks: Marks, first_s: float) -> float:
    """Go back to the last state kept, or the first, that has not seen the moment first_s; return what it has seen."""
    row = marks.kept[0] - 1
    while row > 0 and marks.seen_s[row] >= first_s:
        row -= 1
    for a in range(state.ints.size):
        state.ints[a] = marks.ints[row, a]
    for a in range(state.floats.size):
        state.floats[a] = marks.floats[row, a]
    return float(marks.seen_s[row])
