"""The stage `measure`: candidates, settings and baselines, against one another; measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.errors import ModelError, UsageError
from pipeline.core.settings import MeasureSettings
from pipeline.placing.comparison import Conditions, in_simulator, on_devices
from pipeline.placing.journal import disturbed_rows
from pipeline.placing.shortlist import check_something_ran, distinct_finalists
from pipeline.settings import registry
from pipeline.settings.config import Settings
from pipeline.settings.declared import read_declaration
from pipeline.shared import payload
from pipeline.stages.choices import Choice, choice_of, settings_first
from pipeline.stages.host import NOT_INSTALLED, ModelFile, check_onnxruntime, look_at_model, onnxruntime_version
from pipeline.stages.inputs import read_forms, read_subject, read_tried_precisions, stage_deadline
from pipeline.stages.stage import PlannedStage, RunPlan, RunStage, params_of
from pipeline.store.store import write_json
from pipeline.store.task import StepContext

OF_LEFT, OF_WHOLE = 1.0, 0.5  # of what is left of the budget; of the whole where the stage runs apart from a deadline


@dataclass(frozen=True, slots=True)
class OnnxParams:
    """The file that ONNX Runtime runs, and its version."""

    model_sha256: str
    version: str


@dataclass(frozen=True, slots=True)
class MeasureParams:
    """How what is measured.

    devices: of the run. real: whether anything is measured, and not predicted. settings_first: why settings are tried
    before any split, "" if they are not. onnxruntime: None where it runs nothing.
    """

    settings: MeasureSettings
    evaluator: Choice
    devices: tuple[dict[str, Any], ...]
    finalists: int
    budget_s: float
    real: bool
    settings_first: str
    onnxruntime: OnnxParams | None


def plan_measure(run: RunPlan) -> PlannedStage:
    """Return what decides the comparison."""
    settings = run.settings
    use, onnx = settings.measure.use, _onnx_params(run)
    params = MeasureParams(
        settings.measure,
        choice_of(settings, "measure", use),
        tuple(map(dict, run.known_machine.devices)),
        settings.place.finalists,
        settings.budget_s,
        read_declaration("measure", use).real,
        settings_first(settings, run.machine),
        onnx,
    )
    inputs = ("read", "precisions", "place", "profile")
    context = {} if onnx is None else {"model": str(run.model.path)}
    return PlannedStage(params=params, inputs=inputs, uses=[("measure", use)], measured=True, context=context)


def check_runtimes(model: ModelFile, settings: Settings) -> None:
    """Check that ONNX Runtime can run a model where it was asked for.

    Raises:
        UsageError: the model is no ONNX file, or a simulator is asked.
        MissingPackageError: onnxruntime is not installed.
    """
    if "onnxruntime" not in settings.measure.runtimes:
        return
    remedy = "Leave onnxruntime out of --runtimes"
    if settings.measure.use != "hetero":
        raise UsageError(
            f"measure.use is {settings.measure.use}, which knows nothing of ONNX Runtime.", f"{remedy}, or measure.use."
        )
    check_onnxruntime(model.path, remedy)


def _onnx_params(run: RunPlan) -> OnnxParams | None:
    """Return what ONNX Runtime is to run; None where it is not to."""
    measure = run.settings.measure
    asked = measure.runtimes
    if (asked and "onnxruntime" not in asked) or run.model.path.suffix != ".onnx" or measure.use != "hetero":
        return None
    version = onnxruntime_version()
    return None if version == NOT_INSTALLED else OnnxParams(run.model.sha256, version)


def _onnx_source(work: StepContext, params: MeasureParams) -> tuple[Path, str] | None:
    """Return the source of the model, which must not have changed, and the version of ONNX Runtime that may run it.

    Raises:
        ModelError: it has changed since the run began, or is not there any more.
    """
    if params.onnxruntime is None:
        return None
    source = look_at_model(Path(work.task.context["model"]))
    if source.sha256 != params.onnxruntime.model_sha256:
        raise ModelError(f"{source.path} has changed since the run began.", "Run the same command again.")
    return source.path.absolute(), params.onnxruntime.version


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
        terms = Conditions(
            settings,
            until,
            tried,
            settings_first=bool(params.settings_first),
            forms=forms,
            ran=ran,
            onnx=_onnx_source(work, params),
        )
        journal = work.series / "starts.jsonl"
        measured = on_devices(subject, finalists, terms, journal=journal, progress=work.progress)
    else:
        measured = in_simulator(subject, registry.build_implementation("measure", *params.evaluator), finalists)
    check_something_ran(measured["rows"])
    work.disturbed.extend(disturbed_rows(measured["rows"]))
    write_json(work.out / "measurements.json", measured)


MEASURE = RunStage(name="measure", version=13, plan=plan_measure, execute=measure, sampled=True)
