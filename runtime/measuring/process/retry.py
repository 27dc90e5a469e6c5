"""Trying once more what was disturbed: a process that was killed, took too long, or found no memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pipeline.core.measurement import await_retry
from runtime.measuring.process.child import ChildError

Kind = TypeVar("Kind")


def ask_with_retry(ask: Callable[[], Kind]) -> Kind:
    """Return what `ask` returns; if its process was disturbed, ask once more after a pause.

    Raises:
        ChildError: it failed for good, or twice.
    """
    try:
        return ask()
    except ChildError as error:
        if not error.failed.transient:
            raise
    await_retry()
    return ask()
