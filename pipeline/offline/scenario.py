"""What placements are made for without hardware: a graph, a machine, costs and rules, loaded from what a user names."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import TypedDict

from pipeline.core.devices import CostTable, Topology
from pipeline.core.errors import NAMED, DeviceError, UnknownNameError, UsageError
from pipeline.core.figures import bytes_text
from pipeline.core.graph import Graph, Grouping
from pipeline.core.learning import Snapshot
from pipeline.core.placement import Placement
from pipeline.core.problem import Problem
from pipeline.core.stages import Predictor, Simulator, Subject
from pipeline.offline.records import PlacedRecord
from pipeline.placing.near import Near, devices_of
from pipeline.placing.setup import problem_of, with_policy
from pipeline.settings import registry
from pipeline.settings.config import Settings
from pipeline.shared.json_object import read_object

if TYPE_CHECKING:
    from coarsen.reading.graph.graph_file import GraphFile
    from coarsen.reading.model.constant_growth import ReadLimits
    from coarsen.reading.rewriting.rewrites import Rewrites
    from coarsen.reading.sizes.shapes import InputShapes
    from pipeline.core.workload import Workload

MEDIAN_OF_NORMAL = 0.6745  # of the absolute value, over the standard deviation
SETTABLE = ("place", "measure")
READING = tuple(
    f"coarsen.{key}"
    for key in ("growth_bytes", "read_timeout_s", "shapes", "keep_dynamic", "split_directions", "split_groups", "input")
)


class Reading(TypedDict):
    """How a model is read: what it may take, what becomes of its dynamic inputs, and what is rewritten in it."""

    limits: ReadLimits
    shapes: InputShapes
    rewrites: Rewrites


@dataclass(frozen=True, slots=True)
class Scenario:
    """A question without its answer, in the words of the command line.

    graph: a JSON file, a model, or "zoo:NAME" with options as in "zoo:rnnlm2?steps=3". topology: a TOML file or a
    preset; "" for the graph's own. contiguity: of the stages of a pipeline; "" for the evaluator's default. calls: of
    each accelerator at most, of latency. costs: a CSV or JSON file. evaluator: which simulator. level: of listsched;
    "" for its own default.
    memory: whether what does not fit is refused. ties: whether colocation constraints hold. ordered: whether placements
    carry priorities. pins: a JSON file {operation: device}. cost_scale: see `read_msr`. settings: dotted keys,
    "place.NAME.KEY" and "measure.NAME.KEY", and how a model is read. Of a search, near: a JSON file of an earlier
    placement, moves: of whose operations at most so many move, each for a gain of at least move_price_s; robust: the
    residual of the costs, under which the 90th percentile counts.
    """

    graph: str
    topology: str = ""
    costs: str | Path | None = None
    evaluator: str = "listsched"
    level: str = ""
    memory: bool = True
    ties: bool = True
    ordered: bool = False
    pins: str | Path | None = None
    cost_scale: float = 1.0
    contiguity: str = ""
    calls: int = 1
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    near: str | Path | None = None
    moves: int | None = None
    move_price_s: float = 0.0
    robust: float | None = None

    def parameters(self, stage: str, name: str) -> dict[str, Any]:
        """Return what the settings say of one implementation.

        Raises:
            UsageError: a key is unknown, or its value wrong.
        """
        named = [key for key in self.settings if key not in READING]
        wrong = [key for key in named if key.count(".") != 2 or key.split(".")[0] not in SETTABLE]
        if wrong:
            raise UsageError(
                f"A search does not use {', '.join(wrong)}.",
                "Set place.NAME.KEY or measure.NAME.KEY; use options for the rest.",
            )
        return dict(Settings().updated(self.settings, "the settings").params_of(stage, name))

    def reading(self) -> Reading:
        """Return how a model is read.

        Raises:
            UsageError: a value is wrong.
        """
        from coarsen.reading.model.constant_growth import ReadLimits
        from coarsen.reading.rewriting.rewrites import Rewrites
        from coarsen.reading.sizes.shapes import InputShapes

        settings = Settings().updated(self.settings, "the settings").coarsen
        return {
            "limits": ReadLimits.of(settings),
            "shapes": InputShapes.of(settings),
            "rewrites": Rewrites.of(settings),
        }

    def measurer(self) -> Predictor:
        """Return what builds the simulator.

        Raises:
            UsageError: there is no evaluator of that name, it is not a simulator, or the options do not fit it.
        """
        name = self.evaluator
        known = {p.name for p in registry.parameters_of(registry.load_implementation("measure", name))}
        values = self.parameters("measure", name)
        if self.level and "level" not in known:
            raise UsageError(f"The evaluator {name} has no levels of contention.", "Remove --level, or use listsched.")
        if self.level:
            values["level"] = self.level
        if self.contiguity and "contiguity" not in known:
            raise UsageError(f"The evaluator {name} does not place stages.", "Remove --contiguous, or use pipelined.")
        if self.contiguity:
            values["contiguity"] = self.contiguity
        if self.calls != 1 and "calls" not in known:
            raise UsageError(f"The evaluator {name} does not count calls.", "Remove --calls, or use latency.")
        if self.calls != 1:
            values["calls"] = self.calls
        if "memory" in known and not self.memory:
            values["memory"] = False
        predictor = registry.build_implementation("measure", name, values)
        if not isinstance(predictor, Predictor):
            raise UsageError(
                f"The evaluator {name} is not a simulator.", "Use listsched, sequential, pipelined or latency."
            )
        if self.ordered and not predictor.execution.ordered:
            raise UsageError(
                f"The evaluator {name} ignores the order of execution.", "Use listsched or --mode placement."
            )
        return predictor

    def simulator(self, subject: Subject) -> Simulator:
        """Return the simulator of one subject, its count at 0."""
        return self.measurer().bind(subject)


@dataclass(frozen=True, slots=True, eq=False)
class LoadedScenario:
    """A loaded scenario.

    problem: what placers are given; its nodes are the operations of the graph. costs: seconds per operation.
    members: the names of the model's operations and which of the graph's each belongs to; None where they are the same.
    """

    scenario: Scenario
    problem: Problem
    costs: CostTable
    members: tuple[tuple[str, ...], Grouping] | None

    @property
    def graph(self) -> Graph:
        """Return the graph that is placed."""
        return self.problem.graph

    @property
    def topology(self) -> Topology:
        """Return the devices and links."""
        return self.problem.topology

    def simulator(self, grouping: Grouping | None = None) -> Simulator:
        """Return the evaluator of this graph on this machine, its count at 0; of groups of its operations, if given."""
        nodes = Grouping.identity(self.graph.n) if grouping is None else grouping
        return self.scenario.simulator(Subject(None, self.graph, nodes, self.topology, self.costs, self.scenario.seed))

    def with_policy(self, *, learned: Snapshot | None = None) -> LoadedScenario:
        """Return the case with what a placer needs that learns a policy, and perhaps one to begin with."""
        return replace(self, problem=with_policy(self.problem, learned=learned))

    def lifted(self, placement: Placement) -> PlacedRecord:
        """Return the document of a placement, of a model's operations where some were merged."""
        names, whole = self.graph.names, placement
        if self.members is not None:
            names, grouping = self.members
            whole = placement.lift(grouping)
        return whole.to_document(names)


