"""Calls of accelerators one after another: dynamic programming over the ideals of a graph, for a single inference."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from pipeline.core.arrays import Int32, Int64
from pipeline.core.errors import UsageError
from pipeline.core.graph import row_ptr
from pipeline.core.params import param
from pipeline.core.placement import Placement
from pipeline.core.problem import Problem
from pipeline.core.simulation import LatencyModel
from policy.place.exact.dp import MB
from policy.place.exact.elements import Elements
from policy.place.exact.proofs import prove_bound
from policy.place.exact.series_kernels import Series, series_of_ideals
from policy.place.exact.stages import (
    NO_LIMIT_S,
    Ideals,
    Replication,
    StageProgram,
    all_ideals,
    difference,
    stage_program,
)
from policy.place.search import Method, Search

BOUND_S = 30.0  # seconds for the bound at most; never more than a tenth of what is left

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LatencyDp(Method):
    """Finds the calls of accelerators, and the work of CPUs between them, that take least if nothing runs side by side.

    A stage is the difference of two ideals: sets of operations that hold, with each, all that come before it. On an
    accelerator it takes as long as its operations and transfers, on CPUs as its longest path; the sum over all stages
    is least. Each accelerator is called once. What the placement takes where stages do overlap, its evaluator says.
    Needs the memory for all ideals; where that is more than `memory_mb`, nothing is proposed, and the log says so.

    Source: Tarnawski et al., Efficient Algorithms for Device Placement of DNN Graph Operators, NeurIPS 2020, for the
    ideals; the sum in place of the maximum is ours.
    """

    version: ClassVar[int] = 1

    memory_mb: int = param(4000, "memory for the ideals at most, in MB")

    def __post_init__(self) -> None:
        if self.memory_mb < 1:
            raise UsageError(f"{self} leaves nothing to work with.", "Use memory_mb of at least 1.")

    def run(self, search: Search, *, seed: int) -> None:
        """Note the bound, and ask about the stages of the least sum."""
        prove_bound(search, seconds=BOUND_S)
        program = None if search.left <= 0 else search.problem.derived(SeriesProgram.of)
        if program is None:
            return
        found = all_ideals(program.stages, self.memory_mb * MB)
        if found is None:
            logger.info("%d elements have too many ideals for %d MB", program.stages.elements.k, self.memory_mb)
            return
        search.details["ideals"] = float(found.size)
        device = program.least_sum(found, lambda: search.left_s > 0)
        if device is not None:
            search.evaluate([program.placement(device)])

    @staticmethod
    def begin(search: Search) -> None:
        """Ask about calls in series where one inference is placed: a start for solvers, beside a device alone."""
        if isinstance(search.execution, LatencyModel) and not search.done:
            with search.limited("latency_dp"):
                LatencyDp().run(search, seed=0)


@dataclass(frozen=True, slots=True, eq=False)
class SeriesProgram:
    """The dynamic program of one problem; stages: the same for pipelines, but that stages on CPUs use none up.

    cpu: int64 [K], 1 for kinds of CPUs.
    """

    stages: StageProgram
    cpu: Int64

    @classmethod
    def of(cls, problem: Problem) -> SeriesProgram | None:
        """Return the program of a problem; None without costs, on a cyclic graph, or with too many states."""
        if stage_program(problem, Replication()) is None:
            return None
        elements = problem.derived(Elements.of)
        devices = problem.topology.devices
        cpu = np.array([devices[kind[0]].kind == "cpu" for kind in elements.kinds], np.int64)
        kinds = tuple(kind[:1] if on else kind for kind, on in zip(elements.kinds, cpu.tolist(), strict=True))
        stages = StageProgram.of(replace(elements, kinds=kinds), Replication())
        if stages is None:
            return None
        shift = np.where(cpu[stages.choices.kind] == 1, 0, stages.choices.shift)
        return cls(replace(stages, choices=stages.choices._replace(shift=shift)), cpu)

    def least_sum(self, found: Ideals, goes_on: Callable[[], bool]) -> Int32 | None:
        """Return the device of each element, int32 [k], for the stages of least sum; None if there are none.

        goes_on: asked between the sizes of ideals; without it the answer is None.
        """
        elements, choices = self.stages.elements, self.stages.choices
        ptr = row_ptr(elements.edges[0], elements.k)
        series = Series(elements.charges, choices, found.lattice, self.cpu, ptr, elements.edges[1].copy())
        value_s = np.full((found.size, choices.price.size), NO_LIMIT_S)
        value_s[0, ~np.isnan(choices.price)] = 0.0
        seen, nowhere = np.full(found.size, -1, np.int32), np.full(4, -1, np.int64)
        for size in range(1, elements.k + 1):
            if not goes_on():
                return None
            series_of_ideals(series, value_s, seen, found.lattice.first[size : size + 2].copy(), nowhere)
        at, state = found.size - 1, choices.full
        if value_s[at, state] >= NO_LIMIT_S:
            return None
        device = np.zeros(elements.k, np.int32)
        free = [list(kind) for kind in elements.kinds]
        while at > 0:
            goal = np.array([at, state, -1, -1], np.int64)
            seen.fill(-1)
            series_of_ideals(series, value_s, seen, np.array([at, at + 1], np.int64), goal)
            before, way = goal[2:].tolist()
            kind = int(choices.kind[way])
            device[difference(found, before, at)] = free[kind][0] if self.cpu[kind] else free[kind].pop(0)
            at, state = before, state - int(choices.shift[way])
        return device

    def placement(self, device: Int32) -> Placement:
        """Return the placement of elements on devices int32 [k]."""
        return self.stages.elements.units.placement(device)
