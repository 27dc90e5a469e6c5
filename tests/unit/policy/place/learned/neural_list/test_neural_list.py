"""The placer `neural_list`: figures by hand, its weights' files, limits of memory, controls, and its training."""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import pipeline.offline.train as training_run
from pipeline.cli.main import run_command_line as cli
from pipeline.core.errors import DeviceError, UnknownNameError, UsageError
from pipeline.core.problem import Budget, Problem
from pipeline.core.stages import Answer, Simulator, Subject
from pipeline.offline.curriculum import CAPS, GRAPHS, JUDGES, LEVELS, TOPOLOGIES, Exercise, split_exercises
from pipeline.settings.registry import build_implementation
from pipeline.system.start import HOME
from policy.place.base.search import Search
from policy.place.learned.neural_list import neural_list
from policy.place.learned.neural_list.complementing import Complementing, Table, Team, complemented
from policy.place.learned.neural_list.constructing import (
    DEVICE_FIGURES,
    FIGURES,
    KEY_FIGURES,
    Decisions,
    Scores,
    constructed,
)
from policy.place.learned.neural_list.instances import ListInstance, list_instances
from policy.place.learned.neural_list.list_policy import LINEAR, LINEAR_NAMES, SHIPPED, ListPolicy, shipped
from policy.place.learned.neural_list.neural_list import NeuralList
from policy.place.learned.neural_list.planning import CELLS, FEW, Parents, Plan, plans
from policy.place.learned.neural_list.sampling import BEST, ListDraft, Noise, Sampler, asked, swept
from policy.place.learned.neural_list.static_features import scene_after
from policy.place.learned.neural_list.training import CrossEntropy, ListTrainingCase, TrainingState, grades, trained
from policy.place.lists.baechi import memory_demand
from policy.place.lists.listing import list_schedule
from policy.place.lists.work import upward
from policy.place.local.room import tight
from runtime.simulators.dataflow.listsched import ListSched
from runtime.zoo.workloads.placeto import FAMILIES, split
from tests.constructed import Amounts

EASY = Amounts(
    edges=((0, 2), (1, 2)),
    op_s=np.array([[1.0, 2.0], [1.0, 2.0], [2.0, 2.0]]),
    out_bytes=np.array([4, 4, 4]),
    weight_bytes=np.array([1, 1, 1]),
    link_bytes_per_s=np.full((2, 2), 2.0),
    latency_s=np.zeros((2, 2)),
    memory_bytes=(0, 0),
)


def simulator_of(problem: Problem) -> Simulator:
    nodes = problem.grouping.identity(problem.graph.n)
    return ListSched("T2").bind(Subject(None, problem.graph, nodes, problem.topology, problem.costs, 0))


def answer_of(problem: Problem, placer: NeuralList, evaluations: int = 200, *, seed: int = 0) -> Answer:
    return placer.place(problem, simulator_of(problem), Budget(evaluations), seed=seed, progress=lambda _: None)


def described(amounts: Amounts, devices: list[int]) -> np.ndarray:
    """Return what devices look like, float64 [n, p, FIGURES], while operations go to `devices`."""
    instance, n, p = amounts.instance(), *amounts.op_s.shape
    decisions = Decisions(np.array(devices), np.full((n, p, FIGURES), np.nan), np.full(n, -1, np.int64))
    constructed(instance.work, instance.static, ListPolicy.uniform().scores(instance.context), decisions)
    return decisions.figure


def figures_of(amounts: Amounts, devices: list[int], i: int) -> list[Mapping[str, float]]:
    """Return {figure: value} of both devices when operation i was placed."""
    return [dict(zip(DEVICE_FIGURES, row, strict=True)) for row in described(amounts, devices)[i].tolist()]


