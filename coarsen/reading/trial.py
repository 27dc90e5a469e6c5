"""One inference of a model with the sizes that were found for it: not every fault of a shape shows before."""

from __future__ import annotations

from typing import Any

import openvino as ov

from pipeline.shared.model_inputs import make_inputs
from pipeline.shared.runtime_words import in_words

DEVICE = "CPU"
PROPERTIES = {"INFERENCE_PRECISION_HINT": "f32"}


def refusal(model: Any, *, dynamic_size: int = 1) -> str:
    """Return in words why a model does not run on the CPU; "" if it does.

    dynamic_size: of dimensions that are open, but the first.
    """
    arrays = make_inputs(model, seed=0, dynamic_size=dynamic_size)
    try:
        request = ov.Core().compile_model(model, DEVICE, PROPERTIES).create_infer_request()
        for port, array in zip(model.inputs, arrays.values(), strict=True):
            request.set_tensor(port, ov.Tensor(array))
        request.infer()
    except RuntimeError as error:
        return in_words(str(error))
    return ""
