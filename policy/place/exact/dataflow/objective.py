"""The objective of devices and links that work at the same time: the end of the last operation."""

from __future__ import annotations

import time
from typing import ClassVar

import numpy as np

from pipeline.core.problem import Problem
from pipeline.core.simulation import DataflowModel
from pipeline.shared.graphs import edge_depths
from policy.place.base.groups import Groups
from policy.place.exact.dataflow.cpsat_schedule import listsched
from policy.place.exact.dataflow.cpsat_times import Times
from policy.place.exact.shared.bounds import Bound
from policy.place.exact.shared.cpsat_models import ConstraintProgram
from policy.place.exact.shared.objectives import Hint, Unknown, division_size, sent_counts
from policy.place.exact.shared.paths import BoundInputs, Paths

BUSY_PER_SECOND = 200_000  # operations whose heads and tails are made longer in about a second


class Makespan(Unknown[DataflowModel]):
    """The end of the last operation, where devices and links work at the same time; the rules are a `DataflowModel`."""

    exact: ClassVar[bool] = True

    def bounds(self, problem: Problem, execution: DataflowModel, *, seconds: float, one_to_one: bool) -> list[Bound]:
        """Return loads, paths, and what must happen between heads and tails."""
        return dataflow_bounds(problem, execution, seconds=seconds, one_to_one=one_to_one)

    def variables(self, problem: Problem, execution: DataflowModel) -> int:
        """Return the variables that say what is where, and when operations and transfers begin."""
        groups, p = self.groups(problem), problem.topology.p
        tensors, apart = sent_counts(problem, groups)
        of_tensor = (0, p + 2, p * (p + 1))[execution.contention]
        return division_size(problem, groups) + problem.graph.n + apart + tensors * of_tensor

    def program(
        self, problem: Problem, groups: Groups, execution: DataflowModel, hint: Hint, bound_s: float
    ) -> ConstraintProgram | None:
        """Return the program of a schedule."""
        depth = edge_depths(problem.graph)
        if np.any(depth[problem.graph.edges[0]] >= depth[problem.graph.edges[1]]):
            return None
        times = Times.of(problem, groups, execution, hint.value_s)
        schedule = None
        device, timeline = hint.device, hint.timeline
        if timeline is not None and device is not None and problem.fits(groups.placement(device)):
            schedule = (device, timeline.start_s, timeline.end_s)
        return listsched(problem, groups, times, schedule, bound_s)


MAKESPAN = Makespan()


def dataflow_bounds(problem: Problem, execution: DataflowModel, *, seconds: float, one_to_one: bool) -> list[Bound]:
    """Return bounds where devices and links work at the same time; see `proofs.lower_bound`."""
    work = problem.derived(BoundInputs.of)
    load_s, price = work.load(execution.block_s, seconds)
    bounds = [(load_s, "load")]
    paths = problem.derived(Paths.of, work) if one_to_one else None
    if paths is None:
        return bounds
    bounds.append((paths.longest_s(work.op_s), "critical path"))
    p = work.op_s.shape[1]
    prices = [price, *(np.eye(p) if not np.all(work.op_s == work.op_s[:, :1]) and p <= 8 else [])]
    until = time.monotonic() + (seconds if problem.graph.n <= BUSY_PER_SECOND * seconds else 0.0)
    bounds += [
        (paths.interval_s(work.op_s, each, execution.block_s), "work between heads and tails") for each in prices
    ]
    busy = paths.busy(work, price, execution.block_s, lambda: time.monotonic() < until)
    bounds.append((busy.least_s(work.op_s, price, execution.block_s), "work before and after paths"))
    needed = work.devices_needed()
    if needed > 1:
        bounds.append((paths.forced_s(problem, work, needed), "transfers that memory forces"))
    return bounds
