"""Many jobs over one store: models x devices x settings x seeds.

What is not in the store is handed to an engine, that of this machine or one for many (`pipeline/fleet`). Stages that
do not measure run side by side, a stage that measures has its machine to itself. A job that fails becomes a row with
its cause.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from pipeline.api import model_path
from pipeline.artifacts.store import Store, digest, write_json, write_text
from pipeline.artifacts.task import Task
from pipeline.batch.jobs import Job, file_stems
from pipeline.batch.ledger import JobProgress, Ledger, Say
from pipeline.config import Settings
from pipeline.core.errors import PlacewrightError
from pipeline.fleet.dispatch import FleetDispatcher
from pipeline.fleet.engine import Command, Engine
from pipeline.report.comparison import RECORD, DrawnComparison, interval_row, write_comparisons
from pipeline.runs.directory import RunDirectory, previous_parts
from pipeline.runs.plan import HostMachine, ModelFile, look_at_model, plan, with_seed
from pipeline.runs.remeasure import forget_measured
from pipeline.runs.result import Result

ABOUT = (
    "How many times as fast each job's answer is as the best single device of the same run, with the interval that the "
    "run claims. A hollow point has none: the run was simulated, or claims no gain."
)
WORKER = "pipeline.runs.worker"  # the module whose processes execute stages
COLUMNS = (
    "job",
    "model",
    "devices",
    "seed",
    "settings",
    "best",
    "median_s",
    "low_s",
    "high_s",
    "speedup",
    "speedup_low",
    "speedup_high",
    "verdict",
    "failed",
)


def run_batch(
    jobs: Sequence[Job],
    out: Path,
    store: Store,
    *,
    engine: Engine,
    say: Say,
    progress: Say = lambda _: None,
    remeasure: bool = False,
) -> list[dict[str, Any]]:
    """Return one row per job, in order, with COLUMNS as keys; also written as table.csv and table.jsonl, and as
    pictures of intervals.

    engine: what executes stages, already entered. say: told what becomes of jobs. progress: told how far all are.
    remeasure: whether what these jobs measured is forgotten first.

    Raises:
        StoreError: `out` cannot be written.
        DeviceError: the engine is gone; what is finished is kept.
    """
    write_json(out / "jobs.json", [asdict(j) for j in jobs])
    begun = plan_jobs(jobs, out, store, engine, say)
    if remeasure:
        for p in begun:
            forget_measured(p.tasks, store)
    _work(begun, store, engine, say, progress)
    rows = [_row(p) for p in begun]
    write_text(out / "table.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    cells = io.StringIO()
    writer = csv.DictWriter(cells, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(out / "table.csv", cells.getvalue())
    compared = comparisons(rows)
    if compared or (out / RECORD).exists():  # what an earlier batch compared there is no longer true
        write_comparisons(out, compared)
    return rows


def comparisons(rows: Sequence[Mapping[str, Any]]) -> list[DrawnComparison]:
    """Return one comparison per model of a batch's table: the jobs by how much faster than its best device alone."""
    found = []
    models = list(dict.fromkeys(row["model"] for row in rows if row["best"]))
    for model, stem in zip(models, file_stems(models), strict=True):
        mine = sorted((r for r in rows if r["model"] == model and r["best"]), key=lambda r: -r["speedup"])
        drawn = tuple(
            interval_row(
                row["job"],
                (row["speedup"], row["speedup_low"], row["speedup_high"]),
                "best" if [r for r in mine if r["speedup"] >= row["speedup"]] == [row] else "other",
            )
            for row in mine
        )
        found.append(DrawnComparison(f"intervals-{stem}.svg", f"{stem}: jobs", ABOUT, "its best single device", drawn))
    return found


def plan_jobs(jobs: Sequence[Job], out: Path, store: Store, engine: Engine, say: Say) -> list[JobProgress]:
    """Return the jobs with their tasks; what is wrong with a model or its devices is that job's failure."""
    looking = _Looking(store, engine)
    return [_begin(job, out / job.name, looking, say) for job in jobs]


