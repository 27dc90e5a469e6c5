"""Inferences of a model with the sizes that were found for it: not every fault of a shape shows before."""

from __future__ import annotations

import logging
from typing import Any

import openvino as ov

from coarsen.reading.files import RUNNING
from pipeline.shared.model_inputs import make_inputs
from pipeline.shared.runtime_words import in_words

DEVICE = "CPU"
logger = logging.getLogger(__name__)
PROPERTIES = {"INFERENCE_PRECISION_HINT": "f32"}


def refusal(model: Any, *, dynamic_size: int = 1, inferences: int = 1) -> str:
    """Return in words why a model does not run on the CPU; "" if it does.

    dynamic_size: of dimensions that are open, but the first. inferences: one after another, each of which finds the
    state that the one before has left.
    """
    arrays = make_inputs(model, seed=0, dynamic_size=dynamic_size)
    logger.info("%s %s", RUNNING, ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items()))
    try:
        request = ov.Core().compile_model(model, DEVICE, PROPERTIES).create_infer_request()
        for port, array in zip(model.inputs, arrays.values(), strict=True):
            request.set_tensor(port, ov.Tensor(array))
        for _ in range(inferences):
            request.infer()
    except RuntimeError as error:
        return in_words(str(error))
    return ""
