"""What stages hand on about variants that were measured, and about searches, as it stands in their JSON files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import TypedDict

from pipeline.core.devices import DeviceDocument
from pipeline.shared.payload import EvaluationDocument


class VariantRow(TypedDict):
    """What a variant is; placement: as it is deployed, None where the runtime decides where operations run.

    rewrite: the form of the model, "" as it was read. runtime: what runs it, one of `measure.runtimes`.
    """

    name: str
    placer: str
    kind: str
    runtime: str
    baseline: bool
    single: bool
    target: str
    devices: list[DeviceDocument]
    properties: dict[str, str]
    batch: int
    rewrite: str
    runner: str
    placement: dict[str, str] | None
    priority: dict[str, float] | None


class IntervalRow(TypedDict):
    """Seconds: the middle of all starts, and its 95 % interval; none where there are too few starts for one.

    fastest, slowest: of the starts; None where there is no more than one.
    """

    median: float
    low: float | None
    high: float | None
    fastest: float | None
    slowest: float | None


class ComparedRow(TypedDict, total=False):
    """What a variant's starts came to, and how it compares; `CandidateRecord` of `pipeline.runs` says more.

    latencies_s, alone_s: of single inferences, in turns with others and alone. What is missing has not been asked: of
    those that failed, and where a simulator was.
    """

    left: str
    same_as: str
    requests: int
    times_as_fast: float | None
    log_ratios: dict[str, float]
    latency_s: IntervalRow
    rate: float
    latencies_s: list[float]
    percentiles: dict[str, float]
    alone_s: list[float]
    alone: dict[str, float]
    alone_between: dict[str, tuple[float, float]]
    cpu_s: float
    peak_bytes: int
    difference: float | None
    accuracy: dict[str, Any]


class MeasuredRow(VariantRow, EvaluationDocument, ComparedRow):
    """A variant that was measured; samples_s: the median of each of its starts, of the last run that had any."""


class RatioRow(TypedDict):
    """How many times as fast as another a variant is, with an interval, and of how many starts."""

    ratio: float
    low: float
    high: float
    starts: int


class SlowStartsRow(TypedDict):
    """How many starts a configuration had, how many were slow as a whole, and how many times as long these took."""

    starts: int
    slow: int
    times: float


class ContestRow(TypedDict):
    """How variants compare; `pipeline.result.records.ContestRecord` has the meanings."""

    objective: str
    percentile: float
    control: str
    default: str
    hint: str
    level: float
    least: float
    claimed: list[str]
    noise: float | None
    disturbed: bool
    missing_s: float
    metric: str
    checks_s: float
    ratios: Mapping[str, RatioRow]
    over_default: Mapping[str, RatioRow]
    over_hint: Mapping[str, RatioRow]
    starts: Mapping[str, SlowStartsRow]


class Compared(TypedDict):
    """measurements.json: all that were compared; contest: None where a simulator was asked."""

    rows: Sequence[MeasuredRow]
    contest: ContestRow | None
