"""A model that computes several independent inferences at once: the first dimension of every input is its batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
from openvino.passes import ConstantFolding, Manager

from runtime.measuring.outputs.outputs import Outputs


def set_batch(model: ov.Model, count: int) -> None:
    """Reshape a model of batch 1, in place, so that it computes so many inferences at once.

    Raises:
        ValueError: it has state, an input or an output whose first dimension is not 1, or one that does not follow.
        RuntimeError: OpenVINO refuses the shapes.
    """
    if model.get_variables():
        raise ValueError("a model with state has no batch to change")
    for port in (*model.inputs, *model.outputs):
        shape = port.get_partial_shape()
        if shape.rank.is_dynamic or len(shape) == 0 or shape[0] != ov.Dimension(1):
            raise ValueError(f"{_port_name(port)} has no first dimension of 1 to be the batch: {shape}")
    model.reshape({port: ov.PartialShape([count, *list(port.get_partial_shape())[1:]]) for port in model.inputs})
    for port in model.outputs:
        if port.get_partial_shape()[0] != ov.Dimension(count):
            raise ValueError(f"the batch does not reach {_port_name(port)}: {port.get_partial_shape()}")


def repeat_outputs(outputs: Outputs, count: int) -> Outputs:
    """Return the outputs of so many equal inferences at once."""
    return {name: np.repeat(array, count, axis=0) for name, array in outputs.items()} if count > 1 else outputs


def save_batched(source: Path, target: Path, count: int) -> list[str]:
    """Write an IR that computes so many inferences at once, in the place of a model of batch 1; return its operations.

    They need not be those of the model: shapes that are constants for a batch of 1 are computed again.
    """
    model = ov.Core().read_model(source)
    set_batch(model, count)
    manager = Manager()
    manager.register_pass(ConstantFolding())
    manager.run_passes(model)
    ov.save_model(model, target, compress_to_fp16=False)
    return [op.get_friendly_name() for op in ov.Core().read_model(target).get_ordered_ops()]


def _port_name(port: ov.Output) -> str:
    return (
        f"{'output' if port.get_node().get_type_name() == 'Result' else 'input'} {port.get_node().get_friendly_name()}"
    )
