"""What every placer shares: asking the evaluator within the budget; `history` remembers what it said."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import entry_points
from itertools import islice
from typing import Protocol

import numpy as np

from pipeline.core.arrays import Float64, Int32
from pipeline.core.errors import DeviceError, UsageError
from pipeline.core.learning import PolicyInputs, Snapshot
from pipeline.core.measurement import MeasurementFailed, Prediction, seconds_of
from pipeline.core.params import check_params
from pipeline.core.placement import Placement
from pipeline.core.problem import Budget, Problem, Progress, ProgressHook
from pipeline.core.simulation import ExecutionModel, LocalSearch, Moves, Simulation, Timeline
from pipeline.core.stages import (
    Answer,
    Candidate,
    Evaluator,
    SimulationInterruptedError,
    Simulator,
    is_interruptible,
    is_proven,
    is_simulator,
    simulates_starts,
)
from policy.place.base.explaining import FirstRound, why_not_own
from policy.place.base.history import ANSWERS, Found, History
from policy.place.base.watch import Watch

SLOW = 2000  # operations from which one evaluation may take longer than a look at the clock may wait
FIRST_S = 1.0  # seconds that an evaluation may take in any case while nothing is known
SLOWER = "all that it tried is slower, or exceeds the memory"
NOWHERE = "what it tried exceeds the memory, or runs on devices that do not support it"
MANY = 10**12  # evaluations, more than any search gets to


Look = Callable[[], None]  # raises BudgetEndedError where there is no time left; see `Search.look`


class BudgetEndedError(Exception):
    """What `Search.look` raises; `Search.limited` and `Method.place` end with what is known then."""


class Method(Protocol):
    """What the placers of this folder are made of: `run` searches, `place` frames it as the Protocol `Placer` wants.

    A method that calls others runs them on its own `Search`, within `Search.limited`.

    Every method is interruptible: it has a placement evaluated early, looks at `left`, `left_s` or `done`, or calls
    `look`, at least every 50 ms where the size of the problem allows it, and ends when its budget has. What cannot
    look, such as a solver's library, is called by `parallel.run_apart`.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        check_params(self)

    def run(self, search: Search, *, seed: int) -> None:
        """Ask the search's evaluator about placements until the budget, or the ideas, end."""

    def place(
        self, problem: Problem, evaluator: Evaluator, budget: Budget, *, seed: int, progress: ProgressHook
    ) -> Answer:
        """Return the best placements seen, and the bound proven, if any.

        Raises:
            DeviceError: no placement fits the devices.
        """
        search = Search(problem, evaluator, budget, progress, author=registered_name(type(self)))
        try:
            with suppress(BudgetEndedError):
                self.run(search, seed=seed)
        finally:
            search.close()
        return search.answer()


@cache
def registered_name(method: type) -> str:
    """Return the name of a method: of a plug-in that of its entry point, else that of its module, which holds one."""
    module = method.__module__
    if not module.startswith("policy."):
        for entry in entry_points(group="placewright.place"):
            if entry.value == f"{module}:{method.__qualname__}":
                return entry.name
    return module.rpartition(".")[2]


