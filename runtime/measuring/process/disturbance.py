"""Whether threads of this process waited for a processor, and whether other processes had it meanwhile."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from pipeline.system.processors import busy_of
from runtime.measuring.process.answers import Waited


@dataclass(frozen=True, slots=True)
class Look:
    """What the processors have done until a moment.

    threads: nanoseconds that each thread of this process ran and waited. others_s: seconds that other processes ran.
    """

    threads: Mapping[str, tuple[int, int]]
    others_s: float


def read_processor_times() -> Look:
    """Return what the processors have done until now."""
    return Look(scheduled_ns(), busy_of(psutil.cpu_times()) - time.process_time())


def scheduled_ns() -> dict[str, tuple[int, int]]:
    """Return how long each thread of this process has run and has waited for a processor; {} where nobody says."""
    scheduled: dict[str, tuple[int, int]] = {}
    for stat in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended since it was listed
            ran, waited, _ = stat.read_text(encoding="ascii").split()
            scheduled[stat.parent.name] = int(ran), int(waited)
    return scheduled


def waited_between(before: Mapping[str, tuple[int, int]], after: Mapping[str, tuple[int, int]]) -> Waited:
    """Return how long the threads waited for a processor, and how long they wanted one: waiting or running."""
    ran = waited = 0
    for thread, (ran_ns, waited_ns) in after.items():
        first_ran_ns, first_waited_ns = before.get(thread, (0, 0))
        ran, waited = ran + ran_ns - first_ran_ns, waited + waited_ns - first_waited_ns
    return {"run_delay_s": waited * 1e-9, "runnable_s": (ran + waited) * 1e-9}


def disturbed_share(before: Look, after: Look) -> float:
    """Return the share of the time that threads wanted a processor in which they waited and another process had it."""
    waited = waited_between(before.threads, after.threads)
    return waiting_share(waited["run_delay_s"], waited["runnable_s"], after.others_s - before.others_s)


def waiting_share(run_delay_s: float, runnable_s: float, others_s: float) -> float:
    """Return the share of the time that threads wanted a processor in which they waited for other processes.

    Threads of one process wait for one another, too: no longer is blamed on others than these ran, others_s.
    """
    return min(run_delay_s, max(0.0, others_s)) / runnable_s if runnable_s else 0.0
