"""Whoever measures on this machine holds it alone; others wait, and say for whom."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline.cli.console import outcome_line
from pipeline.core.deadline import Deadline
from pipeline.core.errors import StoreError
from pipeline.stages import execution
from pipeline.store.store import Store
from pipeline.store.task import StepContext, Task, run_task
from pipeline.system import machine_lock
from pipeline.system.machine_lock import lock_path, measuring_alone

HOLD = """
import sys
from pipeline.system.machine_lock import measuring_alone
sys.argv = ["/usr/bin/placewright", "tune", "a.onnx"]
with measuring_alone(print):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give every test a machine of its own, on which waiting is quick."""
    monkeypatch.setenv("PLACEWRIGHT_LOCK", str(tmp_path / "machine" / "m.lock"))
    monkeypatch.setattr(machine_lock, "LOOK_EVERY_S", 0.05)
    return tmp_path / "machine" / "m.lock"


Process = subprocess.Popen[bytes]


@contextmanager
def holder() -> Iterator[Process]:
    """Give another process that holds the machine until it is killed or its standard input is closed."""
    with subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        try:
            yield process
        finally:
            process.kill()


def release(process: Process) -> None:
    assert process.stdin is not None
    process.stdin.close()


def mute(_: str) -> None:
    """Say nothing."""


def test_a_second_run_says_for_whom_it_waits_and_for_how_long(caplog: pytest.LogCaptureFixture) -> None:
    with holder() as other:
        said: list[str] = []

        def say(text: str) -> None:
            said.append(text)
            if len(said) == 3:
                release(other)

        with caplog.at_level(logging.WARNING), measuring_alone(say) as waited_s:
            assert waited_s > 0
    waiting = f"another placewright run (pid {other.pid}: placewright tune a.onnx)"
    words = f"waiting for {waiting}, which measures on this machine"
    assert said[0].startswith(f"{words}, for 0 s so far")
    assert len(said) >= 3
    assert caplog.messages[0] == words
    assert caplog.messages.count(words) == 1
    assert "until this machine was free" in caplog.messages[-1]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_holder_that_dies_blocks_nobody(how: signal.Signals, path: Path) -> None:
    with holder() as other:
        told = json.loads(path.with_name("m.lock.holder").read_text(encoding="utf-8"))
        assert told == {"pid": other.pid, "command": "placewright tune a.onnx"}
        with measuring_alone(lambda text: other.send_signal(how)) as waited_s:
            assert waited_s > 0
    assert not path.with_name("m.lock.holder").exists()


def test_a_process_may_hold_it_several_times_and_gives_it_back_at_the_end(path: Path) -> None:
    named = path.with_name("m.lock.holder")
    with measuring_alone(mute) as first:
        with measuring_alone(mute) as second:
            assert first == second == 0
        assert json.loads(named.read_text(encoding="utf-8"))["pid"] == os.getpid()
        with pytest.raises(ZeroDivisionError), measuring_alone(mute):
            raise ZeroDivisionError
        assert named.exists()
    with holder() as other:
        assert str(other.pid) in named.read_text(encoding="utf-8")


def test_waiting_that_is_interrupted_leaves_the_lock_to_its_holder(path: Path) -> None:
    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    with holder() as other:
        with pytest.raises(KeyboardInterrupt), measuring_alone(interrupt):
            pytest.fail("another holds it")
        assert str(other.pid) in path.with_name("m.lock.holder").read_text(encoding="utf-8")
        release(other)
        with measuring_alone(mute):
            assert str(os.getpid()) in path.with_name("m.lock.holder").read_text(encoding="utf-8")


@pytest.mark.parametrize("left", ["", "{", '{"pid": "x"}', '{"pid": 99999999, "command": "placewright"}'])
def test_a_holder_that_cannot_be_named_is_another_run(left: str, path: Path) -> None:
    with holder() as other:
        path.with_name("m.lock.holder").write_text(left)
        said: list[str] = []

        def say(text: str) -> None:
            said.append(text)
            release(other)

        with measuring_alone(say):
            assert said[0].startswith("waiting for another placewright run, which measures")


def test_a_lock_that_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PLACEWRIGHT_LOCK", str(tmp_path / "file" / "m.lock"))
    with pytest.raises(StoreError, match=r"m\.lock cannot be used.*Set PLACEWRIGHT_LOCK"), measuring_alone(mute):
        pytest.fail("it cannot be held")


def test_without_the_variable_it_is_one_per_user_and_machine_whatever_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PLACEWRIGHT_LOCK")
    before = lock_path()
    monkeypatch.setenv("PLACEWRIGHT_STORE", "/elsewhere")
    assert lock_path() == before
    monkeypatch.setattr("platform.node", lambda: "other")
    assert lock_path() == before.with_name("measuring-other.lock")


# Tasks


def task(stage: str, **params: object) -> Task:
    return Task(stage, stage, {}, params, 0, {})


def run(wanted: Task, store: Store, step: Callable[[StepContext], None]) -> tuple[bool, float, str]:
    outcome = run_task(wanted, store, {wanted.stage: step}, mute)
    return outcome.ran, outcome.waited_s, outcome_line(outcome)


@pytest.mark.parametrize(
    ("wanted", "measures"),
    [
        (task("profile"), True),
        (task("precisions"), True),
        (task("place", real=True), True),
        (task("measure", real=True), True),
        (task("place", real=False), False),
        (task("measure", real=False), False),
        (task("coarsen"), False),
    ],
)
def test_the_machine_is_held_while_a_stage_measures_and_at_no_other_time(
    wanted: Task, measures: bool, tmp_path: Path, path: Path
) -> None:
    held: list[bool] = []

    def step(work: StepContext) -> None:
        held.append(path.with_name("m.lock.holder").exists())
        (work.out / "x").write_text("x")

    store = Store(tmp_path / "store")
    assert run(wanted, store, step)[:2] == (True, 0.0)
    assert held == [measures]
    assert not path.with_name("m.lock.holder").exists()


def test_a_stage_waits_once_and_what_is_in_the_store_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "store")
    with holder() as other:
        monkeypatch.setattr(machine_lock.log, "warning", lambda *_: release(other))
        ran, waited_s, line = run(task("profile"), store, lambda work: (work.out / "x").touch())
    assert ran
    assert waited_s > 0
    assert line.endswith("; waited 0 s for another run")
    monkeypatch.setattr(machine_lock.log, "warning", lambda *_: pytest.fail("it waits"))
    with holder():
        assert run(task("profile"), store, lambda work: pytest.fail("it runs"))[:2] == (False, 0.0)


def test_a_run_holds_the_machine_from_the_first_stage_that_measures_to_its_end(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[tuple[str, bool]] = []

    def step(work: StepContext) -> None:
        held.append((work.task.stage, path.with_name("m.lock.holder").exists()))
        (work.out / "x").touch()

    stages = ("coarsen", "profile", "embed", "measure")
    monkeypatch.setattr(execution, "STEPS", dict.fromkeys(stages, step))
    tasks = [task(stage, real=True) if stage == "measure" else task(stage) for stage in stages]
    execution.execute_tasks(tasks, Store(tmp_path / "store"), progress=mute, previous={})
    assert held == [("coarsen", False), ("profile", True), ("embed", True), ("measure", True)]
    assert not path.with_name("m.lock.holder").exists()


def test_no_stage_loses_the_time_for_which_an_earlier_one_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_s: list[float] = []

    @contextmanager
    def late(say: Callable[[str], None]) -> Iterator[float]:
        yield 5.0

    def step(work: StepContext) -> None:
        left_s.append(work.deadline.left_s)

    stages = ("coarsen", "profile", "embed")
    monkeypatch.setattr(execution, "STEPS", dict.fromkeys(stages, step))
    monkeypatch.setattr(execution, "measuring_alone", late)
    deadline = Deadline.after(10.0, lambda: 0.0)
    store = Store(tmp_path / "store")
    execution.execute_tasks([task(stage) for stage in stages], store, progress=mute, previous={}, deadline=deadline)
    assert left_s == [10.0, 15.0, 15.0]


def test_what_another_run_has_made_meanwhile_is_taken(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    wanted = task("profile")

    @contextmanager
    def alone(_: Callable[[str], None]) -> Iterator[float]:
        run(wanted, store, lambda work: (work.out / "x").touch())
        yield 7.0

    outcome = run_task(wanted, store, {"profile": lambda work: pytest.fail("it runs")}, mute, alone=alone)
    assert (outcome.ran, outcome.why, outcome.waited_s) == (False, "in the store", 7.0)
