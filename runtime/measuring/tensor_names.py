"""Which operation of an IR gives a tensor that has a name: what a model keeps of the names in the file it came from."""

from __future__ import annotations

from pathlib import Path

import openvino as ov


def producers(xml: Path) -> dict[str, str]:
    """Return {name of a tensor: name of the operation that gives it}.

    A Result gives nothing; its tensor is that of its producer.
    """
    by_name = {}
    for op in ov.Core().read_model(xml).get_ordered_ops():
        if op.get_type_name() != "Result":
            name = op.get_friendly_name()
            by_name.update({tensor: name for output in op.outputs() for tensor in output.get_names()})
    return by_name
