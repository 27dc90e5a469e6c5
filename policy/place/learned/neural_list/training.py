"""Weights by the cross-entropy method: draws of weights, each graded by simulated times of what it constructs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from pipeline.core.arrays import Float64
from pipeline.core.problem import Budget, Problem
from pipeline.core.stages import Simulator
from policy.place.base.search import Search
from policy.place.learned.neural_list.instances import ListInstance, list_instances
from policy.place.learned.neural_list.list_policy import LINEAR, LINEAR_NAMES, OF_PLAN, ListPolicy
from policy.place.learned.neural_list.sampling import SWEEPS, WIDTH, swept
from policy.place.lists.listing import PartialSchedule
from policy.place.lists.submit import fitted
from policy.place.lists.work import ScheduleInputs

SPARE = 0.2  # what counts of the part of a loss by which another answer, one device alone, is better anyway
CLIP = 0.4  # the most that a draw gains or loses with one lesson
RISK = 0.5  # what a loss against the reference counts beyond what an equal gain counts
OVERFULL = 3.0  # the ratio that a placement counts with that does not fit, and more by what it is over
MOST = 10.0  # the greatest ratio that counts
ALWAYS, ELSEWHERE = 0.5, 0.15  # first deviation of weights that always count, and of those for contexts
SEEN = 0.4  # the same of weights of the schedule before that always count, and SEEN * ELSEWHERE / ALWAYS of others
ALWAYS_COUNT = np.array([name.endswith(".always") for name in LINEAR_NAMES])
FLOOR = 0.02  # deviation below which no weight falls
STEP = 0.5  # share of the way to the mean of the best draws
COOL = 0.15  # share of the way from the old deviations to those of the best draws


@dataclass(frozen=True, slots=True, eq=False)
class ListTrainingCase:
    """A problem to learn from, with what counts as good.

    family: of graphs, by which grades are balanced and held out. instances: as `list_instances` says.
    reference_s: the seconds of the best rule of thumb.
    single_s: of the best device alone, which every placer asks about; inf where none fits.
    """

    family: str
    problem: Problem
    instances: Sequence[ListInstance]
    simulator: Simulator
    reference_s: float
    single_s: float

    @classmethod
    def of(cls, family: str, problem: Problem, simulator: Simulator, *, reference_s: float) -> ListTrainingCase:
        """Return the lesson of a problem."""
        search = Search(problem, simulator, Budget(1 + problem.topology.p), lambda _: None)
        return cls(family, problem, list_instances(search), simulator, reference_s, search.best_s)

    @property
    def instance(self) -> ListInstance:
        """Return the problem with operations alone."""
        return self.instances[0]

    def losses(self, policies: Sequence[ListPolicy], *, sweeps: int = 1) -> Float64:
        """Return float64 [len(policies)], logarithms of the time of one pass over the reference.

        What one device alone would better counts for a share. sweeps: a pass is one schedule by priority, or if this is
        more than 1, the one planned fastest of so many by priority and so many by pairs.
        """
        return self.losses_of([(self.instance.work, self._planned(policy, sweeps)) for policy in policies])

    def losses_of(self, made: Sequence[tuple[ScheduleInputs, PartialSchedule]]) -> Float64:
        """Return float64 [len(made)], the same of schedules, each of some work."""
        devices = [fitted(self.problem, work, schedule.homes.device) for work, schedule in made]
        found = self.simulator.simulate(np.stack(devices))
        held = max(float(self.problem.graph.weight_bytes.sum() + self.problem.graph.out_bytes.sum()), 1.0)
        over = OVERFULL * (1.0 + found.over_bytes / held)
        ratio = np.where(found.over_bytes > 0, over, found.value_s / self.reference_s)
        logs = np.log(np.clip(ratio, 1.0 / MOST, MOST))
        found_logs = np.minimum(logs, math.log(min(self.single_s / self.reference_s, MOST)))
        losses: Float64 = found_logs + SPARE * (logs - found_logs)
        return losses

    def _planned(self, policy: ListPolicy, sweeps: int) -> PartialSchedule:
        scores, widths = policy.scores(self.instance.context), (1,) if sweeps == 1 else (1, WIDTH)
        made = [swept(self.instance, scores, width=width, sweeps=sweeps) for width in widths]
        return min(made, key=lambda draft: draft.planned_s).schedule


@dataclass(frozen=True, slots=True)
class CrossEntropy:
    """How weights are looked for.

    generations: after which it ends; a course of fewer is the beginning of one of more. population: draws per
    generation. elite: the best of them, which are followed. batch: lessons per generation, drawn family by family.
    check_every: generations between two looks at the lessons held out. alone: generations in which no weight depends on
    the context yet. sweeps: schedules one after another, each of which sees the one before.
    """

    generations: int = 300
    population: int = 24
    elite: int = 6
    batch: int = 20
    check_every: int = 15
    seed: int = 0
    alone: int = 100
    sweeps: int = 1

    @classmethod
    def after(cls, *, generations: int, seed: int) -> CrossEntropy:
        """Return how weights of the schedule before are looked for, when all others are known."""
        return cls(generations, check_every=10, seed=seed, alone=0, sweeps=SWEEPS)


@dataclass(frozen=True, slots=True, eq=False)
class TrainingState:
    """Where training stands: the distribution of weights, and the best mean so far by what is held out.

    mean, deviation, best: float64 [LINEAR]. log: one record per look at what is held out.
    """

    generation: int
    mean: Float64
    deviation: Float64
    best: Float64
    best_loss: float
    log: tuple[Mapping[str, Any], ...] = field(default=())

    @classmethod
    def first(cls) -> TrainingState:
        """Return the beginning: earliest finish first, operations by b-level, as in HEFT."""
        mean = np.zeros(LINEAR)
        mean[LINEAR_NAMES.index("device.finish.always")] = -1.0
        mean[LINEAR_NAMES.index("key.b_level.always")] = 1.0
        return cls(0, mean, np.where(OF_PLAN, 0.0, np.where(ALWAYS_COUNT, ALWAYS, ELSEWHERE)), mean, math.inf)

    @classmethod
    def after(cls, policy: ListPolicy) -> TrainingState:
        """Return the beginning at a policy whose weights stay, but for those of the schedule before."""
        deviation = np.where(OF_PLAN, np.where(ALWAYS_COUNT, SEEN, SEEN * ELSEWHERE / ALWAYS), 0.0)
        return cls(0, policy.linear, deviation, policy.linear, math.inf)

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON values, weights by name."""
        arrays = {
            name: dict(zip(LINEAR_NAMES, getattr(self, name).tolist(), strict=True))
            for name in ("mean", "deviation", "best")
        }
        best_loss = None if math.isinf(self.best_loss) else self.best_loss
        return {"generation": self.generation, "best_loss": best_loss, "log": list(self.log), **arrays}

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> TrainingState:
        """Return the state of such a document.

        Raises:
            KeyError: it lacks something, or is of other figures.
        """
        arrays = {
            key: np.array([document[key][name] for name in LINEAR_NAMES]) for key in ("mean", "deviation", "best")
        }
        loss = math.inf if document["best_loss"] is None else float(document["best_loss"])
        return cls(int(document["generation"]), best_loss=loss, log=tuple(document["log"]), **arrays)


