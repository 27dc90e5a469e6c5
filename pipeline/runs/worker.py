"""A process that executes tasks.

in   {"task": {...}, "store": path, "previous": parts or null}
out  {"ran", "why", "seconds"} or {"error": {"cause", "remedy"}}
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.artifacts.store import Store
from pipeline.artifacts.task import Task, run_task
from pipeline.core.workers import serve
from pipeline.runs.steps import STEPS


def answer(command: dict[str, Any]) -> dict[str, Any]:
    """Return what became of one task.

    Raises:
        PlacewrightError: it failed.
    """
    task = Task(**command["task"])
    outcome = run_task(task, Store(Path(command["store"])), STEPS, lambda text: None, command["previous"])
    return {"ran": outcome.ran, "why": outcome.why, "seconds": outcome.seconds}


if __name__ == "__main__":
    serve(answer)
