"""Stores, journals and whole files on disks that fail, fill up, tear writes, slow down, or lose their writer.

A fork opens a store, adds entries, journal lines and whole files until something fails, as a run does, and tells each
that it has finished; up to three forks have a fault, a last one has none. The disk is a folder whose operations fail by
the fault layer of `faults`, or, where one may be mounted, a real one in memory that is too small. What was told to be
finished must be there, once and whole; what was not may be there whole, or not at all.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pipeline.core.errors import PlacewrightError
from pipeline.store.store import Store, write_json, write_text
from pipeline.system.json_lines import append_line, load_lines
from tests.campaigns.faults import ERRORS, Fault
from tests.campaigns.runner import Campaign, Case, Judge, require

KINDS = ("once", "from then on", "once, reading", "torn", "killed", "slow", "full disk", "no fault")
STEPS, ROUNDS = 24, 3
DISK = "256k"
SLOW_S = 0.01
MOST_EVENTS = 60
PATIENCE_S = 60.0


def content(seed: int, number: int) -> str:
    """Return what a step writes, up to 60 kB."""
    rng = np.random.default_rng([seed, number])
    return str(number) + " " + "x" * int(10 ** rng.uniform(0, 4.8))


def work(folder: Path, seed: int, numbers: range, told: int) -> None:
    """Do the steps of these numbers, and tell each that is finished; whatever fails ends the rest."""
    store = Store(folder / "store")
    journal = store.series("0" * 64) / "starts.jsonl"
    list(load_lines(journal))
    for number in numbers:
        text = content(seed, number)
        match number % 3:
            case 0:
                key = f"{number:064x}"
                with store.making(key), store.scratch() as scratch:
                    (scratch / "payload").mkdir()
                    write_json(scratch / "payload" / "answer.json", text)
                    store.add(key, {"stage": "read"}, {}, scratch / "payload")
            case 1:
                append_line(journal, {"number": number, "text": text})
            case _:
                write_text(folder / f"file{number % 2}.txt", text)
        os.write(told, f"{number}\n".encode())


def run_in_fork(folder: Path, seed: int, numbers: range, kind: str, rng: np.random.Generator) -> list[int]:
    """Return the numbers of the steps that a fork says it has finished."""
    fault = Fault(kind, int(np.exp(rng.uniform(0, np.log(MOST_EVENTS)))), int(rng.choice(ERRORS)), str(folder))
    limit, dies_s = int(10 ** rng.uniform(1, 5)), float(rng.uniform(0, 0.1))
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            if kind == "torn":
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            elif kind in ("once", "from then on", "once, reading"):
                sys.addaudithook(fault.hear)
            elif kind == "slow":
                sys.addaudithook(lambda event, _: time.sleep(SLOW_S) if event in ("open", "os.rename") else None)
            work(folder, seed, numbers, writing)
            status = 0
        except (OSError, PlacewrightError):
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    if kind == "killed":
        time.sleep(dies_s)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    with os.fdopen(reading, encoding="ascii") as lines:
        told = [int(line) for line in lines.read().split("\n")[:-1]]
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    require(status == 0 or kind == "killed", f"{kind}, {os.strerror(fault.number)}: an error that is none of the disk")
    return told


def check(folder: Path, seed: int, told: list[int], tried: int, what: str) -> None:
    """Require that what was finished is there, once and whole, and nothing else in part."""
    store = Store(folder / "store")
    for key in store.list_keys():
        entry = store.intact(key)
        number = int(key, 16)
        require(entry is not None, f"{what}: entry {number} is not whole")
        if entry is not None:
            found = json.loads((entry.folder / "answer.json").read_text(encoding="utf-8"))
            require(found == content(seed, number), f"{what}: entry {number} holds something else")
    entries = {int(key, 16) for key in store.list_keys()}
    require({n for n in told if n % 3 == 0} <= entries, f"{what}: finished entries are lost")
    journal = folder / "store" / "series" / ("0" * 64) / "starts.jsonl"
    records = [dict(record) for record in load_lines(journal)]
    numbers = [record["number"] for record in records]
    require(numbers == sorted(set(numbers)), f"{what}: lines are twice, or in another order: {numbers}")
    require({n for n in told if n % 3 == 1} <= set(numbers), f"{what}: finished lines are lost")
    require(all(r["text"] == content(seed, r["number"]) for r in records), f"{what}: a line is not whole")
    for parity in (0, 1):
        path, done = folder / f"file{parity}.txt", [n for n in told if n % 3 == 2 and n % 2 == parity]
        may = [n for n in range(tried) if n % 3 == 2 and n % 2 == parity and n >= max(done, default=0)]
        texts = [content(seed, n) for n in may]
        require(
            path.read_text(encoding="utf-8") in texts if path.exists() else not done, f"{what}: {path.name} is torn"
        )


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """Give a real disk of little room, None where none may be mounted."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    mounted = shutil.which("mount") and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        yield folder if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=False)


@contextlib.contextmanager
def begin(folder: Path) -> Iterator[Judge]:
    """Give what works on disks that fail."""

    def judge(case: Case) -> str:
        rng, kinds = case.rng, []
        with small_disk(case.folder / "disk") as disk:
            place = disk or case.folder
            told: list[int] = []
            for number in range(ROUNDS + 1):
                kind = str(rng.choice(KINDS)) if number < ROUNDS else "no fault"
                if kind == "full disk" and disk is None:
                    kind = "no fault"
                numbers = range(number * STEPS, (number + 1) * STEPS)
                filler = place / "filler"
                if kind == "full disk":
                    room = os.statvfs(place)
                    left = room.f_bavail * room.f_frsize
                    filler.write_bytes(b"x" * max(0, left - int(rng.integers(1, 100_000))))
                if number == ROUNDS and disk is not None:
                    subprocess.run(["mount", "-o", "remount,size=16m", str(disk)], check=True)
                told += run_in_fork(place, case.seed, numbers, kind, rng)
                filler.unlink(missing_ok=True)
                kinds.append(kind)
                check(place, case.seed, told, numbers.stop, ", ".join(kinds))
            last = set(range(ROUNDS * STEPS, (ROUNDS + 1) * STEPS))
            require(last <= set(told), f"{kinds}: afterwards not all is done: {sorted(last - set(told))}")
            Store(place / "store").sweep(older_than_s=-1.0, dry_run=False)
            left = [p.name for p in (place / "store" / "tmp").iterdir()]
            require(not left, f"{kinds}: left in tmp: {left}")
        return kinds[0] if disk is not None else f"{kinds[0]}, no disk may be mounted"

    yield judge


CAMPAIGN = Campaign("disks", 0.5, begin)
