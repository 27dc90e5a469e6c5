"""An execution model as a plug-in has it: all that placers, bounds and solvers learn of it stands in this one file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from pipeline.core.arrays import Float64
from pipeline.core.devices import Topology
from pipeline.core.placement import Placement
from pipeline.core.problem import Problem
from pipeline.core.simulation import ExecutionModel
from pipeline.core.stages import Simulator, Subject
from policy.place.base.groups import Groups
from policy.place.base.search import Method, Search
from policy.place.exact.shared.bounds import Bound
from policy.place.exact.shared.cpsat_models import ConstraintProgram, in_turns
from policy.place.exact.shared.objectives import Hint, Member, Unknown
from runtime.simulators.sequential.sequential import Sequential


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMemoryModel(ExecutionModel):
    """Devices that work one after another in one memory: nothing is ever sent."""

    kind: ClassVar[str] = "shared_memory"
    additive: ClassVar[bool] = True
    objective: ClassVar[str] = f"{__name__}:LEAST_WORK"


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """Predicts the sum of what operations take, by the simulator of HETERO on links that cost nothing."""

    version: ClassVar[int] = 1
    real: ClassVar[bool] = False

    @property
    def execution(self) -> SharedMemoryModel:
        return SharedMemoryModel()

    def bind(self, subject: Subject) -> Simulator:
        simulator = Sequential().bind(replace(subject, topology=without_links(subject.topology)))
        simulator.execution = self.execution  # type: ignore[assignment]
        return simulator


@dataclass(frozen=True, slots=True)
class EachFastest(Method):
    """Puts every group where it is fastest, which is best where nothing is sent and everything fits."""

    version: ClassVar[int] = 1

    def run(self, search: Search, *, seed: int) -> None:
        problem = search.problem
        search.evaluate(
            [Placement(group_s(problem).argmin(axis=1).astype(np.int32), problem.topology.names).lift(problem.grouping)]
        )


class LeastWork(Unknown[SharedMemoryModel]):
    """Every group takes its least time at least, and one device after another works."""

    exact: ClassVar[bool] = True

    @property
    def members(self) -> Sequence[Member]:
        return (Member("extra_model", EachFastest(), 0.2, large=True),)

    def bounds(
        self, problem: Problem, execution: SharedMemoryModel, *, seconds: float, one_to_one: bool
    ) -> list[Bound]:
        return [(float(group_s(problem).min(axis=1).sum()), "least work")]

    def program(
        self, problem: Problem, groups: Groups, execution: SharedMemoryModel, hint: Hint, bound_s: float
    ) -> ConstraintProgram:
        return in_turns(problem.on(topology=without_links(problem.topology)), groups, hint.device)


def without_links(topology: Topology) -> Topology:
    """Return the devices, every tensor at once on all of them."""
    p = topology.p
    return replace(topology, link_bytes_per_s=np.full((p, p), np.inf), link_latency_s=np.zeros((p, p)))


def group_s(problem: Problem) -> Float64:
    """Return float64 [k, p], what groups take; inf where they may not go."""
    assert problem.costs is not None
    total = np.zeros((problem.grouping.k, problem.topology.p))
    np.add.at(total, problem.grouping.group, problem.costs.op_s)
    return np.where(problem.group_allowed(problem.grouping), total, np.inf)


LEAST_WORK = LeastWork()
