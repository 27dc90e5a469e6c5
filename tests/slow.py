"""Parameters of tests of which some run with `make test-slow` alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(values: Iterable[Any], *, quick: int) -> list[Any]:
    """Return the values as parameters, all but the first few marked slow."""
    return [pytest.param(value, marks=() if i < quick else pytest.mark.slow) for i, value in enumerate(values)]
