"""Work on a thread of its own: what it gives back, and what an interrupt does."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from pipeline.core.errors import UsageError
from pipeline.progress.interruption import run_interruptible
from tests import ROOT


def test_work_runs_on_another_thread_and_gives_back_what_it_returns() -> None:
    assert run_interruptible(lambda check: threading.current_thread()) is not threading.main_thread()


def test_what_work_raises_reaches_the_caller() -> None:
    def work(check: Callable[[], None]) -> None:
        raise UsageError("wrong", "do it right")

    with pytest.raises(UsageError, match="wrong"):
        run_interruptible(work)


# In a process of its own: other libraries of the suite put their handlers in the way of the signal.
INTERRUPTED = """
import os, signal, sys, threading
from pipeline.progress import interruption as module

ended = threading.Event()
module.GRACE_S = float(sys.argv[1])

def work(check):
    os.kill(os.getpid(), signal.SIGINT)
    if sys.argv[2] == "deaf":
        ended.wait()
    try:
        while True:
            check()
    except module.StoppedError:
        ended.set()

try:
    module.run_interruptible(work)
except KeyboardInterrupt:
    print("interrupted", ended.is_set())
    ended.set()
"""


def interrupted(grace_s: float, kind: str) -> str:
    """Return what a process says whose work, asking or deaf, is interrupted."""
    command = [sys.executable, "-c", INTERRUPTED, str(grace_s), kind]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def test_an_interrupt_reaches_the_caller_and_ends_the_work() -> None:
    assert interrupted(60.0, "asking") == "interrupted True"


def test_work_that_never_asks_is_left_behind() -> None:
    assert interrupted(0.01, "deaf") == "interrupted False"


@pytest.mark.skipif(os.name != "posix", reason="a shell of POSIX ignores interrupts of what it runs in the background")
def test_tests_interrupt_what_they_start_where_interrupts_were_ignored_as_in_the_background() -> None:
    chosen = f"{__file__}::{test_an_interrupt_reaches_the_caller_and_ends_the_work.__name__}"
    inner = shlex.join([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", chosen])
    ended = subprocess.run(["sh", "-c", f'trap "" INT; {inner}'], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
