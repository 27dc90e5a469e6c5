"""What the cells say together: per case and method, over the seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.suites.hsdag.methods import Optimum
from pipeline.bench.summary import Interval, geometric_mean
from pipeline.core.arrays import Float64
from pipeline.core.figures import gap_of

NEAR = 0.01  # share above the best within which a method counts as having arrived

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """A method on one model and evaluator, over its seeds.

    ratio: best single device over the method's value, geometric mean over seeds, and its interval; None where
    every seed failed. gap: of the median value to the optimum, see `gap_of`; None without a proven optimum.
    evaluations, seconds: medians of a whole run. near_evaluations, near_s: medians of what it took to come within 1 %
    of the best, over the seeds that did; None where none did. arrived: how many did. value_s: median. failed: what the
    failed ones say.
    """

    method: str
    learned: bool
    seeds: int
    ratio: Interval | None
    gap: float | None
    value_s: float | None
    evaluations: float | None
    seconds: float | None
    near_evaluations: float | None
    near_s: float | None
    arrived: int
    failed: tuple[str, ...]


def reached(curve: Sequence[Sequence[float]], limit_s: float) -> tuple[int, float] | None:
    """Return (evaluations, seconds) at which a curve first lies at or below a limit; None if it never does.

    >>> reached([[1, 0.1, 5.0], [9, 0.4, 2.0], [20, 1.0, 1.9]], 2.01)
    (9, 0.4)
    """
    return next(((int(done), float(seconds)) for done, seconds, value_s in curve if value_s <= limit_s), None)


def best_of(records: Sequence[Record], optimum: Optimum | None) -> float | None:
    """Return the value to measure methods against: the proven optimum, else the best of all; None without any."""
    if optimum is not None and optimum.proven:
        return optimum.value_s
    return min((r["value_s"] for r in records if r["value_s"] is not None), default=None)


def rows_of(records: Sequence[Record], optimum: Optimum | None) -> list[Row]:
    """Return a row per method of the records of one model and evaluator, in the order of the records."""
    best_s = best_of(records, optimum)
    proven = optimum is not None and optimum.proven
    names = dict.fromkeys(r["method"] for r in records)
    return [_summary_row([r for r in records if r["method"] == name], best_s, proven=proven) for name in names]


def _summary_row(records: Sequence[Record], best_s: float | None, *, proven: bool) -> Row:
    alive = [r for r in records if r["failed"] is None]
    values = np.array([r["value_s"] for r in alive])
    near = [spent for r in alive if best_s is not None and (spent := reached(r["curve"], best_s * (1 + NEAR)))]
    ratios = np.array([r["ratio"] for r in alive if r["ratio"] is not None])
    return Row(
        method=records[0]["method"],
        learned=records[0]["learned"],
        seeds=len(records),
        ratio=geometric_mean([ratios]) if ratios.size else None,
        gap=gap_of(float(np.median(values)), best_s) if proven and best_s and alive else None,
        value_s=_median_or_none(values),
        evaluations=_median_or_none([r["evaluations"] for r in alive]),
        seconds=_median_or_none([r["seconds"] for r in alive]),
        near_evaluations=_median_or_none([done for done, _ in near]),
        near_s=_median_or_none([seconds for _, seconds in near]),
        arrived=len(near),
        failed=tuple(dict.fromkeys(r["failed"] for r in records if r["failed"] is not None)),
    )


def over_models(records: Sequence[Record], method: str, models: Sequence[str]) -> Interval | None:
    """Return the geometric mean of a method's ratios over models and seeds; None where a model has none."""
    ratios = [
        np.array([r["ratio"] for r in records if (r["method"], r["model"]) == (method, model) and r["ratio"]])
        for model in models
    ]
    return geometric_mean(ratios) if ratios and all(r.size for r in ratios) else None


def median_curve(records: Sequence[Record], last: int) -> list[tuple[int, float]]:
    """Return (evaluations, median over seeds of the best so far in seconds) where it changes, and at `last`.

    It begins where all seeds have a value. A search that ended keeps its value.
    """
    curves = [np.array(r["curve"], np.float64) for r in records if r["failed"] is None and r["curve"]]
    if not curves:
        return []
    first = max(int(c[0, 0]) for c in curves)
    steps = sorted({first, last, *(int(done) for c in curves for done in c[:, 0] if done >= first)})
    values = [float(np.median([c[np.searchsorted(c[:, 0], x, side="right") - 1, 2] for c in curves])) for x in steps]
    kept = [i for i in range(len(steps)) if i in (0, len(steps) - 1) or values[i] != values[i - 1]]
    return [(steps[i], values[i]) for i in kept]


def _median_or_none(values: Sequence[float] | Float64) -> float | None:
    return float(np.median(values)) if len(values) else None
