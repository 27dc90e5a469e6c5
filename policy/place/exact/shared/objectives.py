"""What exact methods know of a simulator's rules: an objective per execution model, found by the model's name."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from pipeline.core.arrays import Float64, Int32
from pipeline.core.graph import Grouping, sum_per_group
from pipeline.core.problem import Problem
from pipeline.core.simulation import ExecutionModel, Timeline
from policy.place.base.groups import UNLIMITED, Groups
from policy.place.base.search import Method, Search
from policy.place.exact.shared.bounds import Bound
from policy.place.exact.shared.cpsat_models import ConstraintProgram, alike_devices, in_turns
from policy.place.lists.heft import Heft

# The objective of each built-in execution model, by its `kind`: "module:name". A model of a plug-in names its own.
OBJECTIVES: Mapping[str, str] = {
    "sequential": "policy.place.exact.sequential.objective:SUM",
    "pipelined": "policy.place.exact.pipelined.objective:LARGEST_LOAD",
    "listsched": "policy.place.exact.dataflow.objective:MAKESPAN",
    "latency": "policy.place.exact.calls.objective:LONGEST_WAIT",
}
DIVISION = 4  # times as many variables that a program without start times may have to be as hard as one with

Model = TypeVar("Model", bound=ExecutionModel | None, contravariant=True)


class Member(NamedTuple):
    """An exact method in a portfolio.

    share: of what is left of the budget, that its first turn takes at most. large: whether it is asked on large graphs
    as well. two_devices: whether it proves the best of two devices quickly, so that it comes before anything else
    there, and after rules of thumb where there are more. solver: whether it solves a program, and so is asked where
    `cpsat` is.
    """

    name: str
    method: Method
    share: float
    large: bool = False
    two_devices: bool = False
    solver: bool = False


class Hint(NamedTuple):
    """The placement that a program starts from: device int32 [k] of its groups, None without one; what it takes.

    timeline: what happens under it, if its operations are the problem's nodes. priority: float64 [n], its order.
    """

    device: Int32 | None
    value_s: float
    timeline: Timeline | None
    priority: Float64 | None = None


class Objective(Protocol[Model]):
    """What is known of the times that simulators of one execution model predict."""

    @property
    def exact(self) -> bool:
        """Return whether no placement is faster than its program allows, `constant_s` added."""

    @property
    def members(self) -> tuple[Member, ...]:
        """Return the exact methods that a portfolio gives a share of its budget, in the order of their first turn."""

    def begin(self, search: Search, *, seed: int) -> None:
        """Ask about a start for solvers, beside a device alone."""

    def bounds(self, problem: Problem, execution: Model, *, seconds: float, one_to_one: bool) -> list[Bound]:
        """Return what no allowed placement falls below; see `proofs.lower_bound`. The problem has costs."""

    def constant_s(self, problem: Problem) -> float:
        """Return the seconds that every placement costs besides what the program counts."""

    def groups(self, problem: Problem) -> Groups:
        """Return what the program places."""

    def variables(self, problem: Problem, execution: Model) -> int:
        """Return about how many variables the program has; a quarter where operations have no start times."""

    def program(
        self, problem: Problem, groups: Groups, execution: Model, hint: Hint, bound_s: float
    ) -> ConstraintProgram | None:
        """Return the program of placing groups, started from a placement; None where the graph has a cycle."""

    def below(
        self, problem: Problem, groups: Groups, execution: Model, hint: Hint, value_s: float
    ) -> ConstraintProgram | None:
        """Return the program of placements that take at most `value_s`, less than the hint, whichever it is.

        None where it is not easier to refute than the whole program is to solve.
        """


class Unknown(Generic[Model]):
    """Of rules that are not known nothing is proven; the program adds up operations and transfers."""

    exact: ClassVar[bool] = False

    def bounds(self, problem: Problem, execution: Model, *, seconds: float, one_to_one: bool) -> list[Bound]:
        """Return no bound."""
        return []

    @property
    def members(self) -> tuple[Member, ...]:
        """Return no exact methods."""
        return ()

    def begin(self, search: Search, *, seed: int) -> None:
        """Ask about a list schedule where devices work at the same time."""
        if search.execution is not None and search.execution.concurrent:
            with search.limited("heft"):
                Heft().run(search, seed=seed)

    def constant_s(self, problem: Problem) -> float:
        """Return 0."""
        return 0.0

    def groups(self, problem: Problem) -> Groups:
        """Return the problem's groups, those of no time folded into their neighbours."""
        return problem.derived(folded)

    def variables(self, problem: Problem, execution: Model) -> int:
        """Return a quarter of the variables that say which group and which tensor is where."""
        groups = self.groups(problem)
        return (division_size(problem, groups) + sent_counts(problem, groups)[0] * problem.topology.p) // DIVISION

    def program(
        self, problem: Problem, groups: Groups, execution: Model, hint: Hint, bound_s: float
    ) -> ConstraintProgram | None:
        """Return the program of devices that run one after another."""
        return in_turns(problem, groups, hint.device)

    def below(
        self, problem: Problem, groups: Groups, execution: Model, hint: Hint, value_s: float
    ) -> ConstraintProgram | None:
        """Return no program."""
        return None


