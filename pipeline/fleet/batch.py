"""Many jobs over one store: models x devices x settings x seeds.

What is not in the store is handed to an engine, that of this machine or one for many (`pipeline/fleet`). Stages that
do not measure run side by side, a stage that measures has its machine to itself. A job that fails becomes a row with
its cause.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from typing_extensions import TypedDict

from pipeline.api import model_path, plan_scenario_file
from pipeline.core.errors import DeviceError, ModelError, PlacewrightError, UsageError
from pipeline.fleet.dispatch import FleetDispatcher
from pipeline.fleet.engine import ANY, Command, Engine
from pipeline.fleet.jobs import EVERY, Job, file_stems
from pipeline.fleet.ledger import Chain, JobProgress, Ledger, Say
from pipeline.progress.compile_notice import tell_of_compiling
from pipeline.report.batch_page import write_batch_page
from pipeline.report.comparison import RECORD, DrawnComparison, interval_row, write_comparisons
from pipeline.result.directory import RunDirectory, previous_parts
from pipeline.result.result import Result
from pipeline.scenario.scenario_file import read_scenario
from pipeline.settings.config import Settings
from pipeline.stages.host import HostMachine, ModelFile, look_at_model
from pipeline.stages.plan import plan_tasks, with_seed
from pipeline.stages.without_measured import forget_measured, measured_tasks
from pipeline.store.store import Store, json_digest, write_json, write_text
from pipeline.store.task import FILES, Task

ABOUT = (
    "How many times as fast each job's answer is as the best single device of the same run, with the interval that the "
    "run claims. A hollow point has none: the run was simulated, or claims no gain."
)
PLACE = "place"  # the stage that runs compiled kernels
FAILED_JOBS = 5  # the exit code where jobs failed
WORKER = "pipeline.stages.worker"  # the module whose processes execute stages
READ_FROM = ("model", "input")  # of a task's context: the paths of files


class JobRow(TypedDict):
    """A row of the table of a batch; of a job that failed "" stands for what it has not, and `failed` says why.

    A scenario has no latency, and its speed-up is over the best of defaults and hints.
    """

    job: str
    model: str
    devices: str
    machine: str
    seed: int
    settings: str
    best: str
    median_s: float | Literal[""]
    low_s: float | Literal[""]
    high_s: float | Literal[""]
    speedup: float | Literal[""]
    speedup_low: float | Literal[""]
    speedup_high: float | Literal[""]
    verdict: str
    failed: str


COLUMNS = tuple(JobRow.__annotations__)


class Batch(NamedTuple):
    """What jobs came to: a row each, a `JobRow`, and the exit code of the command."""

    rows: list[dict[str, Any]]
    exit_code: int


def run_batch(
    jobs: Sequence[Job],
    out: Path,
    store: Store,
    *,
    engine: Engine,
    say: Say,
    progress: Say = lambda _: None,
    remeasure: bool = False,
) -> Batch:
    """Return one row per job and machine it runs on, in order, and the exit code that they come to.

    Rows are also written as table.csv and table.jsonl, as a page that compares the machines, and as pictures of
    intervals.

    engine: what executes stages, already entered. say: told what becomes of jobs. progress: told how far all are, and
    what is started.
    remeasure: whether what these jobs measured is forgotten first.

    Raises:
        StoreError: `out` cannot be written.
        DeviceError: the engine is gone; what is finished is kept.
    """
    write_json(out / "jobs.json", [asdict(j) for j in jobs])
    planned = plan_jobs(jobs, out, store, engine, say)
    if remeasure:
        for p in planned:
            forget_measured(p.tasks, store)
    _execute_jobs(planned, store, engine, say, progress, remeasure=remeasure)
    _run_scenarios(planned, store, engine, say, progress, remeasure=remeasure)
    rows = [_job_row(p) for p in planned]
    write_text(out / "table.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    cells = io.StringIO()
    writer = csv.DictWriter(cells, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(out / "table.csv", cells.getvalue())
    kinds: dict[str, list[str]] = {}  # job, as it was asked for -> its runs, where it asks for every kind of machine
    for job in (p.job for p in planned if p.job.machines == EVERY):
        kinds.setdefault(job.asked or job.name, []).append(job.name)
    write_batch_page(out, rows, kinds)
    compared = compare_jobs(rows)
    if compared or (out / RECORD).exists():  # what an earlier batch compared there is no longer true
        write_comparisons(out, compared)
    codes = {p.exit_code for p in planned if p.failed}
    bad_models = ModelError.exit_code if codes == {ModelError.exit_code} else FAILED_JOBS
    return Batch(rows, bad_models if codes else 0)


def compare_jobs(rows: Sequence[Mapping[str, Any]]) -> list[DrawnComparison]:
    """Return one comparison per model of a batch's table: the jobs by how much faster than its best device alone."""
    pairs = []
    models = list(dict.fromkeys(row["model"] for row in rows if row["median_s"] != ""))
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
        pairs.append(DrawnComparison(f"intervals-{stem}.svg", f"{stem}: jobs", ABOUT, "its best single device", drawn))
    return pairs


