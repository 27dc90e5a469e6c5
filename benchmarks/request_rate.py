"""Several models by simulation: requests a second, XRBench's scenarios on accelerators, and proven assignments."""

from __future__ import annotations

import itertools
import math
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.common import Figure, figure, median_s, say, timed, zoo_model
from pipeline.core.devices import DeviceSpec
from pipeline.core.scenario import LoadScenario, ModelLoad
from pipeline.scenario.assignment import assign_models
from pipeline.scenario.prediction import predict_multiple
from runtime.simulators.requests.requests import ServiceModel, simulate_requests
from runtime.zoo.xr_scenarios import STANDS_IN, xr_scenarios

WANTED = 200_000  # requests a second
REQUESTS = 1_000_000
FLOPS_PER_S, BYTES_PER_S = 2e12, 100e9  # of an accelerator of XRBench's scenarios: each operation takes the longer time
SEVERAL = (1, 2, 3)  # accelerators
MODELS, ACCELERATORS, DRAWN = 40, 9, 6
BUDGET_S = 60.0
PROVEN = 1.01e-4  # the tolerance of the solver


def figures() -> Iterator[Figure]:
    """Yield microseconds per simulated request, load multiples of scenarios, and seconds of assignments."""
    yield from of_rates()
    yield from of_scenarios()
    yield from of_assignments()


def of_rates() -> Iterator[Figure]:
    """Yield the time of the simulator by number of models, each of which slows all others."""
    rng = np.random.default_rng(0)
    for n in (1, 3, 10, 50):
        names = tuple(f"model{i}" for i in range(n))
        slowdown = rng.uniform(0, 1, (n, n)) / n
        service = ServiceModel(names, tuple(rng.uniform(1e-3, 1e-2, (n, 100))), np.full(n, 2), slowdown)
        scenario = LoadScenario(tuple(ModelLoad(name, rate=200.0 / n) for name in names))
        simulate = partial(simulate_requests, scenario, service, seconds=REQUESTS / 200.0, seed=0, warm_up_s=0.0)
        how = f"{n} models, two requests in flight each, {REQUESTS:,} Poisson arrivals, median of 3; arrivals included"
        seconds = median_s(simulate, 3)
        yield figure(f"request_rate.{n}", 1e6 * seconds / REQUESTS, "us", how, target=1e6 / WANTED)


def of_scenarios() -> Iterator[Figure]:
    """Yield the greatest multiple of XRBench's loads that accelerators hold."""
    alone_s = network_seconds()
    for (name, scenario), p in itertools.product(xr_scenarios().items(), SEVERAL):
        devices = tuple(DeviceSpec(f"accelerator{d}", "NPU", f"NPU.{d}") for d in range(p))
        tasks = [load.name for load in scenario.models]
        placed = assign_models(
            scenario, devices, {(task, d.name): alone_s[STANDS_IN[task]] for task in tasks for d in devices}
        )
        # One request at a time for each model, and those of one accelerator share it.
        together = np.array([[placed.device[a] == placed.device[b] for b in tasks] for a in tasks])
        service = ServiceModel(
            tuple(tasks),
            tuple(np.array([alone_s[STANDS_IN[task]]]) for task in tasks),
            np.ones(len(tasks), np.int64),
            together.astype(float),
        )
        how = (
            f"{len(tasks)} models at {sum(scenario.rates().values()):.3g} requests a second, zoo networks standing in; "
            f"{p} accelerators of {FLOPS_PER_S / 1e12:g} TFLOP/s and {BYTES_PER_S / 1e9:g} GB/s, shared equally by the "
            f"requests in flight; the busiest works {placed.load:.1%} of the time"
        )
        yield figure(
            f"request_rate.xr.{name.replace(' ', '-')}.{p}", predict_multiple(scenario, service), "times the load", how
        )


def network_seconds() -> Mapping[str, float]:
    """Return seconds of one inference of the networks that stand in, from FLOPs and bytes."""
    with tempfile.TemporaryDirectory() as folder:
        graphs = {name: zoo_model(name, Path(folder))[1] for name in sorted(set(STANDS_IN.values()))}
    return {
        name: float(np.maximum(g.flops / FLOPS_PER_S, (g.weight_bytes + g.out_bytes) / BYTES_PER_S).sum())
        for name, g in graphs.items()
    }


Drawn = tuple[LoadScenario, tuple[DeviceSpec, ...], dict[tuple[str, str], float], dict[str, int]]


def drawn_assignment(seed: int, kinds: int) -> Drawn:
    """Return models of unlike work and bytes, and accelerators of some kinds that run each at a speed of its own.

    A device holds 1.5 times an equal share of all bytes.
    """
    rng = np.random.default_rng(seed)
    names = [f"model{i}" for i in range(MODELS)]
    rates = rng.choice([3.0, 10.0, 15.0, 30.0, 45.0, 60.0], MODELS)
    work_s = rng.lognormal(math.log(2e-3), 0.7, MODELS)
    speed = rng.uniform(0.5, 2.0, (MODELS, kinds))
    size = rng.integers(5, 100, MODELS) * 10**6
    share = int(1.5 * size.sum() / ACCELERATORS)
    devices = tuple(DeviceSpec(f"npu{d}", "NPU", f"NPU.{d}", memory_bytes=share) for d in range(ACCELERATORS))
    alone_s = {
        (name, device.name): float(work_s[i] * speed[i, d % kinds])
        for i, name in enumerate(names)
        for d, device in enumerate(devices)
    }
    scenario = LoadScenario(tuple(ModelLoad(name, rate=float(rate)) for name, rate in zip(names, rates, strict=True)))
    return scenario, devices, alone_s, dict(zip(names, size.tolist(), strict=True))


def of_assignments() -> Iterator[Figure]:
    """Yield the seconds that drawn assignments take, and how many are not proven then."""
    for kinds in (ACCELERATORS, 3):
        taken, gaps = [], []
        for seed in range(DRAWN):
            scenario, devices, alone_s, size = drawn_assignment(seed, kinds)
            solve = partial(assign_models, scenario, devices, alone_s, memory_bytes=size, seconds=BUDGET_S)
            seconds, found = timed(solve)
            taken.append(seconds)
            gaps.append(found.load / found.lower_bound - 1)
        how = f"{MODELS} models on {ACCELERATORS} accelerators of {kinds} kinds with little memory, {DRAWN} drawn"
        name = f"request_rate.assignment.{kinds}_kinds"
        yield figure(f"{name}.median", statistics.median(taken), "s", f"seconds until the solver ends; {how}")
        yield figure(f"{name}.longest", max(taken), "s", how, target=BUDGET_S)
        unproven = sum(gap > PROVEN for gap in gaps)
        yield figure(
            f"{name}.unproven", unproven, "", f"gap above {PROVEN:g}, at most {max(gaps):.1e}; {how}", target=1
        )


if __name__ == "__main__":
    say(figures())
