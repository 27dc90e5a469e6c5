"""The planner of PipeDream: how a graph becomes a line, and what its stages come to."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from benchmarks.suites.exact import METHODS
from pipeline.core.errors import DeviceError
from pipeline.core.graph import is_acyclic
from pipeline.core.problem import Budget
from pipeline.core.stages import Answer
from policy.place.base.search import Method
from policy.place.exact.pipelined.dp import Dp
from policy.place.exact.pipelined.pipedream import Pipedream, biconnected, line_of
from tests.small_pipelines import SmallPipeline, small_pipeline
from tests.strategies import graph_of

# 0 -> (1, 2) -> 3 -> 4 -> (5, 6) -> 7: two diamonds and an edge between them.
DIAMONDS = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (4, 5), (4, 6), (5, 7), (6, 7)]


def edges_of(pairs: list[tuple[int, int]]) -> np.ndarray:
    return np.array(sorted(pairs), np.int32).reshape(-1, 2).T.copy()


def test_a_component_becomes_one_block_behind_the_operation_that_it_begins_at() -> None:
    assert line_of(8, edges_of(DIAMONDS)).group.tolist() == [0, 1, 1, 1, 2, 3, 3, 3]


def on_a_common_cycle(n: int, pairs: list[tuple[int, int]], a: int, b: int) -> bool:
    """Return whether a cycle that passes no node twice holds two edges, direction left aside."""
    (u, v), (w, x) = pairs[a], pairs[b]
    rest = [pair for i, pair in enumerate(pairs) if i not in (a, b)]

    def two_ways(ends: tuple[int, int], others: tuple[int, int]) -> bool:
        return any(
            first.isdisjoint(second) for first in ways(ends[0], others[0]) for second in ways(ends[1], others[1])
        )

    def ways(begin: int, end: int) -> list[set[int]]:
        found, front = list[set[int]](), [(begin, {begin})]
        while front:
            at, met = front.pop()
            if at == end:
                found.append(met)
            for pair in rest if at != end else ():
                other = pair[1] if pair[0] == at else pair[0]
                if at in pair and other not in met:
                    front.append((other, met | {other}))
        return found

    return two_ways((u, v), (w, x)) or two_ways((u, v), (x, w))


@pytest.mark.parametrize("seed", range(25))
def test_edges_are_in_one_component_where_a_cycle_holds_both(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 7))
    pairs = [(i, j) for j in range(n) for i in range(j) if rng.random() < 0.5]
    edges = edges_of(pairs)
    pairs = [(int(a), int(b)) for a, b in edges.T]
    component = biconnected(n, edges)
    assert sorted(set(component.tolist())) == list(range(int(component.max(initial=-1)) + 1))
    for a, b in combinations(range(len(pairs)), 2):
        assert (component[a] == component[b]) == on_a_common_cycle(n, pairs, a, b)


@pytest.mark.parametrize("seed", range(50))
def test_the_line_of_an_acyclic_graph_has_no_cycle_and_no_branches_that_join_again(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 16))
    edges = edges_of([(i, j) for j in range(n) for i in range(j) if rng.random() < 2 / n])
    line = line_of(n, edges)
    ends = line.group[edges]
    apart = sorted({(int(a), int(b)) for a, b in ends[:, ends[0] != ends[1]].T})
    assert is_acyclic(graph_of(line.k, apart))
    component = biconnected(line.k, edges_of(apart))
    heads = {(int(c), b) for c, (_, b) in zip(component, apart, strict=True)}
    assert len(heads) == int(component.max(initial=-1)) + 1


def answer(method: Method, case: SmallPipeline) -> Answer | None:
    """Return what a method answers where stages are to be ordered; None if nothing fits."""
    try:
        return method.place(case.problem, case.simulator("ordered"), Budget(100), seed=0, progress=lambda _: None)
    except DeviceError:
        return None


def test_stages_of_the_line_are_ordered_stages_and_never_better_than_the_best_of_all() -> None:
    worse = equal = 0
    for number in range(60):
        case = small_pipeline(number)
        best, found = answer(Dp(), case), answer(Pipedream(), case)
        if best is None or found is None or not math.isfinite(found.value_s):
            continue
        assert found.value_s >= best.value_s * (1 - 1e-9)
        assert case.ordered(found.best.placement.device[None])[0]
        equal += found.value_s <= best.value_s * (1 + 1e-9) and found.best.found_by == "pipedream"
        worse += found.value_s > best.value_s * (1 + 1e-9)
    assert equal > 5
    assert worse > 5


def test_the_table_names_what_stands_for_the_papers_partitioner() -> None:
    names = [method.name for method in METHODS["pipelined"]]
    assert "pipedream ordered" in names
    assert "metis free (for Scotch)" in names
