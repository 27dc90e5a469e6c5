"""Calibrating the simulators to one model on real devices: measure a few placements, fit, write the tables."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from pipeline.core.arrays import Float64
from pipeline.core.devices import DeviceSpec, contract_costs
from pipeline.core.errors import UsageError
from pipeline.core.graph import Grouping, contract
from pipeline.core.measurement import Evaluation, MeasurementFailed
from pipeline.core.placement import Placement
from pipeline.core.stages import Evaluator, Measurer, Subject
from pipeline.placing.journal import Journal
from pipeline.result.records import CalibrationRecord, FitRecord, PredictedRecord, Role
from pipeline.settings import registry
from pipeline.settings.config import Settings
from pipeline.shared import payload
from pipeline.stages.choices import measurer_of
from pipeline.stages.execution import execute_tasks
from pipeline.stages.host import HostMachine, look_at_machine, look_at_model
from pipeline.stages.plan import plan_tasks
from pipeline.store.store import Store, json_digest, leaving_nothing, write_json, write_text
from pipeline.store.task import Outcome, Progress
from pipeline.system.machine_lock import measuring_alone

if TYPE_CHECKING:
    from runtime.calibration.calibrate import Calibration

SCHEMA: Literal["placewright.calibration/1"] = "placewright.calibration/1"
POOL = 400  # plausible placements among which those to measure are chosen
FIRST = 6  # of the placements to fit, how many are drawn blindly before the first fit
BATCH = 4  # placements measured between two fits
JOURNAL = "measurements.jsonl"
ROLES: tuple[Role, Role] = ("fitted", "held out")
SIMULATORS = ("sequential", "listsched")

Measured = list[tuple[Placement, Evaluation]]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How much is measured.

    measurements: placements to fit to. holdout: placements that are measured to tell the error, and never fitted to.
    """

    measurements: int = 40
    holdout: int = 12

    def __post_init__(self) -> None:
        if self.measurements < 1 or self.holdout < 0:
            raise UsageError(
                f"{self.measurements} measurements and {self.holdout} held out: at least 1 and 0 are needed.",
                "Raise --measurements or --holdout.",
            )


def calibrate(
    model: Path,
    settings: Settings,
    out: Path,
    store: Store,
    *,
    sampling: Sampling | None = None,
    machines: Path | None = None,
    progress: Progress = lambda _: None,
) -> CalibrationRecord:
    """Return what `out`/calibration.json holds, once the model's placements are measured and the tables written.

    The stages up to `profile` come from the store where they are there. Placements are measured by `measure.use` of
    the settings, with what is set of `measure` otherwise; what an interrupted call has measured into `out` on this
    machine counts. With `measure.runtime` dataflow they run in segments that overlap, and what is fitted is the longest
    path, as `listsched` has it, instead of the sum of all, as `sequential` has it. `out`, and machines, a folder of
    what machines take, get lines on the devices of this one.

    Raises:
        PlacewrightError: with one line of cause and one of remedy; see `pipeline.core.errors`.
    """
    from runtime.calibration.calibrate import calibrate as fit
    from runtime.calibration.machine_lines import let_git_merge

    sampling = sampling or Sampling()
    with leaving_nothing(out):
        _make_folder(out)
        machine = look_at_machine(settings.devices)
        subject, slowdown, context = _profiled_subject(model, settings, machine, store, progress)
    concurrent = settings.measure.runtime == "dataflow"
    name, params = measurer_of(settings, "dataflow" if concurrent else settings.measure.use)
    measurer: Measurer = registry.build_implementation("measure", name, params)
    evaluator = measurer.bind(subject)
    depends_on = json_digest([context, machine.fingerprint, name, evaluator.fingerprint])
    journal = Journal.of(out / JOURNAL, depends_on, evaluator)
    refit = partial(fit, subject, launches=False, slowdown=slowdown if concurrent else None)
    with measuring_alone(progress) if measurer.real else contextlib.nullcontext():
        fitted, held = _measure_placements(subject, journal, sampling, settings.seed, progress, refit)
    calibration = refit(fitted)
    document: CalibrationRecord = {
        "schema": SCHEMA,
        "model": str(model),
        "devices": list(subject.topology.names),
        "runtime": name,
        "seed": settings.seed,
        **_summarise_fit(calibration, subject, fitted, held, slowdown if concurrent else np.ones(subject.topology.p)),
    }
    _write_tables(calibration, out)
    write_json(out / "calibration.json", document)
    if machines is not None:
        let_git_merge(machines)
    _add_machine_lines(machines or out, out, machine, model, calibration, fitted)
    return document


