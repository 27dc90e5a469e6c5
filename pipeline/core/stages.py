"""The Protocols behind which every implementation of a stage stands.

An implementation is a frozen dataclass whose fields are its parameters. It is registered by one line in the literal
TABLE of its folder's __init__.py and built by `registry.build`. `version` is raised by hand whenever the
output changes for equal input; it is part of the cache key.

    coarsen    Graph -> Grouping                                       Coarsener
    embed      features -> embedding, and the encoder that made it     Embedder -> Encoder
    group      embedding -> Grouping, and how likely it was            Grouper -> GroupModel
    place      Problem, Evaluator, Budget -> Answer                    Placer, LearningPlacer, CompositePlacer,
                                                                       ControlledPlacer
    measure    Placements -> Measurements                              Measurer -> Evaluator, Simulator
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeGuard, runtime_checkable

from pipeline.core.arrays import Bool, Float64, Int32
from pipeline.core.devices import CostTable, Topology
from pipeline.core.figures import gap_of
from pipeline.core.graph import Graph, Grouping
from pipeline.core.measurement import Evaluation, seconds_of
from pipeline.core.placement import Placement
from pipeline.core.problem import Budget, Problem, ProgressHook
from pipeline.core.simulation import ExecutionModel, LocalSearch, Moves, Simulation, Timeline


class Coarsener(Protocol):
    """Merges operations that must or should stay together."""

    version: ClassVar[int]

    @property
    def acyclic(self) -> bool:
        """Return whether the quotient of every answer is promised to be acyclic."""

    def coarsen(self, graph: Graph, *, seed: int) -> Grouping:
        """Return a group for every operation; equal graph, parameters and seed give an equal answer."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A placement a placer looked at, and what its evaluator said.

    found_by: the method that came up with it. planned_s: the makespan of the schedule that the method made with
    it; nan where it makes none.
    """

    placement: Placement
    result: Evaluation
    found_by: str = ""
    planned_s: float = math.nan


PROVEN = 1e-4  # a time within this share of its lower bound counts as optimal; solvers compute in ticks


def is_proven(value_s: float, lower_bound_s: float) -> bool:
    """Return whether a time is as good as its lower bound."""
    return value_s <= lower_bound_s * (1 + PROVEN)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a placer found.

    candidates: distinct placements, best first; at least one. lower_bound_s: no placement that the problem allows
    is faster in the evaluator's eyes; 0 where the placer proves nothing. bound_by: what proved it. evaluations: what
    the whole search has spent, before an interruption as well; None where the placer does not count. own_s: the least
    seconds of a placement of the placer's own, not of a single device or the start; inf where none fits, nan where
    none was evaluated. notes: sentences for people, as why a single device is the answer. planned: schedules and
    estimates that the placer made by itself, to choose what to evaluate.
    """

    candidates: tuple[Candidate, ...]
    lower_bound_s: float = 0.0
    bound_by: str = ""
    evaluations: int | None = None
    own_s: float = math.nan
    notes: tuple[str, ...] = ()
    planned: int = 0

    @property
    def best(self) -> Candidate:
        """Return the best candidate."""
        return self.candidates[0]

    @property
    def value_s(self) -> float:
        """Return the seconds of the best candidate; inf if it failed."""
        return seconds_of(self.best.result)

    @property
    def gap(self) -> float:
        """Return the share of the best time by which another could be less at most; 1 if no placement has a time."""
        return gap_of(self.value_s, self.lower_bound_s)

    @property
    def proven(self) -> bool:
        """Return whether the best candidate is proven to be optimal."""
        return is_proven(self.value_s, self.lower_bound_s)


class Evaluator(Protocol):
    """Says what placements cost: on the real runtime, in a simulator, or from a file.

    Two evaluators of equal `fingerprint` give comparable figures. `evaluations` counts every placement asked.
    """

    version: ClassVar[int]

    @property
    def fingerprint(self) -> str:
        """Return what the figures depend on: hardware, runtime and settings."""

    @property
    def evaluations(self) -> int:
        """Return how many placements have been evaluated so far."""

    def evaluate(self, placements: Sequence[Placement]) -> list[Evaluation]:
        """Return one answer per placement, in order; a fault of a placement is an answer, not an exception."""


@runtime_checkable
class Simulates(Protocol):
    """What a simulator does beyond an evaluator; see `Simulator`. Methods alone, so that looking for them runs none."""

    def fork(self) -> Simulator:
        """Return a simulator of the same subject for another thread or process: it shares nothing that changes.

        Its count is 0.
        """

    def absorb(self, evaluations: int) -> None:
        """Count what a fork has evaluated; called once, when its thread or process has ended."""

    def simulate(self, device: Int32, priority: Float64 | None = None) -> Simulation:
        """Return what b placements cost: device int32 [b, k], priority float64 [b, k] or None. Counts b evaluations."""

    def local_search(self, start: Placement, moves: Moves, *, allowed: Bool, limit: int) -> LocalSearch:
        """Return where moves lead from `start`; evaluates the start and at most `limit` moves, and counts the moves.

        allowed: bool [k, p], where each node may go.
        """

    def timeline(self, placement: Placement) -> Timeline:
        """Return when each of the subject's n operations and every transfer happens; counts one evaluation at most.

        Raises:
            UsageError: the placement puts an operation where it is not supported.
        """


