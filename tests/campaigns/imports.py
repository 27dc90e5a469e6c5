"""Importing once what many forks need."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Sequence


def import_again(names: Sequence[str]) -> None:
    """Import what a fork has imported, so that the next need not: that takes most of a short command's time."""
    for name in names:
        if name not in sys.modules and not name.startswith(("__", "tests.")):
            with contextlib.suppress(ImportError, AttributeError):  # made by another module, not found by its name
                importlib.import_module(name)
