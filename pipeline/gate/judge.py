"""What the starts of a gate say: slower, faster, no difference, or that it cannot be told.

Claims are those of `runtime.measuring.contest.statistics`, made in both directions of one two-sided interval: at least
three starts, an interval that leaves out 1 at a level that holds for all figures, models and looks together, a middle
beyond what counts, and beyond what the twin seems to differ by.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pipeline.core.estimates import RatioEstimate
from pipeline.gate.gate_file import LEAST, Figure
from pipeline.gate.starts import AFTER, GateStart
from runtime.measuring.contest.statistics import TWIN, Rules, judge_starts

Found = Literal["slower", "faster", "same", "undecided"]
LEVEL = 0.95
MOST_STARTS = 40  # of a model


@dataclass(frozen=True, slots=True)
class FigureRecord:
    """A figure of a model: the medians of both sides over starts, and how many times the one before the one after is.

    ratio: above 1 is worse; None before there are two starts. noise: the share by which the twin seems to differ; None
    before that is known. limit: by how much it may get worse; None where nobody asks, and then nothing is claimed.
    """

    figure: Figure
    before: float
    after: float
    ratio: RatioEstimate | None
    noise: float | None
    disturbed: bool
    limit: float | None
    found: Found
    starts: int

    @property
    def times_to_tell(self) -> float | None:
        """Return how many times these starts would tell, if what they scatter around stays; None where few would not.

        The interval narrows with their square root, and has to leave out 1, or lie within the limits.
        """
        if self.found != "undecided" or self.disturbed or self.ratio is None or self.ratio.low == self.ratio.high:
            return None
        middle, half = math.log(self.ratio.ratio), math.log(self.ratio.high / self.ratio.low) / 2
        worse, better = math.log1p(LEAST if self.limit is None else self.limit), math.log1p(LEAST)
        room = abs(middle) if middle > worse or middle < -better else min(worse - middle, middle + better)
        times = (half / room) ** 2 if room else math.inf
        return times if times > 1 and times * self.starts <= MOST_STARTS else None


def judge_figure(
    starts: Sequence[GateStart], figure: Figure, limit: float | None, *, claims: int, looks: int
) -> FigureRecord | None:
    """Return what starts say of one figure; None if none has it.

    claims: figures that have a limit, of all models together. looks: how often starts are looked at for claims.
    """
    having = [s for s in starts if figure in s.after]
    if not having:
        return None
    logs = {AFTER: [s.after[figure] for s in having], TWIN: [s.twin[figure] for s in having]}
    worse_by = LEAST if limit is None else limit
    better = judge_starts(logs, Rules(LEVEL, LEAST), contenders=claims, looks=looks)
    turned = {name: [-log for log in each] for name, each in logs.items()}
    worse = judge_starts(turned, Rules(LEVEL, worse_by), contenders=claims, looks=looks)
    ratio = worse.ratios[AFTER]
    found: Found = "undecided"
    if AFTER in worse.claimed:
        found = "slower"
    elif AFTER in better.claimed:
        found = "faster"
    elif len(having) >= Rules().least_starts and ratio.high <= 1 + worse_by and ratio.low >= 1 / (1 + LEAST):
        found = "same"
    return FigureRecord(
        figure=figure,
        before=float(np.median([s.values[0][figure] for s in having])),
        after=float(np.median([s.values[1][figure] for s in having])),
        ratio=ratio if len(having) > 1 else None,
        noise=math.expm1(worse.noise) if math.isfinite(worse.noise) else None,
        disturbed=worse.disturbed,
        limit=limit,
        found=found,
        starts=len(having),
    )


def judge_all_figures(figures: Mapping[Figure, FigureRecord]) -> Found:
    """Return what the figures that have limits say together: the worst of them, and nothing before all are decided."""
    found = {f.found for f in figures.values() if f.limit is not None}
    order: tuple[Found, ...] = ("slower", "undecided", "faster", "same")
    return next((word for word in order if word in found), "undecided")
