"""Schedules drawn with noise on weights and scores, around those that were best so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from pipeline.core.arrays import Float64, Int32, Int64
from pipeline.core.placement import Placement
from pipeline.core.problem import Problem
from policy.place.base.search import Search
from policy.place.learned.neural_list.constructing import Scores
from policy.place.learned.neural_list.instances import ListInstance
from policy.place.learned.neural_list.list_policy import LEAST, ListPolicy
from policy.place.lists.listing import PartialSchedule
from policy.place.lists.submit import fitted

SWEEPS = 3  # schedules one after another in one way without noise, each of which sees the one before
WIDTH = 4  # ready operations compared as pairs with devices, in half of the ways to construct
ROUND = 32  # samples drawn around one centre
BEST = 8  # samples that later ones follow
FOLLOWED = 0.7  # share of the samples that are constructed in the way of one of them

Way = TypeVar("Way")


@dataclass(frozen=True, slots=True)
class Noise:
    """What tells samples apart.

    spread: relative deviation of weights. temperature: of Gumbel noise on scores, over the mean weight.
    """

    spread: float
    temperature: float

    def on(self, scores: Scores, instance: ListInstance, rng: np.random.Generator) -> Scores:
        """Return scores with normal noise on their weights and Gumbel noise on what they score."""
        mean = float(np.abs(scores.device).mean())

        def drawn(weights: Float64) -> Float64:
            deviation = self.spread * np.hypot(weights, LEAST * np.abs(weights).mean())
            moved: Float64 = weights + deviation * rng.standard_normal(weights.size)
            return moved

        return scores._replace(
            device=drawn(scores.device),
            key=drawn(scores.key),
            noise=(self.temperature * mean if mean > 0 else 1.0) * rng.gumbel(size=instance.work.op_s.shape),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Sample(Generic[Way]):
    """A schedule that was asked about: its seconds, the scores it was made by, and the way it was constructed."""

    seconds: float
    scores: Scores
    way: Way


class Sampler(Generic[Way]):
    """Draws ways to construct, mostly those of the best samples, and says around which scores to draw.

    centre: the scores around which samples are drawn; every ROUND samples they become the mean of the best so far.
    best: the best samples of the rounds before, then those of this one. count: of all samples noted.
    """

    def __init__(self, scores: Scores, ways: Sequence[Way], rng: np.random.Generator) -> None:
        self.centre, self.ways, self.rng = scores, ways, rng
        self.best: list[Sample[Way]] = []
        self.count = 0

    def way(self) -> Way:
        """Return a way to construct: mostly that of one of the best samples."""
        best = [sample.way for sample in self.best[:BEST]]
        among = best if best and self.rng.random() < FOLLOWED else self.ways
        return among[int(self.rng.integers(len(among)))]

    def note(self, seconds: float, scores: Scores, way: Way) -> None:
        """Take note of what a sample took."""
        self.best.append(Sample(seconds, scores._replace(noise=self.centre.noise), way))
        self.count += 1
        if self.count % ROUND == 0:
            self.best = sorted(self.best, key=lambda sample: sample.seconds)[:BEST]
            device, key = (
                np.mean([getattr(sample.scores, name) for sample in self.best], axis=0) for name in ("device", "key")
            )
            self.centre = self.centre._replace(device=device, key=key)


def ways_of(instances: Sequence[ListInstance]) -> list[tuple[ListInstance, int]]:
    """Return the ways to construct: instances, and how many ready operations are compared as pairs with devices."""
    return [(instance, width) for width in (1, WIDTH) for instance in instances]


@dataclass(frozen=True, slots=True, eq=False)
class ListDraft:
    """A schedule that nobody was asked about yet."""

    instance: ListInstance
    schedule: PartialSchedule

    @property
    def planned_s(self) -> float:
        """Return the seconds that the schedule takes as it is planned."""
        return float(self.schedule.finish_s.max(initial=0.0))

    @property
    def device(self) -> Int64:
        """Return int64 [n], where each operation of the instance goes."""
        device: Int64 = self.schedule.homes.device[self.instance.work.group].astype(np.int64)
        return device


def drafts(
    policy: ListPolicy,
    ways: Sequence[tuple[ListInstance, int]],
    noise: Noise,
    rng: np.random.Generator,
    *,
    sweeps: int,
) -> list[ListDraft]:
    """Return what a policy schedules in several ways without noise, the best of `sweeps` each, planned fastest first.

    Where it prefers nothing, these are draws.
    """
    found: list[ListDraft] = []
    for instance, width in ways:
        scores = policy.scores(instance.context)
        drawn = scores if np.any(scores.device) else noise.on(scores, instance, rng)
        found.append(swept(instance, drawn, width=width, sweeps=sweeps))
    return sorted(found, key=lambda draft: draft.planned_s)


def swept(instance: ListInstance, scores: Scores, *, width: int, sweeps: int) -> ListDraft:
    """Return the schedule planned fastest of `sweeps`, each of which sees where the one before put the operations."""
    made = [ListDraft(instance, instance.schedule(scores, width=width))]
    for _ in range(sweeps - 1):
        made.append(ListDraft(instance, instance.schedule(scores, width=width, before=made[-1].device)))
    return min(made, key=lambda draft: draft.planned_s)


def asked(search: Search, instance: ListInstance, schedule: PartialSchedule) -> float:
    """Return the seconds of a schedule's placement, with its order where placements have one.

    inf where it does not fit, or where the budget has ended while it was made.
    """
    schedule = instance.of_operations(schedule)
    device = fitted(search.problem, instance.handed, schedule.homes.device)
    if search.simulator is not None and not search.problem.ordered:
        found = search.simulate(device[None])
        return float(np.where(found.over_bytes == 0, found.value_s, np.inf).min(initial=np.inf))
    (value_s,) = search.evaluate([_placement(search.problem, device, schedule)])
    return float(np.nan_to_num(value_s, nan=np.inf, posinf=np.inf))


def _placement(problem: Problem, device: Int32, schedule: PartialSchedule) -> Placement:
    """Return a schedule as a placement, with the order of its starts where placements have orders."""
    if not problem.ordered:
        return Placement(device, problem.topology.names)
    rank = np.empty(device.size)
    rank[np.argsort(schedule.start_s, kind="stable")] = np.arange(device.size)
    return Placement(device, problem.topology.names, rank)
