"""One measuring run per machine at a time: the lock that whoever measures on its devices holds.

Two runs that measure at once would each measure the other. The lock is a file of the user's cache folder, one per
machine whatever the stores are; the environment variable PLACEWRIGHT_LOCK moves it, for example to a folder that
several users, or containers of one machine, share. The system drops the lock of a process that dies.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock
import platformdirs
import psutil

from pipeline.core.errors import UNPARSABLE, StoreError
from pipeline.system.private_files import make_alike, write_whole

log = logging.getLogger(__name__)

LOCK = "PLACEWRIGHT_LOCK"  # environment variable: the path of the lock file
MOST_WORDS = 100  # characters of the holder's command line
LOOK_EVERY_S = 0.5  # how often a run that waits tells so, and sees whether the holder is another

Say = Callable[[str], None]


def lock_path() -> Path:
    """Return the path of this machine's lock; the name of the machine tells it from others that share the home."""
    given = os.environ.get(LOCK)
    return Path(given or Path(platformdirs.user_cache_dir("placewright")) / f"measuring-{platform.node()}.lock")


@contextlib.contextmanager
def measuring_alone(say: Say) -> Iterator[float]:
    """Hold this machine for measuring; give the seconds that it took to get it.

    Within a process it may be held several times at once. say: told again and again for whom we wait; a warning is
    logged once.

    Raises:
        StoreError: the lock file cannot be written.
    """
    path = lock_path()
    try:
        make_alike(path.parent)
        lock = filelock.FileLock(path, mode=0o600, thread_local=False, is_singleton=True)
        waited_s = _acquire_lock(lock, path, say)
    except (OSError, NotImplementedError) as error:
        raise StoreError(
            f"The lock of measuring runs {path} cannot be used: {error}.", f"Set {LOCK} to a file you may write."
        ) from error
    holder = _holder_file(path)
    try:
        with contextlib.suppress(OSError):  # the name of the holder is for people; the lock holds without it
            write_whole(holder, json.dumps({"pid": os.getpid(), "command": _own_command()}).encode())
        yield waited_s
    finally:
        if lock.lock_counter == 1:
            holder.unlink(missing_ok=True)
        lock.release()


def _acquire_lock(lock: filelock.BaseFileLock, path: Path, say: Say) -> float:
    """Take the lock; return the seconds waited, 0 if it was free."""
    begun, told = time.monotonic(), ""
    while True:
        try:
            lock.acquire(timeout=LOOK_EVERY_S if told else 0, poll_interval=0.05)
        except filelock.Timeout:
            words = f"waiting for {_describe_holder(path)}, which measures on this machine"
            if words == told:
                say(f"{words}, for {time.monotonic() - begun:.0f} s so far")
            else:
                log.warning("%s", words)
            told = words
            continue
        if not told:
            return 0.0
        waited_s = time.monotonic() - begun
        log.warning("waited %.0f s until this machine was free to measure on", waited_s)
        return waited_s


def _holder_file(path: Path) -> Path:
    """Return the file that tells who holds the lock: what is locked cannot be read on every system."""
    return path.with_name(f"{path.name}.holder")


def _describe_holder(path: Path) -> str:
    """Return in words who holds the lock."""
    try:
        document = json.loads(_holder_file(path).read_text(encoding="utf-8"))
        pid, command = int(document["pid"]), str(document["command"])
    except (OSError, KeyError, TypeError, *UNPARSABLE):  # it has just taken the lock, or gives it back
        return "another placewright run"
    if not psutil.pid_exists(pid):  # left by one that was killed, or of a container that has numbers of its own
        return "another placewright run"
    return f"another placewright run (pid {pid}: {textwrap.shorten(command, MOST_WORDS)})"


def _own_command() -> str:
    """Return the command line of this process, its program by name alone."""
    return " ".join([Path(sys.argv[0]).name or "python", *sys.argv[1:]])
