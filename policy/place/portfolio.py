"""The default search: every rule of thumb, then local search from the best, then a solver, with a proven bound."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from pipeline.core.params import param
from pipeline.core.simulation import ExecutionModel
from policy.place.base.parallel import run_apart, run_parallel
from policy.place.base.search import SLOW, Method, Search
from policy.place.exact.shared.cpsat import CpSat, size_of
from policy.place.exact.shared.enumeration import enumerated
from policy.place.exact.shared.objectives import Member, objective_of
from policy.place.exact.shared.proofs import prove_bound
from policy.place.learned.neural_list.neural_list import NeuralList
from policy.place.local.anneal import Anneal, AnnealFurther, AnnealRelaxed, best_order
from policy.place.local.greedy import Greedy
from policy.place.local.room import EVALUATED_PER_S, repair_memory, tight, unlimited
from policy.place.multilevel.multilevel import Multilevel, affordable_rules
from policy.place.rules.catalogue import RULES, installed_rules

RULING, RULING_LARGE = 0.4, 0.5  # share of the time that goes to rules of thumb at most; on large graphs
RULING_BESIDE = 0.8  # share of it where the other lane is at the local search
RULED = 0.8  # share of what is left of that time that one of them may take
RULE_S = 10.0  # seconds that one of them may be expected to take where time is not limited
LARGE = 20_000  # operations above which clusters are moved instead of groups
HUGE = 300_000  # operations above which `multilevel` is alone, with the rules of thumb that it begins with
FEW = 0.2  # evaluations per group below which clusters are moved first
CLUSTERED = 100  # operations above which clusters are moved as well
CLUSTERED_FIRST = 1000  # and above which they may be moved in place of groups
LEAST_S = 0.02  # seconds that a slice of a member takes at least
EVALUATIONS_PER_GROUP = 200  # that every local search has where several share a number of evaluations
WHOLE = 0.5  # share of what is left from which a slice takes all of it
BOUNDED = 1e5  # operations that a bound takes in a second, roughly
PROOF = 0.1  # what raising the bound counts beside improving the incumbent by as much
MEASURED = 0.3  # share of what is left that climbing gets where the evaluator is not a simulator
SLICE = 0.1  # share of what is left that a member gets when it is called again; twice as much every further time
ONCE = ("rules", "bound")  # members that have nothing more to offer when they are called again
SHARES: Mapping[str, float] = {  # of what is left, that the first slice of a member takes at most; see also `Member`
    "rules": 1.0,
    "neural_list": 0.6,
    "bound": 0.1,
    "cpsat": 0.1,
    "anneal": 0.5,
    "multilevel": 0.4,
}


def parts(n: int, execution: ExecutionModel | None) -> tuple[str, ...]:
    """Return the names of the placers that a portfolio may call for n nodes.

    execution: the simulator's rules; None where the evaluator is not a simulator.
    """
    if execution is None:
        return (*RULES, "greedy", "anneal")
    exact = tuple(member.name for member in exact_members(n, execution))
    if n > LARGE:
        return (*RULES, *exact, "multilevel")
    learned = () if execution.additive else ("neural_list",)
    clustered = ("multilevel",) if n > CLUSTERED else ()
    return (*RULES, *exact, *learned, *clustered, "cpsat", "anneal")


def exact_members(n: int, execution: ExecutionModel | None) -> tuple[Member, ...]:
    """Return the exact methods that the objective of an execution model brings along, for n nodes."""
    return tuple(member for member in objective_of(execution).members if n <= LARGE or member.large)


def first_shares(search: Search) -> dict[str, float]:
    """Return the share of what is left that the first slice of each member takes at most."""
    n = search.problem.graph.n
    exact = {member.name: member.share for member in exact_members(n, search.execution)}
    return {**SHARES, **exact, **({"multilevel": 1.0} if n > LARGE else {})}


@dataclass(frozen=True, slots=True)
class Portfolio(Method):
    """Runs the other placers on one budget, from the incumbent, and says which one found it.

    Every placement, if there are so few. Else, with a time limit, two lanes at the same time, which tell one another
    what they find. The first is one local search, which goes on from the incumbent of both from half of the time on:
    `neural_list`; `anneal` where memory is short, or devices run one after another; `multilevel` on large graphs,
    where calls of accelerators count, and where there is not the time to move most groups. The second runs rules of
    thumb, those that two fifths of the time suffice for, and gives every other member a first slice: exact methods,
    schedules by learned scores, clusters, the lower bound, a solver if its program is small enough, and local search.
    These go on from what this lane has found, as another way is worth more than twice the same. Then it follows
    what pays: the member goes on that improved the incumbent most per second when it ran last, each time twice as long
    as before, and at last to the end. Huge graphs, which two lanes would fill the memory with, `multilevel` has for
    itself. Ends at once at a proven optimum. Never worse than the best single device, any rule of thumb that ran, or
    its start.

    Where memory is short, local searches of the second lane begin at the best that the rules of thumb find with memory
    left aside, and mind memory only after a while: what they go through first is the same however much the devices
    hold.

    With evaluations alone the same members run in turn, each with a share of them, but for what fits, which is sought
    first where no rule of thumb has found it. Then equal seeds give equal answers,
    whatever the number of workers, and the solver's effort is counted in its own steps, in proportion to the
    evaluations left.
    """

    version: ClassVar[int] = 14
    placers: ClassVar[tuple[str, ...]] = (
        *RULES,
        *("min_cut", "dpl", "dp", "latency_dp", "milp", "cpsat", "anneal", "multilevel", "greedy", "neural_list"),
    )
    controls: ClassVar[Mapping[str, Mapping[str, Any]]] = {"nothing learned": {"learned": False}}

    annealing: float = param(
        0.6, "without a time limit: share of what is left for the first round of annealing", within="[0, 1]"
    )
    solving: float = param(
        0.6, "without a time limit: share of the rest for the solver, where a glance of it has paid", within="[0, 1]"
    )
    solvable: int = param(1500, "variables of the solver's program up to which it is asked, for each second there is")
    effort: float = param(
        5e-6, "without a time limit: the solver's seconds, by its own count, per evaluation left", within="(0, inf)"
    )
    workers: int = param(2, "lanes of members with a time limit, else threads", within="[1, inf)")
    learned: bool = param(True, "sample schedules by learned scores, and move groups of the learned contraction")

    def run(self, search: Search, *, seed: int) -> None:
        """Search until an optimum is proven or the budget ends."""
        if search.done or enumerated(search) or search.done:
            return
        if search.simulator is None:
            # Measurements are expensive: a greedy climb comes before random moves
            self._rules(search, seed)
            repair_memory(search, seed=seed)
            _part(search, "greedy", Greedy(), seed, share=MEASURED)
            _part(search, "anneal", Anneal(), seed)
        elif search.problem.graph.n > HUGE:  # of which two lanes would fill the memory
            _part(search, "multilevel", Multilevel(contracted=self.learned), seed)
            if not search.done:
                _Bound().run(search, seed=seed)
        elif math.isfinite(search.left_s):
            lanes = [self._descend, self._scout] if self.workers > 1 else [self._scout]
            run_parallel(search, [partial(lane, seed=seed) for lane in lanes], workers=self.workers)
        else:
            self._in_turn(search, seed)

    def _descend(self, search: Search, *, seed: int) -> None:
        """One local search as it would go alone, until the other lane's incumbent takes over where that is better."""
        members = self._members(search)
        name = _leader(search, members)
        find_room(search, seed)  # as the other lane does, each in a way of its own, until one of them has found it
        whole: Mapping[str, Method] = {
            "anneal": Anneal(),
            "multilevel": Multilevel(contracted=self.learned),
            "neural_list": NeuralList(),
        }
        _part(search, name, whole[name], seed)
        search.adopt()
        self._follow(search, {name: members[name] for name in members if name not in ONCE}, seed + 2)

    def _scout(self, search: Search, *, seed: int) -> None:
        """Rules of thumb, a first slice for every other member, and then what pays."""
        members = self._members(search)
        leader = _leader(search, members) if self.workers > 1 else ""
        if leader == "multilevel":
            members["rules"] = _Rules(self, beside=True)
        if leader in members:
            members[leader] = members.pop(leader)  # last
        if tight(search) and "anneal" in members:
            members["anneal"] = _Unlimited(self)
        self._follow(search, members, seed + 1)

    def _follow(self, search: Search, members: Mapping[str, Method], seed: int) -> None:
        """Give each member a slice, then call the one that improved the incumbent most per second when called last.

        Of several that improved nothing, the one that had least time. Slices of a member grow; one of half of what is
        left or more takes all of it.
        """
        rate, used_s = dict.fromkeys(members, math.inf), dict.fromkeys(members, 0.0)
        share = {**dict.fromkeys(members, SLICE), **first_shares(search)}
        rng = np.random.default_rng(seed)
        while rate and not search.done:
            if math.isfinite(max(rate.values())):  # what finds its own way first tells more than what all begin with
                search.adopt()
            name = max(rate, key=lambda name: (rate[name], -used_s[name]))
            before, spent, began_s = (search.best_s, search.bound_s), search.spent, time.monotonic()
            given = share[name] * (search.left_s if math.isfinite(search.left_s) else search.left)
            _part(search, name, members[name], int(rng.integers(2**31)), share=share[name])
            took_s = max(time.monotonic() - began_s, LEAST_S)
            interrupted = (took_s if math.isfinite(search.left_s) else search.spent - spent) >= WHOLE * given
            used_s[name] += took_s
            first, rate[name] = math.isinf(rate[name]), _gain(before, (search.best_s, search.bound_s)) / took_s
            share[name] = SLICE if first else 2 * share[name]
            if share[name] >= WHOLE:
                share[name] = 1.0
            ended = search.spent == spent or (rate[name] == 0 and not interrupted)  # it has nothing more to offer
            if ended or name in ONCE:
                del rate[name]

    def _members(self, search: Search) -> dict[str, Method]:
        """Return the members besides rules of thumb that apply to a search."""
        n = search.problem.graph.n
        applicable, exact = {*parts(n, search.execution), *ONCE}, exact_members(n, search.execution)
        solvable = self.solvable * (max(1.0, search.left_s) if math.isfinite(search.left_s) else 1.0)
        early: dict[str, Method] = {member.name: member.method for member in exact if not member.solver}
        if n > LARGE or (search.problem.topology.p > 2 and any(member.two_devices for member in exact)):
            early = {"rules": _Rules(self), **early}  # where rules of thumb are the quicker ones
        solvers: dict[str, Method] = {
            "cpsat": CpSat(largest=int(solvable), workers=1, effort=self.effort),
            **{member.name: member.method for member in exact if member.solver},
        }
        methods: dict[str, Method] = {
            **early,
            "rules": _Rules(self),
            "multilevel": Multilevel(contracted=self.learned),
            "neural_list": NeuralList(improve=math.isfinite(search.left_s)),
            "bound": _Bound(),
            **solvers,
            "anneal": AnnealFurther(),
        }
        if not self.learned:
            applicable.discard("neural_list")
        if search.problem.costs is None or "cpsat" not in applicable or size_of(search) > solvable:
            applicable -= solvers.keys()
        return {name: method for name, method in methods.items() if name in applicable}

    def _rules(self, search: Search, seed: int, share: float | None = None, last: Sequence[str] = ()) -> None:
        """Run rules of thumb for a share of the time. last: those that come after all others."""
        timed = math.isfinite(search.left_s)
        usual = RULING_LARGE if search.problem.graph.n > LARGE else RULING
        until_s = time.monotonic() + (usual if share is None else share) * search.left_s
        for name, (method, per_second) in sorted(installed_rules("portfolio"), key=lambda rule: rule[0] in last):
            allowed_s = until_s - time.monotonic() if timed else RULE_S
            if search.problem.graph.n <= allowed_s * per_second:  # untimed, no clock may end it: a first call compiles
                _part(search, name, method, seed, seconds=RULED * allowed_s if timed else math.inf)

    def _in_turn(self, search: Search, seed: int) -> None:
        """Run the members one after another on a number of evaluations, local searches in two rounds."""
        members = self._members(search)
        exact = exact_members(search.problem.graph.n, search.execution)
        for member in exact if search.problem.topology.p == 2 else ():
            if member.two_devices:
                _part(search, member.name, member.method, seed)
        prove_bound(search)
        self._rules(search, seed)
        fits = search.best is not None
        if not fits:
            find_room(search, seed)
        share = first_shares(search)
        for name in (*(member.name for member in exact if not member.solver), "neural_list", "multilevel"):
            if name in members:
                _part(search, name, members[name], seed, share=share[name])
        if search.problem.graph.n > LARGE:
            return
        if fits:
            repair_memory(search, seed=seed)
        before = search.best_s, search.bound_s
        solvers = ["cpsat", *(member.name for member in exact if member.solver)] if "cpsat" in members else []
        for name in solvers:
            _part(search, name, members[name], seed, share=share[name])
        pays = (search.best_s, search.bound_s) != before
        rounds = pays or self._local_searches(search) > 1
        self._anneal(search, seed, share=self.annealing if rounds else 1.0)
        for name in solvers if pays else ():
            _part(search, name, members[name], seed, share=self.solving)
        self._anneal(search, seed + 1, share=1.0)

    def _local_searches(self, search: Search) -> int:
        """Return how many local searches anneal side by side on a number of evaluations."""
        return 2 if search.left >= 2 * EVALUATIONS_PER_GROUP * search.problem.grouping.k else 1

    def _unlimited(self, search: Search, seed: int) -> AnnealRelaxed | None:
        """Return annealing from the best that rules of thumb find with memory left aside; None if none starts there."""
        if search.done or not tight(search):
            return None
        relaxed = None
        with search.limited("anneal"):
            relaxed = unlimited(search, seconds=RULING * search.left_s)
            self._rules(relaxed, seed)
        return None if relaxed is None or relaxed.best is None else AnnealRelaxed(relaxed.best)

    def _anneal(self, search: Search, seed: int, *, share: float) -> None:
        """Anneal, by two local searches if each gets enough; then one begins with memory left aside."""
        if self._local_searches(search) == 1:
            _part(search, "anneal", Anneal(), seed, share=share)
            return
        start = self._unlimited(search, seed)
        methods = [Anneal(), start or Anneal()]
        _part(search, "anneal", _SideBySide(methods, self.workers), seed, share=share)


