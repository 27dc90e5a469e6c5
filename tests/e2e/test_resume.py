"""Killed or interrupted at any moment and started again, a run goes on; nothing it started outlives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.conftest import Warm, options

Ran = Callable[..., Any]
LOOK_S = 0.005  # between looks: one that spins takes a core from what it waits for
PATIENCE_S = 120.0  # how long a test waits for something that takes seconds on an idle machine
START = "import sys; from pipeline.cli.main import main; sys.argv[0] = 'placewright'; main()"
# Short turns and few variants leave time for the signal between the first starts and the last.
REAL = {
    "measure__use": "hetero",
    "measure__starts": 3,
    "measure__settings": "false",
    "measure__start_s": 0.1,
    "measure__turn_s": 0.02,
    "measure__alone_s": 0.05,
    "measure__seconds": 30,
    "place__use": "[greedy,hsdag]",
    "place__reward": "simulated",
    "place__hsdag__patience": 1,
}


def stop_when(arguments: list[str], moment: Callable[[], bool], how: signal.Signals) -> tuple[int, str]:
    """Run a command in a process of its own, send it a signal at a moment; return its exit status and last words.

    The processes it started must be gone soon after it.
    """
    with subprocess.Popen(
        [sys.executable, "-c", START, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "CI": "true"},
        text=True,
    ) as process:
        await_true(moment, lambda: process.poll() is None)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(how)
        errors = process.communicate(timeout=PATIENCE_S)[1]
    await_true(lambda: not any(is_alive(child) for child in children), lambda: True)
    return process.returncode, errors


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def await_true(moment: Callable[[], bool], possible: Callable[[], bool]) -> None:
    """Return when `moment` is true; fail when it has become impossible, or has not come in a long time."""
    end = time.monotonic() + PATIENCE_S
    while not moment():
        assert possible(), "the moment has passed"
        assert time.monotonic() < end, "the moment never came"
        time.sleep(LOOK_S)


def recorded(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["stages"] if path.exists() else {}
    return found


def journal(store: Path) -> list[dict[str, Any]]:
    """Return the starts that were written down."""
    lines = [p.read_text(encoding="utf-8") for p in store.glob("series/*/starts.jsonl")]
    return [json.loads(line) for text in lines for line in text.split("\n")[:-1]]


def test_a_run_killed_after_profiling_goes_on_and_profiles_no_more(model: Path, tmp_path: Path, ran: Ran) -> None:
    folder, store = tmp_path / "run", tmp_path / "store"
    # One device and no fused kernels: as few processes as there can be. What learns leaves time for the signal.
    cheap = {**REAL, "measure__use": "sequential", "coarsen__use": "identity"}
    arguments = ["tune", str(model), "--run", str(folder), *options(store, **cheap)]
    arguments[arguments.index("--devices") + 1] = "CPU"
    status, _ = stop_when(arguments, lambda: "profile" in recorded(folder), signal.SIGKILL)
    assert status == -signal.SIGKILL
    before = recorded(folder)
    document = ran(*arguments)
    done = {s["stage"]: s for s in document["stages"]}
    assert {"read", "coarsen", "profile"} <= set(before) < set(done)
    assert all(not done[s]["ran"] and done[s]["key"] == record["key"] for s, record in before.items())
    assert done["measure"]["ran"]


@pytest.mark.slow
def test_a_measurement_on_the_devices_interrupted_and_killed_goes_on_and_keeps_its_starts(copy: Warm, ran: Ran) -> None:
    arguments = ["tune", str(copy.model), "--run", str(copy.run), *options(copy.store, **REAL)]
    status, errors = stop_when(arguments, lambda: len(journal(copy.store)) >= 1, signal.SIGINT)
    assert status == 130
    assert "error: Interrupted." in errors
    assert "Traceback" not in errors
    first = journal(copy.store)
    status, _ = stop_when(arguments, lambda: len(journal(copy.store)) > len(first), signal.SIGKILL)
    assert status == -signal.SIGKILL
    second = journal(copy.store)
    assert second[: len(first)] == first
    document = ran(*arguments)
    assert [s["stage"] for s in document["stages"] if s["ran"]] == ["measure"]
    searched = [c for c in document["candidates"] if not c["baseline"]]
    assert searched
    assert all(set(c["devices_used"]) == {"A", "B"} and c["subgraphs"] > 1 for c in searched)
    assert {"A", "B", "AUTO", "HETERO default"} <= {c["name"] for c in document["candidates"]}
    assert not any(c["failed"] for c in document["candidates"])
    third = journal(copy.store)
    assert third[: len(second)] == second
    assert len({line["key"] for line in third}) == len(third)
    assert not list((copy.store / "partial").iterdir())
