"""Numbers outside the range that a placer declares for them are refused, whichever placer it is."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest

from pipeline.core.errors import UsageError
from pipeline.core.params import param
from pipeline.settings import registry
from pipeline.settings.registry import build_implementation


def outside(within: str) -> list[float]:
    """Return numbers that an interval does not hold: beyond its ends, at open ones, and what is no number."""
    least, most = (float(end) for end in within[1:-1].split(","))
    beyond = [least - 1, most + 1, *([least] if within[0] == "(" else []), *([most] if within[-1] == ")" else [])]
    return [*beyond, math.nan]


def numbers() -> list[tuple[str, str, str]]:
    """Return (placer, parameter, range) of all numbers that placers declare."""
    return [
        (name, f.name, f.metadata["within"])
        for name in registry.implementation_table("place")
        for f in fields(build_implementation("place", name))
        if isinstance(f.default, int | float) and not isinstance(f.default, bool)
    ]


def test_a_lower_end_alone_is_a_range():
    assert param(1, "a number", least=1).metadata["within"] == "[1, inf)"
    assert param(1, "a number", within="(0, 1]").metadata["least"] == 0.0


@pytest.mark.parametrize(("placer", "parameter", "within"), numbers())
def test_a_number_out_of_range_is_refused(placer: str, parameter: str, within: str):
    made: Any = type(build_implementation("place", placer))
    for value in outside(within):
        with pytest.raises(UsageError, match=parameter):
            made(**{parameter: value})
