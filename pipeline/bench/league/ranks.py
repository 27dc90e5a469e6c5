"""Which placers a test tells apart: mean ranks with the critical difference of Nemenyi, and paired tests with the best.

Source: Demšar, "Statistical comparisons of classifiers over multiple data sets", Journal of Machine Learning Research
7, 2006: ranks of every instance, Friedman's test, Nemenyi's critical difference; Wilcoxon's signed ranks for pairs,
with Holm's correction for many of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.bench.league.paired import ALPHA, DIGITS, holm, log_ratios, signed_rank_p
from pipeline.bench.league.standings import ENOUGH_INSTANCES, LeagueRow, Values, by_instance
from pipeline.bench.summary import Interval, geometric_mean

RANKED = 10  # placers of a table that are ranked, the best: of more, the critical difference tells hardly any apart


@dataclass(frozen=True, slots=True)
class PairedTest:
    """The best placer beside another one, instance by instance.

    ratio: of the best's seconds over the other's. p: Wilcoxon's, two-sided; holm_p: corrected for all pairs of the
    table.
    """

    best: str
    other: str
    ratio: Interval
    p: float
    holm_p: float


@dataclass(frozen=True, slots=True)
class RankTable:
    """Placers ranked on every instance.

    ranks: the mean rank of each, the best first; 1 is the fastest, equals share. difference: mean ranks that differ by
    more are told apart at 5 % (Nemenyi). friedman_p: that all are alike. pairs: the one of the least mean rank beside
    each of the others.
    """

    instances: int
    ranks: Mapping[str, float]
    difference: float
    friedman_p: float
    pairs: tuple[PairedTest, ...]


def ranked(records: Sequence[LeagueRow], names: Sequence[str]) -> RankTable | None:
    """Return the ranks of the first of these placers that have a value on every instance; None of too few instances.

    names: the best first, without controls.
    """
    values = {name: by_instance([r for r in records if r["method"] == name]) for name in names}
    every = {r["model"] for r in records}
    whole = [name for name in names if set(values[name]) == every][:RANKED]
    if len(whole) < 3 or len(every) < ENOUGH_INSTANCES:
        return None
    from scipy.stats import friedmanchisquare, rankdata, studentized_range

    instances = sorted(every)
    logs = np.round(np.log([[values[name][i] for i in instances] for name in whole]), DIGITS)  # [k, instances]
    mean = rankdata(logs, axis=0).mean(axis=1)
    order = np.argsort(mean, kind="stable").tolist()
    k, count = logs.shape
    width = float(studentized_range.ppf(1 - ALPHA, k, math.inf)) / math.sqrt(2)
    best = whole[order[0]]
    return RankTable(
        count,
        {whole[i]: float(mean[i]) for i in order},
        width * math.sqrt(k * (k + 1) / (6 * count)),
        float(friedmanchisquare(*logs).pvalue) if np.ptp(logs, axis=0).any() else 1.0,
        _pairs(best, [whole[i] for i in order[1:]], values),
    )


def _pairs(best: str, others: Sequence[str], values: Mapping[str, Values]) -> tuple[PairedTest, ...]:
    """Return the best beside others, with corrected probabilities."""
    differences = [log_ratios(values[best], values[other]) for other in others]
    p = [signed_rank_p(difference) for difference in differences]
    return tuple(
        PairedTest(best, other, geometric_mean([np.exp(difference)]), one, corrected)
        for other, difference, one, corrected in zip(others, differences, p, holm(p), strict=True)
    )
