"""How kernels are compiled: kept on disk between runs, the interpreter released, division by zero as in numpy.

The one module, beside the kernels themselves, that knows numba's options. Three traps are handled. Numba's cache
watches only the file a function stands in, and would go on using what it merged from another one: the compiled code of
a file lies in a folder named by the hash of that file and of all kernel files it imports instead (`cache_folder`).
Numba counts references to every array of a named tuple each time the tuple is handed on, which costs more than the
work of a small function; functions that allocate nothing can do without (`_nrt`), and small ones are best merged into
their callers. Arrays that may not be written to are another type: each kernel would be compiled twice, so callers hand
over copies.

What a function that takes large tuples costs to compile is mostly the way in from Python, which takes them apart: what
only other kernels call is `inner`, `inlined` or `allocating`, and has none. A kernel's code is compiled again with each
caller's, and with the callers of those: few levels of calls are cheaper than many. Constants in calls, and integers of
32 and of 64 bits, are types of their own, too, for which everything is compiled once more.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import ParamSpec, TypeVar, cast

import numba
from numba.core import event

from pipeline.system.folders import KERNELS, own_cache

P = ParamSpec("P")
R = TypeVar("R")

ROOT = Path(__file__).resolve().parents[2]
# What every file with a kernel says, this one too, and every file with a record that kernels take.
MARKS = ("pipeline.shared.compiled import", "(NamedTuple):")
IMPORT = re.compile(r"^(?:from ([\w.]+) import ([\w, ]+|\((?:[^)]*)\))|import ([\w.]+))", re.MULTILINE)


@cache
def cache_root() -> Path:
    """Return the folder of all compiled code: the environment's own, or the user's where that cannot be written."""
    return own_cache(KERNELS)


def kernel_files(path: Path, root: Path) -> list[Path]:
    """Return a kernel file and all others below `root` whose kernels it imports, sorted."""
    files, front = {path}, [path]
    while front:
        for module, names, plain in IMPORT.findall(front.pop().read_text(encoding="utf-8")):
            full = [module or plain, *(f"{module}.{name.strip(' ()')}" for name in re.split(r"[,\n]", names))]
            for near in (root / (name.replace(".", "/") + ".py") for name in full):
                if near not in files and near.is_file() and any(m in near.read_text(encoding="utf-8") for m in MARKS):
                    files.add(near)
                    front.append(near)
    return sorted(files)


@cache
def kernels_digest(path: Path, root: Path = ROOT) -> str:
    """Return 16 hexadecimal digits that change with a kernel file and with those whose kernels it imports."""
    contents = [hashlib.sha256(p.read_bytes()).digest() for p in kernel_files(path, root)]
    return hashlib.sha256(b"".join(contents)).hexdigest()[:16]


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function of arrays, numbers and named tuples of them, compiled at its first call; it may allocate."""
    return _with_kernel_cache(function)


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Return a compiled function that allocates nothing, and so counts no references; it must return no array."""
    return _with_kernel_cache(function, _nrt=False)


def inner(function: Callable[P, R]) -> Callable[P, R]:
    """Return a kernel that only compiled functions can call; called from Python, it raises TypeError."""
    return _refuse_python_calls(_with_kernel_cache(function, _nrt=False, no_cpython_wrapper=True))


def allocating(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that may allocate, and that only compiled functions can call."""
    return _refuse_python_calls(_with_kernel_cache(function, no_cpython_wrapper=True))


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Return an inner kernel that is merged into the compiled functions that call it."""
    return _refuse_python_calls(_with_kernel_cache(function, _nrt=False, no_cpython_wrapper=True, forceinline=True))


def _refuse_python_calls(function: Callable[P, R]) -> Callable[P, R]:
    """Make calls from Python fail, which would otherwise jump to a way in that was never compiled."""
    dispatcher = cast("numba.core.dispatcher.Dispatcher", function)

    def known(result: numba.core.compiler.CompileResult) -> None:
        dispatcher.overloads[tuple(result.signature.args)] = result  # for callers, but not for the interpreter

    def refused(*_: object) -> None:
        raise TypeError(f"{dispatcher.py_func.__qualname__} can be called by compiled functions only")

    dispatcher.add_overload, dispatcher._compile_for_args = known, refused
    return function


def _with_kernel_cache(function: Callable[P, R], **options: bool) -> Callable[P, R]:
    """Return a compiled function whose code lies in its file's folder, or where NUMBA_CACHE_DIR says if that is set."""
    before = numba.config.CACHE_DIR
    if not os.environ.get("NUMBA_CACHE_DIR"):
        numba.config.CACHE_DIR = str(cache_root() / kernels_digest(Path(function.__code__.co_filename)))
    try:
        return cast(
            "Callable[P, R]",
            numba.njit(cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True, **options)(function),
        )
    finally:
        numba.config.CACHE_DIR = before


class _Compilations(event.Listener):  # type: ignore[misc]
    """Counts functions as their compilation begins."""

    def __init__(self, tell: Callable[[int], None]) -> None:
        self.tell, self.count = tell, 0

    def on_start(self, event: event.Event) -> None:
        self.tell(self.count)
        self.count += 1

    def on_end(self, event: event.Event) -> None:
        pass


@contextmanager
def announce_compiling(tell: Callable[[int], None]) -> Iterator[None]:
    """Tell, whenever the compilation of a function begins, how many were begun before; loading tells nothing."""
    with event.install_listener("numba:compile", _Compilations(tell)):
        yield
