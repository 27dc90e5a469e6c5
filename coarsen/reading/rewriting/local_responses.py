"""Local response normalisation with a bias that is no whole number: OpenVINO's CPU device drops the fraction.

x / (b + a s)^c is b^-c x / (1 + (a / b) s)^c, so that the bias 1 is enough.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from openvino import opset13 as opset

from coarsen.reading.model.read import models_within
from coarsen.reading.rewriting.slices import replace_output, set_name

LOCAL_RESPONSE = "LRN"


def take_unit_biases(model: Any) -> list[str]:
    """Give local responses whose bias is no whole number the bias 1 and a factor, in a model and its bodies.

    These are changed; return the names of the operations.
    """
    changed = list[str]()
    for each in models_within(model):
        operations = each.get_ordered_ops()
        taken = {op.get_friendly_name() for op in operations}
        for op in operations:
            if op.get_type_name() != LOCAL_RESPONSE:
                continue
            attributes, name = op.get_attributes(), op.get_friendly_name()
            alpha, beta, bias = (float(attributes[key]) for key in ("alpha", "beta", "bias"))
            if bias.is_integer() or bias < 0:
                continue
            unit = opset.lrn(op.input_value(0), op.input_value(1), alpha / bias, beta, 1.0, attributes["size"])
            kind = op.get_output_element_type(0).to_dtype()
            factor = set_name(opset.constant(np.full((), bias**-beta, kind)), f"{name}/factor", taken)
            scaled = opset.multiply(set_name(unit, f"{name}/unit", taken), factor)
            replace_output(op.output(0), set_name(scaled, f"{name}/scaled", taken).output(0))
            changed.append(name)
    model.validate_nodes_and_infer_types()
    return changed
