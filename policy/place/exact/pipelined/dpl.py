"""Contiguous stages that are intervals of an order: the best of several orders, for graphs of any size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from pipeline.core.params import param
from policy.place.base.parallel import run_apart
from policy.place.base.search import SLOW, Method, Search
from policy.place.exact.shared.proofs import prove_bound
from policy.place.exact.shared.stages import (
    Replication,
    Stage,
    StageProgram,
    best_of_orders,
    orders_worth,
    placement_of,
    stage_program,
)

FEW = 8  # orders that are enough for a start


@dataclass(frozen=True, slots=True)
class Dpl(Method):
    """Divides topological orders into stages, each order in the best way, and takes the best of all.

    What counts is the largest load of a device, transfers included, as in the simulator `pipelined`; each stage has a
    device of its own. The orders are depth-first, the first by the numbers of the operations, all others random.

    Source: Tarnawski et al., Efficient Algorithms for Device Placement of DNN Graph Operators, NeurIPS 2020, section
    5.1.2 (DPL); there for one order.
    """

    version: ClassVar[int] = 1

    orders: int = param(100, "orders at most", within="[1, inf)")

    def run(self, search: Search, *, seed: int) -> None:
        """Ask about the best division of all orders that there is time for, and note the bound."""
        run_apart(search, partial(self._divide, seed=seed), above=SLOW)

    def _divide(self, search: Search, *, seed: int) -> None:
        """Do so; to prepare a large graph takes long."""
        if search.left > 0 and (quick := search.problem.derived(stage_program, Replication(), priced=False)):
            linearised(search, quick, 1, seed=seed)  # an answer that is there early
        program = None if search.left <= 0 else search.problem.derived(stage_program, Replication())
        if program is not None:
            linearised(search, program, self.orders, seed=seed)
        if search.left > 0:
            prove_bound(search)


def begin_with_orders(search: Search, *, seed: int) -> None:
    """Ask about stages of a few orders, a start for solvers beside a device alone."""
    if not search.done:
        with search.limited("dpl"):
            Dpl(orders=FEW).run(search, seed=seed)


def linearised(search: Search, program: StageProgram, orders: int, *, seed: int) -> list[Stage]:
    """Ask about the best division of several orders into stages, and return it; nothing if none fits."""
    timed = math.isfinite(search.left_s)
    count = orders if timed else orders_worth(program.elements.k, orders)
    stages = best_of_orders(program, np.random.default_rng(seed), count, lambda: search.left_s > 0)
    if stages:
        search.evaluate([placement_of(program.elements, stages)])
    return stages
