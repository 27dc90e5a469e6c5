"""A load of a stated size: processes that keep a processor busy each, at the priority of any program.

What is measured beside it says what a model takes on a machine that does other things, too. The same module is the
program of one of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pipeline.core.settings import MeasureSettings
from pipeline.system.process import Piped, cpu_count, die_with_parent

PER_THREAD = 2  # processors for which one thread is busy, unless a number is set


def load_threads(settings: MeasureSettings) -> int:
    """Return how many threads are kept busy beside the measurement: 0 unless it is to share the machine."""
    if settings.condition != "shared":
        return 0
    return settings.load_threads or max(1, cpu_count() // PER_THREAD)


@contextlib.contextmanager
def beside_load(threads: int) -> Iterator[None]:
    """Keep so many threads busy meanwhile, each in a process of its own that has begun."""
    with contextlib.ExitStack() as stack:
        running = []
        for _ in range(threads):
            process = Piped(__name__)
            stack.callback(process.close)
            running.append(process)
        for process in running:
            process.receive()
        yield


def keep_busy() -> None:
    """Say that it begins, then count for ever."""
    die_with_parent()
    print(flush=True)  # noqa: T201  the parent waits for this line
    while True:
        pass


if __name__ == "__main__":
    keep_busy()
