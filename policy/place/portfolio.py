"""The default search: every rule of thumb, then local search from the best, then a solver, with a proven bound."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pipeline.core.errors import UsageError
from pipeline.core.params import param
from policy.place.anneal import Anneal
from policy.place.cpop import Cpop
from policy.place.cpsat import CpSat
from policy.place.critical_path import CriticalPath
from policy.place.etf import Etf
from policy.place.exact.bounds import prove_bound
from policy.place.exact.enumeration import enumerated
from policy.place.expert import Expert
from policy.place.greedy import Greedy
from policy.place.heft import Heft
from policy.place.m_etf import MEtf
from policy.place.m_sct import MSct
from policy.place.m_topo import MTopo
from policy.place.metis import Metis
from policy.place.min_cut import MinCut
from policy.place.multilevel import Multilevel
from policy.place.peft import Peft
from policy.place.room import make_room
from policy.place.search import Method, Search

# Rules of thumb, the quick ones first, each with the largest graph on which it ends within seconds.
RULES: Mapping[str, tuple[Method, int]] = {
    "heft": (Heft(), 10**7),
    "expert": (Expert(), 10**7),
    "critical_path": (CriticalPath(), 10**7),
    "cpop": (Cpop(), 10**7),
    "m_topo": (MTopo(), 10**7),
    "peft": (Peft(), 200_000),
    "etf": (Etf(), 100_000),
    "m_etf": (MEtf(), 100_000),
    "metis": (Metis(), 100_000),
    "m_sct": (MSct(), 5_000),
}
LARGE = 20_000  # operations above which clusters are moved instead of groups
LEAST_S = 0.2  # seconds below which a glance of the solver is not worth its while
GLANCE = 0.1  # share of what is left in which the solver proves what is easy to prove
MEASURED = 0.3  # share of what is left that climbing gets where the evaluator is no simulator


def parts(n: int, kind: str | None) -> tuple[str, ...]:
    """Return the names of the placers that a portfolio may call for n nodes.

    kind: of the simulator's `Semantics`; None where the evaluator is no simulator.
    """
    if kind is None:
        return (*RULES, "greedy", "anneal")
    improving = ("multilevel",) if n > LARGE else ("cpsat", "anneal")
    return (*RULES, *(("min_cut",) if kind == "sequential" else ()), *improving)


@dataclass(frozen=True, slots=True)
class Portfolio(Method):
    """Runs the other placers in turn on one budget, each from the best plan so far, and says which one found it.

    Every placement, if there are so few. Else rules of thumb in every execution mode; for devices that take turns the
    minimum cut; a glance of the solver at graphs that are small enough; then annealing, the solver, and annealing again
    from what it left; on large graphs `multilevel` in place of all of it. Ends early at a proven optimum. Never worse
    than the best single device, any rule of thumb, or its start.
    """

    version: ClassVar[int] = 2

    annealing: float = param(0.5, "share of what the rules of thumb leave that goes to annealing before the solver")
    solving: float = param(0.6, "share of the rest that goes to the solver, on graphs it takes")
    solvable: int = param(400, "operations up to which the solver is asked")
    workers: int = param(2, "threads of the solver")

    def __post_init__(self) -> None:
        if not (0 <= self.annealing <= 1 and 0 <= self.solving <= 1) or self.solvable < 0 or self.workers < 1:
            raise UsageError(f"{self} has shares that are none.", "Use shares from 0 to 1, and at least one worker.")

    def run(self, search: Search, *, seed: int) -> None:
        """Search until an optimum is proven or the budget ends."""
        if search.done:
            return
        prove_bound(search)
        if enumerated(search) or search.done:
            return
        self._rules(search, seed)
        make_room(search, seed=seed)
        if search.simulator is None:
            self._climb(search, seed)
        elif search.problem.graph.n > LARGE:
            _part(search, "multilevel", Multilevel(), seed)
        else:
            self._improve(search, seed)

    def _rules(self, search: Search, seed: int) -> None:
        for name, (method, largest) in RULES.items():
            if search.problem.graph.n <= largest:
                _part(search, name, method, seed)

    def _climb(self, search: Search, seed: int) -> None:
        """Spend measurements: they are dear, so a greedy climb comes before random moves."""
        _part(search, "greedy", Greedy(), seed, share=MEASURED)
        _part(search, "anneal", Anneal(), seed)

    def _improve(self, search: Search, seed: int) -> None:
        sequential = search.semantics is not None and search.semantics.kind == "sequential"
        if sequential:
            _part(search, "min_cut", MinCut(), seed)
        if search.problem.graph.n > self.solvable:
            _part(search, "anneal", Anneal(), seed)
            return
        if search.left_s * GLANCE < LEAST_S:
            _part(search, "anneal", Anneal(), seed)
            return
        solver = CpSat(max_nodes=self.solvable, workers=self.workers)
        _part(search, "cpsat", solver, seed, share=GLANCE)
        _part(search, "anneal", Anneal(), seed, share=self.annealing)
        _part(search, "cpsat", solver, seed, share=self.solving)
        _part(search, "anneal", Anneal(), seed + 1)


def _part(search: Search, name: str, method: Method, seed: int, *, share: float = 1.0) -> None:
    """Let a method search under its own name with a share of what is left of the budget."""
    if search.done:
        return
    evaluations = max(1, math.ceil(share * search.left))
    seconds = share * search.left_s if np.isfinite(search.left_s) else None
    with search.limited(name, evaluations=evaluations, seconds=seconds):
        method.run(search, seed=seed)
