"""The stage `precisions`: how far outputs in low precisions are off; only if such a precision is in question."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.core.settings import MeasureSettings, ProfileSettings
from pipeline.stages.choices import MEASURED_ALIKE
from pipeline.stages.inputs import ALONE_SHARE, read_model, within_share
from pipeline.stages.stage import PlannedStage, RunPlan, RunStage, params_of
from pipeline.store.store import write_json
from pipeline.store.task import StepContext

SPARE_BUDGET_S = 60.0  # below it no spare precision is tried: it is rarely faster, and takes two loads and more


@dataclass(frozen=True, slots=True)
class PrecisionsParams:
    """Which precisions are tried.

    low: (plug-in, precision). spare: those tried where none of the plug-in's is accurate enough. settings: of the
    measure stage, those that count here. profiling: how kernels are timed meanwhile, of a single device.
    """

    low: tuple[tuple[str, str], ...]
    spare: tuple[tuple[str, str], ...]
    settings: dict[str, Any]
    profiling: ProfileSettings | None


def plan_precisions(run: RunPlan) -> PlannedStage | None:
    """Return what decides which precisions the model tolerates; None where all devices compute in f32."""
    settings, machine = run.settings.measure, run.known_machine
    if not machine.low or not (machine.open_names or settings.use == "hetero"):
        return None
    alike = {name: getattr(settings, name) for name in MEASURED_ALIKE}
    spare = machine.spare if run.settings.budget_s >= SPARE_BUDGET_S else ()
    plain = [len(device["properties"]) == 1 for device in machine.devices]  # its precision, which is pinned in any case
    profiling = run.settings.profile if plain == [True] else None
    return PlannedStage(params=PrecisionsParams(machine.low, spare, alike, profiling), inputs=("read",), measured=True)


def try_low_precisions(work: StepContext) -> None:
    """Write precisions.json: which low precisions the model tolerates; ran.json: what the CPU in f32 said of itself."""
    from runtime.measuring.profile.precisions import trials_to_json, try_precisions

    params = params_of(PrecisionsParams, work)
    settings, profiling = MeasureSettings(**params.settings), params.profiling
    work.progress(f"comparing the outputs in {', '.join(sorted({p for _, p in params.low}))} with those in f32")
    trials = try_precisions(
        read_model(work),
        params.low,
        settings,
        seed=work.task.seed,
        spare=params.spare,
        deadline=work.deadline,
        profiling=None if profiling is None else within_share(profiling, work, ALONE_SHARE),
    )
    work.disturbed.extend([f"{t.precision} on {t.plugin}: {t.why_not}" for t in trials.tried if t.transient])
    write_json(work.out / "precisions.json", trials_to_json(trials.tried))
    write_json(work.out / "ran.json", trials.ran)
    write_json(work.out / "kernels.json", trials.kernels)


PRECISIONS = RunStage(name="precisions", version=10, plan=plan_precisions, execute=try_low_precisions, seeded=False)
