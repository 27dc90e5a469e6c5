"""Constraint programming: the best placement of a small graph, with proof."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from pipeline.core.params import param
from pipeline.core.placement import Placement
from pipeline.core.simulation import Timeline
from pipeline.core.stages import PROVEN
from pipeline.shared.feasibility import finest_grouping
from pipeline.shared.graphs import edge_depths
from policy.place.base.groups import Groups, mostly_on
from policy.place.base.parallel import run_apart
from policy.place.base.search import BudgetEndedError, Method, Search
from policy.place.exact.shared.bounds import SAFETY
from policy.place.exact.shared.cpsat_models import ConstraintProgram
from policy.place.exact.shared.objectives import Hint, objective_of
from policy.place.exact.shared.proofs import lower_bound, one_to_one, timeline_of
from policy.place.local.room import repair_memory

REFUTING = 0.7  # share of the effort that goes into refuting that there is anything better
EASY = 100  # variables up to which the whole program is solved as quickly
BETTER = PROVEN / 2  # the share by which anything must be better to be looked for
LOOK_S = 0.1  # seconds between two looks at whether the search has ended meanwhile
ROOM = 0.4  # share of the time left that goes to a first placement that fits
MARGIN = 0.98  # the share of the time left that the solver may use


@dataclass(frozen=True, slots=True)
class CpSat(Method):
    """Solves the simulator's rules as a constraint program.

    For devices that work at the same time every group has a device and every operation a start; devices run one
    operation at a time, links carry what the rules of contention allow. For devices that run one after another, and for
    pipelines, there are devices alone. The solver starts from the best placement seen. Every schedule it finds is run
    by the evaluator, with its order as priorities where placements may have them; what it proves holds for all orders.
    Times are whole ticks, rounded down, so that proofs stay true; the error is below 0.1 %.

    Programs above `largest` are left alone, see `size_of`. Without a time limit one thread works and the effort is
    counted in the solver's own steps, in proportion to the evaluations left, so that equal seeds give equal answers.
    A second by that count was seen to take 10 to 40 seconds.
    """

    version: ClassVar[int] = 7
    placers: ClassVar[tuple[str, ...]] = ("heft", "dpl", "latency_dp")

    largest: int = param(20_000, "programs of more variables are skipped; without start times, of four times as many")
    workers: int = param(2, "threads of the solver, where there is a time limit", within="[1, inf)")
    effort: float = param(
        1e-3, "without a time limit: the solver's seconds, by its own count, per evaluation left", within="(0, inf)"
    )

    def run(self, search: Search, *, seed: int) -> None:
        """Note the bounds, solve the program from the best placement, and ask about every placement on the way."""
        from ortools.sat.python import cp_model  # noqa: F401  which takes a second the first time: a rehearsal's

        problem = search.problem
        if search.left <= 0 or problem.costs is None:
            return
        execution, objective = search.execution, objective_of(search.execution)
        groups = problem.derived(Groups.of)
        if search.best is None:  # no device holds everything
            first = groups.devices_of(mostly_on(problem, 0))
            search.evaluate([groups.placement(groups.repaired(first))])
        if search.best is None:  # the program counts weights alone, not what a simulator adds to them
            with search.limited(search.author, seconds=ROOM * search.left_s):
                repair_memory(search, seed=seed)
        objective.begin(search, seed=seed)
        timeline = timeline_of(search)
        same = timeline is not None and len(timeline.names) == problem.graph.n
        seconds = max(0.0, min(2.0, search.left_s / 10))
        search.prove(*lower_bound(problem, execution, seconds=seconds, one_to_one=same))
        if not search.done and size_of(search) <= self.largest:
            run_apart(search, partial(self._run_solver, timeline=timeline if same else None, seed=seed))

    def _run_solver(self, search: Search, *, timeline: Timeline | None, seed: int) -> None:
        """Make the program and ask about all that the solver finds, neither of which looks at the clock throughout.

        timeline: of the best placement, if every node of the problem is one operation of the simulator.
        """
        problem, execution, objective = search.problem, search.execution, objective_of(search.execution)
        groups, same = problem.derived(Groups.of), timeline is not None
        finest = groups.k == finest_grouping(problem).k
        groups = objective.groups(problem)
        proves = finest and objective.exact
        if proves and size_of(search) > EASY and (same or one_to_one(search)) and self._refuted(search, groups, seed):
            return
        device = None if search.best is None else groups.devices_of(search.best)
        priority = None if search.best is None else search.best.priority
        hint = Hint(device, search.best_s, timeline, priority)
        program = objective.program(problem, groups, execution, hint, search.bound_s)
        if program is None:
            return
        bound_s = self._solve(search, program, _Asking(search, groups, program), seed)
        if proves and (same or one_to_one(search)):
            search.prove((bound_s + objective.constant_s(problem)) * (1 - SAFETY), "cpsat")

    def _refuted(self, search: Search, groups: Groups, seed: int) -> bool:
        """Return whether there is nothing better; asked as long as there is, and some of the time is left."""
        from ortools.sat.python import cp_model

        problem, execution = search.problem, search.execution
        objective = objective_of(execution)
        with search.limited(search.author, seconds=REFUTING * search.left_s):
            while not search.done and search.best is not None:
                value_s = search.best_s * (1 - BETTER)
                hint = Hint(groups.devices_of(search.best), search.best_s, None)
                program = objective.below(problem, groups, execution, hint, value_s)
                if program is None:
                    break
                solver = self._solver(search, seed, share=REFUTING)
                with _stoppable(solver, search):
                    status = solver.solve(program.model)
                if status == cp_model.INFEASIBLE:
                    search.prove(value_s * (1 - SAFETY), "cpsat")
                if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
                    break
                _Asking(search, groups, program)(solver.value, search.best_s / program.tick_s)
                if search.best_s > value_s:  # better in ticks alone
                    break
        return search.proven

    def _solve(self, search: Search, program: ConstraintProgram, ask: _Asking, seed: int) -> float:
        """Run the solver and return the seconds below which it found nothing to lie."""
        from ortools.sat.python import cp_model

        solver = self._solver(search, seed)
        with _stoppable(solver, search):
            status = solver.solve(program.model, _callback(solver, ask))
        proved = status in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.UNKNOWN)
        bound = solver.best_objective_bound
        return max(0.0, bound * program.tick_s) if proved and math.isfinite(bound) else 0.0

    def _solver(self, search: Search, seed: int, *, share: float = 1.0) -> Any:
        """Return a solver that may take what is left; share: of its own steps, where time is not limited."""
        from ortools.sat.python import cp_model

        solver = cp_model.CpSolver()
        solver.parameters.random_seed = seed % 2**31
        solver.parameters.catch_sigint_signal = False  # its own handler aborts unless this is the main thread
        # One thread that takes turns at all strategies is repeatable, and often proves more than two that do not.
        endless = math.isinf(search.left_s)
        solver.parameters.num_workers = 1 if endless else self.workers
        solver.parameters.interleave_search = endless or self.workers == 1
        if endless:
            solver.parameters.max_deterministic_time = share * self.effort * search.left
        else:
            solver.parameters.max_time_in_seconds = max(0.0, MARGIN * search.left_s)
        return solver


def size_of(search: Search) -> int:
    """Return about how many variables the program of a search has; a quarter where operations have no start times.

    Counted before the program is made, for making a large one takes longer than many a search.
    """
    return objective_of(search.execution).variables(search.problem, search.execution)


@contextmanager
def _stoppable(solver: Any, search: Search) -> Iterator[None]:
    """Let the solver stop when nobody waits for the search any more."""
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(LOOK_S):
            if search.stopped():
                solver.stop_search()

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class _Asking:
    """Asks the evaluator about what the solver finds."""

    def __init__(self, search: Search, groups: Groups, program: ConstraintProgram) -> None:
        self.search, self.groups, self.program = search, groups, program
        self.depth = edge_depths(search.problem.graph)

    def __call__(self, value: Callable[[Any], int], objective: float) -> bool:
        """Ask about one solution; return whether to go on. value: what a variable is in it."""
        device = np.array([next(d for d, on in enumerate(row) if value(on)) for row in self.program.x], np.int32)
        placements = [self.groups.placement(device)]
        if self.search.problem.ordered and self.program.start:
            start = np.array([value(s) for s in self.program.start], np.int64)
            rank = np.empty(start.size)
            rank[np.lexsort((self.depth, start))] = np.arange(start.size)
            placements.insert(0, Placement(placements[0].device, placements[0].devices, rank))
        if self.program.turn:
            turn = np.array([value(t) for t in self.program.turn], np.float64)
            placements = [Placement(placements[0].device, placements[0].devices, turn)]
        with suppress(BudgetEndedError):  # which must not pass through the solver
            self.search.evaluate(placements, planned_s=[objective * self.program.tick_s] * len(placements))
        return not self.search.done


def _callback(solver: Any, ask: _Asking) -> Any:
    """Return the object that the solver tells of its solutions, and let the solver stop at a better bound as well.

    It must not be stopped at the first solution: OR-tools 9.15 ends the process if it has solved nothing but the hint.
    """
    from ortools.sat.python import cp_model

    class SolutionCallback(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.solutions = 0

        def on_solution_callback(self) -> None:
            self.solutions += 1
            if not ask(self.value, self.objective_value) and self.solutions > 1:
                self.stop_search()

    callback = SolutionCallback()

    def bounded(_: float) -> None:
        if callback.solutions > 1 and ask.search.done:
            solver.stop_search()

    solver.best_bound_callback = bounded
    return callback
