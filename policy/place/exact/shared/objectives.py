"""What solvers make of a simulator's rules: one objective per execution model, and the table of them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from pipeline.core.arrays import Float64, Int32
from pipeline.core.graph import Grouping, sum_per_group
from pipeline.core.problem import Problem
from pipeline.core.simulation import (
    DataflowModel,
    ExecutionModel,
    LatencyModel,
    PipelineModel,
    SequentialModel,
    Timeline,
)
from pipeline.shared.graphs import depths
from policy.place.base.groups import UNLIMITED, Units
from policy.place.exact.calls.cpsat_calls import CallTimes, calls_program
from policy.place.exact.calls.flow_bound import flow_bound
from policy.place.exact.calls.latency_bound import path_bound
from policy.place.exact.dataflow.cpsat_schedule import listsched
from policy.place.exact.dataflow.cpsat_times import Times
from policy.place.exact.pipelined.cpsat_pipeline import pipelined
from policy.place.exact.shared.bounds import Bound, dataflow_bounds, load_bounds, sum_bounds
from policy.place.exact.shared.cpsat_models import ConstraintProgram, alike_devices, in_turns
from policy.place.exact.shared.elements import leaves_folded
from policy.place.exact.shared.paths import BoundInputs, Paths

DIVISION = 4  # times as many variables that a program without start times may have to be as hard as one with


class Hint(NamedTuple):
    """The placement that a program starts from: device int32 [k] of its units, None without one; what it takes.

    timeline: what happens under it, if its operations are the problem's nodes. priority: float64 [n], its order.
    """

    device: Int32 | None
    value_s: float
    timeline: Timeline | None
    priority: Float64 | None = None


class Objective(Protocol):
    """What is known of the times that simulators of one execution model predict."""

    @property
    def exact(self) -> bool:
        """Return whether no placement is faster than its program allows, `constant_s` added."""

    def bounds(self, problem: Problem, execution: ExecutionModel, *, seconds: float, one_to_one: bool) -> list[Bound]:
        """Return what no allowed placement falls below; see `proofs.lower_bound`. The problem has costs."""

    def constant_s(self, problem: Problem) -> float:
        """Return the seconds that every placement costs besides what the program counts."""

    def units(self, problem: Problem) -> Units:
        """Return what the program places."""

    def variables(self, problem: Problem, execution: ExecutionModel | None) -> int:
        """Return about how many variables the program has; a quarter where operations have no start times."""

    def program(
        self, problem: Problem, units: Units, execution: ExecutionModel | None, hint: Hint, bound_s: float
    ) -> ConstraintProgram | None:
        """Return the program of placing units, started from a placement; None where the graph has a cycle."""

    def below(
        self, problem: Problem, units: Units, execution: ExecutionModel | None, hint: Hint, value_s: float
    ) -> ConstraintProgram | None:
        """Return the program of placements that take at most `value_s`, less than the hint, whichever it is.

        None where it is not easier to refute than the whole program is to solve.
        """


class Unknown:
    """Of rules that are not known nothing is proven; the program adds up operations and transfers."""

    exact: ClassVar[bool] = False

    def bounds(self, problem: Problem, execution: ExecutionModel, *, seconds: float, one_to_one: bool) -> list[Bound]:
        """Return no bound."""
        return []

    def constant_s(self, problem: Problem) -> float:
        """Return 0."""
        return 0.0

    def units(self, problem: Problem) -> Units:
        """Return the problem's units, those of no time folded into their neighbours."""
        return problem.derived(folded)

    def variables(self, problem: Problem, execution: ExecutionModel | None) -> int:
        """Return a quarter of the variables that say which unit and which tensor is where."""
        units = self.units(problem)
        return (_divided(problem, units) + _sent(problem, units)[0] * problem.topology.p) // DIVISION

    def program(
        self, problem: Problem, units: Units, execution: ExecutionModel | None, hint: Hint, bound_s: float
    ) -> ConstraintProgram | None:
        """Return the program of devices that run one after another."""
        return in_turns(problem, units, hint.device)

    def below(
        self, problem: Problem, units: Units, execution: ExecutionModel | None, hint: Hint, value_s: float
    ) -> ConstraintProgram | None:
        """Return no program."""
        return None


