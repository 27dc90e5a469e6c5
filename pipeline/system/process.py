"""How placewright starts processes of its own and speaks to them, what each of them does first, and how many can run.

What systems do differently is dealt with here, in `processors` for processors, and in `private` for files. Threads read
pipes, because Windows waits for sockets alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from pipeline.system.processors import usable_processors

LAST_WORDS = 400  # characters of a process's standard error that tell why it died
PR_SET_PDEATHSIG = 1
SIGKILL = 9  # on every system that has signals
PIPE_BYTES = 4096  # that an empty pipe takes at once, on every system
LOOK_EVERY_S = 0.5  # Windows tells of Ctrl-C between waits, not within them

T = TypeVar("T")
START = Path(__file__).absolute().with_name("start.py")


def python_command(module: str) -> list[str]:
    """Return the command that runs one of our modules in a process of its own, from the files that run here.

    The working directory is no place to import from (-P), and the environment is only where it is for this process.
    """
    flags = ["-P", *["-E"] * sys.flags.ignore_environment, *["-s"] * sys.flags.no_user_site]
    return [sys.executable, *flags, str(START), module]


class Piped:
    """A process of its own, spoken to in lines over pipes; its standard error is kept.

    run: one of our modules, or the whole command of something else. heard: called by another thread with every line
    that it writes, and with b"" at the end; `receive` gives them unless that is told. environment: what the process
    gets on top of ours; it takes itself for a machine's, which nobody watches.
    """

    def __init__(
        self,
        run: str | Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        heard: Callable[[bytes], None] | None = None,
    ) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the process; close() closes it
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        try:
            self.process = subprocess.Popen(
                python_command(run) if isinstance(run, str) else run,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={**os.environ, "CI": "true", **(environment or {})},
            )
        except OSError:  # no program
            self._errors.close()
            raise
        self._reader = threading.Thread(target=self._read, args=(heard or self._lines.put,), daemon=True)
        self._reader.start()

    def _read(self, heard: Callable[[bytes], None]) -> None:
        if self.process.stdout is None:
            raise RuntimeError("a process started with pipes has them")
        with self.process.stdout as lines:
            for line in lines:
                if line.endswith(b"\n"):  # else it died in the middle of it
                    heard(line)
        heard(b"")

    def send(self, line: bytes, *, within_s: float | None = None) -> None:
        """Write a line to a process that has answered all others; one that is dead is found out by what it answers.

        Raises:
            TimeoutError: the process did not take it in time.
        """
        if within_s is None or len(line) <= PIPE_BYTES:
            self._write(line)
            return
        written: Future[None] = Future()

        def write() -> None:
            try:
                self._write(line)
            except OSError as error:
                written.set_exception(error)
            else:
                written.set_result(None)

        threading.Thread(target=write, daemon=True).start()
        written.result(within_s)

    def _write(self, line: bytes) -> None:
        if self.process.stdin is None:
            raise RuntimeError("a process started with pipes has them")
        try:
            self.process.stdin.write(line)
            self.process.stdin.flush()
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EINVAL):  # the second is what Windows says of a pipe nobody reads
                raise

    def receive(self, *, within_s: float | None = None) -> bytes:
        """Return the next line that it writes, b"" if it has ended.

        Raises:
            TimeoutError: it wrote none in time.
        """
        line = take_next(self._lines, within_s=within_s)
        if not line:
            self._lines.put(line)  # the end stays the end
        return line

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
        self._reader.join(LOOK_EVERY_S)  # not for ever: a process of its own that it left behind may hold the pipe
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):  # a line that nobody took
                self.process.stdin.close()
        self._errors.close()


def take_next(waiting: queue.SimpleQueue[T], *, within_s: float | None = None) -> T:
    """Return the next of a queue; Ctrl-C ends the wait, on Windows, too.

    Raises:
        TimeoutError: there was none in time.
    """
    end = None if within_s is None else time.monotonic() + within_s
    while True:
        left_s = LOOK_EVERY_S if end is None else max(0.0, min(LOOK_EVERY_S, end - time.monotonic()))
        try:
            return waiting.get(timeout=left_s)
        except queue.Empty:
            if end is not None and time.monotonic() >= end:
                raise TimeoutError from None


def was_killed(status: int) -> bool:
    """Return whether a process with this exit status ended by SIGKILL."""
    return status == -SIGKILL


def describe_ending(status: int, words: str) -> str:
    """Return in words how a process ended, and the last that it said."""
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    return f"{how}; it last said: {words}" if words else how


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent dies, so that a killed run leaves no process behind.

    Elsewhere it ends once it has answered, because nobody writes to its standard input any more.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL)


def die_first() -> None:
    """Ask Linux to end this process before any other where memory runs out: what it does can be done again."""
    with contextlib.suppress(OSError):  # no Linux, or a /proc that nobody may write to
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def limit_address_space(limit_bytes: int) -> None:
    """Let this process use so many bytes of address space at most; elsewhere than on Linux there is no limit."""
    if sys.platform == "linux":  # Windows knows no such limit, and macOS takes none
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))


def cpu_count() -> int:
    """Return the number of processors this process may use all the time: its affinity, and its quota rounded down."""
    return usable_processors().count
