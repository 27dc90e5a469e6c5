"""Results of operations made outputs of an OpenVINO model. Nothing here imports OpenVINO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def expose_ports(model: Any, ports: Sequence[Any]) -> list[int]:
    """Make outputs of operations outputs of a model, behind those that it has; return the place of each among them.

    What is an output already stays where it is.
    """
    if ports:
        model.add_outputs(list(ports))
    places = {_output_key(result.input_value(0)): i for i, result in enumerate(model.get_results())}
    return [places[_output_key(port)] for port in ports]


def _output_key(port: Any) -> tuple[str, int]:
    """Return what tells an output of an operation apart: OpenVINO's own name of the operation, which is unique."""
    return port.get_node().get_name(), port.get_index()