def _add_machine_lines(
    folder: Path, out: Path, machine: HostMachine, model: Path, calibration: Calibration, fitted: Measured
) -> None:
    """Add what the model took on single devices, and its operations by the fit, to a folder of machines and `out`.

    How far they would have been predicted amiss is told by what the folder knows.
    """
    from runtime.calibration.machine_lines import SCHEMA, append_machine_line, by_device, lines_in, rows_of
    from runtime.calibration.transfer import predict_seconds

    sha256 = look_at_model(model).sha256
    known = by_device(list(lines_in(folder)))
    for placement, result in fitted:
        if isinstance(result, MeasurementFailed) or len(placement.devices_used) != 1:
            continue
        column = calibration.costs.devices.index(placement.devices_used[0])
        rows = rows_of(calibration.subject.graph, calibration.costs.op_s[:, column])
        device = device_text(calibration.topology.devices[column])
        others = [line for line in known.get((machine.fingerprint, device), []) if line["sha256"] != sha256]
        said_s = predict_seconds(others, rows).seconds if others else 0.0
        line = {
            "schema": SCHEMA,
            "fingerprint": machine.fingerprint,
            "machine": f"{machine.facts['cpu']}, {machine.facts['processors']} processors",
            "runtime": f"openvino {machine.facts['openvino']}",
            "device": device,
            "model": model.name,
            "sha256": sha256,
            "latency_s": result.value_s,
            "rows": rows,
            "held_out": math.log(said_s / result.value_s) if said_s > 0 else None,
        }
        for each in {out.resolve(), folder.resolve()}:
            append_machine_line(each, line)


def device_text(device: DeviceSpec) -> str:
    """Return a device and its properties, as lines of a machine name it; `predict.devices_option` goes back."""
    properties = ",".join(f"{key}={value}" for key, value in sorted(device.properties.items()))
    return f"{device.plugin}{{{properties}}}" if properties else device.plugin


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder} cannot be made: {error.strerror}.", "Choose another folder for --out.") from error


def _profiled_subject(
    model: Path, settings: Settings, machine: HostMachine, store: Store, progress: Progress
) -> tuple[Subject, Float64, list[str]]:
    """Return what is placed, profiled; how much devices slow one another down; the keys of what says what nodes are."""
    known = look_at_model(model)
    planned = [t for last in ("coarsen", "profile") for t in plan_tasks(known, settings, machine, upto=last)]
    tasks = list({t.stage: t for t in planned}.values())
    with leaving_nothing(*store.traces(planned[0].key)):
        store.prepare()
        outcomes = execute_tasks(tasks, store, progress=progress, previous={})

    def file(stage: str, name: str) -> Path:
        outcome: Outcome = outcomes[stage]
        return outcome.entry.path(name)

    file("read", "model.bin")
    graph = payload.load_graph(file("read", "graph.npz"))
    grouping = payload.load_grouping(file("coarsen", "grouping.npz"))
    costs, topology = payload.load_profile(file("profile", "profile.npz"))
    subject = Subject(file("read", "model.xml"), graph, grouping, topology, costs, settings.seed)
    slowdown = payload.load_slowdown(file("profile", "profile.json"), topology)
    return subject, slowdown, [outcomes[stage].task.key for stage in ("read", "coarsen")]


def _measure_placements(
    subject: Subject,
    journal: Journal,
    sampling: Sampling,
    seed: int,
    progress: Progress,
    refit: Callable[[Measured], Calibration],
) -> tuple[Measured, Measured]:
    """Return the measured placements to fit to, and those held out, taken in turns so that drift hits both.

    The held out ones are drawn blindly from the pool. The others are single devices, a few drawn blindly, and then
    what the fit so far wants to know.
    """
    from runtime.calibration.calibrate import check_splits_run
    from runtime.calibration.draw_placements import plausible_placements

    pool = plausible_placements(subject, POOL, seed=seed)
    singles, rest = pool[: subject.topology.p], pool[subject.topology.p :]
    order = np.random.default_rng(seed).permutation(len(rest)).tolist()
    holdout = [rest[i] for i in order[: sampling.holdout]]
    waiting = [*singles, *(rest[i] for i in order[sampling.holdout :][:FIRST])]
    open_ = [*singles, *(rest[i] for i in sorted(order[sampling.holdout :]))]
    fitted: Measured = []
    held: Measured = []
    total = sampling.measurements + sampling.holdout
    while len(fitted) < sampling.measurements:
        if not waiting:
            check_splits_run(fitted)
            known = {placement.key() for placement, _ in fitted}
            waiting = refit(fitted).next_placements(open_, BATCH, known=known)
        if not waiting:
            break
        placement = waiting.pop(0)
        fitted.append((placement, journal.ask(placement)))
        due = round(len(fitted) * sampling.holdout / sampling.measurements)
        held += [(p, journal.ask(p)) for p in holdout[len(held) : due]]
        progress(f"measured {len(fitted) + len(held)} of {total} placements")
    held += [(p, journal.ask(p)) for p in holdout[len(held) :]]
    return fitted, held


