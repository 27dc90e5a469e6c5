"""Forgetting what was measured, so that a run measures it again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.store.store import Store, json_digest
from pipeline.store.task import Task

if TYPE_CHECKING:
    from pipeline.stages.execution import Forecast

WHY = "--remeasure"


def measured_tasks(tasks: Sequence[Task]) -> list[Task]:
    """Return those of a run's tasks that measure, and what is made of them.

    What is made of a measurement has a key that its figures do not change, and so must be made again with it.
    """
    by_key: dict[str, Task] = {}
    for task in tasks:
        if task.measures or by_key.keys() & task.inputs.keys():
            by_key[task.stage] = task
    return list(by_key.values())


def forget_measured(tasks: Sequence[Task], store: Store) -> None:
    """Remove what the store holds of a run's measurements: artifacts, and journals of interrupted stages."""
    for task in measured_tasks(tasks):
        store.forget(task.key)
        if task.series:
            store.forget_series(json_digest(task.series))


def without_measured(rows: Sequence[Forecast], tasks: Sequence[Task]) -> list[Forecast]:
    """Return the forecast of a run whose measurements would be forgotten."""
    gone = {task.stage for task in measured_tasks(tasks)}
    return [{**row, "would_run": True, "why": WHY} if row["stage"] in gone else row for row in rows]
