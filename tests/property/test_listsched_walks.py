"""Walks of `listsched`, which begin runs in the middle and give some up, against placements one after another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.devices import CostTable, DeviceSpec, Topology
from pipeline.core.graph import Grouping
from pipeline.core.placement import Placement
from pipeline.core.simulation import LocalSearch, Moves
from pipeline.core.stages import Subject
from runtime.simulators.dataflow.listsched import ListSched, ListSchedEvaluator
from tests.plain_walks import stepwise
from tests.strategies import graph_of

R = 40
LEVELS = ("T0", "T1", "T1-bare", "T2")


class Case:
    """Up to 60 operations, more than a walk leaves marks, on devices that may be short of memory or refuse some."""

    def __init__(self, seed: int, n: int, p: int, *, tight: bool, ordered: bool) -> None:
        rng = np.random.default_rng(seed)
        edges = sorted({(int(rng.integers(max(0, j - 8), j)), j) for j in range(1, n) for _ in range(2)})
        self.graph = replace(
            graph_of(n, edges, out_bytes=rng.integers(1, 1000, n).tolist()), weight_bytes=rng.integers(0, 300, n)
        )
        held = int(self.graph.weight_bytes.sum() + self.graph.out_bytes.sum())
        room = [int(held * rng.uniform(0.05, 0.8)) + 1 if tight else 0 for _ in range(p)]
        devices = tuple(DeviceSpec(f"D{d}", "CPU", "CPU", memory_bytes=room[d]) for d in range(p))
        apart = ~np.eye(p, dtype=bool)
        speed = np.where(apart, rng.uniform(5e2, 5e4, (p, p)), np.inf)
        self.topology = Topology(devices, speed, np.where(apart, 0.1 * rng.random((p, p)), 0.0))
        self.op_s = rng.random((n, p)) * (rng.random((n, 1)) < 0.8)
        self.op_s[rng.random((n, p)) < 0.01] = np.inf
        count = rng.integers(1, min(4, n) + 1, R)
        ptr = np.r_[0, np.cumsum(count)]
        self.moves = Moves(
            ptr,
            np.concatenate([rng.permutation(n)[:c] for c in count]),
            rng.integers(-1, p, R),
            np.where(rng.random(R) < 0.3, rng.integers(0, n, R), -1),
            np.where(rng.random(R) < 0.4, rng.normal(size=R), 0.0),
            rng.choice([0.0, 0.3, -0.1, np.inf], R),
            np.where(rng.random(R) < 0.5, ptr[1:], rng.integers(ptr[:-1], ptr[1:] + 1)),
            float(rng.choice([np.inf, 0.0, 1e-4, 1e-2])),
        )
        self.allowed = rng.random((n, p)) < 0.9
        priority = rng.random(n) if ordered else None
        self.start = Placement(rng.integers(0, p, n), self.topology.names, priority)
        self.allowed[np.arange(n), self.start.device] = True  # a node may stay anywhere

    def evaluator(self, level: str) -> ListSchedEvaluator:
        names = self.topology.names
        costs = CostTable(self.graph.names, names, self.op_s, np.zeros(len(names)), ("given",) * len(names))
        subject = Subject(None, self.graph, Grouping.identity(self.graph.n), self.topology, costs, 0)
        return ListSched(level=level, block_s=0.01, gap_s=0.07).bind(subject)


cases = st.builds(
    Case, st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(1, 4), tight=st.booleans(), ordered=st.booleans()
)


def same_way(found: LocalSearch, expected: LocalSearch) -> None:
    """Check that two walks tried and took the same moves, and ended alike."""
    assert found.tried.tolist() == expected.tried.tolist()
    assert found.taken.tolist() == expected.taken.tolist()
    assert (found.end.key(), found.best.key()) == (expected.end.key(), expected.best.key())
    assert (found.end_s, found.best_s) == (expected.end_s, expected.best_s)


def walked(evaluator: ListSchedEvaluator, case: Case, *, bounded: bool) -> LocalSearch:
    return evaluator.local_search(case.start, replace(case.moves, bounded=bounded), allowed=case.allowed, limit=R)


@pytest.mark.parametrize("level", LEVELS)
@settings(deadline=None, max_examples=60)
@given(case=cases)
def test_a_walk_equals_its_steps_bit_for_bit(level: str, case: Case) -> None:
    evaluator = case.evaluator(level)
    found = walked(evaluator, case, bounded=False)
    expected = stepwise(evaluator, case.start, case.moves, case.allowed, R)
    same_way(found, expected)
    assert found.value_s.tobytes() == expected.value_s.tobytes()


@pytest.mark.parametrize("level", LEVELS)
@settings(deadline=None, max_examples=60)
@given(case=cases)
def test_a_bounded_walk_goes_the_same_way_and_says_inf_only_of_moves_not_taken(level: str, case: Case) -> None:
    evaluator = case.evaluator(level)
    whole, found = (walked(evaluator, case, bounded=bounded) for bounded in (False, True))
    same_way(found, whole)
    told = (found.value_s == whole.value_s) | ~whole.tried
    assert np.all(told | (np.isinf(found.value_s) & ~whole.taken))


def test_a_placement_that_fits_is_remembered_even_if_its_price_bars_the_way_to_it() -> None:
    case = Case(0, 4, 2, tight=True, ordered=False)
    whole = int(case.graph.weight_bytes.sum() + case.graph.out_bytes.sum())
    devices = (replace(case.topology.devices[0], memory_bytes=1), replace(case.topology.devices[1], memory_bytes=whole))
    case.topology, case.op_s = replace(case.topology, devices=devices), np.array([[1.0, 2.0]] * 4)
    nodes, none = np.arange(4, dtype=np.int32), np.full(1, -1)
    free = Moves(np.array([0, 4]), nodes, np.ones(1, int), none, np.zeros(1), np.zeros(1), price_s_per_byte=0.0)
    start = Placement(np.zeros(4, int), case.topology.names)
    local_search = case.evaluator("T0").local_search(start, free, allowed=np.ones((4, 2), bool), limit=1)
    assert local_search.taken.tolist() == [False]
    assert local_search.best.device.tolist() == [1, 1, 1, 1]
    assert local_search.best_s == local_search.value_s[0] < np.inf


def test_a_bounded_walk_gives_up_what_one_device_alone_cannot_do_in_time() -> None:
    case = Case(1, 40, 2, tight=False, ordered=False)
    case.op_s = np.ones((40, 2))
    start = Placement(np.arange(40) % 2, case.topology.names)
    rest = np.flatnonzero(start.device == 0)
    none = np.full(1, -1)
    moves = Moves(np.array([0, rest.size]), rest, np.ones(1, int), none, np.zeros(1), np.zeros(1), bounded=True)
    local_search = case.evaluator("T0").local_search(start, moves, allowed=np.ones((40, 2), bool), limit=1)
    assert local_search.tried.tolist() == [True]
    assert local_search.value_s.tolist() == [np.inf]
