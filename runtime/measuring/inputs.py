"""Inputs for measuring and comparing: drawn from a seed, equal in every process."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import openvino as ov

from pipeline.core.errors import ModelError
from pipeline.shared.sizes import sized


def make_inputs(ports: Sequence[ov.Output], *, seed: int, dynamic_size: int) -> list[npt.NDArray[np.generic]]:
    """Return one array per port: standard normal for floating point, 0 or 1 for integers and booleans.

    Integers stay in {0, 1} because they are most often indices into tables of unknown length, or masks. A dynamic
    first dimension becomes 1, every other dynamic dimension `dynamic_size` within its bounds.
    """
    rng = np.random.default_rng(seed)
    arrays: list[npt.NDArray[np.generic]] = []
    for port in ports:
        shape = concrete_shape(port.get_partial_shape(), dynamic_size=dynamic_size, name=port.get_any_name())
        dtype = np.dtype(port.get_element_type().to_dtype())
        if dtype.kind == "f":
            arrays.append(rng.standard_normal(shape).astype(dtype))
        else:
            arrays.append(rng.integers(0, 2, shape).astype(dtype))
    return arrays


def concrete_shape(shape: ov.PartialShape, *, dynamic_size: int, name: str) -> tuple[int, ...]:
    """Return a shape without dynamic dimensions.

    Raises:
        ModelError: not even the rank is known.
    """
    if shape.rank.is_dynamic:
        raise ModelError(f"The input {name!r} has no known rank.", "Give the model fixed input shapes first.")
    return tuple(sized(shape, dynamic_size))
