"""What the result.json of a scenario holds, as records; docs/several.md says what the keys mean.

The names of the fields are the keys of the file, in the order in which they are written. Every model of the answer has
a folder of its own in the run directory, named like it, that holds what the folder of a single model's run holds to
deploy it: placement.json, placed.xml and placed.bin, checks.zip (`pipeline.result.deployment.Deployment` reads it).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from pipeline.core.accuracy import Accuracy
from pipeline.core.estimates import RatioEstimate
from pipeline.core.scenario import Arrivals, Isolation, LatePolicy, ScenarioObjective
from pipeline.result.records import DeviceRecord, FailureRecord, RegisteredRecord, StageRecord

SCHEMA: Literal["placewright.scenario/1"] = "placewright.scenario/1"

# What a configuration is: a baseline, by how it is made; what is searched; the control's double.
ConfigurationKind = Literal[
    "defaults", "latency hint", "throughput hint", "equal threads", "tuned alone", "searched", "twin"
]


@dataclass(frozen=True, slots=True)
class PhaseRecord:
    """One way in which a model is called; of: the model's name. share: of the model's requests."""

    name: str
    of: str
    share: float


@dataclass(frozen=True, slots=True)
class ModelLoadRecord:
    """A model of the scenario: its file, the requests that were asked, and what was wanted of them.

    folder: of the run directory, where the model lies as it is deployed: one for all phases that share a copy. shapes:
    as --shape takes them. rate: requests per second; 0 in a closed loop, or where another model's results cause them.
    concurrency: requests always in flight; 0 in an open loop, and in a closed one where it is as many as the
    configuration has. deadline_s: None without one. devices: that may run it; none for all.
    """

    name: str
    path: str
    sha256: str
    folder: str
    shapes: list[str]
    rate: float
    concurrency: int
    arrivals: Arrivals
    deadline_s: float | None
    percentile: float
    weight: float
    late: LatePolicy
    after: str
    calls: float
    devices: list[str]
    phase: PhaseRecord | None = None


@dataclass(frozen=True, slots=True)
class ScenarioLimits:
    """What the answer must keep to; 0 for no limit. processor_s: per second of load."""

    memory_bytes: int = 0
    load_s: float = 0.0
    processor_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ConfiguredModel:
    """How a configuration runs one model.

    devices: as they are registered, by name. target: the device string of compile_model. requests: inferences that may
    be in flight; 0 for as many as the runtime advises, where it did not run. precision: really computed in, "" where
    nobody knows. accuracy: how far its outputs are from the source's, None where they were not compared.
    """

    name: str
    target: str
    devices: dict[str, RegisteredRecord]
    properties: dict[str, str]
    requests: int
    about: str
    precision: str = ""
    accuracy: Accuracy | None = None


@dataclass(frozen=True, slots=True)
class ServedFigures:
    """What became of the requests of one model while all of them ran.

    multiple: of the stated rates that was offered; 0 in closed loops. offered, rate: requests per second that were due,
    and that ended. requests, dropped: that count, and of these dropped or never served. latency_s: at the percentile
    asked; None where too few requests were seen to tell, or it was dropped. latencies_s: percentile -> seconds, as far
    as so many requests tell. late: share of the requests beyond the deadline. holds: whether the deadline does; None
    where so few requests cannot tell, or there is none.
    """

    name: str
    multiple: float
    offered: float
    rate: float
    requests: int
    dropped: int
    latency_s: float | None
    latencies_s: dict[str, float]
    late: float
    holds: bool | None


@dataclass(frozen=True, slots=True)
class ConfigurationRecord:
    """One way to run all models, as it was measured.

    models: in the order in which they are compiled, which decides who reserves processors first. value: what the
    objective makes of it: the greatest multiple of all rates at which every deadline holds, the weighted geometric
    mean of the rates, or the weighted sum of the latencies' percentiles in seconds; of starts the geometric mean,
    None where it was not measured, or at no multiple that was tried its deadlines hold; below: the least of these.
    between: over the starts. log_ratios: number of the start -> log of how many times as good as the control it
    was. over_control: the same of all starts, with an interval; None where there are too few. sight: the same of
    the screening, at first sight alone. figures: at the stated load, or in closed loops. load_s: until all models
    were compiled. peak_bytes: of all processes. processor_s: per second of load. left: why it took no further part.
    limit: which limit it does not keep. failed_model: which model failed, "" for all together. shared: models of
    which all phases run in one copy.
    """

    name: str
    kind: ConfigurationKind
    models: list[ConfiguredModel]
    isolation: Isolation
    value: float | None = None
    between: tuple[float, float] | None = None
    log_ratios: dict[str, float] = field(default_factory=dict)
    over_control: RatioEstimate | None = None
    sight: float | None = None
    figures: list[ServedFigures] = field(default_factory=list)
    load_s: float | None = None
    peak_bytes: int | None = None
    processor_s: float | None = None
    left: str = ""
    limit: str = ""
    failed: FailureRecord | None = None
    failed_model: str = ""
    shared: list[str] = field(default_factory=list)
    below: float | None = None


@dataclass(frozen=True, slots=True)
class ScenarioContest:
    """What the comparison as a whole has come to; see `pipeline.placing.records.ContestRecord` for the like fields.

    control: the best of the baselines that are not tuned. over: baseline -> how many times as good the answer is.
    others: share of the processors that other processes took while models were under load, the median of what was
    measured.
    """

    control: str
    level: float
    least: float
    claimed: list[str]
    noise: float | None
    disturbed: bool
    over: dict[str, RatioEstimate] = field(default_factory=dict)
    missing_s: float = 0.0
    others: float = 0.0


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """A request of the timeline: when it was due, and when it ended; None where it was dropped. Seconds."""

    model: str
    due_s: float
    end_s: float | None


@dataclass(frozen=True, slots=True)
class CheckRecord:
    """The answer in processes of its own, begun after all was decided: whether it holds what is said of it.

    multiple: of the stated rates, the greatest that was said to hold; 0 in closed loops. stated, greatest: at the
    stated load and at that multiple; none where it was not run. holds: every deadline, at both; None where it cannot
    be told. timeline: requests that were due in one second of the load, at the greatest multiple or in closed loops.
    """

    multiple: float
    stated: list[ServedFigures]
    greatest: list[ServedFigures]
    holds: bool | None
    timeline: list[ServedRequest] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class AloneRecord:
    """What a model's inferences take while nothing else runs, under one setting.

    about: what the setting is called. rate: inferences per second. seconds: of some of them, at most 500.
    """

    model: str
    about: str
    properties: dict[str, str]
    requests: int
    rate: float
    seconds: list[float]


@dataclass(frozen=True, slots=True)
class PairRecord:
    """Two models at once, and how fast requests of either are over those that run alone in the same setting.

    The other model has one request in flight all the time; pauses between requests are allowed for.
    """

    models: tuple[str, str]
    configuration: str
    over_alone: tuple[float, float]


@dataclass(frozen=True, slots=True)
class PredictedConfiguration:
    """What the simulator said of a configuration before it was measured under load.

    value: as in `ConfigurationRecord`; None where it was not predicted, or is no number. latencies_s: model -> its
    percentile in its first sight, at `multiple` times the stated load, of as few requests as that saw; measured_s: the
    same as it was measured. held_out: whether its measurement was kept from what the simulator was fitted to.
    """

    configuration: str
    value: float | None
    latencies_s: dict[str, float]
    held_out: bool = True
    multiple: float = 1.0
    measured_s: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ScenarioForecast:
    """What was predicted in a search, and how far off that was.

    pairs: that it was fitted to. error: median over the percentiles of held-out configurations, or over the load
    multiples where these are the objective, of |predicted / measured - 1|; rank_correlation: of Spearman between the
    two, averaged over the models; None where nobody can tell. compared: how many. used: whether predictions were near
    enough to order configurations by. remedies:
    what is predicted to make the stated load fit, as sentences.
    """

    pairs: list[PairRecord] = field(default_factory=list)
    predictions: list[PredictedConfiguration] = field(default_factory=list)
    error: float | None = None
    rank_correlation: float | None = None
    compared: int = 0
    used: bool = True
    remedies: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioResult:
    """result.json of a scenario: what the machine holds, and how.

    source: the scenario file. configurations: the best first, failed ones last. best: name of the answer. speedup: of
    the answer over the control. alone, pairs: profiles of models alone and of pairs. predictions: of the simulator,
    where there is one, and predicted_error, its median relative error on what was held out;
    predicted_rank_correlation: of Spearman, of the same. remedies: predicted, where the stated load does not fit.
    files: of the run directory, by role; every model's files are in its `folder`.
    """

    schema: Literal["placewright.scenario/1"]
    source: str
    objective: ScenarioObjective
    isolation: Isolation
    limits: ScenarioLimits
    models: list[ModelLoadRecord]
    devices: list[DeviceRecord]
    fingerprint: str
    hardware: dict[str, Any]
    versions: dict[str, str]
    seed: int
    stages: list[StageRecord]
    configurations: list[ConfigurationRecord]
    best: str
    verdict: str
    speedup: RatioEstimate
    contest: ScenarioContest
    notes: list[str] = field(default_factory=list)
    check: CheckRecord | None = None
    alone: list[AloneRecord] = field(default_factory=list)
    pairs: list[PairRecord] = field(default_factory=list)
    predictions: list[PredictedConfiguration] = field(default_factory=list)
    predicted_error: float | None = None
    predicted_rank_correlation: float | None = None
    remedies: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)

    @property
    def answer(self) -> ConfigurationRecord:
        """Return the record of the answer."""
        return next(c for c in self.configurations if c.name == self.best)

    def configuration(self, name: str) -> ConfigurationRecord:
        """Return the record of one configuration."""
        return next(c for c in self.configurations if c.name == name)
