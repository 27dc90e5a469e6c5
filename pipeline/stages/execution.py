"""Executing the tasks of a run against the store, and saying beforehand which of them would run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypedDict

from pipeline.core.deadline import NEVER, Deadline
from pipeline.stages.plan import STEPS
from pipeline.store.store import Store
from pipeline.store.task import Outcome, Progress, Task, look_up, run_task
from pipeline.system.machine_lock import measuring_alone


def execute_tasks(
    tasks: Sequence[Task],
    store: Store,
    *,
    progress: Progress,
    previous: Mapping[str, Any],
    finished: Callable[[Outcome], None] = lambda outcome: None,
    deadline: Deadline = NEVER,
) -> dict[str, Outcome]:
    """Return the outcome of every task, executed in order, all of them before the deadline.

    From the first that measures on, nobody else measures on this machine; the time spent waiting for that does not
    count, nor does compiling kernels.

    previous: stage -> parts of the key it had the last time. finished: called after every stage, so that what is
    done is on record before the next begins.
    """
    outcomes: dict[str, Outcome] = {}
    with contextlib.ExitStack() as run:

        @contextlib.contextmanager
        def alone(say: Progress) -> Iterator[float]:
            # Till the end of the run: what it computes between two measurements would disturb who measures meanwhile.
            yield run.enter_context(measuring_alone(say))

        for task in tasks:
            outcome = run_task(task, store, STEPS, progress, previous.get(task.stage), deadline, alone=alone)
            deadline = deadline.later(outcome.waited_s + outcome.compiled_s)
            outcomes[task.stage] = outcome
            finished(outcome)
    return outcomes


class Forecast(TypedDict):
    """Whether a task would run, and why."""

    stage: str
    name: str
    key: str
    would_run: bool
    why: str


def forecast_tasks(tasks: Sequence[Task], store: Store, previous: Mapping[str, Any]) -> list[Forecast]:
    """Return for every task whether it would run, and why."""
    rows: list[Forecast] = []
    for task in tasks:
        entry, why = look_up(task, store, previous.get(task.stage))
        rows.append({"stage": task.stage, "name": task.name, "key": task.key, "would_run": entry is None, "why": why})
    return rows