class _Looking:
    """What jobs share: models, machines, and plans of those that differ in their seeds alone; each looked at once."""

    def __init__(self, store: Store, engine: Engine) -> None:
        self._plans: dict[tuple[str, str, str], list[Task]] = {}
        self.model = cache(lambda text: look_at_model(model_path(text, store)))
        self.machines = cache(partial(_machines, engine))

    def tasks(self, model: ModelFile, settings: Settings, machine: HostMachine) -> list[Task]:
        """Return the tasks of a job."""
        alike = digest(replace(settings, seed=0).to_json()), f"{model.path} {model.sha256}", machine.fingerprint
        if alike not in self._plans:
            self._plans[alike] = plan(model, settings, machine)
        return with_seed(self._plans[alike], settings.seed)


def _machines(engine: Engine, devices: Sequence[str]) -> Sequence[HostMachine] | PlacewrightError:
    """Return the machines with these devices, or why there is none: that is asked once as well."""
    try:
        return engine.machines(devices)
    except PlacewrightError as error:
        return error


def _begin(job: Job, folder: Path, looking: _Looking, say: Say) -> JobProgress:
    p = JobProgress(job, RunDirectory(folder))
    try:
        p.model = looking.model(job.model)
        known = p.directory.check_for(p.model)
        before = known.get("machine", {}).get("fingerprint") if known is not None else None
        there = looking.machines(job.settings.devices)
        if isinstance(there, PlacewrightError):
            raise there
        # A run goes on where it was begun, if such a machine is there.
        p.machine = next((m for m in there if m.fingerprint == before), there[0])
        p.previous = previous_parts(known)
        p.tasks = looking.tasks(p.model, job.settings, p.machine)
        p.keys = [task.key for task in p.tasks]
    except PlacewrightError as error:
        p.failed = str(error)
        say(f"{job.name}: failed: {error}")
    return p


def _work(jobs: Sequence[JobProgress], store: Store, engine: Engine, say: Say, progress: Say) -> None:
    """Bring all jobs as far as they come."""
    dispatcher = FleetDispatcher(engine, say)
    rank = {id(p): i for i, p in enumerate(jobs)}

    def want(p: JobProgress, task: Task, key: str) -> None:
        document = {"task": asdict(task), "store": str(store.root), "previous": p.previous.get(task.stage)}
        command = Command(
            name=key,
            title=f"{p.job.name}: {task.stage}",
            document={**document, "alone": False},
            fingerprint=task.fingerprint,
            alone=task.measures,
            rank=rank[id(p)],
        )
        dispatcher.add(command)

    ledger = Ledger(store, say, want)
    for p in jobs:
        ledger.advance(p)
    while len(dispatcher):
        progress(f"{sum(p.over for p in jobs):,} of {len(jobs):,} jobs are done")
        for settled in dispatcher.wait():
            ledger.settle(settled.name, settled.answer)


def _row(p: JobProgress) -> dict[str, Any]:
    settings = {k: v for k, v in p.job.changed.items() if k not in ("devices", "seed")}
    row: dict[str, Any] = dict.fromkeys(COLUMNS, "") | {
        "job": p.job.name,
        "model": p.job.model,
        "devices": " ".join(p.job.settings.devices) or "those of the machine",
        "seed": p.job.settings.seed,
        "settings": json.dumps(settings) if settings else "",
        "failed": p.failed,
    }
    if p.failed:
        return row
    result = Result.load(p.directory.path)
    latency, speedup = result.best.latency_s, result.record.speedup_over_best_single
    if latency is None:
        raise ValueError(f"the best candidate of {p.directory.path} has no latency")
    return row | {
        "best": result.record.best,
        "median_s": latency.median,
        "low_s": latency.low,
        "high_s": latency.high,
        "speedup": speedup.ratio,
        "speedup_low": speedup.low,
        "speedup_high": speedup.high,
        "verdict": result.verdict,
    }