def load(scenario: Scenario) -> LoadedScenario:
    """Return a scenario with its files read and checked.

    Raises:
        UsageError: a name, an option, or a file of devices, costs or pins is wrong.
        ModelError: the graph cannot be read.
        DeviceError: an operation, or operations that must share a device, have no device.
    """
    from runtime.machines.costs import cost_table
    from runtime.machines.topology import machine_of

    scenario.measurer()  # a wrong option is said before anything is read
    source = read_graph(scenario)
    workload = source.workload
    graph = workload.graph if scenario.ties else replace(workload.graph, colocate=np.full(workload.graph.n, -1))
    limits = {"link_bytes_per_s": workload.link_bytes_per_s, "memory_bytes": workload.memory_bytes}
    devices = machine_of(_topology_of(scenario, workload), **limits)  # type: ignore[arg-type]
    if not scenario.memory:
        devices = devices.without_memory_limits()
    topology = devices.topology
    given = None
    if scenario.costs is not None:
        from runtime.machines.cost_file import read_costs

        given = read_costs(Path(scenario.costs), graph.names, topology.devices)
    costs = cost_table(workload, devices, given)
    pins = {} if scenario.pins is None else _read_pins(Path(scenario.pins), graph, source.members)
    ordered = scenario.ordered or scenario.calls > 1  # priorities say in which call an operation is
    problem = problem_of(graph, topology, costs, pins=pins, ordered=ordered, tags=workload.tags)
    _check_ties(problem)
    _check_room(problem)
    scenario = replace(scenario, topology=_topology_of(scenario, workload))
    return LoadedScenario(scenario, problem, costs, source.members)


def _topology_of(scenario: Scenario, workload: Workload) -> str:
    """Return the topology that is asked for, or else the graph's own.

    Raises:
        UsageError: there is neither.
    """
    text = scenario.topology or workload.topology
    if not text:
        raise UsageError(
            f"{scenario.graph} defines no devices; pass --topology.",
            "Give a TOML file or a preset, for example --topology equal:4.",
        )
    return text


def read_graph(scenario: Scenario) -> GraphFile:
    """Return the graph that a scenario names.

    Raises:
        UsageError: the zoo has no such graph, or an option is wrong.
        ModelError: the file cannot be read.
    """
    from coarsen.reading.graph.graph_file import GraphFile, read_graph

    if not scenario.graph.startswith("zoo:"):
        return read_graph(Path(scenario.graph), cost_scale=scenario.cost_scale, **scenario.reading())
    from runtime import zoo
    from runtime.zoo import workloads

    text = scenario.graph.removeprefix("zoo:")
    name, _, options = text.partition("?")
    if name in zoo.names():
        if options:
            raise UsageError(
                f"The model {name} has no options.", "Remove them; only graphs have options (`placewright zoo list`)."
            )
        with tempfile.TemporaryDirectory(prefix="placewright-") as folder:
            zoo.export(name, Path(folder) / "model.xml")
            return read_graph(Path(folder) / "model.xml", **scenario.reading())
    if name not in workloads.names():
        known = [*workloads.names(), *zoo.names()]
        raise UnknownNameError("zoo graph", name, known, "`placewright zoo list`")
    reading = scenario.reading()
    if reading["shapes"].given:
        raise UsageError(f"{scenario.graph} is a graph, not a model: it has no input shapes.", "Remove --shape.")
    reading["rewrites"].refuse(scenario.graph)
    return GraphFile(workloads.build(text, seed=scenario.seed))


