"""Self-labelling: the best placement that samples and a local search find of each drawn graph, and imitating them.

Source: Corsini et al., "Self-labeling the job shop scheduling problem", NeurIPS 2024. Different: a local search follows
the samples, and figures of the constructor stand in for a pointer network.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.core.errors import DeviceError, UsageError
from pipeline.core.problem import Budget
from pipeline.offline.curriculum import JUDGES
from pipeline.offline.drawn_exercises import FAMILY_NAMES, drawn_exercise
from pipeline.offline.scenario import LoadedScenario
from pipeline.offline.train import resume_course
from pipeline.store.store import write_json
from policy.place.base.search import Search
from policy.place.learned.neural_list.imitation import Imitation, ImitationState, Label, imitated
from policy.place.learned.neural_list.instances import list_instances
from policy.place.learned.neural_list.list_policy import ListPolicy
from policy.place.learned.neural_list.neural_list import NeuralList

SCHEMA = 1
LABELS, STATE, WEIGHTS, LOG = "labels.jsonl", "state.json", "neural_list.safetensors", "neural_list.json"
JUDGED = 0.1  # graphs of families held out, per graph to learn from
HELD_OUT_SEED = 1_000_000  # added to the seed of these

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class LabelSearch:
    """How a label is searched for: plans and samples, then annealing, in so many evaluations."""

    samples: int = 32
    evaluations: int = 2000

    def label(self, case: LoadedScenario) -> str:
        """Return the device of every operation as a hexadecimal digit; nothing where no placement was found to fit."""
        placer, budget = NeuralList(samples=self.samples, planned=1), Budget(self.evaluations)
        try:
            answer = placer.place(case.problem, case.simulator(), budget, seed=0, progress=lambda _: None)
        except DeviceError:
            return ""
        return "".join(f"{d:x}" for d in answer.best.placement.device.tolist())


@dataclass(frozen=True, slots=True)
class Labelling:
    """Which graphs are labelled."""

    graphs: int = 3000
    seed: int = 0
    searched: LabelSearch = LabelSearch()


def train_by_labels(
    out: Path,
    labelling: Labelling,
    course: Imitation,
    *,
    after: Path,
    left_out: Collection[str] = (),
    say: Say,
) -> ImitationState:
    """Return the end of a course; writes labels as they are found, its state after every epoch, weights and a log.

    Killed and started again it goes on from the last label or epoch. after: weights to begin with, whose keys stay.

    Raises:
        UsageError: the folder holds labels or a state of other settings; too many families are left out.
    """
    out.mkdir(parents=True, exist_ok=True)
    begun = ListPolicy.read(after)[0]
    chosen = {"schema": SCHEMA, **asdict(labelling), "left_out": sorted(left_out)}
    families = tuple(family for family in FAMILY_NAMES if family not in left_out)
    parts = [
        (tuple(f for f in families if f not in JUDGES), labelling.graphs, labelling.seed),
        (
            tuple(f for f in families if f in JUDGES),
            max(1, round(JUDGED * labelling.graphs)),
            labelling.seed + HELD_OUT_SEED,
        ),
    ]
    if not all(named for named, _, _ in parts):
        raise UsageError("No family is left to learn from, or to judge by.", "Leave out fewer with --leave-out.")
    learned, judged = (_labels(out, begun, labelling, chosen, part, say) for part in parts)
    say(f"{len(learned)} graphs to learn from, {len(judged)} of families held out")
    first = ImitationState.beginning(begun)
    asked = chosen | {"course": asdict(course)}
    state = resume_course(out / STATE, asked, first, lambda document: ImitationState.of_json(document["stand"]))
    while state.epoch < course.epochs:
        state = imitated(state, course, learned, judged)
        write_json(out / STATE, {"chosen": chosen | {"course": asdict(course)}, "stand": state.to_json()})
        last = state.log[-1]
        say(f"epoch {state.epoch}: {last['training']:.4f} nats per decision, {last['held_out']:.4f} held out")
    ListPolicy.write(out / WEIGHTS, [ListPolicy(state.best, begun.key)])
    facts = {"graphs": len(learned), "operations": int(sum(label.chosen.size for label in learned))}
    write_json(out / LOG, {**chosen, "course": asdict(course), **facts, "best_loss": state.best_loss, "log": state.log})
    return state


def _labels(
    out: Path,
    policy: ListPolicy,
    labelling: Labelling,
    chosen: dict[str, Any],
    part: tuple[Sequence[str], int, int],
    say: Say,
) -> list[Label]:
    """Return the labels of drawn graphs of some families; those that the file has are not searched for again."""
    families, count, seed = part
    path, labels = out / f"{seed}.{LABELS}", list[Label]()
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = text[: text.rfind("\n") + 1].splitlines()  # the last line may have been cut off
    words = json.dumps({key: chosen[key] for key in ("schema", "searched")} | {"families": list(families)})
    if lines and lines[0] != words:
        raise UsageError(f"{path} holds labels of other settings.", "Give another folder with --out.")
    with path.open("w", encoding="utf-8") as file:
        file.write("".join(f"{line}\n" for line in lines or [words]))
        for number in range(count):
            exercise = drawn_exercise(number, families=tuple(families), seed=seed)
            case = exercise.case()
            if number + 1 < len(lines):
                digits = lines[number + 1]
            else:
                digits = labelling.searched.label(case)
                file.write(digits + "\n")
                file.flush()
            if number % 100 == 99:
                say(f"{number + 1} of {count} graphs labelled")
            if digits:
                search = Search(case.problem, case.simulator(), Budget(1), lambda _: None)
                instance = list_instances(search)[0]
                device = np.array([int(digit, 16) for digit in digits], np.int64)
                labels.append(Label.of(exercise.family, instance, policy.scores(instance.context), device))
    return labels