def test_figures_by_hand():
    # Operation 0 on A ends at 1, 1 on B at 2; mean times are 1.5, 1.5 and 2, the group 5/3. Each output takes 2 s.
    unit_s = 5 / 3
    a, b = figures_of(EASY, [0, 1, 0], 2)
    # On A it begins at 4 when the output of 1 is there, on B at 3 when that of 0 is there.
    assert a["finish"] == pytest.approx(math.asinh(1 / unit_s))
    assert b["finish"] == 0
    assert a["finish_share"] == pytest.approx(1 / 3.5)  # the longest way: 1.5 + 2
    assert a["arrival"] == pytest.approx(math.asinh(1 / unit_s))
    assert (a["free"], b["free"]) == (0, pytest.approx(math.asinh(1 / unit_s)))
    assert (a["cost"], b["cost"]) == (0, 0)
    assert (a["received"], b["received"]) == (0, 0)
    assert (a["local"], b["local"]) == (0.5, 0.5)
    assert a["load"] == pytest.approx(-math.asinh(0.5 / unit_s))
    assert b["load_share"] == pytest.approx(0.5 / 2.5)
    assert (a["latest"], b["latest"]) == (0, 1)
    assert a["idle"] == pytest.approx(math.asinh(3 / unit_s))
    assert (a["follows"], b["follows"]) == (0, 0)  # B waits for what A sends
    assert a["finish_urgent"] == pytest.approx(a["finish"] * 2 / 5.5)  # b-levels: 2, and 1.5 + 2 + 2
    assert a["finish_crowded"] == pytest.approx(a["finish"] / 3)  # one ready operation, two devices


def test_figures_of_company_by_hand():
    a, b = figures_of(EASY, [0, 1, 0], 1)  # 0 lies on A, and 2 will read both
    assert (a["partners"], b["partners"]) == (1, 0)
    assert (a["unused"], b["unused"]) == (0, 1)
    fork = replace(EASY, edges=((0, 1), (0, 2)))
    a, b = figures_of(fork, [0, 1, 1], 1)  # 2 comes first, by what tells the two apart
    assert (a["siblings"], b["siblings"]) == (0, 1)
    assert b["received"] == 0  # sent there for 2 before
    full = replace(EASY, memory_bytes=(4, 2))
    a, b = figures_of(full, [0, 1, 0], 2)
    assert (a["fill"], b["fill"]) == (pytest.approx(2 / 4 - 3 / 8), pytest.approx(2 / 2 - 3 / 8))


DIAMOND = Amounts(  # 0 feeds 1 and 2, which feed 3; every output takes half a second
    edges=((0, 1), (0, 2), (1, 3), (2, 3)),
    op_s=np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [1.0, 1.0]]),
    out_bytes=np.array([4, 4, 4, 4]),
    weight_bytes=np.ones(4, np.int64),
    link_bytes_per_s=np.full((2, 2), 8.0),
    latency_s=np.zeros((2, 2)),
    memory_bytes=(0, 0),
)


def with_weights(**weights: float) -> ListPolicy:
    """Return the policy that learning begins with, and some more weights."""
    mean = TrainingState.first().mean.copy()
    for name, value in weights.items():
        mean[LINEAR_NAMES.index(f"{name.replace('__', '.')}.always")] = value
    return ListPolicy.of_vector(mean)


def test_a_diamond_by_hand():
    # 0 on A until 1; 2, of the greater b-level, on A until 4; 1 on B from 1.5 to 3.5; its output is on A at 4, when 3
    # begins there.
    instance = DIAMOND.instance()
    schedule = instance.schedule(with_weights().scores(instance.context))
    assert schedule.homes.device.tolist() == [0, 1, 0, 0]
    assert schedule.finish_s.tolist() == [1, 3.5, 4, 5]
    assert ListDraft(instance, schedule).planned_s == 5


def test_figures_of_the_schedule_before_by_hand():
    instance = DIAMOND.instance()
    before = np.array([1, 1, 0, 0])
    static = scene_after(instance.work, instance.static, before)
    # With these devices 3 takes 1; 2, beside it, 3 + 1; 1, apart, 2 + 0.5 + 1; 0, by way of 2, apart, 1 + 0.5 + 4.
    assert (static.key[:, KEY_FIGURES.index("planned_level")] * 5.5).tolist() == pytest.approx([5.5, 3.5, 4, 1])
    decisions = Decisions(np.array([0, 1, 0, 0]), np.full((4, 2, FIGURES), np.nan), np.full(4, -1, np.int64))
    constructed(instance.work, static, ListPolicy.uniform().scores(instance.context), decisions)
    first = [dict(zip(DEVICE_FIGURES, row, strict=True)) for row in decisions.figure[0].tolist()]
    assert [row["planned"] for row in first] == [0, 1]
    assert [row["planned_readers"] for row in first] == [0.5, 0.5]
    assert [row["planned_urgent"] for row in first] == [1, 0]  # 2
    last = [dict(zip(DEVICE_FIGURES, row, strict=True)) for row in decisions.figure[3].tolist()]
    assert [(row["planned"], row["planned_readers"], row["planned_urgent"]) for row in last] == [(1, 0, 0), (0, 0, 0)]


