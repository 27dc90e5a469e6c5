"""The compiled dataflow machine does what a plain calendar of events does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.devices import CostTable, DeviceSpec, Topology
from pipeline.core.graph import Graph, Grouping
from pipeline.core.measurement import Prediction
from pipeline.core.placement import Placement
from pipeline.core.simulation import Moves
from pipeline.core.stages import Subject
from runtime.simulators.dataflow.listsched import ListSched, ListSchedEvaluator
from tests.plain_listsched import PlainMachine, Run
from tests.strategies import graph_of

LEVELS = ("T0", "T1", "T1-bare", "T2")


class Case:
    """A random graph on random devices, with times that hardly ever coincide."""

    def __init__(self, seed: int, n: int, p: int) -> None:
        self.rng = rng = np.random.default_rng(seed)
        edges = sorted({(int(rng.integers(j)), j) for j in range(1, n) for _ in range(2) if rng.random() < 0.8})
        out = rng.integers(1, 1000, n)
        partial = {(a, b): int(rng.integers(0, out[a] + 1)) * int(rng.random() < 0.8) for a, b in edges if a % 3 == 0}
        self.graph = graph_of(n, edges, out_bytes=out.tolist(), edge_bytes=partial)
        self.op_s = rng.random((n, p)) * (rng.random((n, 1)) < 0.8)
        devices = tuple(DeviceSpec(f"D{d}", "CPU", "CPU") for d in range(p))
        speed = np.where(np.eye(p, dtype=bool), np.inf, 500 + 1000 * rng.random((p, p)))
        latency = np.where(np.eye(p, dtype=bool), 0.0, 0.1 * rng.random((p, p)))
        self.topology = Topology(devices, speed, latency)
        self.device = rng.integers(0, p, n)
        self.priority = rng.permutation(n).astype(float)

    def evaluator(self, level: str, *, quirks: bool = False, grouping: Grouping | None = None) -> ListSchedEvaluator:
        names = self.topology.names
        costs = CostTable(self.graph.names, names, self.op_s, np.zeros(len(names)), ("given",) * len(names))
        subject = Subject(None, self.graph, grouping or Grouping.identity(self.graph.n), self.topology, costs, 0)
        return ListSched(level=level, block_s=0.01, gap_s=0.07, quirks=quirks).bind(subject)

    def placement(self, *, ordered: bool) -> Placement:
        return Placement(self.device, self.topology.names, self.priority if ordered else None)

    def plain(self, evaluator: ListSchedEvaluator, *, ordered: bool, quirks: bool = False) -> Run:
        priority = self.priority.tolist() if ordered else None
        rules = evaluator.execution
        machine = PlainMachine(
            self.graph, self.topology, self.op_s, rules, self.device.tolist(), priority, quirks=quirks
        )
        return machine.go()


cases = st.builds(Case, st.integers(0, 2**32 - 1), st.integers(1, 14), st.integers(1, 4))


@pytest.mark.parametrize("quirks", [False, True])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=40)
@given(case=cases)
def test_the_machine_equals_a_plain_calendar_of_events(level: str, ordered: bool, quirks: bool, case: Case):
    evaluator = case.evaluator(level, quirks=quirks)
    placement = case.placement(ordered=ordered)
    plain = case.plain(evaluator, ordered=ordered, quirks=quirks)
    found = evaluator.simulate(placement.device[None], None if placement.priority is None else placement.priority[None])
    timeline = evaluator.timeline(placement)
    assert found.value_s[0] == pytest.approx(plain.value_s)
    assert timeline.value_s == found.value_s[0]
    assert timeline.start_s == pytest.approx([plain.start_s[i] for i in range(case.graph.n)])
    assert timeline.end_s == pytest.approx([plain.end_s[i] for i in range(case.graph.n)])
    moved = sorted(zip(timeline.sent.tolist(), timeline.target.tolist(), timeline.sent_bytes.tolist(), strict=True))
    assert moved == sorted((maker, target, int(size)) for maker, target, _, _, size in plain.sent)
    assert np.sort(timeline.sent_start_s) == pytest.approx(sorted(start for _, _, start, _, _ in plain.sent))
    assert np.sort(timeline.sent_end_s) == pytest.approx(sorted(over for _, _, _, over, _ in plain.sent))


@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=40)
@given(case=cases, ordered=st.booleans())
def test_peak_memory_is_what_intervals_say(level: str, case: Case, ordered: bool):
    # Operations of no time end the moment they start; the order within a moment decides what was held at once.
    case.op_s = np.maximum(case.op_s, 0.01)
    evaluator = case.evaluator(level)
    placement = case.placement(ordered=ordered)
    found = evaluator.simulate(placement.device[None], None if placement.priority is None else placement.priority[None])
    assert found.peak_bytes[0].tolist() == case.plain(evaluator, ordered=ordered).peak_bytes


@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=30)
@given(case=cases)
def test_busy_time_is_work_and_cut_bytes_are_what_was_sent(level: str, case: Case):
    evaluator = case.evaluator(level)
    found = evaluator.simulate(case.device[None].astype(np.int32))
    work = np.bincount(case.device, weights=case.op_s[np.arange(case.graph.n), case.device], minlength=case.topology.p)
    assert found.busy_s[0] == pytest.approx(work)
    plain = case.plain(evaluator, ordered=False)
    once = {
        (maker, size) if level.startswith("T1") else (maker, size, target) for maker, target, _, _, size in plain.sent
    }
    assert found.cut_bytes[0] == sum(size for _, size, *_ in once)


@settings(max_examples=30)
@given(case=cases)
def test_t0_with_a_fixed_order_is_never_slower_with_more_bandwidth(case: Case):
    # With as many devices as operations nothing waits for a device, and the order cannot change.
    n = case.graph.n
    devices = tuple(DeviceSpec(f"D{d}", "CPU", "CPU") for d in range(n))
    case.op_s = np.repeat(case.op_s[:, :1], n, axis=1)
    case.device = np.arange(n)
    values = []
    for speed in (100.0, 200.0, 1e6):
        case.topology = Topology.uniform(devices, bytes_per_s=speed, latency_s=0.01)
        values.append(case.evaluator("T0").simulate(case.device[None].astype(np.int32)).value_s[0])
    assert values == sorted(values, reverse=True)


@settings(max_examples=30)
@given(case=cases, ordered=st.booleans(), level=st.sampled_from(LEVELS), limit=st.integers(0, 40))
def test_a_walk_equals_the_same_moves_one_by_one(case: Case, ordered: bool, level: str, limit: int):
    n, p, r = case.graph.n, case.topology.p, 40
    groups = Grouping.of_labels(case.rng.integers(0, max(1, n // 2), n))
    evaluator = case.evaluator(level, grouping=groups)
    count = case.rng.integers(1, min(3, groups.k) + 1, r)
    ptr = np.r_[0, np.cumsum(count)]
    moves = Moves(
        ptr,
        np.concatenate([case.rng.permutation(groups.k)[:c] for c in count]),
        case.rng.integers(-1, p, r),
        np.where(case.rng.random(r) < 0.3, case.rng.integers(0, groups.k, r), -1),
        np.where(case.rng.random(r) < 0.3, case.rng.normal(size=r), 0.0) if ordered else np.zeros(r),
        case.rng.random(r) * 0.2,
        np.where(case.rng.random(r) < 0.5, ptr[1:], case.rng.integers(ptr[:-1], ptr[1:] + 1)),
    )
    allowed = case.rng.random((groups.k, p)) < 0.8
    device = case.rng.integers(0, p, groups.k)
    start = Placement(device, case.topology.names, case.rng.random(groups.k) if ordered else None)
    local_search = evaluator.local_search(start, moves, allowed=allowed, limit=limit)

    def value(placement: Placement) -> float:
        answer = evaluator.evaluate([placement])[0]
        assert isinstance(answer, Prediction)
        return answer.value_s

    placement, now_s, tried = start, value(start), 0
    best, best_s = start, now_s
    for i in range(r):
        moved = moves.applied(i, placement)
        nodes = moves.node[moves.ptr[i] : moves.ptr[i + 1]]
        legal = moves.device[i] < 0 > moves.like[i] or bool(allowed[nodes, moved.device[nodes]].all())
        if tried == limit or not legal or moved.key() == placement.key():
            assert not local_search.tried[i]
            assert np.isnan(local_search.value_s[i])
            continue
        tried += 1
        new_s = value(moved)
        assert local_search.tried[i]
        assert local_search.value_s[i] == new_s
        assert local_search.taken[i] == (new_s <= now_s + moves.threshold_s[i])
        if local_search.taken[i]:
            placement, now_s = moved, new_s
            if now_s < best_s:
                best, best_s = placement, now_s
    assert (local_search.end.device.tolist(), local_search.end_s) == (placement.device.tolist(), now_s)
    assert (local_search.best.device.tolist(), local_search.best_s) == (best.device.tolist(), best_s)
    assert local_search.evaluations == tried


def test_the_graph_of_a_case_has_what_the_properties_need():
    case = Case(3, 14, 3)
    assert isinstance(case.graph, Graph)
    assert (case.op_s == 0).any()
    assert (case.graph.edge_bytes == 0).any()
