"""Starts of a gate, where what every turn takes is known."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from pipeline.gate.environments import Environment
from pipeline.gate.starts import AFTER, BEFORE, GateSide, GateStart, MeasuredStarts, order_of_sides
from runtime.measuring.contest.statistics import TWIN

ALONE_S = 0.01  # what an inference takes in a process that ran last


@dataclass
class Machine:
    """A machine on which a process is slower by half for every turn that it stood still. turns: who had one."""

    turns: list[int] = field(default_factory=list)
    processes: int = 0


@dataclass
class FakeEnvironment:
    """An environment whose processes take so many times as long as others."""

    machine: Machine
    factor: float = 1.0

    def start(self) -> FakeChild:
        """Return a process."""
        self.machine.processes += 1
        return FakeChild(self.machine, self.factor, self.machine.processes)

    def begin(self, child: FakeChild) -> None:
        """Import nothing."""


@dataclass
class FakeChild:
    """A process of a fake environment."""

    machine: Machine
    factor: float
    number: int

    def __enter__(self) -> FakeChild:
        return self

    def __exit__(self, *_: object) -> None:
        """End."""

    def ask(self, do: str, **_: object) -> dict[str, Any]:
        """Answer as `gate_child` does."""
        if do != "run":
            return {"peak_bytes": 0, "read_s": 1.0, "compile_s": 1.0, "first_s": 1.0}
        turns = self.machine.turns
        still = next((i for i, who in enumerate(reversed(turns)) if who == self.number), 0)
        turns.append(self.number)
        taken_s = ALONE_S * self.factor * (1 + still / 2)
        return {"samples_s": [taken_s], "period_s": taken_s}


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("factor", [1.0, 1.05])
def test_a_process_that_stood_still_is_slower_and_yet_equal_sides_are_equal(number: int, factor: float) -> None:
    machine = Machine()
    sides = [
        GateSide(cast(Environment, FakeEnvironment(machine, each)), Path("model.xml"), "CPU", {})
        for each in (1.0, factor)
    ]
    start = MeasuredStarts(sides[0], sides[1], Path("inputs.npz"), turns_s=0.0).start(number)
    assert isinstance(start, GateStart)
    for mode in ("latency", "throughput"):
        assert start.twin[mode] == pytest.approx(0.0)
        assert start.values[1][mode] / start.values[0][mode] == pytest.approx(factor)


def test_nobody_has_two_turns_in_a_row_and_all_follow_all_as_often() -> None:
    order = list(order_of_sides([BEFORE, AFTER, TWIN], lambda half, i: i < 50))
    assert Counter(order) == {BEFORE: 100, AFTER: 100, TWIN: 100}
    followers = Counter(pairwise(order))
    assert len(followers) == 6
    assert max(followers.values()) - min(followers.values()) <= 2
