"""Where ONNX Runtime runs an ONNX file: to which provider it gave each node, and what its profile says they take.

locate {onnx, target, model, seed, dynamic_size, seconds, minimum} -> see
`runtime.measuring.process.locate_operations.locate_operations`
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from runtime.executor.onnx_session import assigned, session_of
from runtime.measuring.outputs.inputs import inputs_of
from runtime.measuring.process.onnx_executable import ports_of

KERNEL = "_kernel_time"  # behind a node's name in the profile


def locate_by_onnxruntime(command: Mapping[str, Any]) -> dict[str, Any]:
    """Run an ONNX file with ONNX Runtime's profile on; return who ran which of its nodes, as `locate` does.

    operations are those that ONNX Runtime gave to providers, once it had folded constants; nodes those of its profile,
    some of which it has made of several.
    """
    path, size = Path(command["model"]), command["dynamic_size"]
    model = ov.Core().read_model(path)
    arrays = inputs_of(model, path, seed=command["seed"], dynamic_size=size)
    with tempfile.TemporaryDirectory(prefix="placewright-") as folder:
        source, options = Path(command["onnx"]["source"]), command["onnx"]["options"]
        session = session_of(source, options, command["target"].split(","), profile=str(Path(folder) / "profile"))
        given = {node.name: (provider, node.op_type) for provider, nodes in assigned(session).items() for node in nodes}
        inputs, outputs = ports_of(session, model)
        feed = {name: arrays[place] for name, place in inputs.items()}
        session.run(outputs, feed)
        samples: list[float] = []
        end = time.perf_counter() + command["seconds"]
        while time.perf_counter() < end or len(samples) < command["minimum"]:
            begun = time.perf_counter()
            session.run(outputs, feed)
            samples.append(time.perf_counter() - begun)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    seconds: dict[str, float] = {}
    told: dict[str, Mapping[str, Any]] = {}
    for event in _outermost(events):
        name = event["name"].removesuffix(KERNEL)
        seconds[name] = seconds.get(name, 0.0) + event["dur"] * 1e-6 / (len(samples) + 1)
        told[name] = event["args"]
    operations = [[name, kind, False] for name, (_, kind) in given.items()]
    nodes = [_node(name, args, seconds[name], known=name in given) for name, args in told.items()]
    providers = {name: provider for name, (provider, _) in given.items()}
    return {
        "operations": operations,
        "nodes": nodes,
        "executed_on": list(dict.fromkeys(providers.values())),
        "assigned": providers | {name: args["provider"] for name, args in told.items()},
        "refused": {},
        "latency_s": float(np.median(samples)),
        "mean_s": float(np.mean(samples)),
    }


def _outermost(events: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield what a profile says of nodes, those in the body of another left out: the other's time holds theirs."""
    ends: dict[int, float] = {}
    kernels = [e for e in events if e.get("cat") == "Node" and e["name"].endswith(KERNEL)]
    for event in sorted(kernels, key=lambda e: (e["ts"], -e["dur"])):
        if event["ts"] >= ends.get(event["tid"], 0.0):
            ends[event["tid"]] = event["ts"] + event["dur"]
            yield event


def _node(name: str, args: Mapping[str, Any], seconds: float, *, known: bool) -> dict[str, Any]:
    """Return a node of the profile as JSON values; known: whether it is one of the model's."""
    return {
        "name": name,
        "operations": [name] if known else [],
        "type": args["op_name"],
        "kernel": "",
        "precision": "",
        "seconds": seconds,
        "executed": True,
        "part": None,
    }
