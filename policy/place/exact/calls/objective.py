"""The objective of single inferences in which accelerators are called: the end of the last operation."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from pipeline.core.problem import Problem
from pipeline.core.simulation import LatencyModel
from policy.place.base.groups import Groups
from policy.place.base.search import Search
from policy.place.exact.calls.cpsat_calls import CallTimes, calls_program
from policy.place.exact.calls.flow_bound import flow_bound
from policy.place.exact.calls.latency_bound import path_bound
from policy.place.exact.calls.latency_dp import LatencyDp
from policy.place.exact.shared.bounds import Bound
from policy.place.exact.shared.cpsat_models import ConstraintProgram
from policy.place.exact.shared.elements import leaves_folded
from policy.place.exact.shared.objectives import DIVISION, Hint, Member, Unknown, sent_counts
from policy.place.exact.shared.paths import BoundInputs, Paths

BEGINNING = 0.2  # share of the time left that goes to calls one after another, as a start


class LongestWait(Unknown[LatencyModel]):
    """The end of the last operation, where accelerators are called; the rules are a `LatencyModel`."""

    exact: ClassVar[bool] = True

    @property
    def members(self) -> tuple[Member, ...]:
        """Return calls in series."""
        return (Member("latency_dp", LatencyDp(), 0.4),)

    def begin(self, search: Search, *, seed: int) -> None:
        """Ask about calls in series."""
        if not search.done:
            with search.limited("latency_dp", seconds=BEGINNING * search.left_s):
                LatencyDp().run(search, seed=0)

    def bounds(self, problem: Problem, execution: LatencyModel, *, seconds: float, one_to_one: bool) -> list[Bound]:
        """Return the largest group, the longest path, and a path cut into calls."""
        work = problem.derived(BoundInputs.of)
        paths = problem.derived(_paths_of_calls) if one_to_one else None
        if paths is None:
            return [(float(work.op_s.min(axis=1).max()), "largest operation")]
        longest_s, calls = paths.longest_s(work.op_s), execution.calls
        flow_s = flow_bound(problem, seconds=seconds) if calls == 1 else 0.0
        calls_s = path_bound(problem, calls, seconds=seconds) if flow_s == 0 else 0.0
        return [(longest_s, "critical path"), (calls_s, "calls along a path"), (flow_s, "flow of paths")]

    def groups(self, problem: Problem) -> Groups:
        """Return the problem's groups, idle leaves folded into their neighbours again and again."""
        return problem.derived(leaves_folded)

    def variables(self, problem: Problem, execution: LatencyModel) -> int:
        """Return the variables that say what is where, which nets calls hold partly, and when operations end."""
        groups, p, calls = self.groups(problem), problem.topology.p, execution.calls
        further = (groups.k if calls == 1 else problem.graph.n) * (calls - 1) * p
        return (groups.k * p + further + sent_counts(problem, groups)[0] * p * calls + problem.graph.n) // DIVISION

    def program(
        self, problem: Problem, groups: Groups, execution: LatencyModel, hint: Hint, bound_s: float
    ) -> ConstraintProgram | None:
        """Return the program of calls."""
        times = CallTimes.of(problem, groups, execution.calls, hint.value_s)
        return calls_program(problem, times, hint.device, hint.priority, bound_s)


def _paths_of_calls(problem: Problem) -> Paths | None:
    """Return the paths of a problem; what goes from one CPU to another takes no time, as calls alone pay."""
    topology = problem.topology
    cpu = np.array([device.kind == "cpu" for device in topology.devices])
    free = np.outer(cpu, cpu)
    links = replace(
        topology,
        link_bytes_per_s=np.where(free, np.inf, topology.link_bytes_per_s),
        link_latency_s=np.where(free, 0.0, topology.link_latency_s),
    )
    return Paths.of(problem.on(topology=links), problem.derived(BoundInputs.of))


LONGEST_WAIT = LongestWait()
