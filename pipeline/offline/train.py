"""Training `neural_list`: what `placewright train` does, killed and started again as often as need be."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pipeline.core.errors import UNPARSABLE, UsageError
from pipeline.offline.curriculum import Exercise, split_exercises
from pipeline.store.store import json_digest, write_json
from policy.place.learned.neural_list import complementing
from policy.place.learned.neural_list.complementing import Complementing, Team, complemented
from policy.place.learned.neural_list.list_policy import ListPolicy
from policy.place.learned.neural_list.training import (
    CrossEntropy,
    ListTrainingCase,
    TrainingState,
    settings_json,
    trained,
)

SCHEMA = 1
STATE, WEIGHTS, LOG = "state.json", "neural_list.safetensors", "neural_list.json"

Say = Callable[[str], None]
Course = TypeVar("Course")


def train(
    out: Path,
    course: CrossEntropy,
    *,
    after: Path | None = None,
    left_out: Collection[str] = (),
    limit: int | None = None,
    say: Say,
) -> TrainingState:
    """Return the end of a course; writes its weights, its log, and after every generation where it stands.

    A folder in which a shorter course has ended goes on from there.

    after: weights of a training before, of which those stay that count without a schedule before.
    limit: families are cut to so many exercises each, for a quick look; None for all.

    Raises:
        UsageError: the folder holds the state of another course, or a damaged one; a family is none; the weights of the
            training before cannot be read.
    """
    first = TrainingState.first() if after is None else TrainingState.after(ListPolicy.read(after)[0])
    chosen = {"schema": SCHEMA, "course": settings_json(course), "left_out": sorted(left_out), "limit": limit}
    chosen["after"] = None if after is None else json_digest(first.mean.tolist())
    stand = resume_course(out / STATE, chosen, first, lambda document: TrainingState.of_json(document["stand"]))
    learned, judged = (
        _training_cases(_first_of_families(some, limit), say) if stand.generation < course.generations else []
        for some in split_exercises(left_out=left_out)
    )
    while stand.generation < course.generations:
        looks = len(stand.log)
        stand = trained(stand, course, learned, judged)
        write_json(out / STATE, {"chosen": chosen, "stand": stand.to_json()})
        if len(stand.log) > looks:
            say(_describe_state(stand))
    ListPolicy.write(out / WEIGHTS, [ListPolicy.of_vector(stand.best)])
    write_json(
        out / LOG, {**chosen, "generations": stand.generation, "best_loss": stand.best_loss, "log": list(stand.log)}
    )
    return stand


def train_complement(
    out: Path,
    course: Complementing,
    *,
    after: Path,
    left_out: Collection[str] = (),
    limit: int | None = None,
    say: Say,
) -> Team:
    """Return policies that do well together, the first of them that of a training before.

    Writes the weights of those that do best on what is held out, their log, and after every round where it stands.

    after: weights of the training before.
    limit: families are cut to so many exercises each, for a quick look; None for all.

    Raises:
        UsageError: the folder holds the state of another course, or a damaged one; a family is none; the weights of the
            training before cannot be read.
    """
    first = Team.first(ListPolicy.read(after)[0])
    chosen = {"schema": SCHEMA, "course": complementing.settings_json(course), "left_out": sorted(left_out)}
    chosen |= {"limit": limit, "after": json_digest(first.vectors.tolist())}
    team = resume_course(out / STATE, chosen, first, lambda document: Team.of_json(document["team"]))
    learned, judged = (
        _training_cases(_first_of_families(some, limit), say) if team.round < course.rounds else []
        for some in split_exercises(left_out=left_out)
    )
    while team.round < course.rounds:
        team = complemented(team, course, learned, judged, say)
        write_json(out / STATE, {"chosen": chosen, "team": team.to_json()})
    ListPolicy.write(out / WEIGHTS, team.policies)
    write_json(out / LOG, {**chosen, "rounds": team.round, "best_loss": team.best_loss, "log": list(team.log)})
    return team


def resume_course(
    path: Path, chosen: dict[str, Any], first: Course, read: Callable[[dict[str, Any]], Course]
) -> Course:
    """Return where a course stands; first: its beginning, read: the stand of a document.

    Raises:
        UsageError: the file is of another course, or damaged.
    """
    if not path.exists():
        return first
    remedy = "Give another folder with --out, or remove this file to begin from scratch."
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["chosen"] == chosen:
            return read(document)
    except (KeyError, TypeError, *UNPARSABLE) as error:
        raise UsageError(f"{path} is damaged, or of another version.", remedy) from error
    raise UsageError(f"{path} is of a training with other settings.", remedy)


def _first_of_families(exercises: Sequence[Exercise], limit: int | None) -> list[Exercise]:
    """Return the first `limit` exercises of every family."""
    taken: dict[str, list[Exercise]] = {}
    for exercise in exercises:
        taken.setdefault(exercise.family, []).append(exercise)
    return [exercise for family in taken.values() for exercise in family[:limit]]


def _training_cases(exercises: Sequence[Exercise], say: Say) -> list[ListTrainingCase]:
    """Return the lessons of exercises for which some placement fits."""
    lessons = [exercise.training_case() for exercise in exercises]
    usable = [lesson for lesson in lessons if math.isfinite(lesson.reference_s)]
    say(f"{len(usable)} lessons of {len({lesson.family for lesson in usable})} families")
    return usable


def _describe_state(stand: TrainingState) -> str:
    last = stand.log[-1]
    return (
        f"generation {last['generation']}: {math.exp(last['training']):.3f} of the best rule's time in training; "
        f"loss {last['held_out']:.4f} on what is held out, at best {stand.best_loss:.4f}"
    )
