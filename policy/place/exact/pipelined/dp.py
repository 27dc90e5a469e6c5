"""The best contiguous stages of all: dynamic programming over the ideals of a graph."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar

from pipeline.core.figures import MB
from pipeline.core.params import param
from policy.place.base.search import Method, Search
from policy.place.exact.pipelined.dpl import linearised
from policy.place.exact.shared.bounds import SAFETY
from policy.place.exact.shared.proofs import is_finest, prove_bound
from policy.place.exact.shared.stages import (
    NO_LIMIT_S,
    Replication,
    Stage,
    StageProgram,
    all_ideals,
    placement_of,
    stage_program,
    value_s,
)

SHARPER = 1e-9  # the share by which stages must be better than those that are known

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Dp(Method):
    """Finds the contiguous stages of least largest load, transfers included, as in the simulator `pipelined`.

    An ideal is a set of operations that holds, with each, all that come before it; every stage is the difference of
    two. Graphs of few branches have few ideals. First `orders` linear orders are divided (see `dpl`): what their best
    division takes bounds the search among ideals. Needs the memory for all ideals; where that is more than `memory_mb`,
    the orders' best is the answer, and a message of the log says so.

    Proves the optimum of ordered stages, and so that of the whole problem where `contiguity` asks for these.

    Source: Tarnawski et al., Efficient Algorithms for Device Placement of DNN Graph Operators, NeurIPS 2020, section
    5.1.1 (DP); pairs of ideals are not stored, and kinds of devices not limited to two.
    """

    version: ClassVar[int] = 1

    orders: int = param(16, "orders to divide before", within="[1, inf)")
    memory_mb: int = param(4000, "memory for the ideals at most, in MB", within="[1, inf)")
    workers: int = param(2, "threads", within="[1, inf)")

    def run(self, search: Search, *, seed: int) -> None:
        """Ask about the best stages of some orders, note the bound, and ask about the best of all."""
        program = None if search.left <= 0 else search.problem.derived(stage_program, Replication())
        if program is None:
            return
        stages = linearised(search, program, self.orders, seed=seed)
        if search.left > 0:
            prove_bound(search)
        best = self.best_stages(search, program, stages)
        if best is None:
            return
        if best:
            search.evaluate([placement_of(program.elements, best)])
        rules = None if search.execution is None else search.execution.stage_rules
        if rules is not None and rules.contiguity == "ordered" and is_finest(search):
            search.prove(value_s(best) * (1 - SAFETY), "dp")

    def best_stages(self, search: Search, program: StageProgram, known: list[Stage]) -> list[Stage] | None:
        """Return the best stages of all; the known ones if none are better; None if time or memory is short."""
        limit_s = min(value_s(known) * (1 - SHARPER), NO_LIMIT_S)
        ideals = all_ideals(program, self.memory_mb * MB, lambda: search.left_s > 0)
        if ideals is None and search.left_s > 0:
            logger.info("%d elements have too many ideals for %d MB of memory", program.elements.k, self.memory_mb)
        if ideals is None:
            return None
        search.details["ideals"] = float(ideals.size)
        best = program.below(limit_s).of_ideals(ideals, lambda: search.left_s > 0, workers=self.workers)
        return None if best is None else best or known
