"""The Python API, and what the command line calls."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core.deadline import Deadline
from pipeline.core.errors import UsageError
from pipeline.core.settings import WORTH_LEAST, WORTH_S
from pipeline.progress.watchers import replay_searches, with_event_files
from pipeline.report.run_page import REPORT, write_report
from pipeline.result.directory import ManifestRecord, RunDirectory, previous_parts
from pipeline.result.result import Result, write_result
from pipeline.scenario.records import ScenarioResult
from pipeline.scenario.scenario_file import ScenarioFile, read_scenario
from pipeline.settings.config import Settings, from_environment
from pipeline.stages.execution import Forecast, execute_tasks, forecast_tasks
from pipeline.stages.host import HostMachine, look_at_machine, look_at_model
from pipeline.stages.place import judge_profile
from pipeline.stages.plan import plan_tasks
from pipeline.stages.without_measured import forget_measured, without_measured
from pipeline.store.store import Store, default_store, leaving_nothing
from pipeline.store.task import Outcome, Progress

if TYPE_CHECKING:
    from pipeline.placing.worth import WorthRecord
    from pipeline.scenario.run import ScenarioPlan

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Advance:
    """How far a run was brought: the outcome of every stage, and the result once it is measured."""

    outcomes: Mapping[str, Outcome]
    result: Result | None


def tune(
    model: str | Path,
    *,
    devices: str | Sequence[str] = (),
    budget_s: float | None = None,
    out: str | Path | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    store: str | Path | None = None,
) -> Result:
    """Return the best measured way to run a model on the devices; never worse than the best single device.

    model: an OpenVINO IR, ONNX, or whatever OpenVINO reads, or "zoo:NAME". devices: as the command line writes them;
    none for what the machine has. budget_s: 120 if nothing says otherwise. out: run directory. settings: dotted keys,
    such as {"coarsen.metis.parts": 8}. What is not given is as the environment has it, as on the command line:
    PLACEWRIGHT_STORE the store, PLACEWRIGHT__COARSEN__METIS__PARTS a setting; arguments count before `settings`.

    Raises:
        PlacewrightError: with one line of cause and one of remedy; see `pipeline.core.errors`.
    """
    if str(model).endswith(".toml"):
        raise UsageError(f"{model} is a scenario, not a model.", "Call pipeline.tune_scenario with it.")
    given = {"devices": devices or None, "budget": budget_s, "seed": seed}
    chosen, place = _settings_and_store("tune", given, settings, store)
    path = model_path(str(model), place)
    folder = Path(out) if out is not None else default_run_directory(str(model))
    result = advance_run(path, chosen, folder, place, upto="measure", progress=log.info).result
    if result is None:
        raise RuntimeError("a run up to measure has a result")
    return result


def tune_scenario(
    file: str | Path,
    *,
    devices: str | Sequence[str] = (),
    budget_s: float | None = None,
    out: str | Path | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    store: str | Path | None = None,
) -> ScenarioResult:
    """Return how to run several models at once, by a scenario file (docs/several.md); arguments as those of `tune`.

    Raises:
        PlacewrightError: with one line of cause and one of remedy; see `pipeline.core.errors`.
    """
    given = {"devices": devices or None, "budget": budget_s, "seed": seed}
    chosen, place = _settings_and_store("tune_scenario", given, settings, store)
    folder = Path(out) if out is not None else default_run_directory(str(file))
    return advance_scenario(read_scenario(Path(file)), chosen, folder, place, progress=log.info)


def _settings_and_store(
    function: str, given: Mapping[str, Any], settings: Mapping[str, Any] | None, store: str | Path | None
) -> tuple[Settings, Store]:
    """Return what a function for users works with: the environment's, then `settings`, then its own arguments count."""
    chosen = Settings().updated(from_environment(os.environ), "the environment").updated(settings or {}, "the settings")
    chosen = chosen.updated({k: v for k, v in given.items() if v is not None}, f"the arguments of {function}")
    return chosen, Store(Path(store) if store is not None else default_store())


def advance_scenario(
    file: ScenarioFile, settings: Settings, folder: Path, store: Store, *, progress: Progress
) -> ScenarioResult:
    """Run a scenario; what is in the store already is not done again.

    Raises:
        PlacewrightError: with one line of cause and one of remedy.
    """
    from pipeline.report.scenario_page import write_scenario_page
    from pipeline.scenario.run import run_scenario

    result = run_scenario(plan_scenario_file(file, settings, store), folder, store, progress=progress)
    write_scenario_page(folder, folder / REPORT)
    return result


def plan_scenario_file(file: ScenarioFile, settings: Settings, store: Store) -> ScenarioPlan:
    """Return the tasks of a scenario; models of the zoo are written into the store.

    Raises:
        PlacewrightError: with one line of cause and one of remedy.
    """
    from pipeline.scenario.run import plan_scenario

    paths = {name: model_path(source.model, store) for name, source in file.sources.items()}
    return plan_scenario(file, paths, settings)


def dry_run_scenario(file: ScenarioFile, settings: Settings, folder: Path, store: Store, aside: Path) -> list[Forecast]:
    """Return for every task of a scenario whether it would run, and why; nothing is written but into `aside`.

    Raises:
        PlacewrightError: with one line of cause and one of remedy.
    """
    from pipeline.scenario.run import forecast_scenario, plan_scenario

    paths = {name: model_path(source.model, store, aside=aside) for name, source in file.sources.items()}
    return forecast_scenario(plan_scenario(file, paths, settings), store, folder)


def default_run_directory(model: str) -> Path:
    """Return the run directory of a model when none is named.

    >>> default_run_directory("models/a.xml").name
    'placewright-a'
    """
    return Path(f"placewright-{Path(model.removeprefix('zoo:')).stem}")


