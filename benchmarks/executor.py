"""What segments that run concurrently cost and gain: per boundary, over HETERO, and over the best single device.

python -m benchmarks.executor [boundary | networks of the zoo]
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
from openvino import opset13 as op

from benchmarks.common import Figure, figure, say, silent
from coarsen.reading.model.read import to_graph
from pipeline.api import advance_run, model_path
from pipeline.core.devices import DeviceSpec
from pipeline.core.graph import Graph
from pipeline.core.measurement import MeasurementFailed
from pipeline.core.placement import Placement
from pipeline.core.settings import MeasureSettings
from pipeline.placing.shortlist import distinct_finalists
from pipeline.settings.config import Settings
from pipeline.shared.payload import load_graph, load_profile, read_json
from pipeline.store.store import Store
from runtime.executor.placed import PlacedModel, SegmentCompiler
from runtime.executor.segments import segment_graph
from runtime.executor.splitting import how_to_run, placed_in_memory
from runtime.machines.devices import discover_plugins, make_spec, parse_devices
from runtime.measuring.contest.dataflow import executor_variant
from runtime.measuring.contest.pair_bench import PairBench
from runtime.measuring.contest.variant import Variant, hetero_variant
from runtime.measuring.process.affinity import affinities_of

ONE_THREAD = "CPU{INFERENCE_NUM_THREADS=1,INFERENCE_PRECISION_HINT=f32}"
DEVICES = f"A={ONE_THREAD},B={ONE_THREAD}"
FLOATS = 16  # 64 bytes
SHORT, LONG = 8, 40  # segments of the chains whose times tell what a boundary takes
ROUNDS, INFERENCES = 40, 20
BOUNDARY_TARGETS_US: Mapping[str, float | None] = {"serial": 10.0, "level": None, "threads": 35.0, "pipeline": None}
STARTS, PAIRS = 3, 8
IN_FLIGHT = (1, 2, 4, 8)
FINALISTS = 3
# network -> what the executor's time over HETERO's, and over the best single device's, is to stay below.
TARGETS: Mapping[str, tuple[float | None, float | None]] = {
    "two-towers": (1 / 1.5, 1.0),
    "four-towers": (None, 1.0),
    "bilstm-128": (None, 1 / 1.3),
    "bilstm-512": (None, 1 / 1.15),
    "gnmt-encoder": (None, None),
    "ensemble": (None, None),
    "mixture-of-experts": (None, None),
    "nasnet-cells": (None, None),
    "randwire": (None, None),
    "inception-v3": (1 / 1.5, None),
}


def figures(chosen: Sequence[str]) -> Iterator[Figure]:
    """Yield the figures of the boundaries, and of every network."""
    if "boundary" in chosen:
        yield from boundaries()
    for network in chosen:
        if network != "boundary":
            yield from over_others(network)


def boundaries() -> Iterator[Figure]:
    """Yield what a segment more in a chain over two devices takes, by runner."""
    how = (
        f"({LONG} segments - {SHORT} segments) / {LONG - SHORT} of a chain that changes the device at every operation, "
        f"64 bytes between; median of {ROUNDS} medians of {INFERENCES} inferences, both by turns"
    )
    for runner, target in BOUNDARY_TARGETS_US.items():
        with chain(SHORT, runner) as short, chain(LONG, runner) as long:
            steps = [inference_s(long) - inference_s(short) for _ in range(ROUNDS)]
        per_segment_us = statistics.median(steps) / (LONG - SHORT) * 1e6
        yield figure(f"executor.boundary.{runner}", per_segment_us, "us", how, target=target)


def chain(n: int, runner: str) -> PlacedModel:
    """Return a chain of n operations, each a segment on another device than the one before."""
    x = op.parameter([1, FLOATS], np.float32, name="x")
    y = x
    for i in range(n):
        y = op.relu(y, name=f"op{i}") if i % 2 else op.tanh(y, name=f"op{i}")
    model = ov.Model([op.result(y, name="out")], [x], "chain")
    graph = to_graph(model, source="")
    device = [int(name[2:]) % 2 if name.startswith("op") else 0 for name in graph.names]
    found = segment_graph(graph, Placement(np.array(device, np.int32), ("A", "B")))
    placed = placed_in_memory(model, found, devices(), how_to_run(runner, 1), SegmentCompiler())
    if len(placed.manifest.segments) != n:
        raise RuntimeError(f"the chain of {n} has {len(placed.manifest.segments)} segments")
    return placed


def inference_s(placed: PlacedModel) -> float:
    """Return the median seconds of a few inferences."""
    request = placed.create_infer_request()
    request.execute(np.ones((1, FLOATS), np.float32))
    samples = []
    for _ in range(INFERENCES):
        begun = time.perf_counter()
        request.execute()
        samples.append(time.perf_counter() - begun)
    return statistics.median(samples)


def devices() -> tuple[DeviceSpec, ...]:
    """Return two devices of one CPU thread each, in f32."""
    return parse_devices([DEVICES], discover_plugins())


def over_others(network: str) -> Iterator[Figure]:
    """Yield the executor's time over that of HETERO with the same placement, and over the best single device's."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "store")
        values = {"devices": (DEVICES,), "measure.runtime": "dataflow", "budget": 60.0}
        values |= {"coarsen.split_directions": True, "place.use": ("portfolio",)}
        settings = Settings().updated(values, "the benchmark")
        run = advance_run(
            model_path(f"zoo:{network}", store), settings, Path(folder), store, upto="place", progress=silent
        )
        found = {stage: outcome.entry for stage, outcome in run.outcomes.items()}
        graph = load_graph(found["read"].path("graph.npz"))
        _, topology = load_profile(found["profile"].path("profile.npz"))
        rows = distinct_finalists(read_json(found["place"].path("candidates.json")), FINALISTS)
        placements = [Placement.from_document(row, graph.names, topology.names) for row in rows]
        yield from _compared(network, found["read"].path("model.xml"), graph, placements)


