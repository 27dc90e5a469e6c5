"""Measures variants against one another: a process each, taking turns, so that what disturbs one disturbs all.

On a machine that others use too, turns run under real-time scheduling if the system allows it, so that other
processes do not stretch them, and the machine rests between them. Fine-grained kernels on several threads can be
slower that way: every variant is tried both ways first, and one that suffers turns it off for all.

Round r gives every variant one turn of a fraction of a second, in an order that rotates with r; the median of a turn
is one sample. Samples of equal round are pairs. Every finished round is written down before the next begins, so that
a measurement that was killed goes on where it stopped.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from pipeline.core.measurement import Measurement, MeasurementFailed
from pipeline.core.private import open_alike
from pipeline.core.settings import MeasureSettings
from runtime.measuring.child import Child, ChildError
from runtime.measuring.hetero import reference_outputs
from runtime.measuring.outputs import Reference
from runtime.measuring.variant import Variant, check, executed_names, start, warm_up

REST_AFTER_REALTIME = 1.5  # times the turn, so that other processes keep most of the machine
REALTIME_HARM = 1.2
REALTIME_NEEDED = 0.03
MEMORY_SHARE = 0.7  # of the available memory that waiting processes may fill

ProgressText = Callable[[str], None]


@dataclass(slots=True)
class _Seat:
    """One variant's place at the table: its process while it is alive, what is known of it, its samples by round."""

    variant: Variant
    child: Child | None = None
    loaded: dict[str, Any] = field(default_factory=dict)
    warm: int = 0
    samples_s: dict[int, float] = field(default_factory=dict)
    delay_s: float = 0.0
    runnable_s: float = 0.0
    failed: MeasurementFailed | None = None


def interleave(
    variants: Sequence[Variant],
    model: Path,
    settings: MeasureSettings,
    *,
    seed: int,
    journal: Path,
    progress: ProgressText,
) -> dict[str, Measurement | MeasurementFailed]:
    """Return what each variant's turns gave, by the variant's name.

    samples_s of a Measurement: float64 [rounds], the median latency of each turn; entry i of all variants stems from
    the same round. journal: a JSON Lines file that holds finished rounds of an earlier, interrupted call.

    Raises:
        ChildError: the reference cannot be run on the CPU.
    """
    names = [v.name for v in variants]
    if len(set(names)) != len(names):
        raise ValueError("variants must have different names")
    expected = reference_outputs(model, settings, seed=seed)
    seats = [_Seat(v) for v in variants]
    done, mode = _replay_journal(journal, {s.variant.name: s for s in seats})
    try:
        _prepare(seats, model, settings, expected, seed=seed, progress=progress)
        if mode is None:
            mode = settings.realtime and realtime_helps([s.child for s in seats if s.child is not None], settings)
        settings = replace(settings, realtime=mode)
        _rounds(seats, model, settings, first=done, seed=seed, journal=journal, progress=progress)
    finally:
        for seat in seats:
            if seat.child is not None:
                seat.child.close()
    return {seat.variant.name: _result(seat, realtime=settings.realtime) for seat in seats}


def _prepare(
    seats: Sequence[_Seat],
    model: Path,
    settings: MeasureSettings,
    expected: Reference,
    *,
    seed: int,
    progress: ProgressText,
) -> None:
    """Load and check every variant; keep the processes that memory has room for."""
    room = psutil.virtual_memory().available * MEMORY_SHARE
    for seat in seats:
        if seat.failed is not None:
            continue
        progress(f"loading {seat.variant.name}")
        _open(seat, model, settings, seed=seed)
        if seat.child is None:
            continue
        try:
            seat.failed = check(seat.variant, seat.loaded, seat.child, expected, settings)
            room -= psutil.Process(seat.child.pid).memory_info().rss
        except ChildError as error:
            seat.failed = error.failed
        if seat.failed is not None or room < 0:
            _shut(seat)


def realtime_helps(children: Sequence[Child], settings: MeasureSettings) -> bool:
    """Return whether turns should run under real-time scheduling: it is allowed, needed, and does no harm.

    Needed: in a turn of plain scheduling some variant's threads waited for a processor for more than REALTIME_NEEDED of
    the time that they wanted one. On a quiet machine plain turns scatter less. Harmless: the fastest inference of a
    turn, which others disturb least, is not slower by REALTIME_HARM under it.
    """
    needed = False
    for child in children:
        try:
            if not child.ask("realtime")["allowed"]:
                return False
            plain, realtime = (
                child.ask("run", seconds=settings.batch_s, minimum=3, realtime=mode) for mode in (False, True)
            )
        except ChildError:
            continue  # its own turn will tell what is wrong with it
        if min(realtime["samples_s"]) > REALTIME_HARM * min(plain["samples_s"]):
            return False
        needed = needed or plain["run_delay_s"] > REALTIME_NEEDED * plain["runnable_s"]
    return needed