def test_the_first_schedule_knows_of_none_before():
    instance = DIAMOND.instance()
    plain = instance.schedule(with_weights().scores(instance.context))
    scores = with_weights(device__planned=-9.0, device__planned_readers=7.0, key__planned_level=-5.0)
    first = instance.schedule(scores.scores(instance.context))
    assert first.homes.device.tolist() == plain.homes.device.tolist()
    assert first.start_s.tolist() == plain.start_s.tolist()


def test_a_schedule_sees_where_operations_were_before():
    instance = DIAMOND.instance()
    away = with_weights(device__planned=-1000.0).scores(instance.context)
    before = np.array([0, 1, 0, 0])
    assert instance.schedule(away, before=before).homes.device.tolist() == [1, 0, 1, 1]
    assert np.all(instance.schedule(away, before=1 - before).homes.device == before)


def test_of_several_sweeps_the_one_planned_fastest_stays():
    instance = Amounts.drawn(43, 40, 3).instance()
    scores = with_weights(device__planned=-0.5, device__planned_readers=1.0).scores(instance.context)
    made = [instance.schedule(scores)]
    for _ in range(3):
        made.append(instance.schedule(scores, before=ListDraft(instance, made[-1]).device))
    planned_s = [ListDraft(instance, schedule).planned_s for schedule in made]
    assert planned_s[2] < min(planned_s[:2])
    for sweeps in (1, 2, 3, 4):
        assert swept(instance, scores, width=1, sweeps=sweeps).planned_s == min(planned_s[:sweeps])


def test_a_device_that_is_not_usable_has_no_figures():
    op_s = EASY.op_s.copy()
    op_s[2, 0] = np.inf
    assert np.isnan(described(replace(EASY, op_s=op_s), [0, 1, 1])[2, 0, 0])


def test_a_file_of_weights_reads_back_as_it_was(tmp_path: Path):
    policy = ListPolicy.untrained(np.random.default_rng(0))
    ListPolicy.write(tmp_path / "w.safetensors", [policy])
    (again,) = ListPolicy.read(tmp_path / "w.safetensors")
    assert again.linear.tolist() == policy.linear.tolist()


def damaged(folder: Path, fault: str) -> Path:
    """Write weights with a fault."""
    path = folder / "w.safetensors"
    ListPolicy.write(path, [ListPolicy.untrained(np.random.default_rng(0))])
    weights = load_file(path)
    if fault == "truncated":
        path.write_bytes(path.read_bytes()[:-100])
    elif fault == "missing":
        path.unlink()
    elif fault == "text":
        path.write_text("no weights")
    else:
        if fault == "older":
            weights.pop(LINEAR_NAMES[3])
        elif fault == "newer":
            weights["device.smell.always"] = np.zeros(1)
        elif fault == "shape":
            weights[LINEAR_NAMES[0]] = np.zeros(2)
        else:
            weights[LINEAR_NAMES[0]] = np.array([math.nan])
        save_file(weights, path)
    return path


FAULTS = ("truncated", "missing", "text", "older", "newer", "shape", "nan")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_file_of_weights_is_an_error_that_says_what_to_do(fault: str, tmp_path: Path):
    path = damaged(tmp_path, fault)
    with pytest.raises(UsageError) as raised:
        answer_of(EASY.problem, NeuralList(weights=str(path)))
    assert str(path) in raised.value.cause
    assert "placewright train" in raised.value.remedy


def test_the_command_line_says_so_in_two_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    weights = f"place.neural_list.weights={damaged(tmp_path, 'older')}"
    command = ["search", "zoo:chainmm", "--topology", "equal:2", "--placer", "neural_list", "--evaluations", "20"]
    assert cli([*command, "--quiet", "--set", weights]) == 2
    said = capsys.readouterr().err
    assert f"{LINEAR} of this version" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    "values", [{"scores": "good"}, {"passes": 0}, {"passes": 5}, {"samples": -1}, {"planned": 0}, {"spread": -0.1}]
)
def test_parameters_out_of_range_are_refused(values: dict[str, Any]):
    with pytest.raises((UsageError, UnknownNameError)):
        build_implementation("place", "neural_list", values)


@pytest.mark.parametrize(("n", "p"), [(1, 1), (1, 3), (6, 1), (0, 2)])
def test_the_smallest_problems_are_placed(n: int, p: int):
    amounts = Amounts.drawn(0, n, p)
    assert answer_of(amounts.problem, NeuralList()).best.placement.n == n


def test_memory_that_cannot_suffice_is_an_error():
    problem = replace(Amounts.drawn(0, 8, 2), memory_bytes=(50, 50)).problem
    with pytest.raises(DeviceError):
        answer_of(problem, NeuralList())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("improve", [True, False])
