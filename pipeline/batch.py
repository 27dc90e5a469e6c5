"""Many jobs over one store: models x devices x settings x seeds.

Jobs advance stage by stage. A stage is a task; what is not in the store is handed to `pipeline/core/workers.py`. Stages
that do not measure run side by side, a stage that measures has the machine to itself. An artifact that two jobs need
has one key and is made once. A job that fails becomes a row with its cause.
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.api import model_path
from pipeline.artifacts.machine_lock import measuring_alone
from pipeline.artifacts.store import Store, write_json, write_text
from pipeline.artifacts.task import Outcome, Task, look_up
from pipeline.config import Settings, flatten, read_toml
from pipeline.core.errors import PlacewrightError, UnknownNameError, UsageError
from pipeline.core.workers import Answer, Workers
from pipeline.report.run_page import write_report
from pipeline.runs.directory import ManifestRecord, RunDirectory, previous_parts
from pipeline.runs.plan import HostMachine, ModelFile, look_at_machine, look_at_model, plan
from pipeline.runs.remeasure import forget_measured
from pipeline.runs.result import Result, write_result

TOP_KEYS = ("defaults", "jobs")
JOB_KEYS = ("name", "models", "devices", "seeds", "settings")
EXAMPLES = {
    "models": '"a.xml", "zoo:resnet50"',
    "devices": '"CPU", "A=CPU{INFERENCE_NUM_THREADS=1},B=CPU{INFERENCE_NUM_THREADS=1}"',
    "settings": '{"place.evaluations" = 100}, {}',
    "seeds": "0, 1",
}
LONGEST_NAME = 200  # bytes; file systems take 255, and temporary names add to it
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
    "verdict",
    "failed",
)

Say = Callable[[str], None]
Look = tuple[Callable[[Path], ModelFile], Callable[[Sequence[str]], HostMachine]]


@dataclass(frozen=True, slots=True)
class Job:
    """One model on one set of devices with one set of settings."""

    name: str
    model: str
    settings: Settings
    changed: Mapping[str, Any]


@dataclass(slots=True)
class _Progress:
    """How far a job has come."""

    job: Job
    directory: RunDirectory
    model: ModelFile | None = None
    machine: HostMachine | None = None
    manifest: ManifestRecord | None = None
    tasks: list[Task] = field(default_factory=list)
    previous: dict[str, Any] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    failed: str = ""

    @property
    def next(self) -> Task | None:
        """Return the task to be done next, or None."""
        if self.failed or len(self.outcomes) == len(self.tasks):
            return None
        return self.tasks[len(self.outcomes)]


def read_jobs(path: Path) -> list[Job]:
    """Return the jobs of a TOML file.

    Raises:
        UsageError: the file cannot be read, or keys are unknown or wrong; the job is named.
    """
    document = read_toml(path)
    _check_keys("jobs file", document, TOP_KEYS)
    if not isinstance(document.get("defaults", {}), dict):
        raise UsageError(f"`defaults` of {path} is no table.", "Write it as [defaults].")
    base = Settings().updated(flatten(document.get("defaults", {})), f"[defaults] of {path}")
    entries = document.get("jobs", [])
    if not isinstance(entries, list) or not entries:
        raise UsageError(f"{path} has no [[jobs]].", "Write one per group of jobs, with at least `models`.")
    jobs = [
        job for i, entry in enumerate(entries) for job in _expand(entry, base, f"job {i + 1} of {path}", path.parent)
    ]
    names = [j.name for j in jobs]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise UsageError(f"Jobs have one name: {', '.join(twice)}.", "Give each [[jobs]] a name of its own.")
    return jobs


def _check_keys(kind: str, document: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in document:
        if key not in known:
            raise UnknownNameError(f"key of a {kind}", key, known)


def _expand(entry: Mapping[str, Any], base: Settings, where: str, folder: Path) -> list[Job]:
    """Return the product of an entry's models, devices, settings and seeds."""
    if not isinstance(entry, dict):
        raise UsageError(f"{where} is no table.", "Write it as [[jobs]].")
    _check_keys("job", entry, JOB_KEYS)
    models = _list_of(str, entry, "models", [], where)
    if not models:
        raise UsageError(f"{where} has no models.", 'Write models = ["a.xml", "zoo:resnet50"].')
    devices = _list_of(str, entry, "devices", [""], where)
    variants = _list_of(dict, entry, "settings", [{}], where)
    seeds = _list_of(int, entry, "seeds", [base.seed], where)
    jobs = []
    for (model, stem), (d, device), (v, variant), seed in itertools.product(
        zip(models, _stems(models), strict=True), enumerate(devices), enumerate(variants), seeds
    ):
        changed = {**flatten(variant), "seed": seed} | ({"devices": [device]} if device else {})
        parts = [str(entry.get("name", "")), stem]
        parts += [f"devices{d + 1}"] * (len(devices) > 1) + [f"settings{v + 1}"] * (len(variants) > 1)
        parts += [f"seed{seed}"] * (len(seeds) > 1)
        path = model if model.startswith("zoo:") or Path(model).is_absolute() else str(folder / model)
        name = "-".join(filter(None, parts))
        _check_name(name, where)
        jobs.append(Job(name, path, _beside(folder, base.updated(changed, where)), changed))
    return jobs


