"""Sizes for dimensions that a model leaves open."""

from __future__ import annotations

from typing import Any


def sized(shape: Any, size: int, *, front: int = 0) -> list[int]:
    """Return an OpenVINO shape of known rank with every dynamic dimension set, within its bounds.

    size: of each but the one at `front`, which becomes 1.
    """
    sizes = []
    for axis, dimension in enumerate(shape):
        if dimension.is_static:
            sizes.append(dimension.get_length())
            continue
        wanted = 1 if axis == front else size
        upper = dimension.get_max_length()
        sizes.append(max(dimension.get_min_length(), wanted if upper < 0 else min(wanted, upper)))
    return sizes
