"""Control groups of the kernel, of either version, for as long as a campaign runs, where one may be made."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 100_000


@contextlib.contextmanager
def cgroup(controller: str, limits: dict[str, tuple[str, str]]) -> Iterator[Path | None]:
    """Give the folder of a new group, None where none can be made.

    limits: {file of version 1: (file of version 2, value)}; the value of `cpu.max` is quota and period.
    """
    first = (ROOT / controller).is_dir()
    folder = (ROOT / controller if first else ROOT) / f"placewright-campaign-{os.getpid()}"
    try:
        folder.mkdir()
        for old, (new, value) in limits.items():
            (folder / (old if first else new)).write_text(value.split()[0] if first else value, encoding="ascii")
    except OSError:
        with contextlib.suppress(OSError):
            folder.rmdir()
        yield None
        return
    try:
        yield folder
    finally:
        for _ in range(100):  # the last process of it may still be on its way out
            with contextlib.suppress(OSError):
                folder.rmdir()
                break
            time.sleep(0.05)


def memory_group(limit_bytes: int) -> contextlib.AbstractContextManager[Path | None]:
    """Give a group whose processes have so much memory together."""
    return cgroup("memory", {"memory.limit_in_bytes": ("memory.max", str(limit_bytes))})


def processor_group(share: float) -> contextlib.AbstractContextManager[Path | None]:
    """Give a group whose processes have such a share of one processor together."""
    return cgroup("cpu", {"cpu.cfs_quota_us": ("cpu.max", f"{int(share * PERIOD_US)} {PERIOD_US}")})
