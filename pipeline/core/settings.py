"""What can be set per stage beyond the parameters of the implementations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline.core.params import param

RUNTIMES = ("openvino", "onnxruntime")
MOST_SEED = 2**32 - 1  # the greatest that every generator of random numbers takes

WORTH_LEAST = 0.05  # share by which a split must be able to beat the best single device, to be worth a search
WORTH_S = 1.0  # seconds for proving that it can not


@dataclass(frozen=True, slots=True)
class CoarsenSettings:
    """Which coarseners run, one after another."""

    use: tuple[str, ...] = param(("fuse",), "coarseners, applied in this order")
    raw: bool = param(False, "keep weights as separate operations instead of folding them into their consumers")
    shapes: tuple[str, ...] = param((), "input shapes, as in NAME=1x3x224x224; ? keeps a dimension dynamic")
    shape_ranges: tuple[str, ...] = param((), "ranges of input sizes to tune for, as in NAME=1x3x[32..640]x320")
    keep_dynamic: bool = param(False, "keep inputs dynamic that have no shape")
    input: str = param("", "npz file with one array per input name: sets the shapes and the measured inputs")
    split_directions: bool = param(False, "split every bidirectional LSTM, GRU or RNN sequence into two operations")
    split_groups: bool = param(False, "split every grouped convolution and multi-head attention into two operations")
    allow: tuple[str, ...] = param((), "lossy rewrites to try as candidates: weights-int8")
    growth_bytes: int = param(256 << 20, "bytes that folded constants may take beyond 8 times the model's files")
    read_timeout_s: float = param(600.0, "timeout of reading the model, in seconds")


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    """How devices are profiled."""

    inferences: int = param(60, "inferences per device over which the counters are averaged")
    link_inferences: int = param(40, "inferences per chain when a link is measured")
    timeout_s: float = param(300.0, "timeout of profiling one device, in seconds")
    seconds: float = param(0.0, "seconds after which no inference is started; 0: a share of the budget")


@dataclass(frozen=True, slots=True)
class EmbedSettings:
    """Which embedder runs."""

    use: str = param("directed", "embedder")
    blocks: tuple[str, ...] = param(
        ("types", "degrees", "shapes", "fractal", "position", "paths", "sizes", "spread"),
        "features: these, times (a column per device), index, and as published degree_values, dims, index_encoding, "
        "type_hash, index_neighbours",
    )


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Which grouper runs."""

    use: str = param("edge_score", "grouper")


@dataclass(frozen=True, slots=True)
class PlaceSettings:
    """Which placers run, and how much each may spend."""

    use: tuple[str, ...] = param(
        ("portfolio", "hsdag"), "placers, with equal shares of time; of these two, the learning one needs --budget 90s"
    )
    reward: Literal["simulated", "measured", "hybrid"] = param(
        "hybrid",
        "value placements by the evaluator, the devices, or the evaluator calibrated to measurements in rounds",
    )
    evaluator: str = param("sequential", "evaluator of the placers: sequential, listsched, hetero ...")
    evaluations: int = param(600, "placements that each placer may evaluate")
    rounds: int = param(3, "rounds of searching and measuring with the reward `hybrid`")
    measurements: int = param(12, "placements measured in all rounds together")
    finalists: int = param(3, "finalists: placements to measure, the best of each placer first")
    near: str = param("", "earlier placement of which little moves: placement.json of a run, or {operation: device}")
    moves: int | None = param(None, "with place.near: most operations that may move")
    move_price_s: float = param(0.0, "with place.near: seconds that every moved operation must gain")


@dataclass(frozen=True, slots=True)
class MeasureSettings:
    """How variants are measured against one another, and what the fastest is."""

    use: str = param("hetero", "how finalists are compared: hetero (measured on the devices), sequential or replay")
    objective: Literal["latency", "throughput"] = param(
        "latency", "what to optimise: latency of one request, or throughput of many"
    )
    percentile: float = param(50.0, "percentile of the latencies that the objective latency compares")
    runtime: Literal["hetero", "dataflow", "auto"] = param(
        "hetero", "how splits run: OpenVINO's hetero, concurrent segments (dataflow), or the faster (auto)"
    )
    runtimes: tuple[str, ...] = param(
        (),
        "runtimes that may run the model: openvino, onnxruntime; default openvino, and the other is reported",
    )
    settings: bool = param(True, "also tune device properties: threads, streams, precision, requests, batch ...")
    finalists: int = param(4, "finalists that are compared with the best baseline, start by start")
    starts: int = param(12, "most starts (fresh compilations) of every finalist")
    least_starts: int = param(3, "least starts before a gain is claimed")
    start_s: float = param(1.2, "most seconds of turns per start, if four inferences of each side fit")
    turn_s: float = param(0.01, "seconds of one turn; at least one inference")
    level: float = param(0.95, "simultaneous confidence level of all claims of a result")
    least: float = param(0.02, "least gain that is claimed, as a share")
    alone_s: float = param(2.0, "seconds that the answer and its baseline run alone, for percentiles")
    rate: float = param(0.0, "requests per second when they run alone; 0: back to back")
    samples_per_query: int = param(1, "inferences per query when they run alone; a query ends with its last inference")
    p99_s: float = param(0.0, "limit on the 99th percentile of latency, in seconds; 0: none")
    min_rate: float = param(0.0, "least inferences per second; 0: no limit")
    max_memory_bytes: int = param(0, "limit on the memory of the process, in bytes; 0: none")
    max_load_s: float = param(0.0, "limit on the compile time, in seconds; 0: none")
    timeout_s: float = param(120.0, "timeout of loading, and of one turn, in seconds")
    accuracy: Literal["strict", "usual", "loose"] = param(
        "usual", "outputs of low precisions may differ by measure.tolerance (strict), 5 % (usual) or 20 % (loose)"
    )
    tolerance: float = param(1e-3, "largest relative L2 difference of an output from the reference in f32")
    low_tolerance: float | None = param(None, "the same for a device that computes in a precision below f32")
    metric: str = param("", "quality metric FILE.py:FUNCTION of the outputs, larger is better; replaces the tolerances")
    metric_drop: float = param(0.01, "allowed drop of the metric from the reference, as a share")
    realtime: bool = param(
        True, "use real-time scheduling if other processes disturb the turns, and it is permitted and harmless"
    )
    condition: Literal["", "quiet", "shared"] = param(
        "", "quiet: without real-time scheduling; shared: beside a load; empty: the machine as it is"
    )
    load_threads: int = param(0, "busy threads beside which `shared` measures; 0: one per two processors")
    dynamic_size: int = param(8, "size of dynamic dimensions except the first")
    decode_steps: int = param(8, "inferences before the state of a stateful model is reset")
    memory_bytes: int = param(0, "address space of a measuring process, in bytes; 0: no limit")
    seconds: float = param(0.0, "stop after this many seconds; 0: a share of the budget")
