"""The learned placer: what it learns, the policies it leaves, how it starts, what it promises, and what it refuses."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.core.errors import UnknownNameError, UsageError
from pipeline.core.graph import Grouping
from pipeline.core.learning import Checkpointer, GroupSample, Snapshot
from pipeline.core.measurement import MeasurementFailed, seconds_of
from pipeline.core.placement import Placement
from pipeline.core.problem import Budget, Problem, Progress
from pipeline.core.stages import Answer, Candidate, Evaluator, Subject
from pipeline.settings.registry import build_implementation
from pipeline.shared.torch_tools import torch_seeded
from pipeline.store.checkpoint import FolderCheckpointer, read_policy
from policy.place.base.search import Search
from policy.place.learned.hsdag import trainer as learning
from policy.place.learned.hsdag.hsdag import Hsdag
from policy.place.learned.hsdag.trainer import HsdagTrainer, Parser, Way
from policy.place.learned.neural_list import sampling
from policy.place.learned.neural_list.constructing import Decisions, Scores
from policy.place.learned.neural_list.instances import ListInstance
from policy.place.learned.neural_list.neural_list import NeuralList
from policy.place.learned.neural_list.sampling import Sample
from policy.place.lists.baechi import holdable
from policy.place.lists.listing import PartialSchedule
from policy.place.local.anneal import Anneal
from policy.place.portfolio import Portfolio
from tests.slow import slow_where
from tests.toys import (
    CHAIN,
    FAST_S,
    PROBLEMS,
    ToyEvaluator,
    branches_problem,
    chain_problem,
    crown_problem,
    ignore_progress,
    toy_graph,
    toy_problem,
    toy_topology,
)

EVALUATIONS = 100
SMALL = Hsdag(warm=0.0, batch=8, drawing=0.7, learner="both", imitation_coef=0.1)

MODES = [("plain", False), ("listsched", False), ("listsched", True), ("sequential", False)]


class Interrupted(Exception):  # noqa: N818  no error
    """What ends a search from outside."""


@dataclasses.dataclass
class Memory:
    """Keeps states as a file would, all of them; raises behind every `dies_after`th one."""

    dies_after: int = 0
    states: list[Snapshot] = dataclasses.field(default_factory=list)
    policies: list[Snapshot] = dataclasses.field(default_factory=list)

    def load(self) -> Snapshot | None:
        return self.states[-1] if self.states else None

    def save(self, state: Snapshot) -> None:
        arrays = {name: np.array(values) for name, values in state.arrays.items()}
        self.states.append(Snapshot(arrays, json.loads(json.dumps(state.facts))))
        if self.dies_after and len(self.states) % self.dies_after == 0:
            raise Interrupted

    def publish(self, policy: Snapshot) -> None:
        self.policies.append(policy)


def kept_in(problem: Problem, checkpointer: Checkpointer) -> Problem:
    assert problem.policy is not None
    return dataclasses.replace(problem, policy=dataclasses.replace(problem.policy, checkpointer=checkpointer))


def with_inputs(problem: Problem, **inputs: Any) -> Problem:
    assert problem.policy is not None
    return dataclasses.replace(problem, policy=dataclasses.replace(problem.policy, **inputs))


def wide_problem(*, ordered: bool = False, group: str = "edge_score", p: int = 3, **options: Any) -> Problem:
    """Return three chains of four operations between a source and a sink."""
    chains = [[1 + 4 * c + i for i in range(4)] for c in range(3)]
    edges = [(0, c[0]) for c in chains] + [(c[-1], 13) for c in chains]
    edges += [(c[i], c[i + 1]) for c in chains for i in range(3)]
    op_s = 1e-3 * (0.2 + 3 * np.random.default_rng(0).random((14, p)))
    problem = toy_problem(toy_graph(14, edges), op_s, group=group, **options)
    return dataclasses.replace(problem, ordered=ordered)


def evaluator_of(problem: Problem, rules: str) -> Evaluator:
    if rules == "plain":
        return ToyEvaluator.of(problem)
    values = {"level": "T2"} if rules == "listsched" else {}
    subject = Subject(None, problem.graph, Grouping.identity(problem.graph.n), problem.topology, problem.costs, 0)
    return build_implementation("measure", rules, values).bind(subject)  # type: ignore[no-any-return]


def place(
    problem: Problem,
    rules: str = "plain",
    *,
    placer: Hsdag = SMALL,
    evaluations: int = EVALUATIONS,
    seed: int = 3,
) -> Answer:
    evaluator = evaluator_of(problem, rules)
    return placer.place(problem, evaluator, Budget(evaluations), seed=seed, progress=ignore_progress)


def told(answer: Answer) -> list[tuple[bytes, float, str]]:
    """Return what tells two answers apart."""
    return [(c.placement.key(), value_s(c), c.found_by) for c in answer.candidates]


def value_s(candidate: Candidate) -> float:
    return seconds_of(candidate.result)


def weights(arrays: Mapping[str, np.ndarray]) -> str:
    """Return a digest of arrays."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        found.update(name.encode() + np.ascontiguousarray(arrays[name]).tobytes())
    return found.hexdigest()


