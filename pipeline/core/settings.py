"""What can be set per stage beyond the parameters of the implementations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline.core.params import param

RUNTIMES = ("openvino", "onnxruntime")
MOST_SEED = 2**32 - 1  # the greatest that every generator of random numbers takes


@dataclass(frozen=True, slots=True)
class CoarsenSettings:
    """Which coarseners run, one after another."""

    use: tuple[str, ...] = param(("fuse",), "coarseners, applied in this order")
    raw: bool = param(False, "keep weights as operations of their own instead of folding them into their consumer")
    shapes: tuple[str, ...] = param((), "shapes of inputs, as in NAME=1x3x224x224; a question mark stays dynamic")
    shape_ranges: tuple[str, ...] = param((), "sizes that one answer is to serve, as in NAME=1x3x[32..640]x320")
    keep_dynamic: bool = param(False, "leave dynamic inputs dynamic where no shape is given")
    input: str = param("", "npz file of an array for each input, by name: their shapes, and what is measured with")
    split_directions: bool = param(False, "make two operations of every bidirectional LSTM, GRU or RNN sequence")
    split_groups: bool = param(False, "make two operations of every grouped convolution and multi-head attention")
    allow: tuple[str, ...] = param((), "rewrites that round, to be tried as candidates: weights-int8")
    growth_bytes: int = param(256 << 20, "bytes that folded constants may take beyond 8 times the model's files")
    read_timeout_s: float = param(600.0, "seconds that reading the model may take before its process is killed")


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    """How devices are profiled."""

    inferences: int = param(60, "inferences per device over which the counters are averaged")
    link_inferences: int = param(40, "inferences per chain when a link is measured")
    timeout_s: float = param(300.0, "seconds one device may take before its process is killed")
    seconds: float = param(0.0, "seconds after which no more inferences are begun; 0 for a share of the budget")


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
        ("portfolio", "hsdag"), "placers, of equal shares of time; of these two the one that learns needs --budget 90s"
    )
    reward: Literal["simulated", "measured", "hybrid"] = param(
        "hybrid", "ask the evaluator, the devices, or the evaluator calibrated to a few measurements round by round"
    )
    evaluator: str = param("sequential", "what the placers ask: sequential, listsched, hetero ...")
    evaluations: int = param(600, "placements that each placer may evaluate")
    rounds: int = param(3, "of searching and measuring, with the reward `hybrid`")
    measurements: int = param(12, "placements measured in all these rounds")
    finalists: int = param(3, "placements that go on to be measured, the best of each placer first")


@dataclass(frozen=True, slots=True)
class MeasureSettings:
    """How variants are measured against one another, and what the fastest is."""

    use: str = param("hetero", "what has the last word: hetero (the devices), sequential or replay")
    objective: Literal["latency", "throughput"] = param("latency", "what is to be best: one request, or many at once")
    percentile: float = param(50.0, "of the latencies, that the objective latency compares")
    runtime: Literal["hetero", "dataflow", "auto"] = param(
        "hetero", "what runs splits: OpenVINO's hetero, segments that run concurrently, or whichever is faster"
    )
    runtimes: tuple[str, ...] = param(
        (), "what may run the model: openvino, onnxruntime; unless given openvino, and the other's default is told of"
    )
    settings: bool = param(True, "try the settings of devices, too: threads, streams, precision, requests, batch ..")
    finalists: int = param(4, "variants that are compared with the best baseline, start by start")
    starts: int = param(12, "fresh compilations of every finalist, at most")
    least_starts: int = param(3, "starts without which nothing is claimed")
    start_s: float = param(1.2, "seconds of turns in a start, at most, where four inferences of either take no longer")
    turn_s: float = param(0.01, "seconds of one turn; it holds one inference at least")
    level: float = param(0.95, "with which all claims of a result hold together")
    least: float = param(0.02, "share that a gain must be worth to be claimed")
    alone_s: float = param(2.0, "seconds for which the answer and its baseline run alone, for their percentiles")
    rate: float = param(0.0, "requests that arrive in a second when they run alone; 0 for back to back")
    samples_per_query: int = param(1, "inferences sent at once when they run alone, which count until the last ended")
    p99_s: float = param(0.0, "latency that 99 % of the answer's inferences must keep; 0 for any")
    min_rate: float = param(0.0, "inferences per second that the answer must reach; 0 for any")
    max_memory_bytes: int = param(0, "memory that the answer's process may take; 0 for any")
    max_load_s: float = param(0.0, "seconds that compiling the answer may take; 0 for any")
    timeout_s: float = param(120.0, "seconds that loading, or one turn, may take before the process is killed")
    accuracy: Literal["strict", "usual", "loose"] = param(
        "usual", "outputs of low precisions may differ by measure.tolerance (strict), 5 % (usual) or 20 % (loose)"
    )
    tolerance: float = param(1e-3, "largest relative L2 difference of an output from the reference in f32")
    low_tolerance: float | None = param(None, "the same where a device computes in less than f32, instead of the above")
    metric: str = param("", "FILE.py:FUNCTION of outputs by name, the larger the better; in place of the tolerances")
    metric_drop: float = param(0.01, "share by which the metric may fall from the reference")
    realtime: bool = param(True, "use real-time scheduling where others disturb the turns, if allowed and harmless")
    condition: Literal["", "quiet", "shared"] = param(
        "", "of the comparison: quiet without real-time scheduling, shared beside a load; neither as the machine is"
    )
    load_threads: int = param(0, "busy threads beside which `shared` measures; 0 for one per two processors")
    dynamic_size: int = param(8, "what dynamic dimensions but the first are set to")
    decode_steps: int = param(8, "inferences of a model with state before its state is reset")
    memory_bytes: int = param(0, "address space a measuring process may use; 0 for no limit")
    seconds: float = param(0.0, "stop after so many seconds; 0 for a share of the budget")
