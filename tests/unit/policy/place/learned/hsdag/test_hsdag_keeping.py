"""The learned placer goes on from what it has kept as if it had never stopped."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipeline.core.learning import Checkpointer, Snapshot
from pipeline.core.measurement import MeasurementFailed
from pipeline.core.placement import Placement
from pipeline.core.problem import Budget, Problem
from pipeline.core.stages import Answer
from pipeline.store.checkpoint import FolderCheckpointer
from policy.place.base import search as module
from policy.place.base import training
from policy.place.base.search import Search
from policy.place.learned.hsdag.hsdag import Hsdag
from policy.place.portfolio import Portfolio
from tests.slow import slow_where
from tests.toys import (
    CHAIN,
    FAST_S,
    ToyEvaluator,
    chain_problem,
    ignore_progress,
    toy_graph,
    toy_problem,
)
from tests.unit.policy.place.learned.hsdag.test_hsdag import (
    EVALUATIONS,
    MODES,
    SMALL,
    Interrupted,
    Memory,
    evaluator_of,
    kept_in,
    place,
    told,
    weights,
    wide_problem,
)

QUICK_MODES = slow_where(MODES, [("listsched", False), ("sequential", False)])


@dataclasses.dataclass
class Mortal:
    """Keeps in a folder; raises behind every second state."""

    folder: FolderCheckpointer
    saved: int = 0

    def load(self) -> Snapshot | None:
        return self.folder.load()

    def save(self, state: Snapshot) -> None:
        self.folder.save(state)
        self.saved += 1
        if self.saved % 2 == 0:
            raise Interrupted

    def publish(self, policy: Snapshot) -> None:
        self.folder.publish(policy)


@pytest.fixture
def every_update_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "SAVE_EVERY_S", 0.0)


def step(state: Snapshot) -> dict[str, Any]:
    """Return what a state says of an update, without the time it took."""
    facts = json.loads(json.dumps(state.facts))
    facts["search"].pop("elapsed_s")
    return facts | {"arrays": weights(state.arrays)}  # type: ignore[no-any-return]


def finished(problem: Problem, checkpointer: Checkpointer, rules: str, placer: Hsdag = SMALL) -> tuple[Answer, int]:
    """Return the answer of a search that begins again as often as it is interrupted, and how often that was."""
    for deaths in range(200):
        try:
            return place(kept_in(problem, checkpointer), rules, placer=placer), deaths
        except Interrupted:
            continue
    raise AssertionError("the search never ends")


@pytest.mark.usefixtures("every_update_is_saved")
@pytest.mark.parametrize(("rules", "ordered"), QUICK_MODES)
def test_a_search_interrupted_anywhere_ends_as_if_it_never_was(rules: str, ordered: bool):
    problem, whole = wide_problem(ordered=ordered), Memory()
    expected = place(kept_in(problem, whole), rules)
    assert len(whole.states) > 5
    assert len({step(s)["arrays"] for s in whole.states}) > len(whole.states) / 2  # few updates teach nothing
    for every in (1, 4):
        checkpointer = Memory(dies_after=every)
        answer, deaths = finished(problem, checkpointer, rules)
        assert deaths == len(whole.states) // every
        assert [step(s) for s in checkpointer.states] == [step(s) for s in whole.states]
        assert told(answer) == told(expected)
        assert answer.evaluations == expected.evaluations <= EVALUATIONS
        assert weights(checkpointer.policies[-1].arrays) == weights(whole.policies[-1].arrays)


@pytest.mark.usefixtures("every_update_is_saved")
@pytest.mark.parametrize(("rules", "ordered"), slow_where(MODES, set(MODES) - {("listsched", True)}))
def test_a_search_goes_on_from_a_folder(tmp_path: Path, rules: str, ordered: bool):
    problem = wide_problem(ordered=ordered)
    expected = place(problem, rules)
    checkpointer = Mortal(FolderCheckpointer(tmp_path, "one search"))
    answer, deaths = finished(problem, checkpointer, rules)
    assert deaths > 2
    assert told(answer) == told(expected)


@pytest.mark.usefixtures("every_update_is_saved")
def test_patience_outlives_an_interruption():
    problem = toy_problem(toy_graph(2, [(0, 1)]), np.full((2, 2), FAST_S))
    whole, checkpointer, placer = Memory(), Memory(dies_after=2), dataclasses.replace(SMALL, patience=5)
    place(kept_in(problem, whole), placer=placer)
    answer, deaths = finished(problem, checkpointer, "plain", placer)
    assert len(checkpointer.states) == len(whole.states) >= 5
    assert deaths == len(whole.states) // 2
    assert len(answer.candidates) == 4


@pytest.mark.usefixtures("every_update_is_saved")
def test_a_search_after_a_warm_start_goes_on_without_another(monkeypatch: pytest.MonkeyPatch):
    problem, placer = wide_problem(), dataclasses.replace(SMALL, warm=0.3)
    expected = place(problem, placer=placer)
    checkpointer = Memory(dies_after=2)
    with pytest.raises(Interrupted):
        place(kept_in(problem, checkpointer), placer=placer)

    def never(*_: object, **__: object) -> None:
        raise AssertionError("the portfolio ran again")

    monkeypatch.setattr(Portfolio, "run", never)
    checkpointer.dies_after = 0
    assert told(place(kept_in(problem, checkpointer), placer=placer)) == told(expected)


@pytest.mark.usefixtures("every_update_is_saved")
def test_a_search_that_has_ended_answers_at_once():
    problem, checkpointer = wide_problem(), Memory()
    expected = place(kept_in(problem, checkpointer))
    assert checkpointer.states[-1].facts["search"]["spent"] == EVALUATIONS
    evaluator, updates = ToyEvaluator.of(problem), len(checkpointer.states)
    answer = SMALL.place(
        kept_in(problem, checkpointer), evaluator, Budget(EVALUATIONS), seed=3, progress=ignore_progress
    )
    assert told(answer) == told(expected)
    assert evaluator.evaluations == problem.topology.p  # the devices alone, with which every search opens
    assert len(checkpointer.states) == updates


def test_states_are_kept_only_every_so_often(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(training, "SAVE_EVERY_S", 1e9)
    checkpointer = Memory()
    place(kept_in(chain_problem(), checkpointer), evaluations=30)
    assert len(checkpointer.states) == 1  # what annealing leaves
    assert len(checkpointer.policies) == 1


@pytest.mark.parametrize(("rules", "ordered"), QUICK_MODES)
def test_equal_seeds_ask_the_same_in_the_same_order(rules: str, ordered: bool):
    asked: list[list[bytes]] = []
    for seed in (5, 5, 6):
        problem = wide_problem(ordered=ordered)
        evaluator = evaluator_of(problem, rules)
        asked.append([])
        evaluate, local_search, seen = evaluator.evaluate, getattr(evaluator, "local_search", None), asked[-1]
        simulate = getattr(evaluator, "simulate", None)

        def evaluated(placements, evaluate=evaluate, seen=seen):
            seen.extend(p.key() for p in placements)
            return evaluate(placements)

        def simulated(device, priority=None, simulate=simulate, seen=seen):
            seen.extend(row.tobytes() for row in device)
            return simulate(device, priority)

        def walked(start, moves, local_search=local_search, seen=seen, **options):
            seen.extend([start.key(), *(part.tobytes() for part in (moves.ptr, moves.node, moves.device, moves.shift))])
            return local_search(start, moves, **options)

        evaluator.evaluate = evaluated  # type: ignore[method-assign]
        if local_search is not None:
            evaluator.local_search = walked  # type: ignore[attr-defined]
            evaluator.simulate = simulated  # type: ignore[attr-defined]
        SMALL.place(problem, evaluator, Budget(100), seed=seed, progress=ignore_progress)
    assert len(asked[0]) > 20
    assert asked[0] == asked[1]
    assert asked[0] != asked[2]


# The state of a search


def test_a_search_goes_on_from_its_state_with_failures_priorities_and_proofs(tmp_path: Path):
    problem = dataclasses.replace(chain_problem(), ordered=True)
    names, rng = problem.topology.names, np.random.default_rng(0)
    instances = [Placement(rng.integers(0, 2, CHAIN), names, rng.random(CHAIN) if i % 2 else None) for i in range(50)]
    evaluator = ToyEvaluator.of(problem, [instances[3].key(), instances[48].key()])
    first = Search(problem, evaluator, Budget(200, seconds=1000.0), ignore_progress, author="one")
    first.evaluate(instances[:30], planned_s=[1e-3 * i for i in range(30)])
    first.prove(2e-3, "hand")
    folder = FolderCheckpointer(tmp_path, "context")
    folder.save(first.state())
    state = folder.load()
    assert state is not None
    again = Search(
        problem, ToyEvaluator.of(problem, [instances[48].key()]), Budget(200, seconds=1000.0), ignore_progress
    )
    again.author = "one"
    again.resume(state)
    assert again.spent == first.spent == 32
    assert (again.best_s, again.bound_s, again.left) == (first.best_s, 2e-3, 168)
    assert again.left_s == pytest.approx(first.left_s, abs=100)
    assert told(again.answer()) == told(first.answer())
    failures = [c.result for c in again.answer().candidates if isinstance(c.result, MeasurementFailed)]
    assert failures == [MeasurementFailed("refused", "not this one")]
    planned = [[c.planned_s for c in s.answer().candidates] for s in (again, first)]
    assert planned[0] == pytest.approx(planned[1], nan_ok=True)
    assert np.isnan(planned[0]).sum() == 2  # the devices alone
    again.evaluate(instances[:40])
    assert again.spent == 42  # what was seen before costs nothing
    first.evaluate(instances)
    again.evaluate(instances)
    assert told(again.answer()) == told(first.answer())
    assert [c.placement.to_json(problem.graph.names) for c in again.answer().candidates] == [
        c.placement.to_json(problem.graph.names) for c in first.answer().candidates
    ]


def test_time_counts_once_however_often_a_search_is_resumed(monkeypatch: pytest.MonkeyPatch):
    problem, now = chain_problem(), [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def search() -> Search:
        return Search(problem, ToyEvaluator.of(problem), Budget(200, seconds=100.0), ignore_progress)

    state, left_s = search().state(), []
    for pause_s in (1000.0, 50.0, 7.0):
        now[0] += pause_s  # nobody searches
        again = search()
        now[0] += 1.0  # lost, as what is evaluated before a search is resumed
        again.resume(state)
        now[0] += 30.0
        left_s.append(again.left_s)
        state = again.state()
        assert state.facts["elapsed_s"] == 100.0 - again.left_s
    assert left_s == [70.0, 40.0, 10.0]


def test_an_empty_search_has_a_state_as_well():
    problem = chain_problem()
    refusing = ToyEvaluator.of(problem, [Placement.single(CHAIN, d, problem.topology.names).key() for d in range(2)])
    search = Search(problem, refusing, Budget(9), ignore_progress)
    again = Search(problem, refusing, Budget(9), ignore_progress)
    again.resume(search.state())
    assert (again.spent, again.best, again.best_s) == (2, None, math.inf)
    assert len(again.answer().candidates) == 2


def test_of_equally_fast_placements_the_first_stays_the_best():
    problem = toy_problem(toy_graph(2, [(0, 1)]), np.full((2, 2), FAST_S))
    search, again = (Search(problem, ToyEvaluator.of(problem), Budget(9), ignore_progress) for _ in range(2))
    again.resume(search.state())
    assert search.best is not None
    assert again.best is not None
    assert again.best.device.tolist() == search.best.device.tolist() == [0, 0]


@pytest.mark.usefixtures("every_update_is_saved")
def test_a_larger_budget_goes_on():
    problem, checkpointer = wide_problem(), Memory()
    place(kept_in(problem, checkpointer), evaluations=60)
    place(kept_in(problem, checkpointer), evaluations=120)
    assert checkpointer.states[-1].facts["search"]["spent"] == 120
