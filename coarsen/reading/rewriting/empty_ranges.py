"""Dynamic quantisation of tensors that are all zeros, such as silence or a black image.

DynamicQuantizeLinear of ONNX divides by the range of its input, max(x, 0) - min(x, 0). Where that is 0, ONNX Runtime
takes the scale 1; OpenVINO reads it as the arithmetic that it is, gives NaN, and loses a bias in steps of the scale.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from openvino import opset13 as opset

from coarsen.reading.model.read import models_within
from coarsen.reading.rewriting.slices import set_name

LEVELS = 255.0  # steps of the quantised input


def guard_empty_ranges(model: Any) -> list[str]:
    """Give empty ranges the scale 1, in a model and its bodies, which are changed; return the names of all ranges."""
    guarded = list[str]()
    for each in models_within(model):
        operations = each.get_ordered_ops()
        taken = {op.get_friendly_name() for op in operations}
        for op in operations:
            if op.get_type_name() != "Subtract" or not (_is_end(op, 0, "Max") and _is_end(op, 1, "Min")):
                continue
            name, kind = op.get_friendly_name(), op.get_output_element_type(0).to_dtype()
            readers = list(op.output(0).get_target_inputs())
            zero = set_name(opset.constant(np.zeros((), kind)), f"{name}/zero", taken)
            levels = set_name(opset.constant(np.full((), LEVELS, kind)), f"{name}/levels", taken)
            empty = set_name(opset.equal(op, zero), f"{name}/empty", taken)
            guard = set_name(opset.select(empty, levels, op), f"{name}/guarded", taken)
            for reader in readers:
                reader.replace_source_output(guard.output(0))
            guarded.append(name)
    model.validate_nodes_and_infer_types()
    return guarded


def without_guard(value: Any) -> Any:
    """Return the range of which a value is the guarded one, itself if it is none."""
    node = value.get_node()
    return node.input_value(2) if node.get_type_name() == "Select" else value


def _is_end(op: Any, port: int, end: str) -> bool:
    """Return whether an input is the greatest, or the least, of the numbers of a tensor and of something else, as 0."""
    node = op.input_value(port).get_node()
    reductions = {value.get_node().get_type_name() for value in node.input_values()}
    return node.get_type_name() == f"{end}imum" and f"Reduce{end}" in reductions