def plan_jobs(jobs: Sequence[Job], out: Path, store: Store, engine: Engine, say: Say) -> list[JobProgress]:
    """Return the jobs with their tasks; what is wrong with a model or its devices is that job's failure.

    A job for every kind of machine is as many jobs as there are kinds, each named after its kind.
    """
    facts = _SharedFacts(store, engine)
    planned = []
    for job in jobs:
        runs = [job]
        if job.machines == EVERY:
            there = facts.machines(job.settings.devices)
            able = [] if isinstance(there, PlacewrightError) else [m.fingerprint for m in there]
            runs = [job.on(kind) for kind in dict.fromkeys([*able, *sorted(facts.kinds - {ANY})])] or [job]
        planned += [_plan_job(own, out / own.name, facts, say) for own in runs]
    return planned


class _SharedFacts:
    """What jobs share: models, machines, and plans of those that differ in their seeds alone; each looked up once."""

    def __init__(self, store: Store, engine: Engine) -> None:
        self._engine = engine
        self._plans: dict[tuple[str, str, str], list[Task]] = {}
        self.model = cache(lambda text: look_at_model(model_path(text, store)))
        self.machines = cache(self._find_machines)
        self.kinds = frozenset(w.fingerprint for w in engine.workers())

    def tasks(self, model: ModelFile, settings: Settings, machine: HostMachine) -> list[Task]:
        """Return the tasks of a job."""
        alike = json_digest(replace(settings, seed=0).to_json()), f"{model.path} {model.sha256}", machine.fingerprint
        if alike not in self._plans:
            self._plans[alike] = plan_tasks(model, settings, machine)
        return with_seed(self._plans[alike], settings.seed)

    def _find_machines(self, devices: Sequence[str]) -> Sequence[HostMachine] | PlacewrightError:
        """Return the machines with these devices, or why there is none: that is asked once as well."""
        try:
            return self._engine.machines(devices)
        except PlacewrightError as error:
            return error


def _plan_job(job: Job, folder: Path, facts: _SharedFacts, say: Say) -> JobProgress:
    p = JobProgress(job, RunDirectory(folder))
    if job.scenario:
        return p  # without tasks that workers know: see `_run_scenarios`
    try:
        p.model = facts.model(job.model)
        known = p.directory.check_for(p.model)
        before = known.get("machine", {}).get("fingerprint") if known is not None else None
        there = facts.machines(job.settings.devices)
        if isinstance(there, PlacewrightError):
            raise there
        if job.kind and job.kind not in {m.fingerprint for m in there}:
            raise DeviceError(
                f"Machines of the kind {job.kind} do not have the devices.", "Ask for devices that every machine has."
            )
        # A run goes on where it was begun, if such a machine is there.
        p.machine = next((m for m in there if m.fingerprint == (job.kind or before)), there[0])
        p.previous = previous_parts(known)
        p.tasks = facts.tasks(p.model, job.settings, p.machine)
        p.keys = [task.key for task in p.tasks]
    except PlacewrightError as error:
        p.failed, p.exit_code = str(error), error.exit_code
        say(f"{job.name}: failed: {error}")
    return p


