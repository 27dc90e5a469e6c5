"""Fitting the tables of the simulators to measurements, and choosing what to measure."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.devices import CostTable, DeviceSpec, Topology
from pipeline.core.errors import MeasurementError, UsageError
from pipeline.core.graph import Graph, Grouping
from pipeline.core.measurement import Evaluation, Measurement, MeasurementFailed, Prediction, seconds_of
from pipeline.core.placement import Placement
from pipeline.core.stages import Predictor, Subject
from runtime.calibration.calibrate import Calibration, calibrate, median_error, relative_noise
from runtime.calibration.critical_path import critical_rows
from runtime.calibration.draw_placements import plausible_placements
from runtime.calibration.ridge import PENALTIES, Prior, fit_ridge
from runtime.calibration.terms import Terms
from runtime.machines.topology_file import read_topology
from runtime.machines.topology_text import topology_text
from runtime.simulators.dataflow.listsched import ListSched
from runtime.simulators.sequential.sequential import Sequential
from tests.strategies import graph_of, grouped_graphs

NAMES = ("A", "B")
DEVICES = tuple(DeviceSpec(name, "CPU", f"CPU_{name}", kind="cpu") for name in NAMES)
IN_TURN, AT_ONCE = Sequential(), ListSched(memory=False)
TYPES = ("Convolution", "Add", "Relu", "MatMul", "MaxPool")


def subject_of(graph: Graph, op_s: np.ndarray, grouping: Grouping | None = None, *, launch_s: float = 0.1) -> Subject:
    topology = Topology.uniform(DEVICES, bytes_per_s=1e9, latency_s=2e-5)
    costs = CostTable(graph.names, NAMES, op_s, np.full(2, launch_s), ("given", "given"))
    return Subject(Path(), graph, grouping or Grouping.identity(graph.n), topology, costs, 0)


def network(seed: int, n: int = 60) -> Subject:
    """Return a profiled network of two strands that meet now and then."""
    rng = np.random.default_rng(seed)
    edges = {(i, i + 1) for i in range(n - 1)} | {
        (i, min(i + int(rng.integers(2, 9)), n - 1)) for i in range(0, n - 3, 4)
    }
    types = ["Parameter", *(TYPES[i] for i in rng.integers(0, len(TYPES), n - 1))]
    out = rng.integers(10_000, 400_000, n).tolist()
    op_s = rng.lognormal(np.log(3e-4), 1.0, (n, 1)) * rng.uniform(0.7, 1.4, (n, 2))
    return subject_of(graph_of(n, edges, types=types, out_bytes=out), op_s, launch_s=4e-5)


def strands(seed: int, n: int = 60) -> Subject:
    """Return a profiled network of two strands by turns, and a last operation that reads both."""
    rng = np.random.default_rng(seed)
    edges = {(i, i + 2) for i in range(n - 3)} | {(n - 3, n - 1), (n - 2, n - 1)}
    types = [TYPES[i] for i in rng.integers(0, len(TYPES), n)]
    op_s = rng.lognormal(np.log(3e-4), 1.0, (n, 1)) * rng.uniform(0.7, 1.4, (n, 2))
    return subject_of(graph_of(n, edges, types=types, out_bytes=[10_000] * n), op_s, launch_s=4e-5)


def perturbed(subject: Subject, seed: int) -> Subject:
    """Return the same network on the machine as it really is: other times per type, other links, other launches."""
    rng = np.random.default_rng(seed)
    graph, costs, topology = subject.graph, subject.costs, subject.topology
    assert costs is not None
    factor = rng.uniform(0.9, 1.6, 2) * rng.lognormal(0.0, 0.2, (len(graph.type_names), 2))
    truth = replace(costs, op_s=costs.op_s * factor[graph.op_type], launch_s=rng.uniform(2e-5, 2e-4, 2))
    apart = ~np.eye(2, dtype=bool)
    latency_s = np.where(apart, rng.uniform(2e-5, 2e-4, (2, 2)), 0.0)
    bytes_per_s = np.where(apart, rng.uniform(5e8, 4e9, (2, 2)), np.inf)
    return replace(subject, costs=truth, topology=Topology(topology.devices, bytes_per_s, latency_s))


class Machine:
    """Measures placements by a table nobody knows, with 3 % of noise."""

    def __init__(self, truth: Subject, seed: int, noise: float = 0.03, simulator: Predictor = IN_TURN) -> None:
        self.evaluator, self.rng, self.noise = simulator.bind(truth), np.random.default_rng(seed), noise

    def measure(self, placements: list[Placement]) -> list[tuple[Placement, Evaluation]]:
        found = []
        for placement, true in zip(placements, self.evaluator.evaluate(placements), strict=True):
            assert isinstance(true, Prediction)
            seconds = true.value_s * np.exp(self.rng.normal(0.0, self.noise))
            found.append((placement, Measurement(np.array([seconds]))))
        return found


def all_seconds(subject: Subject, placements: list[Placement], simulator: Predictor = IN_TURN) -> np.ndarray:
    answers = simulator.bind(subject).evaluate(placements)
    return np.array([seconds_of(a) for a in answers])


def test_one_coefficient_by_hand() -> None:
    prior = Prior(np.array([1.0]), np.array([0.5]), np.eye(1))
    found = fit_ridge(np.array([[2.0]]), np.array([4.0]), np.array([0.1]), prior)
    # ((2x - 4) / 0.4)^2 + q ((x - 1) / 0.5)^2 is least where 25 (x - 2) + 4 q (x - 1) = 0; alone the prior wins.
    assert found.penalty == PENALTIES[0] == 100
    assert found.value[0] == pytest.approx((25 * 2 + 400 * 1) / 425)
    assert found.covariance[0, 0] == pytest.approx(((2 * found.value[0] - 4) / 0.4) ** 2 / (25 + 400))
    assert found.left_out_s.tolist() == pytest.approx([2.0])


def test_exact_measurements_win_over_the_prior() -> None:
    rng = np.random.default_rng(0)
    rows, truth = rng.uniform(0, 1, (30, 3)), np.array([1.5, 0.5, 2.0])
    found = fit_ridge(rows, rows @ truth, np.full(30, 0.02), Prior(np.ones(3), np.full(3, 0.5), np.eye(3)))
    assert found.penalty == PENALTIES[-1]
    assert found.value == pytest.approx(truth, rel=1e-3)


def test_a_coefficient_that_wants_to_be_negative_is_zero() -> None:
    rows = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
    found = fit_ridge(
        rows, np.array([3.0, 2.0, 1.0]), np.full(3, 0.01), Prior(np.array([1.0, 0.1]), np.ones(2), np.eye(2))
    )
    assert found.value[1] == 0.0
    assert found.value.min() >= 0.0


def test_a_disturbed_measurement_hardly_counts() -> None:
    rng = np.random.default_rng(0)
    rows, truth = rng.uniform(0, 1, (12, 3)), np.array([1.5, 0.5, 2.0])
    seconds = rows @ truth * np.exp(rng.normal(0, 0.02, 12))
    prior = Prior(np.ones(3), np.full(3, 0.5), np.eye(3))
    seconds[11] *= 2
    found = fit_ridge(rows, seconds, np.full(12, 0.02), prior).value
    assert np.abs(rows @ found / (rows @ truth) - 1).max() < 0.05


def test_the_noise_of_a_median_by_hand() -> None:
    assert relative_noise(np.array([5.0])) == 0.02
    # median 4, deviations 2 1 0 1 2, of which the median is 1
    expected = np.hypot(0.02, 1.2533 * 1.4826 / np.sqrt(5) / 4)
    assert relative_noise(np.array([2.0, 3.0, 4.0, 5.0, 6.0])) == pytest.approx(expected)
    assert relative_noise(np.zeros(3)) == 0.02


def chain() -> Subject:
    """Return x -> a -> b: a takes 1 s on A and 2 s on B, b 3 s and 4 s; a makes 10 MB."""
    graph = graph_of(3, [(0, 1), (1, 2)], types=["Parameter", "Relu", "Tanh"], out_bytes=[8, 10_000_000, 8])
    return subject_of(graph, np.array([[0.0, 0.0], [1.0, 2.0], [3.0, 4.0]]))


def test_rows_by_hand() -> None:
    terms = Terms.of(chain(), launches=True)
    (row,) = terms.rows([Placement(np.array([0, 0, 1]), NAMES)])
    named = {(t.kind, t.what, t.device, t.target): x for t, x in zip(terms.terms, row.tolist(), strict=True) if x}
    assert named == {
        ("operations", "Relu", "A", ""): 1.0,
        ("operations", "Tanh", "B", ""): 4.0,
        ("latency", "", "A", "B"): 1.0,
        ("bytes", "", "A", "B"): 1e7,
        ("launch", "", "A", ""): 1.0,
        ("launch", "", "B", ""): 1.0,
    }
    assert terms.rows([Placement(np.array([0, 0, 1]), NAMES)]) @ terms.prior.mean == pytest.approx(5.2 + 0.01 + 2e-5)


def test_without_launches_the_latency_begins_with_them() -> None:
    terms = Terms.of(chain(), launches=False)
    one, two = terms.rows([Placement(np.array(d), NAMES) for d in ([0, 0, 0], [0, 0, 1])])
    assert one @ terms.prior.mean == pytest.approx(4.0)
    assert two @ terms.prior.mean == pytest.approx(5.0 + 0.01 + 2e-5 + 0.1)


@settings(deadline=None, max_examples=40)
@given(grouped_graphs(min_n=1), st.booleans(), st.integers(0, 2**16))
def test_sequential_says_what_corrected_tables_were_fitted_to(
    case: tuple[Graph, Grouping], launches: bool, seed: int
) -> None:
    graph, grouping = case
    rng = np.random.default_rng(seed)
    op_s = rng.uniform(0, 1, (graph.n, 2))
    terms = Terms.of(subject_of(graph, op_s, grouping), launches=launches)
    value = rng.uniform(0.1, 2, len(terms.terms))
    costs, topology = terms.corrected(value)
    placements = [Placement(rng.integers(0, 2, grouping.k, dtype=np.int32), NAMES) for _ in range(4)]
    exact = all_seconds(replace(terms.subject, costs=costs, topology=topology), placements)
    assert terms.rows(placements) @ value == pytest.approx(exact, rel=1e-9)


@settings(deadline=None, max_examples=40)
@given(grouped_graphs(min_n=1), st.integers(0, 2**16))
def test_listsched_says_what_lies_on_the_critical_path(case: tuple[Graph, Grouping], seed: int) -> None:
    graph, grouping = case
    rng = np.random.default_rng(seed)
    terms = Terms.of(subject_of(graph, rng.uniform(0, 1, (graph.n, 2)), grouping), launches=False)
    value = rng.uniform(0.1, 2, len(terms.terms))
    costs, topology = terms.corrected(value)
    placements = [Placement(rng.integers(0, 2, grouping.k, dtype=np.int32), NAMES) for _ in range(4)]
    exact = all_seconds(replace(terms.subject, costs=costs, topology=topology), placements, AT_ONCE)
    assert critical_rows(terms, np.ones(2), placements, value) @ value == pytest.approx(exact, rel=1e-9)


def test_what_a_device_does_not_support_has_no_critical_path() -> None:
    subject = chain()
    op_s = subject.costs.op_s.copy() if subject.costs is not None else np.zeros((0, 2))
    op_s[1, 1] = np.inf
    assert subject.costs is not None
    terms = Terms.of(replace(subject, costs=replace(subject.costs, op_s=op_s)), launches=False)
    placements = [Placement(np.array(d), NAMES) for d in ([0, 0, 0], [0, 1, 0])]
    rows = critical_rows(terms, np.ones(2), placements, terms.prior.mean)
    assert np.isfinite(rows[0]).all()
    assert np.isinf(rows[1]).all()


def test_a_device_that_has_a_placement_for_itself_is_not_slowed_down() -> None:
    terms, slowdown = Terms.of(chain(), launches=False), np.array([1.25, 2.0])
    placements = [Placement(np.array(d, np.int32), NAMES) for d in ([0, 0, 0], [1, 1, 1], [0, 1, 0])]
    plain, eased = (critical_rows(terms, s, placements, terms.prior.mean) for s in (np.ones(2), slowdown))
    assert eased[0] == pytest.approx(plain[0] / 1.25)
    assert eased[1] == pytest.approx(plain[1] / 2.0)
    assert eased[2] == pytest.approx(plain[2])


def test_tables_fitted_beside_other_devices_hold_the_slowdown() -> None:
    subject, slowdown = strands(0), np.array([1.5, 1.5])
    pool = plausible_placements(subject, 60, seed=0)
    assert subject.costs is not None
    crowded = replace(subject, costs=subject.costs.slower(slowdown))
    measured = Machine(crowded, 0, simulator=AT_ONCE).measure([p for p in pool if len(p.devices_used) > 1])
    alone = Machine(subject, 0, simulator=AT_ONCE).measure(pool[:2])
    found = calibrate(subject, [*alone, *measured[:40]], launches=False, slowdown=slowdown)
    assert found.costs.op_s.sum() == pytest.approx(crowded.costs.op_s.sum() if crowded.costs else 0.0, rel=0.05)
    assert found.predict(pool[:2]) == pytest.approx([seconds_of(result) for _, result in alone], rel=0.05)


@pytest.mark.parametrize("seed", range(3))
def test_makespans_of_devices_that_work_at_once_are_fitted_along_critical_paths(seed: int) -> None:
    subject = strands(seed)
    pool = plausible_placements(subject, 80, seed=seed)
    order = np.random.default_rng(seed).permutation(len(pool)).tolist()
    fitted, held = [pool[i] for i in order[:40]], [pool[i] for i in order[40:]]
    chosen = {placement.key() for placement in fitted}
    measured = Machine(perturbed(subject, seed + 100), seed, simulator=AT_ONCE).measure(pool)
    truth = {placement.key(): seconds_of(result) for placement, result in measured}
    at_once, in_turn = (
        calibrate(subject, [m for m in measured if m[0].key() in chosen], launches=False, slowdown=c)
        for c in (np.ones(2), None)
    )
    said = at_once.predict(held)
    assert said == pytest.approx(all_seconds(at_once.subject, held, AT_ONCE), rel=1e-9)
    errors = [
        median_error(c.predict(held), np.array([truth[placement.key()] for placement in held]))
        for c in (at_once, in_turn)
    ]
    assert errors[0] < 0.06 < errors[1]


def test_sequential_with_the_calibrated_tables_predicts_what_the_calibration_does() -> None:
    subject = network(0)
    pool = plausible_placements(subject, 60, seed=1)
    for launches in (True, False):
        found = calibrate(subject, Machine(perturbed(subject, 2), 3).measure(pool[:20]), launches=launches)
        assert found.predict(pool) == pytest.approx(all_seconds(found.subject, pool), rel=1e-9)
        assert found.costs.origin == ("measured", "measured")


@pytest.mark.parametrize("launches", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_forty_measurements_bring_the_held_out_error_below_five_percent(seed: int, launches: bool) -> None:
    subject = network(seed)
    truth = perturbed(subject, seed + 100)
    pool = plausible_placements(subject, 140, seed=seed)
    order = np.random.default_rng(seed).permutation(len(pool)).tolist()
    machine = Machine(truth, seed)
    found = calibrate(subject, machine.measure([pool[i] for i in order[:40]]), launches=launches)
    held = [pool[i] for i in order[40:]]
    true_s = all_seconds(truth, held)
    assert median_error(found.predict(held), true_s) < 0.05
    assert median_error(found.predict(held), true_s) < 0.5 * median_error(all_seconds(subject, held), true_s)
    assert found.left_out_error < 0.06  # the measurements left out have 3 % of noise themselves
    assert found.error <= found.left_out_error


def learned(subject: Subject, truth: Subject, pool: list[Placement], seed: int, *, active: bool) -> float:
    """Return the error on the whole pool after 4 measurements on top of 2, chosen or drawn."""
    machine, rng = Machine(truth, seed, noise=0.01), np.random.default_rng(seed)
    measured = machine.measure(pool[:2])
    for _ in range(2):
        known = {placement.key() for placement, _ in measured}
        rest = [placement for placement in pool if placement.key() not in known]
        drawn = [rest[i] for i in rng.choice(len(rest), 2, replace=False).tolist()]
        found: Calibration = calibrate(subject, measured)
        measured += machine.measure(found.next_placements(pool, 2, known=known) if active else drawn)
    return median_error(calibrate(subject, measured).predict(pool), all_seconds(truth, pool))


def test_chosen_measurements_teach_more_than_drawn_ones() -> None:
    errors = {True: [], False: []}
    for seed in range(4):
        subject = network(seed)
        truth, pool = perturbed(subject, seed + 50), plausible_placements(subject, 80, seed=seed)
        for active, found in errors.items():
            found.append(learned(subject, truth, pool, seed, active=active))
    assert np.mean(errors[True]) < np.mean(errors[False])


def test_the_next_placements_are_new_and_different() -> None:
    subject = network(0, n=12)
    pool = plausible_placements(subject, 30, seed=0)
    found = calibrate(subject, Machine(perturbed(subject, 0), 0).measure(pool[:3]))
    known = {placement.key() for placement in pool[:3]}
    chosen = found.next_placements([*pool, *pool], 100, known=known)
    assert sorted(p.key() for p in chosen) == sorted({p.key() for p in pool} - known)
    assert found.next_placements(pool[:3], 5, known=known) == []
    assert found.next_placements([], 5, known=known) == []


def test_a_placement_far_from_the_best_is_asked_for_last() -> None:
    subject = chain()
    assert subject.costs is not None
    slow = replace(subject, costs=replace(subject.costs, op_s=np.array([[0, 0], [1.0, 1.1], [1.0, 400.0]])))
    placements = [Placement(np.array(d), NAMES) for d in ([0, 0, 0], [1, 1, 0], [0, 0, 1])]
    found = calibrate(slow, [(placements[0], Measurement(np.array([2.0])))])
    assert found.next_placements(placements, 1, known={placements[0].key()}) == [placements[1]]


def test_failed_measurements_do_not_count() -> None:
    subject = chain()
    good, bad = Placement(np.array([0, 0, 0]), NAMES), Placement(np.array([0, 0, 1]), NAMES)
    timed = Measurement(np.array([5.0, 5.0, 5.0]))
    with_bad = calibrate(subject, [(good, timed), (bad, MeasurementFailed("crashed", "gone"))])
    assert with_bad.measured == 1
    assert with_bad.predict([good, bad]).tolist() == calibrate(subject, [(good, timed)]).predict([good, bad]).tolist()


def test_nothing_measured_is_said_with_what_went_wrong() -> None:
    placement = Placement(np.array([0, 0, 1]), NAMES)
    with pytest.raises(MeasurementError, match=r"crashed: gone.*doctor"):
        calibrate(chain(), [(placement, MeasurementFailed("crashed", "gone"))])
    with pytest.raises(MeasurementError, match="low_tolerance"):
        calibrate(chain(), [(placement, MeasurementFailed("wrong_output", "by 2"))])
    with pytest.raises(MeasurementError):
        calibrate(chain(), [])


def test_a_subject_without_costs_cannot_be_calibrated() -> None:
    with pytest.raises(UsageError, match="needs a cost table"):
        calibrate(replace(chain(), costs=None), [])


def test_where_nothing_runs_nothing_is_predicted() -> None:
    subject = chain()
    assert subject.costs is not None
    limited = replace(subject, costs=replace(subject.costs, op_s=np.array([[0, 0], [1.0, 2.0], [3.0, np.inf]])))
    placements = [Placement(np.array(d), NAMES) for d in ([0, 0, 0], [0, 0, 1])]
    found = calibrate(limited, [(placement, Measurement(np.array([4.0]))) for placement in placements])
    assert found.measured == 1
    assert np.isinf(found.predict(placements)).tolist() == [False, True]
    assert np.isinf(found.costs.op_s).tolist() == np.isinf(limited.costs.op_s).tolist()  # type: ignore[union-attr]
    assert found.next_placements(placements, 3, known=set()) == [placements[0]]
    assert {p.device[2] for p in plausible_placements(limited, 10, seed=0)} == {0}


def test_equal_seeds_give_equal_placements_and_all_are_different() -> None:
    subject = network(0)
    found = plausible_placements(subject, 50, seed=4)
    assert [p.key() for p in found] == [p.key() for p in plausible_placements(subject, 50, seed=4)]
    assert [p.key() for p in found] != [p.key() for p in plausible_placements(subject, 50, seed=5)]
    assert len({p.key() for p in found}) == 50
    assert [p.devices_used for p in found[:2]] == [("A",), ("B",)]
    assert all(len(p.devices_used) == 2 for p in found[2:])


def test_few_stretches_are_as_common_as_many() -> None:
    changes = [
        sum(a != b for a, b in pairwise(p.device.tolist())) for p in plausible_placements(network(0), 100, seed=0)
    ]
    assert sum(c <= 8 for c in changes) > 25
    assert sum(c > 15 for c in changes) > 25


def test_a_small_subject_has_few_placements() -> None:
    assert len(plausible_placements(chain(), 100, seed=0)) <= 8


def test_one_device_has_one_placement_and_its_own_factors() -> None:
    subject = chain()
    assert subject.costs is not None
    costs = CostTable(subject.graph.names, ("A",), subject.costs.op_s[:, :1], np.zeros(1), ("given",))
    alone = replace(subject, costs=costs, topology=Topology.uniform(DEVICES[:1], bytes_per_s=1.0, latency_s=0.0))
    (placement,) = plausible_placements(alone, 9, seed=0)
    found = calibrate(alone, [(placement, Measurement(np.array([5.0])))])
    assert 4.0 < found.predict([placement])[0] < 5.0
    assert found.predict([placement]) == pytest.approx(all_seconds(found.subject, [placement]))


def test_a_written_topology_reads_back_as_it_was(tmp_path: Path) -> None:
    devices = (replace(DEVICES[0], memory_bytes=2**30), DeviceSpec('the "fast" one', "GPU", "GPU", kind="tpu"))
    topology = Topology(devices, np.array([[np.inf, 1.5e9], [np.inf, np.inf]]), np.array([[0.0, 1e-5], [3e-7, 0.0]]))
    (tmp_path / "t.toml").write_text(topology_text(topology), encoding="utf-8")
    found = read_topology(tmp_path / "t.toml").topology
    assert found.names == topology.names
    assert [(d.kind, d.memory_bytes) for d in found.devices] == [("cpu", 2**30), ("other", 0)]
    assert found.link_bytes_per_s.tolist() == topology.link_bytes_per_s.tolist()
    assert found.link_latency_s.tolist() == topology.link_latency_s.tolist()