UNKNOWN = Unknown[Any]()


def objective_of(execution: ExecutionModel | None) -> Objective[Any]:
    """Return the objective that a model brings, else that of its kind, or of the nearest kind that it inherits."""
    if execution is None:
        return UNKNOWN
    kinds = (vars(base).get("kind", "") for base in type(execution).__mro__)
    named = execution.objective or next((OBJECTIVES[kind] for kind in kinds if kind in OBJECTIVES), "")
    return _loaded(named) if named else UNKNOWN


@cache
def _loaded(named: str) -> Objective[Any]:
    module, _, name = named.partition(":")
    objective: Objective[Any] = getattr(importlib.import_module(module), name)
    return objective


def folded(problem: Problem) -> Groups:
    """Return groups in which operations of no time are one with the only group that they feed, or are fed by.

    What takes no time and reads nothing can as well run first where it is read, and what nobody reads where it is
    made, right after: no placement gets slower, whatever the objective, and what was sent for it is not sent. Memory
    must not object.
    """
    groups = problem.derived(Groups.of)
    group = groups.grouping.group
    costs, (producer, consumer) = problem.costs, problem.graph.edges
    if costs is None:
        return groups
    idle = np.where(groups.allowed, sum_per_group(costs.op_s, groups.grouping), 0.0).max(axis=1) == 0
    idle &= (groups.held_bytes == 0) | (groups.room_bytes.min() >= UNLIMITED)
    idle &= np.bincount(group, minlength=groups.k) == 1
    label = np.arange(groups.k)
    apart = group[producer] != group[consumer]
    for here, there in ((producer[apart], consumer[apart]), (consumer[apart], producer[apart])):
        pairs = np.unique(np.stack([group[here], group[there]]), axis=1)
        one_sided = idle & ~np.isin(np.arange(groups.k), pairs[1]) & (np.bincount(pairs[0], minlength=groups.k) == 1)
        for g, other in pairs.T[one_sided[pairs[0]]].tolist():
            if not np.any(groups.allowed[other] & ~groups.allowed[g]):
                label[g] = label[other]
    return Groups.of_grouping(problem, Grouping.of_labels(label[group]))


def division_size(problem: Problem, groups: Groups) -> int:
    """Return how many variables say where groups are, and which of the devices that are alike is used first."""
    p = problem.topology.p
    times_s = np.zeros((1, p)) if problem.costs is None else problem.costs.op_s
    return groups.k * (p + sum(len(known) - 1 for known in alike_devices(problem, groups, times_s)))


def sent_counts(problem: Problem, groups: Groups) -> tuple[int, int]:
    """Return (how many tensors, or parts of them, groups may send, how many edges lead from one group to another)."""
    reads, group = problem.graph.reads, groups.grouping.group
    producer, consumer = problem.graph.edges[:, reads.edge]
    apart = group[producer] != group[consumer]
    sent = np.stack([reads.tensor[apart], reads.size[apart]])
    return int(np.unique(sent, axis=1).shape[1]), int(np.count_nonzero(apart))