def _execute_jobs(
    jobs: Sequence[JobProgress], store: Store, engine: Engine, say: Say, progress: Say, *, remeasure: bool
) -> None:
    """Bring all jobs as far as they come."""

    def started(title: str) -> None:
        progress(f"{sum(p.over for p in jobs):,} of {len(jobs):,} jobs are done; {title}")

    dispatcher = FleetDispatcher(engine, started)
    rank = {id(p): i for i, p in enumerate(jobs)}

    def want(p: JobProgress, chain: Chain) -> None:
        again = measured_tasks(p.tasks) if remeasure else []
        dispatcher.add(chain_command(p, chain, store, rank=rank[id(p)], again=again))

    alike = len({w.fingerprint for w in engine.workers()}) < 2
    ledger = Ledger(store, say, want, jobs=Counter(key for p in jobs for key in p.keys), alike=alike)
    for p in jobs:
        ledger.advance(p)
    # Workers of other machines have compiled code of their own.
    if not engine.retries and any(t.stage == PLACE for p in jobs if not p.over for t in p.tasks[len(p.outcomes) :]):
        tell_of_compiling(progress)
    for settled in dispatcher.settle():
        ledger.settle(settled.name, settled.answer)


def _run_scenarios(
    jobs: Sequence[JobProgress], store: Store, engine: Engine, say: Say, progress: Say, *, remeasure: bool
) -> None:
    """Tune the scenarios among the jobs, here and one after another: each has the machine to itself."""
    for p in jobs:
        if not p.job.scenario:
            continue
        try:
            from pipeline.report.scenario_page import write_scenario_page
            from pipeline.scenario.run import run_scenario

            if engine.retries:
                raise UsageError(
                    f"The scenario {p.job.model} runs on the machine of the batch alone.", "Leave --on out for it."
                )
            say_of = partial(_say_of_job, progress, p.job.name)
            plan = plan_scenario_file(read_scenario(Path(p.job.model)), p.job.settings, store)
            if remeasure:
                forget_measured(plan.tasks, store)
            result = run_scenario(plan, p.directory.path, store, progress=say_of)
            write_scenario_page(p.directory.path, p.directory.path / "report.html")
            say(f"{p.job.name}: {result.verdict}")
        except PlacewrightError as error:
            p.failed, p.exit_code = str(error), error.exit_code
            say(f"{p.job.name}: failed: {error}")


def _say_of_job(progress: Say, job: str, text: str) -> None:
    progress(f"{job}: {text}")


def chain_command(p: JobProgress, chain: Chain, store: Store, *, rank: int, again: Sequence[Task]) -> Command:
    """Return what executes a chain of a job's tasks; again: those that other stores have to forget first."""
    tasks, files = [], list[str]()
    for task, _ in chain:
        paths = {name: str(Path(task.context[name]).absolute()) for name in READ_FROM if task.context.get(name)}
        tasks.append(replace(task, context={**task.context, **paths}))
        files += [*paths.values(), *task.context.get(FILES, {}).values()]
    makes = [key for _, key in chain]
    return Command(
        name=makes[-1],
        subject=p.job.name,
        title=f"{p.job.name}: {', '.join(task.stage for task in tasks)}",
        document={
            "tasks": [asdict(task) for task in tasks],
            "store": str(store.root),
            "previous": {task.stage: p.previous.get(task.stage) for task in tasks},
            "alone": False,
        },
        fingerprint=next((task.fingerprint for task in tasks if task.fingerprint), ANY),
        alone=any(task.measures for task in tasks),
        rank=rank,
        reads=tuple(dict.fromkeys(k for task in tasks for k in task.inputs.values() if k not in makes)),
        makes=tuple(makes),
        forgets=tuple(k for task in again if task.key in makes for k in (task.key, json_digest(task.series))),
        files=tuple(dict.fromkeys(files)),
    )


def _job_row(p: JobProgress) -> dict[str, Any]:
    settings = {k: v for k, v in p.job.changed.items() if k not in ("devices", "seed")}
    row: dict[str, Any] = dict.fromkeys(COLUMNS, "") | {
        "job": p.job.name,
        "model": p.job.model,
        "devices": " ".join(p.job.settings.devices) or "those of the machine",
        "machine": p.job.kind or (p.machine.fingerprint if p.machine is not None else ""),
        "seed": p.job.settings.seed,
        "settings": json.dumps(settings) if settings else "",
        "failed": p.failed,
    }
    if p.failed:
        return row
    if p.job.scenario:
        from pipeline.scenario.run import load_scenario_result

        told = load_scenario_result(p.directory.path)
        gain = {"speedup": told.speedup.ratio, "speedup_low": told.speedup.low, "speedup_high": told.speedup.high}
        return row | {"best": told.best, **gain, "verdict": told.verdict}
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
