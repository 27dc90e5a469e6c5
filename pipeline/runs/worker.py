"""A process that executes tasks.

in   {"task": {...}, "store": path, "previous": parts or null, "alone": whether the machine is held for it already}
out  {"ran", "why", "seconds"} or {"error": {"cause", "remedy"}}
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from pipeline.artifacts.machine_lock import measuring_alone
from pipeline.artifacts.store import Store
from pipeline.artifacts.task import Progress, Task, run_task
from pipeline.core.workers import serve
from pipeline.runs.steps import STEPS


def answer(command: dict[str, Any]) -> dict[str, Any]:
    """Return what became of one task.

    Raises:
        PlacewrightError: it failed.
    """
    task = Task(**command["task"])
    alone = _held if command["alone"] else measuring_alone
    store = Store(Path(command["store"]))
    outcome = run_task(task, store, STEPS, lambda text: None, command["previous"], alone=alone)
    return {"ran": outcome.ran, "why": outcome.why, "seconds": outcome.seconds}


def _held(_: Progress) -> AbstractContextManager[float]:
    """Hold nothing: whoever started this process holds the machine."""
    return nullcontext(0.0)


if __name__ == "__main__":
    serve(answer)
