"""The learned placers gdp and sgdp: what they learn, keep, begin with and refuse."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embed.features import node_features
from pipeline.core.errors import PlacewrightError, UsageError
from pipeline.core.graph import Grouping
from pipeline.core.learning import PolicyInputs, Snapshot
from pipeline.core.placement import Placement
from pipeline.core.problem import Budget, Problem, Progress
from pipeline.core.stages import Answer, Evaluator
from pipeline.offline.scenario import Scenario, load
from pipeline.placing.recipes import for_placer
from pipeline.settings.registry import build_implementation
from pipeline.store.checkpoint import FolderCheckpointer, read_policy, with_checkpointer
from policy.place.base.search import Search
from policy.place.published.gdp import gdp as module
from policy.place.published.gdp.batch import learn_jointly
from policy.place.published.gdp.gdp import Gdp
from policy.place.published.gdp.keeping import state_of, take_up
from policy.place.published.gdp.ppo import Rollouts, advantages, clipped_loss, entropy_of, imitation_loss, reward
from policy.place.published.gdp.sequence import SequenceBatch
from policy.place.published.gdp.sgdp import Sgdp
from tests.slow import slow_but
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
from tests.unit.policy.place.learned.hsdag.test_hsdag import (
    Interrupted,
    Memory,
    evaluator_of,
    kept_in,
    told,
    weights,
    wide_problem,
    with_inputs,
)

SMALL = Gdp(
    width=8, inner=8, heads=2, hops=2, layers=1, rollouts=8, minibatches=2, epochs=1, learning_rate=3e-3, patience=2
)
LEARNER = Gdp(
    width=16,
    inner=16,
    hops=2,
    minibatches=1,
    learning_rate=3e-3,
    entropy_coef=0.1,
    baseline="batch",
    standardise=True,
    patience=5,
)
NONE = torch.zeros((0, 2), dtype=torch.int64)  # placements to imitate
SAGE = build_implementation("embed", "sage", {"width": 8, "layers": 2})


def sage(problem: Problem) -> Problem:
    return with_inputs(problem, embedder=SAGE)


def place(
    problem: Problem,
    placer: Any = SMALL,
    *,
    evaluator: Evaluator | None = None,
    evaluations: int = 50,
    seed: int = 3,
) -> Answer:
    asked = evaluator or ToyEvaluator.of(problem)
    return placer.place(sage(problem), asked, Budget(evaluations), seed=seed, progress=ignore_progress)  # type: ignore[no-any-return]


def learned_on(problem: Problem, placer: Gdp = SMALL, *, evaluations: int = 30) -> Snapshot:
    """Return the policy that a search leaves."""
    memory = Memory()
    place(kept_in(problem, memory), placer, evaluations=evaluations)
    return memory.policies[-1]


def inputs_of(problem: Problem) -> PolicyInputs:
    assert problem.policy is not None
    return problem.policy


# Learning


def test_rewards_by_hand():
    assert reward(np.array([4.0, 0.25, math.inf]), -10.0).tolist() == [-2.0, -0.5, -10.0]


def test_advantages_by_hand():
    drawn, earlier = np.array([1.0, 3.0]), np.array([0.0, 0.0])
    spread = np.std([0, 0, 1, 3])
    assert advantages(drawn, earlier, "batch").tolist() == pytest.approx([-1 / spread, 1 / spread])
    assert advantages(drawn, earlier, "all").tolist() == pytest.approx([1 / spread, 3 / spread])
    assert advantages(drawn, earlier[:0], "all").tolist() == [-1.0, 1.0]
    assert advantages(np.array([0.3, 0.3]), earlier[:0], "all").tolist() == [0.0, 0.0]


def test_advantages_do_not_depend_on_the_unit_of_time():
    rng = np.random.default_rng(0)
    drawn, earlier = -rng.random(8), -rng.random(20)
    for baseline in ("all", "batch"):
        scaled = advantages(1e-3 * drawn, 1e-3 * earlier, baseline)  # type: ignore[arg-type]
        assert np.allclose(scaled, advantages(drawn, earlier, baseline))  # type: ignore[arg-type]


def test_the_clipped_loss_by_hand():
    log_p = torch.log(torch.tensor([[0.6, 0.4], [0.5, 0.5]]))
    device = torch.tensor([[0, 1], [1, 0]])
    old = torch.log(torch.tensor([[0.4, 0.5], [0.5, 0.4]]))
    advantage = torch.tensor([1.0, -2.0])
    # ratios 1.5, 1 and 0.8, 1.25; the first gains no more than 1.2, the last loses all of 1.25
    expected = -(1.2 * 1 + 1.0 * 1 + 0.8 * -2 + 1.25 * -2) / 4
    assert float(clipped_loss(log_p, Rollouts(device, old, advantage, NONE), 0.2)) == pytest.approx(expected)


def test_a_node_beyond_the_clip_learns_nothing_and_the_others_still_do():
    log_p = torch.log(torch.tensor([[0.9, 0.1], [0.5, 0.5]])).requires_grad_()
    rollouts = Rollouts(torch.tensor([[0, 0]]), torch.log(torch.tensor([[0.5, 0.5]])), torch.tensor([1.0]), NONE)
    (gradient,) = torch.autograd.grad(clipped_loss(log_p, rollouts, 0.2), log_p)
    assert gradient[0].tolist() == [0.0, 0.0]
    assert gradient[1, 0] < 0


def test_imitating_placements_by_hand():
    log_p = torch.log(torch.tensor([[0.6, 0.4], [0.5, 0.5]]))
    expected = -(math.log(0.6) + math.log(0.5) + math.log(0.4) + math.log(0.5)) / 4
    assert float(imitation_loss(log_p, torch.tensor([[0, 1], [1, 0]]))) == pytest.approx(expected)
    assert float(imitation_loss(log_p, NONE)) == 0.0


def test_the_best_distinct_placements_are_remembered():
    problem = sage(chain_problem())
    trainer = SMALL.trainer([Search(problem, ToyEvaluator.of(problem), Budget(50), ignore_progress)], seed=0)
    (trial,) = trainer.trials
    rows = np.arange(4)[:, None] * np.ones((1, 3), np.int64)
    trial.remember(np.array([3.0, 1.0, math.inf, 2.0]), rows, most=2)
    assert [(value, row[0]) for value, row in trial.elite] == [(1.0, 1), (2.0, 3)]
    trial.remember(np.array([1.0, 0.5]), rows[1:3], most=2)
    assert [(value, row[0]) for value, row in trial.elite] == [(0.5, 2), (1.0, 1)]


def test_draws_get_warmer_where_few_are_new_and_cool_to_one_again():
    problem = sage(chain_problem())
    (trial,) = SMALL.trainer([Search(problem, ToyEvaluator.of(problem), Budget(50), ignore_progress)], seed=0).trials
    told = []
    for fresh in (7, 7, 8, 16, 16):
        trial.warm_up(fresh, 16, 0.5)
        told.append(trial.temperature)
    assert told == pytest.approx([1.5, 2.25, 1.5, 1.0, 1.0])
    trial.warm_up(0, 16, 0.0)
    assert trial.temperature == 1.0


def test_a_policy_that_has_settled_still_draws_what_is_new_if_it_gets_warmer():
    def drawn(warm: float) -> tuple[int, torch.Tensor]:
        problem = sage(wide_problem())
        search = Search(problem, ToyEvaluator.of(problem), Budget(500), ignore_progress)
        trainer = dataclasses.replace(SMALL, warm=warm).trainer([search], seed=0)
        (trial,) = trainer.trials
        settled = torch.log_softmax(
            torch.eye(trial.sequence.p)[torch.zeros(trial.sequence.k, dtype=torch.int64)] * 40, 1
        )
        old = [trainer.draw(trial, settled) for _ in range(40)][-1]
        assert old is not None
        return search.spent, old.log_prob

    cold, _ = drawn(0.0)
    warm, log_prob = drawn(0.25)
    assert warm > cold + 20
    assert float(log_prob.min()) > -10  # of the softmax that was drawn from: 40 less at temperature 1


def test_the_gradient_is_that_of_the_expected_reward_by_enumeration():
    graph = toy_graph(4, [(0, 1), (0, 2), (1, 3), (2, 3)])
    problem = sage(toy_problem(graph, np.array([[1.0, 2.0], [3.0, 1.0], [1.0, 1.0], [2.0, 1.0]])))
    evaluator = ToyEvaluator.of(problem)
    trainer = SMALL.trainer([Search(problem, evaluator, Budget(50), ignore_progress)], seed=0)
    (trial,), policy = trainer.trials, trainer.policy
    (log_p,) = policy.log_p(SequenceBatch.of([trial.sequence]))
    every = torch.tensor(list(itertools.product((0, 1), repeat=4)))
    seconds = np.array([evaluator.value_s(trial.sequence.placement(device)) for device in every])
    rewards = torch.tensor(reward(seconds, -10.0), dtype=torch.float32)
    log_ps = log_p.expand(16, -1, -1).gather(2, every[..., None])[..., 0]
    expected = (log_ps.sum(dim=1).exp() * rewards).sum() / 4  # a mean over the nodes, as the loss is
    weights = list(policy.parameters())
    exact = torch.autograd.grad(expected, weights, retain_graph=True, allow_unused=True)
    losses = [
        clipped_loss(log_p, Rollouts(every[i : i + 1], log_ps[i : i + 1].detach(), rewards[i : i + 1], NONE), 0.2)
        for i in range(16)
    ]
    drawn = (log_ps.sum(dim=1).exp().detach() * torch.stack(losses)).sum()
    estimated = torch.autograd.grad(drawn, weights, allow_unused=True)
    assert max(float(g.abs().max()) for g in exact if g is not None) > 1e-3
    for one, other in zip(exact, estimated, strict=True):
        assert (one is None) == (other is None)
        assert one is None or other is None or torch.allclose(one, -other, atol=1e-6)


def test_entropy_by_hand():
    log_p = torch.log(torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
    assert float(entropy_of(log_p)) == pytest.approx(math.log(2) / 2)


def best_of(toy: str, *, seed: int) -> float:
    """Return the best seconds that a learner of few nodes finds on a toy, over its optimum."""
    make, best_s = PROBLEMS[toy]
    problem = published_features(make())
    search = Search(problem, ToyEvaluator.of(problem), Budget(1500), ignore_progress)
    search.prove(best_s, "brute force")  # with which the search ends
    LEARNER.run(search, seed=seed)
    return search.best_s / best_s


def published_features(problem: Problem) -> Problem:
    """Return a problem with the features and the encoder of the recipe."""
    rows = node_features(problem.graph, Grouping.identity(problem.graph.n), None, blocks=SMALL.recipe.blocks).values
    embedder = build_implementation("embed", "sage", {"width": 16, "layers": 2})
    return with_inputs(problem, features=rows, embedder=embedder)


@pytest.mark.parametrize(("toy", "seed"), [("chain", 0), ("branches", 0), ("branches", 1)])
def test_gdp_finds_the_optimum(toy: str, seed: int):
    assert best_of(toy, seed=seed) == pytest.approx(1.0)


def test_gdp_beats_every_device_alone_on_the_crown_whose_optimum_it_misses():
    assert best_of("crown", seed=0) < 1.08  # 1.1 on A alone


@pytest.mark.parametrize("mode", slow_but(["gdp", "sgdp"], quick=1))
def test_what_is_drawn_gets_faster_while_it_learns(mode: str):
    seen: list[float] = []

    def note(progress: Progress) -> None:
        if progress.details and (not seen or seen[-1] != progress.details["reward"]):
            seen.append(progress.details["reward"])

    problem = published_features(branches_problem())
    learner = {"gdp": LEARNER, "sgdp": Sgdp(width=16, learning_rate=3e-3, entropy_coef=0.1, patience=3)}[mode]
    means = []
    for placer in (learner, dataclasses.replace(learner, learning_rate=1e-12)):
        seen.clear()
        placer.place(problem, ToyEvaluator.of(problem), Budget(250), seed=0, progress=note)
        means.append((np.mean(seen[:3]), np.mean(seen[-3:])))
    (before, after), (still, end) = means
    assert after > before + 0.01
    assert end == pytest.approx(still, abs=0.01)


def test_scaling_all_times_scales_the_answer():
    answers = []
    for scale in (1.0, 4.0):  # whose root is exact
        problem = chain_problem()
        assert problem.costs is not None
        costs = dataclasses.replace(problem.costs, op_s=problem.costs.op_s * scale)
        topology = dataclasses.replace(
            problem.topology,
            link_bytes_per_s=problem.topology.link_bytes_per_s / scale,
            link_latency_s=problem.topology.link_latency_s * scale,
        )
        other = problem.on(costs=costs, topology=topology)
        answers.append(place(other, evaluations=40))
    one, four = answers
    assert [c.placement.key() for c in one.candidates] == [c.placement.key() for c in four.candidates]
    assert four.value_s == pytest.approx(4 * one.value_s)


def test_devices_by_other_names_get_the_same():
    problem = chain_problem()
    names = {"A": "gpu", "B": "cpu"}
    devices = tuple(dataclasses.replace(d, name=names[d.name]) for d in problem.topology.devices)
    topology = dataclasses.replace(problem.topology, devices=devices)
    assert problem.costs is not None
    costs = dataclasses.replace(problem.costs, devices=tuple(names[d] for d in problem.costs.devices))
    found = [place(case).best.placement.device for case in (problem, problem.on(topology=topology, costs=costs))]
    assert np.array_equal(*found)


@pytest.mark.parametrize("placer", [SMALL, Sgdp(width=8, epochs=1, patience=2)], ids=["gdp", "sgdp"])
def test_equal_seeds_give_equal_answers_and_policies(placer: Any):
    left = []
    for seed in (5, 5, 6):
        memory = Memory()
        answer = place(kept_in(wide_problem(), memory), placer, seed=seed, evaluations=40)
        left.append((told(answer), weights(memory.policies[-1].arrays)))
    assert left[0] == left[1]
    assert left[0] != left[2]


def test_the_likeliest_placement_is_asked_about_in_the_end():
    problem = sage(chain_problem())
    evaluator = ToyEvaluator.of(problem)
    search = Search(problem, evaluator, Budget(50), ignore_progress)
    trainer = SMALL.trainer([search], seed=0)
    (trial,) = trainer.trials
    trainer.decode(trial)
    with torch.no_grad():
        (log_p,) = trainer.policy.log_p(SequenceBatch.of([trial.sequence]))
    expected = trial.sequence.placement(log_p.argmax(dim=1))
    assert evaluator.asked[-1].key() == expected.key()


def test_what_does_not_fit_is_made_to_fit_in_the_end():
    graph = toy_graph(4, [(0, 1), (1, 2), (2, 3)], weight_bytes=[5] * 4)
    problem = toy_problem(graph, np.ones((4, 2)), topology=toy_topology(memory_bytes=10))
    search = Search(sage(problem), ToyEvaluator.of(problem), Budget(50), ignore_progress)
    trainer = SMALL.trainer([search], seed=0)
    with torch.no_grad():
        trainer.policy.head.weight.zero_()
        trainer.policy.head.bias[0] = 5.0  # all on A, which holds two of them
    trainer.decode(trainer.trials[0])
    assert search.best is not None
    assert sorted(search.best.device.tolist()) == [0, 0, 1, 1]


# Sizes


def test_one_node_and_one_device_are_placed():
    assert place(toy_problem(toy_graph(1, []), np.ones((1, 1)))).best.placement.device.tolist() == [0]
    assert place(toy_problem(toy_graph(1, []), np.array([[2.0, 1.0]]))).best.placement.device.tolist() == [1]


def test_a_graph_of_no_nodes_is_no_problem():
    empty = toy_problem(toy_graph(0, []), np.ones((0, 2)))
    assert place(empty).best.placement.device.size == 0


def test_what_was_coarsened_is_told():
    n = 40
    problem = toy_problem(toy_graph(n, [(i, i + 1) for i in range(n - 1)]), np.full((n, 2), FAST_S))
    assert problem.costs is not None
    op_s = problem.costs.op_s.copy()
    op_s[: n // 2, 0] = op_s[n // 2 :, 1] = 20 * FAST_S
    problem = problem.on(costs=dataclasses.replace(problem.costs, op_s=op_s))
    found = {c.found_by for c in place(problem, dataclasses.replace(SMALL, nodes=20, clusters=8)).candidates}
    (coarse,) = found - {"single"}
    assert coarse.startswith("gdp on ")
    assert coarse.endswith(" clusters")
    assert {c.found_by for c in place(problem).candidates} <= {"single", "gdp"}


# Keeping, and beginning with what was kept


@pytest.fixture
def every_update_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAVE_EVERY_S", 0.0)


@pytest.mark.usefixtures("every_update_is_saved")
@pytest.mark.parametrize("rules", ["plain", "listsched"])
def test_a_search_interrupted_anywhere_ends_as_if_it_never_was(tmp_path: Path, rules: str):
    problem, whole = wide_problem(), Memory()
    imitating = dataclasses.replace(SMALL, elites=2, warm=0.5)
    expected = place(kept_in(problem, whole), imitating, evaluator=evaluator_of(problem, rules))
    assert len(whole.states) > 5
    dying = Memory(dies_after=2)
    for _ in range(len(whole.states)):
        try:
            answer = place(kept_in(problem, dying), imitating, evaluator=evaluator_of(problem, rules))
            break
        except Interrupted:
            continue
    assert told(answer) == told(expected)
    assert [weights(s.part("policy.")) for s in dying.states] == [weights(s.part("policy.")) for s in whole.states]
    assert weights(dying.policies[-1].arrays) == weights(whole.policies[-1].arrays)


def test_how_warm_draws_are_is_kept():
    problem = sage(wide_problem())
    one, other = (
        SMALL.trainer([Search(problem, ToyEvaluator.of(problem), Budget(50), ignore_progress)], seed=0) for _ in "ab"
    )
    one.trials[0].temperature = 2.5
    take_up(other, state_of(one))
    assert other.trials[0].temperature == 2.5


@pytest.mark.usefixtures("every_update_is_saved")
def test_a_larger_budget_goes_on():
    problem, memory = wide_problem(), Memory()
    place(kept_in(problem, memory), evaluations=40)
    place(kept_in(problem, memory), evaluations=80)
    last = memory.states[-1].facts
    assert 72 <= last["search"]["spent"] <= 80
    assert last["clock"]["spent"] + last["clock"]["left"] == 80


def test_a_policy_outlives_the_process(tmp_path: Path):
    problem = chain_problem()
    place(kept_in(problem, FolderCheckpointer(tmp_path, "one search")), evaluations=40)
    policy = read_policy(tmp_path)
    assert policy.facts["placer"] == "gdp"
    assert policy.facts["trained_on"][0]["nodes"] == CHAIN
    fine = dataclasses.replace(SMALL, mode="finetune", updates=1)
    assert math.isfinite(place(with_inputs(crown_problem(), learned=policy), fine).value_s)


def test_a_truncated_policy_is_refused(tmp_path: Path):
    place(kept_in(chain_problem(), FolderCheckpointer(tmp_path, "one search")), evaluations=40)
    file = tmp_path / "policy.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(UsageError, match="cannot be used as a policy"):
        read_policy(tmp_path)


def test_zero_shot_draws_from_the_policy_and_learns_nothing():
    policy = learned_on(chain_problem())
    memory, evaluator = Memory(), ToyEvaluator.of(crown_problem())
    shot = dataclasses.replace(SMALL, mode="zero_shot")
    problem = kept_in(with_inputs(crown_problem(), learned=policy), memory)
    place(problem, shot, evaluator=evaluator)
    assert 2 < len(evaluator.asked) <= 2 + 1 + SMALL.rollouts
    assert weights(memory.policies[-1].arrays) == weights(policy.arrays)


def test_finetuning_ends_after_its_updates_and_a_frozen_encoder_stays():
    policy = learned_on(chain_problem())
    memory, evaluator = Memory(), ToyEvaluator.of(crown_problem())
    fine = dataclasses.replace(SMALL, mode="finetune", updates=3, frozen_encoder=True)
    place(kept_in(with_inputs(crown_problem(), learned=policy), memory), fine, evaluator=evaluator, evaluations=1000)
    assert len(evaluator.asked) <= 2 + 1 + 3 * SMALL.rollouts
    tuned = memory.policies[-1]
    assert tuned.facts["updates"] == 3
    for name, values in tuned.arrays.items():
        same = np.array_equal(values, policy.arrays[name])
        assert same == name.startswith(("encoder.", "encoder_module.")) or not same


@pytest.mark.parametrize("mode", ["zero_shot", "finetune"])
def test_what_begins_with_a_policy_asks_for_one(mode: Any):
    with pytest.raises(UsageError, match="begins with a policy") as found:
        place(chain_problem(), dataclasses.replace(SMALL, mode=mode))
    assert "--policy" in found.value.remedy


def test_policies_that_do_not_fit_are_refused_with_a_remedy():
    policy = learned_on(chain_problem())

    def refused(facts: dict[str, Any], problem: Problem | None = None, placer: Gdp = SMALL) -> str:
        learned = Snapshot(policy.arrays, {**policy.facts, **facts})
        with pytest.raises(UsageError) as found:
            place(with_inputs(problem or chain_problem(), learned=learned), placer)
        assert found.value.remedy
        return str(found.value)

    assert "kind 'placewright.policy/hsdag/1'" in refused({"schema": "placewright.policy/hsdag/1"})
    assert "recipe is 0, not 1" in refused({"recipe": 0})
    assert "features is 5, not " in refused({"features": 5})
    assert "tells 8 devices apart, and there are 9" in refused({}, toy_problem(toy_graph(2, [(0, 1)]), np.ones((2, 9))))
    assert "gate node instead of graph" in refused({}, placer=dataclasses.replace(SMALL, gate="graph"))


def test_a_policy_serves_other_numbers_of_devices():
    policy = learned_on(chain_problem())
    shot = dataclasses.replace(SMALL, mode="zero_shot")
    answer = place(with_inputs(wide_problem(p=5), learned=policy), shot)
    assert math.isfinite(answer.value_s)


def test_a_workload_is_placed_by_the_recipe_and_its_policy_serves_another(tmp_path: Path):
    small = dataclasses.replace(SMALL, rollouts=4)
    for graph, learned, mode in (
        ("rnnlm2?steps=2&fidelity=core", None, "one"),
        ("txl2?segments=1", tmp_path, "zero_shot"),
    ):
        placer = dataclasses.replace(small, mode=mode)  # type: ignore[arg-type]
        given = None if learned is None else read_policy(learned)
        case = load(Scenario(f"zoo:{graph}", "p100:2"))
        problem = with_checkpointer(case.with_policy(learned=given).problem, tmp_path, "gdp", 0)
        grouping, problem = for_placer(placer, problem, lambda: pytest.fail("it brings its own stages"), seed=0)
        answer = placer.place(problem, case.simulator(grouping), Budget(20), seed=0, progress=ignore_progress)
        assert grouping.k < case.graph.n  # what is colocated is one node
        assert math.isfinite(answer.value_s)
        assert case.problem.fits(answer.best.placement.lift(grouping))


# Several graphs at once


def searches_of(*problems: Problem, evaluations: int = 30) -> list[Search]:
    return [Search(sage(p), ToyEvaluator.of(p), Budget(evaluations), ignore_progress) for p in problems]


def test_a_policy_learns_on_several_graphs_at_once():
    searches = searches_of(chain_problem(), crown_problem())
    policy = learn_jointly(SMALL, searches, seed=0)
    assert [search.spent for search in searches] == [30, 30]
    assert [trained["nodes"] for trained in policy.facts["trained_on"]] == [12, 12]
    again = learn_jointly(SMALL, searches_of(chain_problem(), crown_problem()), seed=0)
    assert weights(policy.arrays) == weights(again.arrays)
    shot = dataclasses.replace(SMALL, mode="zero_shot")
    assert math.isfinite(place(with_inputs(wide_problem(), learned=policy), shot).value_s)


def test_graphs_whose_budget_is_spent_leave_the_others_to_learn():
    short, long = searches_of(chain_problem(), evaluations=12), searches_of(crown_problem(), evaluations=30)
    learn_jointly(SMALL, [*short, *long], seed=0)
    assert (short[0].spent, long[0].spent) == (12, 30)


# Parameters


@pytest.mark.parametrize(
    "values",
    [
        {"rollouts": 0},
        {"clip": 0.0},
        {"learning_rate": -1.0},
        {"width": 10},
        {"inner": 100},
        {"gate": "edge"},
        {"mode": "batch"},
        {"entropy_coef": math.nan},
        {"warm": -0.1},
        {"warm": math.inf},
        {"hops": -1},
    ],
)
def test_parameters_out_of_range_are_refused(values: dict[str, Any]):
    with pytest.raises(PlacewrightError) as found:
        Gdp(**values)
    assert found.value.remedy


def test_sgdp_refuses_what_gdp_refuses():
    with pytest.raises(UsageError):
        Sgdp(width=10)


def test_where_one_device_is_left_nothing_is_learned():
    allowed = np.array([[True, False], [True, False]])
    evaluator = ToyEvaluator.of(toy_problem(toy_graph(2, [(0, 1)]), np.ones((2, 2))))
    answer = place(toy_problem(toy_graph(2, [(0, 1)]), np.ones((2, 2)), allowed=allowed), evaluator=evaluator)
    assert [c.placement.key() for c in answer.candidates] == [Placement(np.zeros(2, np.int32), ("A", "B")).key()]
    assert evaluator.evaluations == 1
