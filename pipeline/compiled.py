"""How kernels are compiled: cached on disk between runs, the interpreter released, division by zero as in numpy.

The one module, beside the kernels themselves, that knows numba's options. Numba counts references to every array of
a named tuple each time the tuple is handed on, which costs more than the work of a small function; functions that
allocate nothing can do without (`_nrt`), and small ones are best merged into their callers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import numba

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function of arrays, numbers and named tuples of them, compiled at its first call; it may allocate."""
    return cast("Callable[P, R]", numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Return a compiled function that allocates nothing, and so counts no references."""
    return cast("Callable[P, R]", numba.njit(cache=True, nogil=True, error_model="numpy", _nrt=False)(function))


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Return a compiled function that allocates nothing and is merged into the compiled functions that call it."""
    options = {"cache": True, "nogil": True, "error_model": "numpy", "_nrt": False, "forceinline": True}
    return cast("Callable[P, R]", numba.njit(**options)(function))
