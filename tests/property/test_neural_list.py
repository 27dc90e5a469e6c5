"""What must change nothing about constructed schedules: units, names of devices, numbers of operations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.simulation import LEVELS, Level
from policy.place.learned.neural_list.list_policy import ListPolicy
from policy.place.learned.neural_list.training import TrainingState
from policy.place.lists.listing import list_schedule
from policy.place.lists.work import upward
from tests.constructed import Amounts, schedule_of

seeds, levels, widths = st.integers(0, 2**16), st.sampled_from(LEVELS), st.sampled_from((1, 3))
sizes, machines, sweeps = st.integers(1, 30), st.integers(1, 4), st.sampled_from((1, 2, 3))
EXAMPLES = 40


def policy_of(seed: int) -> ListPolicy:
    return ListPolicy.untrained(np.random.default_rng(seed))


@settings(max_examples=EXAMPLES)
@given(seeds, sizes, machines, levels, widths, sweeps, st.sampled_from((1e-3, 0.5, 7.0)), st.sampled_from((1, 4, 9)))
def test_units_of_time_and_of_bytes_change_nothing(
    seed: int, n: int, p: int, level: Level, width: int, sweeps: int, seconds: float, amount: int
):
    amounts, policy = Amounts.drawn(seed, n, p), policy_of(seed)
    first = schedule_of(amounts, policy, level=level, width=width, sweeps=sweeps)
    again = schedule_of(amounts.scaled(seconds=seconds, amount=amount), policy, level=level, width=width, sweeps=sweeps)
    assert again.homes.device.tolist() == first.homes.device.tolist()
    assert again.start_s == pytest.approx(first.start_s * seconds)


@settings(max_examples=EXAMPLES)
@given(seeds, sizes, machines, levels, widths, sweeps)
def test_renaming_devices_renames_them_in_the_answer(seed: int, n: int, p: int, level: Level, width: int, sweeps: int):
    amounts, policy = Amounts.drawn(seed, n, p), policy_of(seed)
    order = np.random.default_rng(seed).permutation(p)
    first = schedule_of(amounts, policy, level=level, width=width, sweeps=sweeps)
    again = schedule_of(amounts.on(order), policy, level=level, width=width, sweeps=sweeps)
    assert order[again.homes.device].tolist() == first.homes.device.tolist()


@settings(max_examples=EXAMPLES)
@given(seeds, sizes, machines, levels, widths, sweeps)
def test_renumbering_operations_renumbers_them_in_the_answer(
    seed: int, n: int, p: int, level: Level, width: int, sweeps: int
):
    amounts, policy = Amounts.drawn(seed, n, p), policy_of(seed)
    new = np.random.default_rng(seed).permutation(n)
    first = schedule_of(amounts, policy, level=level, width=width, sweeps=sweeps)
    again = schedule_of(amounts.renumbered(new), policy, level=level, width=width, sweeps=sweeps)
    assert again.homes.device[new].tolist() == first.homes.device.tolist()
    assert again.start_s[new] == pytest.approx(first.start_s)


@settings(max_examples=EXAMPLES)
@given(seeds, sizes, machines, levels)
def test_the_first_weights_are_those_of_a_list_scheduler(seed: int, n: int, p: int, level: Level):
    amounts = Amounts.drawn(seed, n, p)
    work = amounts.instance(level).work
    known = list_schedule(work, -upward(work), np.zeros(work.op_s.shape), False)
    found = schedule_of(amounts, ListPolicy.of_vector(TrainingState.first().mean), level=level)
    assert found.homes.device.tolist() == known.homes.device.tolist()
    assert found.finish_s == pytest.approx(known.finish_s)


@settings(max_examples=EXAMPLES)
@given(seeds, sizes, machines, levels, widths)
def test_every_operation_is_placed_once_its_inputs_are_there(seed: int, n: int, p: int, level: Level, width: int):
    amounts = Amounts.drawn(seed, n, p)
    found = schedule_of(amounts, policy_of(seed), level=level, width=width)
    device = found.homes.device
    assert np.all((device >= 0) & (device < p))
    for i, j in amounts.edges:
        assert found.start_s[j] >= found.finish_s[i]
    for d in range(p):
        mine = np.flatnonzero(device == d)
        mine = mine[np.argsort(found.start_s[mine])]
        assert np.all(found.start_s[mine[1:]] >= found.finish_s[mine[:-1]] - 1e-9)