def _leader(search: Search, members: Mapping[str, Method]) -> str:
    """Return the member that the first lane is left to: the local search that is most often best by itself."""
    if clusters_first(search):
        return "multilevel"
    return "neural_list" if "neural_list" in members and not tight(search) else "anneal"


def clusters_first(search: Search) -> bool:
    """Return whether clusters are moved rather than groups: no time to move each, or calls of whole sets count."""
    n, execution = search.problem.graph.n, search.execution
    if n > LARGE or (n > CLUSTERED_FIRST and execution is not None and execution.call_limit is not None):
        return True
    quick = execution is not None and execution.cheap_moves
    return n > CLUSTERED_FIRST and not quick and EVALUATED_PER_S * search.left_s < FEW * n * search.problem.grouping.k


def find_room(search: Search, seed: int) -> None:
    """Search for what fits while nothing does, and for its fastest order where there are orders."""
    if search.best is None and not search.done:
        with search.limited("anneal"):
            repair_memory(search, seed=seed)
            _order_best(search)


def _order_best(search: Search) -> None:
    if search.best is not None and search.problem.ordered:
        best_order(search, search.best)


def _gain(before: tuple[float, float], after: tuple[float, float]) -> float:
    """Return by which share of itself an incumbent fell, 1 for the first, and how much the bound rose towards it.

    before, after: the incumbent and its bound, in seconds.
    """
    if not 0 < after[0] < math.inf:
        return 0.0
    fell = 1.0 if math.isinf(before[0]) else (before[0] - after[0]) / before[0]
    return fell + PROOF * (after[1] - before[1]) / after[0]


