"""What search, simulate and bound answer, as records; `placewright schema` prints what they say of keys."""

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
    """What a placement costs.

    graph, topology, evaluator, level, memory, ties, contiguity: what was asked; None where there is no such.
    operations, edges, devices: how large it is. costs: per device, whether its times were "given" or "modelled".
    value_s: what it takes; fifo_s run first come, first served, priority_s by its order. single_device, single_s: the
    best device alone. feasible, over_bytes: whether memory suffices, and by how much not. busy_s, peak_bytes: per
    device. cut_bytes: sent between devices. stages, calls: of `pipelined` and `latency`. placement, priority: operation
    -> device, and -> rank, the smaller first. official: of --official, what the file states, and its faults.
    """

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
    """The best placement found, what it costs as in the answer of simulate, and how far from optimal it can be.

    mode, placer, seed: what was asked. lower_bound_s, bound_by: what no placement falls below, and what proves it. gap:
    (value - bound) / value; proven: whether they are equal to 1e-4 of the value. found_by: the method that came up with
    it. evaluations, seconds: placements asked about, and how long it took. own_s: the least of a placement that the
    placer made itself, which single devices are not; planned_s: by the method's own schedule. notes: for people.
    replicated: with --replicate, stages that several accelerators take turns at. regret: what the second-best device of
    each operation costs, all else as it is. near: with --near, what moved, else null; robust: with --robust, the
    percentile and that of the placement best for the costs as they are, else null.
    """

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
    """What no placement of a graph on a machine is faster than.

    graph, topology, evaluator, level, memory, ties, contiguity, operations, edges, devices, costs: as of simulate.
    lower_bound_s, bound_by: the bound, and what proves it. seconds: how long that took.
    """

    schema: Literal["placewright.bound/1"]
