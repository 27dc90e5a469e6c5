"""How long `placewright --help` takes."""

from __future__ import annotations

import os
from collections.abc import Iterator

from benchmarks.common import PLACEWRIGHT, Figure, figure, process_s, say

PROCESSES = 9
TARGET_S = 0.3


def figures() -> Iterator[Figure]:
    """Yield the seconds of a process, and those it spends on a processor."""
    how = f"`placewright --help`, process start to end, median of {PROCESSES} processes after one that does not count"
    before_s = children_cpu_s()
    yield figure("help_time", process_s([PLACEWRIGHT, "--help"], PROCESSES), "s", how, target=TARGET_S)
    spent_s = (children_cpu_s() - before_s) / (PROCESSES + 1)
    yield figure("help_time.cpu", spent_s, "s", f"processor seconds, which other processes disturb less; mean; {how}")


def children_cpu_s() -> float:
    """Return the processor seconds of all finished child processes."""
    times = os.times()
    return times.children_user + times.children_system


if __name__ == "__main__":
    say(figures())
