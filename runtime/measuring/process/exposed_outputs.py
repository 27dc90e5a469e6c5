"""Results of single operations of a model as a device runs it: they are made outputs, and the model is compiled anew.

results {variant, checks, operations, paths} -> see `write_results`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import openvino as ov

from pipeline.core.devices import DeviceSpec
from pipeline.core.errors import ModelError
from pipeline.shared.checks import OUTPUTS, load_by_kind, save_by_kind
from pipeline.shared.model_inputs import input_name
from pipeline.shared.model_outputs import expose_ports
from runtime.machines.devices import core_for
from runtime.measuring.process.executable import CompiledExecutable


def write_results(command: Mapping[str, Any]) -> dict[str, Any]:
    """Compile a model in which operations are outputs as well, and write what an inference gives.

    checks: the file of inputs by kind. operations: names; those that the model does not have are left out, and so are
    outputs that nobody takes. paths: {kind of inputs: file}, which gets the outputs of the model under the kind
    `OUTPUTS`, and under "0", "1" .. that output of operations, by name. A model with state begins a sequence.

    The answer has `precisions` as a loaded variant's has, and `producers`: {output: the operation that gives it}.
    """
    devices = [DeviceSpec(**d) for d in command["devices"]]
    core = core_for(devices)
    model = core.read_model(command["model"])
    producers = {f"output_{i}": _producer_name(result) for i, result in enumerate(model.get_results())}
    ports = taken_outputs(model, command["operations"])
    places = dict(zip(ports, expose_ports(model, list(ports.values())), strict=True))
    affinity = command["affinity"]
    if affinity:
        affinity = affinity | {r.get_friendly_name(): affinity[_producer_name(r)] for r in model.get_results()}
    compiled = CompiledExecutable.of({**command, "affinity": affinity, "cache": "", "requests": 1}, model, core)
    checks = load_by_kind(Path(command["checks"]))
    for kind, path in command["paths"].items():
        compiled.load(_inputs_of(model, checks[kind]))
        compiled.reset()
        compiled.infer()
        found = compiled.outputs()
        written: dict[str, dict[str, Any]] = {OUTPUTS: {name: found[i] for i, name in enumerate(producers)}}
        for (name, port), place in places.items():
            written.setdefault(str(port), {})[name] = found[place]
        save_by_kind(Path(path), written)
    return {"precisions": compiled.describe()["precisions"], "producers": producers}


def taken_outputs(model: ov.Model, operations: Sequence[str]) -> dict[tuple[str, int], ov.Output]:
    """Return the outputs that somebody takes of those operations that a model has, by operation and number."""
    known = {op.get_friendly_name(): op for op in model.get_ordered_ops()}
    return {
        (name, port): output
        for name in operations
        if name in known
        for port, output in enumerate(known[name].outputs())
        if output.get_target_inputs()
    }


def _producer_name(result: Any) -> str:
    return str(result.input_value(0).get_node().get_friendly_name())


def _inputs_of(model: ov.Model, arrays: Mapping[str, Any]) -> list[Any]:
    """Return one array per input of a model, in order.

    Raises:
        ModelError: there is none for some input.
    """
    missing = [name for name in map(input_name, model.inputs) if name not in arrays]
    if missing:
        raise ModelError(f"There is no array for the input {missing[0]}; there are {', '.join(arrays)}.")
    return [arrays[input_name(port)] for port in model.inputs]