# What it learns


def trainer_of(**values: Any) -> HsdagTrainer:
    problem = wide_problem()
    search = Search(problem, evaluator_of(problem, "listsched"), Budget(10**6), ignore_progress)
    return dataclasses.replace(SMALL, batch=32, **values).trainer(search, seed=0)


def groups_drawn(trainer: HsdagTrainer) -> float:
    """Return the mean number of groups of many draws."""
    return float(np.mean([s.grouping.k for s in trainer.parser.draws(200, np.random.default_rng(9))]))


@pytest.mark.parametrize("learns", [True, False])
def test_groupings_whose_schedules_are_fast_become_likelier(monkeypatch: pytest.MonkeyPatch, learns: bool):
    monkeypatch.setattr(
        learning, "asked", lambda _, instance, __: 1.0 + instance.work.group.max()
    )  # few groups are fast
    trainer = trainer_of(learning_rate=0.05, learns=learns)
    before = groups_drawn(trainer)
    with torch_seeded(0):
        for _ in range(15):
            trainer.update()
    assert groups_drawn(trainer) < 0.7 * before if learns else groups_drawn(trainer) == before


def test_groupings_of_one_batch_are_compared_under_the_same_scores(monkeypatch: pytest.MonkeyPatch):
    made: list[tuple[ListInstance, Scores]] = []
    recorded = ListInstance.recorded

    def spy(self: ListInstance, scores: Scores, **options: Any) -> tuple[PartialSchedule, Decisions]:
        made.append((self, scores))
        return recorded(self, scores, **options)

    monkeypatch.setattr(ListInstance, "recorded", spy)
    trainer = trainer_of(learns=False)  # so that no groups are taken again
    trainer.update()
    made.clear()
    trainer.update()
    drawn = [(instance, b"".join(part.tobytes() for part in scores)) for instance, scores in made]
    parsed = [scores for instance, scores in drawn if instance not in trainer.instances]
    assert len(parsed) > 3
    assert len(set(parsed)) == 1
    others = [scores for instance, scores in drawn if instance in trainer.instances]
    assert len(others) == len(set(others)) > 3


def test_groups_are_parsed_once_per_batch_and_anew_in_every_one(monkeypatch: pytest.MonkeyPatch):
    drawn: list[list[GroupSample]] = []
    draws, made = Parser.draws, ListInstance.on
    built: list[Grouping] = []

    def spied_draws(self: Parser, r: int, rng: np.random.Generator) -> list[GroupSample]:
        drawn.append(draws(self, r, rng))
        return drawn[-1]

    def spied_on(self: ListInstance, search: Search, grouping: Grouping) -> ListInstance:
        built.append(grouping)
        return made(self, search, grouping)

    monkeypatch.setattr(Parser, "draws", spied_draws)
    trainer = trainer_of()
    monkeypatch.setattr(ListInstance, "on", spied_on)
    with torch_seeded(0):
        trainer.update()
        assert drawn == []  # schedules without noise have no parsed groups
        for _ in range(6):
            before = len(drawn)
            trainer.update()
            assert len(drawn) - before <= 1  # none where the batch follows groups that are known
    assert len(drawn) > 3
    assert all(0 < len(samples) <= trainer.hyper.batch for samples in drawn)
    assert len(built) == sum(len(samples) for samples in drawn)  # each has an instance of its own
    assert len({tuple(s.grouping.group.tolist()) for samples in drawn for s in samples}) > len(drawn)


