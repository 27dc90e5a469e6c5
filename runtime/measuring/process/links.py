"""What it costs to pass a tensor from one device to another under HETERO."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from pipeline.core.devices import DeviceSpec
from runtime.machines.devices import core_for
from runtime.measuring.process.affinity import HETERO_PROPERTIES, hetero_target, set_affinities

LAYERS = 8
# Two tensors far apart in size, so that the straight line through them separates latency from bandwidth.
SIZES: tuple[tuple[int, int], ...] = ((16, 4), (64, 56))  # channels, height = width


def measure_link(command: Mapping[str, Any]) -> dict[str, Any]:
    """Return {"boundary_s": [...], "bytes": [...]}: what one boundary between devices a and b costs, by tensor size.

    A chain of convolutions is run on a alone, on b alone, and layer by layer alternating. The difference to the mean
    of the first two, divided by the number of boundaries, holds all that a boundary costs in a real model: the
    hand-over, and the change to plain layout and back.
    """
    a, b = DeviceSpec(**command["a"]), DeviceSpec(**command["b"])
    core = core_for([a, b])
    boundary_s, sizes = [], []
    for channels, side in SIZES:
        model = _chain_model(channels, side)
        alone = [_latency_s(core, model, d.openvino_name, {}, command["count"]) for d in (a, b)]
        affinity = {op.get_friendly_name(): _owner_device(op.get_friendly_name(), (a, b)) for op in model.get_ops()}
        set_affinities(model, affinity)
        both = _latency_s(core, model, hetero_target((a, b)), HETERO_PROPERTIES, command["count"])
        boundary_s.append(max(0.0, (both - sum(alone) / 2) / (LAYERS - 1)))
        sizes.append(channels * side * side * 4)
    return {"boundary_s": boundary_s, "bytes": sizes}


def fit_link(boundary_s: Sequence[float], sizes: Sequence[int]) -> tuple[float, float]:
    """Return (seconds per boundary, bytes per second) of the straight line through two points.

    >>> fit_link([1e-5, 3e-5], [0, 200])
    (1e-05, 10000000.0)
    """
    slope = (boundary_s[1] - boundary_s[0]) / (sizes[1] - sizes[0])
    return max(0.0, boundary_s[0] - max(slope, 0.0) * sizes[0]), (1 / slope if slope > 0 else np.inf)


def _chain_model(channels: int, side: int) -> ov.Model:
    rng = np.random.default_rng(0)
    start = ops.parameter([1, channels, side, side], np.float32, name="0.in")
    value = start
    for i in range(LAYERS):
        weight = rng.standard_normal((channels, channels, 3, 3)).astype(np.float32) / (3 * channels**0.5)
        constant = ops.constant(weight, name=f"{i}.weight")
        value = ops.convolution(value, constant, [1, 1], [1, 1], [1, 1], [1, 1], name=f"{i}.conv")
    result = ops.result(value, name=f"{LAYERS - 1}.out")
    return ov.Model([result], [start], "link")


def _owner_device(operation: str, devices: tuple[DeviceSpec, DeviceSpec]) -> str:
    """Return the device of an operation whose name starts with the number of its layer."""
    return devices[int(operation.partition(".")[0]) % 2].openvino_name


def _latency_s(core: ov.Core, model: ov.Model, target: str, properties: Mapping[str, str], count: int) -> float:
    request = core.compile_model(model, target, dict(properties)).create_infer_request()
    samples = []
    for _ in range(count):
        start = time.perf_counter()
        request.infer()
        samples.append(time.perf_counter() - start)
    return float(np.median(samples[count // 5 :]))
