"""Where a compiled model really runs: what its execution graph, its counters and its devices say of every operation.

locate {model, devices, target, properties, affinity, seed, dynamic_size, seconds, minimum} -> see `locate_operations`
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from pipeline.core.devices import DeviceSpec
from runtime.machines.devices import core_for
from runtime.measuring.outputs.inputs import inputs_of
from runtime.measuring.process.affinity import set_affinities
from runtime.measuring.process.onnx_located import locate_by_onnxruntime

_PART = re.compile(r"^subgraph(\d+): (.*)$", re.DOTALL)
COUNTERS: Mapping[str, str] = {"PERF_COUNT": "YES"}
# What stands for a kernel where a node has none. The counters are no guide to that: in whole microseconds, they say of
# whatever takes less that it did not run.
NO_KERNEL = ("unknown", "undef")


def locate_operations(command: Mapping[str, Any]) -> dict[str, Any]:
    """Compile and run a model; return who ran which of its operations.

    operations: [[name, type, whether it is computed from constants alone], ...] in order. nodes: of the execution
    graph, each with its `name`, the `operations` of the model that it runs, `type`, `kernel`, `precision`, its mean
    `seconds`, whether it is `executed`, and the number of the sub-model it is `part` of, null where the counters do
    not name it. executed_on: devices. assigned: {operation: device} that HETERO goes by, from affinities or its own
    query; {} unless it is HETERO. refused: {device: operations}, of several devices. latency_s, mean_s: median and mean
    of an inference.
    """
    if command.get("onnx"):
        return locate_by_onnxruntime(command)
    devices = [DeviceSpec(**d) for d in command["devices"]]
    core = core_for(devices)
    model = core.read_model(command["model"])
    hetero = command["target"].startswith("HETERO")
    refused = (
        {d.openvino_name: _refused_operations(core, model, d.openvino_name) for d in devices}
        if len(devices) > 1
        else {}
    )
    assigned = command["affinity"] or (dict(core.query_model(model, command["target"])) if hetero else {})
    if command["affinity"]:
        set_affinities(model, command["affinity"])
    constant = constant_operations(model)
    operations = [
        [op.get_friendly_name(), op.get_type_name(), op.get_friendly_name() in constant] for op in _operations_of(model)
    ]
    compiled = core.compile_model(model, command["target"], {**command["properties"], **COUNTERS})
    request = compiled.create_infer_request()
    path, size = Path(command["model"]), command["dynamic_size"]
    inputs = inputs_of(model, path, seed=command["seed"], dynamic_size=size)
    for port, value in zip(compiled.inputs, inputs, strict=True):
        request.set_tensor(port, ov.Tensor(value))
    samples = _time_inferences(request, command["seconds"], command["minimum"], stateful=bool(model.get_variables()))
    return {
        "operations": operations,
        "nodes": nodes_of(compiled, request, {name for name, *_ in operations}),
        "executed_on": list(compiled.get_property("EXECUTION_DEVICES")),
        "assigned": assigned,
        "refused": refused,
        "latency_s": float(np.median(samples)),
        "mean_s": float(np.mean(samples)),
    }


def constant_operations(model: ov.Model) -> set[str]:
    """Return the names of the operations that are computed from constants alone, Constants among them."""
    names: set[str] = set()
    for op in model.get_ordered_ops():
        inputs = [value.get_node().get_friendly_name() for value in op.input_values()]
        steady = op.get_type_name() == "Constant" or (bool(inputs) and names.issuperset(inputs))
        if steady and op.get_type_name() not in ("Result", "ReadValue", "Assign"):
            names.add(op.get_friendly_name())
    return names


def nodes_of(compiled: ov.CompiledModel, request: ov.InferRequest, known: set[str]) -> list[dict[str, Any]]:
    """Return what the execution graph holds, joined by name with what the counters of a request say.

    A device that shows no execution graph is told by its counters alone, whose nodes are named as operations are.
    """
    counters = {}
    for entry in request.get_profiling_info():
        match = _PART.match(entry.node_name)
        name, part = (match[2], int(match[1])) if match else (entry.node_name, 0)
        counters[name] = (entry, part)
    try:
        graph: Sequence[Any] = compiled.get_runtime_model().get_ordered_ops()
    except RuntimeError:  # what the NPU's plug-in says to that
        return [
            _node_record(name, [name] if name in known else [], entry.node_type, entry.exec_type, "", (entry, part))
            for name, (entry, part) in counters.items()
        ]
    nodes = []
    for op in graph:
        info = {key: value.astype(str) for key, value in op.get_rt_info().items()}
        name = _PART.sub(r"\2", op.get_friendly_name())
        originals = names_in(info.get("originalLayersNames", ""), known)
        kind, kernel = info.get("layerType", op.get_type_name()), info.get("primitiveType", "")
        nodes.append(_node_record(name, originals, kind, kernel, info.get("runtimePrecision", ""), counters.get(name)))
    return nodes


def names_in(text: str, known: Collection[str]) -> list[str]:
    """Return the known names in a list that is separated by commas, which names may hold, too.

    >>> names_in("a,b,c,reorder,d", {"a", "b,c", "d"})
    ['a', 'b,c', 'd']
    """
    names, pending = [], ""
    for piece in text.split(","):
        pending = f"{pending},{piece}" if pending else piece
        whole = next((name for name in (pending, piece) if name in known), None)
        if whole is not None:
            names.append(whole)
            pending = ""
    return names


def _node_record(
    name: str, operations: list[str], kind: str, kernel: str, precision: str, counted: tuple[Any, int] | None
) -> dict[str, Any]:
    """Return one node as JSON values; counted: its counter and the number of its sub-model."""
    entry, part = counted if counted is not None else (None, None)
    counted_run = entry is not None and entry.status == ov.ProfilingInfo.Status.EXECUTED
    return {
        "name": name,
        "operations": operations,
        "type": kind,
        "kernel": kernel,
        "precision": precision,
        "seconds": 0.0 if entry is None else entry.real_time.total_seconds(),
        "executed": counted_run or (bool(kernel) and not kernel.startswith(NO_KERNEL)),
        "part": part,
    }


def _operations_of(model: ov.Model) -> Sequence[ov.Node]:
    ops: Sequence[ov.Node] = model.get_ordered_ops()
    return ops


def _refused_operations(core: ov.Core, model: ov.Model, device: str) -> list[str]:
    """Return the operations that a device does not run."""
    taken = core.query_model(model, device)
    return [op.get_friendly_name() for op in _operations_of(model) if op.get_friendly_name() not in taken]


def _time_inferences(request: ov.InferRequest, seconds: float, minimum: int, *, stateful: bool) -> list[float]:
    """Run inferences for so many seconds, at least `minimum`; return what each took."""
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(samples) < minimum:
        if stateful:
            request.reset_state()
        start = time.perf_counter()
        request.infer()
        samples.append(time.perf_counter() - start)
    return samples
