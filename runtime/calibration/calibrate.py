"""Fits the tables of the simulators to a handful of real measurements, and chooses what to measure next."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from pipeline.core.arrays import Bool, Float64
from pipeline.core.devices import CostTable, Topology
from pipeline.core.errors import MeasurementError
from pipeline.core.measurement import Evaluation, MeasurementFailed
from pipeline.core.placement import Placement
from pipeline.core.stages import Subject
from runtime.calibration.critical_path import critical_rows
from runtime.calibration.ridge import Fit, Prior, fit_ridge
from runtime.calibration.terms import Term, Terms
from runtime.simulators.shared.simulated import known_costs

NOISE = 0.02  # relative, between two measurements of one placement, however many samples each has
CLOSENESS = 0.3  # a placement so much slower than the best matters 1 / e as much
ROUNDS = 8  # times that critical paths are looked for with what the last ones gave

Measured = tuple[Placement, Evaluation]
RowsAt = Callable[[Sequence[Placement], Float64], Float64]  # placements and coefficients to float64 [b, q]


@dataclass(frozen=True, slots=True)
class Coefficient:
    """One fitted coefficient: what the profile said, what the measurements say, and its standard deviation."""

    term: Term
    prior: float
    value: float
    deviation: float


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """What the measurements say of one subject.

    costs, topology: with these `sequential`, or `listsched` where devices work at once, predicts what `predict` does.
    coefficients: in the order of the terms.
    measured: how many measurements were used. error, left_out_error: median relative error on these, and on each of
    them predicted from the others.
    """

    costs: CostTable
    topology: Topology
    coefficients: tuple[Coefficient, ...]
    measured: int
    error: float
    left_out_error: float
    _terms: Terms
    _fit: Fit
    _rows: RowsAt

    @property
    def penalty(self) -> float:
        """Return the weight that the profile got against the measurements."""
        return self._fit.penalty

    @property
    def subject(self) -> Subject:
        """Return the subject with the corrected tables."""
        return replace(self._terms.subject, costs=self.costs, topology=self.topology)

    def predict(self, placements: Sequence[Placement]) -> Float64:
        """Return float64 [b], seconds; inf where a device does not support an operation."""
        rows = self._rows(placements, self._fit.value)
        refused = ~_finite_rows(rows)
        predicted: Float64 = np.where(refused, np.inf, np.where(refused[:, None], 0.0, rows) @ self._fit.value)
        return predicted

    def next_placements(self, pool: Sequence[Placement], count: int, *, known: Set[bytes]) -> list[Placement]:
        """Return up to `count` placements of the pool, of which to know the time would tell most; none is in `known`.

        Each is the one whose measurement lowers the variance of the predictions over the whole pool most, placements
        close to the best prediction counting most; the next one is chosen as if it had been measured already:

            gain(x) = sum_j w_j cov(x, j)^2 / (var(x) + noise^2),   w_j = exp(-(T_j / T_best - 1) / CLOSENESS)

        in relative seconds. known: the keys of placements measured already.

        Source: Cohn, Ghahramani and Jordan, Active Learning with Statistical Models (1996), section 2, for a linear
        model. Different: the integral over inputs is a weighted sum over the pool.
        """
        rows = self._rows(pool, self._fit.value)
        possible = _finite_rows(rows)
        open_ = possible & np.array([placement.key() not in known for placement in pool], bool)
        chosen: list[Placement] = []
        if not open_.any():
            return chosen
        predicted = np.where(possible[:, None], rows, 0.0) @ self._fit.value
        positive = np.where(possible & (predicted > 0), predicted, np.inf)
        relative = np.where(possible[:, None], rows, 0.0) / positive[:, None]
        weight = np.exp(-np.minimum(positive / positive.min() - 1.0, 700.0 * CLOSENESS) / CLOSENESS)
        covariance = relative @ self._fit.covariance @ relative.T  # [b, b]
        while len(chosen) < count and open_.any():
            gain = weight @ covariance**2 / (np.diag(covariance) + NOISE**2)
            best = int(np.argmax(np.where(open_, gain, -np.inf)))
            chosen.append(pool[best])
            open_ &= np.array([placement.key() != pool[best].key() for placement in pool], bool)
            column = covariance[:, best]
            covariance = covariance - np.outer(column, column) / (column[best] + NOISE**2)
        return chosen


def calibrate(
    subject: Subject, measured: Sequence[Measured], *, launches: bool = True, slowdown: Float64 | None = None
) -> Calibration:
    """Return the tables that fit measurements of placements of a subject's k nodes; failed ones do not count.

    launches: whether sub-graphs get a cost of their own. Without it their cost becomes part of the latencies, which
    `listsched` and the files of a search know, while they know no launches. slowdown: float64 [p], where devices worked
    at once, what operations take beside the others over what they take alone, as the table has it. A measurement is
    then the length of a critical path, as `listsched` has it, of operations in company; there are no launches.

    Raises:
        UsageError: the subject has no cost table.
        MeasurementError: not one placement was measured.
    """
    terms, rows_at = (
        _additive_terms(subject, launches=launches) if slowdown is None else _concurrent_terms(subject, slowdown)
    )
    placements = [placement for placement, result in measured if not isinstance(result, MeasurementFailed)]
    results = [result for _, result in measured if not isinstance(result, MeasurementFailed)]
    rows = rows_at(placements, terms.prior.mean)
    seconds = np.array([result.value_s for result in results])
    usable = _finite_rows(rows) & (seconds > 0)
    if not usable.any():
        raise _unusable_error([r for _, r in measured if isinstance(r, MeasurementFailed)])
    seconds, used = seconds[usable], [p for p, fits in zip(placements, usable.tolist(), strict=True) if fits]
    noise = np.array([relative_noise(r.samples_s) for r in results])[usable]
    fitted, predicted_s = _fit_repeatedly(partial(rows_at, used), seconds, noise, terms.prior)
    costs, topology = terms.corrected(fitted.value)
    deviation = np.sqrt(np.diag(fitted.covariance))
    coefficients = tuple(
        Coefficient(*figures)
        for figures in zip(
            terms.terms, terms.prior.mean.tolist(), fitted.value.tolist(), deviation.tolist(), strict=True
        )
    )
    return Calibration(
        costs,
        topology,
        coefficients,
        seconds.size,
        median_error(predicted_s, seconds),
        median_error(fitted.left_out_s, seconds),
        terms,
        fitted,
        rows_at,
    )


def _additive_terms(subject: Subject, *, launches: bool) -> tuple[Terms, RowsAt]:
    terms = Terms.of(subject, launches=launches)
    return terms, lambda placements, _: terms.rows(placements)


def _concurrent_terms(subject: Subject, slowdown: Float64) -> tuple[Terms, RowsAt]:
    crowded = replace(subject, costs=known_costs(subject, "listsched").slower(slowdown))
    terms = Terms.of(crowded, launches=False)
    return terms, partial(critical_rows, terms, slowdown)


def _fit_repeatedly(
    rows_at: Callable[[Float64], Float64], seconds: Float64, noise: Float64, prior: Prior
) -> tuple[Fit, Float64]:
    """Return the best of some fits, each to the rows of the one before, and float64 [m], the seconds that it predicts.

    The first begins at the prior; rows that stay the same end it, so those that depend on nothing are fitted once.

    Source: Gauss-Newton iterations, as Nocedal and Wright, Numerical Optimization (2006), section 10.3; instead of a
    line search the best iterate is kept.
    """
    rows = rows_at(prior.mean)
    kept: list[tuple[float, Fit, Float64]] = []
    for _ in range(ROUNDS):
        estimate = fit_ridge(rows, seconds, noise, prior)
        before, rows = rows, rows_at(estimate.value)
        predicted_s = rows @ estimate.value
        kept.append((float((np.abs(predicted_s / seconds - 1.0) / noise).mean()), estimate, predicted_s))
        if np.array_equal(before, rows):
            break
    _, best, said_s = min(kept, key=lambda entry: entry[0])
    return best, said_s


def check_splits_run(measured: Sequence[Measured]) -> None:
    """Check that not all placements on several devices failed, if there are any.

    Raises:
        MeasurementError: they did; what is left says nothing of links.
    """
    split = [result for placement, result in measured if len(placement.devices_used) > 1]
    failed = [result for result in split if isinstance(result, MeasurementFailed)]
    if split and len(failed) == len(split):
        raise _unusable_error(failed)


def _finite_rows(rows: Float64) -> Bool:
    """Return bool [b], which of float64 [b, q] rows hold finite numbers only."""
    finite: Bool = np.isfinite(rows.sum(axis=1))
    return finite


def _unusable_error(failed: Sequence[MeasurementFailed]) -> MeasurementError:
    said = f"{failed[0].kind}: {failed[0].message}" if failed else "there is none that the tables allow"
    wrong = bool(failed) and failed[0].kind == "wrong_output"
    remedy = "Pin f32, or raise measure.hetero.low_tolerance." if wrong else "Run `placewright doctor`."
    return MeasurementError(f"No measurement can be used ({said}).", remedy)


def relative_noise(samples_s: Float64) -> float:
    """Return the relative standard deviation of the median of float64 [r] samples, NOISE of it beyond the samples.

    Source: the median of normal samples has 1.2533 times the standard error of their mean; 1.4826 times the median
    absolute deviation estimates their standard deviation.
    """
    median = float(np.median(samples_s))
    if median <= 0:
        return NOISE
    spread = 1.4826 * float(np.median(np.abs(samples_s - median)))
    return float(np.hypot(NOISE, 1.2533 * spread / np.sqrt(samples_s.size) / median))


def median_error(predicted_s: Float64, measured_s: Float64) -> float:
    """Return the median of |predicted / measured - 1|; nan without measurements.

    >>> median_error(np.array([1.0, 3.0, 2.0]), np.array([1.0, 2.0, 4.0]))
    0.5
    """
    return float(np.median(np.abs(predicted_s / measured_s - 1.0))) if measured_s.size else float("nan")
