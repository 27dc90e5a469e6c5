"""Parameters of tests of which some run with `make test-slow` alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def slow_but(values: Iterable[Any], *, quick: int) -> list[Any]:
    """Return the values as parameters, all but the first few marked slow."""
    return [pytest.param(value, marks=() if i < quick else pytest.mark.slow) for i, value in enumerate(values)]


def slow_where(values: Iterable[Any], slow: Collection[Any]) -> list[Any]:
    """Return the values as parameters, those of a collection marked slow."""
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow if value in slow else ()
        )
        for value in values
    ]
