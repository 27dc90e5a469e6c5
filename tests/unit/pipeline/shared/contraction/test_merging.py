"""Merging along edges: log-odds add up, limits hold, and which edges are open when."""

from __future__ import annotations

import numpy as np

from pipeline.core.arrays import Int64
from pipeline.core.graph import Grouping
from pipeline.shared.contraction.merging import MergeLimits, MergeRound, contracted, merged, turns_open


def limits(n: int, *, groups: int = 1, **changes: object) -> MergeLimits:
    free = MergeLimits(np.ones(n), np.inf, np.zeros(n), np.inf, np.ones((n, 2), bool), groups, light=0.04)
    return free._replace(**changes)  # type: ignore[arg-type]


def ends(*pairs: tuple[int, int]) -> Int64:
    return np.array(pairs, np.int64).T


def test_log_odds_of_parallel_edges_add_up():
    # 0 and 1 merge first; then {0, 1} has 2 + 2 to node 2, and 3 has 3 to node 2
    found = contracted(ends((0, 1), (0, 2), (1, 2), (2, 3)), np.array([9.0, 2, 2, 3]), limits(4, groups=2))
    assert found.group.tolist() == [0, 0, 0, 1]
    against = contracted(ends((0, 1), (0, 2), (1, 2), (2, 3)), np.array([9.0, 2, -2, 3]), limits(4, groups=2))
    assert against.group.tolist() == [0, 0, 1, 1]


def test_no_group_exceeds_the_most_work_and_what_is_light_joins_all_the_same():
    path, score = ends((0, 1), (1, 2), (2, 3), (3, 4)), np.array([4.0, 3, 2, 1])
    full = contracted(path, score, limits(5, work=np.array([1.0, 1, 1, 1, 0.03]), work_cap=2.0))
    assert full.group.tolist() == [0, 0, 1, 1, 1]
    heavy = contracted(path, score, limits(5, work=np.array([1.0, 1, 1, 1, 0.05]), work_cap=2.0))
    assert heavy.group.tolist() == [0, 0, 1, 1, 2]


def test_no_group_exceeds_memory_or_is_left_without_a_device():
    path, score = ends((0, 1), (1, 2)), np.array([2.0, 1])
    assert contracted(path, score, limits(3, held=np.array([2.0, 2, 1]), held_cap=3.0)).group.tolist() == [0, 1, 1]
    allowed = np.array([[True, False], [False, True], [True, True]])
    assert contracted(path, score, limits(3, allowed=allowed)).group.tolist() == [0, 1, 1]


def test_merging_stops_at_the_number_of_groups():
    path = ends(*((i, i + 1) for i in range(40)))
    for groups in (1, 7, 30):
        assert contracted(path, np.arange(40.0), limits(41, groups=groups)).k == groups


def test_a_round_adds_up_what_lies_between_its_groups():
    turn = MergeRound.of(Grouping(np.array([0, 0, 1, 2])), ends((0, 1), (0, 2), (2, 1), (3, 2)), limits(4))
    assert turn.ends.T.tolist() == [[0, 1], [1, 2]]
    assert turn.pair.tolist() == [-1, 0, 0, 1]
    assert turn.sums(np.array([9.0, 1, 2, 5])).tolist() == [3.0, 5.0]
    assert turn.after(np.array([1])).group.tolist() == [0, 0, 1, 1]


def test_an_edge_is_open_until_it_is_taken_closed_or_too_heavy():
    # work 1 each, at most 3: after 0-1 and 1-2 the triangle's third edge is closed and 2-3 too heavy; 3-4 stays open
    edges = ends((0, 1), (1, 2), (0, 2), (2, 3), (3, 4))
    capped = limits(5, work_cap=3.0)
    taken = merged(edges, np.array([0, 1, 2, 3]), capped)[1]
    assert taken.tolist() == [0, 1]
    assert turns_open(edges, taken, capped).tolist() == [1, 2, 2, 2, 2]
    assert turns_open(edges, np.array([0, 1, 4]), capped).tolist() == [1, 2, 2, 2, 3]
