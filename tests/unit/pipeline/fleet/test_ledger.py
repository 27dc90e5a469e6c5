"""What becomes of jobs that wait for the artifacts of others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.fleet.jobs import Job
from pipeline.fleet.ledger import Chain, JobProgress, Ledger
from pipeline.result.directory import RunDirectory
from pipeline.settings.config import Settings
from pipeline.store.store import Store
from pipeline.store.task import Task
from pipeline.system.workers import Answer

OWN = Task("embed", "sage", {}, {"own": 1}, 0, {})
SHARED = Task("group", "metis", {}, {}, 0, {})
BROKEN: Answer = {"error": {"cause": "It is broken.", "remedy": "Mend it."}}


def job(folder: Path, name: str, *tasks: Task) -> JobProgress:
    p = JobProgress(Job(name, "m.xml", Settings(), {}), RunDirectory(folder / name))
    p.tasks, p.keys = list(tasks), [task.key for task in tasks]
    return p


@pytest.mark.parametrize(
    ("failed_at", "wanted", "said"),
    [
        (OWN, [["embed", "group"], ["group"]], ["a: failed: It is broken. Mend it."]),
        (SHARED, [["group"]], ["a: failed: It is broken. Mend it.", "b: failed: It is broken. Mend it."]),
    ],
)
def test_a_job_fails_with_another_only_if_what_it_waits_for_has_failed(
    failed_at: Task, wanted: list[list[str]], said: list[str], tmp_path: Path
) -> None:
    asked: list[list[str]] = []
    told: list[str] = []

    def want(p: JobProgress, chain: Chain) -> None:
        asked.append([task.stage for task, _ in chain])

    first = job(tmp_path, "a", *([OWN] if failed_at is OWN else []), SHARED)
    second = job(tmp_path, "b", SHARED, replace(OWN, seed=1))
    jobs = {OWN.key: 1, SHARED.key: 2, second.keys[1]: 1}
    ledger = Ledger(Store(tmp_path / "store"), told.append, want, jobs=jobs, alike=True)
    ledger.advance(first)
    ledger.advance(second)
    ledger.settle(SHARED.key, BROKEN)
    assert asked == wanted
    assert told == said
    assert (first.over, second.over) == (True, failed_at is SHARED)
