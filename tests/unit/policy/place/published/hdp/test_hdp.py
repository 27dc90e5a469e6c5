"""HDP's features, networks and training, piece by piece."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.core.errors import UsageError
from pipeline.core.learning import Snapshot
from pipeline.core.problem import Budget, Problem
from pipeline.core.stages import Answer
from pipeline.shared.torch_tools import torch_seeded
from pipeline.testing.simulated import simulator_of, wide_problem
from policy.place.base import training
from policy.place.base.groups import Groups
from policy.place.base.search import Search
from policy.place.base.training import Adam
from policy.place.published.hdp.features import ABSENT, OPERATION, group_features, operations
from policy.place.published.hdp.hdp import Hdp
from policy.place.published.hdp.network import SequencePlacer, WrittenPlacements
from policy.place.published.hdp.rnn import Rnn
from policy.place.published.hdp.trainer import HdpDraw, HdpTrainer
from tests.toys import (
    BRANCHES_OPTIMUM_S,
    ToyEvaluator,
    branches_problem,
    chain_problem,
    ignore_progress,
    toy_graph,
    toy_problem,
)
from tests.unit.policy.place.learned.hsdag.test_hsdag import Interrupted, Memory, kept_in, told, weights, with_inputs

SMALL = Hdp(hidden=8, groups=4, learning_rate=0.01)


def mixed_problem() -> Problem:
    """Return a MatMul that feeds an Add and a Relu, which both feed another MatMul."""
    graph = toy_graph(
        4,
        [(0, 1), (0, 2), (1, 3), (2, 3)],
        types=["MatMul", "Add", "Relu", "MatMul"],
        shapes=[(2, 3), (4,), (1, 2, 3, 4, 5, 6), ()],
    )
    return toy_problem(graph, np.ones((4, 2)))


def trainer_of(problem: Problem, placer: Hdp = SMALL) -> HdpTrainer:
    with torch_seeded(0):
        return placer.trainer(Search(problem, ToyEvaluator.of(problem), Budget(10_000), ignore_progress), seed=0)


def place(problem: Problem, placer: Hdp = SMALL, *, evaluations: int = 60, rules: str = "", seed: int = 3) -> Answer:
    evaluator = simulator_of(problem, rules) if rules else ToyEvaluator.of(problem)
    return placer.place(problem, evaluator, Budget(evaluations), seed=seed, progress=ignore_progress)


# What the networks are told


def test_raw_features_are_type_dimensions_and_all_neighbours():
    found = operations(Groups.of(mixed_problem()), ("Add", "MatMul"), raw=True).features
    assert found.shape == (4, OPERATION) == (4, 46)
    assert found[:, 0].tolist() == [1, 0, 2, 1]  # Relu was not there when the policy was made
    dims = found[:, 1:26]
    assert dims[0].tolist() == [2, 3, *[ABSENT] * 23]
    assert dims[2].tolist() == [1, 2, 3, 4, 5, *[ABSENT] * 20]
    assert (dims[3] == ABSENT).all()
    pairs = found[:, 26:].reshape(4, 10, 2)
    assert pairs[0, :3].tolist() == [[2, 1], [3, 1], [0, 0]]
    assert pairs[1, :3].tolist() == [[4, 1], [1, -1], [0, 0]]
    assert pairs[3, :3].tolist() == [[2, -1], [3, -1], [0, 0]]  # both in-edges; the original keeps the last


def test_scaled_features_are_shares_and_logarithms():
    found = operations(Groups.of(mixed_problem()), ("Add", "MatMul"), raw=False).features
    np.testing.assert_allclose(found[0, :4], [0.5, math.log(3) / 10, math.log(4) / 10, ABSENT], rtol=1e-6)
    np.testing.assert_allclose(found[1, 26:30], [1.0, 1, 0.25, -1], rtol=1e-6)


def test_features_of_groups_are_links_and_counts_over_the_greatest_and_one():
    known = operations(Groups.of(mixed_problem()), ("Add", "MatMul"), raw=True)
    found = group_features(known, np.array([0, 0, 2, 2]), 3)
    expected = [
        # to each group, from each group, Add, MatMul, others
        [1, 0, 2, 1, 0, 0, 1, 1, 0],
        [0, 0, 0, 0, 0, 0, 0, 0, 0],
        [0, 0, 1, 2, 0, 1, 0, 1, 1],
    ]
    np.testing.assert_allclose(found, np.array(expected) / [[3], [1], [3]])


# The networks


def test_probabilities_of_all_placements_of_groups_add_up_to_one():
    with torch_seeded(1):
        net = SequencePlacer(5, 6, 2, clip=5.0, temperature=0.1)
        groups = torch.randn(3, 5)
    every = torch.tensor(list(itertools.product(range(2), repeat=3)))
    with torch.no_grad():
        found = net(groups, torch.zeros(8, 3), torch.zeros(8, 3, 2), every)
    assert float(found.log_p.exp().sum()) == pytest.approx(1.0, abs=1e-5)
    assert float(found.log_p.std()) > 0.01
    alone = [net(groups, torch.zeros(1, 3), torch.zeros(1, 3, 2), row[None]).log_p for row in every]
    torch.testing.assert_close(torch.cat(alone).detach(), found.log_p)


def test_what_was_drawn_has_the_probability_it_was_drawn_with():
    with torch_seeded(2):
        net = SequencePlacer(5, 6, 3, clip=5.0, temperature=0.1)
        groups, uniform, noise = torch.randn(4, 5), torch.rand(2000, 4), torch.zeros(2000, 4, 3)
    with torch.no_grad():
        drawn = net(groups, uniform, noise)
        torch.testing.assert_close(net(groups, uniform, noise, drawn.device).log_p, drawn.log_p)
    _, inverse, counts = torch.unique(drawn.device, dim=0, return_inverse=True, return_counts=True)
    torch.testing.assert_close(drawn.log_p.exp(), counts[inverse] / 2000, rtol=0, atol=0.03)


def test_logits_are_attended_divided_and_cut_off_as_computed_by_hand():
    net = SequencePlacer(1, 2, 2, clip=5.0, temperature=10.0)
    with torch.no_grad():
        for value in net.parameters():
            value.zero_()
        net.out.weight[:] = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 2.0, 0.0]])
        net.query.weight[:] = torch.eye(2)
        net.v[:] = torch.tensor([1.0, 0.0])
    memory = torch.tensor([[1.0, 0.0], [3.0, 0.0]])
    keys = torch.tensor([[0.0, 0.0], [100.0, 0.0]])
    found = net._logits(torch.tensor([[0.5, 0.0]]), memory, keys)
    a, b = math.tanh(0.5), 1.0
    context = (1.0 * math.exp(a) + 3.0 * math.exp(b)) / (math.exp(a) + math.exp(b))
    expected = [5 * math.tanh(0.5 / 10), 5 * math.tanh(2 * context / 10)]
    np.testing.assert_allclose(found.detach().numpy()[0], expected, rtol=1e-6)


def test_the_gradient_reaches_every_parameter():
    trainer = trainer_of(chain_problem())
    drawn = trainer.draw(greedy=False)
    trainer.loss(drawn, np.array([1.0, 2.0, 3.0, 4.0])).backward()
    assert [n for n, p in trainer.network.named_parameters() if p.grad is None or not bool(p.grad.any())] == []


# Training


def scripted(log_p: float, *devices: float) -> HdpDraw:
    written = WrittenPlacements(torch.zeros(len(devices), 4), torch.tensor(devices), torch.zeros(()))
    return HdpDraw(np.zeros(12, np.int64), torch.tensor(log_p), written)


def test_the_loss_weighs_log_probabilities_with_roots_of_times_less_the_baseline():
    trainer = trainer_of(chain_problem())
    drawn, value_s = scripted(-3.0, -1.0, -2.0), np.array([4.0, math.inf])
    assert trainer.baseline == 10.0
    assert float(trainer.loss(drawn, value_s)) == pytest.approx(((2 - 10) * -4.0 + (10 - 10) * -5.0) / 2)
    trainer.baseline = 3.0
    assert float(trainer.loss(drawn, value_s)) == pytest.approx(((2 - 3) * -4.0 + (10 - 3) * -5.0) / 2)
    trainer.updates = 1001
    assert float(trainer.loss(drawn, value_s)) == pytest.approx((2 - 3) * -4.0 / 2)  # failures teach nothing more


def test_times_count_in_seconds_or_in_those_of_the_best_single_device():
    problem = chain_problem()
    relative = trainer_of(problem, dataclasses.replace(SMALL, seconds=False))
    assert relative.unit_s == relative.search.best_s
    assert trainer_of(problem).unit_s == 1.0
    drawn = scripted(0.0, -1.0)
    assert float(relative.loss(drawn, np.array([4 * relative.unit_s]))) == pytest.approx((2 - 10) * -1.0)


def test_the_baseline_moves_a_tenth_of_the_way_and_the_step_size_falls(monkeypatch: pytest.MonkeyPatch):
    trainer = trainer_of(chain_problem())
    rates: list[float] = []
    monkeypatch.setattr(Adam, "step", lambda self, gradient, *, rate, most: rates.append(rate))
    for updates, expected in ((1, 0.01), (449, 0.01), (450, 0.0095), (501, 0.01 * 0.95**2)):
        trainer.updates = updates
        trainer.baseline = 5.0
        trainer._learn(trainer.draw(greedy=False), np.array([4.0] * 4))
        assert trainer.baseline == pytest.approx(0.9 * 5 + 0.1 * 2)
        assert rates[-1] == pytest.approx(expected)


def test_a_baseline_may_begin_with_the_first_mean(monkeypatch: pytest.MonkeyPatch):
    trainer = trainer_of(chain_problem(), dataclasses.replace(SMALL, first_baseline=0.0))
    norms: list[float] = []
    monkeypatch.setattr(Adam, "step", lambda self, gradient, *, rate, most: norms.append(float(np.abs(gradient).max())))
    trainer._learn(trainer.draw(greedy=False), np.array([4.0] * 4))
    assert trainer.baseline == pytest.approx(2.0)
    assert norms == [0.0]


def test_after_a_while_devices_stay_and_only_groupings_are_drawn():
    trainer = trainer_of(chain_problem(), dataclasses.replace(SMALL, stop_sampling=3))
    for _ in range(3):
        trainer.update()
    best = trainer.best.copy()
    assert best.shape == (1, 4)
    for _ in range(3):
        trainer.updates += 1
        assert (trainer.draw(greedy=False).written.device.numpy() == best).all()


def test_without_noise_and_chance_draws_are_equal():
    trainer = trainer_of(wide_problem())
    first, again = (trainer.draw(greedy=True) for _ in range(2))
    assert np.array_equal(first.group, again.group)
    noisy = [trainer.draw(greedy=False) for _ in range(2)]
    assert not np.array_equal(noisy[0].group, noisy[1].group)


def test_operations_whose_groups_device_they_may_not_use_go_where_they_are_fastest():
    problem = wide_problem()
    trainer = trainer_of(problem)
    for device in range(3):
        placement = trainer.placement(np.zeros(trainer.groups.k, np.int64), np.full(4, device, np.int32))
        assert problem.fits(placement)
        assert placement.device[5] == 1  # the one device that it may use
        assert np.count_nonzero(placement.device == device) >= 17


def test_adam_is_that_of_torch_and_skips_what_is_not_finite():
    rng = np.random.default_rng(0)
    begun = rng.normal(size=5).astype(np.float32)
    ours, theirs = Adam(begun), torch.nn.Parameter(torch.tensor(begun))
    optimiser = torch.optim.Adam([theirs], lr=0.01)
    for i in range(5):
        gradient = rng.normal(size=5).astype(np.float32) * 10.0 ** (i - 2)
        ours.step(gradient, rate=0.01, most=1.0)
        theirs.grad = torch.tensor(gradient)
        torch.nn.utils.clip_grad_norm_([theirs], 1.0)
        optimiser.step()
    np.testing.assert_allclose(ours.weights, theirs.detach().numpy(), rtol=1e-4, atol=1e-6)
    before = ours.weights.copy()
    ours.step(np.array([1, math.nan, 0, 0, 0], np.float32), rate=0.01, most=1.0)
    assert np.array_equal(ours.weights, before)


# Policies and checkpoints


def test_a_policy_goes_on_on_another_graph_with_the_types_it_knows():
    memory = Memory()
    place(kept_in(mixed_problem(), memory), evaluations=30)
    learned = memory.policies[-1]
    assert learned.facts["types"] == ["Add", "MatMul", "Relu"]
    other = with_inputs(chain_problem(), learned=learned)
    place(kept_in(other, memory), dataclasses.replace(SMALL, frozen=True))
    assert weights(memory.policies[-1].arrays) == weights(learned.arrays)
    place(kept_in(other, memory))
    assert memory.policies[-1].facts["types"] == learned.facts["types"]
    assert weights(memory.policies[-1].arrays) != weights(learned.arrays)


def test_a_policy_that_does_not_fit_is_refused_with_what_differs():
    memory = Memory()
    place(kept_in(chain_problem(), memory), evaluations=10)
    learned = memory.policies[-1]
    three = toy_problem(toy_graph(3, [(0, 1)]), np.ones((3, 3)))
    with pytest.raises(UsageError, match="devices is 2, not 3"):
        place(with_inputs(three, learned=learned))
    with pytest.raises(UsageError, match="groups is 4, not 5"):
        place(with_inputs(chain_problem(), learned=learned), dataclasses.replace(SMALL, groups=5))
    older = Snapshot(learned.arrays, {**learned.facts, "schema": "placewright.policy/placeto/1"})
    with pytest.raises(UsageError, match="is of kind"):
        place(with_inputs(chain_problem(), learned=older))
    some = dict(list(learned.arrays.items())[:-1])
    with pytest.raises(UsageError, match="do not fit"):
        place(with_inputs(chain_problem(), learned=Snapshot(some, learned.facts)))


@pytest.mark.parametrize("rules", ["", "T1"])
def test_a_search_interrupted_anywhere_ends_as_if_it_never_was(rules: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(training, "SAVE_EVERY_S", 0.0)
    problem, whole = branches_problem(), Memory()
    placer = dataclasses.replace(SMALL, stop_sampling=4)
    expected = place(kept_in(problem, whole), placer, evaluations=30, rules=rules)
    assert len(whole.states) > 4
    broken = Memory(dies_after=2)
    for _ in range(100):
        try:
            answer = place(kept_in(problem, broken), placer, evaluations=30, rules=rules)
            break
        except Interrupted:
            continue
    assert told(answer) == told(expected)
    assert weights(broken.policies[-1].arrays) == weights(whole.policies[-1].arrays)


def test_one_operation_on_one_device_is_placed():
    problem = toy_problem(toy_graph(1, []), np.ones((1, 1)))
    assert place(problem).value_s == 1.0


@pytest.mark.parametrize(
    "wrong", [{"hidden": 7}, {"hidden": 0}, {"samples": 0}, {"learning_rate": 0.0}, {"noise": -1.0}, {"groups": -1}]
)
def test_parameters_that_make_no_sense_are_refused(wrong: dict[str, Any]):
    with pytest.raises(UsageError):
        Hdp(**wrong)


# Groups that are given: the RNN baseline


def test_groups_that_are_given_are_not_drawn():
    graph = toy_graph(6, [(0, 1), (2, 3), (4, 5)])
    problem = toy_problem(graph, np.ones((6, 2)))
    trainer = trainer_of(problem, Rnn(groups=3, hidden=8).written())
    first, other = (trainer.draw(greedy=False) for _ in range(2))
    assert first.group.tolist() == other.group.tolist()
    assert float(first.log_p) == 0
    of_operation = np.empty(6, np.int64)
    of_operation[trainer.known.group] = first.group
    assert [int(of_operation[i] == of_operation[i + 1]) for i in range(5)] == [1, 0, 1, 0, 1]


def test_the_rnn_baseline_learns_to_spread_what_runs_side_by_side():
    problem, learns = with_inputs(branches_problem()), Rnn(groups=8, hidden=16, learning_rate=0.01)
    assert learns.place(
        problem, ToyEvaluator.of(problem), Budget(400), seed=0, progress=ignore_progress
    ).value_s == pytest.approx(BRANCHES_OPTIMUM_S)