def test_half_of_the_samples_that_follow_parsed_groups_have_them_parsed_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sampling, "FOLLOWED", 1.0)
    trainer = trainer_of()
    parsed = trainer.instances[0].on(trainer.search, Grouping(np.arange(14, dtype=np.int32) // 2))

    def shares(way: Way) -> dict[Way, float]:
        trainer.sampler.best = [Sample(1.0, trainer.sampler.centre, way)]
        found = Counter(trainer._way() for _ in range(2000))
        return {each: count / 2000 for each, count in found.items()}

    # Two thousand draws are a twentieth off once in 10^5 times; the seed is fixed.
    assert shares((parsed, 1)) == pytest.approx({(None, 1): 0.5, (parsed, 1): 0.5}, abs=0.05)
    assert shares((trainer.instances[0], 4)) == {(trainer.instances[0], 4): 1.0}
    assert shares((None, 4)) == {(None, 4): 1.0}


def test_groups_that_no_device_could_hold_are_left_apart():
    graph = toy_graph(4, [(0, 1), (1, 2), (2, 3)], weight_bytes=[5, 5, 5, 5])
    problem = toy_problem(graph, np.ones((4, 2)), topology=toy_topology(memory_bytes=10))
    assert holdable(problem, Grouping(np.array([0, 0, 1, 1]))).group.tolist() == [0, 0, 1, 1]
    assert holdable(problem, Grouping(np.array([0, 0, 0, 1]))).k == 4


def test_what_a_policy_has_learned_counts_in_the_context_it_was_learned_in():
    trainer = trainer_of()
    with torch_seeded(0):
        for _ in range(4):
            trainer.update()
    context, centre = trainer.instances[0].context, trainer.sampler.centre
    assert trainer.learned.scores(context).device == pytest.approx(centre.device)
    assert trainer.learned.scores(context).key == pytest.approx(centre.key)
    assert not np.allclose(centre.device, trainer.policy.scores(context).device)
    across = np.array([0.3, *np.zeros(len(context) - 1)])
    across -= context * (across @ context) / (context @ context)
    assert trainer.learned.scores(across).device == pytest.approx(trainer.policy.scores(across).device)


# Policies for other graphs


def test_a_policy_is_left_for_other_graphs_and_other_devices(tmp_path: Path):
    first = wide_problem()
    place(kept_in(first, FolderCheckpointer(tmp_path, "one")), "listsched")
    learned = read_policy(tmp_path)
    assert learned.facts["placer"] == "hsdag"
    assert learned.facts["params"]["batch"] == 8
    assert learned.facts["trained_on"]["devices"] == ["A", "B", "C"]
    assert learned.facts["trained_on"]["updates"] > 3
    other, checkpointer = branches_problem(group="edge_score"), Memory()
    other = with_inputs(other, learned=learned, checkpointer=checkpointer)
    place(other, evaluations=2)  # the devices alone: nothing is learned
    same = {name: values for name, values in checkpointer.policies[0].arrays.items() if not name.startswith("agent.")}
    assert weights(same) == weights({name: learned.arrays[name] for name in same})
    place(other, evaluations=60)
    assert weights(checkpointer.policies[1].arrays) != weights(learned.arrays)
    fresh = place(branches_problem(group="edge_score"), evaluations=20)
    assert told(place(with_inputs(other, checkpointer=None), evaluations=20)) != told(fresh)


def test_tables_go_on_where_operations_and_devices_are_the_same_and_nowhere_else(tmp_path: Path):
    first = wide_problem()
    place(kept_in(first, FolderCheckpointer(tmp_path, "one")), "listsched")
    learned = read_policy(tmp_path)
    assert np.any(learned.part("agent.")["table"])
    for problem, same in ((first, True), (wide_problem(p=4), False), (branches_problem(group="edge_score"), False)):
        given = with_inputs(problem, learned=learned)
        search = Search(given, ToyEvaluator.of(given), Budget(50), ignore_progress)
        agent = SMALL.trainer(search, seed=0).agent
        assert agent is not None
        assert np.any(agent.table) == same


def test_a_policy_of_another_kind_or_of_other_sizes_is_refused(tmp_path: Path):
    problem = chain_problem()
    place(kept_in(problem, FolderCheckpointer(tmp_path, "one")), evaluations=3)
    learned = read_policy(tmp_path)
    foreign = Snapshot(learned.arrays, {**learned.facts, "schema": "placewright.policy/other/1"})
    for wrong in (foreign, Snapshot(learned.arrays, {})):
        with pytest.raises(UsageError, match="is of kind"):
            place(with_inputs(problem, learned=wrong))
    narrow = Snapshot(learned.arrays, {**learned.facts, "width": 3})
    with pytest.raises(UsageError, match="width is 3, not 64"):
        place(with_inputs(problem, learned=narrow))
    grouped = with_inputs(chain_problem(group="edge_score"), learned=learned)
    with pytest.raises(UsageError, match="do not fit"):
        place(grouped)


# Starts


@pytest.mark.parametrize("rules", slow_where(["plain", "listsched", "sequential"], {"sequential"}))
@pytest.mark.parametrize("warm", [0.0, 0.3])
def test_a_placement_to_start_from_is_never_lost(rules: str, warm: float):
    # So good a placement that hardly anything is better.
    good = place(wide_problem(), rules, placer=Portfolio(solvable=0), evaluations=600).best  # type: ignore[arg-type]
    problem = dataclasses.replace(wide_problem(), start=good.placement, start_by="somebody")
    answer = place(problem, rules, placer=dataclasses.replace(SMALL, warm=warm), evaluations=60)
    assert answer.value_s <= value_s(good)
    assert [c.found_by for c in answer.candidates].count("somebody") == 1
    if answer.value_s == value_s(good):
        assert answer.best.found_by == "somebody"


def test_a_start_that_is_optimal_stays_its_authors():
    optimum = Placement(np.repeat([1, 0], CHAIN // 2), ("A", "B"))
    problem = dataclasses.replace(chain_problem(start=optimum), start_by="somebody")
    answer = place(problem, placer=Hsdag(), evaluations=100)
    assert answer.best.placement.key() == optimum.key()
    assert answer.best.found_by == "somebody"


def portfolio_runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which every run of the portfolio adds the evaluations it may spend."""
    left: list[int] = []
    run = Portfolio.run

    def spy(self: Portfolio, search: Search, *, seed: int) -> None:
        left.append(search.left)
        run(self, search, seed=seed)

    monkeypatch.setattr(Portfolio, "run", spy)
    return left


def test_the_portfolio_gets_its_share_and_its_best_is_kept(monkeypatch: pytest.MonkeyPatch):
    left = portfolio_runs(monkeypatch)
    problem = wide_problem()
    answer = place(problem, placer=dataclasses.replace(SMALL, warm=0.5), evaluations=203)
    assert left == [100]  # half of what the three devices alone have left
    best = place(problem, placer=Portfolio(solvable=0), evaluations=103)  # type: ignore[arg-type]
    assert answer.value_s <= best.value_s
    authors = {c.found_by for c in answer.candidates}
    assert "hsdag" in authors
    assert len(authors) > 1


def test_annealing_has_the_share_of_the_budget_that_draws_leave(monkeypatch: pytest.MonkeyPatch):
    spent: list[int] = []
    run = Anneal.run

    def spy(self: Anneal, search: Search, *, seed: int) -> None:
        spent.append(search.spent)
        run(self, search, seed=seed)

    monkeypatch.setattr(Anneal, "run", spy)
    monkeypatch.setattr(NeuralList, "run", lambda *_, **__: None)  # with it the portfolio proves an optimum at once
    for warm in (0.0, 0.5):
        placer = dataclasses.replace(SMALL, warm=warm, drawing=0.6, least_gain=0.0)
        place(wide_problem(), "listsched", placer=placer, evaluations=200)
    assert spent[0] == 120
    assert spent[-1] == 160  # 100 of the portfolio, which anneals as well, and 60 % of the rest


@pytest.mark.parametrize("least_gain", [0.0, 0.001])
def test_draws_that_gain_nothing_end_after_an_eighth_of_the_budget(monkeypatch: pytest.MonkeyPatch, least_gain: float):
    best = place(wide_problem(), "listsched", evaluations=2000).best.placement
    spent: list[int] = []
    monkeypatch.setattr(Anneal, "run", lambda _, search, *, seed: spent.append(search.spent))
    placer = dataclasses.replace(SMALL, batch=4, drawing=0.9, least_gain=least_gain)
    problem = dataclasses.replace(wide_problem(), start=best)
    place(problem, "listsched", placer=placer, evaluations=400)
    if least_gain:
        assert 50 < spent[0] < 70  # 50 after the schedules without noise
    else:
        assert spent[0] == 360


@pytest.mark.parametrize("learner", ["both", "cross_entropy"])
def test_how_many_schedules_are_constructed_at_a_time_changes_nothing(learner: str):
    one, more = (
        place(
            wide_problem(), "listsched", placer=dataclasses.replace(SMALL, learner=learner, workers=r), evaluations=200
        )
        for r in (1, 3)
    )
    assert told(one) == told(more)


@pytest.mark.parametrize("large", [False, True])
def test_large_graphs_are_left_to_the_portfolio(monkeypatch: pytest.MonkeyPatch, large: bool):
    left = portfolio_runs(monkeypatch)
    monkeypatch.setattr("policy.place.learned.hsdag.hsdag.clusters_first", lambda _: large)
    place(wide_problem(), placer=dataclasses.replace(SMALL, warm=0.3), evaluations=100)
    assert left == [97 if large else 29]  # the devices alone come first


def test_neither_a_cold_start_nor_a_given_one_runs_the_portfolio(monkeypatch: pytest.MonkeyPatch):
    left = portfolio_runs(monkeypatch)
    place(wide_problem(), placer=dataclasses.replace(SMALL, warm=0.0), evaluations=50)
    given = Placement.single(14, 0, ("A", "B", "C"))
    place(dataclasses.replace(wide_problem(), start=given), placer=dataclasses.replace(SMALL, warm=0.5), evaluations=50)
    assert left == []


def test_an_update_begun_as_the_time_runs_out_asks_nothing_and_ends(monkeypatch: pytest.MonkeyPatch):
    problem = crown_problem()
    evaluator = ToyEvaluator.of(problem)
    search = Search(problem, evaluator, Budget(seconds=60.0), ignore_progress)
    trainer = SMALL.trainer(search, seed=0)
    trainer.update()
    asked = evaluator.evaluations
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s + 61.0)
    trainer.update()
    assert evaluator.evaluations == asked


# Promises


def test_without_policy_inputs_there_is_nothing_to_learn_on():
    with pytest.raises(UsageError, match="embed and a group"):
        place(dataclasses.replace(chain_problem(), policy=None))


@pytest.mark.parametrize(
    "values",
    [
        {"batch": 0},
        {"patience": 0},
        {"learning_rate": -1.0},
        {"learning_rate": math.nan},
        {"entropy_coef": -0.1},
        {"spread": math.inf},
        {"temperature": -0.1},
        {"warm": math.nan},
        {"warm": 1.1},
        {"drawing": 0.0},
        {"drawing": 1.1},
        {"scores": "good"},
        {"learner": "good"},
        {"table_rate": -1.0},
        {"imitation_coef": math.nan},
    ],
)
def test_parameters_out_of_range_are_refused(values: dict[str, Any]):
    with pytest.raises((UsageError, UnknownNameError)):
        Hsdag(**values)


@pytest.mark.parametrize(("rules", "ordered"), MODES)
@pytest.mark.parametrize("evaluations", slow_where([1, 4, 5, 37], {4, 5}))
def test_no_evaluation_is_beyond_the_budget(rules: str, ordered: bool, evaluations: int):
    problem = wide_problem(ordered=ordered)
    for warm in (0.0, 0.3):
        evaluator = evaluator_of(problem, rules)
        done: list[int] = []
        placer = dataclasses.replace(SMALL, warm=warm)
        placer.place(problem, evaluator, Budget(evaluations), seed=0, progress=lambda p, done=done: done.append(p.done))
        assert evaluator.evaluations <= evaluations
        assert max(done) <= evaluations


@pytest.mark.parametrize("ordered", [False, True])
def test_priorities_are_drawn_where_placements_may_carry_them_and_only_there(
    monkeypatch: pytest.MonkeyPatch, ordered: bool
):
    made: list[Placement] = []
    evaluate = Search.evaluate

    def spy(self: Search, placements, **options):
        made.extend(placements)
        return evaluate(self, placements, **options)

    monkeypatch.setattr(Search, "evaluate", spy)
    answer = place(wide_problem(ordered=ordered), "listsched")
    found = [c.placement for c in answer.candidates if c.found_by == "hsdag"]
    assert found
    assert any(p.priority is not None for p in found) == ordered
    assert any(p.priority is not None for p in made) == ordered  # drawn, and refused, neither


def test_an_answer_says_what_learning_and_what_annealing_gained():
    problem = wide_problem()
    answer = place(problem, "listsched")
    alone = [Placement.single(problem.graph.n, d, problem.topology.names) for d in range(problem.topology.p)]
    single_s = min(seconds_of(result) for result in evaluator_of(problem, "listsched").evaluate(alone))
    (said,) = (note for note in answer.notes if note.startswith("hsdag began"))
    begun_s, learned, annealed = (float(x) for x in re.findall(r"([0-9.]+) (?:ms|%)", said))
    assert begun_s == pytest.approx(single_s * 1e3, abs=0.01)  # the start is cold
    assert learned + annealed > 0
    both = (1 - learned / 100) * (1 - annealed / 100)
    assert begun_s * both == pytest.approx(answer.value_s * 1e3, rel=2e-3)


def test_a_time_limit_ends_the_search():
    problem = wide_problem()
    for seconds in (1e-9, 0.2):
        evaluator = ToyEvaluator.of(problem)
        answer = SMALL.place(problem, evaluator, Budget(10**6, seconds=seconds), seed=0, progress=ignore_progress)
        assert answer.candidates
        assert evaluator.evaluations < 10**5


def test_an_evaluator_that_does_not_predict_is_asked_for_no_timelines(monkeypatch: pytest.MonkeyPatch):
    timelines: list[Placement] = []
    monkeypatch.setattr(Search, "timeline", lambda _, placement: timelines.append(placement))
    problem = wide_problem()
    names = problem.topology.names
    alone = [ToyEvaluator.of(problem).value_s(Placement.single(14, d, names)) for d in range(3)]
    assert place(problem).value_s < min(alone)
    assert timelines == []


def test_progress_tells_of_entropy_groups_and_updates():
    problem, seen = chain_problem(group="edge_score"), list[Progress]()
    SMALL.place(problem, ToyEvaluator.of(problem), Budget(80), seed=0, progress=seen.append)
    assert seen[0].details == {}
    last = seen[-1].details
    assert set(last) == {"entropy", "groups", "update"}
    assert 1 <= last["groups"] <= CHAIN
    assert 0 < last["entropy"] < 2
    updates = [p.details["update"] for p in seen if p.details]
    assert updates == sorted(updates)
    assert updates[-1] > 3


def test_a_search_without_anything_new_ends_before_its_budget():
    problem = toy_problem(toy_graph(2, [(0, 1)]), np.full((2, 2), FAST_S))
    evaluator = ToyEvaluator.of(problem)
    dataclasses.replace(SMALL, patience=5).place(problem, evaluator, Budget(10**4), seed=0, progress=ignore_progress)
    assert evaluator.evaluations == 4  # all there are


@pytest.mark.parametrize("toy", sorted(PROBLEMS))
def test_unknown_costs_leave_all_weights_finite(toy: str):
    known, checkpointer = PROBLEMS[toy][0](), Memory()
    problem = kept_in(PROBLEMS[toy][0](costs_known=False), checkpointer)
    SMALL.place(problem, ToyEvaluator.of(known), Budget(60), seed=0, progress=ignore_progress)
    assert all(np.isfinite(values).all() for values in checkpointer.policies[0].arrays.values())


def test_failures_leave_all_weights_finite():
    class Picky(ToyEvaluator):
        def evaluate(self, placements):
            answers = super().evaluate(placements)
            odd = [p.device.sum() % 2 == 1 for p in placements]
            return [MeasurementFailed("odd", "no") if o else a for o, a in zip(odd, answers, strict=True)]

    problem, checkpointer = chain_problem(), Memory()
    SMALL.place(kept_in(problem, checkpointer), Picky.of(problem), Budget(150), seed=0, progress=ignore_progress)
    assert all(np.isfinite(values).all() for values in checkpointer.policies[0].arrays.values())
