"""What the cells of a league say together: ratios to a reference with intervals, rates, costs, and curves.

A ratio is a placer's seconds over the reference's on the same instance, so that less is better. The seeds of an
instance come first (their geometric mean), then the instances, which all count alike; intervals resample instances,
the same ones for every placer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from pipeline.bench.cells import CellRecord
from pipeline.bench.league.paired import ALPHA, log_ratios, signed_rank_p
from pipeline.bench.summary import Interval, geometric_mean

ENOUGH_INSTANCES = 8  # below which a bootstrap over instances proves nothing
MARGIN = 0.01  # share by which values must differ to be a win or a loss
OWN_SHARE = 0.7  # of a processor that a search must have had for its seconds to count as its own
BOUND_BY_CLOCK = 0.9  # share of its limit after which a search counts as ended by the clock
SAME = 1e-9  # share within which values are equal, by which alone "never worse" is judged


class Valued(TypedDict):
    """What an instance is worth to a method; None where there is no value."""

    model: str
    value_s: float | None


class LeagueRow(CellRecord):
    """The record of a cell, and what tables ask of it.

    rule: whether the placer is a rule of thumb. control_of: whose control it is, "" for none. limit_s: what the clock
    allowed, None for no limit. lesson: key of what was learned before.
    """

    family: str
    kind: str
    rule: bool
    control_of: str
    budget: str
    limit_s: float | None
    lesson: str | None


Values = Mapping[str, float]  # by instance


@dataclass(frozen=True, slots=True)
class Standing:
    """A placer over the instances of a table.

    instances: those on which every seed has a placement. ratio: over the reference, None where there are none;
    families: the same by family, the point estimate alone. rule_ratio, rule_families: the same over the best rule of
    each instance. bound_ratio: over its lower bound. known_ratio: over the best known. wins, losses: shares of the
    instances where the ratio is below 0.99, or above 1.01. best: share of the instances where no placer is more than
    1 % better. not_worse_single, not_worse_heft: shares of the cells whose placement is not slower than the best single
    device, or HEFT's. infeasible: cells without a placement that fits, where another placer has one. failed: what other
    cells without one say. disturbed: cells whose search the clock ended while others had the processor. seconds, cpu_s,
    evaluations, planned: medians over the cells.
    """

    placer: str
    kind: str
    learned: bool
    control_of: str
    cells: int
    instances: int
    ratio: Interval | None
    families: Mapping[str, float]
    rule_ratio: float | None
    rule_families: Mapping[str, float]
    bound_ratio: float | None
    known_ratio: float | None
    wins: float | None
    losses: float | None
    best: float | None
    not_worse_single: float | None
    not_worse_heft: float | None
    infeasible: int
    failed: tuple[str, ...]
    disturbed: int
    seconds: float | None
    cpu_s: float | None
    evaluations: float | None
    planned: float | None


@dataclass(frozen=True, slots=True)
class Baselines:
    """What values are divided by and compared with, by instance; an instance may be missing where nothing is known.

    best: of all placers. rule: the best rule of thumb. heft: HEFT. bound: what no placement falls below. known: the
    best that any search of the league has found, whatever its budget.
    """

    reference: Values
    best: Values
    rule: Values
    heft: Values
    bound: Values
    known: Values

    @classmethod
    def of(
        cls, records: Sequence[LeagueRow], references: Sequence[LeagueRow], bound: Values, known: Values
    ) -> Baselines:
        """Return the baselines of a table's records; references: those of the reference, at its own budget."""
        rules = [r for r in records if r["rule"]]
        heft = [r for r in rules if r["method"] == "heft"]
        return cls(by_instance(references), least_values(records), least_values(rules), by_instance(heft), bound, known)


def by_instance(records: Sequence[Valued]) -> dict[str, float]:
    """Return instance -> geometric mean over the seeds; instances where a seed has no value are left out.

    >>> row = {"model": "a", "value_s": 2.0}
    >>> by_instance([row, row | {"value_s": 2.0}, {"model": "b", "value_s": None}])
    {'a': 2.0}
    """
    values: dict[str, list[float | None]] = {}
    for record in records:
        values.setdefault(record["model"], []).append(record["value_s"])
    whole = {name: [v for v in figures if v is not None] for name, figures in values.items() if None not in figures}
    return {name: math.exp(float(np.mean(np.log(figures)))) for name, figures in whole.items()}