def model_path(text: str, store: Store, *, aside: Path | None = None) -> Path:
    """Return the path of a model file; "zoo:NAME" is built into the store first, or into the folder `aside`.

    Raises:
        UnknownNameError: the zoo has no such model.
        UsageError: what it has of that name is a graph.
    """
    if not text.startswith("zoo:"):
        return Path(text)
    from runtime import zoo
    from runtime.zoo import workloads

    name = text.removeprefix("zoo:")
    if name.partition("?")[0] in workloads.names():
        raise UsageError(f"{name} is a graph, not a model.", f"Use it with `placewright search zoo:{name}`.")
    path = store.root / "zoo" / str(zoo.VERSION) / f"{name}.xml"
    if name not in zoo.names() or not (path.exists() and path.with_suffix(".bin").exists()):
        if aside is None:
            store.private("zoo", str(zoo.VERSION))
        else:
            path = aside / path.name
        zoo.export(name, path)
    return path


def needs_machine(settings: Settings, upto: str) -> bool:
    """Return whether the stages up to one depend on the hardware."""
    return upto not in ("read", "coarsen") or "fuse" in settings.coarsen.use


def advance_run(
    path: Path,
    settings: Settings,
    folder: Path,
    store: Store,
    *,
    upto: str,
    progress: Progress,
    tensorboard: Path | None = None,
) -> Advance:
    """Bring a run up to a stage; what is in the store already is not done again.

    tensorboard: a folder for event files of the searches; see `pipeline.progress.watchers`.

    Raises:
        PlacewrightError: with one line of cause and one of remedy.
    """
    deadline = Deadline.after(settings.budget_s)
    model = look_at_model(path)
    machine = look_at_machine(settings.devices) if needs_machine(settings, upto) else None
    planning_s = deadline.clock()
    tasks = plan_tasks(model, settings, machine, upto=upto)
    deadline = deadline.later(deadline.clock() - planning_s)  # the first plan of an installation imports everything
    directory = RunDirectory(folder)
    previous = previous_parts(directory.check_for(model))
    manifest: ManifestRecord | None = None

    def finished(outcome: Outcome) -> None:
        nonlocal manifest
        if manifest is None:  # a model that cannot be read leaves no run directory behind
            manifest = directory.open_for(model, settings, machine, tasks)
        directory.record(manifest, outcome)

    with leaving_nothing(*store.traces(tasks[0].key), *filter(None, [tensorboard])):
        watching = with_event_files(tasks, tensorboard)
        store.prepare()
        outcomes = execute_tasks(
            watching, store, progress=progress, previous=previous, finished=finished, deadline=deadline
        )
    replay_searches(outcomes.get("place"), tensorboard)
    result = None
    if upto == "measure":
        result = write_result(folder, model, settings, _known_machine(machine), outcomes)
        write_report(folder)
    return Advance(outcomes, result)


def _known_machine(machine: HostMachine | None) -> HostMachine:
    if machine is None:
        raise RuntimeError("a measured run knows its machine")
    return machine


def worth(
    model: str | Path,
    settings: Settings,
    store: Store,
    *,
    least: float = WORTH_LEAST,
    seconds: float = WORTH_S,
    progress: Progress = log.info,
) -> WorthRecord:
    """Return by how much a split of a model can beat the best device alone at most; docs/worth.md lists the keys.

    The devices are profiled first, unless a run has done so. least: the share that counts as worth it. seconds: for
    proving, once they are.

    Raises:
        PlacewrightError: with one line of cause and one of remedy; see `pipeline.core.errors`.
    """
    deadline = Deadline.after(settings.budget_s)
    machine = look_at_machine(settings.devices)
    tasks = plan_tasks(look_at_model(model_path(str(model), store)), settings, machine, upto="profile")
    store.prepare()
    outcomes = execute_tasks(tasks, store, progress=progress, previous={}, deadline=deadline)
    names = [str(device["name"]) for device in machine.devices]
    return {**judge_profile(outcomes, settings, names, least=least, seconds=seconds), "graph": str(model)}


def forget_measurements(path: Path, settings: Settings, store: Store, *, upto: str) -> None:
    """Forget what was measured of a run up to a stage, and what was made of it, so that it is measured again.

    Raises:
        PlacewrightError: with one line of cause and one of remedy.
    """
    machine = look_at_machine(settings.devices) if needs_machine(settings, upto) else None
    forget_measured(plan_tasks(look_at_model(path), settings, machine, upto=upto), store)


def dry_run(
    path: Path, settings: Settings, folder: Path, store: Store, *, upto: str, remeasure: bool = False
) -> list[Forecast]:
    """Return for every stage up to one whether it would run, and why; nothing is written.

    remeasure: whether what was measured of this run would be forgotten first.

    Raises:
        PlacewrightError: with one line of cause and one of remedy.
    """
    model = look_at_model(path)
    machine = look_at_machine(settings.devices) if needs_machine(settings, upto) else None
    previous = previous_parts(RunDirectory(folder).manifest())
    tasks = plan_tasks(model, settings, machine, upto=upto)
    rows = forecast_tasks(tasks, store, previous)
    return without_measured(rows, tasks) if remeasure else rows


def resume_run(folder: Path) -> tuple[Path, Settings]:
    """Return the model and the settings of the run in a folder.

    Raises:
        UsageError: the folder holds no run.
    """
    manifest = RunDirectory(folder).manifest()
    if manifest is None:
        raise UsageError(f"{folder} is not a run directory.", "Start with `placewright coarsen MODEL --run DIR`.")
    return Path(manifest["model"]["path"]), Settings.from_json(manifest["settings"])
