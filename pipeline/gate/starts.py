"""Starts of a gate: both sides loaded in fresh processes, and a twin of the side before, taking turns.

The twin differs from the side before in nothing. A start gives, for every figure, log(before's / after's) and
log(before's / the twin's): above 0 is better. Turns take a hundredth of a second, round by round, one way in one half
of a start and the other way in the other; a process stands still while another has its turn.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from pipeline.core.measurement import MeasurementFailed
from pipeline.core.settings import MeasureSettings
from pipeline.gate.environments import Environment
from pipeline.gate.gate_file import Figure
from runtime.measuring.contest.statistics import TWIN
from runtime.measuring.process.child import Child, ChildError

Which = Literal["before", "after"]
Mode = Literal["latency", "throughput"]
TURN_S = MeasureSettings().turn_s
LEAST_ROUNDS = 4  # of turns in a start
TAIL = 100  # latencies without which there is no 99th percentile
BEFORE: Which = "before"
AFTER: Which = "after"
MEMORY: Mapping[str, Figure] = {"read_bytes": "memory of reading", "compile_bytes": "memory of compiling"}


@dataclass(frozen=True, slots=True)
class GateSide:
    """One side of a model, ready to be loaded: where, what and how."""

    environment: Environment
    model: Path
    device: str
    settings: Mapping[str, str]

    def load(self, child: Child, inputs: Path, mode: str) -> dict[str, Any]:
        """Load the model in a process; return what that took.

        Raises:
            ChildError: it does not load.
        """
        told: dict[str, Any] = child.ask(
            "load",
            model=str(self.model.absolute()),
            inputs=str(inputs),
            device=self.device,
            settings=dict(self.settings),
            mode=mode,
        )
        return told


@dataclass(frozen=True, slots=True)
class GateStart:
    """What one start gave, by figure.

    after, twin: log(before's / theirs). values: of the side before and of the side after; seconds, of throughput those
    per inference, and bytes. seconds: that the start took.
    """

    after: Mapping[Figure, float]
    twin: Mapping[Figure, float]
    values: tuple[Mapping[Figure, float], Mapping[Figure, float]]
    seconds: float


@dataclass(frozen=True, slots=True)
class SideFailed:
    """A side that does not run a model, and why."""

    side: Which
    failed: MeasurementFailed


class SideFailedError(Exception):
    """A side failed within a start."""

    def __init__(self, side: Which, failed: MeasurementFailed) -> None:
        super().__init__(failed.message)
        self.side, self.failed = side, failed


@contextlib.contextmanager
def blamed(name: str) -> Iterator[None]:
    """Say of a process that fails meanwhile which side it is of.

    Raises:
        SideFailedError: it fails.
    """
    try:
        yield
    except ChildError as error:
        raise SideFailedError(AFTER if name == AFTER else BEFORE, error.failed) from error


class Starts(Protocol):
    """Where starts of one model come from."""

    def start(self, number: int) -> GateStart | SideFailed:
        """Return the start of a number, from 1 on."""


@dataclass(frozen=True, slots=True)
class MeasuredStarts:
    """Starts on this machine. turns_s: seconds of turns in a start, of latency and of throughput each."""

    before: GateSide
    after: GateSide
    inputs: Path
    modes: Sequence[Mode] = ("latency", "throughput")
    turns_s: float = 0.8

    def start(self, number: int) -> GateStart | SideFailed:
        """Return a start; who is loaded first changes from start to start, so that in three all have had all places."""
        begun = time.monotonic()
        sides = {BEFORE: self.before, AFTER: self.after, TWIN: self.before}
        order = [*sides] * 2
        order = order[number % 3 :][: len(sides)]
        values: dict[str, dict[Figure, float]] = {name: {} for name in sides}
        logs: dict[str, dict[Figure, float]] = {AFTER: {}, TWIN: {}}
        children: dict[str, Child] = {}
        with contextlib.ExitStack() as stack:
            try:
                for name in order:  # they import side by side
                    children[name] = stack.enter_context(sides[name].environment.start())
                for name in order:
                    with blamed(name):
                        sides[name].environment.begin(children[name])
                for mode in self.modes:
                    for name in order:
                        with blamed(name):
                            told = sides[name].load(children[name], self.inputs, mode)
                            children[name].ask("run", seconds=TURN_S, minimum=1)  # warms it up
                        if mode == self.modes[0]:
                            values[name] |= _load_figures(told)
                    turns = self._turns(children, mode, values)
                    for name, ours in logs.items():
                        ours[mode] = turns[name]
                    for name in order if mode == self.modes[0] else ():
                        with blamed(name):
                            peak = children[name].ask("memory")["peak_bytes"]
                        values[name] |= {"memory of running": float(peak)} if peak else {}
            except SideFailedError as error:
                return SideFailed(error.side, error.failed)
        for name, ours in logs.items():
            for figure in (values[BEFORE].keys() & values[name].keys()) - ours.keys():
                ours[figure] = math.log(values[BEFORE][figure] / values[name][figure])
        return GateStart(logs[AFTER], logs[TWIN], (values[BEFORE], values[AFTER]), time.monotonic() - begun)

    def _turns(
        self, children: Mapping[str, Child], mode: Mode, values: Mapping[str, dict[Figure, float]]
    ) -> dict[str, float]:
        """Return the log ratios of the side after and of the twin; what a turn of each takes is added to its values."""
        per_turn: dict[str, list[float]] = {name: [] for name in children}  # by round
        samples: dict[str, list[float]] = {name: [] for name in children}
        begun = time.monotonic()

        def goes_on(half: int, i: int) -> bool:
            return 2 * i < LEAST_ROUNDS or time.monotonic() - begun < (half + 1) / 2 * self.turns_s

        for name in order_of_sides(list(children), goes_on):
            with blamed(name):
                told = children[name].ask("run", seconds=TURN_S, minimum=1)
            per_turn[name].append(told["period_s"] if mode == "throughput" else float(np.median(told["samples_s"])))
            samples[name] += told["samples_s"]
        for name, ours in per_turn.items():
            values[name][mode] = float(np.median(ours))
            if mode == "latency" and min(map(len, samples.values())) >= TAIL:
                values[name]["p99"] = float(np.percentile(samples[name], 99))
        return {name: float(np.median(np.log(per_turn[BEFORE]) - np.log(per_turn[name]))) for name in (AFTER, TWIN)}


def order_of_sides(sides: Sequence[str], goes_on: Callable[[int, int], bool]) -> Iterator[str]:
    """Yield whose turn it is, round after round: nobody follows itself, and all have stood still for as long.

    A turn that follows one of the same process is the faster one, by up to a fifth. sides: three, in the order in which
    they were loaded. goes_on: whether there is another round in a half, 0 or 1, after so many.

    >>> "".join(order_of_sides("bat", lambda half, i: i < 2))
    'batbatbtabta'
    """
    first, second, third = sides
    for half, order in enumerate([(first, second, third), (first, third, second)]):
        for _ in itertools.takewhile(functools.partial(goes_on, half), itertools.count()):
            yield from order


def _load_figures(told: Mapping[str, Any]) -> dict[Figure, float]:
    figures: dict[Figure, float] = {"load": told["read_s"] + told["compile_s"] + told["first_s"]}
    return figures | {figure: float(told[key]) for key, figure in MEMORY.items() if told.get(key)}
