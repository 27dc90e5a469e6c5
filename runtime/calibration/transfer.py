"""What a model takes on a machine that is known by lines alone: from operations that were measured there.

An operation is predicted from those of its type that were measured, or else of its kind, the nearer in FLOPs and bytes
the more they count:

    s(x) = t(x) * sum_i w_i s_i / t(x_i) / sum_i w_i,   w_i = exp(-(d(x, x_i) / WIDTH)^2 / 2)

with t the roofline of the fastest operations of the machine, and d the largest difference of the logarithms of FLOPs,
bytes read and bytes written. The interval comes from predicting each known model from the others.

Source: Nadaraya, On estimating regression (1964), and Watson (1964), of the efficiency rather than of the seconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.special import stdtrit

from pipeline.core.arrays import Float64
from runtime.calibration.machine_lines import MachineLine, Row
from runtime.machines.roofline import operation_class

WIDTH = 0.5  # of the logarithm of FLOPs and bytes
MEASURED, NEAR = 0.05, math.log(4.0)  # differences up to which an operation was measured, and up to which modelled
FASTEST = 0.95  # quantile of rates that stands for what the machine can do
LEVEL = 0.9
WORTH = 0.01
RECURRENT = re.compile("LSTM|GRU|RNN")
FEWEST = 3  # models without which there is no interval


@dataclass(frozen=True, slots=True)
class MachinePrediction:
    """What a model takes on a device, with an interval of LEVEL; None where too few models are known.

    measured, modelled, extrapolated: shares of the seconds by what they rest on: operations of the same sizes, within
    a factor of four, or further off. furthest: the types that were extrapolated and take WORTH of all, and by what
    factor at most; None of a type that was never measured. error: median relative error on the models known, each
    predicted as this one is, from the others. held_out: the same as it was written down when they were added, from
    those before them. models: how many are known.
    """

    seconds: float
    low: float | None
    high: float | None
    measured: float
    modelled: float
    extrapolated: float
    furthest: dict[str, float | None]
    error: float | None
    held_out: float | None
    models: int


@dataclass(frozen=True, slots=True, eq=False)
class MachineModel:
    """The operations of all models that were measured on a device.

    types, kinds: of each of m. features: float64 [m, 3], logarithms of FLOPs, bytes read and bytes written. share:
    float64 [m], seconds over those of the roofline. rate: FLOPs and bytes per second, and the seconds of a launch.
    """

    types: np.ndarray[tuple[int], np.dtype[np.str_]]
    kinds: np.ndarray[tuple[int], np.dtype[np.str_]]
    features: Float64
    share: Float64
    rate: tuple[float, float, float]

    @classmethod
    def of(cls, lines: Sequence[MachineLine]) -> Self:
        """Return the model of one device's lines, of which there is at least one."""
        rows = [(line, row) for line in lines for row in line["rows"]]
        types = np.array([row[0] for _, row in rows], np.str_)
        figures = np.array([row[1:] for _, row in rows], np.float64).reshape(len(rows), 4)
        together = {id(line): sum(row[4] for row in line["rows"]) for line in lines}
        # Operations of a line take together what the whole model did.
        figures[:, 3] *= [line["latency_s"] / (together[id(line)] or math.inf) for line, _ in rows]
        seconds = figures[:, 3]
        busy = seconds > 0
        flops_s, bytes_s = (
            float(np.quantile(moved[busy & (moved > 0)] / seconds[busy & (moved > 0)], FASTEST))
            if (busy & (moved > 0)).any()
            else 1e9
            for moved in (figures[:, 0], figures[:, 1] + figures[:, 2])
        )
        rate = (flops_s, bytes_s, float(np.quantile(seconds[busy], 1 - FASTEST)) if busy.any() else 1e-6)
        share = seconds / _roofline_s(figures, rate)
        return cls(types, np.array([_kind_of(t) for t in types]), np.log1p(figures[:, :3]), share, rate)

    def seconds(self, rows: Sequence[Row]) -> float:
        """Return the seconds of all operations together."""
        return float(self.each(rows)[0].sum())

    def each(self, rows: Sequence[Row]) -> tuple[Float64, Float64]:
        """Return float64 [n], the seconds of each operation, and how far the nearest of its type is; inf for none."""
        figures = np.array([row[1:] for row in rows], np.float64).reshape(len(rows), 4)
        at = np.log1p(figures[:, :3])
        share, far = np.empty(len(rows)), np.full(len(rows), np.inf)
        for name in dict.fromkeys(row[0] for row in rows):
            mine = np.array([row[0] == name for row in rows])
            like = self.types == name
            known = like.any()
            if not known:
                like = self.kinds == _kind_of(name)
            if not like.any():
                like = np.ones(self.types.size, bool)
            apart = np.abs(at[mine][:, None, :] - self.features[like][None, :, :]).max(axis=2)  # [a, b]
            nearest = apart.min(axis=1)
            weight = np.exp(-((np.maximum(apart - nearest[:, None], 0.0) / WIDTH) ** 2) / 2)
            share[mine] = (weight * self.share[like]).sum(axis=1) / weight.sum(axis=1)
            far[mine] = nearest if known else np.inf
        return share * _roofline_s(figures, self.rate), far


