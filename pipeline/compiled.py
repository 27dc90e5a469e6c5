"""How kernels are compiled: kept on disk between runs, the interpreter released, division by zero as in numpy.

The one module, beside the kernels themselves, that knows numba's options. Three traps are handled. Numba's cache
watches only the file a function stands in, and would go on using what it merged from another one: the cached code
lies in a folder named by the hash of all kernel files instead, below the user's cache folder, or in NUMBA_CACHE_DIR
as it stands where that is set. Numba counts references to every array of
a named tuple each time the tuple is handed on, which costs more than the work of a small function; functions that
allocate nothing can do without (`_nrt`), and small ones are best merged into their callers. Arrays that may not be
written to are another type: each kernel would be compiled twice, so callers hand over copies.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar, cast

import numba
import platformdirs

P = ParamSpec("P")
R = TypeVar("R")

FOLDERS = ("pipeline", "coarsen", "embed", "policy", "runtime")
MARK = b"pipeline.compiled import"  # what every file with a kernel says


def kernels_digest(root: Path) -> str:
    """Return 16 hexadecimal digits that change with any file below our packages that holds a kernel."""
    found = hashlib.sha256()
    for path in sorted(p for folder in FOLDERS for p in (root / folder).rglob("*.py")):
        content = path.read_bytes()
        if MARK in content:
            found.update(hashlib.sha256(content).digest())
    return found.hexdigest()[:16]


if not os.environ.get("NUMBA_CACHE_DIR"):
    _ROOT = Path(__file__).resolve().parent.parent
    numba.config.CACHE_DIR = str(Path(platformdirs.user_cache_dir("placewright")) / "kernels" / kernels_digest(_ROOT))


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