def _beside(folder: Path, settings: Settings) -> Settings:
    """Return settings whose file of inputs, if there is one, is named from the folder of the jobs file."""
    data = settings.coarsen.input
    return settings.updated({"coarsen.input": str(folder.absolute() / data)}, "the jobs file") if data else settings


def _check_name(name: str, where: str) -> None:
    """Check that a job's name can be that of its run directory, a folder right below the batch's.

    Raises:
        UsageError: it would lie elsewhere, be hidden, or be no name of a file.
    """
    fault = ""
    if name[:1] in ("", "."):
        fault = "begins with a dot" if name else "is empty"
    elif not name.isprintable() or set(name) & set("/\\"):
        fault = "holds a slash, a backslash or a character that cannot be printed"
    elif len(name.encode()) > LONGEST_NAME:
        fault = f"is longer than {LONGEST_NAME} bytes"
    if fault:
        remedy = 'Its run directory is called so: write name = "..." with letters, digits, "_", "-" and "." only.'
        raise UsageError(f"{where}: the job's name {name[:LONGEST_NAME]!r} {fault}.", remedy)


def _list_of(kind: type[Any], entry: Mapping[str, Any], key: str, default: list[Any], where: str) -> list[Any]:
    value = entry.get(key, default)
    if not isinstance(value, list) or not all(isinstance(v, kind) for v in value):
        raise UsageError(f"{where}: `{key}` is {value!r}.", f"Write an array: {key} = [{EXAMPLES[key]}].")
    return value


def _stems(models: Sequence[str]) -> list[str]:
    """Return names for run directories: the files' stems, numbered where two are equal."""
    stems = [re.sub(r"[^A-Za-z0-9_.-]", "_", Path(m.removeprefix("zoo:")).stem) for m in models]
    return [f"{s}{i + 1}" if stems.count(s) > 1 else s for i, s in enumerate(stems)]


