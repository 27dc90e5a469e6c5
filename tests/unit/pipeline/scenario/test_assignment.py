"""Whole models on devices: the largest load is the least there is, and is proven."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from pipeline.core.devices import DeviceSpec
from pipeline.core.errors import DeviceError
from pipeline.core.scenario import LoadScenario, ModelLoad
from pipeline.scenario.assignment import assign_models

PROVEN = 1e-4  # the share by which what HiGHS calls optimal may be off


def devices_of(p: int, memory_bytes: int = 0) -> tuple[DeviceSpec, ...]:
    """Return accelerators."""
    return tuple(DeviceSpec(f"npu{d}", "NPU", f"NPU.{d}", memory_bytes=memory_bytes) for d in range(p))


def drawn(n: int, p: int, seed: int) -> tuple[LoadScenario, dict[tuple[str, str], float], dict[str, int]]:
    """Return models, their seconds on every device, and their bytes."""
    rng = np.random.default_rng(seed)
    names = [f"m{i}" for i in range(n)]
    scenario = LoadScenario(tuple(ModelLoad(name, rate=float(rng.integers(3, 60))) for name in names))
    work_s = rng.lognormal(-6.0, 0.7, (n, 1)) * rng.uniform(0.5, 2.0, (n, p))
    alone_s = {(name, f"npu{d}"): float(work_s[i, d]) for i, name in enumerate(names) for d in range(p)}
    return scenario, alone_s, {name: int(rng.integers(5, 100)) for name in names}


def by_brute_force(
    scenario: LoadScenario, p: int, alone_s: dict[tuple[str, str], float], size: dict[str, int], memory_bytes: int
) -> float:
    """Return the least largest load of all assignments that fit."""
    best = np.inf
    for chosen in itertools.product(range(p), repeat=len(scenario.models)):
        load, held = np.zeros(p), np.zeros(p)
        for model, d in zip(scenario.models, chosen, strict=True):
            load[d] += model.rate * alone_s[model.name, f"npu{d}"]
            held[d] += size[model.name]
        if held.max() <= memory_bytes:
            best = min(best, load.max())
    return float(best)


@pytest.mark.parametrize("seed", range(4))
def test_the_least_largest_load_of_few_models_is_that_of_brute_force(seed: int) -> None:
    scenario, alone_s, size = drawn(7, 3, seed)
    room = int(sum(size.values()) / 3 * 1.2) + 20
    found = assign_models(scenario, devices_of(3, room), alone_s, memory_bytes=size, seconds=20.0)
    assert found.load == pytest.approx(by_brute_force(scenario, 3, alone_s, size, room))
    assert found.lower_bound == pytest.approx(found.load, rel=PROVEN)
    held = {d: sum(size[name] for name, where in found.device.items() if where == d) for d in found.device.values()}
    assert max(held.values()) <= room


def test_forty_models_on_nine_accelerators_are_proven_best() -> None:
    scenario, alone_s, size = drawn(40, 9, 2)
    room = int(sum(size.values()) / 9 * 1.5)
    found = assign_models(scenario, devices_of(9, room), alone_s, memory_bytes=size, seconds=120.0)
    assert found.lower_bound == pytest.approx(found.load, rel=PROVEN)
    largest = max(m.rate * min(alone_s[m.name, f"npu{d}"] for d in range(9)) for m in scenario.models)
    assert found.load > 1.01 * largest  # no single model decides


def test_rates_of_chains_and_allowed_devices_count() -> None:
    scenario = LoadScenario((ModelLoad("a", rate=10.0, devices=("npu1",)), ModelLoad("b", after="a", calls=3.0)))
    alone_s = {("a", "npu0"): 0.001, ("a", "npu1"): 0.01, ("b", "npu0"): 0.01, ("b", "npu1"): 0.05}
    found = assign_models(scenario, devices_of(2), alone_s, seconds=10.0)
    assert found.device == {"a": "npu1", "b": "npu0"}
    assert found.load == pytest.approx(10.0 * 3.0 * 0.01)


def test_a_closed_loop_keeps_a_device_busy() -> None:
    scenario = LoadScenario((ModelLoad("a", concurrency=1), ModelLoad("b", rate=5.0)))
    alone_s = {(name, f"npu{d}"): 0.1 for name in "ab" for d in range(2)}
    found = assign_models(scenario, devices_of(2), alone_s, seconds=10.0)
    assert found.device["a"] != found.device["b"]
    assert found.load == pytest.approx(1.0)


def test_models_that_no_memory_holds_are_refused() -> None:
    scenario, alone_s, size = drawn(6, 2, 0)
    with pytest.raises(DeviceError, match="6 models to npu0, npu1 was found that fits their memory"):
        assign_models(scenario, devices_of(2, max(size.values())), alone_s, memory_bytes=size, seconds=5.0)


def test_a_model_that_may_run_nowhere_is_named() -> None:
    scenario, alone_s, _ = drawn(2, 2, 0)
    without = {pair: seconds for pair, seconds in alone_s.items() if pair[0] != "m1"}
    with pytest.raises(DeviceError, match="No device was found to run m1"):
        assign_models(scenario, devices_of(2), without, seconds=5.0)
