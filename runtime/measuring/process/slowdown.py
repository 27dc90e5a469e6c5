"""What devices take longer for a model while the others run it, too: they share memory, caches and processors."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from pipeline.core.arrays import Float64
from pipeline.core.devices import DeviceSpec
from runtime.executor.splitting import device_entries
from runtime.machines.devices import core_for
from runtime.measuring.outputs.inputs import inputs_of
from runtime.measuring.process.disturbance import Look, disturbed_share, read_processor_times

ROUNDS = 5
MOST_ROUNDS = 2 * ROUNDS  # with those that others disturb
ENOUGH = 3  # undisturbed rounds, to tell anything
LEAST = 2  # inferences of a device in a round
DISTURBED = 0.05  # share of the time that threads wait while other processes have the processors


def measure_company(command: Mapping[str, Any]) -> dict[str, Any]:
    """Return {"slowdown": [...]}: what each device's inferences last beside all others, over those alone; at least 1.

    Every device is compiled for as segments are. The answer is {"slowdown": null} if other processes kept the
    processors busy. command: model, devices, seed, dynamic_size, seconds: what all of it may about take, and as much
    again where other processes disturb.
    """
    devices = [DeviceSpec(**d) for d in command["devices"]]
    core, path, entries = core_for(devices), Path(command["model"]), device_entries(devices)
    model = core.read_model(path)
    inputs = inputs_of(model, path, seed=command["seed"], dynamic_size=command["dynamic_size"])
    runs: list[Callable[[], float]] = []
    for device in devices:
        compiled = core.compile_model(model, device.openvino_name, dict(entries[device.name].properties))
        request = compiled.create_infer_request()
        for i, array in enumerate(inputs):
            request.set_input_tensor(i, ov.Tensor(array))
        runs.append(partial(_inference_s, request, bool(model.get_variables())))
    for run in runs:
        run()  # some compile on the way
    affordable = command["seconds"] / (2 * ROUNDS * sum(run() for run in runs))
    return {"slowdown": measure_slowdown(runs, max(LEAST, int(affordable)), read_processor_times)}


def _inference_s(request: ov.InferRequest, stateful: bool) -> float:
    """Return the seconds of one inference, the first of a sequence."""
    if stateful:
        request.reset_state()
    begun = time.perf_counter()
    request.infer()
    return time.perf_counter() - begun


def measure_slowdown(runs: Sequence[Callable[[], float]], count: int, seen: Callable[[], Look]) -> list[float] | None:
    """Return for each run, which tells its seconds, what it takes beside all others over what it takes alone.

    Rounds that other processes disturbed do not count, and others take their place; None if too few are left.

    count: how often each runs in each of the rounds, alone and beside the others. seen: see
    `disturbance.read_processor_times`.
    """
    rounds: list[Float64] = []
    with ThreadPoolExecutor(len(runs)) as pool:
        for _ in range(MOST_ROUNDS):
            before = seen()
            alone = [statistics.median(run() for _ in range(count)) for run in runs]
            ratio = np.array(_run_in_parallel(runs, count, pool)) / np.array(alone)
            if disturbed_share(before, seen()) <= DISTURBED:  # threads of the pool must not have ended
                rounds.append(ratio)
            if len(rounds) == ROUNDS:
                break
    if len(rounds) < ENOUGH:
        return None
    factors: list[float] = np.maximum(np.median(rounds, axis=0), 1.0).tolist()
    return factors


def _run_in_parallel(runs: Sequence[Callable[[], float]], count: int, pool: ThreadPoolExecutor) -> list[float]:
    """Return the median seconds of runs in threads of their own, each of which goes on until all have run so often."""
    short = set(range(len(runs)))
    begin = threading.Barrier(len(runs))

    def repeat(i: int) -> float:
        samples: list[float] = []
        begin.wait()
        try:
            while short:
                samples.append(runs[i]())
                if len(samples) >= count:
                    short.discard(i)
        finally:  # the others need not wait for one that has failed
            short.discard(i)
        return statistics.median(samples)

    return list(pool.map(repeat, range(len(runs))))
