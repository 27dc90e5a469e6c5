"""One stage of one run, as data: what it needs, what its key is, and how it is executed against a store.

A task is plain JSON values and its answer depends on its key alone, so that any process on any machine with the
store can carry it out.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipeline.core.deadline import NEVER, Deadline
from pipeline.core.errors import DamagedEntryError, PlacewrightError, StoreError
from pipeline.store.store import Entry, Store, json_digest, write_text
from pipeline.system.machine_lock import measuring_alone
from pipeline.system.private_files import disk_fault

log = logging.getLogger(__name__)

Progress = Callable[[str], None]
Alone = Callable[[Progress], AbstractContextManager[float]]  # gives the seconds waited until the machine was free

MADE_OF = "made-of"  # the file beside what an interruption leaves that tells the inputs
FILES = "files"  # the key of a task's context that holds where the files lie that parameters name by what they hold
DISTURBED = "disturbed"  # the key of an entry's provenance that holds what disturbed its measurement
INPUT, VERSION = "inputs.", "version."  # how differences in these parts of a key are called


@dataclass(frozen=True, slots=True)
class Task:
    """A stage with everything it depends on.

    stage, name: which step, and which implementations it uses, for people. version: of the step and of every
    "stage.implementation" that its answer depends on, raised by hand when the output changes for equal input; as text,
    of packages. params: what was chosen. inputs: stage -> key of the artifact it reads. fingerprint: the hardware, for
    stages that measure, else "". context: what the step needs but what does not change its answer, such as the path of
    the model file, and those of the files that parameters name by what they hold. series: what the samples depend on
    that it may share with others, of another budget; none if empty.
    """

    stage: str
    name: str
    version: Mapping[str, int | str]
    params: Mapping[str, Any]
    seed: int
    inputs: Mapping[str, str]
    fingerprint: str = ""
    context: Mapping[str, Any] = field(default_factory=dict)
    series: Mapping[str, Any] = field(default_factory=dict)

    @property
    def parts(self) -> dict[str, Any]:
        """Return what the key is made of."""
        names = ("stage", "name", "version", "params", "seed", "inputs", "fingerprint")
        return {name: getattr(self, name) for name in names}

    @property
    def key(self) -> str:
        """Return the sha256 under which the artifact is stored."""
        return json_digest(self.parts)

    @property
    def params_here(self) -> Mapping[str, Any]:
        """Return the parameters with files named by their paths, as steps use them."""
        files = self.context.get(FILES, {})
        params: Mapping[str, Any] = _by_path(self.params, files) if files else self.params
        return params

    @property
    def measures(self) -> bool:
        """Return whether the step needs the machine to itself."""
        return self.stage in ("precisions", "profile") or bool(self.params.get("real"))


def _by_path(value: Any, files: Mapping[str, str]) -> Any:
    """Return a value in which names by content, or texts that hold one, have paths instead."""
    if isinstance(value, Mapping):
        return {key: _by_path(v, files) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_by_path(v, files) for v in value]
    if isinstance(value, str):
        for name, path in files.items():
            value = value.replace(name, path)
    return value


@dataclass(frozen=True, slots=True)
class StepContext:
    """What a step gets to do its work.

    task: its parameters name files by their paths. inputs: stage -> the artifact. out: the empty folder to write the
    payload to. partial: a folder that outlives an interruption. series: a folder that all tasks of one series share,
    whatever their budgets. deadline: of the run. disturbed: a step adds what kept it from measuring and may be gone
    another time; its artifact, and what is made of it, serves this run and is made again in the next. compiled_s: a
    step adds the seconds that compiling kernels took, which no budget counts.
    """

    task: Task
    inputs: Mapping[str, Entry]
    out: Path
    partial: Path
    progress: Progress
    series: Path
    deadline: Deadline = NEVER
    disturbed: list[str] = field(default_factory=list)
    compiled_s: list[float] = field(default_factory=list)

    def read(self, stage: str, name: str) -> Path:
        """Return the path of a payload file of an input."""
        return self.inputs[stage].path(name)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened to a task: whether it ran, why, and for how long.

    waited_s, compiled_s: seconds on top of these, until another run had stopped measuring on this machine, and until
    kernels were compiled.
    """

    task: Task
    entry: Entry
    ran: bool
    why: str
    seconds: float
    waited_s: float = 0.0
    compiled_s: float = 0.0


def look_up(task: Task, store: Store, previous: Mapping[str, Any] | None) -> tuple[Entry | None, str]:
    """Return the intact artifact of a task, or None, and the reason to run it or not.

    previous: the parts of the key that this stage had the last time, to say what changed.
    """
    try:
        entry = store.find(task.key)
        if entry is not None:
            entry.verify()
            words = "; ".join(list_disturbances(entry))
            return (None, f"the last measurement was disturbed: {words}") if words else (entry, "in the store")
    except DamagedEntryError as error:
        log.warning("%s", error)
        return None, f"the store entry is damaged: {error.cause}"
    return None, why_not(task.parts, previous)


def list_disturbances(entry: Entry) -> list[str]:
    """Return what disturbed the measurement of an artifact, or of one that it is made of."""
    return list(entry.provenance.get(DISTURBED, []))


def why_not(parts: Mapping[str, Any], previous: Mapping[str, Any] | None) -> str:
    """Return in words how the parts of a key differ from those it had before."""
    if previous is None:
        return "never run before"
    differing = _key_differences(parts, previous)
    inputs = [name for name in differing if name.startswith(INPUT)]
    used = [name for name, pair in differing.items() if name.startswith(VERSION) and None in pair]
    changes = [_describe_change(name, *differing[name]) for name in differing if name not in {*inputs, *used}]
    changes = changes or [
        _describe_presence(name, differing[name][1]) for name in used
    ]  # what is used follows from the parameters
    changes += [_describe_presence(name, differing[name][1]) for name in inputs]
    return "changed: " + ", ".join(changes) if changes else "not in the store any more"


