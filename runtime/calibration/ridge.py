"""Least squares that stay near what was known before, with coefficients that are not negative."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.core.arrays import Float64

# Of the prior against the measurements; 1 takes the stated spreads and noises as they are. The strongest comes first.
PENALTIES = (100.0, 10.0, 1.0, 0.1, 0.01)
OUTLYING = 2.0  # a measurement that is off by more than so many usual errors counts less


@dataclass(frozen=True, slots=True, eq=False)
class Prior:
    """What is known of q coefficients before any measurement.

    mean: float64 [q], not negative. scale: float64 [q], their standard deviations, positive. correlation: float64
    [q, q], positive definite.
    """

    mean: Float64
    scale: Float64
    correlation: Float64


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """What measurements say of the coefficients.

    value: float64 [q]. covariance: float64 [q, q], of the values before negative ones are ruled out. penalty: the
    weight of the prior. left_out_s: float64 [m], what each measurement would have been predicted as from the others.
    """

    value: Float64
    covariance: Float64
    penalty: float
    left_out_s: Float64


def fit_ridge(rows: Float64, seconds: Float64, noise: Float64, prior: Prior) -> Fit:
    """Return the coefficients for float64 [m, q] rows that gave float64 [m] seconds, all positive; m is at least 1.

        minimise over x >= 0: sum_i ((rows_i . x - seconds_i) / (noise_i seconds_i))^2
                              + penalty (x - mean)' P^-1 (x - mean),   P = scale scale' o correlation

    noise: float64 [m], relative standard deviations. The penalty is that of PENALTIES with the least mean error, in
    units of the noise, when every measurement in turn is left out; of equals the strongest. A measurement that lies
    far from what the others say was disturbed: all is fitted once more, its noise raised by how far off it is.

    Source: Hoerl and Kennard, Ridge Regression (1970), towards a mean other than 0 and with a full covariance; Huber,
    Robust Estimation of a Location Parameter (1964), for the weights of outliers, in one step.
    """
    first = _fit_once(rows, seconds, noise, prior)
    off = np.abs(first.left_out_s / seconds - 1.0) / noise
    usual = max(1.0, 1.4826 * float(np.median(off)))
    if off.max() <= OUTLYING * usual:
        return first
    return _fit_once(rows, seconds, noise * np.maximum(1.0, off / (OUTLYING * usual)), prior)


def _fit_once(rows: Float64, seconds: Float64, noise: Float64, prior: Prior) -> Fit:
    system = _System.of(rows, seconds, noise, prior)
    tried = [(penalty, system.left_out(penalty)) for penalty in PENALTIES]
    errors = [float((np.abs(said / seconds - 1.0) / noise).mean()) for _, said in tried]
    penalty, left_out_s = tried[int(np.argmin(errors))]
    value = system.solve(np.ones(seconds.size, bool), penalty)
    return Fit(value, system.covariance(value, penalty), penalty, left_out_s)


@dataclass(frozen=True, slots=True, eq=False)
class _System:
    """The equations in units of the prior's scale, each divided by its noise.

    raw: float64 [m, q], the rows as they were. rows: float64 [m, q]; target: float64 [m]; root: float64 [q, q] with
    root' root = correlation^-1.
    """

    raw: Float64
    rows: Float64
    target: Float64
    mean: Float64
    scale: Float64
    root: Float64

    @classmethod
    def of(cls, rows: Float64, seconds: Float64, noise: Float64, prior: Prior) -> _System:
        weight = 1.0 / (noise * seconds)
        root = np.linalg.inv(np.linalg.cholesky(prior.correlation))
        scaled = rows * prior.scale * weight[:, None]
        return cls(rows, scaled, seconds * weight, prior.mean / prior.scale, prior.scale, root)

    def solve(self, used: np.ndarray[tuple[int], np.dtype[np.bool_]], penalty: float) -> Float64:
        """Return float64 [q], the coefficients from the measurements used, bool [m]."""
        root = np.sqrt(penalty) * self.root
        matrix = np.concatenate([self.rows[used], root])
        target = np.concatenate([self.target[used], root @ self.mean])
        free: Float64 = np.linalg.solve(matrix.T @ matrix, matrix.T @ target)
        if free.min(initial=0.0) < 0.0:
            from scipy.optimize import nnls

            free = nnls(matrix, target)[0]
        return free * self.scale

    def left_out(self, penalty: float) -> Float64:
        """Return float64 [m], each measurement predicted from the others."""
        m = self.target.size
        others = ~np.eye(m, dtype=bool)
        return np.array([float(self.raw[i] @ self.solve(others[i], penalty)) for i in range(m)])

    def covariance(self, value: Float64, penalty: float) -> Float64:
        """Return float64 [q, q], of the coefficients; larger where the fit is worse than the stated noise."""
        precision = self.rows.T @ self.rows + penalty * self.root.T @ self.root
        residual = self.rows @ (value / self.scale) - self.target
        excess = max(1.0, float((residual**2).mean()))
        scaled: Float64 = excess * np.linalg.inv(precision) * np.outer(self.scale, self.scale)
        return scaled
