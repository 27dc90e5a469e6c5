"""A stage of a run: typed parameters that decide its outcome, its key, and what it does.

Each stage is a module of this folder: a frozen dataclass of parameters, a function that plans it from the settings of
a run, a function that executes it, and the `RunStage` that names them. `plan.STAGES` lists them in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pipeline.settings.config import Settings
from pipeline.settings.declared import read_declaration
from pipeline.shared.partition import has_metis
from pipeline.shared.payload import from_json
from pipeline.stages.host import NOT_INSTALLED, HostMachine, ModelFile, installed_version
from pipeline.store.store import file_digest
from pipeline.store.task import FILES, StepContext, Task

METRIC = "metric"  # the setting that names a file, and a function in it
NEAR = "near"  # the setting that names a file with an earlier placement
Params = TypeVar("Params")


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What the stages of a run are planned from, and the tasks so far, by stage."""

    model: ModelFile
    settings: Settings
    machine: HostMachine | None
    tasks: dict[str, Task] = field(default_factory=dict)

    @property
    def known_machine(self) -> HostMachine:
        """Return the machine; stages that measure cannot be planned without one."""
        if self.machine is None:
            raise ValueError("this stage needs to know the machine")
        return self.machine


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStage:
    """What decides the outcome of a stage in one run.

    params: a dataclass of the stage. uses: (stage, name) of the implementations that it is named after; called: of
    those that they bring along. inputs: stages whose artifacts it takes, as far as they are part of the run. measured:
    whether its outcome depends on the hardware. context: what it needs and what does not change its outcome.
    """

    params: Any
    inputs: Sequence[str] = ()
    uses: Sequence[tuple[str, str]] = ()
    called: Sequence[tuple[str, str]] = ()
    measured: bool = False
    context: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStage:
    """A stage: how it is planned, and what it does.

    version: raised by hand when its own outcome changes for equal parameters. plan: None if the run has no use for it.
    seeded: whether its outcome depends on the seed; None if its implementations say so. sampled: whether its samples
    are shared by runs of other budgets, so that a larger one extends what a smaller one has found. packages: whose
    versions decide its outcome; of what measures, the fingerprint tells. partitions: whether its implementations may
    ask for partitions of METIS, which others make where it is missing.
    """

    name: str
    version: int
    plan: Callable[[RunPlan], PlannedStage | None]
    execute: Callable[[StepContext], None]
    seeded: bool | None = True
    sampled: bool = False
    packages: Sequence[str] = ()
    partitions: bool = False

    def add_to(self, run: RunPlan) -> None:
        """Add the task of the stage to a run that has a use for it."""
        planned = self.plan(run)
        if planned is None:
            return
        version: dict[str, int | str] = {"step": self.version}
        version |= {f"{s}.{n}": read_declaration(s, n).version for s, n in (*planned.uses, *planned.called)}
        version |= {name: installed_version(name) for name in self.packages}
        if self.partitions and not has_metis():
            version["pymetis"] = NOT_INSTALLED
        of_files = {f for s, n in planned.uses for f in read_declaration(s, n, run.settings.params_of(s, n)).files}
        files: dict[str, str] = {}
        params = _name_by_content(asdict(planned.params), of_files | {METRIC, NEAR}, files)
        inputs = {name: run.tasks[name].key for name in planned.inputs if name in run.tasks}
        fingerprint = run.known_machine.fingerprint if planned.measured else ""
        shares = planned.measured and self.sampled
        series = {"stage": self.name, "read": inputs["read"], "machine": fingerprint} if shares else {}
        run.tasks[self.name] = Task(
            self.name,
            "+".join(dict.fromkeys(name for _, name in planned.uses)) or self.name,
            version,
            params,
            run.settings.seed if self.is_seeded(version) else 0,
            inputs,
            fingerprint,
            {**planned.context, **({FILES: files} if files else {})},
            series,
        )

    def is_seeded(self, version: Mapping[str, int | str]) -> bool:
        """Return whether the outcome depends on the seed; version: of all implementations that the stage uses."""
        if self.seeded is not None:
            return self.seeded
        used = [key.partition(".") for key in version if "." in key]
        return any(read_declaration(stage, name).seeded for stage, _, name in used)


def params_of(kind: type[Params], work: StepContext) -> Params:
    """Return the parameters of the task that a stage executes."""
    return from_json(kind, work.task.params)


def _name_by_content(value: Any, fields: Set[str], files: dict[str, str]) -> Any:
    """Return parameters in which files are named by what they hold, so that they may lie anywhere.

    fields: names of parameters that name files. files: gets such a name -> the path, for each file that there is.

    Raises:
        UsageError: the file of the user's metric holds no such function.
    """
    if isinstance(value, Mapping):
        return {
            name: _content_name(v, files, metric=name == METRIC)
            if name in fields and isinstance(v, str)
            else _name_by_content(v, fields, files)
            for name, v in value.items()
        }
    return [_name_by_content(v, fields, files) for v in value] if isinstance(value, list | tuple) else value


def _content_name(text: str, files: dict[str, str], *, metric: bool) -> str:
    """Return a path as its file's name and content, with the metric's function behind it; "" and what is none stay."""
    if not text or not (metric or Path(text).is_file()):
        return text
    if metric:
        from runtime.measuring.outputs.quality import metric_file

        path = metric_file(text)
    else:
        path = Path(text)
    name = f"<{path.name}@{file_digest(path)}>"  # in brackets, so that none is a part of another
    files[name] = str(path.absolute())
    return f"{name}:{text.rpartition(':')[2]}" if metric else name
