"""Runs a scenario: every model is read as for a run of its own, then one task measures all of them together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.core.accuracy import Accuracy
from pipeline.core.deadline import Deadline
from pipeline.core.errors import PlacewrightError, StoreError, UnknownNameError, UsageError
from pipeline.core.estimates import RatioEstimate
from pipeline.core.measurement import MeasurementFailed
from pipeline.core.scenario import LoadScenario
from pipeline.core.settings import MeasureSettings
from pipeline.result.directory import MANIFEST, RESULT
from pipeline.result.records import DeviceRecord, FailureRecord, RegisteredRecord, StageRecord
from pipeline.result.result import read_versions, write_checks, write_placed
from pipeline.scenario.configurations import BASELINES, ConfigurationSpace
from pipeline.scenario.figures import Yardstick
from pipeline.scenario.records import (
    SCHEMA,
    AloneRecord,
    CheckRecord,
    ConfigurationRecord,
    ConfiguredModel,
    ModelLoadRecord,
    PhaseRecord,
    ScenarioContest,
    ScenarioForecast,
    ScenarioLimits,
    ScenarioResult,
)
from pipeline.scenario.scenario_file import ScenarioFile, phase_ranges
from pipeline.scenario.search import ContendingConfiguration, ScenarioOutcome, ScenarioSearch, StartJournal
from pipeline.scenario.verdict import decide_scenario, scenario_notes
from pipeline.settings.config import Settings
from pipeline.shared import payload
from pipeline.shared.measured_sizes import load_sizes
from pipeline.stages.execution import Forecast, forecast_tasks
from pipeline.stages.host import HostMachine, ModelFile, look_at_machine, look_at_model
from pipeline.stages.plan import STEPS, plan_tasks
from pipeline.store.store import Store, json_digest, write_json
from pipeline.store.task import Outcome, Progress, StepContext, Task, run_task
from pipeline.system.machine_lock import measuring_alone
from pipeline.system.process import cpu_count
from runtime.machines.devices import discover_plugins
from runtime.measuring.contest.hetero import reference_outputs
from runtime.measuring.contest.statistics import mean_interval
from runtime.measuring.contest.variant import Variant, check_outputs, known_reference, start_child
from runtime.measuring.load.bench import LoadBench, SharedCopy
from runtime.measuring.outputs.outputs import Reference
from runtime.measuring.process.child import ChildError
from runtime.measuring.profile.precisions import without_untolerated

VERSION = 7  # of what is measured; raised when it changes for an equal scenario
STAGE = "scenario"
SEARCH = "search.json"  # what a scenario's task leaves in the store


@dataclass(frozen=True, slots=True)
class ScenarioPlan:
    """The tasks of a scenario. models: those of each model, by its name; measure: of all of them together."""

    file: ScenarioFile
    settings: Settings
    machine: HostMachine
    files: Mapping[str, ModelFile]
    models: Mapping[str, Sequence[Task]]
    measure: Task

    @property
    def tasks(self) -> list[Task]:
        """Return all tasks, in the order in which they are executed."""
        return [*(task for tasks in self.models.values() for task in tasks), self.measure]

    def without(self, family: str) -> ScenarioPlan:
        """Return the plan without the copy that the phases of a model would share."""
        inputs = {key: value for key, value in self.measure.inputs.items() if key != f"read {family}"}
        series = {**self.measure.series, "inputs": inputs}
        models = {name: tasks for name, tasks in self.models.items() if name != family}
        return replace(self, models=models, measure=replace(self.measure, inputs=inputs, series=series))


def plan_scenario(file: ScenarioFile, paths: Mapping[str, Path], settings: Settings) -> ScenarioPlan:
    """Return the tasks of a scenario.

    paths: of the models, by name. settings: of all of them; sizes and inputs are those of the file.

    Raises:
        ModelError: a model is not there.
        UsageError: a device has properties, or is not one of the machine.
    """
    if any("=" in text or text.endswith(".toml") for text in settings.devices):
        raise UsageError("A scenario chooses properties of devices itself.", "Write --devices CPU,GPU, or none.")
    plugins = ",".join(settings.devices) if settings.devices else ",".join(discover_plugins())
    machine = look_at_machine([plugins])
    names = {d["name"] for d in machine.devices}
    for load in file.scenario.models:
        for device in load.devices:
            if device not in names:
                raise UnknownNameError(f"device of model {load.name}", device, names)
    files = {name: look_at_model(path) for name, path in paths.items()}
    models: dict[str, list[Task]] = {}
    inputs: dict[str, str] = {}
    for family, phases in file.scenario.families().items():
        sizes = phase_ranges([file.sources[name] for name in phases])
        if any("|" in text for text in sizes):
            open_sizes = {
                "coarsen.shape_ranges": [text for text in sizes if "|" in text],
                "coarsen.shapes": [text for text in sizes if "|" not in text],
            }
            own = settings.updated(open_sizes, f"phases of {family} of {file.path}")
            models[family] = plan_tasks(files[phases[0]], own, machine, upto="read")
            inputs[f"read {family}"] = models[family][-1].key
    for name, model in files.items():
        source = file.sources[name]
        given = {"coarsen.shapes": source.shapes or None, "coarsen.input": source.input or None}
        own = settings.updated({k: v for k, v in given.items() if v}, f"model {name} of {file.path}")
        upto = "precisions" if machine.low else "read"
        models[name] = plan_tasks(model, own, machine, upto=upto)
        inputs |= {f"{task.stage} {name}": task.key for task in models[name]}
    params = {
        "real": True,
        "scenario": _finite(asdict(file.scenario)),
        "measure": asdict(settings.measure),
        "devices": [dict(d) for d in machine.devices],
        "budget_s": settings.budget_s,
    }
    shared = {key: value for key, value in params.items() if key != "budget_s"}
    series = {"stage": STAGE, "version": VERSION, "inputs": inputs, "machine": machine.fingerprint, "shared": shared}
    version = {"step": VERSION}
    measure = Task(STAGE, STAGE, version, params, settings.seed, inputs, machine.fingerprint, {}, series)
    return ScenarioPlan(file, settings, machine, files, models, measure)


def _finite(value: Any) -> Any:
    """Return JSON values in which infinity is a text."""
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return "inf" if value == math.inf else value


def forecast_scenario(plan: ScenarioPlan, store: Store, folder: Path) -> list[Forecast]:
    """Return for every task whether it would run, and why; the model is part of the name."""
    rows = [
        {**row, "name": name}
        for name, tasks in plan.models.items()
        for row in forecast_tasks(tasks, store, _previous(folder, name))
    ]
    return [*rows, *forecast_tasks([plan.measure], store, _previous(folder, ""))]  # type: ignore[list-item]


def _previous(folder: Path, model: str) -> dict[str, Any]:
    """Return stage -> parts of its key, of one model, or "" of all together, as the run in a folder recorded them."""
    path = folder / MANIFEST
    if not path.is_file():
        return {}
    try:
        document = payload.read_json(path)
        known = document["scenario_stages"]
    except (OSError, ValueError, KeyError, TypeError):
        raise StoreError(f"{folder} is no run of a scenario.", "Use another run directory.") from None
    return dict(known.get(model, {}))


def run_scenario(plan: ScenarioPlan, folder: Path, store: Store, *, progress: Progress) -> ScenarioResult:
    """Run a scenario, write its result, and return it; what is in the store already is not done again.

    Raises:
        PlacewrightError: with one line of cause and one of remedy.
    """
    deadline = Deadline.after(plan.settings.budget_s)
    store.prepare()
    outcomes: dict[str, dict[str, Outcome]] = {}
    recorded: dict[str, dict[str, Any]] = {}
    if _previous(folder, "").get(STAGE) != plan.measure.parts:
        (folder / RESULT).unlink(missing_ok=True)  # of another scenario, or other settings
    with measuring_alone(progress) as waited_s:
        deadline = deadline.later(waited_s)
        for name, tasks in list(plan.models.items()):
            before = _previous(folder, name)
            told = partial(_say_of, progress, name)
            try:
                done = {t.stage: run_task(t, store, STEPS, told, before.get(t.stage), deadline) for t in tasks}
            except PlacewrightError as error:
                if name in plan.file.sources:
                    raise
                told(f"its phases cannot share a copy: {error.cause}")
                plan = plan.without(name)
                continue
            outcomes[name] = done
            recorded[name] = {t.stage: t.parts for t in tasks}
            _record(folder, plan, recorded)

        def measure(work: StepContext) -> None:
            _measure(work, plan)

        before = _previous(folder, "")
        measured = run_task(plan.measure, store, {STAGE: measure}, progress, before.get(STAGE), deadline)
    recorded[""] = {STAGE: plan.measure.parts}
    _record(folder, plan, recorded)
    return _write_result(plan, folder, outcomes, measured)


def _say_of(progress: Progress, model: str, text: str) -> None:
    progress(f"{model}: {text}")


def _record(folder: Path, plan: ScenarioPlan, recorded: Mapping[str, Any]) -> None:
    document = {"schema": 1, "scenario": str(plan.file.path.resolve()), "settings": plan.settings.to_json()}
    write_json(folder / MANIFEST, {**document, "scenario_stages": recorded})


def _measure(work: StepContext, plan: ScenarioPlan) -> None:
    """Write search.json: what became of every configuration, and which is best."""
    settings, scenario = plan.settings.measure, plan.file.scenario
    models: dict[str, Path] = {}
    references: dict[str, Reference] = {}
    plugins = {
        name: plugin
        for name, plugin in discover_plugins().items()
        if name in {d["plugin"] for d in plan.machine.devices}
    }
    allowed = {}
    for load in scenario.models:
        entry = work.inputs[f"read {load.name}"]
        entry.verify()
        models[load.name] = entry.path("model.xml")
        tried: list[dict[str, Any]] = []
        ran = None
        if f"precisions {load.name}" in work.inputs:
            tried = payload.read_json(work.read(f"precisions {load.name}", "precisions.json"))
            ran = payload.read_json(work.read(f"precisions {load.name}", "ran.json"))
        known = known_reference(models[load.name], ran)
        references[load.name] = known or reference_outputs(models[load.name], settings, seed=work.task.seed)
        tolerated = without_untolerated(plugins, tried)
        allowed[load.name] = {n: p for n, p in tolerated.items() if n in (load.devices or tolerated)}
    copies: dict[str, SharedCopy] = {}
    families = {f: phases for f, phases in scenario.families().items() if f"read {f}" in work.inputs}
    for family, phases in families.items():
        entry = work.inputs[f"read {family}"]
        entry.verify()
        models[family] = entry.path("model.xml")
        kinds = [size.kind for size in load_sizes(models[family].parent)]
        copies[family] = SharedCopy(models[family], dict(zip(phases, kinds, strict=True)))
        references[family] = reference_outputs(models[family], settings, seed=work.task.seed)
        common = {
            n: replace(
                p, precisions=tuple(x for x in p.precisions if all(x in allowed[q][n].precisions for q in phases))
            )
            for n, p in allowed[phases[0]].items()
            if all(n in allowed[q] for q in phases)
        }
        allowed |= dict.fromkeys(phases, common)
    cost = {
        load.name: references[load.name].seconds * max(1.0, scenario.rates()[load.name]) for load in scenario.models
    }
    space = ConfigurationSpace(scenario, allowed, cpu_count(), cost, families)
    checked: dict[tuple[str, str], MeasurementFailed | None] = {}
    accuracies: dict[tuple[str, str], Accuracy] = {}

    def outputs_fail(model: str, variant: Variant) -> MeasurementFailed | None:
        key = model, variant.identity
        if key not in checked:
            try:
                child, loaded = start_child(variant, models[model], settings, seed=work.task.seed)
                with child:
                    said = check_outputs(variant, loaded, child, references[model], settings)
            except ChildError as error:
                said = error.failed
            if isinstance(said, Accuracy):
                accuracies[key] = said
            checked[key] = None if isinstance(said, Accuracy) else said
        return checked[key]

    journal = StartJournal.of(work.series / "starts.jsonl", json_digest([work.task.seed, work.task.fingerprint]))
    bench = LoadBench(models, {load.name: load for load in scenario.models}, settings, work.task.seed, copies)
    longest_s = max(2.0, work.deadline.left_s / 12)
    search = ScenarioSearch(
        scenario,
        space,
        bench,
        Yardstick(scenario, longest_s, deadline=work.deadline),
        settings,
        work.deadline,
        journal,
        outputs_fail,
        work.progress,
    )
    try:
        found = search.run()
    finally:
        bench.close()
    work.disturbed.extend(
        [
            f"{n} failed ({e.failed.kind}: {e.failed.message})"
            for n, e in found.entrants.items()
            if e.failed and e.failed.transient
        ]
    )
    for name, variant in space.compiled(found.entrants[found.best].candidate.configuration):
        outputs_fail(name, variant)  # of a run that was resumed they may have been compared before
    accuracies |= {
        (n, i): a for (f, i), a in accuracies.items() for n in families.get(f, ()) if (n, i) not in accuracies
    }
    rows = _configuration_records(scenario, found, settings, accuracies)
    document = {
        "configurations": [asdict(row) for row in rows],
        "control": found.control,
        "best": found.best,
        "contest": asdict(_contest_record(found, settings)),
        "alone": [asdict(record) for record in found.alone],
        "forecast": asdict(found.forecast),
        "check": None if found.checked is None else asdict(found.checked),
        "variants": {
            name: variant.identity for name, variant in found.entrants[found.best].candidate.configuration.models
        },
    }
    write_json(work.out / SEARCH, document)


Accuracies = Mapping[tuple[str, str], Accuracy]  # by model, and identity of the variant that ran it


def _configuration_records(
    scenario: LoadScenario, found: ScenarioOutcome, settings: MeasureSettings, accuracies: Accuracies
) -> list[ConfigurationRecord]:
    """Return the records of all configurations, the best first, those that did not run last."""
    ordered = sorted(found.entrants.values(), key=lambda e: (e.candidate.name != found.best, not e.starts, -e.standing))
    return [configuration_record(scenario, e, found, settings, accuracies) for e in ordered]


def configuration_record(
    scenario: LoadScenario,
    entrant: ContendingConfiguration,
    found: ScenarioOutcome,
    settings: MeasureSettings,
    accuracies: Accuracies,
) -> ConfigurationRecord:
    """Return what a search has come to for one configuration."""
    configuration, starts = entrant.candidate.configuration, entrant.starts
    runs = list(starts.values()) or ([entrant.sight] if entrant.sight is not None else [])
    last = runs[-1] if runs else None
    sign = -1.0 if scenario.objective == "latency" else 1.0
    values = sorted(math.exp(sign * m.goodness) for m in runs if m.held and math.isfinite(m.goodness))
    below = None if values else min((m.multiple for m in runs if not m.held), default=None)
    control = found.entrants[found.control]
    logs = {
        str(n): m.log_ratio(control.starts[n])
        for n, m in starts.items()
        if entrant is not control and n in control.starts and math.isfinite(m.goodness - control.starts[n].goodness)
    }
    ratio = found.judgement.ratios.get(entrant.candidate.name) if found.judgement is not None else None
    sights = [e.sight.goodness for e in (entrant, control) if e.sight is not None and e.sight.held]
    gap = sights[0] - sights[1] if len(sights) > 1 else math.nan
    return ConfigurationRecord(
        name=entrant.candidate.name,
        kind=entrant.candidate.kind,
        models=[
            ConfiguredModel(
                name,
                variant.target,
                {d.name: RegisteredRecord(d.openvino_name, d.plugin, dict(d.properties)) for d in variant.devices},
                dict(variant.properties),
                last.requests.get(name, variant.requests) if last else variant.requests,
                variant.name,
                last.precisions.get(name, "") if last else "",
                accuracies.get((name, variant.identity)),
            )
            for name, variant in configuration.models
        ],
        isolation=configuration.isolation,
        value=float(np.exp(np.mean(np.log(values)))) if values else None,
        between=(values[0], values[-1]) if len(starts) > 1 and values else None,
        log_ratios=logs,
        over_control=ratio if ratio is not None and ratio.starts > 1 and math.isfinite(ratio.high) else None,
        sight=math.exp(gap) if math.isfinite(gap) else None,
        figures=list(last.figures) if last else [],
        load_s=last.load_s if last else None,
        peak_bytes=last.peak_bytes if last else None,
        processor_s=last.processor_s if last else None,
        left=entrant.left,
        limit=next((m.limit for m in runs if m.limit), ""),
        failed=None if entrant.failed is None else FailureRecord(entrant.failed.kind, entrant.failed.message),
        failed_model=entrant.failed_model,
        shared=list(configuration.shared),
        below=below,
    )


def _contest_record(found: ScenarioOutcome, settings: MeasureSettings) -> ScenarioContest:
    judgement, best = found.judgement, found.entrants[found.best]
    over: dict[str, RatioEstimate] = {}
    for name, other in found.entrants.items():
        if other.candidate.kind in BASELINES and other is not best:
            logs = [m.log_ratio(other.starts[n]) for n, m in best.starts.items() if n in other.starts]
            logs = [x for x in logs if math.isfinite(x)]
            if len(logs) > 1:
                over[name] = RatioEstimate.of_logs(*mean_interval(logs, settings.level), len(logs))
    noise = judgement.noise if judgement is not None and math.isfinite(judgement.noise) else None
    names = judgement.claimed if judgement is not None else ()
    claimed = [name for name in names if found.entrants[name].candidate.kind == "searched"]
    disturbed = judgement is not None and judgement.disturbed
    measured = [m for e in found.entrants.values() for m in (*e.starts.values(), *([e.sight] if e.sight else []))]
    others = float(np.median([m.others for m in measured])) if measured else 0.0
    return ScenarioContest(
        found.control, settings.level, settings.least, claimed, noise, disturbed, over, found.missing_s, others
    )


def _write_result(
    plan: ScenarioPlan, folder: Path, outcomes: Mapping[str, Mapping[str, Outcome]], measured: Outcome
) -> ScenarioResult:
    """Write result.json, and for each model the folder of its deployment."""
    document = payload.read_json(measured.entry.path(SEARCH))
    rows = [payload.from_json(ConfigurationRecord, row) for row in document["configurations"]]
    answer = next(row for row in rows if row.name == document["best"])
    contest = payload.from_json(ScenarioContest, document["contest"])
    check = payload.from_json(CheckRecord, document["check"]) if document["check"] else None
    scenario = plan.file.scenario
    forecast = payload.from_json(ScenarioForecast, document["forecast"])
    verdict, gain = decide_scenario(scenario.objective, answer, rows, contest, check, forecast.remedies)
    loads = []
    for load in scenario.models:
        source, file = plan.file.sources[load.name], plan.files[load.name]
        shared = load.phase is not None and load.phase.of in answer.shared
        folder_of = load.phase.of if shared and load.phase is not None else load.name
        loads.append(
            ModelLoadRecord(
                load.name, str(file.path), file.sha256, folder_of, list(source.shapes), load.rate, load.concurrency,
                load.arrivals, load.deadline_s if math.isfinite(load.deadline_s) else None, load.percentile,
                load.weight, load.late, load.after, load.calls, list(load.devices),
                PhaseRecord(load.phase.name, load.phase.of, load.phase.share) if load.phase is not None else None,
            )
        )  # fmt: skip
        if folder_of not in {m.folder for m in loads[:-1]}:
            _write_deployment(folder / folder_of, plan, outcomes[folder_of]["read"], answer, load.name)
    stages = [
        StageRecord(f"{stage} {name}", o.task.name, o.task.key, o.ran, o.why, o.seconds)
        for name, told in outcomes.items()
        for stage, o in told.items()
    ]
    stages.append(StageRecord(STAGE, STAGE, measured.task.key, measured.ran, measured.why, measured.seconds))
    result = ScenarioResult(
        schema=SCHEMA,
        source=str(plan.file.path),
        objective=scenario.objective,
        isolation=scenario.isolation,
        limits=ScenarioLimits(scenario.memory_bytes, scenario.load_s, scenario.processor_s),
        models=loads,
        devices=[DeviceRecord(**d) for d in plan.machine.devices],
        fingerprint=plan.machine.fingerprint,
        hardware=dict(plan.machine.facts),
        versions=read_versions(),
        seed=plan.settings.seed,
        stages=stages,
        configurations=rows,
        best=answer.name,
        verdict=verdict,
        speedup=gain,
        notes=scenario_notes(scenario.objective, rows, check, forecast, contest.others),
        contest=contest,
        check=check,
        alone=[payload.from_json(AloneRecord, row) for row in document["alone"]],
        pairs=forecast.pairs,
        predictions=forecast.predictions,
        predicted_error=forecast.error,
        predicted_rank_correlation=forecast.rank_correlation,
        remedies=forecast.remedies,
        files={
            "result": RESULT,
            "report": "report.html",
            "manifest": MANIFEST,
            **{f"model {m.name}": m.folder for m in loads},
        },
    )
    write_json(folder / RESULT, result.to_json())
    return result


def _write_deployment(folder: Path, plan: ScenarioPlan, read: Outcome, answer: ConfigurationRecord, name: str) -> None:
    """Write into the folder of a model what deploying it takes, as a run of its own has it."""
    how = next(m for m in answer.models if m.name == name)
    folder.mkdir(parents=True, exist_ok=True)
    devices = [{"name": n, **asdict(device)} for n, device in how.devices.items()]
    row: Any = {
        "name": answer.name, "target": how.target, "properties": how.properties, "devices": devices,
        "placement": None, "requests": how.requests,
    }  # fmt: skip
    graph = payload.load_graph(read.entry.path("graph.npz"))
    objective = "throughput" if plan.file.scenario.objective == "throughput" else "latency"
    write_placed(folder, read.entry, graph.names, row, plan.files[name].sha256, objective=objective)
    write_checks(folder, read.entry)


def load_scenario_result(folder: Path) -> ScenarioResult:
    """Return the result of a scenario in a run directory.

    Raises:
        StoreError: there is none, or it is damaged.
    """
    file = folder / RESULT
    try:
        document = payload.read_json(file)
        if document["schema"] == SCHEMA:
            return payload.from_json(ScenarioResult, document)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{file} is damaged or missing.", "Run `placewright tune SCENARIO.toml` first.") from error
    raise StoreError(f"{file} is of schema {document['schema']!r}, and no result of a scenario.", "Use another folder.")
