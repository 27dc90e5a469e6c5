"""What evaluating a placement gives: samples of a measurement, a prediction, or the reason there is neither."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Literal, TypeGuard

import numpy as np

from pipeline.core.arrays import Float64, frozen

FailureKind = Literal["refused", "out_of_memory", "timeout", "crashed", "wrong_output"]
TRANSIENT: tuple[FailureKind, ...] = ("out_of_memory", "timeout", "crashed")
RETRY_AFTER_S = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class Measurement:
    """r latencies of one placement.

    samples_s: float64 [r], seconds of one inference each, in the order they were taken.
    warm_up: how many inferences ran before the first sample. compile_s: seconds of compilation.
    executed_on: the devices that really ran, by name. subgraphs: how many sub-models the runtime made.
    precision: what was really computed in, "f32", or "bf16+f32" for a mixture; "" where nobody knows.
    waited_share: of the time that its threads wanted a processor, the share that they waited for one, which others had.
    realtime: whether it ran under real-time scheduling.
    """

    samples_s: Float64
    warm_up: int = 0
    compile_s: float = 0.0
    executed_on: tuple[str, ...] = ()
    subgraphs: int = 1
    precision: str = ""
    waited_share: float = 0.0
    realtime: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "samples_s", frozen(self.samples_s, np.float64, (None,), "samples_s"))
        if self.samples_s.size == 0 or not np.all(np.isfinite(self.samples_s)) or self.samples_s.min() < 0:
            raise ValueError("samples_s must hold at least one finite, non-negative latency")

    @property
    def value_s(self) -> float:
        """Return the median latency in seconds."""
        return float(np.median(self.samples_s))


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a simulator, or a model fitted to measurements, says that one placement takes.

    value_s: seconds. executed_on: the devices that would run something, by name. subgraphs: how many sub-models there
    would be at least.
    """

    value_s: float
    executed_on: tuple[str, ...] = ()
    subgraphs: int = 1

    def __post_init__(self) -> None:
        if not (np.isfinite(self.value_s) and self.value_s >= 0):
            raise ValueError(f"value_s must be finite and not negative, is {self.value_s}")

    @property
    def samples_s(self) -> Float64:
        """Return float64 [1], the one sample that a simulator has: it says the same every time."""
        return frozen(np.array([self.value_s]), np.float64, (1,), "samples_s")


@dataclass(frozen=True, slots=True)
class MeasurementFailed:
    """Why a placement could not be measured: the kind of failure and the device's own words."""

    kind: FailureKind
    message: str

    @property
    def transient(self) -> bool:
        """Return whether another time may go better: it was killed, or out of time or memory by a neighbour."""
        return self.kind in TRANSIENT


def is_transient(result: object) -> TypeGuard[MeasurementFailed]:
    """Return whether a measurement failed in a way that another time may go better."""
    return isinstance(result, MeasurementFailed) and result.transient


def await_retry() -> None:
    """Wait a moment before what was disturbed is tried once more."""
    time.sleep(RETRY_AFTER_S)


Evaluation = Measurement | Prediction | MeasurementFailed  # what an evaluator says of one placement


def seconds_of(evaluation: Evaluation) -> float:
    """Return the seconds of a placement; inf, more than any other, where it failed."""
    return math.inf if isinstance(evaluation, MeasurementFailed) else evaluation.value_s
