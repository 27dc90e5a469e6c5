"""Checks that the data types run on their arrays when they are made."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

Whole = TypeVar("Whole", np.int32, np.int64)


def frozen(value: npt.ArrayLike, dtype: type[np.generic], shape: tuple[int | None, ...], name: str) -> npt.NDArray[Any]:
    """Return `value` as a read-only array of `dtype` and `shape` (None: any length), or raise ValueError."""
    array = np.array(value, dtype=dtype, copy=None)
    if array.flags.writeable:
        array = array.copy()
    if array.ndim != len(shape) or any(s is not None and s != a for s, a in zip(shape, array.shape, strict=True)):
        raise ValueError(f"{name} must have shape {shape}, has {array.shape}")
    array.flags.writeable = False
    return array


def distinct(values: npt.NDArray[Whole]) -> npt.NDArray[Whole]:
    """Return the different ones among whole numbers [n], in rising order.

    `np.unique` of numpy 2.3 and later hashes them, which takes 80 times as long where almost all of a million differ.

    >>> distinct(np.array([3, 1, 3])).tolist()
    [1, 3]
    """
    rising = np.sort(values)
    fresh = np.ones(rising.size, np.bool_)
    np.not_equal(rising[1:], rising[:-1], out=fresh[1:])
    return rising[fresh]


def frozen_indices(value: npt.ArrayLike, shape: tuple[int | None, ...], upper: int, name: str, lower: int = 0) -> Int32:
    """Return `value` as read-only int32 whose entries lie in [lower, upper), or raise ValueError."""
    array: Int32 = frozen(value, np.int32, shape, name)
    if array.size and (array.min() < lower or array.max() >= upper):
        raise ValueError(f"{name} must lie in [{lower}, {upper}), has {array.min()}..{array.max()}")
    return array
