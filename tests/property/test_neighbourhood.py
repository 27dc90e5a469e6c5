"""The compiled drawing of moves against a plain one from the same random numbers, and what holds of every move."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest

from pipeline.core.devices import CostTable
from pipeline.core.graph import Grouping
from pipeline.core.placement import Placement
from pipeline.core.problem import Instance, Problem
from pipeline.core.simulation import Moves
from policy.place.local import neighbourhood as drawing
from policy.place.local.neighbourhood import LONGEST, NUMBERS, MoveShares, Neighbourhood
from tests.toys import toy_graph, toy_topology

R = 400
SHARES = (
    MoveShares(),
    MoveShares(clusters=0.7, copies=0.7, swaps=0.3, orders=0.2, shifts=0.1),
    MoveShares(clusters=0.2, longest=4, copies=0.3, swaps=0.5),
    MoveShares(clusters=1.0, shortest=LONGEST, copies=0.5, orders=0.5, shifts=1.0),
    MoveShares(swaps=1.0, shifts=0.5),
)


class PlainMove(NamedTuple):
    """One move: the sets of nodes that move, and the rest as in `Moves`."""

    sets: tuple[list[int], list[int]]
    device: int
    like: int
    shift: float


def random_problem(seed: int) -> Problem:
    """Return random groups, colocation constraints and devices that are not allowed; some have no choice at all."""
    rng = np.random.default_rng(seed)
    n, p = int(rng.integers(1, 30)), int(rng.integers(1, 5))
    pairs = {(int(rng.integers(0, i)), i) for i in range(1, n) if rng.random() < 0.8 for _ in range(2)}
    ties = np.where(rng.random(n) < 0.2, rng.integers(0, 3, n), -1)
    allowed = rng.random((n, p)) < 0.8
    allowed[np.arange(n), rng.integers(0, p, n)] = True
    allowed[ties >= 0] = True
    topology, graph = toy_topology(p), toy_graph(n, sorted(pairs), colocate=ties)
    costs = CostTable(graph.names, topology.names, np.full((n, p), 1e-3), np.zeros(p), ("given",) * p)
    grouping = Grouping.of_labels(rng.integers(0, max(1, n - n // 3), n))
    return Problem(Instance(graph, topology, grouping, costs, allowed))


def random_placement(problem: Problem, near: Neighbourhood, seed: int, *, ordered: bool) -> Placement:
    """Return a placement, anywhere it may go; some priorities are equal."""
    rng, n = np.random.default_rng(seed), problem.graph.n
    device = np.empty(n, np.int32)
    for g in range(near.k):
        device[near.member[near.ptr[g] : near.ptr[g + 1]]] = rng.choice(
            near.home[near.homes_ptr[g] : near.homes_ptr[g + 1]]
        )
    return Placement(device, problem.topology.names, rng.integers(0, n, n).astype(np.float64) if ordered else None)


def rows(ptr: np.ndarray, value: np.ndarray) -> list[list[int]]:
    """Return the rows of a ragged array."""
    return [value[a:b].tolist() for a, b in zip(ptr[:-1].tolist(), ptr[1:].tolist(), strict=True)]


def chosen(values: list[int], number: float) -> int:
    """Return one of some values."""
    return values[min(int(number * len(values)), len(values) - 1)]


def plain_shift(placement: Placement, node: int, goal: int, numbers: list[float]) -> float:
    """Return what takes a node between two others of a device, as close by as the numbers say."""
    priority = placement.priority
    assert priority is not None
    key = [(value, i) for i, value in enumerate(priority.tolist())]
    queue = sorted(key[i] for i in np.flatnonzero(placement.device == goal).tolist())
    if not queue:
        return 0.0
    at = sum(entry < key[node] for entry in queue)
    reach = math.ceil(len(queue) ** numbers[drawing.REACH])
    to = at + chosen(list(range(-reach, reach + 1)), numbers[drawing.PLACE])
    to = min(max(to, 0), len(queue))
    below = queue[to - 1][0] if to else queue[0][0] - 1.0
    above = queue[to][0] if to < len(queue) else below + 1.0
    return float(below + (above - below) * numbers[drawing.BETWEEN] - priority[node])


def plain_move(near: Neighbourhood, placement: Placement, shares: MoveShares, numbers: list[float]) -> PlainMove:
    """Return one move, as `MoveShares` says."""
    members, homes = rows(near.ptr, near.member), rows(near.homes_ptr, near.home)
    beside = [row or [g] for g, row in enumerate(rows(near.next_ptr, near.neighbour))]
    ordered, free, every = placement.priority is not None, near.free.tolist(), list(range(near.k))
    stays = ordered and numbers[drawing.ORDER] < shares.orders
    group = chosen(every if stays or not free else free, numbers[drawing.GROUP])
    swaps = bool(free) and not stays and numbers[drawing.SWAP] < shares.swaps
    length = 1
    if not stays and not swaps and numbers[drawing.CLUSTER] < shares.clusters:
        length = chosen(list(range(shares.shortest, shares.longest + 1)), numbers[drawing.LENGTH])
    walk = [group]
    for origin, step in zip(numbers[drawing.STEPS :: 2][: length - 1], numbers[drawing.STEPS + 1 :: 2], strict=False):
        reached = chosen(beside[chosen(walk, origin)], step)
        walk.append(group if reached in walk else reached)  # steps that lead nowhere new stand for the first group
    sets = [node for g in dict.fromkeys(walk) for node in members[g]], list[int]()
    device, like = -1, -1
    if not stays:
        device = chosen(homes[group], numbers[drawing.TARGET])
        other = chosen(every, numbers[drawing.OTHER])
        if swaps and other != group:
            sets, like = (members[group], members[other]), members[other][0]
        elif numbers[drawing.COPY] < shares.copies:
            copied = chosen(list(dict.fromkeys(walk)), numbers[drawing.COPIED])
            like = members[chosen(beside[copied], numbers[drawing.BESIDE])][0]
    shift = 0.0
    if ordered and (stays or numbers[drawing.SHIFT] < shares.shifts):
        goal = placement.device[like] if like >= 0 else device if device >= 0 else placement.device[members[group][0]]
        shift = plain_shift(placement, members[group][0], int(goal), numbers)
    return PlainMove(sets, device, like, shift)


def drawn_of(seed: int, shares: MoveShares, *, ordered: bool) -> tuple[Problem, Neighbourhood, Placement, Moves]:
    """Return a problem, its groups, a placement and moves of it."""
    problem = random_problem(seed)
    near = Neighbourhood.of(problem)
    placement = random_placement(problem, near, seed, ordered=ordered)
    return problem, near, placement, near.drawn(np.random.default_rng(seed), placement, shares, np.arange(R) * 1.0)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("shares", SHARES)
def test_equal_random_numbers_make_the_moves_of_the_plain_drawing(shares: MoveShares, ordered: bool) -> None:
    swapped = 0
    for seed in range(25):
        _, near, placement, moves = drawn_of(seed, shares, ordered=ordered)
        if near.free.size == 0 and not ordered:
            assert moves.r == 0
            continue
        assert moves.r == R
        for i, numbers in enumerate(np.random.default_rng(seed).random((R, NUMBERS)).tolist()):
            plain, nodes = plain_move(near, placement, shares, numbers), moves.node[moves.ptr[i] : moves.ptr[i + 1]]
            turned = int(moves.back[i] - moves.ptr[i])
            assert (nodes[:turned].tolist(), nodes[turned:].tolist()) == plain.sets
            assert (moves.device[i], moves.like[i], moves.threshold_s[i]) == (plain.device, plain.like, i)
            assert moves.shift[i] == pytest.approx(plain.shift, rel=1e-12, abs=1e-12)
            swapped += bool(plain.sets[1])
    assert (swapped > 0) == (shares.swaps > 0)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("shares", SHARES)
def test_a_move_names_each_group_once_and_sends_its_first_where_it_may_go(shares: MoveShares, ordered: bool) -> None:
    for seed in range(25):
        problem, near, _, moves = drawn_of(seed, shares, ordered=ordered)
        group = np.empty(problem.graph.n, int)
        group[near.member] = np.repeat(np.arange(near.k), np.diff(near.ptr))
        for i in range(moves.r):
            nodes = moves.node[moves.ptr[i] : moves.ptr[i + 1]]
            assert nodes.size == np.unique(nodes).size == np.isin(group, group[nodes]).sum()
            if moves.device[i] >= 0:
                assert problem.allowed[group == group[nodes[0]], moves.device[i]].all()
            turned = int(moves.back[i] - moves.ptr[i])
            assert not set(group[nodes[:turned]]) & set(group[nodes[turned:]])


def test_moves_of_each_kind_have_the_share_that_was_asked_for() -> None:
    problem = next(problem for problem in map(random_problem, range(100)) if Neighbourhood.of(problem).free.size > 5)
    near, r, rng = Neighbourhood.of(problem), 40_000, np.random.default_rng(0)
    placement = random_placement(problem, near, 0, ordered=True)
    shares = MoveShares(clusters=0.6, shortest=1, longest=2, copies=0.4, swaps=0.3, orders=0.2, shifts=0.1)
    moves = near.drawn(rng, placement, shares, np.zeros(r))
    stays, swaps = moves.device < 0, moves.back < moves.ptr[1:]
    assert stays.mean() == pytest.approx(0.2, abs=0.01)
    assert swaps[~stays].mean() == pytest.approx(0.3 * (1 - 1 / near.k), abs=0.01)
    others = ~stays & ~swaps  # a few of them drew the same group twice for a swap, and stay single
    assert (moves.like[others] >= 0).mean() == pytest.approx(0.4, abs=0.015)
    assert moves.shift[~stays].astype(bool).mean() == pytest.approx(0.1, abs=0.015)  # none where a device is empty


def test_equal_seeds_draw_equal_moves_that_nobody_can_change() -> None:
    first, second = (drawn_of(3, SHARES[1], ordered=True)[3] for _ in range(2))
    for name in ("ptr", "node", "device", "like", "shift", "back", "threshold_s"):
        assert np.array_equal(getattr(first, name), getattr(second, name))
        assert not getattr(first, name).flags.writeable