@dataclass(frozen=True, slots=True)
class _SideBySide(Method):
    """Runs methods at the same time, with seeds of their own."""

    methods: Sequence[Method]
    workers: int

    def run(self, search: Search, *, seed: int) -> None:
        seeds = [seed, *np.random.default_rng(seed).integers(2**31, size=len(self.methods) - 1).tolist()]
        parts = [partial(method.run, seed=s) for method, s in zip(self.methods, seeds, strict=True)]
        run_parallel(search, parts, workers=self.workers)


@dataclass(frozen=True, slots=True)
class _Rules(Method):
    """All rules of thumb of a portfolio; where nothing of theirs fits, the search for what does.

    beside: whether the other lane has a large graph, and begins with some of them. These come last then, and the search
    for what fits comes first, for which they would leave no time.
    """

    portfolio: Portfolio
    beside: bool = False

    def run(self, search: Search, *, seed: int) -> None:
        if self.beside:
            find_room(search, seed)
            self.portfolio._rules(search, seed, RULING_BESIDE, last=tuple(affordable_rules(search)))
        else:
            self.portfolio._rules(search, seed)
            find_room(search, seed)


@dataclass(frozen=True, slots=True)
class _Bound(Method):
    """Proves a lower bound, if there is time for the least of it, and places nothing."""

    def run(self, search: Search, *, seed: int) -> None:
        if search.problem.graph.n <= BOUNDED * search.left_s:
            run_apart(search, prove_bound, above=SLOW)


@dataclass(frozen=True, slots=True)
class _Unlimited(Method):
    """Anneals from the best that the rules of thumb of a portfolio find with memory left aside."""

    portfolio: Portfolio

    def run(self, search: Search, *, seed: int) -> None:
        (self.portfolio._unlimited(search, seed) or AnnealFurther()).run(search, seed=seed)


def _part(
    search: Search, name: str, method: Method, seed: int, *, share: float = 1.0, seconds: float = math.inf
) -> None:
    """Let a method search under its own name with a share of what is left of the budget, and so many seconds."""
    if search.done:
        return
    evaluations = max(1, math.ceil(share * search.left))
    seconds = min(seconds, share * search.left_s)
    with search.limited(name, evaluations=evaluations, seconds=seconds):
        method.run(search, seed=seed)
