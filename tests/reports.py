"""Run directories with all that a report shows; and pages as a reader without scripts sees them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.core.accuracy import Accuracy, AccuracyLimits
from pipeline.core.devices import CostTable, DeviceSpec, Topology
from pipeline.core.estimates import RatioEstimate
from pipeline.core.graph import Graph
from pipeline.core.tensors import INFERRED
from pipeline.placing.comparison import latency_of, percentiles_of
from pipeline.placing.records import ContestRecord
from pipeline.result.records import (
    CandidateRecord,
    DeviceRecord,
    FailureRecord,
    ModelRecord,
    PlacementRecord,
    RegisteredRecord,
    ResultRecord,
    SourceRecord,
    StageRecord,
    to_json,
)
from pipeline.result.result import write_samples
from pipeline.settings.config import Settings
from pipeline.shared import payload

DEVICES = (DeviceSpec("A", "CPU", "CPU_A", {"INFERENCE_NUM_THREADS": "1"}), DeviceSpec("B", "GPU", "GPU"))
READ_STAGE = {"name": "read", "key": "r" * 64, "parts": {}, "ran": True, "why": "", "seconds": 1.5, "at": 1.7e9}
HOSTILE = (
    "</script><script>document.title='taken'</script>",
    "a\u202egnp.exe",
    "</title><img src=x onerror=\"document.title='taken'\">",
    "-->{{ 7 * 7 }}&amp;'\"",
    "x" * 10_000,
)


def chain_graph(names: Sequence[str], *, out_bytes: int = 1 << 20) -> Graph:
    """Return operations one after another; the first is an input."""
    n = len(names)
    sizes = np.full(n, out_bytes)
    return Graph(
        names=tuple(names),
        op_type=np.minimum(np.arange(n), 1).astype(np.int16),
        type_names=("Parameter", "Convolution"),
        edges=np.stack([np.arange(n - 1), np.arange(1, n)]).astype(np.int32),
        flops=np.ones(n),
        weight_bytes=np.zeros(n, np.int64),
        out_bytes=sizes,
        edge_bytes=sizes[:-1],
        shape_ptr=2 * np.arange(n + 1),
        shape_dim=np.tile([1, 64], n),
        colocate=np.full(n, -1, np.int32),
        kernel=np.full(n, -1, np.int32),
        reads=INFERRED,
    )


def profile_of(graph: Graph) -> tuple[CostTable, Topology]:
    """Return the costs of a graph on A and B, which is twice as fast, and the links between them."""
    op_s = np.outer(np.linspace(1e-4, 2e-4, graph.n), [1.0, 0.5])
    costs = CostTable(graph.names, ("A", "B"), op_s, np.full(2, 1e-6), ("measured", "measured"))
    return costs, Topology.uniform(DEVICES, bytes_per_s=1e9, latency_s=1e-6)


def accuracy(difference: float = 1e-6, *, exact: bool = True, tolerance: float = 1e-3, **more: Any) -> Accuracy:
    """Return how right outputs are that differ by so much on noise."""
    told: dict[str, Any] = {"output": "output_0", "kind": "noise", "difference": difference, "mean": difference / 2}
    told |= {"channel": "", "channel_difference": 0.0, "indices": 0.0, "rows": 0.0}
    told |= {"flips": 0, "decisions": 0, "flip_share": 0.0, "kinds": ("noise",)}
    return Accuracy(**told | {"exact": exact, "limits": AccuracyLimits.of(tolerance)} | more)


def candidate(name: str, samples_s: Sequence[float], **more: Any) -> CandidateRecord:
    """Return the record of a candidate that ran."""
    told: dict[str, Any] = {
        "placer": "baseline",
        "baseline": True,
        "single": True,
        "devices_used": ["CPU"],
        "subgraphs": 1,
        "precision": "f32",
        "latency_s": latency_of(samples_s),
        "samples_s": list(samples_s),
        "percentiles": percentiles_of(list(samples_s) * 40),
        "rate": 1 / samples_s[0],
        "peak_bytes": 100 << 20,
        "compile_s": 0.5,
        "difference": 1e-6,
        "accuracy": accuracy(),
        "times_as_fast": 1.0,
        "log_ratios": {str(i): 0.0 for i, _ in enumerate(samples_s, 1)},
    }
    return CandidateRecord(name=name, **(told | more))


def finished(
    folder: Path, names: Sequence[str] = ("in", "conv1", "conv2", "conv3", "out"), *, factor: float = 1.0
) -> Path:
    """Write a finished run whose answer is a split between A and B; return the folder. factor: of all latencies."""
    folder.mkdir(parents=True, exist_ok=True)
    graph = chain_graph(names)
    split = candidate(
        "greedy 1",
        [factor * s for s in (0.0040, 0.0041, 0.0042)],
        placer="greedy",
        baseline=False,
        single=False,
        devices_used=["A", "B"],
        subgraphs=2,
        kind="split",
        about="A 62 %, B 38 %, 2 sub-graphs",
        shares={"A": 0.62, "B": 0.38},
        times_as_fast=1.5,
        target="HETERO:CPU_A,GPU",
        settings={"A": dict(DEVICES[0].properties), "HETERO:CPU_A,GPU": {"EXCLUSIVE_ASYNC_REQUESTS": "NO"}},
    )
    default = candidate("CPU default", [factor * s for s in (0.0060, 0.0061, 0.0062)], kind="default", target="CPU")
    refused = CandidateRecord("NPU", "baseline", True, True, [], None, failed=FailureRecord("refused", "no driver"))
    contest = ContestRecord(
        objective="latency",
        percentile=50.0,
        control="CPU default",
        default="CPU default",
        hint="",
        level=0.95,
        least=0.02,
        claimed=["greedy 1"],
        noise=0.01,
        disturbed=False,
        ratios={"greedy 1": RatioEstimate(1.5, 1.4, 1.6, 3)},
        over_default={},
        over_hint={},
    )
    stages = [StageRecord(s, s, s[0] * 64, True, "never run before", 1.5) for s in ("read", "profile", "place")]
    record = ResultRecord(
        schema="placewright.result/1",
        model=ModelRecord("models/net.xml", "0" * 64),
        devices=[DeviceRecord.of(d) for d in DEVICES],
        fingerprint="1234567890abcdef",
        hardware={"cpu": "of the test", "processors": 2},
        versions={"openvino": "2026.4.1"},
        seed=3,
        stages=stages,
        searches=[],
        candidates=[split, default, refused],
        best="greedy 1",
        verdict="Use greedy 1: 1.500 times as fast as the best baseline, CPU default (1.400 to 1.600).",
        contest=contest,
        speedup_over_best_single=RatioEstimate(1.5, 1.4, 1.6),
        files={},
    )
    write(folder / "result.json", to_json(record))
    half = len(names) // 2
    placement = PlacementRecord(
        schema="placewright.placement/1",
        model=SourceRecord("placed.xml", "0" * 64),
        candidate="greedy 1",
        target="HETERO:CPU_A,GPU",
        properties={},
        devices={d.name: RegisteredRecord(d.openvino_name, d.plugin, dict(d.properties)) for d in DEVICES},
        placement={name: "A" if i < half else "B" for i, name in enumerate(names)},
    )
    write(folder / "placement.json", to_json(placement))
    settings = Settings().updated({"seed": 3, "budget": 60, "place.use": "greedy", "measure.starts": 5}, "the test")
    model = {"path": "models/net.xml", "sha256": "0" * 64}
    write(
        folder / "manifest.json",
        {"schema": 1, "model": model, "settings": settings.to_json(), "stages": {"read": READ_STAGE}},
    )
    payload.save_graph(folder / "graph.npz", graph)
    payload.save_profile(folder / "profile.npz", *profile_of(graph))
    rows = [
        {"placer": "greedy", "seconds": 0.1, "done": d, "value_s": 0.01 / d, "single_s": 0.01, "bound_s": 0.001}
        for d in (1, 2, 4)
    ]
    (folder / "curve.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    write_samples(folder, [{"name": c.name, "latencies_s": c.samples_s * 40} for c in (split, default)])
    return folder


def write(path: Path, document: Any) -> None:
    """Write JSON."""
    path.write_text(json.dumps(document), encoding="utf-8")


@dataclass
class Page(HTMLParser):
    """A page as it was written: its elements, its text, and what its scripts and data hold."""

    source: str
    tags: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.inside: list[tuple[str, dict[str, str]]] = []
        self.feed(self.source)
        self.close()

    @property
    def text(self) -> str:
        """Return what a reader sees, with single spaces."""
        return " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.tags.append((tag, {k: v or "" for k, v in attrs}))
        if tag not in ("meta", "input", "link", "br", "img"):
            self.inside.append(self.tags[-1])

    def handle_endtag(self, tag: str) -> None:
        """Close the innermost element, which must be of this kind."""
        opened = self.inside.pop()[0]
        if opened != tag:
            raise ValueError(f"<{opened}> is closed by </{tag}>")

    def handle_data(self, data: str) -> None:
        """Note text, by where it stands."""
        tag, attributes = self.inside[-1] if self.inside else ("", {})
        if tag == "script" and attributes.get("type") == "application/json":
            self.data[attributes["id"]] = json.loads(data)
        elif tag == "script":
            self.scripts.append(data)
        elif tag != "style":
            self.words.append(data)