def least_values(records: Iterable[Valued]) -> dict[str, float]:
    """Return instance -> the least value of any record."""
    least: dict[str, float] = {}
    for record in records:
        if record["value_s"] is not None:
            least[record["model"]] = min(record["value_s"], least.get(record["model"], math.inf))
    return least


@dataclass(frozen=True, slots=True)
class BesideControl:
    """A placer's seconds over those of its control, instance by instance; fewer confirm its claim.

    p: of Wilcoxon's signed ranks, two-sided; the verdict asks it and the interval, which few instances far from the
    others can move. Of few instances nothing is said: their bootstrap interval is too narrow.
    """

    placer: str
    control: str
    instances: int
    ratio: Interval
    p: float

    @property
    def verdict(self) -> str:
        """Return what interval and test say of the placer."""
        if self.instances < ENOUGH_INSTANCES:
            return "too few instances to tell"
        if self.p >= ALPHA or self.ratio.low <= 1 <= self.ratio.high:
            return "not told apart"
        return "better" if self.ratio.high < 1 else "worse"


def beside_controls(records: Sequence[LeagueRow]) -> list[BesideControl]:
    """Return every control among the records beside the placer whose claim it controls, on what both have run.

    Those are instances and seeds: a control may have fewer.
    """
    mine: dict[str, dict[tuple[str, int], LeagueRow]] = {}
    for r in records:
        mine.setdefault(r["method"], {})[r["model"], r["seed"]] = r
    pairs = dict.fromkeys((r["control_of"], r["method"]) for r in records if r["control_of"])
    rows = []
    for placer, control in pairs:
        both = mine.get(placer, {}).keys() & mine[control].keys()
        ours, theirs = (by_instance([mine[name][at] for at in sorted(both)]) for name in (placer, control))
        logs = log_ratios(ours, theirs)
        if logs.size:
            interval = geometric_mean([np.exp(logs)])
            rows.append(BesideControl(placer, control, logs.size, interval, signed_rank_p(logs)))
    return rows


def _method_names(records: Sequence[LeagueRow]) -> list[str]:
    return list(dict.fromkeys(r["method"] for r in records))


def is_disturbed(record: CellRecord, limit_s: float | None) -> bool:
    """Return whether the clock ended a search that had less than 70 % of a processor: others had the rest.

    >>> is_disturbed({"seconds": 6.1, "cpu_s": 2.0}, 6.0), is_disturbed({"seconds": 6.1, "cpu_s": 2.0}, None)
    (True, False)
    """
    if limit_s is None or record["seconds"] < BOUND_BY_CLOCK * limit_s:
        return False
    return bool(record["cpu_s"] < OWN_SHARE * record["seconds"])


def rank_placers(records: Sequence[LeagueRow], baselines: Baselines) -> list[Standing]:
    """Return a row per placer, the least ratio first, those without one last."""
    rows = [_standing_of([r for r in records if r["method"] == name], baselines) for name in _method_names(records)]
    return sorted(rows, key=lambda row: (-row.instances, math.inf if row.ratio is None else row.ratio.median))