def _compared(network: str, model: Path, graph: Graph, placements: Sequence[Placement]) -> Iterator[Figure]:
    if not placements:
        yield figure(f"executor.over_single.{network}", None, "1", "no placement on two devices was found")
        return
    with PairBench(model, MeasureSettings(), 0) as bench:
        plain = [single(threads) for threads in (1, 2)]
        control = min(plain, key=lambda v: -_log_ratio(bench, v, plain[1], 1))
        ours = [made for p in placements for r in ("threads", "level") if (made := _segments(graph, p, r)) is not None]
        best = max(ours, key=lambda v: _log_ratio(bench, v, control, 1))
        placement = next(p for p in placements if best in (_segments(graph, p, r) for r in ("threads", "level")))
        hetero = hetero_variant("hetero", "", devices(), affinities_of(graph, placement, devices()))
        over = {
            "single": [_log_ratio(bench, best, control, i + 1) for i in range(STARTS)],
            "hetero": [-_log_ratio(bench, hetero, best, i + 1) for i in range(STARTS)],
            "twin": [_log_ratio(bench, control, control, i + 1) for i in range(STARTS)],
        }
    scheduled = " under real-time scheduling" if bench.realtime else ""
    runner, count = (best.segments.runner, len(best.segments.parts)) if best.segments is not None else ("", 1)
    how = (
        f"seconds over those of {{}}, f32, {count} segments run by {runner}, the best of {len(ours)} by one start; "
        f"by turns{scheduled}, geometric mean of {STARTS} starts, which scatter by {{:.1%}}"
    )
    targets = dict(zip(("hetero", "single"), TARGETS.get(network, (None, None)), strict=True)) | {"twin": None}
    names = {"single": control.name, "hetero": "HETERO with the same placement", "twin": "a second start of itself"}
    for other, logs in over.items():
        ran = all(map(math.isfinite, logs))  # HETERO refuses some placements
        told = how.format(names[other], statistics.stdev(logs) if ran else 0.0) if ran else "HETERO refuses it"
        value = math.exp(-statistics.fmean(logs)) if ran else None
        yield figure(f"executor.over_{other}.{network}", value, "1", told, target=targets[other])
    yield from rates(network, model, best, placement, graph)


def single(threads: int, requests: int = 1) -> Variant:
    """Return the CPU alone with so many threads, in f32; one stream for one request, a stream per thread for more."""
    streams = str(1 if requests == 1 else threads)
    properties = {"INFERENCE_NUM_THREADS": str(threads), "INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": streams}
    device = make_spec("S", "CPU", properties, discover_plugins())
    name = f"CPU with {threads} threads"
    return Variant(name, "baseline", device.openvino_name, (device,), single=True, requests=requests)


def rates(network: str, model: Path, variant: Variant, placement: Placement, graph: Graph) -> Iterator[Figure]:
    """Yield the seconds per inference in segments over those of the CPU alone, several requests being in flight."""
    settings = MeasureSettings(objective="throughput")
    with PairBench(model, settings, 0) as bench:
        for requests in IN_FLIGHT:
            control = single(2, requests)
            best, by = -math.inf, ""
            for runner in ("pipeline", "serial"):
                made = _segments(graph, placement, runner) or variant
                logs = [_log_ratio(bench, replace(made, requests=requests), control, i + 1) for i in range(2)]
                best, by = max((best, by), (statistics.fmean(logs), runner))
            how = f"{requests} in flight, by {by}, over {control.name} in as many streams; f32, mean of 2 starts"
            yield figure(f"executor.rate_{requests}.{network}", math.exp(-best), "1", how)


def _segments(graph: Graph, placement: Placement, runner: str) -> Variant | None:
    made = executor_variant("executor", "", graph, placement, devices(), runner=runner)
    return made if isinstance(made, Variant) else None


def _log_ratio(bench: PairBench, variant: Variant, control: Variant, number: int) -> float:
    """Return log(control's seconds / variant's) of one start; -inf if it does not run."""
    start = bench.start(variant, control, part="final", number=number, pairs=PAIRS)
    return -math.inf if isinstance(start, MeasurementFailed) else start.log_ratio


if __name__ == "__main__":
    say(figures(sys.argv[1:] or ("boundary", *TARGETS)))
