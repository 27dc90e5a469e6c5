"""The leave-one-out policy gradient: by hand, and its expectation by enumeration."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch

from policy.place.learned.hsdag.trainer import LeaveOneOut, advantage


def test_advantages_of_three_times():
    # Rewards 0, -1, -2 in groups of log 10; without itself the means are -1.5, -1, -0.5; deviation sqrt(2 / 3).
    found = advantage(torch.tensor([1.0, 10.0, 100.0]))
    assert found.tolist() == pytest.approx([1.5 / math.sqrt(2 / 3), 0.0, -1.5 / math.sqrt(2 / 3)], abs=1e-6)


def test_advantages_do_not_depend_on_the_unit_of_time():
    times = torch.tensor([0.3, 0.5, 0.1, 0.7])
    assert advantage(times * 1e-6).tolist() == pytest.approx(advantage(times).tolist(), abs=1e-5)  # float32 logarithms


@pytest.mark.parametrize("times", [[0.25], [1e-3, 1e-3, 1e-3], [0.0, 0.0]])
def test_a_lone_sample_and_equal_times_teach_nothing(times: list[float]):
    assert advantage(torch.tensor(times)).tolist() == [0.0] * len(times)


def test_the_loss_is_the_weighted_log_probability_and_a_bonus_that_falls_with_progress():
    log_prob, entropy = torch.tensor([-1.0, -2.0]), torch.tensor([0.5, 1.5])
    times = torch.tensor([1.0, 2.0])  # advantages 2 and -2: the difference over half the difference
    gain = (2 * -1.0 + -2 * -2.0) / 2
    learner = LeaveOneOut(entropy_coef=0.1)
    assert float(learner.loss(log_prob, entropy, times, progress=0.0)) == pytest.approx(-gain - 0.1)
    assert float(learner.loss(log_prob, entropy, times, progress=0.75)) == pytest.approx(-gain - 0.025)
    assert float(learner.loss(log_prob, entropy, times, progress=1.0)) == pytest.approx(-gain)


def test_the_gradient_does_not_flow_through_the_times():
    times = torch.tensor([1.0, 2.0], requires_grad=True)
    assert not advantage(times).requires_grad


def test_the_expected_gradient_over_all_batches_points_along_the_expected_reward():
    # Two arms, P(arm 1) = sigmoid(t), batches of two. Only mixed batches teach, with advantages +2 and -2: the expected
    # gradient of the loss is -2 P(mixed) / 2 * (d log p1 - d log p0) = -2 p (1 - p), for d log p1 = 1 - p and
    # d log p0 = -p. The expected reward grows with p (1 - p) as well.
    logit = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    times = torch.tensor([2.0, 1.0])  # arm 1 is faster
    p = float(torch.sigmoid(logit.detach()))
    expected = 0.0
    for arms in product((0, 1), repeat=2):
        index = torch.tensor(arms)
        log_prob = torch.nn.functional.logsigmoid(torch.where(index == 1, logit, -logit))
        loss = LeaveOneOut(entropy_coef=0.0).loss(log_prob, torch.zeros(2), times[index], progress=0.0)
        (gradient,) = torch.autograd.grad(loss, logit)
        expected += float(np.prod([p if arm else 1 - p for arm in arms])) * float(gradient)
    assert expected == pytest.approx(-2 * p * (1 - p))
