"""Self-labelling: what is drawn and labelled, that imitation learns, and that it goes on where it was interrupted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from pipeline.core.errors import UsageError
from pipeline.offline import self_labelling
from pipeline.offline.curriculum import GRAPHS, JUDGES
from pipeline.offline.drawn_exercises import FAMILY_NAMES, drawn_exercise
from pipeline.offline.self_labelling import Labelling, LabelSearch, train_by_labels
from policy.place.learned.neural_list.imitation import Imitation, ImitationState, Label, imitated
from policy.place.learned.neural_list.list_policy import SHIPPED, ListPolicy
from runtime.zoo.workloads.placeto import FAMILIES
from tests.constructed import Amounts

QUICK = Labelling(graphs=2, searched=LabelSearch(samples=0, evaluations=30))
COURSE = Imitation(epochs=2)
LEFT_OUT = tuple(family for family in FAMILY_NAMES if family not in ("series-parallel", "watts-strogatz"))


def trained(out: Path, **values: int) -> ImitationState:
    course = Imitation(**{"epochs": 2, **values})
    return train_by_labels(out, QUICK, course, after=SHIPPED, left_out=LEFT_OUT, say=lambda _: None)


def test_every_family_is_drawn_and_draws_are_the_same_every_time():
    drawn = [drawn_exercise(number) for number in range(300)]
    assert {exercise.family for exercise in drawn} == {*GRAPHS, *FAMILIES} == set(FAMILY_NAMES)
    assert drawn == [drawn_exercise(number) for number in range(300)]
    levels = Counter(exercise.level for exercise in drawn)
    assert levels["T2"] > levels["T1"] > 0 < levels["T0"]
    assert 0.15 < sum(exercise.share > 0 for exercise in drawn) / 300 < 0.35


def test_imitation_learns_the_weights_of_a_teacher():
    teacher = np.random.default_rng(0).normal(size=ListPolicy.uniform().device.shape)
    labels = []
    for seed in range(6):
        instance = Amounts.drawn(seed, 30, 3).instance()
        key = ListPolicy.read(SHIPPED)[0].key
        scores = ListPolicy(teacher, key).scores(instance.context)
        device = instance.schedule(scores).homes.device.astype(np.int64)
        labels.append(Label.of("f", instance, scores, device))
    state = ImitationState.beginning(ListPolicy.uniform())
    for _ in range(12):
        state = imitated(state, Imitation(rate=0.2, batch=2), labels, labels)
    assert state.best_loss < 0.5 * state.log[0]["training"]
    assert state.log[0]["training"] < np.log(3) + 0.1  # about what a uniform choice of three has


def test_a_training_interrupted_anywhere_ends_with_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole = trained(tmp_path / "whole")
    labels = tmp_path / "whole" / f"0.{self_labelling.LABELS}"
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / labels.name).write_text(labels.read_text()[:-5])  # in the middle of the last label
    trained(tmp_path / "cut", epochs=2)
    searched: list[int] = []
    monkeypatch.setattr(LabelSearch, "label", lambda *_: searched.append(1) or "")
    again = trained(tmp_path / "cut")
    assert searched == []
    assert np.array_equal(again.weight, whole.weight)
    assert again.log == whole.log
    assert ListPolicy.read(tmp_path / "cut" / "neural_list.safetensors")[0].device.tolist() == whole.best.tolist()
    with pytest.raises(UsageError, match="other settings"):
        trained(tmp_path / "cut", epochs=3)


def test_families_to_learn_from_and_to_judge_by_are_needed(tmp_path: Path):
    with pytest.raises(UsageError, match="No family is left"):
        train_by_labels(tmp_path, QUICK, COURSE, after=SHIPPED, left_out=JUDGES, say=lambda _: None)
