"""What may be claimed of variants that were measured in pairs with a control.

A *start* is a fresh compilation of a variant and of the control, which then take turns; the median over the turns of
log(control's time / variant's time) is one number, the log ratio of that start. Turns within one start are no
independent evidence: most of the noise lies between starts. So intervals come from starts, by Student's t, and are
widened so that all claims of one comparison, at all times it is looked at, hold together (Bonferroni).

Source: Student, The probable error of a mean (1908); Dunn, Multiple comparisons among means (1961).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.core.estimates import RatioEstimate

TWIN = "twin of the baseline"  # what the control's double is called among the variants
SHARED = 0.5  # correlation of two variants' log ratios of one start, whose control is the same
TWIN_LEVEL = 0.99  # of the interval beyond which a twin differs from itself: the machine was too disturbed


@dataclass(frozen=True, slots=True)
class Rules:
    """When a gain is claimed.

    level: that all claims hold together. least: a share; gains below it are not worth a claim. least_starts: before a
    claim is made at all. look: the number of starts at which a contest that is already decided ends.
    """

    level: float = 0.95
    least: float = 0.02
    least_starts: int = 3
    look: int = 5

    def __post_init__(self) -> None:
        if not (0 < self.level < 1 and 0 <= self.least < 1 and self.least_starts >= 2):
            raise ValueError(f"{self} cannot be decided by")


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a comparison with the control has come to.

    ratios: of every variant of which there are starts enough. claimed: the variants that are faster, the fastest
    first. open: those of which more starts could still make a claim. noise: the share by which the twin seems to
    differ from the control at most; inf before there are starts enough. disturbed: whether the twin differs from
    itself.
    """

    ratios: Mapping[str, RatioEstimate]
    claimed: tuple[str, ...]
    open: tuple[str, ...]
    noise: float
    disturbed: bool


def mean_interval(values: Sequence[float], level: float) -> tuple[float, float, float]:
    """Return (mean, low, high) of Student's interval; both ends are infinite for a single value.

    >>> [round(x, 3) for x in mean_interval([1.0, 2.0, 3.0], 0.95)]
    [2.0, -0.484, 4.484]
    """
    return Spread.of([values]).interval(values, level)


@dataclass(frozen=True, slots=True)
class Spread:
    """How far starts scatter, from all variants of a comparison together: a few starts of one tell little of it.

    sd: pooled standard deviation of log ratios. freedom: its degrees of freedom, fewer than the starts have, since
    those of equal number share a control, which is half of what scatters; 0 where nothing is known.

    Source: Dunnett, A multiple comparison procedure for comparing several treatments with a control (1955). Different:
    Bonferroni in place of his tables, and a variant that scatters more than the others keeps its own deviation.
    """

    sd: float
    freedom: float

    @classmethod
    def of(cls, series: Sequence[Sequence[float]]) -> Spread:
        """Return the spread of several variants' log ratios; it is told by those that have two or more."""
        series = [values for values in series if len(values) > 1]
        if not series:
            return cls(math.inf, 0.0)
        own = [len(values) - 1 for values in series]
        squares = sum(n * float(np.var(values, ddof=1)) for n, values in zip(own, series, strict=True))
        return cls(math.sqrt(squares / sum(own)), sum(own) / (1 + (len(series) - 1) * SHARED**2))

    def interval(self, values: Sequence[float], level: float) -> tuple[float, float, float]:
        """Return (mean, low, high) of one variant's log ratios; both ends are infinite for a single start."""
        from scipy.special import stdtrit

        mean, n = float(np.mean(values)), len(values)
        if n < 2 or self.freedom <= 0:
            return mean, -math.inf, math.inf
        sd = max(self.sd, float(np.std(values, ddof=1)))
        half = float(stdtrit(self.freedom, (1 + level) / 2)) * sd / math.sqrt(n)
        return mean, mean - half, mean + half