class Simulator(Evaluator, Simulates, Protocol):
    """An evaluator that computes, without hardware, and so fast that placements can be tried by the hundred thousand.

    A placement without priorities is run first come, first served; with priorities, every free device takes the
    ready operation of the least priority. Placements are of the subject's k nodes.
    """

    @property
    def execution(self) -> ExecutionModel:
        """Return the rules it follows."""


@runtime_checkable
class SimulatesStarts(Protocol):
    """What a simulator may do in addition: tell when work begins along with what it costs."""

    def simulate_starts(self, device: Int32) -> tuple[Simulation, Float64]:
        """Return what b placements cost, device int32 [b, k], and when the first operation of each node starts.

        The latter are float64 [b, k], seconds, of no meaning where a placement has no finite value. Counts b
        evaluations.
        """


class SimulationInterruptedError(Exception):
    """A simulator was interrupted in the middle of a timeline."""


@runtime_checkable
class Interruptible(Protocol):
    """What a simulator may do in addition: end an evaluation that takes long, because another thread says so."""

    def interrupt(self) -> None:
        """End what it does, and let all that follows end at once.

        With failures of kind timeout, moves not tried, and a `SimulationInterruptedError` in place of a timeline.
        """

    def resume(self) -> None:
        """Let it work again."""


def is_interruptible(simulator: Simulator) -> TypeGuard[Interruptible]:
    """Return whether what a simulator does can be interrupted."""
    return isinstance(simulator, Interruptible)


def is_simulator(evaluator: Evaluator) -> TypeGuard[Simulator]:
    """Return whether an evaluator is a simulator; no property of it is computed to find out."""
    return isinstance(evaluator, Simulates)


def simulates_starts(simulator: Simulator) -> TypeGuard[SimulatesStarts]:
    """Return whether a simulator tells when work begins along with what it costs."""
    return isinstance(simulator, SimulatesStarts)


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """What an evaluator is to evaluate: one model on one set of devices.

    model: path of the normalised model as IR, or None where there is a graph alone. graph: its n operations.
    grouping: operations to the k nodes that are placed. costs: per operation, or None where nothing was profiled.
    seed: what the model's inputs are drawn from.
    """

    model: Path | None
    graph: Graph
    grouping: Grouping
    topology: Topology
    costs: CostTable | None
    seed: int


class Measurer(Protocol):
    """Builds the evaluator of one subject."""

    version: ClassVar[int]

    @property
    def real(self) -> bool:
        """Return whether the figures come from this machine's hardware."""

    def bind(self, subject: Subject) -> Evaluator:
        """Return an evaluator of placements of the subject's k nodes, with its count at 0."""


@runtime_checkable
class Predictor(Measurer, Protocol):
    """A measurer whose evaluators are simulators."""

    @property
    def execution(self) -> ExecutionModel:
        """Return the rules they follow."""

    def bind(self, subject: Subject) -> Simulator:
        """Return a simulator of placements of the subject's k nodes, with its count at 0."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The stages before it that a placer brings along, because they are part of the published method.

    coarsen: names and parameters of coarseners, applied in this order to the operations, weights included. blocks: of
    features, see `embed.features`. embed, group: name and parameters.
    """

    coarsen: tuple[tuple[str, Mapping[str, Any]], ...]
    blocks: tuple[str, ...]
    embed: tuple[str, Mapping[str, Any]]
    group: tuple[str, Mapping[str, Any]]


class Placer(Protocol):
    """Searches for placements."""

    version: ClassVar[int]

    def place(
        self, problem: Problem, evaluator: Evaluator, budget: Budget, *, seed: int, progress: ProgressHook
    ) -> Answer:
        """Return distinct placements of the problem's nodes, best first, all of which the evaluator has seen.

        Stays within the budget; uses allowed devices only; keeps within memory; never ends worse than
        `problem.start`; gives placements priorities only if `problem.ordered`; equal seed and evaluation budget give
        an equal answer.

        Raises:
            DeviceError: no placement fits the devices.
        """


@runtime_checkable
class LearningPlacer(Placer, Protocol):
    """A placer that learns a policy; it raises UsageError where the problem has no policy inputs.

    keeps: whether it uses the checkpointer and the learned policy of these inputs.
    """

    keeps: ClassVar[bool]

    @property
    def recipe(self) -> Recipe | None:
        """Return the stages it brings along; None to be given what the stages before it have made."""


@runtime_checkable
class CompositePlacer(Placer, Protocol):
    """A placer that lets others search: what it answers changes with their versions."""

    @property
    def placers(self) -> tuple[str, ...]:
        """Return the registered names of all placers that it may call itself, whatever the problem."""


@runtime_checkable
class ControlledPlacer(Placer, Protocol):
    """A placer that says with which parameters it does all the same but for what it claims to gain by.

    controls: what the control is called, such as "never learns" -> parameters in place of the defaults. A control knows
    nothing that was learned anywhere: no weights that ship change what it does. Comparisons show controls beside the
    placer.
    """

    controls: ClassVar[Mapping[str, Mapping[str, Any]]]


@runtime_checkable
class AblatedPlacer(ControlledPlacer, Protocol):
    """A placer that also says how to leave a part of it out that is no learning, or learns in one place alone.

    ablations: as controls, but that they may know what was learned elsewhere.
    """

    ablations: ClassVar[Mapping[str, Mapping[str, Any]]]
