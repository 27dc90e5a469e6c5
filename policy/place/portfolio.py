"""The default search: every rule of thumb, then local search from the best, then a solver, with a proven bound."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from pipeline.core.errors import UsageError
from pipeline.core.params import param
from pipeline.core.placement import Placement
from pipeline.core.simulation import ExecutionModel, LatencyModel, PipelineModel
from pipeline.shared.partition import has_metis, tell_once
from policy.place.exact.cpsat import CpSat, size_of
from policy.place.exact.dp import Dp
from policy.place.exact.dpl import Dpl
from policy.place.exact.enumeration import enumerated
from policy.place.exact.latency_dp import LatencyDp
from policy.place.exact.milp import Milp
from policy.place.exact.min_cut import MinCut
from policy.place.exact.proofs import prove_bound
from policy.place.lists.cpop import Cpop
from policy.place.lists.critical_path import CriticalPath
from policy.place.lists.etf import Etf
from policy.place.lists.heft import Heft
from policy.place.lists.m_etf import MEtf
from policy.place.lists.m_sct import MSct
from policy.place.lists.m_topo import MTopo
from policy.place.lists.peft import Peft
from policy.place.local.anneal import Anneal
from policy.place.local.greedy import Greedy
from policy.place.local.multilevel import Multilevel
from policy.place.local.room import make_room, tight, unlimited
from policy.place.neural.neural_list import NeuralList
from policy.place.rules.expert import Expert
from policy.place.rules.metis import Metis
from policy.place.search import Method, Search
from policy.place.together import together

# Rules of thumb, the quick ones first, each with the operations it places in a second on a few devices, roughly.
RULES: Mapping[str, tuple[Method, float]] = {
    "heft": (Heft(), 1e5),
    "expert": (Expert(), 3e5),
    "critical_path": (CriticalPath(), 4e4),
    "cpop": (Cpop(), 1e5),
    "m_topo": (MTopo(), 2e5),
    "peft": (Peft(), 2e4),
    "etf": (Etf(), 1e4),
    "m_etf": (MEtf(), 1e4),
    "metis": (Metis(), 1e4),
    "m_sct": (MSct(), 1e3),
}
RULING = 0.25  # share of the time that goes to rules of thumb at most
RULE_S = 10.0  # seconds that one of them may be expected to take where time is not limited
SAMPLING = 0.2  # share of what the rules of thumb leave that goes to schedules by learned scores
LARGE = 20_000  # operations above which clusters are moved instead of groups
LEAST_S = 0.2  # seconds below which a glance of the solver is not worth its while
GLANCE = 0.1  # share of what is left in which the solver proves what is easy to prove
STAGES = 0.05  # share of what is left that goes to contiguous stages, by each of three ways
REFUTING = 0.7  # share of what is left then in which one solver mostly refutes that a pipeline can be better
CALLS = 0.2  # share of what is left that goes to annealing calls, before a solver tries
SOLVERS = 0.9  # share of what is left then in which two solvers prove a pipeline optimal
MEASURED = 0.3  # share of what is left that climbing gets where the evaluator is not a simulator
EVALUATIONS_PER_GROUP = 200  # that every local search has where several share a number of evaluations


def parts(n: int, execution: ExecutionModel | None) -> tuple[str, ...]:
    """Return the names of the placers that a portfolio may call for n nodes.

    execution: the simulator's rules; None where the evaluator is not a simulator.
    """
    if execution is None:
        return (*RULES, "greedy", "anneal")
    improving = ("multilevel",) if n > LARGE else ("cpsat", "anneal")
    if execution.concurrent and n <= LARGE:
        improving = ("neural_list", *improving)
    exact: tuple[str, ...] = ("dpl", "dp", "milp") if isinstance(execution, PipelineModel) else ()
    exact = ("latency_dp",) if isinstance(execution, LatencyModel) else exact
    return (*RULES, *(("min_cut",) if execution.additive else ()), *exact, *improving)


@dataclass(frozen=True, slots=True)
class Portfolio(Method):
    """Runs the other placers in turn on one budget, each from the incumbent, and says which one found it.

    Every placement, if there are so few. Else, for two devices that run one after another, the minimum cut, which
    proves itself. Then rules of thumb, those that a quarter of the time suffices for, and where devices work at once
    schedules by learned scores. Then a glance of the solver, if its program is small enough; annealing in two rounds,
    the second from the best of the first; and between them the solver again, if the glance has found a placement or a
    bound. On large graphs `multilevel` in place of all of it. Ends at once at a proven optimum. Never worse than the
    best single device, any rule of thumb that ran, or its start.

    Where memory is short, every second local search of the first round begins at the best that the rules of thumb find
    with memory left aside, and minds memory only after a while: what it goes through first is the same however much the
    devices hold.

    With a time limit, `workers` local searches run at the same time, of different seeds. With evaluations alone, two
    local searches share a round if each gets 200 per group, else there is one; then equal seeds give equal answers,
    whatever the number of workers, and the solver's effort is counted in its own steps, in proportion to the
    evaluations left.
    """

    version: ClassVar[int] = 9
    placers: ClassVar[tuple[str, ...]] = (
        *RULES,
        *("min_cut", "dpl", "dp", "latency_dp", "milp", "cpsat", "anneal", "multilevel", "greedy", "neural_list"),
    )

    annealing: float = param(0.6, "share of what the rules of thumb leave that goes to the first round of annealing")
    solving: float = param(0.6, "share of the rest that goes to the solver, where a glance of it has paid")
    solvable: int = param(1500, "variables of the solver's program up to which it is asked; see cpsat.largest")
    effort: float = param(5e-6, "without a time limit: the solver's seconds, by its own count, per evaluation left")
    workers: int = param(2, "threads of local search, and of the solver")
    learned: bool = param(True, "where devices work at once, sample schedules by learned scores before annealing")

    def __post_init__(self) -> None:
        if not (0 <= self.annealing <= 1 and 0 <= self.solving <= 1) or self.solvable < 0 or self.workers < 1:
            raise UsageError(f"{self} has a share out of range.", "Shares must lie in [0, 1]; use at least one worker.")
        if not self.effort > 0:
            raise UsageError(f"The effort of the solver is {self.effort}.", "Set it to more than 0.")

    def run(self, search: Search, *, seed: int) -> None:
        """Search until an optimum is proven or the budget ends."""
        if search.done:
            return
        prove_bound(search)
        if enumerated(search) or search.done:
            return
        additive = search.execution is not None and search.execution.additive
        if additive and search.problem.topology.p == 2:
            _part(search, "min_cut", MinCut(), seed)
        if isinstance(search.execution, PipelineModel):
            self._stages(search, seed)
        if isinstance(search.execution, LatencyModel):
            self._calls(search, seed)
        self._rules(search, seed)
        if self.learned and "neural_list" in parts(search.problem.graph.n, search.execution):
            _part(search, "neural_list", NeuralList(improve=False, planned=1), seed, share=SAMPLING)
        make_room(search, seed=seed)
        if search.simulator is None:
            self._climb(search, seed)
            return
        if additive and search.problem.topology.p > 2:
            _part(search, "min_cut", MinCut(), seed)
        if search.problem.graph.n > LARGE:
            _part(search, "multilevel", Multilevel(workers=self.workers), seed)
        else:
            self._improve(search, seed)

    def _rules(self, search: Search, seed: int) -> None:
        timed = math.isfinite(search.left_s)
        until_s = time.monotonic() + RULING * search.left_s
        for name, (method, per_second) in RULES.items():
            if isinstance(method, Metis) and not has_metis():
                tell_once("pymetis is not installed: portfolio leaves the placer metis out.")
                continue
            allowed_s = until_s - time.monotonic() if timed else RULE_S
            if search.problem.graph.n <= allowed_s * per_second:
                _part(search, name, method, seed)

    def _stages(self, search: Search, seed: int) -> None:
        """Divide a pipeline into contiguous stages, and prove or better it at once where that is easy.

        One solver after a little annealing; then both solvers side by side, where time is limited.
        """
        _part(search, "dpl", Dpl(), seed, share=STAGES)
        if search.problem.graph.n > LARGE:
            return
        _part(search, "dp", Dp(workers=self.workers), seed, share=STAGES)
        self._anneal(search, seed, share=STAGES)
        solver = CpSat(largest=self.solvable, workers=self.workers, effort=self.effort)
        if search.done or size_of(search) > self.solvable:
            return
        _part(search, "cpsat", solver, seed, share=REFUTING)
        if math.isfinite(search.left_s) and search.left_s > LEAST_S:
            solvers = [_Named("milp", Milp()), _Named("cpsat", solver)]
            _part(search, "milp", _SideBySide(solvers, len(solvers)), seed, share=SOLVERS)

    def _calls(self, search: Search, seed: int) -> None:
        """Call accelerators one after another, let a little annealing overlap calls, and prove or better that."""
        if search.problem.graph.n > LARGE:
            return
        _part(search, "latency_dp", LatencyDp(), seed)
        self._anneal(search, seed, share=CALLS)
        if size_of(search) <= self.solvable:
            solver = CpSat(largest=self.solvable, workers=self.workers, effort=self.effort)
            _part(search, "cpsat", solver, seed, share=SOLVERS)

    def _climb(self, search: Search, seed: int) -> None:
        """Spend measurements: they are expensive, so a greedy climb comes before random moves."""
        _part(search, "greedy", Greedy(), seed, share=MEASURED)
        _part(search, "anneal", Anneal(), seed)

    def _improve(self, search: Search, seed: int) -> None:
        solver = CpSat(largest=self.solvable, workers=self.workers, effort=self.effort)
        pays = self._glance(search, solver, seed)
        rounds = pays or self._local_searches(search) > 1
        self._anneal(search, seed, share=self.annealing if rounds else 1.0, start=self._unlimited(search, seed))
        if pays:
            _part(search, "cpsat", solver, seed, share=self.solving)
        self._anneal(search, seed + 1, share=1.0)

    def _glance(self, search: Search, solver: CpSat, seed: int) -> bool:
        """Let the solver have a glance, if it can help; return whether it has found a placement or a bound."""
        if search.done or search.left_s * GLANCE < LEAST_S or search.problem.costs is None:
            return False
        if size_of(search) > self.solvable:
            return False
        before = search.best_s, search.bound_s
        _part(search, "cpsat", solver, seed, share=GLANCE)
        return (search.best_s, search.bound_s) != before

    def _local_searches(self, search: Search) -> int:
        """Return how many local searches anneal side by side."""
        if math.isfinite(search.left_s):
            return self.workers
        return 2 if search.left >= 2 * EVALUATIONS_PER_GROUP * search.problem.grouping.k else 1

    def _unlimited(self, search: Search, seed: int) -> Placement | None:
        """Return the best that rules of thumb find with memory left aside; None where nothing could start there."""
        if search.done or not tight(search) or self._local_searches(search) == 1:
            return None
        with search.limited("anneal"):
            relaxed = unlimited(search, seconds=RULING * search.left_s)
            self._rules(relaxed, seed)
        return relaxed.best

    def _anneal(self, search: Search, seed: int, *, share: float, start: Placement | None = None) -> None:
        """Anneal, by several local searches if each gets enough; every other one from the start, if there is one."""
        count = self._local_searches(search)
        if count == 1:
            _part(search, "anneal", Anneal(), seed, share=share)
            return
        methods = [Anneal() if start is None or i % 2 == 0 else _Relaxed(start) for i in range(count)]
        _part(search, "anneal", _SideBySide(methods, self.workers), seed, share=share)


@dataclass(frozen=True, slots=True)
class _SideBySide(Method):
    """Runs methods at the same time, with seeds of their own."""

    methods: Sequence[Method]
    workers: int

    def run(self, search: Search, *, seed: int) -> None:
        seeds = [seed, *np.random.default_rng(seed).integers(2**31, size=len(self.methods) - 1).tolist()]
        parts = [partial(method.run, seed=s) for method, s in zip(self.methods, seeds, strict=True)]
        together(search, parts, workers=self.workers)


@dataclass(frozen=True, slots=True)
class _Named(Method):
    """A method that searches under its own name."""

    name: str
    method: Method

    def run(self, search: Search, *, seed: int) -> None:
        with search.limited(self.name):
            self.method.run(search, seed=seed)


@dataclass(frozen=True, slots=True)
class _Relaxed(Method):
    """Anneals from a start that need not fit."""

    start: Placement

    def run(self, search: Search, *, seed: int) -> None:
        Anneal().relax(search, self.start, seed=seed)


def _part(search: Search, name: str, method: Method, seed: int, *, share: float = 1.0) -> None:
    """Let a method search under its own name with a share of what is left of the budget."""
    if search.done:
        return
    evaluations = max(1, math.ceil(share * search.left))
    seconds = share * search.left_s if np.isfinite(search.left_s) else None
    with search.limited(name, evaluations=evaluations, seconds=seconds):
        method.run(search, seed=seed)