def _summarise_fit(
    calibration: Calibration, subject: Subject, fitted: Measured, held: Measured, slowdown: Float64
) -> FitRecord:
    """Return the errors before and after, the coefficients, and what was predicted of each placement."""
    rows = [(role, p, r) for role, group in zip(ROLES, (fitted, held), strict=True) for p, r in group]
    before, after = (
        _predict_placements(subject, rows, np.ones(slowdown.size)),
        _predict_placements(calibration.subject, rows, slowdown),
    )
    documents: list[PredictedRecord] = [
        {
            "role": role,
            "devices": {d: int(np.sum(p.device == j)) for j, d in enumerate(p.devices)},
            "subgraphs": r.subgraphs if not isinstance(r, MeasurementFailed) else None,
            "measured_s": r.value_s if not isinstance(r, MeasurementFailed) else None,
            "failed": payload.failure_to_json(r) if isinstance(r, MeasurementFailed) else None,
            "before_s": {name: before[name][i] for name in SIMULATORS},
            "predicted_s": {name: after[name][i] for name in SIMULATORS},
        }
        for i, (role, p, r) in enumerate(rows)
    ]
    errors = {
        when: {role: {name: _median_error(documents, role, when, name) for name in SIMULATORS} for role in ROLES}
        for when in ("before", "after")
    }
    return {
        "measurements": len(fitted),
        "used": calibration.measured,
        "holdout": len(held),
        "median_relative_error": errors,
        "constant_error": _constant_error(fitted, held),
        "left_out_error": calibration.left_out_error,
        "penalty": calibration.penalty,
        "slowdown": dict(zip(subject.topology.names, slowdown.tolist(), strict=True)),
        "coefficients": [
            {
                "kind": c.term.kind,
                "what": c.term.what,
                "device": c.term.device,
                "target": c.term.target,
                "prior": c.prior,
                "value": c.value,
                "deviation": c.deviation,
            }
            for c in calibration.coefficients
        ],
        "placements": documents,
    }


def _predict_placements(
    subject: Subject, rows: Sequence[tuple[str, Placement, Evaluation]], slowdown: Float64
) -> dict[str, list[float | None]]:
    """Return what each simulator says of every placement, None where it refuses it.

    slowdown: float64 [p], what the times of operations hold that one device alone does not take.
    """
    from runtime.calibration.critical_path import single_device_factor

    predictions: dict[str, list[float | None]] = {}
    for name in SIMULATORS:
        evaluator: Evaluator = registry.build_implementation("measure", name, {"memory": False}).bind(subject)
        answers = zip((p for _, p, _ in rows), evaluator.evaluate([p for _, p, _ in rows]), strict=True)
        predictions[name] = [
            a.value_s * single_device_factor(p, slowdown) if not isinstance(a, MeasurementFailed) else None
            for p, a in answers
        ]
    return predictions


def _median_error(rows: Sequence[PredictedRecord], role: Role, when: str, name: str) -> float | None:
    """Return the median relative error of a simulator on the placements of one role, None without any."""
    pairs = [
        ((row["before_s"] if when == "before" else row["predicted_s"])[name], row["measured_s"])
        for row in rows
        if row["role"] == role
    ]
    errors = [abs(said / measured - 1.0) for said, measured in pairs if measured and said is not None]
    return float(np.median(errors)) if errors else None


def _constant_error(fitted: Measured, held: Measured) -> float | None:
    """Return the median relative error of saying the median of the fitted ones of all held out, None without any."""
    said, true = ([r.value_s for _, r in group if not isinstance(r, MeasurementFailed)] for group in (fitted, held))
    return float(np.median(np.abs(np.median(said) / np.array(true) - 1.0))) if said and true else None


def _write_tables(calibration: Calibration, out: Path) -> None:
    """Write costs.csv and topology.toml, for the operations that a search places: weights folded into their readers."""
    from runtime.machines.cost_file import write_costs
    from runtime.machines.topology_text import topology_text

    graph = calibration.subject.graph
    folded: Grouping = registry.build_implementation("coarsen", "fold").coarsen(graph, seed=0)
    write_costs(out / "costs.csv", contract_costs(calibration.costs, contract(graph, folded), folded))
    write_text(out / "topology.toml", topology_text(calibration.topology))
