"""How far every job of a batch has come, and who waits for what.

Jobs advance stage by stage. A stage is a task; an artifact that two jobs need has one key and is made once. Tasks that
follow one another and concern one job alone are wanted together, as a chain.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.core.errors import PlacewrightError
from pipeline.fleet.jobs import Job
from pipeline.report.run_page import write_report
from pipeline.result.directory import ManifestRecord, RunDirectory
from pipeline.result.result import write_result
from pipeline.stages.host import HostMachine, ModelFile
from pipeline.store.store import Entry, Store
from pipeline.store.task import Outcome, Task, look_up
from pipeline.system.workers import Answer

Say = Callable[[str], None]
Chain = Sequence[tuple[Task, str]]  # tasks of one job that follow one another, with their keys


@dataclass(slots=True)
class JobProgress:
    """How far a job has come; keys are those of its tasks, taken once."""

    job: Job
    directory: RunDirectory
    model: ModelFile | None = None
    machine: HostMachine | None = None
    manifest: ManifestRecord | None = None
    tasks: list[Task] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    previous: dict[str, Any] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    failed: str = ""
    exit_code: int = 0  # of the error that it failed with; 0 where that has none of its own

    @property
    def over(self) -> bool:
        """Return whether nothing is left to do."""
        return bool(self.failed) or len(self.outcomes) == len(self.tasks)


class Ledger:
    """The jobs of a batch, over the store.

    say: told what becomes of jobs. want: called with a job and a chain of its tasks when an artifact is not there; what
    became of it is known by the last key. jobs: key -> how many jobs need its artifact. alike: whether all machines are
    of one kind.
    """

    def __init__(
        self,
        store: Store,
        say: Say,
        want: Callable[[JobProgress, Chain], None],
        *,
        jobs: Mapping[str, int],
        alike: bool,
    ) -> None:
        self._store = store
        self._say = say
        self._want = want
        self._jobs = jobs
        self._alike = alike
        self._waiting: dict[str, list[JobProgress]] = {}  # key -> the jobs that wait for its artifact
        self._there: dict[str, Entry] = {}  # artifacts that were looked at, or made, in this batch

    def advance(self, p: JobProgress) -> None:
        """Take a job over all tasks whose artifacts are there; let it wait for the first that is not."""
        while not p.over:
            task, key = p.tasks[len(p.outcomes)], p.keys[len(p.outcomes)]
            if key in self._waiting:
                self._waiting[key].append(p)
                return
            begun = time.monotonic()
            entry, why = self._look_up(task, key, p.previous.get(task.stage))
            if entry is None:
                chain = self._chain(p)
                self._waiting[chain[-1][1]] = [p]
                self._want(p, chain)
                return
            self._record(p, Outcome(task, entry, ran=False, why=why, seconds=time.monotonic() - begun))

    def _chain(self, p: JobProgress) -> Chain:
        """Return the task that a job waits for and those behind it that can go to the same worker.

        An artifact that other jobs need ends a chain, so that they do not wait for more than it; so does what measures,
        and what must run on one kind of machine where the tasks before it may run on any.
        """
        begin = len(p.outcomes)
        chain = [(p.tasks[begin], p.keys[begin])]
        for task, key in zip(p.tasks[begin + 1 :], p.keys[begin + 1 :], strict=True):
            last, last_key = chain[-1]
            bound = task.fingerprint not in ("", last.fingerprint) and not self._alike
            if last.measures or task.measures or bound or self._jobs[last_key] > 1 or key in self._waiting:
                break
            chain.append((task, key))
        return chain

    def settle(self, key: str, answer: Answer) -> None:
        """Hand the answer about a chain to the job it was executed for, and to those that waited for its last key."""
        first, *others = self._waiting.pop(key)
        done: Sequence[Mapping[str, Any]] = answer.get("done", ())
        at = len(first.outcomes) + len(done)
        for each in done:
            if not first.over:
                self._take(first, each)
        if "error" not in answer:
            self.advance(first)
            for p in others:
                self._take(p, {**done[-1], "ran": False, "why": "made for another job"})
                self.advance(p)
            return
        cause = f"{answer['error']['cause']} {answer['error']['remedy']}".strip()
        code = answer["error"].get("exit_code", 0)
        self._fail(first, first.failed or cause, first.exit_code if first.failed else code)
        for p in others:
            if first.keys[at] == key:
                self._fail(p, cause, code)
            else:  # what they wait for was never begun
                self.advance(p)

    def _take(self, p: JobProgress, done: Mapping[str, Any]) -> None:
        """Take a job over a task that was executed."""
        task, key = p.tasks[len(p.outcomes)], p.keys[len(p.outcomes)]
        entry = self._there.get(key) or self._store.find(key)
        if entry is None:
            self._fail(p, f"The artifact {key[:12]} was made, and is not in the store {self._store.root}.")
            return
        self._there[key] = entry
        self._record(p, Outcome(task, entry, ran=done["ran"], why=done["why"], seconds=done["seconds"]))

    def _look_up(self, task: Task, key: str, previous: Any) -> tuple[Entry | None, str]:
        """Return the intact artifact of a key or None, and why; one that was looked at before is not checked again."""
        if key in self._there:
            return self._there[key], "in the store"
        entry, why = look_up(task, self._store, previous)
        if entry is not None:
            self._there[key] = entry
        return entry, why

    def _fail(self, p: JobProgress, cause: str, exit_code: int = 0) -> None:
        p.failed, p.exit_code = cause, exit_code
        self._say(f"{p.job.name}: failed: {cause}")

    def _record(self, p: JobProgress, outcome: Outcome) -> None:
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
                self._say(f"{p.job.name}: done: {result.verdict}")
        except PlacewrightError as error:
            self._fail(p, str(error), error.exit_code)
