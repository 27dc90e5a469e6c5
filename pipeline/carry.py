"""A process that executes tasks: a JSON line in on standard input, a JSON line out on standard output, for each.

in   {"task": {...}, "store": path, "previous": parts or null}
out  {"ran", "why", "seconds"} or {"error": {"cause", "remedy"}}

It ends when its input does, or when the process that started it dies.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pipeline.core.errors import PlacewrightError
from pipeline.core.process import die_with_parent
from pipeline.steps import STEPS
from pipeline.store import Store
from pipeline.task import Task, carry_out


def answer(command: dict[str, Any]) -> dict[str, Any]:
    """Return what became of one task."""
    task = Task(**command["task"])
    try:
        outcome = carry_out(task, Store(Path(command["store"])), STEPS, lambda text: None, command["previous"])
    except PlacewrightError as error:
        return {"error": {"cause": error.cause, "remedy": error.remedy}}
    return {"ran": outcome.ran, "why": outcome.why, "seconds": outcome.seconds}


def main() -> None:
    """Execute the tasks on standard input, one after another."""
    die_with_parent()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what native code prints must not mix with the answers
    for line in sys.stdin:
        answers.write(json.dumps(answer(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
