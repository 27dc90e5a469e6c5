"""What result.json and placement.json hold, as records; `placewright schema` prints what they say of keys.

The names of the fields are the keys of the files, in the order in which they are written.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from typing_extensions import TypedDict

from pipeline.core.accuracy import Accuracy
from pipeline.core.devices import DeviceSpec
from pipeline.core.estimates import LatencyEstimate, RatioEstimate
from pipeline.placing.records import ContestRecord, SearchRecord
from pipeline.placing.single_moves import RegretRecord
from pipeline.shared.payload import FailureDocument


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """Why there is no latency."""

    kind: Literal["refused", "out_of_memory", "timeout", "crashed", "wrong_output"]
    message: str


@dataclass(frozen=True, slots=True)
class SizeRecord:
    """How a candidate fares at one of several sizes of the inputs.

    shapes: as --shape takes them. weight: its share. times_as_fast: as the control. latency_s: in units of the control.
    """

    shapes: str
    weight: float
    times_as_fast: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class CandidateRecord:
    """A variant as it was measured: a split, settings, or a baseline; latency_s is None where it failed.

    name, placer: "hsdag 1" is the best placement of `hsdag`; baselines have the placer "baseline", and placements that
    no placer proposed "calibration". about: what it is, in words. single: whether it is one device on its own.
    devices_used, subgraphs: where it ran, in how many sub-models. shares: of a placement, device -> share of the
    profiled seconds. kind: "default", "hint", "device", "own choice" (AUTO, HETERO), "other runtime" (told of, never
    the answer), "settings" or "split". precision: what was computed in, "bf16+f32" for a mixture. samples_s: a value
    per start, the median over its turns. requests: in flight. peak_bytes, compile_s: most memory of its process,
    seconds of compiling. waited_share: of the time that its threads wanted a processor, what they waited for one.
    realtime: whether its turns ran under real-time scheduling. left: why it took no further part in the comparison, in
    words. times_as_fast: as the control; where there are no log_ratios, at first sight alone. log_ratios: number of the
    start -> log of how many times as fast as the control it was. batch: inferences that are computed at once; latencies
    are then of all of them. rewrite: the form of the model, "" as it was read. percentiles: "50" to "99.9", seconds.
    alone: those of running on its own, and alone_between: their 95 % intervals, where there are latencies enough. rate:
    inferences per second. cpu_s: processor seconds of an inference. difference: the largest share by which an output
    differs from the reference's; with a metric, the share of it that is lost. accuracy: all that is known of that.
    limit: which of the user's limits it does not keep. same_as: what it is one with, by what the plug-in reports of
    both. target: the device string of compile_model, or ONNX Runtime's providers. settings: properties by device, and
    by the target where that is not a device. sizes: of inputs, where there are several; what else is told is then of
    all of them, by their weights. runtime: openvino or onnxruntime.
    """

    name: str
    placer: str
    baseline: bool
    single: bool
    devices_used: list[str]
    subgraphs: int | None
    precision: str = ""
    waited_share: float | None = None
    realtime: bool | None = None
    latency_s: LatencyEstimate | None = None
    samples_s: list[float] = field(default_factory=list)
    failed: FailureRecord | None = None
    shares: dict[str, float] = field(default_factory=dict)
    about: str = ""
    kind: str = ""
    left: str = ""
    times_as_fast: float | None = None
    requests: int = 1
    batch: int = 1
    rate: float | None = None
    percentiles: dict[str, float] = field(default_factory=dict)
    alone: dict[str, float] = field(default_factory=dict)
    alone_between: dict[str, tuple[float, float]] = field(default_factory=dict)
    cpu_s: float | None = None
    peak_bytes: int | None = None
    compile_s: float | None = None
    difference: float | None = None
    accuracy: Accuracy | None = None
    log_ratios: dict[str, float] = field(default_factory=dict)
    limit: str = ""
    same_as: str = ""
    target: str = ""
    settings: dict[str, dict[str, str]] = field(default_factory=dict)
    rewrite: str = ""
    sizes: list[SizeRecord] = field(default_factory=list)
    runtime: str = "openvino"

    @property
    def reported_only(self) -> bool:
        """Return whether it is of a runtime that nobody asked for, which is told of and never the answer."""
        return self.kind == "other runtime"


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """A device as it was used."""

    name: str
    plugin: str
    openvino_name: str
    properties: dict[str, str]
    kind: str = "other"
    memory_bytes: int = 0
    fingerprint: str = ""

    @classmethod
    def of(cls, device: DeviceSpec) -> DeviceRecord:
        """Return the record of a device."""
        return cls(**device.to_json())


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """A model as the user gave it."""

    path: str
    sha256: str


@dataclass(frozen=True, slots=True)
class StageRecord:
    """A stage of the run: whether it ran, why, and for how long."""

    stage: str
    name: str
    key: str
    ran: bool
    why: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRecord:
    """result.json: the outcome of a run, its candidates fastest first and failed ones last.

    fingerprint, hardware: digest of the machine, and its facts; figures of different fingerprints are not comparable.
    devices: as they were used. versions: of packages that a figure depends on. model, seed, stages: what ran, and why.
    searches: one per placer. best, verdict: the answer, and in a sentence. notes: what else a reader should know.
    contest: how candidates compare, None where a simulator or a file decided. speedup_over_best_single: of the answer,
    with an interval that holds for all candidates together; 1 for that baseline. regret: what the second-best device of
    operations costs, most first, where the answer splits the model; predicted. files: in the run directory.
    Fields with defaults are keys that the first results of this schema did not have; candidates have such fields, too.
    """

    schema: Literal["placewright.result/1"]
    model: ModelRecord
    devices: list[DeviceRecord]
    fingerprint: str
    hardware: dict[str, Any]
    versions: dict[str, str]
    seed: int
    stages: list[StageRecord]
    searches: list[SearchRecord] = field(default_factory=list)
    candidates: list[CandidateRecord]
    best: str
    verdict: str
    notes: list[str] = field(default_factory=list)
    contest: ContestRecord | None = None
    speedup_over_best_single: RatioEstimate
    regret: list[RegretRecord] = field(default_factory=list)
    files: dict[str, str]


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """The model that a placement belongs to, and the hash of the one it was made from."""

    file: str
    source_sha256: str


@dataclass(frozen=True, slots=True)
class RegisteredRecord:
    """What a device's name is registered as."""

    openvino_name: str
    plugin: str
    properties: dict[str, str]