class Sum(Unknown):
    """Operations, transfers and launches of sub-graphs add up."""

    exact: ClassVar[bool] = True

    def bounds(self, problem: Problem, execution: ExecutionModel, *, seconds: float, one_to_one: bool) -> list[Bound]:
        """Return the least work, and what a cut or its relaxation proves."""
        return sum_bounds(problem, seconds=seconds, one_to_one=one_to_one)

    def constant_s(self, problem: Problem) -> float:
        """Return the cheapest launch: every placement has one sub-graph."""
        return 0.0 if problem.costs is None else float(problem.costs.launch_s.min())


class LargestLoad(Unknown):
    """The largest load of a device, what it sends and receives included."""

    exact: ClassVar[bool] = True

    def bounds(self, problem: Problem, execution: ExecutionModel, *, seconds: float, one_to_one: bool) -> list[Bound]:
        """Return the least largest load, and the largest unit."""
        return load_bounds(problem, seconds=seconds)

    def units(self, problem: Problem) -> Units:
        """Return the problem's units, idle leaves folded into their neighbours again and again."""
        return problem.derived(leaves_folded)

    def program(
        self, problem: Problem, units: Units, execution: ExecutionModel | None, hint: Hint, bound_s: float
    ) -> ConstraintProgram | None:
        """Return the program of loads, of units that nothing faster than the hint parts."""
        rules = {"convex": _is_contiguous(execution), "apart": _is_apart(execution)}
        return pipelined(problem, units, hint.device, hint.value_s, bound_s, **rules)

    def below(
        self, problem: Problem, units: Units, execution: ExecutionModel | None, hint: Hint, value_s: float
    ) -> ConstraintProgram | None:
        """Return the program of loads below one: more is known to be together then, and there is nothing to balance."""
        if hint.device is None or _is_apart(execution):
            return None
        program = pipelined(problem, units, hint.device, value_s, 0.0, convex=_is_contiguous(execution))
        program.model.clear_hints()
        program.model.clear_objective()
        return program


class Makespan(Unknown):
    """The end of the last operation, where devices and links work at the same time; the rules are a `DataflowModel`."""

    exact: ClassVar[bool] = True

    def bounds(self, problem: Problem, execution: ExecutionModel, *, seconds: float, one_to_one: bool) -> list[Bound]:
        """Return loads, paths, and what must happen between heads and tails."""
        return dataflow_bounds(problem, _dataflow(execution), seconds=seconds, one_to_one=one_to_one)

    def variables(self, problem: Problem, execution: ExecutionModel | None) -> int:
        """Return the variables that say what is where, and when operations and transfers begin."""
        units, p = self.units(problem), problem.topology.p
        tensors, apart = _sent(problem, units)
        of_tensor = (0, p + 2, p * (p + 1))[_dataflow(execution).contention]
        return _divided(problem, units) + problem.graph.n + apart + tensors * of_tensor

    def program(
        self, problem: Problem, units: Units, execution: ExecutionModel | None, hint: Hint, bound_s: float
    ) -> ConstraintProgram | None:
        """Return the program of a schedule."""
        depth = depths(problem.graph)
        if np.any(depth[problem.graph.edges[0]] >= depth[problem.graph.edges[1]]):
            return None
        times = Times.of(problem, units, _dataflow(execution), hint.value_s)
        schedule = None
        device, timeline = hint.device, hint.timeline
        if timeline is not None and device is not None and problem.fits(units.placement(device)):
            schedule = (device, timeline.start_s, timeline.end_s)
        return listsched(problem, units, times, schedule, bound_s)


class LongestWait(Unknown):
    """The end of the last operation, where accelerators are called; the rules are a `LatencyModel`."""

    exact: ClassVar[bool] = True

    def bounds(self, problem: Problem, execution: ExecutionModel, *, seconds: float, one_to_one: bool) -> list[Bound]:
        """Return the largest unit, the longest path, and a path cut into calls."""
        work = problem.derived(BoundInputs.of)
        paths = problem.derived(Paths.of, work) if one_to_one else None
        if paths is None:
            return [(float(work.op_s.min(axis=1).max()), "largest operation")]
        longest_s, calls = paths.longest_s(work.op_s), _calls(execution)
        flow_s = flow_bound(problem, seconds=seconds) if calls == 1 else 0.0
        calls_s = path_bound(problem, calls, seconds=seconds) if flow_s == 0 else 0.0
        return [(longest_s, "critical path"), (calls_s, "calls along a path"), (flow_s, "flow of paths")]

    def units(self, problem: Problem) -> Units:
        """Return the problem's units, idle leaves folded into their neighbours again and again."""
        return problem.derived(leaves_folded)

    def variables(self, problem: Problem, execution: ExecutionModel | None) -> int:
        """Return the variables that say what is where, which nets calls hold partly, and when operations end."""
        units, p, calls = self.units(problem), problem.topology.p, _calls(execution)
        further = (units.k if calls == 1 else problem.graph.n) * (calls - 1) * p
        return (units.k * p + further + _sent(problem, units)[0] * p * calls + problem.graph.n) // DIVISION

    def program(
        self, problem: Problem, units: Units, execution: ExecutionModel | None, hint: Hint, bound_s: float
    ) -> ConstraintProgram | None:
        """Return the program of calls."""
        times = CallTimes.of(problem, units, _calls(execution), hint.value_s)
        return calls_program(problem, times, hint.device, hint.priority, bound_s)