def test_answers_fit_where_memory_is_short(seed: int, improve: bool):
    amounts = Amounts.drawn(seed, 24, 3)
    held = int(amounts.weight_bytes.sum() + amounts.out_bytes.sum())
    problem = replace(amounts, memory_bytes=(held * 2 // 5,) * 3).problem
    answer = answer_of(problem, NeuralList(samples=16, improve=improve))
    assert math.isfinite(answer.value_s)
    assert simulator_of(problem).simulate(answer.best.placement.device[None]).over_bytes[0] == 0


@pytest.mark.parametrize("improve", [True, False])
def test_where_no_plan_fits_the_budget_goes_to_making_room(improve: bool, monkeypatch: pytest.MonkeyPatch):
    amounts, sampled = Amounts.drawn(0, 24, 3), list[Plan]()
    held = int(amounts.weight_bytes.sum() + amounts.out_bytes.sum())
    note = Parents.note

    def noting(parents: Parents, seconds: float, plan: Plan) -> None:
        sampled.append(plan)
        note(parents, seconds, plan)

    monkeypatch.setattr(neural_list, "submit", lambda *_: None)
    problem = replace(amounts, memory_bytes=(held * 2 // 5,) * 3).problem
    _, found = planned(problem, NeuralList())
    monkeypatch.setattr(Parents, "note", noting)
    answer = answer_of(problem, NeuralList(samples=7, improve=improve))
    assert math.isfinite(answer.value_s)
    assert len(sampled) == (0 if improve else len(found) + 7)


def test_equal_seeds_give_equal_answers_and_others_do_not():
    problem = Amounts.drawn(1, 30, 3).problem
    placer = NeuralList(samples=64, improve=False, temperature=0.5)
    keys = [[c.placement.key() for c in answer_of(problem, placer, seed=seed).candidates] for seed in (0, 0, 1)]
    assert keys[0] == keys[1] != keys[2]


def test_samples_find_what_one_pass_does_not():
    problem = Amounts.drawn(2, 40, 4).problem
    passed, sampled = (
        answer_of(problem, NeuralList(samples=samples, improve=False, passes=1), 1000).value_s for samples in (0, 256)
    )
    assert sampled < passed


@pytest.mark.parametrize("scores", ["untrained", "uniform"])
def test_controls_draw_by_their_seed_and_read_no_file(scores: str):
    problem = Amounts.drawn(1, 20, 3).problem
    placer = NeuralList(scores=scores, weights="/nowhere", samples=8, improve=False, passes=1)
    answers = [answer_of(problem, placer, seed=seed) for seed in (0, 1, 1)]
    drawn = [{c.placement.key() for c in answer.candidates if c.found_by == "neural_list"} for answer in answers]
    assert drawn[0] != drawn[1] == drawn[2]


def test_all_passes_stay_within_the_budget():
    problem = Amounts.drawn(1, 20, 3).problem
    for evaluations in (1, 2, 5, 9):
        simulator = simulator_of(problem)
        NeuralList().place(problem, simulator, Budget(evaluations), seed=0, progress=lambda _: None)
        assert simulator.evaluations <= evaluations


@pytest.mark.parametrize("ordered", [False, True])
def test_a_schedule_made_when_the_budget_has_ended_counts_nothing(ordered: bool):
    problem = replace(Amounts.drawn(1, 20, 3).problem, ordered=ordered)
    search = Search(problem, simulator_of(problem), Budget(4), lambda _: None)
    instance = list_instances(search)[0]
    schedule = instance.schedule(shipped()[0].scores(instance.context))
    assert math.isfinite(asked(search, instance, schedule))
    with search.limited("ended", evaluations=0):
        other = instance.schedule(ListPolicy.untrained(np.random.default_rng(0)).scores(instance.context))
        assert asked(search, instance, other) == math.inf


def test_the_weights_that_come_along_are_of_this_version_and_beat_their_beginning():
    policy, begun = shipped()[0], ListPolicy.of_vector(TrainingState.first().mean)
    index = split("nas-rnn", seed=0)[2][0]
    lessons = [Exercise("nas-rnn", f"nas-rnn?index={index}", "equal:4", "T2", 0.0, 0).training_case()]
    assert grades(policy, lessons)["nas-rnn"] < grades(begun, lessons)["nas-rnn"]


def test_other_weights_are_another_version():
    digest = hashlib.sha256(SHIPPED.read_bytes()).hexdigest()[:16]
    assert (NeuralList.version, digest) == (4, "0e07b083130de8ef"), "raise the version: answers are cached by it"


def test_no_torch_is_needed():
    code = (
        "import policy.place.learned.neural_list.neural_list as m, sys; m.shipped(); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=HOME)


def lessons() -> list[ListTrainingCase]:
    """Return two small lessons; what they are measured against is any number."""
    problems = [Amounts.drawn(seed, 12, 2).problem for seed in range(2)]
    return [
        ListTrainingCase.of(f"f{i}", problem, simulator_of(problem), reference_s=5.0)
        for i, problem in enumerate(problems)
    ]


COURSE = CrossEntropy(generations=6, population=8, elite=2, batch=2, check_every=3)


def course_of(stand: TrainingState, until: int) -> TrainingState:
    while stand.generation < until:
        stand = trained(stand, COURSE, lessons(), lessons())
    return stand


def test_training_goes_on_from_a_file_as_if_it_had_never_stopped():
    whole = course_of(TrainingState.first(), 6)
    half = TrainingState.of_json(json.loads(json.dumps(course_of(TrainingState.first(), 3).to_json())))
    again = course_of(half, 6)
    assert again.mean.tolist() == whole.mean.tolist()
    assert again.deviation.tolist() == whole.deviation.tolist()
    assert again.log == whole.log
    assert [record["generation"] for record in whole.log] == [3, 6]


def test_what_a_schedule_before_counts_is_learned_after_all_else():
    begun = ListPolicy.untrained(np.random.default_rng(0))
    course = replace(CrossEntropy.after(generations=4, seed=0), population=8, elite=2, batch=2, check_every=2)
    stand = TrainingState.after(begun)
    for _ in range(course.generations):
        stand = trained(stand, course, lessons(), lessons())
    of_plan = np.array([".planned" in name for name in LINEAR_NAMES])
    assert np.all((stand.mean != begun.linear) == of_plan)
    assert [record["generation"] for record in stand.log] == [0, 2, 4]
    assert stand.best_loss == min(record["held_out"] for record in stand.log)
    assert not TrainingState.first().deviation[of_plan].any()


def test_more_sweeps_are_graded_by_the_schedule_planned_fastest():
    (lesson, _), policy = lessons(), ListPolicy.untrained(np.random.default_rng(3))
    scores = policy.scores(lesson.instance.context)
    made = [swept(lesson.instance, scores, width=width, sweeps=3) for width in (1, 4)]
    best = min(made, key=lambda draft: draft.planned_s).schedule.homes.device
    ratio = float(lesson.simulator.simulate(best[None]).value_s[0]) / lesson.reference_s
    single = math.log(lesson.single_s / lesson.reference_s)
    expected = min(math.log(ratio), single) + 0.2 * max(math.log(ratio) - single, 0.0)
    assert lesson.losses([policy], sweeps=3)[0] == pytest.approx(expected)


def test_training_finds_better_weights():
    course = replace(COURSE, population=24, elite=6, generations=15, check_every=1)
    stand = TrainingState.first()
    for _ in range(course.generations):
        stand = trained(stand, course, lessons(), lessons())
    assert stand.best_loss < stand.log[0]["held_out"] or stand.best_loss < stand.log[-1]["held_out"]
    assert grades(ListPolicy.of_vector(stand.best), lessons()) != grades(
        ListPolicy.of_vector(TrainingState.first().mean), lessons()
    )


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a training have one lesson to learn from and one to judge by."""
    one = [Exercise("layered", "layered?n=12", "equal:2", "T2", 0.0, 0)]
    monkeypatch.setattr(training_run, "split_exercises", lambda **_: (one, one))


class KilledError(Exception):
    """Stands for a kill."""


@pytest.mark.usefixtures("small")
def test_a_training_that_is_killed_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def killed(stand: TrainingState, *rest: Any) -> TrainingState:
        if stand.generation == 2:
            raise KilledError
        return trained(stand, *rest)

    training_run.train(tmp_path / "whole", COURSE, say=print)
    with monkeypatch.context() as patch:
        patch.setattr(training_run, "trained", killed)
        with pytest.raises(KilledError):
            training_run.train(tmp_path / "cut", COURSE, say=print)
    training_run.train(tmp_path / "cut", COURSE, say=print)
    names = (training_run.WEIGHTS, training_run.LOG, training_run.STATE)
    assert all((tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes() for name in names)
    assert [policy.linear.size for policy in ListPolicy.read(tmp_path / "cut" / training_run.WEIGHTS)] == [LINEAR]


@pytest.mark.usefixtures("small")
def test_a_folder_of_another_training_or_a_damaged_one_is_refused(tmp_path: Path):
    training_run.train(tmp_path, COURSE, say=print)
    with pytest.raises(UsageError, match="other settings"):
        training_run.train(tmp_path, replace(COURSE, seed=1), say=print)
    for text in ("{", "[]", json.dumps({"chosen": 1})):
        (tmp_path / training_run.STATE).write_text(text)
        with pytest.raises(UsageError):
            training_run.train(tmp_path, COURSE, say=print)


@pytest.mark.usefixtures("small")
def test_the_command_writes_weights(tmp_path: Path):
    assert cli(["train", "--out", str(tmp_path), "--generations", "1"]) == 0
    assert [policy.linear.size for policy in ListPolicy.read(tmp_path / training_run.WEIGHTS)] == [LINEAR]


@pytest.mark.usefixtures("small")
def test_the_command_goes_on_after_a_training(tmp_path: Path):
    begun = ListPolicy.untrained(np.random.default_rng(1))
    ListPolicy.write(tmp_path / "first.safetensors", [begun])
    command = ["train", "--out", str(tmp_path / "second"), "--after", str(tmp_path / "first.safetensors")]
    assert cli([*command, "--generations", "2"]) == 0
    found = ListPolicy.read(tmp_path / "second" / training_run.WEIGHTS)[0].linear
    same = np.array([".planned" not in name for name in LINEAR_NAMES])
    assert np.array_equal(found[same], begun.linear[same])
    ListPolicy.write(tmp_path / "first.safetensors", [ListPolicy.uniform()])
    assert cli([*command, "--generations", "2"]) == 2  # the folder is of a training after other weights


def test_what_is_learned_from_covers_generators_machines_levels_and_caps():
    learned, judged = split_exercises()
    assert {e.family for e in learned} == {*GRAPHS, *FAMILIES} - set(JUDGES)
    assert {e.family for e in judged} == set(JUDGES)
    assert {e.topology for e in learned} == set(TOPOLOGIES)
    assert {e.level for e in learned} == set(LEVELS)
    assert {e.share for e in learned} == set(CAPS)
    for family in FAMILIES:
        test = {f"{family}?index={i}" for part in split(family, seed=0)[1:] for i in part}
        assert not test & {e.graph for e in learned}


def test_families_can_be_left_out():
    learned, judged = split_exercises(left_out=("nas-cnn", "nmt"))
    assert not {"nas-cnn", "nmt"} & {e.family for e in (*learned, *judged)}
    with pytest.raises(UnknownNameError):
        split_exercises(left_out=("nas",))


def test_keys_and_devices_have_names_of_their_own():
    assert len({*LINEAR_NAMES}) == LINEAR
    assert len({*DEVICE_FIGURES}) == FIGURES
    assert len({*KEY_FIGURES}) == len(KEY_FIGURES)


def test_a_lesson_that_does_not_fit_counts_worse_than_any_that_does():
    amounts = Amounts.drawn(0, 12, 2)
    roomy = ListTrainingCase.of("f", amounts.problem, simulator_of(amounts.problem), reference_s=5.0)
    half = int(amounts.weight_bytes.sum()) // 2 + 60  # for weights, not for what they put out
    problem = replace(amounts, memory_bytes=(half, half)).problem
    short = ListTrainingCase.of("f", problem, simulator_of(problem), reference_s=5.0)
    policies = [ListPolicy.of_vector(TrainingState.first().mean)]
    assert short.losses(policies)[0] >= math.log(3.0) > roomy.losses(policies)[0]


def test_samples_follow_scores_and_ways_of_the_best():
    scores = Scores(np.array([1.0, 2.0]), np.array([1.0]), np.zeros((0, 0)))
    rng, noise = np.random.default_rng(0), Noise(0.5, 0.0)
    sampler = Sampler(scores, ["slow", "fast"], rng)
    instance = EASY.instance()
    for _ in range(8 * 32):
        way, sample = sampler.way(), noise.on(sampler.centre, instance, rng)
        sampler.note(float(sample.device[0]) + 10 * (way == "slow"), sample, way)
    assert sampler.centre.device[0] < -1
    assert {sample.way for sample in sampler.best} == {"fast"}
    assert all(sample.scores.noise.size == 0 for sample in sampler.best)  # as large as the problem, and of one draw
    assert sum(sampler.way() == "fast" for _ in range(200)) > 140


def test_weights_of_zero_are_tried_as_others_in_samples():
    scores = Scores(np.array([0.0, 2.0]), np.array([1.0, 0.0]), np.zeros((0, 0)))
    found = Noise(0.5, 0.0).on(scores, EASY.instance(), np.random.default_rng(0))
    assert 0 < abs(found.device[0]) < abs(found.device[1] - 2.0)
    assert found.key[1] != 0


@pytest.mark.parametrize(("over_bytes", "seconds"), [(0, 2.0), (1, math.inf)])
def test_a_schedule_that_does_not_fit_takes_for_ever(over_bytes: int, seconds: float):
    problem, instance = EASY.problem, EASY.instance()
    found = SimpleNamespace(over_bytes=np.array([over_bytes]), value_s=np.array([2.0]))
    search: Any = SimpleNamespace(problem=problem, simulator="there is one", simulate=lambda device: found)
    schedule = instance.schedule(Scores(np.zeros(FIGURES), np.zeros(len(KEY_FIGURES)), np.zeros((0, 0))))
    assert asked(search, instance, schedule) == seconds


@pytest.mark.parametrize(("memory", "short"), [((0, 0), False), ((9, 9), True)])
def test_where_memory_is_short_outputs_take_some(memory: tuple[int, int], short: bool):
    problem = replace(EASY, memory_bytes=memory).problem
    search = Search(problem, simulator_of(problem), Budget(10), lambda _: None)
    assert tight(search) == short
    expected = memory_demand(problem) if short else np.ones(3)
    assert list_instances(search)[0].work.demand == pytest.approx(expected)
    assert (memory_demand(problem) > 1).all()


def planned(problem: Problem, placer: NeuralList) -> tuple[list[ListInstance], list[Plan]]:
    """Return a problem as the placer sees it, and what it plans."""
    instances = list_instances(Search(problem, simulator_of(problem), Budget(100), lambda _: None))
    rng = np.random.default_rng(0)
    return instances, plans(instances, placer.policies(rng), placer.noise, rng)


def test_one_pass_asks_about_the_plan_that_is_expected_to_end_first():
    problem, placer = Amounts.drawn(3, 40, 4).problem, NeuralList(passes=1, samples=0, improve=False)
    _, found = planned(problem, placer)
    assert [plan.expected_s for plan in found] == sorted(plan.expected_s for plan in found)
    assert found[0].expected_s < found[-1].expected_s
    made = [c for c in answer_of(problem, placer).candidates if c.found_by == "neural_list"]
    assert [c.planned_s for c in made] == [found[0].draft.planned_s]


def test_rules_plan_as_well_and_large_problems_have_few_plans():
    problem, placer = Amounts.drawn(3, 40, 4).problem, NeuralList()
    instances, found = planned(problem, placer)
    ruled = [plan for plan in found if plan.scores is None]
    assert len(ruled) == 2 * len(instances)
    work = instances[0].work
    known = list_schedule(work, -upward(work), np.zeros(work.op_s.shape), False)
    assert any(np.array_equal(plan.schedule.start_s, known.start_s) for plan in ruled)
    for n, most in ((1000, CELLS // 8000), (1500, FEW)):
        assert len(planned(Amounts.drawn(0, n, 8).problem, placer)[1]) == most < len(found)


def test_a_replay_by_hand():
    # 0 until 1; of 1 and 2, ready at the same moment, 2 first, whose b-level is greater; 3, on B, waits for the outputs
    # of both, the second of which leaves at 6.
    instance = DIAMOND.instance()
    assert instance.replayed_s(np.array([0, 0, 0, 1])) == 1 + 3 + 2 + 0.5 + 1
    # 2 on A until 3, 0 there until 4; on B, 3 is ready before 1, though the b-level of 1 is greater.
    chains, device = replace(DIAMOND, edges=((0, 1), (2, 3))).instance(), np.array([0, 1, 0, 1])
    assert chains.replayed_s(device) == 4.5 + 2
    decisions = Decisions(device, np.zeros((0, 2, FIGURES)), np.full(4, -1, np.int64))
    scores = with_weights().scores(chains.context)
    assert constructed(chains.work, chains.static, scores, decisions).finish_s.max() == 4.5 + 2 + 1


def test_a_replay_is_the_schedule_of_its_own_order():
    """Where every operation is alone on its device for as long as it runs, no order is left to differ."""
    amounts = replace(Amounts.drawn(4, 12, 1), edges=tuple((i, i + 1) for i in range(11)))
    instance = amounts.instance()
    assert instance.replayed_s(np.zeros(12, np.int64)) == pytest.approx(amounts.op_s.sum())


def test_samples_are_drawn_around_the_best():
    problem, placer = Amounts.drawn(3, 30, 4).problem, NeuralList()
    instances, found = planned(problem, placer)
    parents = Parents(found, instances, Noise(0.0, 0.0), np.random.default_rng(0))
    learned = [plan for plan in found if plan.scores is not None][:BEST]
    assert [sample.seconds for sample in parents.best] == [plan.expected_s for plan in learned]
    best = parents.drawn()
    for _ in range(BEST):
        parents.note(0.0, best)
    parents.note(1.0, found[0])
    assert {sample.seconds for sample in parents.best} == {0.0}
    assert best.scores is not None
    assert all(np.array_equal(sample.scores.device, best.scores.device) for sample in parents.best)


def test_of_several_planned_a_sample_asks_about_the_one_expected_to_end_first(monkeypatch: pytest.MonkeyPatch):
    drawn: list[Plan] = []
    noted: list[Plan] = []
    draw, note = Parents.drawn, Parents.note

    def watched(parents: Parents) -> Plan:
        drawn.append(draw(parents))
        return drawn[-1]

    def noting(parents: Parents, seconds: float, plan: Plan) -> None:
        noted.append(plan)
        note(parents, seconds, plan)

    monkeypatch.setattr(Parents, "drawn", watched)
    monkeypatch.setattr(Parents, "note", noting)
    answer_of(Amounts.drawn(2, 40, 4).problem, NeuralList(planned=5, samples=20, improve=False))
    counts = [*[5] * 16, *[2] * 4]  # of the first samples, and of those after them
    ends = np.cumsum(counts)
    assert len(drawn) == ends[-1]
    expected = [min(p.expected_s for p in drawn[end - count : end]) for count, end in zip(counts, ends, strict=True)]
    assert [plan.expected_s for plan in noted[-20:]] == expected


def test_members_complement_one_another():
    expected = np.log([[9.0, 1.0, 0.9, 2.0], [9.0, 1.0, 0.9, 0.5], [9.0, 1.0, 2.0, 2.0]])
    table = Table(expected, expected.copy(), np.full(3, 1 / 3))
    assert table.chosen(1) == [0]
    assert table.chosen(2) == [0, 2]  # which betters one lesson by half, where 1 betters two by a tenth
    assert table.chosen(9) == [0, 2, 1]
    blind = Table(expected, np.log([[9.0, 1.0, 1.3, 2.0], [9.0, 1.0, 0.9, 2.0], [9.0, 1.0, 2.0, 2.0]]), table.weight)
    assert blind.grade([0, 1]) == pytest.approx((1.5 * math.log(1.3) + math.log(0.9)) / 3)  # what looks best counts


def test_a_file_may_hold_several_policies(tmp_path: Path):
    policies = [ListPolicy.untrained(np.random.default_rng(seed)) for seed in range(3)]
    ListPolicy.write(tmp_path / "w.safetensors", policies)
    again = ListPolicy.read(tmp_path / "w.safetensors")
    assert [policy.linear.tolist() for policy in again] == [policy.linear.tolist() for policy in policies]


@pytest.mark.usefixtures("small")
def test_choosing_members_goes_on_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def killed(team: Team, *rest: Any) -> Team:
        if team.round == 1:
            raise KilledError
        return complemented(team, *rest)

    begun = ListPolicy.untrained(np.random.default_rng(1))
    ListPolicy.write(tmp_path / "first.safetensors", [begun])
    course = Complementing(members=3, draws=6, rounds=2)
    run = partial(training_run.train_complement, course=course, after=tmp_path / "first.safetensors", say=print)
    run(tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(training_run, "complemented", killed)
        with pytest.raises(KilledError):
            run(tmp_path / "cut")
    run(tmp_path / "cut")
    names = (training_run.WEIGHTS, training_run.LOG, training_run.STATE)
    assert all((tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes() for name in names)
    found = ListPolicy.read(tmp_path / "cut" / training_run.WEIGHTS)
    assert len(found) == 3
    assert found[0].linear.tolist() == begun.linear.tolist()
    of_plan = np.array([".planned" in name for name in LINEAR_NAMES])
    assert all(np.array_equal(policy.linear[of_plan], begun.linear[of_plan]) for policy in found)


def test_members_are_chosen_after_a_training(tmp_path: Path):
    assert cli(["train", "--out", str(tmp_path), "--members", "4"]) == 2