def trained(
    state: TrainingState,
    course: CrossEntropy,
    lessons: Sequence[ListTrainingCase],
    held_out: Sequence[ListTrainingCase],
) -> TrainingState:
    """Return the state one generation later.

    Draws depend on the seed and the generation alone, so that training goes on after a break as it would have. Weights
    without a deviation stay as they are.
    """
    rng = np.random.default_rng([course.seed, state.generation])
    learned = state.deviation > 0
    moving = learned & (ALWAYS_COUNT | (state.generation >= course.alone))
    drawn = np.zeros((course.population, LINEAR))
    drawn[:, learned] = rng.standard_normal((course.population, int(learned.sum())))
    draws = state.mean + moving * state.deviation * drawn
    draws[0] = state.mean
    policies = [ListPolicy.of_vector(draw) for draw in draws]
    # lessons of as many families as there are, none of them twice
    by_family: dict[str, list[ListTrainingCase]] = {}
    for i in rng.permutation(len(lessons)).tolist():
        by_family.setdefault(lessons[i].family, []).append(lessons[i])
    families = [list(by_family)[f] for f in rng.permutation(len(by_family)).tolist()]
    batch: list[ListTrainingCase] = []
    while len(batch) < min(course.batch, len(lessons)):
        for family in families:
            if by_family[family] and len(batch) < course.batch:
                batch.append(by_family[family].pop())
    losses = np.stack([lesson.losses(policies, sweeps=course.sweeps) for lesson in batch])  # [batch, population]
    training_loss = float(losses[:, 0].mean())
    if course.sweeps > 1 and state.generation == 0:  # what is known already counts as well
        state = _checked(state, held_out, training_loss, sweeps=course.sweeps)
    regret = losses + RISK * np.maximum(losses, 0.0)
    grade = np.clip(regret - regret[:, :1], -CLIP, CLIP).mean(axis=0)
    best = draws[np.argsort(grade, kind="stable")[: course.elite]]
    weight = np.log(course.elite + 0.5) - np.log(np.arange(1, course.elite + 1))
    weight /= weight.sum()
    mean = np.where(learned, state.mean + STEP * (weight @ best - state.mean), state.mean)
    spread = np.sqrt(weight @ (best - state.mean) ** 2)
    deviation = learned * np.maximum(state.deviation + moving * COOL * (spread - state.deviation), FLOOR)
    later = replace(state, generation=state.generation + 1, mean=mean, deviation=deviation)
    if later.generation % course.check_every and later.generation < course.generations:
        return later
    return _checked(later, held_out, training_loss, sweeps=course.sweeps)


def _checked(
    state: TrainingState, held_out: Sequence[ListTrainingCase], training_loss: float, *, sweeps: int
) -> TrainingState:
    """Return the state with a look at what is held out written down; the best mean is kept."""
    found = grades(ListPolicy.of_vector(state.mean), held_out, sweeps=sweeps)
    loss = float(np.mean([value + RISK * max(value, 0.0) for value in found.values()]))
    record = {
        "generation": state.generation,
        "training": training_loss,
        "held_out": loss,
        "deviation": float(state.deviation.mean()),
        "families": {family: math.exp(value) for family, value in found.items()},
    }
    better = loss < state.best_loss
    return replace(
        state,
        log=(*state.log, record),
        best=state.mean if better else state.best,
        best_loss=loss if better else state.best_loss,
    )


def grades(policy: ListPolicy, lessons: Sequence[ListTrainingCase], *, sweeps: int = 1) -> dict[str, float]:
    """Return the mean logarithm of the ratio to the best rule of thumb, family by family."""
    losses: dict[str, list[float]] = {}
    for lesson in lessons:
        losses.setdefault(lesson.family, []).append(float(lesson.losses([policy], sweeps=sweeps)[0]))
    return {family: float(np.mean(values)) for family, values in losses.items()}


def settings_json(course: CrossEntropy) -> dict[str, Any]:
    """Return as JSON values what decides every generation of a course; how many there are does not."""
    return {key: value for key, value in asdict(course).items() if key != "generations"}
