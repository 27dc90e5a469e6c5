"""Compiled loops of the exact methods look at the clock: they end when told to, and say the same however often."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pipeline.core.devices import CostTable, DeviceSpec, Topology
from pipeline.core.problem import Problem
from pipeline.placing.setup import problem_of
from policy.place.exact.calls import series
from policy.place.exact.calls.latency_bound import CallInputs, PathCalls
from policy.place.exact.calls.series import SeriesProgram
from policy.place.exact.shared import stages
from policy.place.exact.shared.elements import Elements
from policy.place.exact.shared.stages import Replication, StageProgram, all_ideals, order_of, value_s
from tests.strategies import graph_of

MEMORY = 10**9


def lanes(count: int, length: int = 2) -> Problem:
    """Return chains side by side, which have (length + 1) ** count ideals."""
    edges = [(c * length + i, c * length + i + 1) for c in range(count) for i in range(length - 1)]
    rng = np.random.default_rng(count)
    graph = graph_of(count * length, edges, out_bytes=rng.integers(1, 9, count * length).tolist())
    specs = tuple(DeviceSpec(f"acc{d}", "X", "X", kind="npu") for d in range(3))
    topology = Topology.uniform(specs, bytes_per_s=100.0, latency_s=0.0)
    op_s = np.repeat(rng.random(graph.n)[:, None], topology.p, axis=1)
    return problem_of(
        graph, topology, CostTable(graph.names, topology.names, op_s, np.zeros(topology.p), ("given",) * topology.p)
    )


def patience(times: int) -> Callable[[], bool]:
    """Return what goes on so many times and no more."""
    left = iter([True] * times)
    return lambda: next(left, False)


def always() -> bool:
    return True


def program_of(problem: Problem) -> StageProgram:
    found = StageProgram.of(problem.derived(Elements.of), Replication())
    assert found is not None
    return found


def test_listing_ideals_ends_when_told_to() -> None:
    program = program_of(lanes(12))
    assert all_ideals(program, MEMORY, patience(3)) is None
    ideals = all_ideals(program, MEMORY, always)
    assert ideals is not None
    assert ideals.size == 3**12


def test_stages_over_ideals_end_within_a_size_and_are_the_same_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    program = program_of(lanes(7))
    ideals = all_ideals(program, MEMORY, always)
    assert ideals is not None
    whole = program.of_ideals(ideals, always, workers=1)
    assert whole is not None
    monkeypatch.setattr(stages, "PAIRS", 50)
    sliced = program.of_ideals(ideals, always, workers=2)
    assert sliced is not None
    assert value_s(sliced) == value_s(whole)
    assert program.of_ideals(ideals, patience(2 * program.elements.k), workers=1) is None  # more looks than sizes


def test_stages_of_an_order_end_when_told_to_and_are_the_same_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    program = program_of(lanes(8))
    order = order_of(program.elements, np.zeros(program.elements.k))
    whole = program.of_order(order, always)
    monkeypatch.setattr(stages, "PAIRS", 20)
    assert value_s(program.of_order(order, always)) == value_s(whole)
    assert program.of_order(order, patience(0)) == []


def test_stages_of_pieces_are_the_answer_where_a_long_order_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    program = program_of(lanes(8))
    order = order_of(program.elements, np.zeros(program.elements.k))
    best = program.of_order(order, always)
    for name, value in (("LONG", 10), ("PIECES", 5), ("PAIRS", 20)):
        monkeypatch.setattr(stages, name, value)
    rough = program.of_order(order, patience(0))
    assert np.concatenate([stage.elements for stage in rough]).tolist() == order.tolist()
    assert value_s(rough) > value_s(best)
    assert [stage.load_s for stage in rough] == pytest.approx(
        [program.load_s(stage.elements, stage.kind) for stage in rough]
    )


def test_calls_in_series_end_when_told_to_and_are_the_same_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    program = SeriesProgram.of(lanes(6))
    assert program is not None
    ideals = all_ideals(program.stages, MEMORY, always)
    assert ideals is not None
    whole = program.least_sum(ideals, always)
    assert whole is not None
    monkeypatch.setattr(series, "PAIRS", 20)
    sliced = program.least_sum(ideals, always)
    assert sliced is not None
    assert sliced.value_s == whole.value_s
    assert program.least_sum(ideals, patience(2)) is None


def test_calls_along_a_path_that_there_was_no_time_for_may_take_nothing() -> None:
    inputs = CallInputs.of(lanes(1, length=4), 1)
    assert inputs is not None
    path = inputs.paths()[0]
    whole, begun = PathCalls.of(inputs, path, always), PathCalls.of(inputs, path, patience(2))
    assert np.all(whole.least_s[2, 2:] > 0)
    assert begun.least_s[:2].tolist() == whole.least_s[:2].tolist()
    assert not begun.least_s[2:].any()
