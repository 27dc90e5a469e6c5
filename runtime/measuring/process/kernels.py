"""Which kernels a compiled model runs, for which operations, and how long each takes."""

from __future__ import annotations

import re
from typing import Any

import openvino as ov

# What takes weights, as the CPU plug-in calls its kernels; all else costs little, in whatever precision.
WEIGHTED = frozenset({"Convolution", "Deconvolution", "FullyConnected", "MatMul"})
RESCALED = "_original"  # ends the name of a kernel behind which the plug-in has put the scale of its result
_SUBGRAPH = re.compile(r"^subgraph\d+: ")


def kernel_groups(model: ov.Model, compiled: ov.CompiledModel) -> list[list[str]]:
    """Return, for every kernel of the compiled model, the names of the model's operations that it runs."""
    known = {op.get_friendly_name() for op in model.get_ops()}
    groups = (_original_operations(op, known) for op in compiled.get_runtime_model().get_ordered_ops())
    return [names for names in groups if names]


def kernel_times(model: ov.Model, compiled: ov.CompiledModel, request: ov.InferRequest) -> dict[str, Any]:
    """Return {"kernels": [[operation names, seconds], ...], "unmapped_s": seconds charged to a neighbour}.

    The counters are means over all inferences since compilation. A kernel that stands for no operation of the model
    (a layout change, a part of a decomposed operation) is charged to the nearest kernel before it, or else after it,
    that does; what has no such neighbour is left in "unmapped_s" alone.
    """
    known = {op.get_friendly_name() for op in model.get_ops()}
    seconds = {_SUBGRAPH.sub("", p.node_name): p.real_time.total_seconds() for p in request.get_profiling_info()}
    nodes = compiled.get_runtime_model().get_ordered_ops()
    name_of = [_SUBGRAPH.sub("", op.get_friendly_name()) for op in nodes]
    position = {op.get_friendly_name(): i for i, op in enumerate(nodes)}
    before = [[position[i.get_node().get_friendly_name()] for i in op.input_values()] for op in nodes]
    after: list[list[int]] = [[] for _ in nodes]
    for i, producers in enumerate(before):
        for producer in producers:
            after[producer].append(i)
    originals = [_original_operations(op, known) for op in nodes]
    total = [0.0] * len(nodes)
    unmapped_s = 0.0
    for i, name in enumerate(name_of):
        spent = seconds.get(name, 0.0)
        home = i if originals[i] else _nearest_owner(i, before, originals)
        home = _nearest_owner(i, after, originals) if home is None else home
        if not originals[i]:
            unmapped_s += spent
        if home is not None:
            total[home] += spent
    return {
        "kernels": [[names, t] for names, t in zip(originals, total, strict=True) if names],
        "unmapped_s": unmapped_s,
    }


def int8_kernels(compiled: ov.CompiledModel) -> list[str]:
    """Return the names of the convolutions and matrix products that the compiled model computes in int8."""
    names = []
    for op in compiled.get_runtime_model().get_ordered_ops():
        info = op.get_rt_info()
        if info["layerType"].astype(str) in WEIGHTED and info["runtimePrecision"].astype(str) in ("i8", "u8"):
            names.append(_SUBGRAPH.sub("", op.get_friendly_name()).removesuffix(RESCALED))
    return names


def _original_operations(op: ov.Node, known: set[str]) -> list[str]:
    """Return the operations of the model that one node of the runtime model executes."""
    info = op.get_rt_info()
    if "originalLayersNames" not in info:
        return []
    return [name for name in info["originalLayersNames"].astype(str).split(",") if name in known]


def _nearest_owner(start: int, neighbours: list[list[int]], originals: list[list[str]]) -> int | None:
    """Return the closest node with operations of its own, searched breadth first along `neighbours`."""
    front, seen = [start], {start}
    while front:
        following: list[int] = []
        for i in front:
            for j in neighbours[i]:
                if originals[j]:
                    return j
                if j not in seen:
                    seen.add(j)
                    following.append(j)
        front = following
    return None