@dataclass(frozen=True, slots=True)
class PlacementRecord:
    """placement.json: what to hand to its runtime to run the best candidate; operation name -> device name.

    requests: inferences in flight at a time. batch: what the first dimension of the model's inputs is now where several
    inferences are computed at once. objective: what the candidate is the best for. shapes: of the inputs that were
    dynamic in the file, before any batch. runner: of segments, where the target is DATAFLOW. rewrite: the form that the
    placed model has, "" as it was read. runtime: what runs it; onnxruntime takes the source, by the providers that the
    target lists and with the properties of its only device as options.
    """

    schema: Literal["placewright.placement/1"]
    model: SourceRecord
    candidate: str
    target: str
    properties: dict[str, str]
    devices: dict[str, RegisteredRecord]
    placement: dict[str, str]
    priority: dict[str, float] | None = None
    requests: int = 1
    batch: int = 1
    objective: str = "latency"
    shapes: dict[str, str] = field(default_factory=dict)
    runner: str = ""
    rewrite: str = ""
    runtime: str = "openvino"


class CoefficientRecord(TypedDict):
    """One fitted coefficient; see `runtime.calibration.terms.Term`. prior: what the profile said."""

    kind: Literal["operations", "latency", "bytes", "launch"]
    what: str
    device: str
    target: str
    prior: float
    value: float
    deviation: float


Role = Literal["fitted", "held out"]


class PredictedRecord(TypedDict):
    """A placement that was measured, and what each simulator said of it before and after the fit; None: it refuses it.

    devices: how many nodes each device has.
    """

    role: Role
    devices: dict[str, int]
    subgraphs: int | None
    measured_s: float | None
    failed: FailureDocument | None
    before_s: dict[str, float | None]
    predicted_s: dict[str, float | None]


class FitRecord(TypedDict):
    """What a calibration says; relative errors are medians, None without any."""

    measurements: int
    used: int
    holdout: int
    median_relative_error: dict[str, dict[Role, dict[str, float | None]]]
    constant_error: float | None
    left_out_error: float | None
    penalty: float
    slowdown: dict[str, float]
    coefficients: list[CoefficientRecord]
    placements: list[PredictedRecord]


class CalibrationRecord(FitRecord):
    """calibration.json: what was asked (model, devices, runtime, seed), and what came of it.

    measurements, used, holdout: placements measured to fit to, those that did not fail, those held out.
    median_relative_error: "before" (the profile alone) or "after" -> "fitted" or "held out" -> simulator.
    constant_error: the same of always saying the median; left_out_error: of each predicted from the others. penalty:
    how much the profile weighs. slowdown: by device, of operations beside other devices. coefficients: what was fitted.
    placements: each with what was measured, and predicted before and after.
    """

    schema: Literal["placewright.calibration/1"]
    model: str
    devices: list[str]
    runtime: str
    seed: int


def to_json(record: ResultRecord | PlacementRecord | CandidateRecord) -> dict[str, Any]:
    """Return a record as JSON values."""
    return asdict(record)
