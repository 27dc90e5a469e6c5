"""How placewright starts processes of its own, and what each of them does first."""

from __future__ import annotations

import ctypes
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1
START = Path(__file__).absolute().with_name("start.py")


def python_command(module: str) -> list[str]:
    """Return the command that runs one of our modules in a process of its own, from the files that run here.

    The working directory is no place to import from (-P), and the environment is only where it is for this process.
    """
    flags = ["-P", *["-E"] * sys.flags.ignore_environment, *["-s"] * sys.flags.no_user_site]
    return [sys.executable, *flags, str(START), module]


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent dies, so that a killed run leaves no process behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def die_first() -> None:
    """Ask Linux to end this process before any other where memory runs out: what it does can be done again."""
    score = Path("/proc/self/oom_score_adj")
    if score.exists():
        score.write_text("1000", encoding="ascii")
