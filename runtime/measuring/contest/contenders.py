"""The variants of a contest, with the starts that they have had, and how far these scatter."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipeline.core.deadline import Clock
from pipeline.core.measurement import MeasurementFailed, is_transient
from runtime.measuring.contest.pair_bench import SCREEN_PAIRS, Bench, Part, Start
from runtime.measuring.contest.statistics import TWIN, Spread
from runtime.measuring.contest.variant import Variant

SCREEN_S = 0.36  # seconds of turns in a start of the screening, where so many pairs take no longer
NEAR = 4.0  # standard deviations from the leader within which a variant stays
UNSEEN = 0.02  # standard deviation between starts before any variant has had two
REUSED = 0.5  # what loading takes of a model that was compiled before, over compiling it: 0.38 s of 0.8 s were measured
QUIETEST = 0.005  # standard deviation of a start's log ratio that is assumed at least
LEAST_PAIRS = 4  # of turns in a start of the final, at least

Say = Callable[[str], None]


@dataclass(slots=True)
class Contender:
    """A variant in the contest: its starts so far, and why it has gone.

    screened, final: the starts of either part, by their number. left: why it takes no further part; "" while it does.
    same_as: the name of the variant that it is one with by what the plug-in reports of both; "" for none.
    pair_s: what a pair of turns takes. ready_s: what its last start took beside them, for compiling above all.
    """

    variant: Variant
    screened: dict[int, Start] = field(default_factory=dict)
    final: dict[int, Start] = field(default_factory=dict)
    failed: MeasurementFailed | None = None
    left: str = ""
    same_as: str = ""
    pair_s: float = 0.0
    ready_s: float = 0.0

    @property
    def advance(self) -> float:
        """Return the median log ratio of the screening's starts, as one may be bad; -inf where there is none."""
        return float(np.median([s.log_ratio for s in self.screened.values()])) if self.screened else -math.inf

    @property
    def screening_range(self) -> float:
        """Return how far the screening's starts lie apart, as a log ratio; 0 of fewer than two."""
        return float(np.ptp([s.log_ratio for s in self.screened.values()])) if self.screened else 0.0

    @property
    def log_ratios(self) -> list[float]:
        """Return the log ratios of the final's starts, in their order."""
        return [self.final[number].log_ratio for number in sorted(self.final)]

    @property
    def again_s(self) -> float:
        """Return the seconds that its next start will take beside turns: one device loads what was compiled before."""
        return self.ready_s * (REUSED if self.variant.single and not self.final else 1.0)

    @property
    def starts(self) -> list[Start]:
        """Return all starts, the final's if it has any."""
        return list((self.final or self.screened).values())


def run_start(
    entry: Contender, control: Variant, bench: Bench, clock: Clock, part: Part, number: int, seconds: float = SCREEN_S
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


def log_ratios_to(reference: str, entries: Mapping[str, Contender], beside: str) -> dict[str, dict[int, float]]:
    """Return, for every other variant of the final, log(reference's time / its time) of each start that both have had.

    beside: the variant beside which all starts ran. The twin of that is compared with nothing else.
    """
    logs = {name: {i: s.log_ratio for i, s in e.final.items()} for name, e in entries.items() if e.failed is None}
    logs[beside] = dict.fromkeys((i for ratios in logs.values() for i in ratios), 0.0)
    theirs = logs[reference]
    return {
        name: ours if name == TWIN else {i: ours[i] - theirs[i] for i in sorted(ours.keys() & theirs.keys())}
        for name, ours in logs.items()
        if ours and name != reference
    }


def noise_of(entries: Sequence[Contender]) -> float:
    """Return the standard deviation of the log ratio of a screening's start, by what the starts show.

    Turns of a start scatter, and so do starts of a variant: by UNSEEN, as long as no variant has two.
    """
    starts = [[s.log_ratio for s in e.screened.values()] for e in entries if e.failed is None and e.screened]
    within = [s.error for e in entries if e.failed is None for s in e.screened.values()]
    between = Spread.of(starts)
    seen = between.sd if between.freedom else math.hypot(UNSEEN, math.sqrt(float(np.mean(np.square(within or [0.0])))))
    return max(seen, QUIETEST)
