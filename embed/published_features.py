"""Features as the HSDAG paper writes them, where ours differ so that every graph has the same columns.

Source: Duan et al., "A structure-aware framework for learning device placements on computation graphs", NeurIPS 2024,
section 2.
"""

from __future__ import annotations

import numpy as np

from pipeline.core.arrays import Float64
from pipeline.core.graph import Graph

POSITION_DIMS = 8
POSITION_BASE = 1000.0

Block = tuple[tuple[str, ...], Float64]
"""Columns that belong together: their names and their values, float64 [k, columns]."""


def degree_values(quotient: Graph) -> Block:
    """Return in-degree and out-degree, one-hot over the values that occur."""
    sides = {"in": quotient.in_degree, "out": quotient.out_degree}
    occurring = {side: np.unique(degree) for side, degree in sides.items()}
    names = tuple(f"{side}={d}" for side, values in occurring.items() for d in values)
    return names, np.concatenate([sides[side][:, None] == values for side, values in occurring.items()], axis=1)


def dims(quotient: Graph) -> Block:
    """Return the dimensions, zero-padded to the most that an operation has."""
    length = np.diff(quotient.shape_ptr)
    dims = np.zeros((quotient.n, int(length.max(initial=0))))
    dims[np.arange(dims.shape[1]) < length[:, None]] = np.maximum(quotient.shape_dim, 0)
    return tuple(f"dim:{i}" for i in range(dims.shape[1])), dims


def sines(position: Float64) -> Block:
    """Return the sines and cosines of float64 [k] positions, of POSITION_DIMS / 2 wave lengths each."""
    half = POSITION_DIMS // 2
    angle = position[:, None] / POSITION_BASE ** (np.arange(half) * 2 / POSITION_DIMS)
    names = (*(f"sin:{i}" for i in range(half)), *(f"cos:{i}" for i in range(half)))
    return names, np.concatenate([np.sin(angle), np.cos(angle)], axis=1)
