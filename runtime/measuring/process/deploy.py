"""Compiles a placed model from the two files that a run leaves behind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import openvino as ov

from runtime.machines.devices import core_for, registered_device
from runtime.measuring.process.affinity import set_affinities


def compile_placed(model: Path, document: Mapping[str, Any]) -> ov.CompiledModel:
    """Return the compiled model; document: the content of placement.json.

    A placement without operations leaves the choice to the target, AUTO or HETERO on its own.

    Raises:
        UsageError: the placement does not name every operation of the model.
    """
    devices = [
        registered_device(name, d["plugin"], d["openvino_name"], d["properties"])
        for name, d in document["devices"].items()
    ]
    core = core_for(devices)
    placed = core.read_model(model)
    if document["target"].startswith("HETERO") and document["placement"]:
        known = {d.name: d.openvino_name for d in devices}
        set_affinities(placed, {op: known[device] for op, device in document["placement"].items()})
    return core.compile_model(placed, document["target"], dict(document["properties"]))
