"""Tensors of an IR by the names that it keeps of the file it came from: what gives them, and inputs' shapes."""

from __future__ import annotations

from pathlib import Path

import openvino as ov


def producers_of_tensors(xml: Path) -> dict[str, str]:
    """Return {name of a tensor: name of the operation that gives it}.

    A Result gives nothing; its tensor is that of its producer.
    """
    by_name = {}
    for op in ov.Core().read_model(xml).get_ordered_ops():
        if op.get_type_name() != "Result":
            name = op.get_friendly_name()
            by_name.update({tensor: name for output in op.outputs() for tensor in output.get_names()})
    return by_name


def input_shapes(xml: Path) -> dict[str, list[int]]:
    """Return {name of an input: its sizes}, under each of its names; a dimension that is open has its least size."""
    return {
        name: [size.get_min_length() for size in port.get_partial_shape()]
        for port in ov.Core().read_model(xml).inputs
        for name in sorted(port.get_names())
    }