class Search:
    """The placements that one run of a placer has asked about.

    Making one evaluates `problem.start` and then every placement on a single device that fits, as far as the budget
    goes: no placer ends worse than the best of them in its evaluator's eyes. Where the evaluator is a simulator, a
    device alone that needs longer than the best so far even for its operations is left out, and one like another that
    failed.

    A time limit is looked at before each placement but the first, so placements go to the evaluator one by one if
    there is a limit, and it is exceeded by one evaluation at most, or by the moves of one local search.
    """

    def __init__(
        self, problem: Problem, evaluator: Evaluator, budget: Budget, progress: ProgressHook, *, author: str = ""
    ) -> None:
        self.problem, self.budget = problem, budget
        self.spent = 0
        self.planned = 0  # schedules and estimates of the method's own, which nobody was asked about
        self.author = author
        self._evaluator, self._progress = evaluator, progress
        self._simulator = evaluator if is_simulator(evaluator) else None
        self._began_s = time.monotonic()
        self._last_evaluation = MANY if budget.evaluations is None else budget.evaluations
        self._last_s = math.inf if budget.seconds is None else self._began_s + budget.seconds
        self._history = History(problem.graph.n, problem.topology.names)
        self.stopped: Callable[[], bool] = lambda: False  # whether nobody waits for this part of a search any more
        self.authors: set[str] = set()  # under whose names parts of it have run
        self.details: dict[str, float] = {}  # what the method tells of itself along with its progress
        self.notes: list[str] = []  # sentences of the method on its own answer
        self._first: FirstRound | None = None  # what the method has not finished once
        self._forks: list[Search] = []
        self._beside: Sequence[Found] = ()
        self._told = -1
        self._watch = self._new_watch()
        problem, names = self.problem, self.problem.topology.names
        if problem.start is not None:
            self.evaluate([problem.start], author=problem.start_by)
        if self.simulator is None or problem.costs is None:
            alone = [Placement.single(problem.graph.n, d, names) for d in range(problem.topology.p)]
            self.evaluate(alone, author="single")
            return
        work_s = problem.costs.op_s.sum(axis=0)  # [p], no placement on one device alone is faster
        failed: list[int] = []
        for d in np.argsort(work_s, kind="stable").tolist():
            if work_s[d] < self.best_s and not any(problem.alike(d, other) for other in failed):
                alone_s = self.evaluate([Placement.single(problem.graph.n, d, names)], author="single")
                failed += [d] if math.isinf(alone_s[0]) else []

    @property
    def simulator(self) -> Simulator | None:
        """Return the evaluator if it is a simulator."""
        return self._simulator

    @property
    def execution(self) -> ExecutionModel | None:
        """Return the rules the evaluator follows; None where it does not predict."""
        return None if self.simulator is None else self.simulator.execution

    @property
    def left(self) -> int:
        """Return how many more placements the evaluator may be asked about; 0 once the time is up."""
        return 0 if self.spent and self.left_s <= 0 else self._last_evaluation - self.spent

    @property
    def left_s(self) -> float:
        """Return how many seconds are left; inf without a time limit, 0 where nobody waits any more."""
        return 0.0 if self.stopped() else self._last_s - time.monotonic()

    def look(self) -> None:
        """Look at the clock, in the middle of what takes long.

        Raises:
            BudgetEndedError: the time is up, or nobody waits any more.
        """
        if self.left_s <= 0:
            raise BudgetEndedError

    @property
    def done(self) -> bool:
        """Return whether the budget is spent, or the best placement proven, or as good as was asked for."""
        return self.left <= 0 or self.settled

    @property
    def best(self) -> Placement | None:
        """Return the placement of the least value; None while nothing has a finite value."""
        return self._history.best

    @property
    def best_s(self) -> float:
        """Return the least value in seconds; inf while there is none."""
        return self._history.best_s

    @property
    def bound_s(self) -> float:
        """Return the greatest lower bound proven so far, in seconds; 0 if none is."""
        return self._history.bound[0]

    @property
    def proven(self) -> bool:
        """Return whether no placement can be better than the best one seen."""
        return is_proven(self.best_s, self.bound_s)

    @property
    def settled(self) -> bool:
        """Return whether the best placement is proven, or as good as was asked for."""
        return self.proven or self.best_s * (1 - self.budget.gap) <= self.bound_s

    def prove(self, bound_s: float, by: str) -> None:
        """Note that no placement is faster than `bound_s`."""
        self._history.prove(bound_s, by)

    @contextmanager
    def limited(self, author: str, *, evaluations: int | None = None, seconds: float | None = None) -> Iterator[None]:
        """Let a part of the search run under a name of its own and within a part of what is left.

        It ends quietly with `BudgetEndedError`, whether its part or all of the budget has ended.
        """
        kept = self.author, self._last_evaluation, self._last_s
        self.author = author
        self.authors.add(author)
        if evaluations is not None:
            self._last_evaluation = min(self._last_evaluation, self.spent + evaluations)
        if seconds is not None:
            self._last_s = min(self._last_s, time.monotonic() + seconds)
        try:
            with suppress(BudgetEndedError):
                yield
        finally:
            self.author, self._last_evaluation, self._last_s = kept
            self.close()

    def fork(self, author: str, *, evaluations: int, progress: ProgressHook, copied: bool = False) -> Search:
        """Return a search for another thread or process, which begins with what is known here; see `join`.

        It has its own share of the budget and its own simulator; until it is joined, what it spends and finds shows in
        the progress that is told here. progress: called on that thread. copied: whether a forked process will use it,
        where everything is a copy anyhow, the simulator as well.

        Raises:
            ValueError: the evaluator is not a simulator.
        """
        if self.simulator is None:
            raise ValueError("only a simulator can be asked by several threads")
        twin = copy.copy(self)
        if not copied:
            twin._evaluator = twin._simulator = self.simulator.fork()
        twin._progress, twin._watch = progress, twin._new_watch()
        twin._history, twin._forks, twin._beside, twin.details = self._history.fork(), [], (), {}
        twin.notes = []
        twin.author, twin.spent, twin.planned, twin._last_evaluation = author, 0, 0, evaluations
        self._forks.append(twin)
        return twin

    def join(self, fork: Search, evaluations: int | None = None) -> None:
        """Take over what a fork has spent, seen, found and proven; its thread or process has ended.

        evaluations: of its simulator, if that has counted in another process.
        """
        self._forks.remove(fork)
        self.spent += fork.spent
        self.planned += fork.planned
        if self.simulator is not None and fork.simulator is not None:
            self.simulator.absorb(fork.simulator.evaluations if evaluations is None else evaluations)
        self._history.join(fork._history)

    @property
    def history(self) -> History:
        """Return what has been seen, found and proven."""
        return self._history

    def share(self, beside: Sequence[Found]) -> Sequence[Found]:
        """Let this search `adopt` what others find meanwhile; return those that it did before."""
        before, self._beside = self._beside, beside
        return before

    def adopt(self) -> None:
        """Take over the incumbents and bounds of the searches beside this one, if they are better."""
        for other in self._beside:
            other.look()
            self._history.adopt(other)

    def tell(self) -> None:
        """Tell the progress, if anything was spent since it was told last."""
        if self.spent + sum(fork.spent for fork in self._forks) > self._told:
            self._tell()

    def evaluate(
        self, placements: Sequence[Placement], *, author: str = "", planned_s: Sequence[float] | None = None
    ) -> Float64:
        """Return float64 [len(placements)], median seconds.

        inf: the evaluator failed, or the placement does not fit and was not sent. nan: the budget ran out before it.
        A placement seen before costs nothing. author: who came up with them, the search's own unless given.
        planned_s: what their author planned for each.

        Raises:
            UsageError: one is no placement of the problem's nodes, but of groups of them, or on other devices.
        """
        self._goes_on()
        keys, seen = [placement.digest() for placement in placements], self._history.value_s
        values = np.full(len(placements), math.nan)
        fresh: dict[bytes, tuple[Placement, float]] = {}
        for i, (key, placement) in enumerate(zip(keys, placements, strict=True)):
            if key not in seen and not self._fits(placement):
                values[i] = math.inf
                self._claim(
                    author or self.author, math.inf, "its weights exceed the memory, or a device is not allowed"
                )
            elif key in seen:
                self._claim(author or self.author, seen[key], NOWHERE)
            else:
                fresh.setdefault(key, (placement, math.nan if planned_s is None else planned_s[i]))
        self._ask(fresh, author or self.author)
        for i, key in enumerate(keys):
            if key in seen:
                values[i] = seen[key]
        return values

    def local_search(self, start: Placement, moves: Moves) -> LocalSearch:
        """Return where moves lead from a placement that the evaluator has seen; ends with the budget.

        On a simulator the whole local search is compiled; any other evaluator is asked about one move after the other.
        """
        self._goes_on()
        if self.simulator is None:
            # Ask about one placement after the other; what does not fit is never taken
            tried, taken, value_s = np.zeros(moves.r, bool), np.zeros(moves.r, bool), np.full(moves.r, math.nan)
            placement, now_s = start, float(self.evaluate([start])[0])
            best, best_s = placement, now_s
            for i in range(moves.r):
                if self.left <= 0:
                    break
                moved = moves.applied(i, placement)
                nodes = moves.node[moves.ptr[i] : moves.ptr[i + 1]]
                if moved.key() == placement.key() or not self.problem.allowed[nodes, moved.device[nodes]].all():
                    continue
                value = float(self.evaluate([moved])[0])
                tried[i], value_s[i] = True, value
                if value <= now_s + moves.threshold_s[i]:
                    taken[i], placement, now_s = True, moved, value
                if value < best_s:
                    best, best_s = moved, value
            return LocalSearch(tried, value_s, taken, placement, now_s, best, best_s)
        with self._in_time():
            local_search = self.simulator.local_search(start, moves, allowed=self.problem.allowed, limit=self.left)
        self.spent += local_search.evaluations
        key = local_search.best.digest()
        if math.isfinite(local_search.best_s) and key not in self._history.value_s:
            self._history.note(key, Candidate(local_search.best, Prediction(local_search.best_s), self.author))
        if local_search.evaluations:
            tried_s = local_search.value_s[local_search.tried]
            self._claim(self.author, float(tried_s.min(initial=math.inf)), SLOWER)
            self._tell()
        return local_search

    def simulate(self, device: Int32, *, author: str = "") -> Simulation:
        """Return what b placements without an order cost, device int32 [b, n], as many as the budget still allows.

        The best of those that fit are kept, all others forgotten; they must be allowed. author: as in `evaluate`.

        Raises:
            UsageError: the evaluator is not a simulator.
        """
        if self.simulator is None:
            raise UsageError("Only a simulator tells how much memory a placement needs.", "Call `evaluate`.")
        self._goes_on()
        device = np.ascontiguousarray(device[: max(0, self.left)])
        with self._in_time():
            simulation = self.simulator.simulate(device)
        return self._simulated(device, simulation, author)

    def simulate_starts(self, device: Int32) -> tuple[Simulation, Float64 | None]:
        """Return what `simulate` does, and float64 [b, n], when each node starts; None where nobody tells that.

        Raises:
            UsageError: the evaluator is not a simulator.
        """
        simulator = self.simulator
        if simulator is None or not simulates_starts(simulator):
            return self.simulate(device), None
        device = np.ascontiguousarray(device[: max(0, self.left)])
        simulation, start_s = simulator.simulate_starts(device)
        return self._simulated(device, simulation, ""), start_s

    def _goes_on(self) -> None:
        """End a part of a search that nobody waits for any more, whatever it does."""
        if self.stopped():
            raise BudgetEndedError

    def _simulated(self, device: Int32, simulation: Simulation, author: str) -> Simulation:
        """Count what was simulated, and keep the best of it."""
        self.spent += len(device)
        value_s = np.where(simulation.over_bytes == 0, simulation.value_s, math.inf)
        if len(device):
            self._claim(author or self.author, float(value_s.min()), NOWHERE)
        for i in np.argsort(value_s, kind="stable")[:ANSWERS].tolist():
            placement = Placement(device[i], self.problem.topology.names)
            key = placement.digest()
            if math.isfinite(value_s[i]) and key not in self._history.value_s and self._fits(placement):
                self._history.note(key, Candidate(placement, Prediction(float(value_s[i])), author or self.author))
        self._tell()
        return simulation

    def timeline(self, placement: Placement) -> Timeline | None:
        """Return when everything happens under a placement that has a finite value; it counts as an evaluation.

        None without one left, where the time is up meanwhile, or where the evaluator does not simulate the nodes of the
        problem: one of the operations of which they are made tells of these.
        """
        if self.simulator is None or self.left <= 0:
            return None
        self.spent += 1
        with self._in_time(), suppress(SimulationInterruptedError):
            timeline = self.simulator.timeline(placement)
            return timeline if timeline.device.size == placement.n else None
        return None

    def answer(self, limit: int = ANSWERS) -> Answer:
        """Return the `limit` best placements seen, best first, failed ones last, and what was proven.

        Raises:
            DeviceError: not one placement that was looked at fits the devices.
        """
        ranked = self._history.ranked()
        if not ranked:
            raise DeviceError(
                f"No placement of {self.problem.graph.n} nodes was found that keeps within memory and allowed devices.",
                "Allow more devices, take pins away, use devices with more memory, or search longer.",
            )
        notes = (*self.notes, *(() if self.proven else (*self._unfinished(), *self._why_not_own(ranked[0]))))
        return Answer(tuple(ranked[:limit]), *self._history.bound, self.spent, self._own()[0], notes, self.planned)

    def expect(self, what: str, evaluations: int) -> None:
        """Note that the method begins what it must finish once to be itself, such as an episode; see `reached`.

        evaluations: how many that takes at most. Unless it is reached, the answer says so.
        """
        self._first = FirstRound(self.author, what, evaluations, max(0, self._last_evaluation - self.spent), self.spent)

    def reached(self) -> None:
        """Note that what was expected is finished."""
        self._first = None

    def _unfinished(self) -> list[str]:
        """Return what the method has not finished once, what that takes and what was left for it, in a sentence."""
        return [] if self._first is None else self._first.unfinished(self.spent, self.budget.seconds)

    def _claim(self, author: str, value_s: float, why: str) -> None:
        """Note what a placement costs that the method came up with, not one evaluated before it began."""
        if author not in self._given:
            self._history.claim(author, value_s, why)

    @property
    def _given(self) -> tuple[str, str]:
        """Return the authors of what is evaluated before the method begins."""
        return ("single", self.problem.start_by)

    def _own(self) -> tuple[float, str]:
        """Return the least seconds of a placement that the method made, and why it failed if all did; nan for none."""
        return min(self._history.own.values(), key=lambda entry: entry[0], default=(math.nan, ""))

    def _why_not_own(self, best: Candidate) -> list[str]:
        """Return why the answer was there before the method began, in a sentence; nothing where it was not."""
        if best.found_by not in self._given or self.author in ("", *self._given):
            return []
        answer = "the best single device" if best.found_by == "single" else "the start"
        own = self._own()
        if not math.isnan(own[0]):
            return [why_not_own(self.author, answer, self.best_s, own)]
        more = "seconds" if self.left_s <= 0 else "evaluations"
        none = (
            f"{self.author} has evaluated no placement of its own: the budget ended after {self.spent} "
            f"evaluation(s), and the answer is {answer}. Give it more {more}."
        )
        return [] if self._unfinished() else [none]  # goes without saying where the first round is not finished

    def state(self) -> Snapshot:
        """Return what has been seen, kept and spent, from which `resume` goes on in another process."""
        known = self._history.state()
        facts = {"spent": self.spent, "planned": self.planned, "elapsed_s": time.monotonic() - self._began_s}
        return Snapshot(known.arrays, facts | dict(known.facts))

    def resume(self, state: Snapshot) -> None:
        """Go on from a state of a search for the same problem; what was evaluated since the start counts no more."""
        self._history.resume(state)
        self.reached()
        self.spent = state.facts["spent"]
        self.planned = state.facts.get("planned", 0)  # states of earlier versions have none
        used_s = time.monotonic() - self._began_s
        self._last_s += used_s - state.facts["elapsed_s"]
        self._began_s += used_s - state.facts["elapsed_s"]

    def _fits(self, placement: Placement) -> bool:
        return self.problem.fits(placement) and (placement.priority is None or self.problem.ordered)

    def _ask(self, fresh: dict[bytes, tuple[Placement, float]], author: str) -> None:
        """Send placements to the evaluator until they or the budget end."""
        waiting = iter(fresh.items())
        step = None if math.isinf(self._last_s) else 1
        while self.left > 0 and (batch := list(islice(waiting, step or self.left))):
            with self._in_time():
                answers = self._evaluator.evaluate([placement for _, (placement, _) in batch])
            self.spent += len(batch)
            for (key, (placement, planned_s)), answer in zip(batch, answers, strict=True):
                if self.simulator is not None and isinstance(answer, MeasurementFailed) and answer.kind == "timeout":
                    continue  # it was interrupted
                self._claim(author, seconds_of(answer), answer.message if isinstance(answer, MeasurementFailed) else "")
                self._history.note(key, Candidate(placement, answer, author, planned_s))
            self._tell()

    def _new_watch(self) -> Watch | None:
        """Return what interrupts the simulator; None where that cannot be, or need not."""
        simulator = self.simulator
        if simulator is None or self.problem.graph.n < SLOW or not is_interruptible(simulator):
            return None
        return Watch(simulator)

    def close(self) -> None:
        """End the thread that looks after the time, if there is one; the next evaluation begins another one."""
        if self._watch is not None:
            self._watch.close()

    @contextmanager
    def _in_time(self) -> Iterator[None]:
        """Interrupt what the simulator does meanwhile when the time is up, if it can be interrupted."""
        if self._watch is None or math.isinf(self._last_s):
            yield
            return
        at_s = time.monotonic() if self.stopped() else self._last_s
        with self._watch.until(at_s if self.best is not None else max(at_s, time.monotonic() + FIRST_S)):
            yield

    def _tell(self) -> None:
        self._told = self.spent + sum(fork.spent for fork in self._forks)
        self._progress(
            Progress(
                done=self._told,
                total=self.budget.evaluations,
                value_s=min([self.best_s, *(fork.best_s for fork in self._forks)]),
                single_s=self._history.single_s,
                bound_s=self.bound_s,
                left_s=self.left_s,
                details=dict(self.details),
            )
        )


def unhurried() -> None:
    """Let what takes long go on: nobody waits for it."""


def policy_of(problem: Problem, placer: str) -> PolicyInputs:
    """Return what a placer that learns is given.

    Raises:
        UsageError: the problem has no policy inputs.
    """
    if problem.policy is None:
        raise UsageError(
            f"The placer '{placer}' learns on features and groups, and there are none.",
            "Run it with an embed and a group stage.",
        )
    return problem.policy
