"""A process that executes tasks.

in   {"tasks": [{...}, ...], "store": path, "previous": {stage: parts}, "alone": whether the machine is held already}
out  {"done": [{"ran", "why", "seconds"}, ...]}, one per task in their order; behind those before a task that fails
     also "error": {"cause", "remedy", "exit_code"} and "doing": the stage that failed
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from pipeline.stages.plan import STEPS
from pipeline.store.store import Store
from pipeline.store.task import Progress, Task, run_task
from pipeline.system.machine_lock import measuring_alone
from pipeline.system.workers import Begin, answered, serve_in_steps


def answer(command: dict[str, Any], begin: Begin = lambda stage: None) -> dict[str, Any]:
    """Return what became of tasks that follow one another; begin: told of every stage when it begins."""
    done: list[dict[str, Any]] = []

    def execute(_: dict[str, Any]) -> dict[str, Any]:
        alone = _held if command["alone"] else measuring_alone
        store = Store(Path(command["store"]))
        for task in (Task(**each) for each in command["tasks"]):
            begin(task.stage)
            previous = command["previous"].get(task.stage)
            outcome = run_task(task, store, STEPS, lambda text: None, previous, alone=alone)
            done.append({"ran": outcome.ran, "why": outcome.why, "seconds": outcome.seconds})
        return {}

    told = answered(execute, command)
    if "error" in told:
        told = {**told, "doing": command["tasks"][len(done)]["stage"]}
    return {"done": done, **told}


def _held(_: Progress) -> AbstractContextManager[float]:
    """Hold nothing: whoever started this process holds the machine."""
    return nullcontext(0.0)


if __name__ == "__main__":
    serve_in_steps(answer)