def _describe_change(name: str, old: Any, new: Any) -> str:
    """Return in words how one part of a key has changed."""
    if not name.startswith(VERSION):
        return f"{name}: {old} -> {new}"
    package = isinstance(new, str)
    return f"{name.removeprefix(VERSION)} {'' if package else 'version '}{old} -> {new}"


def _describe_presence(name: str, new: Any) -> str:
    """Return in words that something of a part of a key is new, or gone."""
    return f"{'no' if new is None else 'new'} {name.partition('.')[2]}"


def _key_differences(new: Mapping[str, Any], old: Mapping[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    changes: dict[str, tuple[Any, Any]] = {}
    for key in sorted(set(new) | set(old)):
        a, b = new.get(key), old.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            changes |= _key_differences(a, b, f"{prefix}{key}.")
        elif json_digest(a) != json_digest(b):
            changes[f"{prefix}{key}"] = (b, a)
    return changes


def run_task(
    task: Task,
    store: Store,
    steps: Mapping[str, Callable[[StepContext], None]],
    progress: Progress,
    previous: Mapping[str, Any] | None = None,
    deadline: Deadline = NEVER,
    *,
    alone: Alone = measuring_alone,
) -> Outcome:
    """Return the outcome of a task: its artifact from the store, or made now, by the deadline if the step keeps to it.

    alone: holds the machine while a task measures.

    Raises:
        StoreError: an input is not in the store.
        PlacewrightError: whatever the step raises.
    """
    begun = time.monotonic()
    with contextlib.ExitStack() as machine:
        waited_s = 0.0
        if task.measures:
            entry, why = look_up(task, store, previous)
            if entry is not None:
                return Outcome(task, entry, ran=False, why=why, seconds=time.monotonic() - begun)
            # Before the lock of the artifact, so that two runs that want the same one cannot wait for each other.
            waited_s = machine.enter_context(alone(progress))
        outcome = _taken_or_made(task, store, steps, progress, previous, deadline.later(waited_s))
    seconds = time.monotonic() - begun - waited_s - outcome.compiled_s
    return replace(outcome, seconds=seconds, waited_s=waited_s)


def _taken_or_made(
    task: Task,
    store: Store,
    steps: Mapping[str, Callable[[StepContext], None]],
    progress: Progress,
    previous: Mapping[str, Any] | None,
    deadline: Deadline,
) -> Outcome:
    """Return the outcome of a task where nobody else makes its artifact meanwhile."""
    begun = time.monotonic()
    with store.making(task.key):
        entry, why = look_up(task, store, previous)
        if entry is not None:
            return Outcome(task, entry, ran=False, why=why, seconds=0.0)
        inputs = {stage: _input_entry(store, stage, key) for stage, key in task.inputs.items()}
        with store.scratch() as scratch:
            out = scratch / "payload"
            out.mkdir()
            with full_disk(store):
                partial = _partial_folder(task, store, inputs)
                series = store.series(json_digest(task.series)) if task.series else partial
                work = StepContext(
                    replace(task, params=task.params_here), inputs, out, partial, progress, series, deadline
                )
                steps[task.stage](work)
            compiled_s = sum(work.compiled_s)
            seconds = time.monotonic() - begun - compiled_s
            disturbed = [*work.disturbed, *(words for used in inputs.values() for words in list_disturbances(used))]
            provenance = {"made_at": time.time(), "seconds": seconds, "why": why}
            provenance |= {DISTURBED: list(dict.fromkeys(disturbed))} if disturbed else {}
            entry = store.add(task.key, task.parts, provenance, out)
        store.drop_partial(task.key)
    return Outcome(task, entry, ran=True, why=why, seconds=seconds, compiled_s=compiled_s)


def _partial_folder(task: Task, store: Store, inputs: Mapping[str, Entry]) -> Path:
    """Return the folder of what an interruption has left of a task; empty if its inputs were others.

    A key does not tell: what is measured again has the same key and other figures.
    """
    if not inputs:  # and so leaves nothing where a model cannot be read
        return store.partial(task.key)
    made_of = json_digest({stage: dict(entry.files) for stage, entry in inputs.items()})
    note = store.partial(task.key) / MADE_OF
    if not note.is_file() or note.read_text(encoding="ascii") != made_of:
        store.drop_partial(task.key)
        store.partial(task.key)
        write_text(note, made_of)
    return note.parent


@contextlib.contextmanager
def full_disk(store: Store) -> Iterator[None]:
    """Turn the end of the disk's room, wherever a step meets it, and of a file of the store into a StoreError."""
    try:
        yield
    except FileNotFoundError as error:
        if Path(str(error.filename or "")).is_relative_to(store.root):
            raise StoreError(
                f"{error.filename} of the store has gone.", "Run again, and let nobody delete the store meanwhile."
            ) from error
        raise
    except PlacewrightError:
        raise
    except (OSError, RuntimeError) as error:
        why = disk_fault(store.root, error)
        if not isinstance(why, OSError) or why.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG):
            raise
        place = why.filename or store.root
        raise StoreError(
            f"{place} cannot be written: {why.strerror}.", "Free space on its disk, or use a --store on another."
        ) from error


def _input_entry(store: Store, stage: str, key: str) -> Entry:
    entry = store.find(key)
    if entry is None:
        raise StoreError(f"The {stage} artifact {key[:12]} is not in the store.", f"Run `placewright {stage}` first.")
    return entry
