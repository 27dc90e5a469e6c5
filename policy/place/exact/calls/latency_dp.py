"""Calls of accelerators one after another: dynamic programming over the ideals of a graph, for a single inference."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from pipeline.core.figures import MB
from pipeline.core.params import param
from pipeline.core.problem import Problem
from policy.place.base.parallel import run_apart
from policy.place.base.search import SLOW, Method, Search
from policy.place.exact.calls.flow_bound import game_of, rounds_of
from policy.place.exact.calls.series import SeriesPlacement, SeriesProgram
from policy.place.exact.shared.bounds import SAFETY
from policy.place.exact.shared.proofs import is_finest, prove_bound
from policy.place.exact.shared.stages import all_ideals, order_of, prefixes_of

BOUND_S = 30.0  # seconds for the bound at most; never more than a tenth of what is left
ORDERS = 8  # orders that are divided before all ideals are
ORDERING = 0.2  # share of the time for them

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LatencyDp(Method):
    """Finds the calls of accelerators, and the work of CPUs between them, that take least if nothing runs side by side.

    A stage is the difference of two ideals: sets of operations that hold, with each, all that come before it. On an
    accelerator it takes as long as its operations and transfers, on CPUs as its longest path; the sum over all stages
    is least. Each accelerator is called once. First a few topological orders are divided into intervals, each in the
    best way: an answer that is there early, whatever becomes of the ideals. At last only what a flow of paths meets
    counts, which is less than any placement takes, and the paths that take longest get a share of the flow, round after
    round: every round proposes a placement, and proves a bound (see `flow_bound`). Needs the memory for all ideals;
    where that is more than `memory_mb`, the orders' best is the answer, and the log says so.

    Source: Tarnawski et al., Efficient Algorithms for Device Placement of DNN Graph Operators, NeurIPS 2020, for the
    ideals; the sum in place of the maximum, and the game, are ours.
    """

    version: ClassVar[int] = 2

    memory_mb: int = param(4000, "memory for the ideals at most, in MB", within="[1, inf)")

    def run(self, search: Search, *, seed: int) -> None:
        """Ask about the stages of some orders, prove a bound, ask about the least sum and what the rounds propose."""
        run_apart(search, partial(self._add_up, seed=seed), above=SLOW)

    def _add_up(self, search: Search, *, seed: int) -> None:
        """Do so; to prepare a large graph takes long."""
        known = search.problem.derived(_nothing_known)
        program = None if search.done else search.problem.derived(SeriesProgram.of)
        if program is not None and not known:
            # Ask about the least sum of stages that are intervals of an order, for several orders
            elements, rng = program.stages.elements, np.random.default_rng(seed)
            rank = -np.arange(float(elements.k))
            until_s = time.monotonic() + ORDERING * search.left_s
            for _ in range(ORDERS):
                ideals = prefixes_of(program.stages, order_of(elements, rank))
                staged = program.least_sum(ideals, lambda: search.left_s > 0)
                if staged is not None:
                    search.evaluate([program.placement(staged.device)])
                if time.monotonic() > until_s:
                    break
                rank = rng.random(elements.k)
        if not search.done:
            prove_bound(search, seconds=BOUND_S)
        if program is None or search.done:
            return
        if not known:
            staged = self._least_sum(search, program)
            if staged is None:
                return
            known.append(staged)
        search.evaluate([program.placement(known[0].device)])
        self._play(search)

    def _least_sum(self, search: Search, program: SeriesProgram) -> SeriesPlacement | None:
        """Return the stages of the least sum; None if time or memory is short, or there are none."""
        ideals = all_ideals(program.stages, self.memory_mb * MB, lambda: search.left_s > 0)
        if ideals is None and search.left_s > 0:
            logger.info("%d elements have too many ideals for %d MB", program.stages.elements.k, self.memory_mb)
        if ideals is None:
            return None
        search.details["ideals"] = float(ideals.size)
        return program.least_sum(ideals, lambda: search.left_s > 0)

    def _play(self, search: Search) -> None:
        """Let the rounds of the game propose placements, and prove bounds where they hold for the problem."""
        calls = None if search.execution is None else search.execution.call_limit
        if search.done or calls is None:
            return
        game = game_of(search.problem, lambda: search.left_s > 0)
        proves = calls == 1 and is_finest(search)
        if game is None:
            return
        for bound_s, staged in rounds_of(game, lambda: search.left_s > 0 and not search.done):
            search.evaluate([game.program.placement(staged.device)])
            if proves:
                search.prove(bound_s * (1 - SAFETY), "flow of paths")


def _nothing_known(problem: Problem) -> list[SeriesPlacement]:
    """Return where the stages of the least sum are noted once they are known: a search may be called again."""
    return []