def _open(seat: _Seat, model: Path, settings: MeasureSettings, *, seed: int) -> None:
    try:
        seat.child, seat.loaded = start(seat.variant, model, settings, seed=seed)
        seat.warm = warm_up(seat.child)
    except ChildError as error:
        seat.failed = error.failed
        _shut(seat)


def _shut(seat: _Seat) -> None:
    if seat.child is not None:
        seat.child.close()
    seat.child = None


def _rounds(
    seats: Sequence[_Seat],
    model: Path,
    settings: MeasureSettings,
    *,
    first: int,
    seed: int,
    journal: Path,
    progress: ProgressText,
) -> None:
    begun = time.monotonic()
    for r in range(first, settings.rounds):
        late = settings.seconds > 0 and time.monotonic() - begun > settings.seconds
        if late and r >= settings.least_rounds:
            return
        progress(f"round {r + 1} of {settings.rounds}")
        turn = r % max(len(seats), 1)
        for seat in [*seats[turn:], *seats[:turn]]:
            _turn(seat, r, model, settings, seed=seed)
        record = {
            "round": r,
            "realtime": settings.realtime,
            "samples_s": {s.variant.name: s.samples_s[r] for s in seats if r in s.samples_s},
            "failed": {s.variant.name: [s.failed.kind, s.failed.message] for s in seats if s.failed is not None},
        }
        with open_alike(journal, "a") as out:
            out.write(json.dumps(record) + "\n")


def _turn(seat: _Seat, r: int, model: Path, settings: MeasureSettings, *, seed: int) -> None:
    """Give one variant its turn in round r; a variant without a process is loaded for the turn alone."""
    if seat.failed is not None:
        return
    resident = seat.child is not None
    if not resident:
        _open(seat, model, settings, seed=seed)
    if seat.child is None:
        return
    try:
        answer = seat.child.ask("run", seconds=settings.batch_s, minimum=3, realtime=settings.realtime)
        seat.samples_s[r] = float(np.median(answer["samples_s"]))
        seat.delay_s += answer["run_delay_s"]
        seat.runnable_s += answer["runnable_s"]
    except ChildError as error:
        seat.failed = error.failed
        _shut(seat)
        return
    if settings.realtime:
        time.sleep(REST_AFTER_REALTIME * settings.batch_s)
    if not resident:
        _shut(seat)


def _replay_journal(journal: Path, seats: Mapping[str, _Seat]) -> tuple[int, bool | None]:
    """Fill in the rounds an earlier call finished; return how many they are, and whether they ran in real time.

    A torn last line does not count, nor does what follows a round of other variants. Without a finished round the
    second answer is None.
    """
    if not journal.exists():
        return 0, None
    done, kept, mode = 0, 0, None
    for line in journal.read_bytes().splitlines(keepends=True):
        record = _record(line, seats)
        if record is None or record["round"] != done:
            break
        for name, value in record["samples_s"].items():
            seats[name].samples_s[done] = value
        for name, (kind, message) in record["failed"].items():
            seats[name].failed = MeasurementFailed(kind, message)
        done, kept, mode = done + 1, kept + len(line), record["realtime"]
    os.truncate(journal, kept)
    return done, mode


def _record(line: bytes, seats: Mapping[str, _Seat]) -> dict[str, Any] | None:
    """Return one round of a journal, or None if it was cut off in the middle or is of other variants."""
    if not line.endswith(b"\n"):
        return None
    try:
        record: dict[str, Any] = json.loads(line)
        told = {*record["samples_s"], *record["failed"]}
        return record if told == set(seats) and {"round", "realtime"} <= set(record) else None
    except (ValueError, KeyError, TypeError):
        return None


def _result(seat: _Seat, *, realtime: bool) -> Measurement | MeasurementFailed:
    if seat.failed is not None:
        return seat.failed
    return Measurement(
        np.array([seat.samples_s[r] for r in sorted(seat.samples_s)]),
        warm_up=seat.warm,
        compile_s=seat.loaded["compile_s"],
        executed_on=executed_names(seat.variant, seat.loaded["executed_on"]),
        subgraphs=seat.loaded["subgraphs"],
        precision="+".join(sorted(set(seat.loaded["precisions"].values()))),
        waited_share=seat.delay_s / seat.runnable_s if seat.runnable_s else 0.0,
        realtime=realtime,
    )
