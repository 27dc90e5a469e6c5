"""Stages of a pipeline that several accelerators take turns at."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.core.arrays import Int64
from pipeline.core.errors import UsageError
from pipeline.core.figures import MB
from pipeline.core.problem import Problem
from policy.place.exact.shared.stages import (
    NO_LIMIT_S,
    Replication,
    all_ideals,
    best_of_orders,
    devices_of,
    stage_program,
    value_s,
)

ORDERS = 16  # orders that are divided before
MEMORY_MB = 4000
REMEDY = "Use fewer kinds of devices, more memory, or leave --replicate out."


class ReplicatedStage(NamedTuple):
    """A stage: its operations, int64, the devices that take turns at it, and the load of each of these in seconds."""

    operations: Int64
    devices: tuple[int, ...]
    load_s: float


def replicated_stages(problem: Problem, microbatches: int, *, workers: int = 2) -> list[ReplicatedStage]:
    """Return the contiguous stages of least largest load, replicas counted, first to last.

    microbatches: samples after which replicas exchange gradients of the weights, over the slowest link; 0 for none.

    Source: as in `stages`; 4 (r - 1) w / (r B) bytes of w bytes of weights and B microbatches, by r replicas.

    Raises:
        UsageError: there are none, or too many states or ideals.
    """
    topology = problem.topology
    apart = ~np.eye(topology.p, dtype=bool)
    slowest = float(topology.link_bytes_per_s[apart].min()) if topology.p > 1 else 1.0
    sync_s = 1.0 / slowest / microbatches if microbatches else 0.0
    program = stage_program(problem, Replication(topology.p, sync_s))
    if program is None:
        raise UsageError("Stages cannot be replicated on so many kinds of devices.", REMEDY)
    known = best_of_orders(program, np.random.default_rng(0), ORDERS, lambda: True)
    ideals = all_ideals(program, MEMORY_MB * MB, lambda: True)
    if ideals is None:
        raise UsageError(f"{program.elements.k} elements have too many ideals for {MEMORY_MB} MB.", REMEDY)
    limit_s = min(value_s(known) * (1 - 1e-9), NO_LIMIT_S)
    best = program.below(limit_s).of_ideals(ideals, lambda: True, workers=workers) or known
    if not best:
        raise UsageError("No stages fit the devices.", "Use devices with more memory, or more of them.")
    group = program.elements.groups.grouping.group
    return [
        ReplicatedStage(np.flatnonzero(np.isin(group, stage.elements)), devices, stage.load_s)
        for stage, devices in zip(best, devices_of(program.elements, best), strict=True)
    ]
