"""Policies that do well together: of many draws those whose best plan, graph by graph, is the best."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from pipeline.core.arrays import Float64
from policy.place.learned.neural_list.list_policy import LINEAR, ListPolicy
from policy.place.learned.neural_list.planning import Plan, rule_plans, scored
from policy.place.learned.neural_list.sampling import ways_of
from policy.place.learned.neural_list.training import RISK, ListTrainingCase

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Complementing:
    """How members are looked for that complement one another.

    members: how many are kept. draws: per round, around the members of the round before. rounds: after which it ends; a
    course of fewer is the beginning of one of more. spread: relative deviation of weights in the first round, half of
    it in the second and so on.
    """

    members: int = 8
    draws: int = 96
    rounds: int = 3
    spread: float = 0.8
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Team:
    """The members after a round, and the best members so far by what is held out.

    vectors, best: float64 [members, LINEAR], the first the policy that it began with. log: one record per round.
    """

    round: int
    vectors: Float64
    best: Float64
    best_loss: float
    log: tuple[Mapping[str, Any], ...] = field(default=())

    @classmethod
    def first(cls, policy: ListPolicy) -> Team:
        """Return the beginning: one policy alone."""
        return cls(0, policy.linear[None], policy.linear[None], math.inf)

    @property
    def policies(self) -> tuple[ListPolicy, ...]:
        """Return the best members so far as policies."""
        return tuple(ListPolicy.of_vector(vector) for vector in self.best)

    def to_json(self) -> dict[str, Any]:
        """Return the team as JSON values."""
        arrays = {"vectors": self.vectors.tolist(), "best": self.best.tolist()}
        best_loss = None if math.isinf(self.best_loss) else self.best_loss
        return {"round": self.round, "best_loss": best_loss, "log": list(self.log), **arrays}

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> Team:
        """Return the team of such a document.

        Raises:
            KeyError: it lacks something, or is of other figures.
        """
        vectors, best = (np.array(document[key], np.float64) for key in ("vectors", "best"))
        if not all(members.ndim == 2 and members.shape[1] == LINEAR for members in (vectors, best)):
            raise KeyError("vectors")
        loss = math.inf if document["best_loss"] is None else float(document["best_loss"])
        return cls(int(document["round"]), vectors, best, loss, tuple(document["log"]))


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """What plans of candidates are expected to take, and what they take.

    expected, loss: float64 [lessons, 1 + candidates], logarithms of ratios to the reference, of that plan of the rules
    and of each candidate that is expected to be the fastest. weight: float64 [lessons], of each family as much.
    """

    expected: Float64
    loss: Float64
    weight: Float64

    @classmethod
    def of(cls, lessons: Sequence[ListTrainingCase], candidates: Sequence[ListPolicy]) -> Table:
        """Return the table of candidates."""
        rows = [_row(lesson, candidates) for lesson in lessons]
        families = [lesson.family for lesson in lessons]
        weight = np.array([1.0 / families.count(family) for family in families])
        return cls(np.array([row[0] for row in rows]), np.array([row[1] for row in rows]), weight / weight.sum())

    def grade(self, members: Sequence[int]) -> float:
        """Return the mean loss of the plans expected to be the fastest, with a surcharge where rules do better."""
        columns = [0, *(1 + member for member in members)]
        chosen = np.argmin(self.expected[:, columns], axis=1)
        loss = self.loss[:, columns][np.arange(len(chosen)), chosen]
        return float(self.weight @ (loss + RISK * np.maximum(loss, 0.0)))

    def chosen(self, count: int) -> list[int]:
        """Return so many candidates: the first, and then always the one that betters those before most."""
        members = [0]
        while len(members) < min(count, self.loss.shape[1] - 1):
            others = [j for j in range(self.loss.shape[1] - 1) if j not in members]
            members.append(min(others, key=lambda j: self.grade([*members, j])))
        return members


def _row(lesson: ListTrainingCase, candidates: Sequence[ListPolicy]) -> tuple[Float64, Float64]:
    """Return what the plans of rules and of each candidate are expected to take at best, and their losses."""
    ways, context = ways_of(lesson.instances), lesson.instance.context
    found = [_best(rule_plans(lesson.instances))]
    for policy in candidates:
        scores = policy.scores(context)
        found.append(_best([scored(instance, width, scores) for instance, width in ways]))
    losses = lesson.losses_of([(plan.draft.instance.work, plan.draft.schedule) for plan in found])
    return np.log([plan.expected_s / lesson.reference_s for plan in found]), losses


def _best(plans: Sequence[Plan]) -> Plan:
    return min(plans, key=lambda plan: plan.expected_s)


def complemented(
    team: Team,
    course: Complementing,
    lessons: Sequence[ListTrainingCase],
    held_out: Sequence[ListTrainingCase],
    say: Say,
) -> Team:
    """Return the team one round later; draws depend on the seed and the round alone."""
    rng = np.random.default_rng([course.seed, team.round])
    known, spread = [ListPolicy.of_vector(vector) for vector in team.vectors], course.spread / 2**team.round
    drawn = [known[i % len(known)].near(spread, rng) for i in range(course.draws)]
    candidates = [*known, *drawn]
    table = Table.of(lessons, candidates)
    members = table.chosen(course.members)
    judged = Table.of(held_out, [candidates[m] for m in members])
    learned = [table.grade(members[: k + 1]) for k in range(len(members))]
    others = [judged.grade(range(k + 1)) for k in range(len(members))]
    kept = sum(m < len(known) for m in members)
    record = {"round": team.round + 1, "training": learned, "held_out": others, "kept": kept}
    say(
        f"round {team.round + 1}: loss with 1 to {len(members)} members "
        f"{', '.join(f'{value:.3f}' for value in learned)} in training; "
        f"{', '.join(f'{value:.3f}' for value in others)} on what is held out"
    )
    vectors = np.stack([candidates[m].linear for m in members])
    loss, better = others[-1], others[-1] < team.best_loss
    return Team(
        team.round + 1,
        vectors,
        vectors if better else team.best,
        loss if better else team.best_loss,
        (*team.log, record),
    )


def settings_json(course: Complementing) -> dict[str, Any]:
    """Return as JSON values what decides every round of a course; how many there are does not."""
    return {key: value for key, value in asdict(course).items() if key != "rounds"}
