"""Calls of accelerators one after another, and work of CPUs between them: the least sum over the ideals of a graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from pipeline.core.arrays import Float64, Int32, Int64
from pipeline.core.graph import is_acyclic, row_ptr
from pipeline.core.placement import Placement
from pipeline.core.problem import Problem
from policy.place.exact.calls.series_kernels import Series, series_of_ideals
from policy.place.exact.shared.elements import Elements
from policy.place.exact.shared.stages import NO_LIMIT_S, PAIRS, Ideals, Replication, StageProgram, difference


class SeriesPlacement(NamedTuple):
    """Elements in stages.

    block: int64 [k], equal for elements of one call; those on CPUs have blocks of their own. block_s: float64 [k], what
    the block takes. device: int32 [k]. value_s: the sum that is least.
    """

    block: Int64
    block_s: Float64
    device: Int32
    value_s: float


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
        if problem.costs is None or not is_acyclic(problem.graph):
            return None
        elements = problem.derived(Elements.of)
        devices = problem.topology.devices
        cpu = np.array([devices[kind[0]].kind == "cpu" for kind in elements.kinds], np.int64)
        kinds = tuple(kind[:1] if on else kind for kind, on in zip(elements.kinds, cpu.tolist(), strict=True))
        stages = StageProgram.of(replace(elements, kinds=kinds), Replication(), priced=False)
        if stages is None:
            return None
        shift = np.where(cpu[stages.choices.kind] == 1, 0, stages.choices.shift)
        return cls(replace(stages, choices=stages.choices._replace(shift=shift)), cpu)

    def least_sum(
        self, ideals: Ideals, goes_on: Callable[[], bool], flow: tuple[Float64, Float64] | None = None
    ) -> SeriesPlacement | None:
        """Return the stages of least sum; None if there are none.

        goes_on: asked now and then; without it the answer is None. flow: see `Series`, if only what a
        flow meets counts.
        """
        elements, choices = self.stages.elements, self.stages.choices
        ptr = row_ptr(elements.edges[0], elements.k)
        share, along = (np.zeros(0), np.zeros(0)) if flow is None else flow
        series = Series(
            elements.charges, choices, ideals.lattice, self.cpu, ptr, elements.edges[1].copy(), share, along
        )
        value_s = np.full((ideals.size, choices.price.size), NO_LIMIT_S)
        value_s[0, ~np.isnan(choices.price)] = 0.0
        seen, nowhere = np.full(ideals.size, -1, np.int32), np.full(4, -1, np.int64)
        span = np.array([1, ideals.size, PAIRS], np.int64)
        while span[0] < ideals.size:
            if not goes_on():
                return None
            series_of_ideals(series, value_s, seen, span, nowhere)
        at, state = ideals.size - 1, choices.full
        if value_s[at, state] >= NO_LIMIT_S:
            return None
        staged = SeriesPlacement(
            np.arange(elements.k), np.zeros(elements.k), np.zeros(elements.k, np.int32), float(value_s[at, state])
        )
        free = [list(kind) for kind in elements.kinds]
        while at > 0:
            if not goes_on():
                return None
            goal = np.array([at, state, -1, -1], np.int64)
            seen.fill(-1)
            series_of_ideals(series, value_s, seen, np.array([at, at + 1, 1], np.int64), goal)
            before, way = goal[2:].tolist()
            kind = int(choices.kind[way])
            stage = difference(ideals, before, at)
            staged.device[stage] = free[kind][0] if self.cpu[kind] else free[kind].pop(0)
            staged.block_s[stage] = elements.charges.work_s[stage, kind]
            if not self.cpu[kind]:
                staged.block[stage] = elements.k + at
                staged.block_s[stage] = self.stages.load_s(stage, way)
            at, state = before, state - int(choices.shift[way])
        return staged

    def placement(self, device: Int32) -> Placement:
        """Return the placement of elements on devices int32 [k]."""
        return self.stages.elements.groups.placement(device)
