"""The stage `measure`: candidates, settings and baselines, against one another; measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.core.settings import MeasureSettings
from pipeline.placing.comparison import Conditions, in_simulator, on_devices
from pipeline.placing.finals import check_something_ran, distinct_finalists
from pipeline.placing.journal import disturbed_rows
from pipeline.settings import registry
from pipeline.settings.declared import declared
from pipeline.shared import payload
from pipeline.stages.choices import Choice, choice_of, settings_first
from pipeline.stages.inputs import read_forms, read_subject, read_tried_precisions, stage_deadline
from pipeline.stages.stage import PlannedStage, RunPlan, RunStage, params_of
from pipeline.store.store import write_json
from pipeline.store.task import StepContext

OF_LEFT, OF_WHOLE = 1.0, 0.5  # of what is left of the budget; of the whole where the stage runs apart from a deadline


@dataclass(frozen=True, slots=True)
class MeasureParams:
    """How what is measured.

    devices: of the run. real: whether anything is measured, and not predicted. settings_first: whether settings are
    tried before any split.
    """

    settings: MeasureSettings
    evaluator: Choice
    devices: tuple[dict[str, Any], ...]
    finalists: int
    budget_s: float
    real: bool
    settings_first: bool


def plan_measure(run: RunPlan) -> PlannedStage:
    """Return what decides the comparison."""
    settings = run.settings
    use = settings.measure.use
    params = MeasureParams(
        settings.measure,
        choice_of(settings, "measure", use),
        tuple(map(dict, run.known_machine.devices)),
        settings.place.finalists,
        settings.budget_s,
        declared("measure", use).real,
        settings_first(settings, run.machine),
    )
    inputs = ("read", "precisions", "place", "profile")
    return PlannedStage(params=params, inputs=inputs, uses=[("measure", use)], measured=True)


def measure(work: StepContext) -> None:
    """Write measurements.json: finalists, baselines and settings, measured against one another.

    Where the budget is used up, one of them runs all the same: who waited that long gets an answer.
    """
    params, subject = params_of(MeasureParams, work), read_subject(work)
    settings, rows = params.settings, payload.read_json(work.read("place", "candidates.json"))
    ordered = (settings.use, settings.runtime) != ("hetero", "hetero")
    finalists = distinct_finalists(rows, params.finalists, ordered=ordered)
    if settings.use == "hetero":
        until = stage_deadline(
            work, of_left=OF_LEFT, of_whole=OF_WHOLE, budget_s=params.budget_s, seconds=settings.seconds
        )
        tried, forms = read_tried_precisions(work), read_forms(work)
        ran = payload.read_json(work.read("profile", "profile.json"))["ran"]
        terms = Conditions(settings, until, tried, settings_first=params.settings_first, forms=forms, ran=ran)
        journal = work.series / "starts.jsonl"
        measured = on_devices(subject, finalists, terms, journal=journal, progress=work.progress)
    else:
        measured = in_simulator(subject, registry.build("measure", *params.evaluator), finalists)
    check_something_ran(measured["rows"])
    work.disturbed.extend(disturbed_rows(measured["rows"]))
    write_json(work.out / "measurements.json", measured)


MEASURE = RunStage(name="measure", version=9, plan=plan_measure, execute=measure, sampled=True)