def run_batch(
    jobs: Sequence[Job], out: Path, store: Store, *, workers: int, say: Say, remeasure: bool = False
) -> list[dict[str, Any]]:
    """Return one row per job, in order, with COLUMNS as keys; also written as table.csv and table.jsonl.

    remeasure: whether what was measured of these jobs is forgotten first.

    Raises:
        StoreError: `out` cannot be written.
    """
    write_json(out / "jobs.json", [asdict(j) for j in jobs])
    model, machine = cache(look_at_model), cache(look_at_machine)  # jobs share models and devices
    progress = [_begin(job, out / job.name, store, (model, machine), say) for job in jobs]
    if remeasure:
        for p in progress:
            forget_measured(p.tasks, store)
    _work(progress, store, workers=workers, say=say)
    rows = [_row(p) for p in progress]
    write_text(out / "table.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    cells = io.StringIO()
    writer = csv.DictWriter(cells, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(out / "table.csv", cells.getvalue())
    return rows


def _begin(job: Job, folder: Path, store: Store, look: Look, say: Say) -> _Progress:
    """Look at a job's model and devices and plan its stages; what is wrong with them is the job's failure."""
    p = _Progress(job, RunDirectory(folder))
    model, machine = look
    try:
        p.model = model(model_path(job.model, store))
        p.machine = machine(job.settings.devices)
        p.previous = previous_parts(p.directory.check_for(p.model))
        p.tasks = plan(p.model, job.settings, p.machine)
    except PlacewrightError as error:
        p.failed = str(error)
        say(f"{job.name}: failed: {error}")
    return p


def _work(progress: Sequence[_Progress], store: Store, *, workers: int, say: Say) -> None:
    tasks: dict[str, Task] = {}  # at work, by their keys
    with contextlib.ExitStack() as machine, Workers(workers, "pipeline.runs.worker") as pool:
        while True:
            _take_from_store(progress, store, tasks, say)
            _start(progress, store, tasks, pool, machine, say)
            if not tasks:
                return
            for key, answer in pool.wait():
                _finish(tasks.pop(key), answer, progress, store, say)


def _take_from_store(progress: Sequence[_Progress], store: Store, running: Collection[str], say: Say) -> None:
    """Advance every job over the tasks whose artifacts are there."""
    for p in progress:
        while (task := p.next) is not None and task.key not in running:
            begun = time.monotonic()
            entry, why = look_up(task, store, p.previous.get(task.stage))
            if entry is None:
                break
            _advance(p, Outcome(task, entry, ran=False, why=why, seconds=time.monotonic() - begun), say)


def _start(
    progress: Sequence[_Progress],
    store: Store,
    running: dict[str, Task],
    pool: Workers,
    machine: contextlib.ExitStack,
    say: Say,
) -> None:
    """Start tasks: those that do not measure while workers are idle, one that measures only when all is quiet.

    machine: holds it from the first task that measures on.
    """
    if any(task.measures for task in running.values()):
        return

    def start(p: _Progress, task: Task) -> None:
        say(f"{p.job.name}: {task.stage}")
        running[task.key] = task
        previous = p.previous.get(task.stage)
        command = {"task": asdict(task), "store": str(store.root), "previous": previous, "alone": task.measures}
        pool.ask(task.key, command)

    ready = {p.next.key: (p, p.next) for p in reversed(progress) if p.next is not None and p.next.key not in running}
    for p, task in ready.values():
        if not task.measures and len(running) < pool.most:
            start(p, task)
    measuring = [(p, task) for p, task in ready.values() if task.measures]
    if not running and measuring:
        machine.enter_context(measuring_alone(lambda text: None))  # whom it waits for is logged
        start(*measuring[-1])


def _finish(task: Task, answer: Answer, progress: Sequence[_Progress], store: Store, say: Say) -> None:
    """Hand the outcome of a task to every job that waited for it."""
    waiting = [p for p in progress if p.next is not None and p.next.key == task.key]
    for first, p in zip([True] + [False] * len(waiting), waiting, strict=False):
        if "error" in answer:
            p.failed = f"{answer['error']['cause']} {answer['error']['remedy']}".strip()
            say(f"{p.job.name}: failed: {p.failed}")
            continue
        entry = store.find(task.key)
        if entry is not None:
            ran, why = (answer["ran"], answer["why"]) if first else (False, "made for another job")
            _advance(p, Outcome(task, entry, ran=ran, why=why, seconds=answer["seconds"]), say)


def _advance(p: _Progress, outcome: Outcome, say: Say) -> None:
    if p.model is None or p.machine is None:
        raise RuntimeError("a stage of a job that was never looked at")
    p.outcomes[outcome.task.stage] = outcome
    try:
        if p.manifest is None:  # a model that cannot be read leaves no run directory behind
            p.manifest = p.directory.open_for(p.model, p.job.settings, p.machine, p.tasks)
        p.directory.record(p.manifest, outcome)
        if len(p.outcomes) == len(p.tasks):
            result = write_result(p.directory.path, p.model, p.job.settings, p.machine, p.outcomes)
            write_report(p.directory.path)
            say(f"{p.job.name}: done: {result.verdict}")
    except PlacewrightError as error:
        p.failed = str(error)
        say(f"{p.job.name}: failed: {error}")


def _row(p: _Progress) -> dict[str, Any]:
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
        "verdict": result.verdict,
    }
