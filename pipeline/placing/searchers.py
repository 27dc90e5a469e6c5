"""Placers as the place stage asks them: from what is known of n operations to placements of these operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pipeline.core.arrays import Bool
from pipeline.core.devices import CostTable, Topology, contract_costs
from pipeline.core.errors import UsageError
from pipeline.core.graph import Grouping
from pipeline.core.learning import Checkpointer, Snapshot
from pipeline.core.placement import Placement
from pipeline.core.problem import Budget, Instance, Problem, Progress
from pipeline.core.stages import Answer, Candidate, Evaluator, Placer, Subject, is_simulator
from pipeline.placing.near import EARLIER, Near, Place, moved_lines, place_near
from pipeline.placing.setup import problem_of
from pipeline.progress.interruption import run_interruptible
from pipeline.progress.watchers import Watcher, ignore_progress, progress_text
from pipeline.store.checkpoint import with_checkpointer

Say = Callable[[str], None]
Bind = Callable[[Subject], Evaluator]


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """What one search found: an answer whose placements are of the n operations, and how much was asked for it.

    policy: what the placer has learned; None where it learns nothing that another search could begin with.
    """

    placer: str
    answer: Answer
    evaluations: int
    policy: Snapshot | None = None


@dataclass(slots=True, eq=False)
class PolicyKeeper:
    """A `Checkpointer` that keeps what is published for the next search, and hands all on to another, if any."""

    inner: Checkpointer | None
    policy: Snapshot | None = None

    def load(self) -> Snapshot | None:
        """Return what the other has kept."""
        return None if self.inner is None else self.inner.load()

    def save(self, state: Snapshot) -> None:
        """Let the other keep a state."""
        if self.inner is not None:
            self.inner.save(state)

    def publish(self, policy: Snapshot) -> None:
        """Keep a policy."""
        self.policy = policy
        if self.inner is not None:
            self.inner.publish(policy)


@dataclass(frozen=True, slots=True, eq=False)
class Searcher:
    """A placer and the nodes it places.

    problem: of the k nodes of `grouping`; topology, costs and start are filled in for every search. bind: makes the
    evaluator of a subject. watch: told the progress of every search. keep: a folder for what the placer learns, of the
    run at hand alone; None keeps nothing. near: an earlier placement of the operations, which what is found stays near.
    """

    name: str
    placer: Placer
    problem: Problem
    grouping: Grouping
    bind: Bind
    watch: Watcher = ignore_progress
    keep: Path | None = None
    near: Near | None = None

    def search(
        self,
        subject: Subject,
        start: Candidate | None,
        budget: Budget,
        *,
        seed: int,
        say: Say,
        learned: Snapshot | None = None,
    ) -> SearchOutcome:
        """Return what the placer finds for a subject of n operations, given where to begin.

        learned: what the placer published after its search before, with which it begins.

        A start that gives members of one node different devices is rounded, and is then nobody's find any more.

        Raises:
            PlacewrightError: whatever the placer raises.
        """
        problem = self._problem(subject, start)
        if self.keep is not None and self.near is None:  # which asks the placer again and again, each time anew
            problem = with_checkpointer(problem, self.keep / self.name / str(seed), seed)
        keeper = PolicyKeeper(None if problem.policy is None else problem.policy.checkpointer)
        if problem.policy is not None:
            policy = replace(problem.policy, checkpointer=keeper, learned=learned or problem.policy.learned)
            problem = replace(problem, policy=policy)

        def work(check: Callable[[], None]) -> tuple[Answer, int]:
            def hook(p: Progress) -> None:
                check()
                self.watch(self.name, p)
                say(progress_text(self.name, p))

            def place(asked: Problem, budget: Budget, seed: int) -> tuple[Answer, int]:
                evaluator = self.bind(replace(subject, grouping=self.grouping))
                answer = self.placer.place(asked, evaluator, budget, seed=seed, progress=hook)
                lifted = tuple(replace(c, placement=c.placement.lift(self.grouping)) for c in answer.candidates)
                spent = evaluator.evaluations if answer.evaluations is None else answer.evaluations
                return replace(answer, candidates=lifted), spent

            if self.near is None:
                return place(problem, budget, seed)
            return self._place_near(self.near, problem, subject, place, budget, seed)

        return SearchOutcome(self.name, *run_interruptible(work), keeper.policy)

    def _place_near(
        self, near: Near, problem: Problem, subject: Subject, place: Place, budget: Budget, seed: int
    ) -> tuple[Answer, int]:
        """Return what the placer finds near an earlier placement, with a note on what moves.

        problem, place: of the nodes of `grouping`; see `pipeline.placing.near.place_near`.

        Raises:
            UsageError: the evaluator is no simulator.
        """
        simulator = self.bind(replace(subject, grouping=Grouping.identity(self.grouping.n)))
        if not is_simulator(simulator):
            raise UsageError("place.near needs a simulator.", "Leave place.reward and place.evaluator as they are.")

        def place_nodes(asked: Problem, budget: Budget, seed: int) -> tuple[Answer, int]:
            own = problem.on(allowed=problem.allowed & asked.group_allowed(self.grouping))
            start = None if asked.start is None else lower_placement(asked.start, self.grouping, own.allowed)
            return place(replace(own, start=start, start_by=asked.start_by), budget, seed)

        whole = problem_of(subject.graph, subject.topology, subject.costs)
        answer, spent, record = place_near(
            whole, near, simulator, place_nodes, budget, seed=seed, grouping=self.grouping
        )
        if not record["moved"]:
            answer = replace(answer, candidates=(replace(answer.best, found_by=EARLIER),))
        return replace(answer, notes=(*answer.notes, "; ".join(moved_lines(record)))), spent

    def _problem(self, subject: Subject, start: Candidate | None) -> Problem:
        instance = self.problem.derived(_on_devices, subject.topology, subject.costs, self.grouping)
        problem = replace(self.problem, instance=instance)
        if start is None:
            return problem
        rounded = lower_placement(start.placement, self.grouping, self.problem.allowed)
        same = np.array_equal(rounded.device[self.grouping.group], start.placement.device)
        return replace(problem, start=rounded, start_by=start.found_by if same else "start")


def _on_devices(problem: Problem, topology: Topology, costs: CostTable | None, grouping: Grouping) -> Instance:
    """Return the instance on these devices; costs: of the operations that `grouping` makes its nodes of."""
    contracted = None if costs is None else contract_costs(costs, problem.graph, grouping)
    return replace(problem.instance, topology=topology, costs=contracted)


def in_turn(
    searchers: Sequence[Searcher],
    subject: Subject,
    start: Candidate | None,
    budget: Budget,
    *,
    seed: int,
    say: Say,
    before: Sequence[SearchOutcome] = (),
) -> list[SearchOutcome]:
    """Return what the searchers find one after another, each from the best that was found before it.

    budget: of each of them. before: of a round before, whose agents go on.
    """
    learned = {outcome.placer: outcome.policy for outcome in before}
    outcomes: list[SearchOutcome] = []
    best_s = np.inf
    for searcher in searchers:
        outcome = searcher.search(subject, start, budget, seed=seed, say=say, learned=learned.get(searcher.name))
        outcomes.append(outcome)
        if outcome.answer.value_s < best_s:
            start, best_s = outcome.answer.best, outcome.answer.value_s
    return outcomes


def lower_placement(placement: Placement, grouping: Grouping, allowed: Bool) -> Placement:
    """Return the placement of k groups that is nearest to one of their n operations, by majority.

    allowed: bool [k, p], where each group may go.
    """
    votes = np.zeros(allowed.shape)
    np.add.at(votes, (grouping.group, placement.device), 1.0)
    return Placement(np.argmax(np.where(allowed, votes, -1.0), axis=1).astype(np.int32), placement.devices)
