"""Exact methods for pipelines against brute force: ordered, convex and free stages."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pipeline.core.arrays import Int32
from pipeline.core.errors import DeviceError
from pipeline.core.problem import Budget
from pipeline.core.simulation import Contiguity
from pipeline.core.stages import Answer
from pipeline.offline.stages import checked_loads, device_order
from pipeline.settings.registry import build_implementation
from pipeline.shared.contiguity import backward_operations
from policy.place.exact.pipelined import cpsat_pipeline
from policy.place.exact.pipelined.replicated import replicated_stages
from policy.place.exact.shared import cpsat
from policy.place.exact.shared.proofs import lower_bound
from tests.small_pipelines import SmallPipeline, small_pipeline

CLOSE = 1e-9
FEW, MANY = range(30), range(30, 1500)
STAND_INS = (83, 252, 511, 548, 803)  # of training, whose optimum another place of backward classes would change
SOLVED: dict[str, tuple[Contiguity, ...]] = {
    "dp": ("ordered",),
    "milp": ("free", "convex"),
    "cpsat": ("free", "convex"),
}


def answer(case: SmallPipeline, placer: str, contiguity: Contiguity) -> Answer | None:
    """Return what a placer answers with ample effort; None if it finds nothing that fits."""
    settings = {"effort": 1.0} if placer == "cpsat" else {}
    budget = Budget(evaluations=2000)
    try:
        return build_implementation("place", placer, settings).place(  # type: ignore[no-any-return]
            case.problem, case.simulator(contiguity), budget, seed=0, progress=lambda _: None
        )
    except DeviceError:
        return None


def check(case: SmallPipeline, placer: str, contiguity: Contiguity) -> None:
    optimum_s = case.optimum_s(contiguity)
    found = answer(case, placer, contiguity)
    if math.isinf(optimum_s):
        assert found is None or math.isinf(found.value_s)
        return
    assert found is not None
    assert found.value_s == pytest.approx(optimum_s, rel=CLOSE)
    assert found.lower_bound_s <= optimum_s * (1 + CLOSE)
    assert found.proven
    device = found.best.placement.device
    load_s, faults = checked_loads(case.problem, device.tolist())
    assert faults == []
    assert max(load_s) == pytest.approx(optimum_s, rel=CLOSE)
    if contiguity == "ordered":
        assert device_order(case.problem, device.tolist()) is not None


@pytest.mark.parametrize(("placer", "contiguity"), [(p, c) for p, all_of in SOLVED.items() for c in all_of])
def test_each_solver_finds_and_proves_the_optimum_of_its_own_definition(placer: str, contiguity: Contiguity) -> None:
    for number in FEW:
        check(small_pipeline(number), placer, contiguity)


@pytest.mark.parametrize("number", STAND_INS)
def test_backward_classes_have_a_place_in_the_order(number: int) -> None:
    check(small_pipeline(number, training=True), "dp", "ordered")


@pytest.mark.parametrize("contiguity", ["free", "convex"])
def test_what_is_refuted_is_worse(contiguity: Contiguity, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpsat, "EASY", 0)
    monkeypatch.setattr(cpsat_pipeline, "SMALL", 0)
    for number in FEW[:20]:
        check(small_pipeline(number), "cpsat", contiguity)


@pytest.mark.slow
@pytest.mark.parametrize(("placer", "contiguity"), [(p, c) for p, all_of in SOLVED.items() for c in all_of])
def test_each_solver_finds_and_proves_a_thousand_optima(placer: str, contiguity: Contiguity) -> None:
    for number in MANY:
        check(small_pipeline(number), placer, contiguity)


def test_bounds_are_never_above_and_notions_of_contiguity_nest() -> None:
    strict = [0, 0]
    for number in FEW:
        case = small_pipeline(number)
        free_s, convex_s, ordered_s = (case.optimum_s(c) for c in ("free", "convex", "ordered"))
        assert free_s <= convex_s
        # A backward operation without a forward one has a place in the order, and none where convexity counts.
        assert convex_s <= ordered_s
        bound_s, _ = lower_bound(case.problem, case.simulator("free").execution, one_to_one=True)
        assert bound_s <= free_s * (1 + CLOSE)
        strict = [strict[0] + (free_s < convex_s), strict[1] + (convex_s < ordered_s)]
    assert strict[0] > 0


def test_simulators_refuse_what_is_not_contiguous_and_no_more() -> None:
    for number in range(30):
        case = small_pipeline(number)
        device = case.placements()[:300]
        for contiguity, kept in (("convex", case.convex(device)), ("ordered", case.ordered(device))):
            found = case.simulator(contiguity).simulate(device).value_s  # type: ignore[arg-type]
            assert np.isfinite(found).tolist() == kept.tolist()
            np.testing.assert_allclose(found[kept], case.loads_s(device)[kept], rtol=CLOSE)


def passes_s(case: SmallPipeline, device: Int32) -> float:
    """Return the largest load of the forward pass and that of the backward pass, added up, by the definition."""
    backward = backward_operations(case.problem.graph)
    return sum(max(checked_loads(case.problem, device.tolist(), mine.tolist())[0]) for mine in (~backward, backward))


def test_the_largest_loads_of_both_passes_add_up() -> None:
    differs = 0
    for number in range(12):
        case = small_pipeline(number, training=True)
        device = case.placements()[:400]
        simulator = case.simulator("free", passes="apart")
        if not device.size:
            continue
        found = simulator.simulate(device)
        np.testing.assert_allclose(found.value_s[:40], [passes_s(case, row) for row in device[:40]], rtol=CLOSE)
        np.testing.assert_allclose(found.busy_s, case.simulator("free").simulate(device).busy_s, rtol=CLOSE)
        together_s = case.loads_s(device)
        assert np.all(found.value_s >= together_s * (1 - CLOSE))
        differs += bool(np.any(found.value_s > together_s * (1 + CLOSE)))
    assert differs > 3


@pytest.mark.parametrize("placer", ["cpsat", "dp", "milp"])
def test_bounds_hold_where_the_loads_of_both_passes_add_up(placer: str) -> None:
    contiguity: Contiguity = "ordered" if placer == "dp" else "free"
    for number in range(15):
        case = small_pipeline(number, training=True)
        simulator = case.simulator(contiguity, passes="apart")
        value_s = simulator.simulate(case.placements()).value_s
        optimum_s = float(value_s.min(initial=math.inf))
        if math.isinf(optimum_s):
            continue
        settings = {"effort": 1.0} if placer == "cpsat" else {}
        found = build_implementation("place", placer, settings).place(
            case.problem, simulator, Budget(evaluations=2000), seed=0, progress=lambda _: None
        )
        assert found.lower_bound_s <= optimum_s * (1 + CLOSE) <= found.value_s * (1 + 2 * CLOSE)
        if placer == "cpsat":
            assert found.value_s == pytest.approx(optimum_s, rel=CLOSE)
            assert found.proven


def test_replicas_never_make_the_largest_load_greater() -> None:
    for number in range(0, 40, 2):
        case = small_pipeline(number, training=False)
        ordered_s = case.optimum_s("ordered")
        if math.isfinite(ordered_s):
            stages = replicated_stages(case.problem, 0, workers=1)
            assert max(stage.load_s for stage in stages) <= ordered_s * (1 + CLOSE)
            held = np.concatenate([stage.operations for stage in stages])
            assert sorted(held.tolist()) == list(range(case.problem.graph.n))
            used = [d for stage in stages for d in stage.devices]
            assert len(set(used)) == len(used)
