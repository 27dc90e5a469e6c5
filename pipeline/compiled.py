"""How kernels are compiled: one decorator, so that all of them are cached between runs and release the interpreter.

The one module, beside the kernels themselves, that knows numba's options.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import numba

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function compiled to machine code at its first call; the code is kept on disk for later runs.

    It must be a function of arrays, numbers and named tuples of them. Division by zero gives inf or nan as in numpy.
    """
    return cast("Callable[P, R]", numba.njit(cache=True, nogil=True, error_model="numpy")(function))
