"""What an operation costs on a chip nobody has at hand: a roofline over its arithmetic and its bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from pipeline.core.arrays import Float64
from pipeline.core.graph import Graph

BANDWIDTH_SHARE = 0.75  # share of the peak bandwidth that a kernel which streams its tensors reaches
TINY_BYTES = 4096  # an output of at most so many bytes, made without arithmetic, is bookkeeping

# Share of the peak arithmetic that the classes of operations reach.
EFFICIENCY: Mapping[str, float] = MappingProxyType({"conv": 0.55, "gemm": 0.5, "depthwise": 0.15, "other": 0.5})

# Class -> types of operations, of OpenVINO and of the frameworks; the first that fits counts, "other" if none does.
CLASSES: Mapping[str, re.Pattern[str]] = MappingProxyType(
    {
        "free": re.compile(r"Parameter|Constant|Const|Result|Placeholder\w*|Variable(V2)?|VarHandleOp"),
        "auxiliary": re.compile(
            r"(Un)?squeeze|Reshape|Flatten|ExpandDims|Identity|StopGradient|NoOp|Shape(Of|N)?|Rank|Size"
            r"|ConcatOffset|BroadcastGradientArgs|Range",
            re.IGNORECASE,
        ),
        "lookup": re.compile(r"Gather\w*|Embedding\w*|Slice|StridedSlice|VariadicSlice", re.IGNORECASE),
        "depthwise": re.compile(r"GroupConv\w*|Depthwise\w*", re.IGNORECASE),
        "conv": re.compile(r"\w*conv(?!ert)\w*", re.IGNORECASE),
        "gemm": re.compile(r"\w*(matmul|gemm|einsum|fullyconnected|lstm|gru|rnn|attention)\w*", re.IGNORECASE),
    }
)


@dataclass(frozen=True, slots=True)
class Chip:
    """The figures of one device that a roofline needs.

    flops_per_s: peak arithmetic, a multiply-add counts 2. bytes_per_s: peak bandwidth of its memory. launch_s: what
    every kernel costs before it does anything. auxiliary_s: an operation that only handles shapes or small values.
    efficiency: class of operations -> the share of flops_per_s it reaches; see CLASSES.
    """

    flops_per_s: float
    bytes_per_s: float
    launch_s: float = 8e-6
    auxiliary_s: float = 1e-6
    efficiency: Mapping[str, float] = field(default_factory=lambda: EFFICIENCY)

    def __post_init__(self) -> None:
        object.__setattr__(self, "efficiency", MappingProxyType({**EFFICIENCY, **self.efficiency}))
        if min(self.flops_per_s, self.bytes_per_s, *self.efficiency.values()) <= 0:
            raise ValueError("arithmetic, bandwidth and efficiencies must be positive")
        if self.launch_s < 0 or self.auxiliary_s < 0:
            raise ValueError("launch_s and auxiliary_s must not be negative")

    def scaled(self, factor: float) -> Chip:
        """Return a chip that is `factor` times as fast in arithmetic and memory."""
        return Chip(
            self.flops_per_s * factor, self.bytes_per_s * factor, self.launch_s, self.auxiliary_s, self.efficiency
        )


CHIPS: Mapping[str, Chip] = MappingProxyType(
    {
        "p100": Chip(9.3e12, 732e9),  # PCIe, fp32; launches by an executor of TensorFlow's kind
        "desktop-gpu": Chip(13e12, 360e9, launch_s=6e-6),
        "desktop-cpu": Chip(1e12, 45e9, launch_s=2e-6, auxiliary_s=0.5e-6, efficiency={"conv": 0.6, "gemm": 0.7}),
        "socket": Chip(2.5e12, 120e9, launch_s=2e-6, auxiliary_s=0.5e-6, efficiency={"conv": 0.6, "gemm": 0.7}),
    }
)


def operation_class(type_name: str) -> str:
    """Return the class an operation's type belongs to.

    >>> operation_class("Conv2DBackpropInput"), operation_class("Convert")
    ('conv', 'other')
    """
    return next((name for name, types in CLASSES.items() if types.fullmatch(type_name)), "other")


def roofline_s(graph: Graph, chip: Chip) -> Float64:
    """Return float64 [n], the seconds of every operation on a chip.

        launch + max(flops / (efficiency * peak flops), bytes / (0.75 * peak bandwidth))

    bytes: what the operation reads along its edges, its own weights, and its output; a lookup reads as much as it
    writes. Constants, parameters and variables lie ready and take no time. An operation that only handles shapes, or
    makes a tiny output without arithmetic, takes `auxiliary_s`.

    Source: Williams, Waterman, Patterson, Roofline, CACM 52(4), 2009; the share of the bandwidth and the launch on top
    are additions.
    """
    of_type = [operation_class(name) for name in graph.type_names]
    kind = np.array(of_type, dtype=np.str_)[graph.op_type]
    share = np.array([chip.efficiency.get(name, chip.efficiency["other"]) for name in of_type])[graph.op_type]
    read = np.bincount(graph.edges[1], weights=graph.edge_bytes, minlength=graph.n) + graph.weight_bytes
    moved = np.where(kind == "lookup", np.minimum(read, graph.out_bytes), read) + graph.out_bytes
    busy = np.maximum(graph.flops / (share * chip.flops_per_s), moved / (BANDWIDTH_SHARE * chip.bytes_per_s))
    small = (graph.flops == 0) & (graph.out_bytes <= TINY_BYTES)
    seconds = np.where((kind == "auxiliary") | small, chip.auxiliary_s, chip.launch_s + busy)
    return np.where(kind == "free", 0.0, seconds)