def quantile_interval(samples: Sequence[float], share: float, level: float) -> tuple[float, float] | None:
    """Return the exact interval of a quantile between two order statistics; None where so few cannot support it.

    Each end leaves out half of 1 - level at most, whatever the distribution.

    >>> quantile_interval([1, 2, 3, 4, 5, 6], 0.5, 0.95), quantile_interval([1, 2, 3, 4, 5], 0.5, 0.95)
    ((1.0, 6.0), None)

    Source: David and Nagaraja, Order Statistics, section 7.1.
    """
    from scipy.stats import binom

    ranked = np.sort(np.asarray(samples, dtype=np.float64))
    n, half = ranked.size, (1 - level) / 2
    below = int(binom.ppf(half, n, share))  # P(count <= below - 1) < half
    above = int(binom.isf(half, n, share)) + 1  # P(count >= above) <= half
    if below < 1 or above > n:
        return None
    return float(ranked[below - 1]), float(ranked[above - 1])


def judge_starts(
    log_ratios: Mapping[str, Sequence[float]],
    rules: Rules,
    *,
    contenders: int,
    looks: int = 2,
    over: Mapping[str, Mapping[str, Sequence[float]]] | None = None,
) -> Judgement:
    """Return what the starts so far say of the variants compared with the control, and of the control's twin.

    log_ratios: variant -> log(control's time / its time) of each start; the twin among them under its own name.
    contenders: variants that were compared in the beginning, however many are left. looks: how often the comparison is
    looked at for claims. over: the same of other baselines, by their names: whoever is none of them must gain over each
    as well, which takes no further correction (an intersection of tests).
    """
    level = 1 - (1 - rules.level) / (max(1, contenders) * looks)
    spread = Spread.of(list(log_ratios.values()))
    noise, disturbed = _twin_noise(log_ratios.get(TWIN, ()), spread, rules)
    least = math.log1p(rules.least)
    others = [(Spread.of(list(table.values())), table) for table in (over or {}).values()]
    baselines = set(over or {})
    ratios: dict[str, RatioEstimate] = {}
    claimed: list[tuple[float, str]] = []
    undecided: list[str] = []
    for name, logs in log_ratios.items():
        if name == TWIN or not logs:
            continue
        mean, low, high = spread.interval(logs, level)
        ratios[name] = RatioEstimate.of_logs(mean, low, high, len(logs))
        series = [] if name in baselines else [(scatter, table.get(name, ())) for scatter, table in others]
        if min([len(logs), *(len(values) for _, values in series)]) < rules.least_starts:
            undecided.append(name)
            continue
        intervals = [(mean, low, high), *(scatter.interval(values, level) for scatter, values in series)]
        gains = all(start > 0 and middle >= least for middle, start, _ in intervals)
        if gains and (low if disturbed else mean) > noise:
            claimed.append((-mean, name))
        elif all(end > least for *_, end in intervals):
            undecided.append(name)
    return Judgement(ratios, tuple(n for _, n in sorted(claimed)), tuple(undecided), noise, disturbed)


def ratio_of(log_ratios: Sequence[float], level: float) -> RatioEstimate:
    """Return the ratio that log ratios of starts, at least one, amount to, with its interval."""
    return RatioEstimate.of_logs(*mean_interval(log_ratios, level), len(log_ratios))


def unpaired_ratio(samples: Sequence[float], others: Sequence[float], level: float) -> RatioEstimate:
    """Return how many times the others' geometric mean the samples' is, with an interval; nothing pairs them.

    Both have two or more.

    Source: Welch, The generalization of Student's problem when several different population variances are involved
    (1947).
    """
    from scipy.special import stdtrit

    logs = [np.log(np.asarray(values, dtype=np.float64)) for values in (samples, others)]
    mean = float(logs[0].mean() - logs[1].mean())
    parts = [float(x.var(ddof=1)) / x.size for x in logs]
    freedom = sum(parts) ** 2 / sum(p**2 / (x.size - 1) for p, x in zip(parts, logs, strict=True)) if sum(parts) else 1
    half = float(stdtrit(freedom, (1 + level) / 2)) * math.sqrt(sum(parts))
    return RatioEstimate.of_logs(mean, mean - half, mean + half, min(x.size for x in logs))


def _twin_noise(twin: Sequence[float], spread: Spread, rules: Rules) -> tuple[float, bool]:
    """Return how far off the control's twin may be, and whether it is off for certain."""
    if len(twin) < rules.least_starts:
        return math.inf, False
    _, low, high = spread.interval(twin, rules.level)
    _, certain_low, certain_high = spread.interval(twin, TWIN_LEVEL)
    return max(abs(low), abs(high)), certain_low > 0 or certain_high < 0