def predict_seconds(lines: Sequence[MachineLine], rows: Sequence[Row]) -> MachinePrediction:
    """Return what a model of these operations takes on the device of these lines."""
    model = MachineModel.of(lines)
    each, far = model.each(rows)
    total = float(each.sum())
    errors = left_out_errors(lines)
    seconds, low, high = total, None, None
    corrected = errors
    if len(errors) >= FEWEST:
        corrected = [e - float(np.median(errors[:i] + errors[i + 1 :])) for i, e in enumerate(errors)]
        middle, spread = float(np.median(errors)), float(np.std(errors, ddof=1))  # one model may be far off
        half = float(stdtrit(len(errors) - 1, (1 + LEVEL) / 2)) * spread * math.sqrt(1 + math.pi / 2 / len(errors))
        seconds = total * math.exp(-middle)
        low, high = seconds * math.exp(-half), seconds * math.exp(half)
    furthest: dict[str, float | None] = {}
    for row, apart, spent in zip(rows, far.tolist(), each.tolist(), strict=True):
        if apart > NEAR and spent >= WORTH * total:
            factor = math.exp(apart) if math.isfinite(apart) else None
            known = furthest.get(row[0], 0.0)
            furthest[row[0]] = None if factor is None or known is None else max(known, factor)
    parts = (far <= MEASURED, (far > MEASURED) & (far <= NEAR))
    shares = [float(each[of].sum()) / total if total else 0.0 for of in parts]
    return MachinePrediction(
        seconds=seconds,
        low=low,
        high=high,
        measured=shares[0],
        modelled=shares[1],
        extrapolated=max(0.0, 1 - sum(shares)),
        furthest=furthest,
        error=_median_error(corrected),
        held_out=_median_error([told for line in lines if (told := line.get("held_out")) is not None]),
        models=len(lines),
    )


def left_out_errors(lines: Sequence[MachineLine]) -> list[float]:
    """Return log(predicted / measured) of each model, predicted from the others; none of a single one."""
    if len(lines) < 2:
        return []
    others = [[o for o in lines if o is not line] for line in lines]
    predicted = [MachineModel.of(rest).seconds(line["rows"]) for line, rest in zip(lines, others, strict=True)]
    return [math.log(said / line["latency_s"]) for line, said in zip(lines, predicted, strict=True) if said > 0]


def _median_error(errors: Sequence[float]) -> float | None:
    return float(np.median(np.abs(np.expm1(errors)))) if errors else None


def _kind_of(type_name: str) -> str:
    """Return which types stand for one another: a recurrent layer is far less efficient than the products in it."""
    return "recurrent" if RECURRENT.search(type_name) else operation_class(type_name)


def _roofline_s(figures: Float64, rate: tuple[float, float, float]) -> Float64:
    """Return float64 [n], seconds at these rates: a launch, and arithmetic or bytes, whichever is more."""
    flops_s, bytes_s, launch_s = rate
    seconds: Float64 = launch_s + np.maximum(figures[:, 0] / flops_s, (figures[:, 1] + figures[:, 2]) / bytes_s)
    return seconds
