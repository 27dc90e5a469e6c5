"""A run: the stages of one model on one machine, in order, as tasks whose keys follow from what goes in.

Nothing has to run to know what would. `pipeline.stages.execution` executes the tasks against the store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pipeline.core.errors import UnknownNameError
from pipeline.settings.config import Settings
from pipeline.stages.choices import is_learned, placing_machine, placing_settings
from pipeline.stages.coarsen import COARSEN
from pipeline.stages.embed import EMBED
from pipeline.stages.group import GROUP
from pipeline.stages.host import HostMachine, ModelFile
from pipeline.stages.kernels import KERNELS
from pipeline.stages.measure import MEASURE, check_runtimes
from pipeline.stages.place import PLACE
from pipeline.stages.precisions import PRECISIONS
from pipeline.stages.profile import PROFILE
from pipeline.stages.read import READ
from pipeline.stages.stage import RunPlan, RunStage
from pipeline.store.task import StepContext, Task

STAGES: Mapping[str, RunStage] = {
    stage.name: stage for stage in (READ, KERNELS, COARSEN, PRECISIONS, PROFILE, EMBED, GROUP, PLACE, MEASURE)
}
STEPS: Mapping[str, Callable[[StepContext], None]] = {name: stage.execute for name, stage in STAGES.items()}
LEARNED = ("embed", "group")  # what placers that learn are given; others do without


def plan_tasks(
    model: ModelFile, settings: Settings, machine: HostMachine | None, *, upto: str = "measure"
) -> list[Task]:
    """Return the tasks of a run up to a stage, in the order in which they can be executed.

    machine: None is enough up to `coarsen`, unless it fuses kernels.

    Raises:
        UnknownNameError: there is no such stage in the run.
    """
    check_runtimes(model, settings)
    if upto not in LEARNED:
        settings = placing_settings(settings, machine)
        machine = placing_machine(settings, machine)
    run = RunPlan(model, settings, machine)
    for name, stage in STAGES.items():
        if name not in LEARNED or upto in LEARNED or is_learned(settings):
            stage.add_to(run)
        if name == upto:
            break
    return _tasks_needed(run.tasks, upto)


def with_seed(tasks: Sequence[Task], seed: int) -> list[Task]:
    """Return the tasks of a run that differs in its seed alone; much cheaper than planning it."""
    seeded: list[Task] = []
    keys: dict[str, str] = {}
    for task in tasks:
        own = seed if STAGES[task.stage].is_seeded(task.version) else 0
        other = replace(task, seed=own, inputs={stage: keys[stage] for stage in task.inputs})
        seeded.append(other)
        keys[task.stage] = other.key
    return seeded


def _tasks_needed(tasks: Mapping[str, Task], stage: str) -> list[Task]:
    """Return the tasks that the stage needs, itself last."""
    if stage not in tasks:
        raise UnknownNameError("stage in this run", stage, tasks)
    needed, front = {stage}, [stage]
    while front:
        for name in tasks[front.pop()].inputs:
            if name not in needed:
                needed.add(name)
                front.append(name)
    return [task for name, task in tasks.items() if name in needed]
