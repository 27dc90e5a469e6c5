"""Probabilities of decisions: by hand, by how often draws occur, and their gradients by differences."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from pipeline.core.arrays import Float64
from policy.place.learned.neural_list.constructing import FIGURES, KEY_FIGURES, Scores
from policy.place.learned.neural_list.likelihood import (
    device_slopes,
    devices_likelihood,
    order_likelihood,
    order_slopes,
)
from tests.constructed import Amounts

NOTHING = Scores(np.zeros(FIGURES), np.zeros(len(KEY_FIGURES)), np.zeros((0, 0)))
STEP = 1e-6


def differences(value: Callable[[Float64], float], at: Float64) -> Float64:
    """Return the gradient of a function by central differences."""
    found = np.zeros(at.shape)
    for index in np.ndindex(at.shape):
        step = np.zeros(at.shape)
        step[index] = STEP
        found[index] = (value(at + step) - value(at - step)) / (2 * STEP)
    return found


def test_a_decision_between_two_devices_by_hand():
    figure = np.full((1, 3, FIGURES), np.nan)
    figure[0, :2] = 0.0
    figure[0, 0, 0], weight = 1.0, np.zeros(FIGURES)
    weight[0] = math.log(3.0)  # three to one for the first; the third is not usable
    chosen, entropy = device_slopes(figure, np.zeros(1, np.int64), weight, np.zeros((1, 3)))
    assert chosen.value == pytest.approx(math.log(0.75))
    assert chosen.table[0].tolist() == pytest.approx([0.25, -0.25, 0.0])
    assert chosen.weight[0] == pytest.approx(0.25)
    assert entropy.value == pytest.approx(-0.75 * math.log(0.75) - 0.25 * math.log(0.25))


def test_an_order_of_three_by_hand():
    # 2 is ready when 0 is placed. First 0 of {0, 1}, then 2 of {1, 2}, then 1.
    key = np.log([1.0, 2.0, 3.0])
    slopes = order_slopes(np.zeros((3, 2)), np.array([0, 2, 1]), np.array([0, 0, 1]), key)
    assert slopes.value == pytest.approx(math.log(1 / 3 * 3 / 5))
    assert slopes.table.tolist() == pytest.approx([1 - 1 / 3, -2 / 3 - 2 / 5, 1 - 3 / 5])


@pytest.mark.parametrize("seed", range(3))
def test_gradients_are_those_of_differences(seed: int):
    amounts, rng = Amounts.drawn(seed, 12, 3), np.random.default_rng(seed)
    instance, table, turn = amounts.instance(), rng.normal(size=(12, 3)), rng.normal(size=12)
    scores = Scores(rng.normal(size=FIGURES), rng.normal(size=len(KEY_FIGURES)), table + rng.gumbel(size=(12, 3)))
    scores = scores._replace(turn=turn + rng.gumbel(size=12))
    made = instance.recorded(scores)
    for at in (0, 1):  # log-probability, entropy
        found = devices_likelihood(instance, scores, table, *made)[at]
        by_table = differences(lambda b, at=at: devices_likelihood(instance, scores, b, *made)[at].value, table)
        assert found.table == pytest.approx(by_table, abs=1e-6)
        by_weight = differences(
            lambda w, at=at: devices_likelihood(instance, scores._replace(device=w), table, *made)[at].value,
            scores.device,
        )
        assert found.weight == pytest.approx(by_weight, abs=1e-6)
    ordered = order_likelihood(instance, scores, turn, *made)
    by_turn = differences(lambda a: order_likelihood(instance, scores, a, *made).value, turn)
    assert ordered.table == pytest.approx(by_turn, abs=1e-6)
    by_key = differences(lambda v: order_likelihood(instance, scores._replace(key=v), turn, *made).value, scores.key)
    assert ordered.weight == pytest.approx(by_key, abs=1e-6)


def test_draws_occur_as_often_as_their_probabilities_say():
    # 0 -> 2 -> 3 and 1: what becomes ready late competes with what was ready before.
    amounts = Amounts(
        ((0, 2), (2, 3)),
        np.full((4, 2), 0.5),
        np.full(4, 1),
        np.full(4, 1),
        np.full((2, 2), 9.0),
        np.zeros((2, 2)),
        (0, 0),
    )
    instance, rng, draws = amounts.instance(), np.random.default_rng(0), 4000
    table, turn = np.array([[0.0, 1.0], [0.5, 0.0], [0.0, 0.0], [2.0, 0.0]]), np.array([0.0, 1.0, 2.0, -1.0])
    times, expected = Counter[tuple[int, ...]](), dict[tuple[int, ...], float]()
    for _ in range(draws):
        scores = NOTHING._replace(noise=table + rng.gumbel(size=(4, 2)), turn=turn + rng.gumbel(size=4))
        schedule, decisions = instance.recorded(scores)
        drawn = (*decisions.order.tolist(), *schedule.homes.device.tolist())
        times[drawn] += 1
        chosen, _ = devices_likelihood(instance, NOTHING, table, schedule, decisions)
        ordered = order_likelihood(instance, NOTHING, turn, schedule, decisions)
        expected[drawn] = math.exp(chosen.value + ordered.value)
    # Every order that a topological order allows is drawn: there is none for which a choice to wait would be needed.
    assert {drawn[:4] for drawn in times} == {(1, 0, 2, 3), (0, 1, 2, 3), (0, 2, 1, 3), (0, 2, 3, 1)}
    assert sum(expected.values()) == pytest.approx(1.0, abs=0.02)  # rare draws may be missing
    # The deviation of a share of 0.1 over 4,000 draws is 0.005; the seed is fixed.
    assert max(abs(times[drawn] / draws - share) for drawn, share in expected.items()) < 0.015
