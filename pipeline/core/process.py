"""How placewright starts processes of its own, what each of them does first, and how many can run at a time."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from pipeline.core.processors import usable_processors

LAST_WORDS = 400  # characters of a process's standard error that tell why it died
PR_SET_PDEATHSIG = 1
START = Path(__file__).absolute().with_name("start.py")


def python_command(module: str) -> list[str]:
    """Return the command that runs one of our modules in a process of its own, from the files that run here.

    The working directory is no place to import from (-P), and the environment is only where it is for this process.
    """
    flags = ["-P", *["-E"] * sys.flags.ignore_environment, *["-s"] * sys.flags.no_user_site]
    return [sys.executable, *flags, str(START), module]


class Piped:
    """One of our modules in a process of its own, spoken to over pipes; what it writes to standard error is kept.

    environment: what the process gets on top of ours; it takes itself for a machine's, which nobody watches.
    """

    def __init__(self, module: str, **environment: str) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the process; close() closes it
        self.process = subprocess.Popen(
            python_command(module),
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "CI": "true", **environment},
        )
        if self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("a process started with pipes has them")
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    @property
    def said(self) -> int:
        """Return how many bytes it has written to standard error."""
        return self._errors.seek(0, os.SEEK_END)

    def last_words(self, since: int = 0) -> str:
        """Return the end of what it wrote to standard error after so many bytes, on one line."""
        self._errors.seek(max(since, self.said - LAST_WORDS))
        return " ".join(self._errors.read().decode(errors="replace").split())

    def close(self) -> None:
        """End the process now."""
        self.process.kill()
        self.process.wait()
        for stream in (self.stdin, self.stdout, self._errors):
            stream.close()


def ending(status: int, words: str) -> str:
    """Return in words how a process ended, and the last that it said."""
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    return f"{how}; it last said: {words}" if words else how


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent dies, so that a killed run leaves no process behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def die_first() -> None:
    """Ask Linux to end this process before any other where memory runs out: what it does can be done again."""
    with contextlib.suppress(OSError):  # no Linux, or a /proc that nobody may write to
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def cpu_count() -> int:
    """Return the number of processors this process may use all the time: its affinity, and its quota rounded down."""
    return usable_processors().count