OBJECTIVES: Mapping[type[ExecutionModel], Objective] = {
    ExecutionModel: Unknown(),
    SequentialModel: Sum(),
    PipelineModel: LargestLoad(),
    DataflowModel: Makespan(),
    LatencyModel: LongestWait(),
}


def objective_of(execution: ExecutionModel | None) -> Objective:
    """Return the objective that a model brings, else that of its type, or of the nearest one it is derived from."""
    if execution is not None and execution.objective:
        module, _, name = execution.objective.partition(":")
        brought: Objective = getattr(importlib.import_module(module), name)
        return brought
    bases = type(execution).__mro__ if execution is not None else (ExecutionModel,)
    return next(OBJECTIVES[base] for base in bases if base in OBJECTIVES)


def folded(problem: Problem) -> Units:
    """Return units in which operations of no time are one with the only unit that they feed, or are fed by.

    What takes no time and reads nothing can as well run first where it is read, and what nobody reads where it is
    made, right after: no placement gets slower, whatever the objective, and what was sent for it is not sent. Memory
    must not object.
    """
    units = problem.derived(Units.of)
    group = units.grouping.group
    costs, (producer, consumer) = problem.costs, problem.graph.edges
    if costs is None:
        return units
    idle = np.where(units.allowed, sum_per_group(costs.op_s, units.grouping), 0.0).max(axis=1) == 0
    idle &= (units.held_bytes == 0) | (units.room_bytes.min() >= UNLIMITED)
    idle &= np.bincount(group, minlength=units.k) == 1
    label = np.arange(units.k)
    apart = group[producer] != group[consumer]
    for here, there in ((producer[apart], consumer[apart]), (consumer[apart], producer[apart])):
        pairs = np.unique(np.stack([group[here], group[there]]), axis=1)
        one_sided = idle & ~np.isin(np.arange(units.k), pairs[1]) & (np.bincount(pairs[0], minlength=units.k) == 1)
        for g, other in pairs.T[one_sided[pairs[0]]].tolist():
            if not np.any(units.allowed[other] & ~units.allowed[g]):
                label[g] = label[other]
    return Units.of_grouping(problem, Grouping.of_labels(label[group]))


def _is_contiguous(execution: ExecutionModel | None) -> bool:
    return isinstance(execution, PipelineModel) and execution.contiguity != "free"


def _is_apart(execution: ExecutionModel | None) -> bool:
    return isinstance(execution, PipelineModel) and execution.passes == "apart"


def _calls(execution: ExecutionModel | None) -> int:
    if not isinstance(execution, LatencyModel):
        raise TypeError(f"{execution} is not a model of accelerators that are called")
    return execution.calls


def _dataflow(execution: ExecutionModel | None) -> DataflowModel:
    if not isinstance(execution, DataflowModel):
        raise TypeError(f"{execution} is not a model of a dataflow machine")
    return execution


def _divided(problem: Problem, units: Units) -> int:
    """Return how many variables say where units are, and which of the devices that are alike is used first."""
    p = problem.topology.p
    times_s = np.zeros((1, p)) if problem.costs is None else problem.costs.op_s
    return units.k * (p + sum(len(known) - 1 for known in alike_devices(problem, units, times_s)))


def _sent(problem: Problem, units: Units) -> tuple[int, int]:
    """Return (how many tensors, or parts of them, units may send, how many edges lead from one unit to another)."""
    reads, unit = problem.graph.reads, units.grouping.group
    producer, consumer = problem.graph.edges[:, reads.edge]
    apart = unit[producer] != unit[consumer]
    sent = np.stack([reads.tensor[apart], reads.size[apart]])
    return int(np.unique(sent, axis=1).shape[1]), int(np.count_nonzero(apart))
