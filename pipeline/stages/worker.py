"""A process that executes tasks.

in   {"tasks": [{...}, ...], "store": path, "previous": {stage: parts}, "alone": whether the machine is held already}
out  {"done": [{"ran", "why", "seconds"}, ...]}, one per task in their order; behind those before a task that fails
     also "error": {"cause", "remedy", "exit_code"} and "doing": the stage that failed
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

from pipeline.core.errors import PlacewrightError, error_document
from pipeline.stages.plan import STEPS
from pipeline.store.store import Store
from pipeline.store.task import Task, run_task
from pipeline.system.machine_lock import measuring_alone
from pipeline.system.workers import Begin, ignore_step, serve_commands


def execute_tasks(command: dict[str, Any], begin: Begin = ignore_step) -> dict[str, Any]:
    """Return what became of tasks that follow one another; begin: told of every stage when it begins."""
    done: list[dict[str, Any]] = []
    # Whoever started this process may hold the machine for it.
    alone = (lambda _: nullcontext(0.0)) if command["alone"] else measuring_alone
    store = Store(Path(command["store"]))
    for task in (Task(**each) for each in command["tasks"]):
        begin(task.stage)
        previous = command["previous"].get(task.stage)
        try:
            outcome = run_task(task, store, STEPS, ignore_step, previous, alone=alone)
        except PlacewrightError as error:
            return {"done": done, "error": error_document(error), "doing": task.stage}
        done.append({"ran": outcome.ran, "why": outcome.why, "seconds": outcome.seconds})
    return {"done": done}


if __name__ == "__main__":
    serve_commands({"tasks": execute_tasks})
