"""Sizes for dimensions that a model leaves open."""

from __future__ import annotations

from typing import Any


def concrete_shape(shape: Any, *sizes: int, front: int = 0) -> list[int]:
    """Return an OpenVINO shape of known rank with every dynamic dimension set, within its bounds.

    sizes: of each but the one at `front`, which becomes 1; several are given in turn, as height and width.
    """
    numbers = []
    others = 0  # dynamic dimensions so far that are not at the front
    for axis, dimension in enumerate(shape):
        if dimension.is_static:
            numbers.append(dimension.get_length())
            continue
        wanted = 1 if axis == front else sizes[others % len(sizes)]
        others += axis != front
        numbers.append(bounded_size(dimension, wanted))
    return numbers


def bounded_size(dimension: Any, wanted: int) -> int:
    """Return the size of an OpenVINO dimension that is nearest to the one that is wanted."""
    upper = dimension.get_max_length()
    return int(max(dimension.get_min_length(), wanted if upper < 0 else min(wanted, upper)))
