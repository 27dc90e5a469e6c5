"""What the workers of the tests' fleets run: the stages, counted in a file, with faults that the environment names.

FLEET_LOG: the file that gets a line per stage that was executed: worker, stage, key. FLEET_FAULT, of one worker:
"full" (the disk of the store is), "wrong" (every stage fails), "dies" (the process ends), "hangs" (as soon as it
measures; FLEET_LOG.hangs tells so). Figures of profiles are made up.
"""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import MeasurementError
from pipeline.stages import worker
from pipeline.store import store
from pipeline.store.task import Task
from pipeline.system.workers import Begin, serve_commands
from tests.profiles import make_up_profiles

MODULE = "tests.fleet_worker"


def note(*words: str) -> None:
    """Add a line to the log, whole even if others do so at the same time."""
    out = os.open(os.environ["FLEET_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(out, (" ".join(words) + "\n").encode())
    os.close(out)


def full(path: Path, value: Any) -> None:
    """Find no room on the disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def execute_tasks(command: dict[str, Any], begin: Begin) -> dict[str, Any]:
    """Return what became of stages, which are counted if they ran; begin: told of each."""
    fault, who = os.environ.get("FLEET_FAULT", ""), os.environ["FLEET_WORKER"]
    tasks = [Task(**task) for task in command["tasks"]]
    stage = tasks[0].stage
    with pytest.MonkeyPatch.context() as patch:
        make_up_profiles(patch)
        if fault == "full":
            patch.setattr(store, "write_json", full)  # as an entry is written
        if fault == "wrong":
            note(who, "failed", stage)
            raise MeasurementError("This worker fails at everything.", "Mend it.")
        if fault == "dies":
            note(who, "failed", stage)
            os._exit(3)
        if fault == "hangs" and stage == "profile":
            begin(stage)
            Path(os.environ["FLEET_LOG"] + ".hangs").touch()
            signal.pause()
        found = worker.execute_tasks(command, begin)
    for task, done in zip(tasks, found["done"], strict=False):  # what comes behind a failure is not done
        if done["ran"]:
            note(who, "made", task.stage, task.key)
    return found


if __name__ == "__main__":
    serve_commands({"tasks": execute_tasks})
