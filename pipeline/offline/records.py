"""What search, simulate and bound answer, as records; docs/search.md says what the keys mean."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

from pipeline.placing.near import NearRecord
from pipeline.placing.robust import RobustRecord
from pipeline.placing.single_moves import RegretRecord


class ScenarioRecord(TypedDict):
    """What was asked, and how large it is."""

    graph: str
    topology: str
    evaluator: str
    level: str | None
    contiguity: str | None
    memory: bool
    ties: bool
    operations: int
    edges: int
    devices: list[str]
    costs: dict[str, str]


class FiguresRecord(TypedDict):
    """What a placement costs, and the best placement that uses one device; None where no device can run all."""

    single_device: str | None
    single_s: float | None
    feasible: bool
    over_bytes: int
    fifo_s: float
    priority_s: float | None
    busy_s: dict[str, float]
    peak_bytes: dict[str, int]
    cut_bytes: int


class PlacedRecord(TypedDict):
    """Operation name -> device name, and -> priority where there is an order."""

    placement: dict[str, str]
    priority: dict[str, float] | None


class PipelineStageRecord(TypedDict):
    """One stage of a pipeline: who takes turns at it, what each has to do per inference, and what runs there."""

    devices: list[str]
    replicas: int
    load_s: float
    operations: list[str]


class CallRecord(TypedDict):
    """One call of an accelerator, the how manieth of this one, and when it starts and ends in one inference."""

    device: str
    number: int
    start_s: float
    end_s: float
    operations: list[str]


class OfficialRecord(TypedDict):
    """What a result of the official tools states, what was counted again, and what is wrong with it."""

    stated_s: float | None
    checked_s: float
    faults: list[str]


class SimulateRecord(ScenarioRecord, FiguresRecord, PlacedRecord):
    """The answer of simulate."""

    schema: Literal["placewright.simulate/1"]
    value_s: float
    stages: list[PipelineStageRecord] | None
    calls: list[CallRecord] | None
    official: OfficialRecord | None


class FoundRecord(TypedDict):
    """How a placement was found, and how far from optimal it can be."""

    mode: Literal["placement", "order"]
    placer: str
    seed: int
    value_s: float
    lower_bound_s: float
    gap: float
    proven: bool
    bound_by: str
    found_by: str
    evaluations: int
    seconds: float
    planned_s: float | None
    own_s: float | None
    notes: list[str]


class MemberRecord(TypedDict):
    """One of several searches for the same thing, with its placer and seed."""

    placer: str
    seed: int
    value_s: float
    lower_bound_s: float
    evaluations: int
    seconds: float


class SearchDocument(ScenarioRecord, FoundRecord, FiguresRecord, PlacedRecord):
    """The answer of search."""

    schema: Literal["placewright.search/1"]
    stages: list[PipelineStageRecord] | None
    calls: list[CallRecord] | None
    replicated: list[PipelineStageRecord] | None
    regret: list[RegretRecord]
    near: NearRecord | None
    robust: RobustRecord | None


class MembersDocument(SearchDocument):
    """The answer of several searches for the same thing: the best of them, under the best bound."""

    members: list[MemberRecord]


class ProvenRecord(TypedDict):
    """What no placement is faster than."""

    lower_bound_s: float
    bound_by: str
    seconds: float


class BoundRecord(ScenarioRecord, ProvenRecord):
    """The answer of bound."""

    schema: Literal["placewright.bound/1"]
