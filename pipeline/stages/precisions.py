"""The stage `precisions`: how far outputs in low precisions are off; only if such a precision is in question."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.core.settings import MeasureSettings
from pipeline.stages.choices import MEASURED_ALIKE
from pipeline.stages.inputs import read_model
from pipeline.stages.stage import PlannedStage, RunPlan, RunStage, params_of
from pipeline.store.store import write_json
from pipeline.store.task import StepContext


@dataclass(frozen=True, slots=True)
class PrecisionsParams:
    """Which precisions are tried; low: (plug-in, precision). settings: of the measure stage, those that count here."""

    low: tuple[tuple[str, str], ...]
    settings: dict[str, Any]


def plan_precisions(run: RunPlan) -> PlannedStage | None:
    """Return what decides which precisions the model tolerates; None where all devices compute in f32."""
    settings, machine = run.settings.measure, run.known_machine
    if not machine.low or not (machine.open_names or settings.use == "hetero"):
        return None
    alike = {name: getattr(settings, name) for name in MEASURED_ALIKE}
    return PlannedStage(params=PrecisionsParams(machine.low, alike), inputs=("read",), measured=True)


def try_low_precisions(work: StepContext) -> None:
    """Write precisions.json: which low precisions the model tolerates; ran.json: what the CPU in f32 said of itself."""
    from runtime.measuring.profile.precisions import trials_to_json, try_precisions

    params = params_of(PrecisionsParams, work)
    settings = MeasureSettings(**params.settings)
    work.progress(f"comparing the outputs in {', '.join(sorted({p for _, p in params.low}))} with those in f32")
    model, seed = read_model(work), work.task.seed
    tried, reference = try_precisions(model, params.low, settings, seed=seed, deadline=work.deadline)
    work.disturbed.extend([f"{t.precision} on {t.plugin}: {t.why_not}" for t in tried if t.transient])
    write_json(work.out / "precisions.json", trials_to_json(tried))
    write_json(work.out / "ran.json", reference.ran)


PRECISIONS = RunStage(name="precisions", version=9, plan=plan_precisions, execute=try_low_precisions, seeded=False)
