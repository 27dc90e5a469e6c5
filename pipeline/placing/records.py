"""What stages hand on about variants that were measured, and about searches, as it stands in their JSON files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from pipeline.core.devices import DeviceDocument
from pipeline.core.estimates import RatioEstimate
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


class ComparedRow(TypedDict, total=False):
    """What a variant's starts came to, and how it compares; `CandidateRecord` of `pipeline.result` says more.

    latencies_s, alone_s: of single inferences, in turns with others and alone. What is missing has not been asked: of
    those that failed, and where a simulator was.
    """

    left: str
    same_as: str
    requests: int
    times_as_fast: float | None
    log_ratios: dict[str, float]
    latency_s: dict[str, float | None]
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
    sizes: list[dict[str, Any]]


class MeasuredRow(VariantRow, EvaluationDocument, ComparedRow):
    """A variant that was measured; samples_s: the median of each of its starts, of the last run that had any."""


@dataclass(frozen=True, slots=True)
class SlowStartsRecord:
    """How many starts a configuration had, how many were slow as a whole, and how many times as long these took."""

    starts: int
    slow: int
    times: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ContestRecord:
    """How candidates compare on the devices; see docs/measuring.md.

    objective, percentile: what was compared. level: that all claims hold together with. least: the share a gain must be
    worth. control: the best baseline of one device, to which `ratios` are. default, hint: the plug-in's default and the
    best hint, to which over_default and over_hint are; "" where there is none. claimed: the candidates that are faster
    than the control, the fastest first. noise: share by which the control's twin seems to differ from it at most.
    disturbed: whether it differs for certain. missing_s: seconds more that a comparison would have taken, where there
    was no time for one. metric: name of the user's own measure of quality; "" for none. checks_s: seconds that
    comparing outputs took. starts: of every configuration that had any. condition: "quiet" or "shared", "" for as the
    machine is; load_threads: that were kept busy meanwhile.
    """

    objective: Literal["latency", "throughput"]
    percentile: float
    control: str
    default: str
    hint: str
    level: float
    least: float
    claimed: list[str]
    noise: float | None
    disturbed: bool
    ratios: dict[str, RatioEstimate]
    over_default: dict[str, RatioEstimate]
    over_hint: dict[str, RatioEstimate]
    missing_s: float = 0.0
    metric: str = ""
    checks_s: float = 0.0
    starts: dict[str, SlowStartsRecord] = field(default_factory=dict)
    condition: str = ""
    load_threads: int = 0


class Compared(TypedDict):
    """measurements.json: all that were compared; contest: a `ContestRecord`, None where a simulator was asked."""

    rows: Sequence[MeasuredRow]
    contest: dict[str, Any] | None


class RoundRecord(TypedDict):
    """A round of a hybrid search."""

    evaluations: int
    measurements: int
    failed: int
    error: float | None


class SearchRecord(TypedDict):
    """What a placer's search came to; seconds but measured_s are the evaluator's, the last four of hybrid searches.

    evaluations, measurements: placements the evaluator was asked about, and those measured. found_by: the method that
    found the best. value_s, measured_s: of it. lower_bound_s, bound_by: what no placement falls below, and what proved
    it. gap: (value - bound) / value; proven: whether it is optimal, to 0.01 %. reward: simulated, measured or hybrid.
    notes: what the placer says of its own answer, such as what learning added. predicted_s: once all measurements have
    calibrated the simulator; used: how many did. refused: why one could not be measured. rounds: of all placers
    together; `error` is the median relative error of predictions before a measurement.
    """

    placer: str
    reward: Literal["simulated", "measured", "hybrid"]
    evaluator: str
    evaluations: int
    found_by: str
    value_s: float | None
    lower_bound_s: float
    gap: float | None
    proven: bool
    bound_by: str
    notes: NotRequired[list[str]]  # missing in early results
    measurements: NotRequired[int]  # this and the next: missing in early results only
    measured_s: NotRequired[float | None]
    predicted_s: NotRequired[float | None]
    used: NotRequired[int]
    refused: NotRequired[str | None]
    rounds: NotRequired[list[RoundRecord]]
