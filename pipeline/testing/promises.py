"""What the suites of all stages share: how a broken promise is told, and what every implementation declares."""

from __future__ import annotations

import dataclasses
import json
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import torch

from pipeline.core.params import canonical
from pipeline.progress.interruption import run_interruptible
from pipeline.settings import registry

LIMIT_S = 300.0  # seconds after which an implementation is taken to hang; those that come along take a tenth, at most
SEEN = (
    " What was asked before costs a search nothing, so that its budget may never be spent: end a loop `while not "
    "search.done` after some steps without a placement that is new, too, as with a `patience`."
)

Implementation = TypeVar("Implementation")
Rest = ParamSpec("Rest")
Promise = Callable[Concatenate[Implementation, Rest], None]


def require_promise(kept: bool | np.bool_, implementation: object, fault: str) -> None:
    """Raise AssertionError unless a promise is kept; the message is the implementation and its fault.

    >>> require_promise(False, "Mine()", "has no version")
    Traceback (most recent call last):
    AssertionError: Mine() has no version
    """
    if not kept:
        raise AssertionError(f"{implementation} {fault}")


def promise_that_ends(promise: Promise[Implementation, Rest]) -> Promise[Implementation, Rest]:
    """Return a promise that is broken as well where trying it does not end; where it hangs is told."""

    @wraps(promise)
    def limited(implementation: Implementation, /, *args: Rest.args, **kwargs: Rest.kwargs) -> None:
        thread = 0

        def work(check: Callable[[], None]) -> None:
            nonlocal thread
            thread = threading.get_ident()
            promise(implementation, *args, **kwargs)

        try:
            run_interruptible(work, within_s=LIMIT_S)
        except TimeoutError as error:
            where = _thread_place(implementation, thread)
            hint = SEEN if hasattr(implementation, "place") else ""
            raise AssertionError(f"{implementation} has not ended after {LIMIT_S:g} s{where}.{hint}") from error

    return limited


def _thread_place(implementation: object, thread: int) -> str:
    """Return where a thread is: in the innermost function of the implementation's module, "" if it is in none."""
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_globals.get("__name__") != type(implementation).__module__:
        frame = frame.f_back
    return f"; it is in line {frame.f_lineno} of {frame.f_code.co_filename}" if frame is not None else ""


def check_declaration(implementation: object) -> None:
    """Hold an implementation to what the registry, the help and the cache keys read: version and parameters."""
    cls = type(implementation)
    version = getattr(implementation, "version", None)
    require_promise(
        isinstance(version, int) and version >= 1, implementation, f"has the version {version!r}, not 1 or more"
    )
    declared = getattr(cls, "__dataclass_params__", None)
    require_promise(declared is not None and declared.frozen, implementation, "must be a dataclass(frozen=True)")
    require_promise(
        not hasattr(implementation, "__dict__"),
        implementation,
        "takes misspelt attributes; use dataclass(slots=True), and __slots__ = () in classes it inherits from",
    )
    require_promise(bool((cls.__doc__ or "").strip()), implementation, "has no docstring for `placewright explain`")
    parameters = registry.parameters_of(cls)
    for parameter in parameters:
        require_promise(
            bool(parameter.help), implementation, f"has no help text for {parameter.name}; use param(default, text)"
        )
        require_promise(
            parameter.default is not dataclasses.MISSING, implementation, f"has no default for {parameter.name}"
        )
    values = canonical(implementation)
    named = sorted(values) == sorted(parameter.name for parameter in parameters)
    require_promise(named, implementation, "has a field that is no parameter")
    try:
        json.dumps(values, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"{implementation} has a parameter that JSON cannot hold: {error}") from error


def is_seeded(implementation: object) -> bool:
    """Return whether the answer of an implementation may depend on the seed; it may unless it says `seeded = False`."""
    seeded = getattr(implementation, "seeded", True)
    require_promise(isinstance(seeded, bool), implementation, f"says seeded is {seeded!r}, not True or False")
    return bool(seeded)


@contextmanager
def global_state_unchanged(implementation: object) -> Iterator[None]:
    """Require that the body leaves the generators of Python, NumPy and torch, and torch's threads, as they were."""
    before = _global_state()
    yield
    for what, value in _global_state().items():
        same = bool(np.array_equal(value, before[what]))
        require_promise(same, implementation, f"changes {what}; draw from a generator of its own, seeded with `seed`")


def _global_state() -> dict[str, Any]:
    """Return what belongs to the whole process, and to no implementation."""
    numpy_state: Any = np.random.get_state(legacy=False)  # noqa: NPY002
    return {
        "the generator of `random`": np.array(random.getstate()[1]),
        "the generator of numpy.random": np.append(numpy_state["state"]["key"], numpy_state["state"]["pos"]),
        "torch's generator": torch.get_rng_state().numpy(),
        "torch's number of threads": np.array([torch.get_num_threads()]),
    }
