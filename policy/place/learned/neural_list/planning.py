"""Schedules planned before the evaluator is asked about any: by several policies, in several ways, and by rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np

from policy.place.base.search import BudgetEndedError, Look
from policy.place.learned.neural_list.constructing import Scores
from policy.place.learned.neural_list.instances import ListInstance
from policy.place.learned.neural_list.list_policy import ListPolicy
from policy.place.learned.neural_list.sampling import BEST, FOLLOWED, SWEEPS, ListDraft, Noise, Sample, ways_of
from policy.place.lists.etf import earliest_first, no_favourites, static_level
from policy.place.lists.listing import PartialSchedule, list_schedule
from policy.place.lists.work import ScheduleInputs, upward

CELLS = 80_000  # operations times devices that are planned for, of all plans together, before a first question
LARGE, FEW = 10_000, 2  # operations times devices beyond which there are no more plans than FEW; 0.1 s for all
AGAIN = 4  # plans that are made again, seeing themselves

Rng = np.random.Generator
Maker = Callable[[], "Plan"]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A schedule, and what it is expected to take.

    replayed_s: when all would end if operations ran where it puts them, in the order in which they become ready.
    scores: that it was made by, None for a rule's. width: ready operations that were compared.
    """

    draft: ListDraft
    replayed_s: float
    scores: Scores | None
    width: int

    @classmethod
    def of(cls, draft: ListDraft, scores: Scores | None, width: int) -> Plan:
        """Return the plan that is a draft."""
        return cls(draft, draft.instance.replayed_s(draft.device), scores, width)

    @property
    def expected_s(self) -> float:
        """Return seconds between those of the schedule in its own order and those of the replay."""
        return math.sqrt(self.draft.planned_s * self.replayed_s)

    @property
    def schedule(self) -> PartialSchedule:
        """Return the schedule."""
        return self.draft.schedule

    @property
    def instance(self) -> ListInstance:
        """Return what was scheduled."""
        return self.draft.instance

    @property
    def cells(self) -> int:
        """Return the operations, or nodes of them, times the devices that were planned for."""
        return self.instance.work.op_s.size

    @property
    def way(self) -> tuple[ListInstance, int]:
        """Return how it was constructed."""
        return self.instance, self.width


def scored(instance: ListInstance, width: int, scores: Scores) -> Plan:
    """Return the plan that scores lead to."""
    return Plan.of(ListDraft(instance, instance.schedule(scores, width=width)), scores, width)


def plans(instances: Sequence[ListInstance], policies: Sequence[ListPolicy], noise: Noise, rng: Rng) -> list[Plan]:
    """Return what policies and rules plan, what is expected to end first first; fewer plans on large problems.

    Where the time ends meanwhile, those that were made by then.

    The first ones are made again, seeing where they put operations themselves. Where a policy prefers nothing, its
    plans are draws.
    """
    cells = instances[0].work.op_s.size
    most = FEW if cells > LARGE else CELLS // max(1, cells)
    makers = list(_makers(instances, policies, noise, rng))[:most]
    made = list[Plan]()
    with suppress(BudgetEndedError):
        for make in makers:
            instances[0].look()
            made.append(make())
        made.sort(key=lambda plan: plan.expected_s)
        for plan in made[: min(AGAIN, most - len(made))]:
            made.extend(_again(plan))
    return sorted(made, key=lambda plan: plan.expected_s)


def _makers(
    instances: Sequence[ListInstance], policies: Sequence[ListPolicy], noise: Noise, rng: Rng
) -> Iterator[Maker]:
    """Yield what makes plans: one of the first policy, those of the rules, then all others."""
    ways = ways_of(instances)
    for at, policy in enumerate(policies):
        for instance, width in ways:
            scores = policy.scores(instance.context)
            drawn = scores if np.any(scores.device) else noise.on(scores, instance, rng)
            yield partial(scored, instance, width, drawn)
            if at == 0 and (instance, width) == ways[0]:
                yield from (partial(_ruled, i, rule) for rule in RULES for i in instances)


class Parents:
    """Draws plans around those that were the fastest, at first around those that are expected to be.

    best: by what plans were made and how, the fastest first; rules' plans have nothing to draw around.
    """

    def __init__(self, made: Sequence[Plan], instances: Sequence[ListInstance], noise: Noise, rng: Rng) -> None:
        self.ways, self.noise, self.rng = ways_of(instances), noise, rng
        self.best: list[Sample[tuple[ListInstance, int]]] = []
        for plan in made:
            self.note(plan.expected_s, plan)

    def drawn(self) -> Plan:
        """Return a plan by the scores of one of the best with noise, mostly constructed like it."""
        parent = self.best[int(self.rng.integers(len(self.best)))]
        among = [parent.way] if self.rng.random() < FOLLOWED else self.ways
        instance, width = among[int(self.rng.integers(len(among)))]
        return scored(instance, width, self.noise.on(parent.scores, instance, self.rng))

    def note(self, seconds: float, plan: Plan) -> None:
        """Take note of what a plan took."""
        if plan.scores is not None:
            quiet = plan.scores._replace(noise=np.zeros((0, 0)))
            best = [*self.best, Sample(seconds, quiet, plan.way)]
            self.best = sorted(best, key=lambda sample: sample.seconds)[:BEST]


def rule_plans(instances: Sequence[ListInstance]) -> list[Plan]:
    """Return the plans of list rules."""
    return [_ruled(instance, rule) for rule in RULES for instance in instances]


def _ruled(instance: ListInstance, rule: Callable[[ScheduleInputs, Look], PartialSchedule]) -> Plan:
    instance.count()
    return Plan.of(ListDraft(instance, rule(instance.work, instance.look)), None, 1)


def _critical_path(work: ScheduleInputs, look: Look) -> PartialSchedule:
    return list_schedule(work, -upward(work), np.zeros(work.op_s.shape), False, look)


def _etf(work: ScheduleInputs, look: Look) -> PartialSchedule:
    return earliest_first(work, static_level(work), no_favourites(work), look)


RULES = (_critical_path, _etf)


def _again(plan: Plan) -> list[Plan]:
    """Return the plans made by the same scores that see one another, the first of them this one; none of a rule's."""
    (instance, width), made = plan.way, list[Plan]()
    if plan.scores is None:
        return made
    before = plan
    for _ in range(SWEEPS - 1):
        schedule = instance.schedule(plan.scores, width=width, before=before.draft.device)
        before = Plan.of(ListDraft(instance, schedule), plan.scores, width)
        made.append(before)
    return made