def read_placement(path: Path, case: LoadedScenario) -> Placement:
    """Return the placement of a file: {operation: device}, or a document with `placement` and perhaps `priority`.

    Raises:
        UsageError: the file cannot be read, or is of another graph.
    """
    return placement_of(read_object(path, "a placement"), case, str(path))


def calibrated_residual(costs: Path) -> float:
    """Return the standard deviation of the error that the calibration beside a file of costs states.

    Raises:
        UsageError: there is none, or too little was measured for it.
    """
    path = costs.parent / "calibration.json"
    error = read_object(path, "a calibration").get("left_out_error")
    if not isinstance(error, float):
        raise UsageError(f"{path} states no error of what was left out.", "Give a percentage, such as --robust 10%.")
    return error / MEDIAN_OF_NORMAL


def near_of(case: LoadedScenario) -> Near:
    """Return the earlier placement that a scenario is to stay near.

    Raises:
        UsageError: the file cannot be read, or is of another graph.
    """
    scenario = case.scenario
    document = _devices_of(read_object(Path(scenario.near or ""), "a placement"), case, str(scenario.near))
    return Near.of(document, case.problem, limit=scenario.moves, price_s=scenario.move_price_s)


def _devices_of(document: Mapping[str, Any], case: LoadedScenario, what: str) -> dict[str, str]:
    """Return {operation: device} of a document, without a model's operations that are merged with others.

    Raises:
        UsageError: it is none.
    """
    merged = set() if case.members is None else set(case.members[0]) - set(case.graph.names)
    return {name: device for name, device in devices_of(document, what).items() if name not in merged}


def placement_of(document: Mapping[str, Any], case: LoadedScenario, what: str) -> Placement:
    """Return the placement of {operation: device}, or of a document with `placement` and perhaps `priority`.

    what: the document in messages.

    Raises:
        UsageError: it is of another graph.
    """
    priority = document.get("priority") if isinstance(document.get("placement"), Mapping) else None
    devices = _devices_of(document, case, what)
    return Placement.from_document({"placement": devices, "priority": priority}, case.graph.names, case.topology.names)


def _read_pins(path: Path, graph: Graph, members: tuple[tuple[str, ...], Grouping] | None) -> dict[str, str]:
    """Return {operation of the graph: device}; a pin of a merged operation binds the one it belongs to."""
    document = read_object(path, "pins")
    if not all(isinstance(device, str) for device in document.values()):
        raise UsageError(f"{path} does not name one device per operation.", "Write JSON {operation: device}.")
    if members is None:
        return dict(document)
    home = dict(zip(members[0], [graph.names[g] for g in members[1].group.tolist()], strict=True))
    pins: dict[str, tuple[str, str]] = {}
    for name, device in document.items():
        first, other = pins.setdefault(home.get(name, name), (name, device))
        if other != device:
            raise UsageError(
                f"Pins conflict: {first} is pinned to {other}; {name}, merged with it, to {device}.",
                "Pin both to one device.",
            )
    return {operation: device for operation, (_, device) in pins.items()}


def _check_room(problem: Problem) -> None:
    """Check that operations which must share a device fit into one.

    Raises:
        UsageError: they are more than any device that may run them holds.
    """
    held = np.bincount(problem.grouping.group, weights=problem.graph.weight_bytes)
    room = np.array([d.memory_bytes or np.inf for d in problem.topology.devices])
    most = np.where(problem.group_allowed(problem.grouping), room, 0.0).max(axis=1)
    over = np.flatnonzero(held > most)
    if over.size:
        members = np.flatnonzero(problem.grouping.group == over[0])
        names = ", ".join(problem.graph.names[i] for i in members[:NAMED])
        what = "needs" if members.size == 1 else "share a colocation constraint and need"
        raise UsageError(
            f"{names} {what} {bytes_text(held[over[0]], 6)}, and no device that supports them holds more than "
            f"{bytes_text(most[over[0]], 6)}.",
            "Add a device with more memory, or a CPU; or use --no-memory.",
        )


def _check_ties(problem: Problem) -> None:
    """Check that operations which must share a device have one in common.

    Raises:
        DeviceError: they have none.
    """
    without_device = np.flatnonzero(~problem.group_allowed(problem.grouping).any(axis=1))
    if without_device.size:
        members = np.flatnonzero(problem.grouping.group == without_device[0])
        names = ", ".join(problem.graph.names[i] for i in members[:NAMED])
        raise DeviceError(
            f"No device supports all {members.size} operations of a colocation constraint: {names}.",
            "Pin them to one device, or add a device that supports them all.",
        )
