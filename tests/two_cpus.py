"""Two named devices on the CPU, and models placed on them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import openvino as ov
from openvino import opset13 as op

from coarsen.reading.model.read import read_model, save_model, to_graph
from pipeline.core.devices import CostTable, DeviceSpec, Topology
from pipeline.core.graph import Graph, Grouping
from pipeline.core.stages import Subject
from runtime.machines.devices import discover_plugins, parse_devices
from tests.models import constant

NAMES = ("A", "B")


@cache
def two_cpus() -> tuple[DeviceSpec, ...]:
    """Return devices A and B, one thread of the CPU each, both in f32."""
    one = "CPU{INFERENCE_NUM_THREADS=1,INFERENCE_PRECISION_HINT=f32}"
    return parse_devices([f"A={one},B={one}"], discover_plugins())


def branchy(blocks: int = 2, *, packed: bool = False) -> ov.Model:
    """Return a small convolutional network of `blocks` blocks of three branches; weights in fp16 if packed."""
    rng = np.random.default_rng(0)

    def conv(value: ov.Node, name: str, channels: int = 4) -> ov.Node:
        dtype = np.float16 if packed else np.float32
        weight = constant(rng.standard_normal((4, channels, 3, 3)) / 6, f"{name}.weight", dtype)
        weight = op.convert(weight, "f32", name=f"{name}.unpack") if packed else weight
        value = op.convolution(value, weight, [1, 1], [1, 1], [1, 1], [1, 1], name=name)
        bias = constant(rng.standard_normal((1, 4, 1, 1)), f"{name}.bias")
        return op.relu(op.add(value, bias, name=f"{name}.add"), name=f"{name}.relu")

    x = op.parameter([1, 4, 8, 8], np.float32, name="x")
    y = conv(x, "stem")
    for k in range(blocks):
        left, right = conv(conv(y, f"{k}.left1"), f"{k}.left2"), conv(y, f"{k}.right")
        both = op.concat([left, right, op.add(y, right, name=f"{k}.skip")], 1, name=f"{k}.concat")
        y = conv(both, f"{k}.reduce", 12)
    ends = [op.result(y, name="out"), op.result(op.sigmoid(y, name="sigmoid"), name="gate")]
    return ov.Model(ends, [x], "branchy")


def write(model: ov.Model, folder: Path) -> tuple[Path, Graph]:
    """Return the path of a model as the reader normalises it, and its graph."""
    save_model(model, folder / "raw.xml")
    normal = read_model(folder / "raw.xml")
    save_model(normal, folder / "model.xml")
    return folder / "model.xml", to_graph(normal, source="0" * 64)


def subject_of(model: Path, graph: Graph, grouping: Grouping | None = None) -> Subject:
    """Return the subject in which every operation takes 1 ms on A and 2 ms on B, and a boundary 1 ms."""
    grouping = grouping or Grouping.identity(graph.n)
    topology = Topology.uniform(two_cpus(), bytes_per_s=1e9, latency_s=0.0)
    op_s = np.tile([1e-3, 2e-3], (graph.n, 1))
    costs = CostTable(graph.names, NAMES, op_s, np.full(2, 1e-3), ("given", "given"))
    return Subject(model, graph, grouping, topology, costs, 0)
