"""The variants of a contest, with the starts that they have had, and how far these scatter."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipeline.core.deadline import Clock
from pipeline.core.measurement import MeasurementFailed, is_transient
from runtime.measuring.claims import Spread
from runtime.measuring.pairs import SCREEN_PAIRS, Bench, Part, Start, mean_log_ratio
from runtime.measuring.variant import Variant

SCREEN_S = 0.36  # seconds of turns in a start of the screening, where so many pairs take no longer
NEAR = 4.0  # standard deviations from the leader within which a variant stays
UNSEEN = 0.02  # standard deviation between starts before any variant has had two
QUIETEST = 0.005  # standard deviation of a start's log ratio that is assumed at least
LEAST_PAIRS = 4  # of turns in a start of the final, at least

Say = Callable[[str], None]


@dataclass(slots=True)
class Entrant:
    """A variant in the contest: its starts so far, and why it has gone.

    screened, final: the starts of either part, by their number. left: why it takes no further part; "" while it does.
    pair_s: what a pair of turns takes. ready_s: what its last start took beside them, for compiling above all.
    """

    variant: Variant
    screened: dict[int, Start] = field(default_factory=dict)
    final: dict[int, Start] = field(default_factory=dict)
    failed: MeasurementFailed | None = None
    left: str = ""
    pair_s: float = 0.0
    ready_s: float = 0.0

    @property
    def advance(self) -> float:
        """Return the mean log ratio of the screening; -inf where there is none."""
        return mean_log_ratio(list(self.screened.values()))

    @property
    def log_ratios(self) -> list[float]:
        """Return the log ratios of the final's starts, in their order."""
        return [self.final[number].log_ratio for number in sorted(self.final)]

    @property
    def starts(self) -> list[Start]:
        """Return all starts, the final's if it has any."""
        return list((self.final or self.screened).values())


def begin(
    entry: Entrant, control: Variant, bench: Bench, clock: Clock, part: Part, number: int, seconds: float = SCREEN_S
) -> None:
    """Give a variant one start; one that is disturbed has a second chance."""
    begun, least = clock(), SCREEN_PAIRS if part == "screening" else LEAST_PAIRS
    started = bench.start(entry.variant, control, part=part, number=number, pairs=least, seconds=seconds)
    if is_transient(started):
        started = bench.start(entry.variant, control, part=part, number=number, pairs=least, seconds=seconds)
    took_s = clock() - begun
    if isinstance(started, MeasurementFailed):
        entry.failed, entry.left = started, "failed"
    else:
        pairs = len(started.variant_s)
        entry.pair_s = min(sum(started.turns_s) / pairs, took_s / pairs)
        entry.ready_s = took_s - pairs * entry.pair_s
        (entry.screened if part == "screening" else entry.final)[number] = started


def noise_of(entries: Sequence[Entrant]) -> float:
    """Return the standard deviation of the log ratio of a screening's start, by what the starts show.

    Turns of a start scatter, and so do starts of a variant: by UNSEEN, as long as no variant has two.
    """
    starts = [[s.log_ratio for s in e.screened.values()] for e in entries if e.failed is None and e.screened]
    within = [s.error for e in entries if e.failed is None for s in e.screened.values()]
    between = Spread.of(starts)
    seen = between.sd if between.freedom else math.hypot(UNSEEN, math.sqrt(float(np.mean(np.square(within or [0.0])))))
    return max(seen, QUIETEST)
