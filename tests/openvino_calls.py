"""A Core that writes down what it is asked, for devices that no test machine has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openvino as ov

_Core = ov.Core


class RecordingCore:
    """Stands for openvino.Core: reads models as it does, and keeps every call that concerns devices in `calls`."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def register_plugin(self, library: str, name: str) -> None:
        self.calls.append(("register_plugin", library, name))

    def set_property(self, name: str, properties: dict[str, str]) -> None:
        self.calls.append(("set_property", name, properties))

    def read_model(self, path: str | Path) -> ov.Model:
        return _Core().read_model(path)

    def compile_model(self, model: ov.Model, target: str, properties: dict[str, str]) -> RecordingCore:
        where = {op.get_friendly_name(): op.get_rt_info() for op in model.get_ops()}
        affinity = {name: info["affinity"].astype(str) for name, info in where.items() if "affinity" in info}
        self.calls.append(("compile_model", target, properties, affinity))
        return self
