"""Starts of a gate, where what every turn takes is known."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import openvino as ov
import pytest

from pipeline.gate import gate
from pipeline.gate.environments import Environment
from pipeline.gate.gate_file import GateOptions, read_gate
from pipeline.gate.starts import AFTER, BEFORE, GateSide, GateStart, MeasuredStarts, order_of_sides
from runtime.measuring.contest.statistics import TWIN
from tests.models import two_towers

ALONE_S = 0.01  # what an inference takes in a process that ran last


@dataclass
class Machine:
    """A machine on which a process is slower by half for every turn that it stood still.

    turns: who had one. slow: of every process, in the order in which they began, whether it takes longer.
    """

    turns: list[int] = field(default_factory=list)
    processes: int = 0
    slow: list[bool] = field(default_factory=list)


@dataclass
class FakeEnvironment:
    """An environment whose processes take so many times as long as others."""

    machine: Machine
    factor: float = 1.0

    def start(self) -> FakeChild:
        """Return a process."""
        self.machine.processes += 1
        self.machine.slow.append(self.factor > 1)
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


@pytest.mark.parametrize("number", [1, 2, 3])
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
        assert start.after[mode] == pytest.approx(math.log(1 / factor))
        assert start.values[1][mode] / start.values[0][mode] == pytest.approx(factor)


def test_in_three_starts_every_process_is_loaded_in_every_place() -> None:
    machine = Machine()
    before, after = (
        GateSide(cast(Environment, FakeEnvironment(machine, each)), Path("model.xml"), "CPU", {}) for each in (1.0, 2.0)
    )
    places = set()
    for number in (1, 2, 3):
        machine.turns.clear()
        machine.slow.clear()
        MeasuredStarts(before, after, Path("inputs.npz"), turns_s=0.0).start(number)
        places.add(machine.slow.index(True))
    assert places == {0, 1, 2}


def test_nobody_has_two_turns_in_a_row_and_all_follow_all_as_often() -> None:
    order = list(order_of_sides([BEFORE, AFTER, TWIN], lambda half, i: i < 50))
    assert Counter(order) == {BEFORE: 100, AFTER: 100, TWIN: 100}
    followers = Counter(pairwise(order))
    assert len(followers) == 6
    assert max(followers.values()) - min(followers.values()) <= 2


@pytest.mark.slow
def test_a_gate_of_this_environment_measures_a_model_whose_inputs_it_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "MeasuredStarts", partial(MeasuredStarts, turns_s=0.02))
    monkeypatch.setattr(gate, "MOST_STARTS", 2)
    ov.save_model(two_towers(), tmp_path / "model.xml", compress_to_fp16=False)
    asked = read_gate(GateOptions((str(tmp_path / "model.xml"),), ("NUM_STREAMS=1",), (), budget="60s"))
    found = gate.run_gate(asked, tmp_path / "gate", today=date(2026, 1, 1), say=lambda _: None)
    (row,) = found.models
    assert (row.starts, row.verdict, row.passed) == (2, "undecided", True)
    assert [check.words for check in row.checks[:2]] == ["both run it", "outputs agree"]
    by_name = {figure.figure: figure for figure in row.figures}
    assert {"latency", "throughput", "load"} <= by_name.keys()
    assert 0.0 < by_name["latency"].before < by_name["load"].before
    assert dict(row.look.precisions).keys() == {"before", "after"}
