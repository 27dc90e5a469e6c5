"""Every registered placer keeps the promises of `pipeline.testing.placers`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pipeline.core.stages import Placer
from pipeline.settings.registry import build_implementation, implementation_table
from pipeline.testing.placers import PROMISES
from pipeline.testing.simulated import SIMULATED_PROMISES
from tests.slow import slow_where

Promise = Callable[[Placer], None]
NAMES = sorted(implementation_table("place"))
QUICK = {
    "hsdag_paper": {"episodes": 5},
    "hsdag_released": {"episodes": 5},
    "gdp": {"width": 8, "inner": 8, "heads": 2, "minibatches": 1, "epochs": 1, "patience": 2},
    "sgdp": {"width": 8, "epochs": 1, "patience": 2},
    "hdp": {"hidden": 16, "groups": 8},
    "rnn": {"hidden": 16, "groups": 8},
}  # they learn on after the last new placement, or are wide
PUBLISHED = ("hsdag_paper", "hsdag_released")  # take seconds a search


def claim(promise: Promise) -> str:
    return promise.__name__.removeprefix("check_")


@pytest.mark.parametrize("promise", PROMISES, ids=claim)
@pytest.mark.parametrize("name", slow_where(NAMES, PUBLISHED))
def test_a_placer_keeps_its_promises(name: str, promise: Promise):
    promise(build_implementation("place", name, QUICK.get(name)))


@pytest.mark.parametrize("promise", SIMULATED_PROMISES, ids=claim)
@pytest.mark.parametrize("name", slow_where(NAMES, PUBLISHED))
def test_a_placer_keeps_its_promises_on_simulators(name: str, promise: Promise):
    promise(build_implementation("place", name, QUICK.get(name)))