def _standing_of(mine: Sequence[LeagueRow], baselines: Baselines) -> Standing:
    values = by_instance(mine)
    ratios = _ratios_over(values, baselines.reference)
    family = {r["model"]: r["family"] for r in mine}
    shown = np.array(list(ratios.values()))
    alive = [r for r in mine if r["value_s"] is not None]
    rule, bound, known = (
        _ratios_over(values, baseline) for baseline in (baselines.rule, baselines.bound, baselines.known)
    )
    single = [
        r["value_s"] <= r["single_s"] * (1 + SAME)
        for r in mine
        if r["value_s"] is not None and r["single_s"] is not None
    ]
    heft = [
        r["value_s"] <= baselines.heft[r["model"]] * (1 + SAME)
        for r in mine
        if r["value_s"] is not None and r["model"] in baselines.heft
    ]
    first = mine[0]
    return Standing(
        placer=first["method"],
        kind=first["kind"],
        learned=first["learned"],
        control_of=first["control_of"],
        cells=len(mine),
        instances=len(ratios),
        ratio=geometric_mean([shown]) if shown.size else None,
        families=_mean_by_family(ratios, family),
        rule_ratio=_mean_ratio(list(rule.values())) if rule else None,
        rule_families=_mean_by_family(rule, family),
        bound_ratio=_mean_ratio(list(bound.values())) if bound else None,
        known_ratio=_mean_ratio(list(known.values())) if known else None,
        wins=_share_true([r < 1 - MARGIN for r in ratios.values()]),
        losses=_share_true([r > 1 + MARGIN for r in ratios.values()]),
        best=_share_true([values[i] <= baselines.best[i] * (1 + MARGIN) for i in values]),
        not_worse_single=_share_true(single),
        not_worse_heft=_share_true(heft),
        infeasible=sum(r["infeasible"] and r["model"] in baselines.best for r in mine),
        failed=tuple(dict.fromkeys(r["failed"] for r in mine if r["failed"] is not None and not r["infeasible"])),
        disturbed=sum(is_disturbed(r, r["limit_s"]) for r in mine),
        seconds=_median_or_none([r["seconds"] for r in alive]),
        cpu_s=_median_or_none([r["cpu_s"] for r in alive]),
        evaluations=_median_or_none([r["evaluations"] for r in alive]),
        planned=_median_or_none([r["planned"] for r in alive if "planned" in r]),
    )


def _ratios_over(values: Values, reference: Values) -> dict[str, float]:
    """Return value over reference where both are known."""
    return {i: value / reference[i] for i, value in values.items() if reference.get(i, 0.0) > 0}


def _mean_by_family(ratios: Values, family: Mapping[str, str]) -> dict[str, float]:
    """Return family -> geometric mean of its instances' ratios; family: of every instance."""
    groups: dict[str, list[float]] = {}
    for instance, ratio in ratios.items():
        groups.setdefault(family[instance], []).append(ratio)
    return {name: _mean_ratio(figures) for name, figures in groups.items()}


def _mean_ratio(ratios: Sequence[float]) -> float:
    return math.exp(float(np.mean(np.log(ratios))))


def _share_true(truths: Sequence[bool]) -> float | None:
    return sum(truths) / len(truths) if truths else None


def _median_or_none(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None


def value_after(curve: Sequence[Sequence[float]], limit: float, *, seconds: bool) -> float | None:
    """Return the best value of a curve within so many evaluations, or seconds; None where there was none yet.

    >>> value_after([[1, 0.1, 5.0], [9, 0.4, 2.0]], 8, seconds=False)
    5.0
    """
    known = [value_s for done, spent, value_s in curve if (spent if seconds else done) <= limit]
    return known[-1] if known else None


def ratios_after(
    records: Sequence[LeagueRow], reference: Values, limits: Sequence[float], *, seconds: bool
) -> dict[str, list[float | None]]:
    """Return placer -> ratio after each limit, geometric mean over instances; None where a cell has no value by then.

    A search that ended keeps its value.
    """
    curves: dict[str, list[float | None]] = {name: [] for name in _method_names(records)}
    for name in curves:
        mine = [r for r in records if r["method"] == name and r["model"] in reference]
        for limit in limits:
            then: list[Valued] = [
                {"model": r["model"], "value_s": value_after(r.get("curve", ()), limit, seconds=seconds)} for r in mine
            ]
            ratios = list(_ratios_over(by_instance(then), reference).values())
            complete = len(ratios) == len({r["model"] for r in mine}) > 0
            curves[name].append(_mean_ratio(ratios) if complete else None)
    return curves


def seconds_to(curve: Sequence[Sequence[float]], value_s: float) -> float | None:
    """Return after how many seconds a curve first lies at or below a value; None if it never does."""
    return next((float(spent) for _, spent, found_s in curve if found_s <= value_s * (1 + SAME)), None)


def break_even(lesson_s: float, saved_s: Sequence[float]) -> float | None:
    """Return after how many graphs seconds of learning are repaid, when each saves so many; None if it saves nothing.

    >>> break_even(100.0, [3.0, 1.0])
    50.0
    """
    mean = float(np.mean(saved_s)) if saved_s else 0.0
    return lesson_s / mean if mean > 0 else None
