"""How much of the machine's processors this process may use: which ones, and what share of their time.

A container's limit is one of two kinds. A cpuset, or an affinity, says which processors: the runtime respects it. A
quota says how much processor time all threads together get in a period of usually 0.1 s: once it is used up they all
stand still until the period ends. The runtime does not look at quotas and starts a thread for every processor it sees.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class UsableProcessors:
    """The processors of this process.

    ids: their numbers, rising; () where the system does not tell which. quota: how many processors' worth of time it
    gets; None without a limit. online: how many the machine has.
    """

    ids: tuple[int, ...]
    quota: float | None
    online: int

    @property
    def count(self) -> int:
        """Return how many threads can run all the time, at least 1.

        A fraction of a processor does not count: a thread more than the quota feeds stops all others with it.
        """
        allowed = len(self.ids) or self.online
        return allowed if self.quota is None else max(1, min(allowed, math.floor(self.quota)))

    @property
    def limited(self) -> bool:
        """Return whether the quota leaves fewer than the runtime sees."""
        return self.count < (len(self.ids) or self.online)

    @property
    def cpuset(self) -> str:
        """Return the numbers as the kernel writes them, "0-3,8"; "all" where they are not known."""
        return format_ranges(self.ids) or "all"


def usable_processors(root: Path = ROOT) -> UsableProcessors:
    """Return the processors this process may use now.

    root: where /proc and /sys are found; another than "/" for what is not this machine.
    """
    ids = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()
    return UsableProcessors(ids, cpu_quota(root), os.cpu_count() or 1)


def busy_seconds() -> float:
    """Return how long the processors that this process may use have been busy, whoever used them, since the start."""
    import psutil

    every, ids = psutil.cpu_times(percpu=True), usable_processors().ids
    return sum(busy_of(times) for times in [each for i, each in enumerate(every) if i in ids] or every)


def busy_of(times: Any) -> float:
    """Return how long processors ran a program, of the times that psutil tells of one or of all."""
    return float(times.user + times.system + getattr(times, "nice", 0.0))  # Windows knows no nice processes


def cpu_quota(root: Path = ROOT) -> float | None:
    """Return how many processors' worth of time the process's control groups leave it; None without a limit.

    The tightest limit of its group and of all groups above it holds, in version 1 (cpu.cfs_quota_us) as in version 2
    (cpu.max). Groups are looked for where systemd and container engines mount them, below /sys/fs/cgroup. Where a
    container sees its own group as the root of what is mounted, the names above it are absent, and its root counts.

    Source: the kernel's Documentation/admin-guide/cgroup-v2.rst and Documentation/scheduler/sched-bwc.rst.
    """
    return min((limit for folder in _control_groups(root) if (limit := _group_limit(folder)) is not None), default=None)


def _control_groups(root: Path) -> Iterator[Path]:
    """Give the folders of the groups that may limit this process's time, those above it included."""
    mounted = root / "sys/fs/cgroup"
    for line in _file_text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            bases = [mounted, mounted / "unified"]
        elif "cpu" in controllers.split(","):
            bases = [mounted / controllers, mounted / "cpu"]
        else:
            continue
        inner = PurePosixPath(*(part for part in PurePosixPath(path).parts if part not in ("/", "..")))
        for base in bases:
            yield from (base / above for above in (inner, *inner.parents))


def _group_limit(group: Path) -> float | None:
    """Return how many processors' worth of time one group may use; None without a limit of its own."""
    quota, _, period = _file_text(group / "cpu.max").partition(" ")
    if not quota:
        quota, period = _file_text(group / "cpu.cfs_quota_us"), _file_text(group / "cpu.cfs_period_us")
    try:
        share = float(quota) / float(period)
    except (ValueError, ZeroDivisionError):  # "max", or files that are not there
        return None
    return share if share > 0 else None  # -1 stands for no limit in version 1


def _file_text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:  # no such group, no such system, or nobody may look
        return ""


def format_ranges(ids: Iterable[int]) -> str:
    """Return numbers as the kernel writes lists of processors.

    >>> format_ranges([5, 0, 1, 2])
    '0-2,5'
    """
    runs: list[list[int]] = []
    for i in sorted(set(ids)):
        if runs and runs[-1][-1] == i - 1:
            runs[-1].append(i)
        else:
            runs.append([i])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def from_ranges(text: str) -> frozenset[int]:
    """Return the numbers of a list of processors as the kernel writes it.

    >>> sorted(from_ranges("0-2,5"))
    [0, 1, 2, 5]
    """
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    return frozenset(numbers)


def processor_seconds() -> float:
    """Return the seconds of processors that this process has used, and those of its own that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
