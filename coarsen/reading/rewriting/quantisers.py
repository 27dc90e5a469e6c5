"""Quantisation to fixed scales, written as arithmetic: for runtimes that make wrong integer products of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from openvino import opset13 as opset

from coarsen.reading.rewriting.integer_products import constant_value
from coarsen.reading.rewriting.slices import set_name

LIMITS = 4  # inputs of a FakeQuantize behind the first: what bounds its input, and its output


def spell_out_quantisation(model: Any) -> list[str]:
    """Write every FakeQuantize of constant limits as the arithmetic that it is; return their names.

    It is round((clamp(x) - low) * (levels - 1) / (high - low)) in steps of the output; the last operation keeps the
    name. The others stay: limits that are computed, or the wrong way round.
    """
    operations = model.get_ordered_ops()
    taken, written = {op.get_friendly_name() for op in operations}, list[str]()
    for op in operations:
        if op.get_type_name() != "FakeQuantize":
            continue
        name, kind = op.get_friendly_name(), op.get_output_element_type(0).to_dtype()
        limits = [constant_value(op.input_value(1 + i)) for i in range(LIMITS)]
        known = [np.asarray(limit, np.float64) for limit in limits if limit is not None]
        if len(known) < LIMITS or not (known[1] > known[0]).all():
            continue
        low, high, least, greatest = known
        steps = op.get_attributes()["levels"] - 1

        def constant(values: Any, word: str, name: str = name, kind: Any = kind) -> Any:
            return set_name(opset.constant(values.astype(kind)), f"{name}/{word}", taken)

        x = set_name(opset.maximum(op.input_value(0), constant(low, "low")), f"{name}/above", taken)
        x = set_name(opset.minimum(x, constant(high, "high")), f"{name}/within", taken)
        x = set_name(opset.subtract(x, constant(low, "shift")), f"{name}/shifted", taken)
        x = set_name(opset.multiply(x, constant(steps / (high - low), "per_step")), f"{name}/steps", taken)
        x = set_name(opset.round(x, "half_to_even"), f"{name}/rounded", taken)
        x = set_name(opset.multiply(x, constant((greatest - least) / steps, "step")), f"{name}/scaled", taken)
        taken.discard(name)
        x = set_name(opset.add(x, constant(least, "least")), name, taken)
        x.output(0).set_names(op.output(0).get_names())
        for reader in op.output(0).get_target_inputs():
            reader.replace_source_output(x.output(0))
        written.append(name)
    model.validate_nodes_and_infer_types()
    return written
